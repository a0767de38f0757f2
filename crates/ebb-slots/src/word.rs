//! One word of the swap table, as a value. `table` and `alloc` say how a word in memory may change.
//!
//! | bits | meaning |
//! |---|---|
//! | 0-1 | tag: 0 free, 1 stored, 2 cached, 3 bad |
//! | 2 | the content is zero-filled |
//! | 3-7 | count, 0..=30; 31: look in the overflow table |
//! | 8-39 | shadow, when stored |
//! | 8-47 | folio, when cached |
//! | 48 | locked, when cached |
//!
//! A cached word that is *locked* belongs to the one thread that set the bit: the content is on the move. One that is
//! not locked is *resident*: its folio is in memory and clean, and the slot still holds the same content. A resident
//! word with a count of 0 is *cache-only*: no page state needs the slot, and whoever locks it may free it.
//!
//! A free word is 0. A *dead* word is a stored one with a count of 0: its last user is gone, and the thread that made
//! it dead is about to give the slot back to the cluster. To all other threads it is as good as free, but it cannot be
//! allocated yet.

use crate::id::{Folio, Shadow};

/// The count field's mark for "look in the overflow table". Smaller in models, where each step is costly.
pub(crate) const COUNT_OVERFLOWED: u32 = if cfg!(any(loom, shuttle)) { 3 } else { 31 };

/// The largest count that a word holds by itself.
pub(crate) const COUNT_INLINE_MAX: u32 = COUNT_OVERFLOWED - 1;

