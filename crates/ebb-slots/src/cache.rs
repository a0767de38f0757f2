//! The swap cache: how a slot's word enters and leaves it, and who may move the content meanwhile.
//!
//! A slot in the cache is *locked* or *resident*. A locked slot belongs to the one thread that locked it, like a locked
//! folio in the kernel: no other thread frees it, moves its content or changes its folio. The folio of a resident slot
//! is in memory and clean. The slot stays in the cache until a thread locks it and takes it out, or until its page is
//! evicted again. That eviction is one step ([`SwapDevice::evict`]), because the content is already in its place.
//!
//! ```text
//!           cache_add, lock             unlock, settle
//!  stored ------------------> locked ------------------> resident
//!         <------------------        <------------------
//!    ^      cache_del                   lock                |
//!    +------------------------------------------------------+
//!                            evict
//! ```
//!
//! A resident slot without a count is *cache-only*: only the folio's page knows it. A thread that locks it and can open
//! the page frees it by [`SwapDevice::cache_del`]; see `reclaim`.

use crate::device::SwapDevice;
use crate::id::{Folio, Shadow, Slot};
use crate::table::{PutError, Stored, overflowed_count, stored};
use crate::word::{COUNT_INLINE_MAX, COUNT_OVERFLOWED, Tag, Word};
use core::fmt;

/// A slot in the swap cache whose folio is in memory and clean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resident {
    /// How many page states refer to the slot; none of them is the folio's.
    pub count: u32,
    /// The clean folio in memory that holds the same as the slot.
    pub folio: Folio,
    /// The content is nothing but zeros.
    pub zero: bool,
}

/// What a slot was before it was locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Locked {
    /// It was not in the swap cache. It is there now, with the folio of the thread that locked it.
    Stored(Stored),
    /// It was in the swap cache, and keeps its folio.
    Resident(Resident),
}

impl Locked {
    /// Whether nothing refers to the slot but the page `folio`, which has locked it: the page's residence, or the only
    /// reference.
    pub fn is_last(&self, folio: Folio) -> bool {
        match self {
            Self::Resident(resident) => resident.folio == folio && resident.count == 0,
            Self::Stored(stored) => stored.count == 1,
        }
    }
}

/// Why a slot did not go into the swap cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheAddError {
    /// Another thread has it there, locked: wait for the page's state to change, and look again.
    Locked,
    /// It is there with this folio, clean and in memory: map that, or lock the slot.
    Resident(Folio),
    /// The slot is gone, and so is whatever referred to it.
    Free,
    /// The slot is marked bad, so nothing can refer to it.
    Bad,
}

impl fmt::Display for CacheAddError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Locked => f.write_str("the swap slot is locked in the swap cache; wait for its holder"),
            Self::Resident(folio) => {
                write!(f, "the swap slot is in the swap cache with folio {:#x}; use that, or lock it", folio.get())
            }
            Self::Free => f.write_str("the swap slot is free; look at the page's state again"),
            Self::Bad => f.write_str("the swap slot is bad; nothing can refer to it"),
        }
    }
}

impl core::error::Error for CacheAddError {}

/// Why a slot was not locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockError {
    /// Another thread has it locked.
    Locked,
    /// The slot is gone, and so is whatever referred to it.
    Free,
    /// The slot is marked bad, so nothing can refer to it.
    Bad,
}

impl fmt::Display for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Locked => "the swap slot is locked in the swap cache; wait for its holder",
            Self::Free => "the swap slot is free; look at the page's state again",
            Self::Bad => "the swap slot is bad; nothing can refer to it",
        })
    }
}

impl core::error::Error for LockError {}

/// Why a resident folio was not evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvictError {
    /// Another thread has the slot locked: try again.
    Locked,
    /// The slot is not in the swap cache, so the page is not clean: look at its state again.
    NotCached,
    /// Too many slots have very large counts: the overflow table is full.
    CountOverflow,
}

impl fmt::Display for EvictError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Locked => "the swap slot is locked in the swap cache; try again",
            Self::NotCached => "the swap slot is not in the swap cache; look at the page's state again",
            Self::CountOverflow => "the overflow table is full; leave the page in memory",
        })
    }
}

