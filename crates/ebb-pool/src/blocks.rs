//! The block map: which blocks of the arena are free, lowest first.
//!
//! A tree of 64-bit words: a bit for each block at the bottom, and a bit for each word above. A set bit means "used",
//! or "all used below". So zeroed memory says that everything is free, the lowest free block is found in one step a
//! level, and words of blocks that were never used are never touched. Taking the lowest block first keeps used blocks
//! together at the arena's start, and with them the metadata that is touched.

use crate::BlockMapLock;
use crate::primitive::{AtomicU32, Lock, Ordering, UnsafeCell};

/// Enough for 2^32 blocks.
const LEVELS_MAX: usize = 6;
const FANOUT: u32 = 64;

/// The part of the map that lives in the caller's memory, before the words.
#[repr(C)]
struct Head {
    lock: Lock<(), BlockMapLock>,
    /// Blocks whose memory is charged.
    held: AtomicU32,
}

/// The map of free blocks.
pub(crate) struct BlockMap {
    head: *const Head,
    words: *const UnsafeCell<u64>,
    nr_blocks: u32,
    nr_levels: usize,
    /// Index of each level's first word; the bottom is level 0.
    first_word: [u32; LEVELS_MAX],
}

impl BlockMap {
    /// Bytes of zeroed memory for `nr_blocks`, a multiple of 8.
    pub const fn metadata_bytes(nr_blocks: u32) -> usize {
        let mut words = 0;
        let mut items = nr_blocks;
        loop {
            items = items.div_ceil(FANOUT);
            words += items as usize;
            if items <= 1 {
                break;
            }
        }
        size_of::<Head>().next_multiple_of(8) + words * size_of::<UnsafeCell<u64>>()
    }

    /// Makes a map over `metadata`.
    ///
    /// # Safety
    /// `metadata` is aligned to 8, and is [`BlockMap::metadata_bytes`] zeroed bytes that live as long as the map and
    /// that nobody else uses. `nr_blocks` is not zero.
    pub unsafe fn init(metadata: *mut u8, nr_blocks: u32) -> Self {
        let head_bytes = size_of::<Head>().next_multiple_of(8);
        let mut first_word = [0; LEVELS_MAX];
        let mut nr_levels = 0;
        let mut words = 0;
        let mut items = nr_blocks;
        loop {
            items = items.div_ceil(FANOUT);
            first_word[nr_levels] = words;
            nr_levels += 1;
            words += items;
            if items <= 1 {
                break;
            }
        }
        let head = metadata.cast::<Head>();
        // SAFETY: the words follow the head within the metadata.
        let words_at = unsafe { metadata.add(head_bytes) }.cast::<UnsafeCell<u64>>();
        #[cfg(loom)]
        // SAFETY: the caller's memory is ours alone and large enough.
        unsafe {
            head.write(Head { lock: Lock::new(()), held: AtomicU32::new(0) });
            for index in 0..words as usize {
                words_at.add(index).write(UnsafeCell::new(0));
            }
        }
        Self { head, words: words_at, nr_blocks, nr_levels, first_word }
    }

    fn head(&self) -> &Head {
        // SAFETY: `init` was given memory that lives as long as the map; zeroed bytes are a valid head.
        unsafe { &*self.head }
    }

    /// The word that holds `item`'s bit at `level`, and the bit. The caller holds the lock.
    fn word(&self, level: usize, item: u32) -> (&UnsafeCell<u64>, u64) {
        let index = self.first_word[level] + item / FANOUT;
        // SAFETY: an item of a level is less than the level's number of items, so its word is within the metadata.
        (unsafe { &*self.words.add(index as usize) }, 1 << (item % FANOUT))
    }

    fn read(word: &UnsafeCell<u64>) -> u64 {
        // SAFETY: words are only used under the lock, which the caller holds.
        word.with(|word| unsafe { *word })
    }

    /// Takes the lowest free block; none if all are used.
    pub fn take(&self) -> Option<u32> {
        let _guard = self.head().lock.lock();
        let mut item = 0;
        for level in (0..self.nr_levels).rev() {
            let (word, _) = self.word(level, item * FANOUT);
            let bit = Self::read(word).trailing_ones();
            if bit == FANOUT {
                // Only the topmost word can be full here: the bit of a full word below is set above.
                debug_assert!(level == self.nr_levels - 1);
                return None;
            }
            item = item * FANOUT + bit;
            if item >= self.items(level) {
                // The level's last word has no more items, and everything before it is used.
                return None;
            }
        }
        self.mark_used(item);
        Some(item)
    }

    /// Gives back a block that [`BlockMap::take`] returned.
    pub fn give(&self, block: u32) {
        debug_assert!(block < self.nr_blocks);
        let _guard = self.head().lock.lock();
        let mut item = block;
        for level in 0..self.nr_levels {
            let (word, bit) = self.word(level, item);
            // SAFETY: the lock is held.
            let before = word.with_mut(|word| unsafe { core::mem::replace(&mut *word, *word & !bit) });
            debug_assert!(level > 0 || before & bit != 0, "block {block} was free already");
            if before != u64::MAX {
                break;
            }
            item /= FANOUT;
        }
    }

    fn mark_used(&self, block: u32) {
        let mut item = block;
        for level in 0..self.nr_levels {
            let (word, bit) = self.word(level, item);
            // SAFETY: the lock is held.
            let now = word.with_mut(|word| unsafe {
                *word |= bit;
                *word
            });
            if now != u64::MAX {
                break;
            }
            item /= FANOUT;
        }
    }

    /// How many items a level has.
    fn items(&self, level: usize) -> u32 {
        (0..level).fold(self.nr_blocks, |items, _| items.div_ceil(FANOUT))
    }

    /// The lowest used block from `from` on. For checks only: it looks at every word up to that block.
    pub fn next_used(&self, from: u32) -> Option<u32> {
        let _guard = self.head().lock.lock();
        let mut block = from;
        while block < self.nr_blocks {
            let (word, bit) = self.word(0, block);
            let rest = Self::read(word) & !(bit - 1);
            if rest != 0 {
                return Some(block / FANOUT * FANOUT + rest.trailing_zeros());
            }
            block = (block / FANOUT + 1) * FANOUT;
        }
        None
    }

    /// Counts a block whose memory has been charged, or has been uncharged.
    pub fn count_held(&self, held: bool) {
        if held {
            self.head().held.fetch_add(1, Ordering::Relaxed);
        } else {
            self.head().held.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Blocks whose memory is charged.
    pub fn held(&self) -> u32 {
        self.head().held.load(Ordering::Relaxed)
    }
}
