//! CLOCK: evicts the oldest page that was not touched since it became the newest. What was touched becomes the newest again.

use super::Policy;
use super::list::Lists;

pub struct Clock {
    lists: Lists<1>,
    referenced: Vec<bool>,
    capacity: usize,
}

impl Clock {
    pub fn new(pages: usize, capacity: usize) -> Self {
        Self { lists: Lists::new(pages), referenced: vec![false; pages], capacity }
    }

    fn evict_to(&mut self, capacity: usize) {
        while self.lists.len(0) > capacity
            && let Some(page) = self.lists.pop(0)
        {
            if std::mem::take(&mut self.referenced[page as usize]) {
                self.lists.push(0, page);
            }
        }
    }
}

impl Policy for Clock {
    fn touch(&mut self, page: u32, _at: usize) -> bool {
        if self.lists.list_of(page).is_some() {
            self.referenced[page as usize] = true;
            return true;
        }
        self.evict_to(self.capacity - 1);
        self.lists.push(0, page);
        self.referenced[page as usize] = false;
        false
    }

    fn forget(&mut self, page: u32) {
        self.lists.remove(page);
    }

    fn resize(&mut self, capacity: usize) {
        self.capacity = capacity;
        self.evict_to(capacity);
    }
}
