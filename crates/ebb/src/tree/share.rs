//! Pages that forks shared, and how often they are counted too often.
//!
//! A *share* has a word for each page, its *mask*: one bit for each process that holds the page as it was at a fork, its
//! *holders*. All of them are charged for it. What its holders beyond the first are charged for is the share's *surplus*,
//! which the sum of the tree leaves out. Who writes to such a page, or gives it up, takes its bit away, and with it, if
//! there is another holder, one page of the surplus. So a page counts once however many processes hold it, in whatever
//! order they fork, write, exec and die, and nobody waits for anybody.
//!
//! What may be interrupted for ever by a kill is in an order that leaves the surplus too small, never too large: it is
//! counted down before a bit goes, and up after bits are there. Whoever takes the bits of the dead away may do so again
//! where another has begun.
//!
//! The idea is the kernel's count of who maps a page (`mapcount`), with names in place of a number, because the dying do not
//! count down here.

use super::page::{MemberId, PAGES_MAX};
use crate::primitive::{AtomicI64, AtomicU32, AtomicU64, Ordering};

/// Most processes with bits in a share at a time: what further ones share with them counts twice.
pub const HOLDERS_MAX: usize = if cfg!(loom) { 3 } else { 64 };

/// In a holder's word: its bit is being taken back.
const LEAVING: u64 = 1 << 31;

const _: () = assert!((super::page::MEMBERS_MAX as u64) < LEAVING);

/// Pages that a word says, whoever has written there.
fn pages(word: &AtomicI64, ordering: Ordering) -> i64 {
    word.load(ordering).clamp(0, PAGES_MAX as i64)
}

/// Tries to change a mask that others change at the same time, which a few do at most: each of them does so once.
const TRIES_MAX: u32 = 4 * HOLDERS_MAX as u32;

/// What all know of a share. Its masks are elsewhere in the file. Zeroed memory is one that nobody uses.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct Share {
    /// For all pages together, holders beyond the first. May be too small.
    surplus: AtomicI64,
    /// Of that, pages of pools. A hint.
    pool_surplus: AtomicI64,
    /// Not 0 when bits may be wrong: then each holder's page counts.
    void: AtomicU32,
    /// Since when somebody waits for its lock, in milliseconds; 0 when whoever had it last has given it up.
    busy_since_ms: AtomicU64,
    /// The [`MemberId`] behind each bit; 0 for none.
    holders: [AtomicU64; HOLDERS_MAX],
}

/// In a model memory is made, not zeroed.
#[cfg(loom)]
impl Default for Share {
    fn default() -> Self {
        Self {
            surplus: AtomicI64::new(0),
            pool_surplus: AtomicI64::new(0),
            void: AtomicU32::new(0),
            busy_since_ms: AtomicU64::new(0),
            holders: core::array::from_fn(|_| AtomicU64::new(0)),
        }
    }
}

/// Changes a mask to what `to` makes of it; false when it makes nothing of it, or others change it again and again.
fn change(mask: &AtomicU64, to: impl Fn(u64) -> Option<u64>) -> bool {
    let mut seen = mask.load(Ordering::SeqCst);
    for _ in 0..TRIES_MAX {
        let Some(wanted) = to(seen) else { return false };
        match mask.compare_exchange(seen, wanted, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => return true,
            Err(now) => seen = now,
        }
    }
    false
}

impl Share {
    /// Pages that are counted too often.
    pub fn surplus(&self) -> i64 {
        if self.is_void() { 0 } else { pages(&self.surplus, Ordering::SeqCst) }
    }

    /// Of these, pages of pools. A hint.
    pub fn pool_surplus(&self) -> i64 {
        if self.is_void() { 0 } else { pages(&self.pool_surplus, Ordering::Relaxed) }
    }

    /// True when its bits may be wrong.
    pub fn is_void(&self) -> bool {
        self.void.load(Ordering::SeqCst) != 0
    }

    /// From now on each holder's page counts: somebody may hold what no bit says, or the other way round.
    pub fn make_void(&self) {
        self.void.store(1, Ordering::SeqCst);
    }

    /// Counts `pages` holders more.
    pub fn count(&self, pages: i64, of_pool: i64) {
        self.surplus.fetch_add(pages, Ordering::SeqCst);
        self.pool_surplus.fetch_add(of_pool, Ordering::Relaxed);
    }

    /// Before fork: lets the holders `both` in, of a page that the first of them holds alone. False when others share the
    /// mask. The caller counts.
    pub fn begin(&self, mask: &AtomicU64, both: u64) -> bool {
        // A single bit is of somebody who holds it alone, if at all, and nothing is left out for that.
        change(mask, |seen| (seen.count_ones() <= 1).then_some(both))
    }

    /// The same of a page that the holder `own` holds by this mask, alone or not. False when it does not any more. The caller
    /// counts.
    pub fn join(&self, mask: &AtomicU64, own: u64, child: u64) -> bool {
        // Its bit may go this moment, if nobody shares the page with it: somebody else may `begin` there.
        change(mask, |seen| (seen & own != 0).then_some(seen | child))
    }

