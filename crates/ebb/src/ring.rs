//! A bounded first-in-first-out ring of words in reserved memory.

use crate::uapi::{self, Errno};
use ebb_sync::Lock;

ebb_sync::lock_classes! {
    /// A ring of words.
    RingLock = "ring";
}

struct Inner {
    at: *mut u64,
    mask: u64,
    head: u64,
    tail: u64,
}

// SAFETY: the memory belongs to the ring and is reached under its lock only.
unsafe impl Send for Inner {}

/// The ring. Its user bounds what it holds, so that it never overflows.
pub struct Ring(Lock<Inner, RingLock>);

impl Ring {
    /// A ring for at least `capacity` words.
    pub fn new(capacity: usize) -> Result<Self, Errno> {
        let capacity = capacity.next_power_of_two();
        let at = uapi::reserve(capacity * 8)?.cast();
        Ok(Self(Lock::new(Inner { at, mask: capacity as u64 - 1, head: 0, tail: 0 })))
    }

    /// Appends; false when full.
    pub fn push(&self, value: u64) -> bool {
        let mut r = self.0.lock();
        if r.tail.wrapping_sub(r.head) > r.mask {
            return false;
        }
        // SAFETY: the masked index is inside the reservation.
        unsafe { r.at.add((r.tail & r.mask) as usize).write(value) };
        r.tail = r.tail.wrapping_add(1);
        true
    }

    /// Puts a word before all others; false when full.
    pub fn push_first(&self, value: u64) -> bool {
        let mut r = self.0.lock();
        if r.tail.wrapping_sub(r.head) > r.mask {
            return false;
        }
        r.head = r.head.wrapping_sub(1);
        // SAFETY: as in `push`.
        unsafe { r.at.add((r.head & r.mask) as usize).write(value) };
        true
    }

    /// Takes the oldest, or what was put before it.
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

    /// Words in it.
    pub fn len(&self) -> usize {
        let r = self.0.lock();
        r.tail.wrapping_sub(r.head) as usize
    }

    /// Calls `f` with each word.
    pub fn for_each(&self, mut f: impl FnMut(u64)) {
        let r = self.0.lock();
        (0..r.tail.wrapping_sub(r.head)).for_each(|i| {
            // SAFETY: as in `pop`.
            f(unsafe { r.at.add((r.head.wrapping_add(i) & r.mask) as usize).read() });
        });
    }

    /// Empties it.
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
        // Also before the ring's very beginning.
        for round in 0..6 {
            assert!(r.push(10 + round) && r.push_first(20) && r.push_first(30));
            assert_eq!(r.len(), 3);
            assert_eq!([r.pop(), r.pop(), r.pop(), r.pop()], [Some(30), Some(20), Some(10 + round), None]);
        }
    }
}
