//! LIRS (Jiang and Zhang, SIGMETRICS 2002): ranks pages by the distance between their last two touches. Pages with a small
//! one stay; the others share a small queue.

use super::Policy;
use super::list::Lists;

/// The part of the room for pages with a large distance.
const HIR_PART: usize = 100;
/// Pages that are remembered after they left, in multiples of the capacity.
const GHOSTS_PART: usize = 2;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Rank {
    /// Neither resident nor remembered.
    Unknown,
    /// Resident, with a small distance.
    Low,
    /// Resident, with a large distance.
    High,
    /// Not resident, but in the stack.
    Ghost,
}

pub struct Lirs {
    /// By last touch, what is needed to know distances: the oldest page has rank low.
    stack: Lists<1>,
    /// Resident pages of rank high.
    queue: Lists<1>,
    /// Ghosts, by the time they left.
    ghosts: Lists<1>,
    rank: Vec<Rank>,
    nr_low: usize,
    capacity: usize,
}

impl Lirs {
    pub fn new(pages: usize, capacity: usize) -> Self {
        let lists = || Lists::new(pages);
        let rank = vec![Rank::Unknown; pages];
        Self { stack: lists(), queue: lists(), ghosts: lists(), rank, nr_low: 0, capacity }
    }

    fn low_max(&self) -> usize {
        self.capacity.saturating_sub((self.capacity / HIR_PART).max(1))
    }

    fn set(&mut self, page: u32, rank: Rank) {
        let old = std::mem::replace(&mut self.rank[page as usize], rank);
        self.nr_low = self.nr_low + (rank == Rank::Low) as usize - (old == Rank::Low) as usize;
        match rank {
            Rank::Ghost => self.ghosts.push(0, page),
            _ => self.ghosts.remove(page),
        }
        if rank != Rank::High {
            self.queue.remove(page);
        }
    }

    /// Removes pages from the old end of the stack until one of rank low is there.
    fn prune(&mut self) {
        while let Some(page) = self.stack.oldest(0)
            && self.rank[page as usize] != Rank::Low
        {
            self.stack.remove(page);
            if self.rank[page as usize] == Rank::Ghost {
                self.set(page, Rank::Unknown);
            }
        }
    }

    /// The page of rank low that was touched longest ago becomes one of rank high.
    fn demote(&mut self) {
        self.prune();
        if let Some(page) = self.stack.pop(0) {
            self.set(page, Rank::High);
            self.queue.push(0, page);
            self.prune();
        }
    }

    fn evict_to(&mut self, capacity: usize) {
        while self.nr_low + self.queue.len(0) > capacity {
            if self.queue.len(0) == 0 {
                self.demote();
            }
            let Some(page) = self.queue.pop(0) else { return };
            let is_known = self.stack.list_of(page).is_some();
            self.set(page, if is_known { Rank::Ghost } else { Rank::Unknown });
        }
        while self.ghosts.len(0) > GHOSTS_PART * self.capacity
            && let Some(page) = self.ghosts.oldest(0)
        {
            self.stack.remove(page);
            self.set(page, Rank::Unknown);
        }
    }
}

impl Policy for Lirs {
    fn touch(&mut self, page: u32, _at: usize) -> bool {
        let rank = self.rank[page as usize];
        let is_hit = matches!(rank, Rank::Low | Rank::High);
        if !is_hit {
            self.evict_to(self.capacity - 1);
        }
        // The eviction may have removed it from the stack.
        let is_known = self.stack.list_of(page).is_some();
        self.stack.push(0, page);
        if rank == Rank::Low || is_known || self.nr_low < self.low_max() {
            self.set(page, Rank::Low);
            if self.nr_low > self.low_max().max(1) {
                self.demote();
            }
            self.prune();
        } else {
            self.set(page, Rank::High);
            self.queue.push(0, page);
        }
        is_hit
    }

    fn forget(&mut self, page: u32) {
        self.stack.remove(page);
        self.set(page, Rank::Unknown);
        self.prune();
    }

    fn resize(&mut self, capacity: usize) {
        self.capacity = capacity;
        while self.nr_low > self.low_max().max(1) {
            self.demote();
        }
        self.evict_to(capacity);
    }
}
