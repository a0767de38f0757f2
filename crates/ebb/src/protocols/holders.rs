//! Who still holds which slots of a file that a family of processes shares.
//!
//! The file's owner allocates. Every other process of the family, from its fork on, has a bit for each slot that it
//! still needs. The bits are in pages of a table that all of them map. A page has the bits of one process for
//! [`PAGE_SLOTS`] slots; its *name* says which process and which slots. The owner gives a slot to new content only
//! after it has found none of the slot's bits set.
//!
//! # What keeps a slot that somebody holds
//!
//! * A page gets its name before its bits are copied, and is marked as being copied until they are. Whoever looks
//!   meanwhile takes all of its slots for held.
//! * Bits move from one page to another when a process forks, and the parent may clear its own right afterwards. A look
//!   may pass the new page before it has a name, and come to the parent's page when the bit is clear: it has missed the
//!   bit. So a look checks whether pages were taken since it began, and if so says that it does not know.
//!
//! # What gives slots back
//!
//! A process that dies or calls exec clears nothing. Whoever finds out that the *life* in the name of a page is over frees that
//! page, in one step. Nobody waits for anybody, so a process that is killed half-way leaves a page that goes the same way.
//!
//! A process that has no life of its own, or found no page, holds its slots for as long as the file exists (`ever`).

use crate::protocols::primitive::{AtomicU32, AtomicU64, Ordering};

/// Words of a page.
#[cfg(not(loom))]
pub const PAGE_WORDS: usize = 512;
/// Words of a page; one in models, so that loom has fewer steps to explore.
#[cfg(loom)]
pub const PAGE_WORDS: usize = 1;
/// Slots of a page.
pub const PAGE_SLOTS: u32 = PAGE_WORDS as u32 * 64;

/// The bits of a page.
pub type Bits = [AtomicU64; PAGE_WORDS];

/// Set in a name while the page's bits are being copied.
const COPYING: u64 = 1;
const CHUNK_SHIFT: u32 = 1;
const LIFE_SHIFT: u32 = 20;
/// Largest number of a chunk, and of a life.
const CHUNK_MAX: u32 = (1 << (LIFE_SHIFT - CHUNK_SHIFT)) - 1;
const LIFE_MAX: u64 = (1 << (64 - LIFE_SHIFT)) - 1;

/// How many looks are tried at most, when pages are taken meanwhile.
const LOOKS: usize = 4;

/// A page's name. A free page has the name 0.
fn name(life: u64, chunk: u32) -> u64 {
    debug_assert!(life != 0 && life <= LIFE_MAX && chunk <= CHUNK_MAX);
    life << LIFE_SHIFT | u64::from(chunk) << CHUNK_SHIFT
}

fn life_of(name: u64) -> u64 {
    name >> LIFE_SHIFT
}

fn chunk_of(name: u64) -> u32 {
    (name >> CHUNK_SHIFT) as u32 & CHUNK_MAX
}

/// The part of a table that exists once.
#[repr(C)]
#[derive(Default)]
pub struct Head {
    /// Pages taken so far. Counted after a page has its name, and before the process that took it clears a bit of its own.
    taken: AtomicU64,
    /// Pages at or above this index never had a name.
    high: AtomicU32,
    /// 1 when something is held for ever.
    has_ever: AtomicU32,
}

/// A table. All processes of the family share what it refers to, and any of them may write anything there. So no index
/// is taken from it unchecked.
#[derive(Clone, Copy)]
pub struct Holders<'a> {
    /// Counts and a flag for the whole table.
    pub head: &'a Head,
    /// The name of each page.
    pub names: &'a [AtomicU64],
    /// The bits of each page, at the same index as its name.
    pub pages: &'a [Bits],
    /// What is held for as long as the file exists, a page for each chunk.
    pub ever: &'a [Bits],
}

impl<'a> Holders<'a> {
    /// Number of pages that may have a name.
    pub fn nr_pages(&self) -> usize {
        (self.head.high.load(Ordering::Acquire) as usize).min(self.names.len()).min(self.pages.len())
    }

    /// Whether any process has a page, or something is held for ever.
    pub fn has_any(&self) -> bool {
        let is_named = |name: &AtomicU64| name.load(Ordering::Acquire) != 0;
        self.head.has_ever.load(Ordering::Acquire) != 0 || self.names[..self.nr_pages()].iter().any(is_named)
    }

