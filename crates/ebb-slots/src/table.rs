//! What can be done with one word of the swap table without a lock: look at it, and count references. `cache` has what
//! the swap cache does with it.
//!
//! Every change is one compare-and-swap, Acquire and Release: a thread that gets a slot into the cache sees what the
//! thread that took it out wrote, including where the content is. Two things leave the lock-free path. A count above
//! [`COUNT_INLINE_MAX`] is kept under the overflow lock. And a slot that lost its last user goes back to its cluster
//! under the cluster lock (see `alloc`).

use crate::device::SwapDevice;
use crate::id::{Folio, Shadow, Slot};
use crate::overflow::Overflow;
use crate::word::{COUNT_INLINE_MAX, COUNT_OVERFLOWED, Tag, Word};
use core::fmt;
use ebb_sync::Ordering;

/// What a slot is, at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableEntry {
    /// Not in use, or about to be free.
    Free,
    /// In use, with content that is not in the swap cache.
    Stored(Stored),
    /// In use, and in the swap cache: `locked` by the thread that moves the content, or resident.
    Cached {
        /// How many page states refer to the slot.
        count: u32,
        /// The folio that has the slot's content, or is about to get it.
        folio: Folio,
        /// The content is nothing but zeros.
        zero: bool,
        /// One thread has the slot to itself, to move its content; false for a resident slot.
        locked: bool,
    },
    /// Never to be used.
    Bad,
}

/// A slot that is in use and not in the swap cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// How many page states refer to the slot.
    pub count: u32,
    /// The reading of the eviction clock when the content was evicted.
    pub shadow: Shadow,
    /// The content is nothing but zeros.
    pub zero: bool,
}

/// Why a count was not raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DupError {
    /// The slot is free, or about to be.
    Free,
    /// The slot is marked bad, so nothing can refer to it.
    Bad,
    /// Too many slots have very large counts: the overflow table is full.
    CountOverflow,
}

impl fmt::Display for DupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Free => "the swap slot is free; only a slot in use can be shared",
            Self::Bad => "the swap slot is bad; only a slot in use can be shared",
            Self::CountOverflow => "the overflow table is full; swap the page in instead of sharing its slot",
        })
    }
}

impl core::error::Error for DupError {}

impl SwapDevice {
    /// What the slot is now. Like all methods that follow, it panics if the device has no such slot.
    pub fn get(&self, slot: Slot) -> TableEntry {
        let mut word = self.load(slot);
        let mut count = word.count_field();
        if count == COUNT_OVERFLOWED {
            (word, count) = self.load_overflowed(slot);
        }
        match word.tag() {
            Tag::Free => TableEntry::Free,
            Tag::Bad => TableEntry::Bad,
            Tag::Stored if word.is_dead() => TableEntry::Free,
            Tag::Stored => TableEntry::Stored(stored(word, count)),
            Tag::Cached => {
                let (folio, zero, locked) = (word.folio(), word.is_zero_filled(), word.is_locked());
                TableEntry::Cached { count, folio, zero, locked }
            }
        }
    }

    /// Counts one more page state that refers to the slot.
    pub fn dup(&self, slot: Slot) -> Result<(), DupError> {
        let before = self.update(slot, |word| {
            in_use(word)?;
            match word.count_field() {
                count if count < COUNT_INLINE_MAX => Ok(word.with_count_field(count + 1)),
                _ => Err(DupError::CountOverflow),
            }
        });
        match before {
            Err(DupError::CountOverflow) => self.dup_overflowed(slot),
            other => other.map(drop),
        }
    }

    /// Counts one page state less that refers to the slot. True if it was the last one and the slot is free now. A
    /// cached slot is not freed: a resident one is cache-only from then on.
    pub fn put(&self, slot: Slot) -> bool {
        let freed = self.put_word(slot);
        if freed {
            self.free_dead(slot);
        }
        freed
    }

    /// Changes the word for a put. True if the word is dead now.
    fn put_word(&self, slot: Slot) -> bool {
        loop {
            let before = self.update(slot, |word| match (word.tag(), word.count_field()) {
                (Tag::Free | Tag::Bad, _) | (_, 0) => Err(PutError::NotReferred),
                (_, COUNT_OVERFLOWED) => Err(PutError::Overflowed),
                // Drop the shadow, which would be of no use: all dead words are the same.
                (Tag::Stored, 1) => Ok(Word::DEAD),
                (_, count) => Ok(word.with_count_field(count - 1)),
            });
            match before {
                Ok(word) => {
                    return word.tag() == Tag::Stored && word.count_field() == 1;
                }
                Err(PutError::NotReferred) => {
                    debug_assert!(false, "{slot:?} was put, but nothing refers to it");
                    return false;
                }
                Err(PutError::Overflowed) => {
                    if self.put_overflowed(slot) {
                        return false;
                    }
                }
            }
        }
    }

