//! ARC (Megiddo and Modha, FAST 2003): pages touched once and pages touched again have a list each, and what comes back soon
//! after it left decides how the room is divided.

use super::Policy;
use super::list::Lists;

/// Resident pages touched once, touched again; then what left these lists.
const ONCE: usize = 0;
const AGAIN: usize = 1;
const ONCE_GHOST: usize = 2;
const AGAIN_GHOST: usize = 3;

pub struct Arc {
    lists: Lists<4>,
    /// Room that is meant for pages touched once.
    target: usize,
    capacity: usize,
}

impl Arc {
    pub fn new(pages: usize, capacity: usize) -> Self {
        Self { lists: Lists::new(pages), target: 0, capacity }
    }

    /// Evicts one page. `again`: it makes room for one that left the list of pages touched again.
    fn replace(&mut self, again: bool) {
        let once = self.lists.len(ONCE);
        let from_once = once > 0 && (once > self.target || again && once == self.target) || self.lists.len(AGAIN) == 0;
        let (from, to) = if from_once { (ONCE, ONCE_GHOST) } else { (AGAIN, AGAIN_GHOST) };
        if let Some(page) = self.lists.pop(from) {
            self.lists.push(to, page);
        }
    }

    fn resident(&self) -> usize {
        self.lists.len(ONCE) + self.lists.len(AGAIN)
    }
}

impl Policy for Arc {
    fn touch(&mut self, page: u32, _at: usize) -> bool {
        let len = |list| self.lists.len(list);
        match self.lists.list_of(page) {
            Some(ONCE | AGAIN) => {
                self.lists.push(AGAIN, page);
                return true;
            }
            Some(ghost @ (ONCE_GHOST | AGAIN_GHOST)) => {
                let (own, other) =
                    if ghost == ONCE_GHOST { (ONCE_GHOST, AGAIN_GHOST) } else { (AGAIN_GHOST, ONCE_GHOST) };
                let step = (len(other) / len(own)).max(1);
                self.target = match ghost {
                    ONCE_GHOST => (self.target + step).min(self.capacity),
                    _ => self.target.saturating_sub(step),
                };
                self.lists.remove(page);
                while self.resident() >= self.capacity {
                    self.replace(ghost == AGAIN_GHOST);
                }
                self.lists.push(AGAIN, page);
            }
            _ => {
                while self.resident() >= self.capacity {
                    self.replace(false);
                }
                self.lists.push(ONCE, page);
            }
        }
        while self.lists.len(ONCE) + self.lists.len(ONCE_GHOST) > self.capacity && self.lists.pop(ONCE_GHOST).is_some()
        {
        }
        while self.resident() + self.lists.len(ONCE_GHOST) + self.lists.len(AGAIN_GHOST) > 2 * self.capacity
            && self.lists.pop(AGAIN_GHOST).is_some()
        {}
        false
    }

    fn forget(&mut self, page: u32) {
        self.lists.remove(page);
    }

    fn resize(&mut self, capacity: usize) {
        self.capacity = capacity;
        self.target = self.target.min(capacity);
        while self.resident() > capacity {
            self.replace(false);
        }
    }
}
