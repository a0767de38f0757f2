//! The header in front of every object: one word, and the states it goes through.
//!
//! ```text
//! bits 0-1    state: 0 in transit, 1 live, 2 free
//! live        bits 2-15 length, bits 16-31 check, bits 32-63 owner
//! free        bits 32-63 link to the block's next free object
//! in transit  the rest is zero
//! ```
//!
//! *free -> in transit* and back happens under the class lock. *in transit -> live* is a Release store by the thread
//! that has just written the bytes; whoever then finds the object *live* (an Acquire load) also finds them. *live ->
//! in transit* is compaction taking the object away, under the class lock and with the owner's claim.
//!
//! The check depends on where the object is. So a handle that points into the middle of another object is found out.

use crate::handle::GRAIN;
use crate::primitive::{AtomicU64, Ordering, Touch};

/// What stands at the start of every object.
#[repr(C)]
pub(crate) struct Header {
    word: AtomicU64,
    touch: Touch,
}

pub(crate) const HEADER_BYTES: usize = size_of::<Header>();

const _: () = assert!(align_of::<Header>() <= GRAIN && HEADER_BYTES.is_multiple_of(GRAIN));

const STATE: u64 = 0b11;
const IN_TRANSIT: u64 = 0;
const LIVE: u64 = 1;
const FREE: u64 = 2;

/// The owner and the length of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Live {
    pub owner: u32,
    pub len: u16,
}

/// Where in its block an object starts, in grains, plus one; zero is "none".
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub(crate) struct Link(u16);

impl Link {
    pub const NONE: Self = Self(0);

    #[inline]
    pub fn to(offset_in_block: usize) -> Self {
        Self((offset_in_block / GRAIN + 1) as u16)
    }

    /// Bytes from the block's start.
    #[inline]
    pub fn offset(self) -> Option<usize> {
        self.0.checked_sub(1).map(|grains| grains as usize * GRAIN)
    }
}

impl Header {
    /// Makes the raw memory of a header usable: loom's words are not valid as plain zeroes.
    ///
    /// # Safety
    /// `at` is valid for writing a header and nobody else uses it.
    #[cfg(loom)]
    pub unsafe fn construct(at: *mut Self) {
        // SAFETY: as promised by the caller.
        unsafe { at.write(Self { word: AtomicU64::new(0), touch: Touch::new() }) };
    }

    /// Owner and length of the object, if it is live. `offset` is where it starts in the arena.
    #[inline]
    pub fn live(&self, offset: usize) -> Option<Live> {
        let word = self.word.load(Ordering::Acquire);
        if word & STATE != LIVE || (word >> 16) as u16 != check(offset) {
            return None;
        }
        Some(Live { owner: (word >> 32) as u32, len: (word as u16) >> 2 })
    }

    /// Marks the object as live: its bytes are complete.
    #[inline]
    pub fn set_live(&self, offset: usize, live: Live) {
        debug_assert!(live.len < 1 << 14);
        let word = u64::from(live.owner) << 32 | u64::from(check(offset)) << 16 | u64::from(live.len) << 2 | LIVE;
        self.word.store(word, Ordering::Release);
    }

    /// Marks the object as in transit: nobody may look at it for now. Needs the class lock.
    #[inline]
    pub fn set_in_transit(&self) {
        self.word.store(IN_TRANSIT, Ordering::Relaxed);
    }

    /// Puts the object in front of `next` on its block's free list. Needs the class lock, or a block that nobody else
    /// has.
    #[inline]
    pub fn set_free(&self, next: Link) {
        self.word.store(u64::from(next.0) << 32 | FREE, Ordering::Relaxed);
    }

    /// The object after this one on the free list, if this one is free. Needs the class lock.
    #[inline]
    pub fn next_free(&self) -> Option<Link> {
        let word = self.word.load(Ordering::Relaxed);
        if word & STATE == FREE { Some(Link((word >> 32) as u16)) } else { None }
    }

    /// The accesses to the bytes after the header, for loom to check.
    #[inline]
    pub fn touch(&self) -> &Touch {
        &self.touch
    }
}

/// Sixteen bits that differ between neighbouring places.
#[inline]
fn check(offset: usize) -> u16 {
    (((offset / GRAIN) as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as u16
}