    /// The holder `bit` does not hold the page any more: whether others do, so that it counts once more if the holder has a
    /// copy. None when it did not hold it. May be called again, and by several at a time.
    pub fn leave(&self, mask: &AtomicU64, bit: u64, is_pool: bool) -> Option<bool> {
        let seen = mask.load(Ordering::Relaxed);
        if seen & bit == 0 {
            return None;
        }
        let pool = i64::from(is_pool);
        let counts = seen != bit;
        if counts {
            self.count(-1, -pool);
        }
        let before = mask.fetch_and(!bit, Ordering::SeqCst);
        let (left, others) = (before & bit != 0, before & !bit != 0);
        match (counts, left && others) {
            (true, false) => self.count(1, pool),
            (false, true) => self.count(-1, -pool),
            _ => {}
        }
        left.then_some(others)
    }

    /// The same for several masks at a time, of a holder whose process is dead, or another program; how many pages others
    /// still hold. By who holds the share's lock.
    pub fn leave_all(&self, masks: &[AtomicU64], bit: u64, is_pool: bool) -> i64 {
        let seems_shared = |mask: &&AtomicU64| {
            let seen = mask.load(Ordering::Relaxed);
            seen & bit != 0 && seen != bit
        };
        let pool = |pages: i64| if is_pool { pages } else { 0 };
        let counted = masks.iter().filter(seems_shared).count() as i64;
        if counted > 0 {
            self.count(-counted, -pool(counted));
        }
        let mut shared = 0;
        for mask in masks.iter().filter(|mask| mask.load(Ordering::Relaxed) & bit != 0) {
            let before = mask.fetch_and(!bit, Ordering::SeqCst);
            shared += i64::from(before & bit != 0 && before & !bit != 0);
        }
        if shared != counted {
            self.count(counted - shared, pool(counted - shared));
        }
        shared
    }

    /// Who is behind a bit, by its number.
    fn holder(&self, number: u32) -> Option<MemberId> {
        MemberId::from_raw(self.holders.get(number as usize)?.load(Ordering::SeqCst) & !LEAVING)
    }

    /// True while the bit with that number is that of `id`, and nobody is taking it back.
    pub fn is_held_by(&self, number: u32, id: MemberId) -> bool {
        self.holders.get(number as usize).is_some_and(|holder| holder.load(Ordering::SeqCst) == id.to_raw())
    }

    /// The bit will be taken back from now on: who holds it may not set it any more.
    pub fn begin_leaving(&self, number: u32, id: MemberId) {
        if let Some(holder) = self.holders.get(number as usize) {
            let raw = id.to_raw();
            let _ = holder.compare_exchange(raw, raw | LEAVING, Ordering::SeqCst, Ordering::SeqCst);
        }
    }

    /// Somebody found the share's lock taken: for how long others have, without anybody getting it meanwhile.
    pub fn wait_ms(&self, now_ms: u64) -> u64 {
        match self.busy_since_ms.compare_exchange(0, now_ms.max(1), Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => 0,
            Err(since) => now_ms.saturating_sub(since),
        }
    }

    /// The caller has the lock.
    pub fn note_locked(&self) {
        self.busy_since_ms.store(0, Ordering::Relaxed);
    }

    /// All holders with their bits' numbers.
    pub fn holders(&self) -> impl Iterator<Item = (u32, MemberId)> {
        (0..HOLDERS_MAX as u32).filter_map(|number| Some((number, self.holder(number)?)))
    }

    /// The number of the bit of `id`.
    pub fn number_of(&self, id: MemberId) -> Option<u32> {
        self.holders().find(|(_, holder)| *holder == id).map(|(number, _)| number)
    }

    /// Holders beside the one with that number.
    pub fn others(&self, number: u32) -> usize {
        self.holders().filter(|(other, _)| *other != number).count()
    }

    /// True when nobody uses it.
    pub fn is_empty(&self) -> bool {
        self.holders().next().is_none()
    }

    /// Gives `id` a bit; none when all are taken.
    pub fn enter(&self, id: MemberId) -> Option<u32> {
        let take = |holder: &AtomicU64| {
            holder.load(Ordering::Relaxed) == 0
                && holder.compare_exchange(0, id.to_raw(), Ordering::SeqCst, Ordering::SeqCst).is_ok()
        };
        self.holders.iter().position(take).map(|number| number as u32)
    }

    /// Takes the bit of `id` back, which is in no mask any more.
    pub fn drop_holder(&self, number: u32, id: MemberId) {
        if let Some(holder) = self.holders.get(number as usize) {
            for raw in [id.to_raw(), id.to_raw() | LEAVING] {
                let _ = holder.compare_exchange(raw, 0, Ordering::SeqCst, Ordering::SeqCst);
            }
        }
    }

    /// Begins anew: nobody has a bit, and all masks are empty. By who holds the share's lock.
    pub fn reset(&self) {
        self.surplus.store(0, Ordering::SeqCst);
        self.pool_surplus.store(0, Ordering::Relaxed);
        self.void.store(0, Ordering::SeqCst);
    }
}
