//! Pages that forks shared, and how often they are counted too often.
//!
//! A *share* has a word for each page, its *mask*, with one bit for each process that holds the page as it was at a
//! fork. These processes are the page's *holders*. The first [`NEAR`] holders of a share have their bits in the mask
//! itself. Further ones are *far*: their bits are in other words, [`PLANES`] for a page and 64 holders each, and the
//! rest of the mask counts the far holders of the page. So one word tells whether another process holds the page,
//! however many there are.
//!
//! All holders are charged for the page. The charges of all holders but the first are the share's *surplus*, which the
//! sum of the tree leaves out. A process that writes to such a page, or gives it up, takes its bit away. If there is
//! another holder, one page of the surplus goes too. So a page counts once however many processes hold it, in whatever
//! order they fork, write, exec and die, and no process waits for another.
//!
//! A kill may end any sequence of steps in the middle. Their order is such that the surplus is then too small, never
//! too large: it is counted down before a bit goes, and up after bits are there. A mask counts a far holder before the
//! holder's bit is set, and until after the bit is gone. Taking away the bits of a dead process may be begun by one
//! process and repeated by another.
//!
//! The idea is the kernel's count of who maps a page (`mapcount`). Masks have names in place of a number, because a
//! dying process does not count down here.

use super::page::{MemberId, PAGES_MAX};
use crate::protocols::primitive::{AtomicI64, AtomicU32, AtomicU64, Ordering};

/// Holders of a share that have their bits in the masks themselves.
pub const NEAR: u32 = 54;
/// Words that a page has for far holders, one in each plane.
pub const PLANES: usize = 7;
/// Holders of one plane.
pub const PLANE_HOLDERS: u32 = 64;
/// Most processes with bits in a share at a time. What further processes share with them counts twice.
pub const HOLDERS_MAX: usize = if cfg!(loom) { 3 } else { NEAR as usize + PLANES * PLANE_HOLDERS as usize };
/// In a mask: one far holder.
const FAR_ONE: u64 = 1 << NEAR;
/// In a mask: the bits of near holders.
const NEAR_BITS: u64 = FAR_ONE - 1;

const _: () = assert!(PLANES as u64 * (PLANE_HOLDERS as u64) < u64::MAX >> NEAR);

/// In the word of a holder: its bits are being taken back.
const LEAVING: u64 = 1 << 31;

const _: () = assert!((super::page::MEMBERS_MAX as u64) < LEAVING);

/// Pages that a word says, within 0 and [`PAGES_MAX`], whatever a process of the tree has written there.
fn pages(word: &AtomicI64, ordering: Ordering) -> i64 {
    word.load(ordering).clamp(0, PAGES_MAX as i64)
}

/// Bound on the attempts to change a mask that others change at the same time. Few do, and each of them does so once.
const TRIES_MAX: u32 = 4 * HOLDERS_MAX as u32;

/// The plane of the holder with that number; none for a near holder.
pub fn plane_of(number: u32) -> Option<usize> {
    number.checked_sub(NEAR).map(|far| (far / PLANE_HOLDERS) as usize)
}

/// The bit of the holder with that number, in its mask or in the word of its plane.
pub fn bit_of(number: u32) -> u64 {
    1 << number.checked_sub(NEAR).map_or(number, |far| far % PLANE_HOLDERS)
}

/// True when a mask has no room for a page that one process holds alone. It then has two holders or more, or a far one,
/// which keeps its bit until it leaves the share.
pub fn is_taken(mask: u64) -> bool {
    mask >= FAR_ONE || mask.count_ones() > 1
}

/// True when a mask of this value has two holders or more.
pub fn is_of_several(mask: u64) -> bool {
    (mask & NEAR_BITS).count_ones() as u64 + (mask >> NEAR) > 1
}

/// The holders of a mask: the near ones as bits, and the number of far ones.
pub fn holders_of(mask: u64) -> (u64, u64) {
    (mask & NEAR_BITS, mask >> NEAR)
}

