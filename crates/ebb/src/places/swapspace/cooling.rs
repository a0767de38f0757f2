//! Cooling: objects of the pool that have been there for long are compressed once more, by a slower codec.
//!
//! The pool has two tiers. Pages come to the hot one, by fast codecs. From there an object may become *cold*: zstd makes it from the
//! same page, and it takes the place of the hot one, if it is clearly smaller. If it is not, the location word remembers that, and
//! the object is not tried again. Either way the object is *settled*.
//!
//! Cold objects are objects of the pool like others: they move in compaction and go to a device as they are. A page that comes in is
//! just mapped, so when it goes out again it is hot.
//!
//! Invariant: the thread that cools an object has its slot locked, as compaction has. It stores the new object, then changes the
//! location word, then frees the old object, and unlocks the slot last. So nobody sees a location that names less than a whole object,
//! and nobody uses the old object when it is freed.

use super::content::{decode_hot, is_cold};
use super::location::{self, ahead_of, handle_of, is_settled, location_of};
use super::{MOVING, SwapSpace};
use crate::budget::Budget;
use crate::counters::stats::{self, Shared};
use crate::places::codecs::{Codecs, Encoder};
use crate::places::inconsistency::Inconsistency;
use crate::places::poolmem::Charging;
use crate::places::work::Lease;
use crate::protocols::gate::Held;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use ebb_pool::Handle;
use ebb_slots::Slot;
use ebb_sync::CacheLine;

/// An object becomes cold if that makes it smaller by one part in so many.
const GAIN_PART: usize = 8;
/// Shorter objects are not tried: a block of the pool has hundreds of them.
const LEN_MIN: usize = 96;
/// Slots that one call visits at most.
const LOOKS: u32 = 8192;

/// What cooling knows of the objects of the pool.
#[derive(Default)]
pub(super) struct Settled {
    cold: CacheLine<AtomicU64>,
    cold_bytes: AtomicU64,
    /// Objects that were tried and are not cold.
    kept: AtomicU64,
    /// Where cooling looks next.
    at: AtomicU32,
}

/// What one step of cooling did.
#[derive(Clone, Copy, Default, Debug)]
pub struct Cooled {
    /// Slots that it visited.
    pub looked: u32,
    /// Objects that it tried.
    pub tried: usize,
    /// Objects that became cold.
    pub cooled: usize,
    /// True if the pool had no room for a cold object.
    pub is_full: bool,
}

/// What a place for pages holds now.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Tier {
    /// Number of pages.
    pub pages: u64,
    /// Bytes of their objects.
    pub bytes: u64,
}

/// True for a pool object that was not tried yet. What was read ahead is expected to be used soon.
fn is_coolable(loc: u64) -> bool {
    handle_of(loc).is_some() && !is_settled(loc) && ahead_of(loc).is_none()
}

impl SwapSpace {
    /// The location word of an object that was just put into the pool. Counts it if it is cold.
    pub(super) fn location_of_new(&self, handle: Handle, object: &[u8]) -> u64 {
        if !is_cold(object) {
            return location_of(handle);
        }
        self.settled.cold.fetch_add(1, Ordering::Relaxed);
        self.settled.cold_bytes.fetch_add(object.len() as u64, Ordering::Relaxed);
        location_of(handle) | location::COLD
    }