impl core::error::Error for EvictError {}

impl SwapDevice {
    /// Takes a stored slot into the swap cache, as `folio`, and locks it. On success only the caller may move the
    /// content, and nobody frees the slot, until the caller calls [`Self::cache_del`], [`Self::unlock`] or
    /// [`Self::settle`]. The slot may have been freed and reused for another page since the caller learnt of it. So the
    /// caller must look at the page's state again before it relies on the content.
    pub fn cache_add(&self, slot: Slot, folio: Folio) -> Result<Stored, CacheAddError> {
        let (word, count) = self.to_cache(slot, |word| to_cached(word, folio))?;
        Ok(stored(word, count))
    }

    /// Locks a slot. Takes a stored one into the swap cache as `folio`, and leaves a resident one as it is. Returns
    /// which it was. Otherwise like [`Self::cache_add`].
    pub fn lock(&self, slot: Slot, folio: Folio) -> Result<Locked, LockError> {
        let (word, count) = self.to_cache(slot, |word| to_locked(word, folio))?;
        Ok(match word.tag() {
            Tag::Cached => Locked::Resident(Resident { count, folio: word.folio(), zero: word.is_zero_filled() }),
            _ => Locked::Stored(stored(word, count)),
        })
    }

    /// Unlocks a slot that stays in the swap cache: its folio is in memory and holds what the slot holds. For the
    /// thread that has it locked, whether the content has just come in or the slot was resident before.
    pub fn unlock(&self, slot: Slot) {
        let done = self.update(slot, |word| if word.is_locked() { Ok(word.resident()) } else { Err(()) });
        debug_assert!(done.is_ok(), "{slot:?} was unlocked, but is not locked");
    }

    /// [`Self::put`](SwapDevice::put) and [`Self::unlock`] in one step: a page came in and is clean, so the page's
    /// reference to the slot becomes the slot's residence. For the thread that has the slot locked.
    pub fn settle(&self, slot: Slot) {
        loop {
            let before = self.update(slot, |word| match word.count_field() {
                0 => Err(PutError::NotReferred),
                _ if !word.is_locked() => Err(PutError::NotReferred),
                COUNT_OVERFLOWED => Err(PutError::Overflowed),
                count => Ok(word.with_count_field(count - 1).resident()),
            });
            match before {
                Ok(_) => return,
                Err(PutError::NotReferred) => {
                    debug_assert!(false, "{slot:?} was settled, but is not locked, or nothing refers to it");
                    return;
                }
                Err(PutError::Overflowed) => {
                    if self.put_overflowed(slot) {
                        return self.unlock(slot);
                    }
                }
            }
        }
    }

    /// Evicts the clean folio of a resident slot in one step: the slot is stored, and its page's state refers to it
    /// again, so the count goes up by one. For the thread that has that page `BUSY`, so that nobody takes the slot for
    /// cache-only and frees it.
    pub fn evict(&self, slot: Slot, shadow: Shadow) -> Result<(), EvictError> {
        let before = self.update(slot, |word| match evicted(word)? {
            count if count < COUNT_INLINE_MAX => Ok(word.with_count_field(count + 1).stored(shadow)),
            _ => Err(EvictError::CountOverflow),
        });
        match before {
            Err(EvictError::CountOverflow) => self.evict_overflowed(slot, shadow),
            other => other.map(drop),
        }
    }

    /// Notes that another folio holds a locked slot's content. For the thread that has it locked, such as one that
    /// allocated a batch of slots for one folio number and then fills each slot from another. False if the slot is not
    /// locked.
    pub fn cache_replace(&self, slot: Slot, folio: Folio) -> bool {
        let done = self.update(slot, |word| if word.is_locked() { Ok(word.cached(folio)) } else { Err(()) });
        done.is_ok()
    }

    /// Takes a locked slot out of the swap cache. If it has a count, it is stored from now on. If not, it is free, and
    /// only then does this return true. For the thread that has it locked.
    pub fn cache_del(&self, slot: Slot, shadow: Shadow) -> bool {
        let freed = self.cache_del_word(slot, shadow);
        if freed {
            self.free_dead(slot);
        }
        freed
    }