/// The bit of one holder for one page.
#[derive(Clone, Copy, Debug)]
pub struct Bit<'a> {
    mask: &'a AtomicU64,
    /// For a far holder, the word of its plane.
    far: Option<&'a AtomicU64>,
    bit: u64,
}

impl<'a> Bit<'a> {
    /// The bit of the holder with that number. `mask` is the page's mask, `far` the word of the holder's plane if it is
    /// far.
    pub fn new(number: u32, mask: &'a AtomicU64, far: Option<&'a AtomicU64>) -> Self {
        Self { mask, far, bit: bit_of(number) }
    }

    /// What the holder adds to the mask.
    fn in_mask(&self) -> u64 {
        if self.far.is_some() { FAR_ONE } else { self.bit }
    }

    /// True when this holder holds the page, as far as `mask` and the word of its plane say. The word is read only
    /// where the mask counts far holders, because reading from a hole of the file would fill it.
    fn seen_in(&self, mask: u64) -> bool {
        match self.far {
            Some(far) => mask >= FAR_ONE && far.load(Ordering::SeqCst) & self.bit != 0,
            None => mask & self.bit != 0,
        }
    }

    /// True while this holder holds the page.
    pub fn is_set(&self) -> bool {
        self.seen_in(self.mask.load(Ordering::SeqCst))
    }

    /// True while this holder and another one hold the page.
    pub fn is_shared(&self) -> bool {
        let mask = self.mask.load(Ordering::SeqCst);
        mask != self.in_mask() && self.seen_in(mask)
    }

    /// Takes the bit away. Returns what the mask was before; none when the bit was not set.
    fn take(&self) -> Option<u64> {
        let Some(far) = self.far else {
            let before = self.mask.fetch_and(!self.bit, Ordering::SeqCst);
            return (before & self.bit != 0).then_some(before);
        };
        let was_set = far.fetch_and(!self.bit, Ordering::SeqCst) & self.bit != 0;
        was_set.then(|| self.mask.fetch_sub(FAR_ONE, Ordering::SeqCst))
    }

    /// Sets the bit of a far holder, which the mask counts already.
    fn set_far(&self) {
        if let Some(far) = self.far {
            far.fetch_or(self.bit, Ordering::SeqCst);
        }
    }
}

/// What all processes know of a share. Its masks are elsewhere in the file. Zeroed memory is a share that nobody uses.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct Share {
    /// Holders beyond the first, summed over all pages. May be too small.
    surplus: AtomicI64,
    /// The part of `surplus` that is pages of pools. A hint.
    pool_surplus: AtomicI64,
    /// Not 0 when bits may be wrong. The page then counts for each holder.
    void: AtomicU32,
    /// All holders' numbers are below this.
    end: AtomicU32,
    /// Since when some process waits for the share's lock, in milliseconds; 0 once one gets it.
    busy_since_ms: AtomicU64,
    /// The [`MemberId`] of the holder with each number; 0 for none.
    holders: [AtomicU64; HOLDERS_MAX],
    /// Makes a share larger than 4096 bytes. At exactly a page for each share, the words that sums read of all shares
    /// would be in the same few lines of the caches.
    _apart: [u64; 16],
}

/// The memory of the tree's page is zeroed; models and tests construct it.
#[cfg(any(loom, test))]
impl Default for Share {
    fn default() -> Self {
        Self {
            surplus: AtomicI64::new(0),
            pool_surplus: AtomicI64::new(0),
            void: AtomicU32::new(0),
            end: AtomicU32::new(0),
            busy_since_ms: AtomicU64::new(0),
            holders: core::array::from_fn(|_| AtomicU64::new(0)),
            _apart: [0; 16],
        }
    }
}

