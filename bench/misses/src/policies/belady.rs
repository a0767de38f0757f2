//! Belady's optimum: evicts the page whose next touch is farthest away.

use super::Policy;
use crate::trace::{NEVER, Trace};
use std::collections::BinaryHeap;

pub struct Belady<'a> {
    trace: &'a Trace,
    /// Resident pages by their next touch. An entry is out of date if the page has another next touch by now.
    heap: BinaryHeap<(u32, u32)>,
    /// For each page its next touch, if the page is resident.
    next: Vec<Option<u32>>,
    nr_resident: usize,
    capacity: usize,
}

impl<'a> Belady<'a> {
    pub fn new(trace: &'a Trace, capacity: usize) -> Self {
        let next = vec![None; trace.pages];
        Self { trace, heap: BinaryHeap::new(), next, nr_resident: 0, capacity }
    }

    fn evict_to(&mut self, capacity: usize) {
        while self.nr_resident > capacity
            && let Some((next, page)) = self.heap.pop()
        {
            if self.next[page as usize] == Some(next) {
                self.forget(page);
            }
        }
    }
}

impl Policy for Belady<'_> {
    fn touch(&mut self, page: u32, at: usize) -> bool {
        let is_hit = self.next[page as usize].is_some();
        if !is_hit {
            self.evict_to(self.capacity - 1);
            self.nr_resident += 1;
        }
        let next = self.trace.next_touch(at);
        self.next[page as usize] = Some(next);
        self.heap.push((next, page));
        is_hit
    }

    fn forget(&mut self, page: u32) {
        if self.next[page as usize].take().is_some() {
            self.nr_resident -= 1;
        }
    }

    fn resize(&mut self, capacity: usize) {
        self.capacity = capacity;
        self.evict_to(capacity);
    }
}

const _: () = assert!(NEVER == u32::MAX, "a page that is never touched again goes first");