    /// Notes whether the slot's content is nothing but zeros. For the thread that has the slot locked.
    pub fn set_zero(&self, slot: Slot, zero: bool) {
        let done = self.update(slot, |word| in_use(word).map(|()| word.with_zero_filled(zero)));
        debug_assert!(done.is_ok(), "{slot:?} is not in use, but was said to be zero-filled or not");
    }

    fn load(&self, slot: Slot) -> Word {
        Word::from_bits(self.word(slot).load(Ordering::Acquire))
    }

    /// Replaces the word by what `change` makes of it, in one step. Returns the old word.
    #[inline]
    pub(crate) fn update<E>(&self, slot: Slot, change: impl Fn(Word) -> Result<Word, E>) -> Result<Word, E> {
        let place = self.word(slot);
        let mut word = Word::from_bits(place.load(Ordering::Acquire));
        loop {
            let new = change(word)?;
            debug_assert!(word.is_well_formed() && new.is_well_formed());
            // Each failure means that another thread's change succeeded.
            match place.compare_exchange(word.to_bits(), new.to_bits(), Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Ok(word),
                Err(now) => word = Word::from_bits(now),
            }
        }
    }

    /// A word and its true count, read together.
    #[cold]
    fn load_overflowed(&self, slot: Slot) -> (Word, u32) {
        let overflow = self.header.overflow.0.lock();
        let word = self.load(slot);
        (word, overflowed_count(&overflow, slot, word))
    }

    #[cold]
    fn dup_overflowed(&self, slot: Slot) -> Result<(), DupError> {
        let mut overflow = self.header.overflow.0.lock();
        let full = overflow.is_full();
        let before = self.update(slot, |word| {
            in_use(word)?;
            match word.count_field() {
                // Unchanged: its count is in the table, which is changed below.
                COUNT_OVERFLOWED => Ok(word),
                COUNT_INLINE_MAX if full => Err(DupError::CountOverflow),
                count => Ok(word.with_count_field(count + 1)),
            }
        })?;
        match before.count_field() {
            COUNT_INLINE_MAX => overflow.insert(slot, COUNT_OVERFLOWED),
            COUNT_OVERFLOWED => {
                let count = overflow.count_mut(slot);
                debug_assert!(count.is_some(), "{slot:?} is not in the overflow table, but its word says so");
                let count = count.ok_or(DupError::CountOverflow)?;
                *count = count.checked_add(1).ok_or(DupError::CountOverflow)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Lowers a count that is in the overflow table; false if it is no longer there.
    #[cold]
    pub(crate) fn put_overflowed(&self, slot: Slot) -> bool {
        let mut overflow = self.header.overflow.0.lock();
        if self.load(slot).count_field() != COUNT_OVERFLOWED {
            return false;
        }
        let Some(count) = overflow.count_mut(slot) else {
            debug_assert!(false, "{slot:?} is not in the overflow table, but its word says so");
            return true;
        };
        *count -= 1;
        if *count == COUNT_INLINE_MAX {
            overflow.remove(slot);
            // Only the rest of the word can change meanwhile: the mark is removed under this lock only.
            let done: Result<_, ()> = self.update(slot, |word| Ok(word.with_count_field(COUNT_INLINE_MAX)));
            debug_assert!(done.is_ok_and(|before| before.count_field() == COUNT_OVERFLOWED));
        }
        true
    }
}

pub(crate) enum PutError {
    NotReferred,
    Overflowed,
}

/// The true count of a word that was read with the overflow lock held.
pub(crate) fn overflowed_count(overflow: &Overflow, slot: Slot, word: Word) -> u32 {
    let count = match word.count_field() {
        COUNT_OVERFLOWED => overflow.count(slot),
        count => Some(count),
    };
    debug_assert!(count.is_some(), "{slot:?} is not in the overflow table, but its word says so");
    count.unwrap_or(COUNT_OVERFLOWED)
}

pub(crate) fn stored(word: Word, count: u32) -> Stored {
    Stored { count, shadow: word.shadow(), zero: word.is_zero_filled() }
}

fn in_use(word: Word) -> Result<(), DupError> {
    match word.tag() {
        Tag::Free => Err(DupError::Free),
        Tag::Bad => Err(DupError::Bad),
        Tag::Stored if word.is_dead() => Err(DupError::Free),
        Tag::Stored | Tag::Cached => Ok(()),
    }
}
