//! LRU: evicts the page that was touched longest ago.

use super::Policy;
use super::list::Lists;

pub struct Lru {
    lists: Lists<1>,
    capacity: usize,
}

impl Lru {
    pub fn new(pages: usize, capacity: usize) -> Self {
        Self { lists: Lists::new(pages), capacity }
    }
}

impl Policy for Lru {
    fn touch(&mut self, page: u32, _at: usize) -> bool {
        let is_hit = self.lists.list_of(page).is_some();
        self.lists.push(0, page);
        self.resize(self.capacity);
        is_hit
    }

    fn forget(&mut self, page: u32) {
        self.lists.remove(page);
    }

    fn resize(&mut self, capacity: usize) {
        self.capacity = capacity;
        while self.lists.len(0) > capacity {
            self.lists.pop(0);
        }
    }
}