    /// Takes a page for the slots of `chunk` that process `life` will hold, which `held` gives by word. Returns the
    /// page; none when all pages are in use. The caller must hold these slots itself, and free none of them meanwhile.
    pub fn take(&self, life: u64, chunk: u32, held: impl Fn(usize) -> u64) -> Option<u32> {
        let named = name(life, chunk);
        let nr_pages = self.names.len().min(self.pages.len());
        // The lowest free page, so that the table stays as small as it can.
        let claim = |name: &AtomicU64| {
            name.load(Ordering::Relaxed) == 0
                && name.compare_exchange(0, named | COPYING, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let page = self.names[..nr_pages].iter().position(claim)?;
        self.head.high.fetch_max(page as u32 + 1, Ordering::AcqRel);
        self.head.taken.fetch_add(1, Ordering::AcqRel);
        for (i, word) in self.pages[page].iter().enumerate() {
            word.store(held(i), Ordering::Relaxed);
        }
        // Release: whoever sees the page without the mark sees all of its bits.
        self.names[page].store(named, Ordering::Release);
        Some(page as u32)
    }

    /// Holds slots of `chunk` for as long as the file exists. For the rest as [`Self::take`].
    pub fn hold_for_ever(&self, chunk: u32, held: impl Fn(usize) -> u64) {
        for (i, word) in self.ever[chunk as usize].iter().enumerate() {
            word.fetch_or(held(i), Ordering::Relaxed);
        }
        self.head.has_ever.store(1, Ordering::Release);
        self.head.taken.fetch_add(1, Ordering::AcqRel);
    }

    /// Gives a page of process `life` back, which it had for slots of `chunk`.
    pub fn give_back(&self, page: u32, life: u64, chunk: u32) {
        let _ = self.names[page as usize].compare_exchange(name(life, chunk), 0, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// The bits of a page of the calling process.
    pub fn page(&self, page: u32) -> &'a Bits {
        &self.pages[page as usize]
    }

    /// Puts the slots of `chunk` that anybody holds into `held`. False when that is not known: all may be held.
    pub fn held(&self, chunk: u32, held: &mut [u64; PAGE_WORDS]) -> bool {
        (0..LOOKS).any(|_| {
            held.fill(0);
            self.look(chunk, |bits| {
                for (held, word) in held.iter_mut().zip(bits) {
                    *held |= word.load(Ordering::Acquire);
                }
            })
        })
    }

    /// Whether anybody holds a slot, or may hold it.
    pub fn is_held(&self, chunk: u32, word: usize, bit: u64) -> bool {
        let mut held = false;
        let is_known = self.look(chunk, |bits| held |= bits[word].load(Ordering::Acquire) & bit != 0);
        held || !is_known
    }

    /// Shows `f` all bits of `chunk`. False when some may have been missed.
    fn look(&self, chunk: u32, mut f: impl FnMut(&Bits)) -> bool {
        let taken = self.head.taken.load(Ordering::Acquire);
        for (name, bits) in self.names[..self.nr_pages()].iter().zip(self.pages) {
            let name = name.load(Ordering::Acquire);
            if name == 0 || chunk_of(name) != chunk {
                continue;
            }
            if name & COPYING != 0 {
                return false;
            }
            f(bits);
        }
        if self.head.has_ever.load(Ordering::Acquire) != 0 {
            f(&self.ever[chunk as usize]);
        }
        // The bits were read before this. Whoever cleared a bit after it had gone to a new page counted that page first.
        self.head.taken.load(Ordering::Relaxed) == taken
    }

    /// Frees the pages of processes that are gone; returns how many. Asks `is_alive` once for each run of pages of one life.
    pub fn bury(&self, mut is_alive: impl FnMut(u64) -> bool) -> usize {
        let (mut known, mut buried) = ((0, true), 0);
        for page in &self.names[..self.nr_pages()] {
            let name = page.load(Ordering::Relaxed);
            let life = life_of(name);
            if name == 0 {
                continue;
            }
            if known.0 != life {
                known = (life, is_alive(life));
            }
            // A life is over once, and its number is never another's. So the name still means this page, or the page
            // has another by now.
            if !known.1 && page.compare_exchange(name, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                buried += 1;
            }
        }
        buried
    }
}

/// Clears the bits `of` slots in a word of a page.
pub fn clear(bits: &Bits, word: usize, of: u64) {
    // Release: whoever sees this sees what moved to another page before.
    bits[word].fetch_and(!of, Ordering::Release);
}
