//! Which pages two processes share since a fork: one bit a page, in memory that both map.
//!
//! The first of the two that writes to a page, or gives it up, takes the bit, and with it says that the page is counted
//! twice from now on. The second finds no bit. So what is shared is known exactly, and nobody waits for anybody. A process
//! that dies leaves bits that nobody looks at any more.
//!
//! Bits are by address: a gibibyte of address space at a time (*leaf*), those that the parent used at the fork, and one range
//! more for the pool.

use crate::uapi::{self, Errno};
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicU64, AtomicUsize};

const PAGE_SHIFT: u32 = 12;
/// Address space of a leaf, as a power of two.
pub const LEAF_SHIFT: u32 = 30;
/// Words of the bits of a leaf.
const LEAF_WORDS: usize = 1 << (LEAF_SHIFT - PAGE_SHIFT - 6);
/// Most leaves: what lies in further ones is not shared.
pub const LEAVES_MAX: usize = 1024;
/// Words before the bits: how many leaves, the extra range's address and pages, and the numbers of the leaves in order.
const HEAD_WORDS: usize = 3 + LEAVES_MAX;

/// The bits that one process has in common with another. Empty until [`SharedMap::prepare`].
pub struct SharedMap {
    at: AtomicUsize,
    words: AtomicUsize,
}

impl SharedMap {
    /// One without memory.
    pub const fn empty() -> Self {
        Self { at: AtomicUsize::new(0), words: AtomicUsize::new(0) }
    }

    fn word(&self, index: usize) -> Option<&AtomicU64> {
        let at = self.at.load(Relaxed);
        if at == 0 || index >= self.words.load(Relaxed) {
            return None;
        }
        // SAFETY: inside the mapping, which is never unmapped; any bytes are a valid word.
        Some(unsafe { &*(at as *const AtomicU64).add(index) })
    }

    fn load(&self, index: usize) -> usize {
        self.word(index).map_or(0, |word| word.load(Relaxed) as usize)
    }

    /// Makes room for bits, none of them set, of these leaves, given in order, and of `extra` (address and pages). Before
    /// the fork that shares the memory, with the gate closed. Memory of an earlier fork is used again: its child is gone.
    pub fn prepare(&self, leaves: impl Iterator<Item = usize>, extra: (usize, usize)) -> Result<(), Errno> {
        let mut numbers = [0usize; LEAVES_MAX];
        let mut nr_leaves = 0;
        for leaf in leaves {
            if nr_leaves == LEAVES_MAX {
                break;
            }
            if nr_leaves == 0 || numbers[nr_leaves - 1] != leaf {
                numbers[nr_leaves] = leaf;
                nr_leaves += 1;
            }
        }
        let words = HEAD_WORDS + nr_leaves * LEAF_WORDS + extra.1.div_ceil(64);
        let have = self.words.load(Relaxed);
        if have >= words {
            uapi::madvise(self.at.load(Relaxed), have * 8, linux_raw_sys::general::MADV_REMOVE)?;
        } else {
            // Room to grow, because what is taken is never given back.
            let pages = (2 * words * 8).div_ceil(4096);
            let at = uapi::reserve_shared(pages * 4096)?;
            self.at.store(at as usize, Relaxed);
            self.words.store(pages * 512, Relaxed);
        }
        let head = [nr_leaves, extra.0, extra.1];
        for (i, value) in head.iter().chain(&numbers[..nr_leaves]).enumerate() {
            if let Some(word) = self.word(i) {
                word.store(*value as u64, Relaxed);
            }
        }
        Ok(())
    }

    /// The same bits, in the child of the fork, which has them under another name.
    pub fn become_same(&self, other: &Self) {
        self.at.store(other.at.load(Relaxed), Relaxed);
        self.words.store(other.words.load(Relaxed), Relaxed);
    }

    /// Has no bits any more. The memory is not used again.
    pub fn forget(&self) {
        self.words.store(0, Relaxed);
        self.at.store(0, Relaxed);
    }

    /// The word and the bit of the page at `addr`.
    fn find(&self, addr: usize) -> Option<(&AtomicU64, u64)> {
        let (nr_leaves, extra, extra_pages) = (self.load(0).min(LEAVES_MAX), self.load(1), self.load(2));
        let bits = HEAD_WORDS + nr_leaves * LEAF_WORDS;
        let bit = if addr >= extra && addr - extra < extra_pages << PAGE_SHIFT {
            bits * 64 + ((addr - extra) >> PAGE_SHIFT)
        } else {
            let leaf = addr >> LEAF_SHIFT;
            // The first that is not below it.
            let (mut first, mut end) = (0, nr_leaves);
            while first < end {
                let middle = (first + end) / 2;
                if self.load(3 + middle) < leaf { first = middle + 1 } else { end = middle }
            }
            if first == nr_leaves || self.load(3 + first) != leaf {
                return None;
            }
            (HEAD_WORDS + first * LEAF_WORDS) * 64 + (addr >> PAGE_SHIFT) % (LEAF_WORDS * 64)
        };
        Some((self.word(bit / 64)?, 1 << (bit % 64)))
    }

    /// The page at `addr` will be shared. False when there is no bit for it. With the gate closed, before the fork.
    pub fn set(&self, addr: usize) -> bool {
        let Some((word, bit)) = self.find(addr) else { return false };
        word.fetch_or(bit, Relaxed);
        true
    }

    /// How many pages of the extra range below `end` are still shared.
    pub fn count_extra(&self, end: usize) -> usize {
        let (nr_leaves, extra, extra_pages) = (self.load(0).min(LEAVES_MAX), self.load(1), self.load(2));
        let pages = (end.saturating_sub(extra) >> PAGE_SHIFT).min(extra_pages);
        let first = HEAD_WORDS + nr_leaves * LEAF_WORDS;
        let words = (first..first + pages.div_ceil(64)).filter_map(|index| self.word(index));
        words.map(|word| word.load(Relaxed).count_ones() as usize).sum()
    }

    /// The page at `addr` is shared no more; true for the one who says so first.
    pub fn take(&self, addr: usize) -> bool {
        self.find(addr)
            .is_some_and(|(word, bit)| word.load(Relaxed) & bit != 0 && word.fetch_and(!bit, SeqCst) & bit != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bit_is_taken_once() {
        let map = SharedMap::empty();
        assert!(!map.take(0x1000));
        map.prepare([1, 1, 5].into_iter(), (0x10_0000, 64)).expect("memory");
        let addrs = [1 << 30, (1 << 30) + 0x1000, (6 << 30) - 0x1000, 0x10_0000, 0x13_f000];
        assert!(addrs.iter().all(|addr| map.set(*addr)));
        assert!(!map.set(2 << 30) && !map.set(0xf_f000) && !map.set(0x14_0000));
        assert_eq!((map.count_extra(0x14_0000), map.count_extra(0x10_0000)), (2, 0));
        assert!(addrs.iter().all(|addr| map.take(*addr)));
        assert_eq!(map.count_extra(0x14_0000), 0);
        assert!(!addrs.iter().any(|addr| map.take(*addr)));
    }

    #[test]
    fn memory_that_is_used_again_has_no_bits() {
        let map = SharedMap::empty();
        map.prepare([3].into_iter(), (0, 0)).expect("memory");
        assert!(map.set(3 << 30));
        map.prepare([3].into_iter(), (0, 0)).expect("memory");
        assert!(!map.take(3 << 30));
        assert!(map.set(3 << 30));
    }
}