/// Changes a mask to what `to` makes of it. False when `to` gives nothing, or when others change the mask again and
/// again.
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
    /// Pages that are counted too often; 0 when the share is void.
    pub fn surplus(&self) -> i64 {
        if self.is_void() { 0 } else { pages(&self.surplus, Ordering::SeqCst) }
    }

    /// How many of these are pages of pools. A hint.
    pub fn pool_surplus(&self) -> i64 {
        if self.is_void() { 0 } else { pages(&self.pool_surplus, Ordering::Relaxed) }
    }

    /// True when bits of the share may be wrong.
    pub fn is_void(&self) -> bool {
        self.void.load(Ordering::SeqCst) != 0
    }

    /// From now on pages count for each holder: a process may hold what no bit says, or a bit may say what no process
    /// holds.
    pub fn make_void(&self) {
        self.void.store(1, Ordering::SeqCst);
    }

    /// Adds `pages` to the surplus, `of_pool` of them pages of pools.
    pub fn count(&self, pages: i64, of_pool: i64) {
        self.surplus.fetch_add(pages, Ordering::SeqCst);
        self.pool_surplus.fetch_add(of_pool, Ordering::Relaxed);
    }

    /// Before fork: lets `own` and `child` into the mask of a page that `own` holds alone. False when other holders use
    /// the mask. The caller counts.
    pub fn begin(&self, own: Bit, child: Bit) -> bool {
        // A single near bit is that of a process that holds its page alone, if at all. Nothing is left out for that
        // page, so the bit may go.
        let begun = change(own.mask, |seen| (!is_taken(seen)).then_some(own.in_mask() + child.in_mask()));
        if begun {
            own.set_far();
            child.set_far();
        }
        begun
    }

    /// Before fork: lets `child` into the mask of a page that `own` holds by this mask, alone or not. False when `own`
    /// no longer holds the page, or the mask can count no more far holders. The caller counts.
    pub fn join(&self, own: Bit, child: Bit) -> bool {
        // If no other process shares the page, the bit of `own` may go at any moment: another process may `begin`
        // there.
        let joined = change(own.mask, |seen| {
            let has_room = child.far.is_none() || seen < u64::MAX - FAR_ONE;
            let with_child = if child.far.is_some() { seen.wrapping_add(FAR_ONE) } else { seen | child.bit };
            (has_room && own.seen_in(seen)).then_some(with_child)
        });
        if joined {
            child.set_far();
        }
        joined
    }

    /// Takes `bit` away: its holder no longer holds the page. Returns whether others hold it; the page then counts once
    /// more if the holder has a copy. None when the holder did not hold the page. May be repeated, and called by
    /// several threads at a time.
    pub fn leave(&self, bit: Bit, is_pool: bool) -> Option<bool> {
        let seen = bit.mask.load(Ordering::Relaxed);
        if !bit.seen_in(seen) {
            return None;
        }
        let pool = i64::from(is_pool);
        let counts = seen != bit.in_mask();
        if counts {
            self.count(-1, -pool);
        }
        let before = bit.take();
        let others = before.is_some_and(|before| before != bit.in_mask());
        match (counts, others) {
            (true, false) => self.count(1, pool),
            (false, true) => self.count(-1, -pool),
            _ => {}
        }
        before.map(|_| others)
    }

    /// Likewise for several pages of a holder whose process is dead, or is another program. Returns how many of the
    /// pages others still hold. The caller holds the share's lock.
    pub fn leave_all<'a>(&self, bits: impl Iterator<Item = Bit<'a>> + Clone, is_pool: bool) -> i64 {
        let pool = |pages: i64| if is_pool { pages } else { 0 };
        let counted = bits.clone().filter(Bit::is_shared).count() as i64;
        if counted > 0 {
            self.count(-counted, -pool(counted));
        }
        let is_others = |bit: &Bit| bit.take().is_some_and(|before| before != bit.in_mask());
        let shared = bits.filter(Bit::is_set).filter(is_others).count() as i64;
        if shared != counted {
            self.count(counted - shared, pool(counted - shared));
        }
        shared
    }

    /// The holder with that number.
    fn holder(&self, number: u32) -> Option<MemberId> {
        MemberId::from_raw(self.holders.get(number as usize)?.load(Ordering::SeqCst) & !LEAVING)
    }

    /// True while `id` is the holder with that number, and nobody is taking its bits back.
    pub fn is_held_by(&self, number: u32, id: MemberId) -> bool {
        self.holders.get(number as usize).is_some_and(|holder| holder.load(Ordering::SeqCst) == id.to_raw())
    }

    /// Notes that the bits of this holder will be taken back: it may set no more of them.
    pub fn begin_leaving(&self, number: u32, id: MemberId) {
        if let Some(holder) = self.holders.get(number as usize) {
            let raw = id.to_raw();
            let _ = holder.compare_exchange(raw, raw | LEAVING, Ordering::SeqCst, Ordering::SeqCst);
        }
    }

    /// Notes that a process found the share's lock taken. Returns for how many milliseconds processes have found it so
    /// without one of them getting it.
    pub fn wait_ms(&self, now_ms: u64) -> u64 {
        match self.busy_since_ms.compare_exchange(0, now_ms.max(1), Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => 0,
            Err(since) => now_ms.saturating_sub(since),
        }
    }

    /// Notes that the caller has the share's lock.
    pub fn note_locked(&self) {
        self.busy_since_ms.store(0, Ordering::Relaxed);
    }

    /// All holders with their numbers.
    pub fn holders(&self) -> impl Iterator<Item = (u32, MemberId)> {
        let end = self.end.load(Ordering::SeqCst).min(HOLDERS_MAX as u32);
        (0..end).filter_map(|number| Some((number, self.holder(number)?)))
    }

    /// The number of `id` among the holders.
    pub fn number_of(&self, id: MemberId) -> Option<u32> {
        self.holders().find(|(_, holder)| *holder == id).map(|(number, _)| number)
    }

    /// How many holders there are beside the one with that number.
    pub fn others(&self, number: u32) -> usize {
        self.holders().filter(|(other, _)| *other != number).count()
    }

    /// How many planes may have bits of holders, counted from the first plane on.
    pub fn planes(&self) -> usize {
        let end = self.end.load(Ordering::SeqCst).min(HOLDERS_MAX as u32);
        end.checked_sub(1).and_then(plane_of).map_or(0, |plane| plane + 1)
    }

    /// True when nobody uses the share.
    pub fn is_empty(&self) -> bool {
        self.holders().next().is_none()
    }

    /// Makes `id` a holder, and returns its number; none when all numbers are taken.
    pub fn enter(&self, id: MemberId) -> Option<u32> {
        let take =
            |holder: &AtomicU64| holder.compare_exchange(0, id.to_raw(), Ordering::SeqCst, Ordering::SeqCst).is_ok();
        // `end` goes up first, so that a holder is looked at from the moment it is in.
        let place = |(number, holder): (usize, &AtomicU64)| {
            if holder.load(Ordering::Relaxed) != 0 {
                return false;
            }
            self.end.fetch_max(number as u32 + 1, Ordering::SeqCst);
            take(holder)
        };
        self.holders.iter().enumerate().position(place).map(|number| number as u32)
    }

    /// Takes the number of `id` back, whose bit is in no mask any more.
    pub fn drop_holder(&self, number: u32, id: MemberId) {
        if let Some(holder) = self.holders.get(number as usize) {
            for raw in [id.to_raw(), id.to_raw() | LEAVING] {
                let _ = holder.compare_exchange(raw, 0, Ordering::SeqCst, Ordering::SeqCst);
            }
        }
    }

    /// Begins anew. No process but the caller may have a bit.
    pub fn reset(&self) {
        self.surplus.store(0, Ordering::SeqCst);
        self.pool_surplus.store(0, Ordering::Relaxed);
        self.void.store(0, Ordering::SeqCst);
    }

    /// Begins anew where no process has a bit at all. The caller holds the share's lock.
    pub fn reset_empty(&self) {
        self.reset();
        self.end.store(0, Ordering::SeqCst);
    }
}