    /// Changes the word for a removal. True if the word is dead now.
    fn cache_del_word(&self, slot: Slot, shadow: Shadow) -> bool {
        let before = self.update(slot, |word| out_of_cache(word, shadow));
        debug_assert!(before.is_ok(), "{slot:?} was taken out of the swap cache, but is not locked");
        before.is_ok_and(|word| word.count_field() == 0)
    }

    /// Replaces the word by what `change` makes of it. Returns the old word, and its true count at that moment.
    fn to_cache<E>(&self, slot: Slot, change: impl Fn(Word) -> Result<Word, E>) -> Result<(Word, u32), E> {
        let before = self.update(slot, |word| match change(word) {
            Ok(_) if word.count_field() == COUNT_OVERFLOWED => Err(None),
            other => other.map_err(Some),
        });
        match before {
            Ok(word) => Ok((word, word.count_field())),
            Err(Some(error)) => Err(error),
            Err(None) => self.to_cache_overflowed(slot, change),
        }
    }

    /// The count is read under the lock under which the word is changed, so it belongs to the moment of the change.
    #[cold]
    fn to_cache_overflowed<E>(&self, slot: Slot, change: impl Fn(Word) -> Result<Word, E>) -> Result<(Word, u32), E> {
        let overflow = self.header.overflow.0.lock();
        let word = self.update(slot, change)?;
        Ok((word, overflowed_count(&overflow, slot, word)))
    }

    #[cold]
    fn evict_overflowed(&self, slot: Slot, shadow: Shadow) -> Result<(), EvictError> {
        let mut overflow = self.header.overflow.0.lock();
        let full = overflow.is_full();
        // While the lock is held, nobody else changes a count in the table or puts one there. So there is room for one
        // more, or nothing changes.
        if overflow.count(slot) == Some(u32::MAX) {
            return Err(EvictError::CountOverflow);
        }
        let before = self.update(slot, |word| match evicted(word)? {
            COUNT_OVERFLOWED => Ok(word.stored(shadow)),
            COUNT_INLINE_MAX if full => Err(EvictError::CountOverflow),
            count => Ok(word.with_count_field(count + 1).stored(shadow)),
        })?;
        match before.count_field() {
            COUNT_INLINE_MAX => overflow.insert(slot, COUNT_OVERFLOWED),
            COUNT_OVERFLOWED => {
                let count = overflow.count_mut(slot);
                debug_assert!(count.is_some(), "{slot:?} is not in the overflow table, but its word says so");
                if let Some(count) = count {
                    *count += 1;
                }
            }
            _ => {}
        }
        Ok(())
    }
}

fn out_of_cache(word: Word, shadow: Shadow) -> Result<Word, ()> {
    match word.is_locked() {
        true if word.count_field() == 0 => Ok(Word::DEAD),
        true => Ok(word.stored(shadow)),
        false => Err(()),
    }
}

fn to_cached(word: Word, folio: Folio) -> Result<Word, CacheAddError> {
    match word.tag() {
        Tag::Stored if word.is_dead() => Err(CacheAddError::Free),
        Tag::Stored => Ok(word.cached(folio)),
        Tag::Cached if word.is_locked() => Err(CacheAddError::Locked),
        Tag::Cached => Err(CacheAddError::Resident(word.folio())),
        Tag::Free => Err(CacheAddError::Free),
        Tag::Bad => Err(CacheAddError::Bad),
    }
}

fn to_locked(word: Word, folio: Folio) -> Result<Word, LockError> {
    match to_cached(word, folio) {
        Ok(word) => Ok(word),
        Err(CacheAddError::Resident(_)) => Ok(word.locked()),
        Err(CacheAddError::Locked) => Err(LockError::Locked),
        Err(CacheAddError::Free) => Err(LockError::Free),
        Err(CacheAddError::Bad) => Err(LockError::Bad),
    }
}

/// The count field of a word that may be evicted.
fn evicted(word: Word) -> Result<u32, EvictError> {
    match word.tag() {
        Tag::Cached if word.is_locked() => Err(EvictError::Locked),
        Tag::Cached => Ok(word.count_field()),
        _ => Err(EvictError::NotCached),
    }
}