const TAG_MASK: u64 = 0b11;
const TAG_STORED: u64 = 1;
const TAG_CACHED: u64 = 2;
const TAG_BAD: u64 = 3;
const ZERO_BIT: u64 = 1 << 2;
const COUNT_SHIFT: u32 = 3;
const COUNT_MASK: u64 = 0b1_1111 << COUNT_SHIFT;
const PAYLOAD_SHIFT: u32 = 8;
const LOCKED_BIT: u64 = 1 << (PAYLOAD_SHIFT + Folio::BITS);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tag {
    Free,
    Stored,
    Cached,
    Bad,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Word(u64);

impl Word {
    pub(crate) const FREE: Self = Self(0);
    pub(crate) const BAD: Self = Self(TAG_BAD);
    pub(crate) const DEAD: Self = Self(TAG_STORED);

    #[inline(always)]
    pub(crate) const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    #[inline(always)]
    pub(crate) const fn to_bits(self) -> u64 {
        self.0
    }

    /// What `alloc` writes: cached and locked, with no reference yet.
    pub(crate) const fn fresh(folio: Folio) -> Self {
        Self(TAG_CACHED | LOCKED_BIT | folio.get() << PAYLOAD_SHIFT)
    }

    #[inline(always)]
    pub(crate) const fn tag(self) -> Tag {
        match self.0 & TAG_MASK {
            0 => Tag::Free,
            TAG_STORED => Tag::Stored,
            TAG_CACHED => Tag::Cached,
            _ => Tag::Bad,
        }
    }

    #[inline(always)]
    pub(crate) const fn is_free(self) -> bool {
        self.0 == 0
    }

    /// On the way from its last user to the cluster.
    #[inline(always)]
    pub(crate) const fn is_dead(self) -> bool {
        self.0 & (TAG_MASK | COUNT_MASK) == TAG_STORED
    }

    /// In the swap cache, and locked by one thread.
    #[inline(always)]
    pub(crate) const fn is_locked(self) -> bool {
        self.0 & (TAG_MASK | LOCKED_BIT) == TAG_CACHED | LOCKED_BIT
    }

    /// In the swap cache with a clean folio, and not locked.
    #[inline(always)]
    pub(crate) const fn is_resident(self) -> bool {
        self.0 & (TAG_MASK | LOCKED_BIT) == TAG_CACHED
    }

    /// Resident, and no page state refers to it.
    #[inline(always)]
    pub(crate) const fn is_cache_only(self) -> bool {
        self.0 & (TAG_MASK | LOCKED_BIT | COUNT_MASK) == TAG_CACHED
    }

    #[inline(always)]
    pub(crate) const fn is_zero_filled(self) -> bool {
        self.0 & ZERO_BIT != 0
    }

    pub(crate) const fn with_zero_filled(self, zero: bool) -> Self {
        Self(if zero { self.0 | ZERO_BIT } else { self.0 & !ZERO_BIT })
    }

    #[inline(always)]
    pub(crate) const fn count_field(self) -> u32 {
        ((self.0 & COUNT_MASK) >> COUNT_SHIFT) as u32
    }

    #[inline(always)]
    pub(crate) const fn with_count_field(self, count: u32) -> Self {
        debug_assert!(count <= COUNT_OVERFLOWED);
        Self(self.0 & !COUNT_MASK | (count as u64) << COUNT_SHIFT)
    }

    pub(crate) const fn shadow(self) -> Shadow {
        Shadow((self.0 >> PAYLOAD_SHIFT) as u32)
    }

    /// The folio of a cached word. For other words, the mask only keeps the type's promise.
    pub(crate) const fn folio(self) -> Folio {
        match Folio::new((self.0 >> PAYLOAD_SHIFT) & ((1 << Folio::BITS) - 1)) {
            Some(folio) => folio,
            None => unreachable!(),
        }
    }

    /// The same slot, in the swap cache and locked: count and zero flag stay.
    #[inline(always)]
    pub(crate) const fn cached(self, folio: Folio) -> Self {
        Self(self.0 & (COUNT_MASK | ZERO_BIT) | TAG_CACHED | LOCKED_BIT | folio.get() << PAYLOAD_SHIFT)
    }

    /// A resident slot, with its content on the move: all else stays.
    #[inline(always)]
    pub(crate) const fn locked(self) -> Self {
        debug_assert!(self.is_resident());
        Self(self.0 | LOCKED_BIT)
    }

    /// A locked slot whose folio stays in memory: all else stays.
    #[inline(always)]
    pub(crate) const fn resident(self) -> Self {
        debug_assert!(self.is_locked());
        Self(self.0 & !LOCKED_BIT)
    }

    /// The same slot, out of the swap cache: count and zero flag stay.
    #[inline(always)]
    pub(crate) const fn stored(self, shadow: Shadow) -> Self {
        Self(self.0 & (COUNT_MASK | ZERO_BIT) | TAG_STORED | (shadow.0 as u64) << PAYLOAD_SHIFT)
    }

    /// Whether only bits are set that some state has. If not, something else wrote the word.
    pub(crate) const fn is_well_formed(self) -> bool {
        match self.tag() {
            Tag::Free => self.0 == 0,
            Tag::Bad => self.0 == TAG_BAD,
            Tag::Stored => self.0 >> (PAYLOAD_SHIFT + u32::BITS) == 0 && self.count_field() <= COUNT_OVERFLOWED,
            Tag::Cached => self.0 >> (PAYLOAD_SHIFT + Folio::BITS + 1) == 0 && self.count_field() <= COUNT_OVERFLOWED,
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn the_layout_is_the_documented_one() {
        let cached = Word::fresh(Folio::new(0xff_1234_5678).unwrap()).with_count_field(30).with_zero_filled(true);
        assert_eq!(cached.to_bits(), 1 << 48 | 0xff_1234_5678 << 8 | 30 << 3 | 1 << 2 | 2);
        assert_eq!(cached.resident().to_bits(), 0xff_1234_5678 << 8 | 30 << 3 | 1 << 2 | 2);
        let stored = cached.stored(Shadow(0x8765_4321));
        assert_eq!(stored.to_bits(), 0x8765_4321 << 8 | 30 << 3 | 1 << 2 | 1);
    }

    #[test]
    fn moving_between_cached_and_stored_keeps_count_and_zero_flag() {
        let folio = Folio::new(9).unwrap();
        let word = Word::fresh(folio).with_count_field(17).with_zero_filled(true);
        let back = word.stored(Shadow(u32::MAX)).cached(folio);
        assert_eq!(back, word);
        assert!(back.is_well_formed());
    }

    #[test]
    fn a_dead_word_is_neither_free_nor_in_use() {
        assert!(Word::DEAD.is_dead());
        assert!(!Word::DEAD.is_free());
        assert!(!Word::DEAD.with_count_field(1).is_dead());
        assert!(!Word::fresh(Folio::new(0).unwrap()).is_dead());
    }

    #[test]
    fn a_cached_word_is_locked_or_resident_and_nothing_else_is_either() {
        let locked = Word::fresh(Folio::new(9).unwrap());
        assert!(locked.is_locked() && !locked.is_resident() && !locked.is_cache_only());
        let resident = locked.resident();
        assert!(resident.is_resident() && resident.is_cache_only() && !resident.is_locked());
        assert!(!resident.with_count_field(1).is_cache_only());
        assert_eq!(resident.locked(), locked);
        for other in [Word::FREE, Word::BAD, Word::DEAD, locked.stored(Shadow(u32::MAX))] {
            assert!(!other.is_locked() && !other.is_resident() && !other.is_cache_only());
        }
    }

    #[test]
    fn stray_bits_are_noticed() {
        assert!(!Word::from_bits(1 << 3).is_well_formed());
        assert!(!Word::from_bits(3 | 1 << 8).is_well_formed());
        assert!(!Word::from_bits(1 | 1 << 40).is_well_formed());
        assert!(!Word::from_bits(2 | 1 << 49).is_well_formed());
    }
}