    /// Counts an object out that is about to leave the pool. The caller has its slot locked.
    #[inline]
    pub(super) fn forget_settled(&self, loc: u64, handle: Handle) {
        if !is_settled(loc) {
            return;
        }
        if loc & location::COLD == 0 {
            self.settled.kept.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let len = self.pool.object(handle).map_or(0, |(_, len)| len as u64);
        self.settled.cold.fetch_sub(1, Ordering::Relaxed);
        self.settled.cold_bytes.fetch_sub(len, Ordering::Relaxed);
    }

    /// Objects of the pool that were never tried.
    pub fn nr_untried(&self) -> u64 {
        let settled = self.settled.cold.load(Ordering::Relaxed) + self.settled.kept.load(Ordering::Relaxed);
        self.content_pages.load(Ordering::Relaxed).saturating_sub(settled)
    }

    /// True while an object of the pool is cold.
    pub fn has_cold(&self) -> bool {
        self.settled.cold.load(Ordering::Relaxed) > 0
    }

    /// What the hot and the cold tier hold. Takes all locks of the pool in turn if it holds anything: each write to a lock
    /// would copy memory that a child of fork still shares.
    pub fn tiers(&self) -> [Tier; 2] {
        let pages = self.content_pages.load(Ordering::Relaxed);
        let bytes = if pages > 0 { self.pool.stored_bytes() } else { 0 };
        let (cold, cold_bytes) = (&self.settled.cold, &self.settled.cold_bytes);
        let cold = Tier { pages: cold.load(Ordering::Relaxed), bytes: cold_bytes.load(Ordering::Relaxed) };
        [Tier { pages: pages.saturating_sub(cold.pages), bytes: bytes.saturating_sub(cold.bytes) }, cold]
    }

    /// Slots that a round of cooling visits.
    pub fn nr_to_look_at(&self) -> u32 {
        self.high_water.load(Ordering::Relaxed)
    }

    /// Tries up to `most` objects that went out at least `age_min` evictions ago and were never tried, as far as a short search finds
    /// them. Each search goes on where the last one ended.
    pub fn cool(
        &self,
        held: &Held,
        budget: &Budget,
        stats: &Shared,
        encoder: &mut Lease<'_, Encoder>,
        age_min: u32,
        most: usize,
    ) -> Cooled {
        let mut done = Cooled::default();
        let charging = self.memory.charging_to_shrink(budget, stats);
        let top = self.nr_to_look_at();
        while done.looked < top.min(LOOKS) && done.tried < most && !done.is_full {
            done.looked += 1;
            let slot = Slot(self.settled.at.fetch_add(1, Ordering::Relaxed) % top);
            if is_coolable(self.location(slot).load(Ordering::Relaxed)) && self.is_old(slot, age_min) {
                self.cool_one(held, &charging, (budget, stats), encoder, slot, &mut done);
            }
        }
        let cold = self.settled.cold.load(Ordering::Relaxed);
        stats::raise(&stats.peak_cold_content_bytes, cold * 4096);
        done
    }

    fn cool_one(
        &self,
        held: &Held,
        charging: &Charging<'_>,
        (budget, stats): (&Budget, &Shared),
        encoder: &mut Lease<'_, Encoder>,
        slot: Slot,
        done: &mut Cooled,
    ) {
        let Ok(locked) = self.slots.lock(slot, MOVING) else { return };
        let location = self.location(slot);
        let loc = location.load(Ordering::Acquire);
        if let Some(handle) = handle_of(loc).filter(|_| is_coolable(loc)) {
            done.tried += 1;
            // SAFETY: the slot is locked, which keeps the object in its place.
            let hot = unsafe { self.pool.load(handle) };
            let len_max = hot.len() - hot.len() / GAIN_PART;
            // What does not decode is reported when somebody needs it.
            Codecs::charge_encoder(encoder, budget);
            let is_worth_it = hot.len() >= LEN_MIN && decode_hot(hot, &mut encoder.page).is_ok();
            match if is_worth_it { encoder.compress(len_max) } else { None } {
                Some(object) => match self.store_object_in(charging, slot, object) {
                    Ok(new) => {
                        stats::add(&stats.cooled_pages, 1);
                        stats::add(&stats.cooled_in_bytes, hot.len() as u64);
                        stats::add(&stats.cooled_out_bytes, object.len() as u64);
                        location.store(new, Ordering::Release);
                        self.free_object(budget, stats, handle);
                        done.cooled += 1;
                    }
                    Err(_) => done.is_full = true,
                },
                None => {
                    stats::add(&stats.cooled_not_pages, 1);
                    self.settled.kept.fetch_add(1, Ordering::Relaxed);
                    location.store(loc | location::KEPT, Ordering::Release);
                }
            }
        }
        self.unclaim(held, slot, locked);
    }

    /// Recounts what is settled. No other thread may be at work.
    pub(super) fn validate_settled(&self) -> Result<(), Inconsistency> {
        let (mut cold, mut cold_bytes, mut kept_pages) = (0, 0, 0);
        let mut next = self.slots.next_used(Slot(0));
        while let Some(slot) = next {
            let loc = self.location(slot).load(Ordering::Relaxed);
            match handle_of(loc) {
                Some(handle) if loc & location::COLD != 0 => {
                    cold += 1;
                    cold_bytes += self.pool.object(handle).map_or(0, |(_, len)| len as u64);
                }
                Some(_) if loc & location::KEPT != 0 => kept_pages += 1,
                _ => {}
            }
            next = self.slots.next_used(Slot(slot.0 + 1));
        }
        let counted = [cold, cold_bytes, kept_pages];
        let kept =
            [&*self.settled.cold, &self.settled.cold_bytes, &self.settled.kept].map(|n| n.load(Ordering::Relaxed));
        if kept == counted { Ok(()) } else { Err(Inconsistency::Settled { kept, counted }) }
    }
}
