//! S3-FIFO (Yang et al., SOSP 2023): new pages go through a small queue, so that what is touched once leaves soon. What was
//! touched again goes to the main queue, and so does what comes back soon after it left.

use super::Policy;
use super::list::Lists;

const SMALL: usize = 0;
const MAIN: usize = 1;
const GHOST: usize = 2;
/// The small queue has a tenth of the room.
const SMALL_PART: usize = 10;
const TOUCHES_MAX: u8 = 3;

pub struct S3Fifo {
    lists: Lists<3>,
    touches: Vec<u8>,
    capacity: usize,
}

impl S3Fifo {
    pub fn new(pages: usize, capacity: usize) -> Self {
        Self { lists: Lists::new(pages), touches: vec![0; pages], capacity }
    }

    fn evict_to(&mut self, capacity: usize) {
        while self.lists.len(SMALL) + self.lists.len(MAIN) > capacity {
            let from_small = self.lists.len(SMALL) > self.capacity / SMALL_PART || self.lists.len(MAIN) == 0;
            let list = if from_small { SMALL } else { MAIN };
            let Some(page) = self.lists.pop(list) else { return };
            let touches = &mut self.touches[page as usize];
            match list {
                SMALL if *touches > 0 => {
                    *touches = 0;
                    self.lists.push(MAIN, page);
                }
                SMALL => self.lists.push(GHOST, page),
                _ if *touches > 0 => {
                    *touches -= 1;
                    self.lists.push(MAIN, page);
                }
                _ => {}
            }
            while self.lists.len(GHOST) > self.capacity {
                self.lists.pop(GHOST);
            }
        }
    }
}

impl Policy for S3Fifo {
    fn touch(&mut self, page: u32, _at: usize) -> bool {
        let list = self.lists.list_of(page);
        if matches!(list, Some(SMALL | MAIN)) {
            let touches = &mut self.touches[page as usize];
            *touches = (*touches + 1).min(TOUCHES_MAX);
            return true;
        }
        self.evict_to(self.capacity - 1);
        self.touches[page as usize] = 0;
        // It may have left the ghosts just now.
        self.lists.push(if list == Some(GHOST) { MAIN } else { SMALL }, page);
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
