//! A bounded first-in-first-out ring of words in reserved memory.
//!
//! The ring goes around in as little of its reservation as its words need: in one page at first, and in twice as much
//! whenever that part is full. A ring that went around in all of its reservation would in time touch every page of it,
//! however few words it holds.

use crate::base::uapi::{self, Errno};
use ebb_sync::{CacheLine, Lock};

ebb_sync::lock_classes! {
    /// The lock of a ring.
    RingLock = "ring";
}

/// Words of one page: the part in use at first.
const FIRST: u64 = 512;

struct Inner {
    at: *mut u64,
    /// Words in the reservation.
    capacity: u64,
    /// Index mask of the part that is in use: its words, less one.
    mask: u64,
    head: u64,
    tail: u64,
}

// SAFETY: the memory belongs to the ring and is reached under its lock only.
unsafe impl Send for Inner {}

impl Inner {
    /// Makes room for one more word; false when the ring is full.
    fn make_room(&mut self) -> bool {
        let words = self.mask + 1;
        if self.tail.wrapping_sub(self.head) < words {
            return true;
        }
        if words == self.capacity {
            return false;
        }
        // All words of the part are in use. The oldest is at `first`. Those before it are the newest, and move behind
        // all others.
        let first = (self.head & self.mask) as usize;
        // SAFETY: both halves are inside the reservation, which is a power of two larger than `words`; they do not overlap.
        unsafe { core::ptr::copy_nonoverlapping(self.at, self.at.add(words as usize), first) };
        self.head = first as u64;
        self.tail = self.head + words;
        self.mask = 2 * words - 1;
        true
    }
}

/// A first-in-first-out ring of words. Its user bounds what it holds, so that it never overflows.
pub struct Ring(CacheLine<Lock<Inner, RingLock>>);

impl Ring {
    /// Reserves a ring for at least `capacity` words.
    pub fn new(capacity: usize) -> Result<Self, Errno> {
        let capacity = capacity.next_power_of_two() as u64;
        let at = uapi::reserve(capacity as usize * 8)?.cast();
        Ok(Self(CacheLine(Lock::new(Inner { at, capacity, mask: capacity.min(FIRST) - 1, head: 0, tail: 0 }))))
    }

    /// Appends a word; false when the ring is full.
    pub fn push(&self, value: u64) -> bool {
        let mut r = self.0.lock();
        if !r.make_room() {
            return false;
        }
        // SAFETY: the masked index is inside the reservation.
        unsafe { r.at.add((r.tail & r.mask) as usize).write(value) };
        r.tail = r.tail.wrapping_add(1);
        true
    }

    /// Puts a word before all others; false when the ring is full.
    pub fn push_first(&self, value: u64) -> bool {
        let mut r = self.0.lock();
        if !r.make_room() {
            return false;
        }
        r.head = r.head.wrapping_sub(1);
        // SAFETY: as in `push`.
        unsafe { r.at.add((r.head & r.mask) as usize).write(value) };
        true
    }

    /// Takes the first word: the oldest, or one that was put before it.
    pub fn pop(&self) -> Option<u64> {
        let mut r = self.0.lock();
        if r.head == r.tail {
            return None;
        }
        // SAFETY: as in `push`; the word was written before.
        let value = unsafe { r.at.add((r.head & r.mask) as usize).read() };
        r.head = r.head.wrapping_add(1);
        Some(value)
    }

    /// Number of words in the ring.
    pub fn len(&self) -> usize {
        let r = self.0.lock();
        r.tail.wrapping_sub(r.head) as usize
    }

    /// Calls `f` with each word, from the first to the last.
    pub fn for_each(&self, mut f: impl FnMut(u64)) {
        let r = self.0.lock();
        (0..r.tail.wrapping_sub(r.head)).for_each(|i| {
            // SAFETY: as in `pop`.
            f(unsafe { r.at.add((r.head.wrapping_add(i) & r.mask) as usize).read() });
        });
    }

    /// Empties the ring.
    pub fn clear(&self) {
        let mut r = self.0.lock();
        r.head = r.tail;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_out_in_order_and_a_full_ring_refuses() {
        let r = Ring::new(4).expect("reserve");
        for i in 0..4 {
            assert!(r.push(i));
        }
        assert!(!r.push(9) && !r.push_first(9));
        assert_eq!(r.pop(), Some(0));
        assert!(r.push(4));
        assert_eq!([r.pop(), r.pop(), r.pop(), r.pop(), r.pop()], [Some(1), Some(2), Some(3), Some(4), None]);
    }

    #[test]
    fn what_is_put_first_comes_first() {
        let r = Ring::new(4).expect("reserve");
        // Also before the place where the ring starts.
        for round in 0..6 {
            assert!(r.push(10 + round) && r.push_first(20) && r.push_first(30));
            assert_eq!(r.len(), 3);
            assert_eq!([r.pop(), r.pop(), r.pop(), r.pop()], [Some(30), Some(20), Some(10 + round), None]);
        }
    }

    /// Pages of the ring that are in memory.
    fn touched(r: &Ring, capacity: usize) -> usize {
        let at = r.0.lock().at as usize;
        (0..capacity / 512).filter(|page| uapi::is_mapped(at + page * 4096)).count()
    }

    #[test]
    fn few_words_take_few_pages_however_often_they_go_around() {
        let r = Ring::new(1 << 16).expect("reserve");
        assert!((0..600).all(|i| r.push(i)));
        for i in 0..200_000 {
            assert_eq!(r.pop(), Some(i % 600));
            assert!(r.push(i % 600));
        }
        assert_eq!(touched(&r, 1 << 16), 2);
    }

    #[test]
    fn a_ring_grows_wherever_its_oldest_word_is() {
        for begin in [0, 1, 200, 511, 512, 700] {
            let r = Ring::new(4096).expect("reserve");
            for i in 0..begin {
                assert!(r.push(i));
                assert_eq!(r.pop(), Some(i));
            }
            let mut expected = std::collections::VecDeque::new();
            for i in 0..4096 {
                let first = i % 3 == 1;
                assert!(if first { r.push_first(i) } else { r.push(i) });
                if first {
                    expected.push_front(i)
                } else {
                    expected.push_back(i)
                }
                if i % 7 == 0 {
                    assert_eq!(r.pop(), expected.pop_front());
                }
            }
            while expected.len() < 4096 {
                assert!(r.push(1));
                expected.push_back(1);
            }
            assert!(!r.push(1) && !r.push_first(1));
            let mut seen = std::vec::Vec::new();
            r.for_each(|word| seen.push(word));
            assert_eq!(seen, expected.iter().copied().collect::<std::vec::Vec<_>>());
            assert!(expected.iter().all(|word| r.pop() == Some(*word)));
            assert_eq!(r.pop(), None);
        }
    }
}
