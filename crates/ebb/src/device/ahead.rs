//! Read-ahead of each device: how long a read of it takes, how far read-ahead may go there, and what it was good for.
//!
//! Each file of the list has its own, so that a device that turns says nothing about the one beside it. These are hints: any
//! thread may read and write them at any time, and an update that gets lost does no harm.
//!
//! A window is between 2 and 128 pages, or 16 slots of a disk that turns. It doubles when as many pages as it has were used, net of those
//! that were not, and it is halved when as many were not. It never gets to nothing: then nobody would learn that read-ahead is of use
//! again. But what comes from the neighbourhood on a disk that turns must be written there again if nobody uses it. So while the window
//! is smallest, only some reads bring it. The idea is the kernel's (`swapin_nr_pages`), which counts for all devices together.

use crate::device::kind::Kind;
use crate::threads::walker::WALK_WINDOW_MAX;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicI32, AtomicU8, AtomicU32, AtomicU64};

/// The smallest window: the page itself, and one more.
pub const WINDOW_MIN: u32 = 2;
/// The largest window of neighbouring slots, 64 KiB: the disk turns on by as much while it gets to the next place. It is the kernel's
/// largest `page-cluster` that is in use.
pub const NEIGHBOURS_MAX: usize = 16;
/// The window of a disk that turns, of which nothing is known yet: the kernel's default.
const NEIGHBOURS_FIRST: u32 = 8;
/// The time that a page takes to come in, to be decompressed and to take another page's place. A page that comes ahead costs as much, and
/// saves a read if it is used.
const PAGE_NS: u32 = 10_000;
/// While the window is smallest, one of so many reads brings the neighbourhood.
const PROBE_EVERY: u32 = 8;
/// Pages that are worth reading ahead for a read that takes long, at most.
const WORTH_MAX: u32 = 16;
/// Reads of more slots than this say more about how many there are than about the device.
const TIMED_SLOTS_MAX: usize = 16;
/// The part by which each read changes the average.
const WEIGHT: i64 = 8;
/// Slots that a disk passes in less time than it takes to seek.
const REACH: u32 = NEIGHBOURS_MAX as u32;

impl Kind {
    /// The largest window.
    const fn window_max(self) -> u32 {
        match self {
            Self::Ssd | Self::Ram => WALK_WINDOW_MAX as u32,
            Self::Hdd => NEIGHBOURS_MAX as u32,
        }
    }

    /// The window of a device of which nothing is known.
    const fn window_first(self) -> u32 {
        match self {
            Self::Ssd | Self::Ram => self.window_max(),
            Self::Hdd => NEIGHBOURS_FIRST,
        }
    }
}

/// What is known of one device.
#[derive(Default)]
pub struct Ahead {
    /// The number of its kind.
    kind: AtomicU8,
    /// Where the tree counts for the device, as [`crate::counters::devices::Devices`] numbers it; 0 for nowhere.
    pub(super) place: AtomicU32,
    /// The average time of a read, weighted towards the last ones; 0 before the first.
    read_ns: AtomicU32,
    /// The slot after the one that was read last.
    head: AtomicU32,
    window: AtomicU32,
    /// Pages that were used since the window last changed, less those that were not.
    credit: AtomicI32,
    /// Reads with the smallest window.
    probes: AtomicU32,
    hits: AtomicU64,
    misses: AtomicU64,
}

impl Ahead {
    /// Begins anew, for another device.
    pub(super) fn begin(&self, kind: Kind) {
        self.kind.store(kind.number() as u8, Relaxed);
        self.window.store(kind.window_first(), Relaxed);
        [&self.place, &self.read_ns, &self.head, &self.probes].into_iter().for_each(|word| word.store(0, Relaxed));
        self.credit.store(0, Relaxed);
        [&self.hits, &self.misses].into_iter().for_each(|count| count.store(0, Relaxed));
    }

    /// The medium.
    pub fn kind(&self) -> Kind {
        Kind::of_number(self.kind.load(Relaxed).into())
    }

    /// The average time of a read in nanoseconds; 0 before the first.
    pub fn read_ns(&self) -> u32 {
        self.read_ns.load(Relaxed)
    }

    /// Pages that were read ahead and used, and such that were not.
    pub fn counts(&self) -> (u64, u64) {
        (self.hits.load(Relaxed), self.misses.load(Relaxed))
    }

    /// Notes that a read of `slots` slots, from slot `first` on, took `ns`. No time is known while the clock is forbidden.
    pub(super) fn note_read(&self, first: u32, slots: usize, ns: Option<u64>) {
        self.head.store(first.saturating_add(slots as u32), Relaxed);
        let Some(ns) = ns.filter(|_| slots <= TIMED_SLOTS_MAX) else { return };
        let (before, ns) = (i64::from(self.read_ns.load(Relaxed)), ns.clamp(1, u64::from(u32::MAX)) as i64);
        let now = if before == 0 { ns } else { before + (ns - before) / WEIGHT };
        self.read_ns.store(now.max(1) as u32, Relaxed);
    }

    /// Notes that of the pages that were read ahead, so many were used, and so many were not.
    pub(super) fn note(&self, used: u32, unused: u32) {
        self.hits.fetch_add(used.into(), Relaxed);
        self.misses.fetch_add(unused.into(), Relaxed);
        let window = self.window();
        let most = window as i32;
        let change = i32::try_from(used).unwrap_or(most).min(most) - i32::try_from(unused).unwrap_or(most).min(most);
        let credit = self.credit.load(Relaxed).saturating_add(change);
        if credit.abs() < most {
            return self.credit.store(credit, Relaxed);
        }
        let next = if credit > 0 { window * 2 } else { window / 2 };
        self.window.store(next.clamp(WINDOW_MIN, self.kind().window_max()), Relaxed);
        self.credit.store(0, Relaxed);
    }

    /// The window as it is now.
    pub fn window(&self) -> u32 {
        self.window.load(Relaxed).clamp(WINDOW_MIN, self.kind().window_max())
    }

    /// Of a window of `window` pages, as much as the device takes; at least what a read is worth there, if the fault is a step of a walk.
    /// A read of memory waits for nothing, so it is worth no page that nobody asked for. `most` is the limit of all windows. A window of one page, or of none, is no read-ahead.
    pub(crate) fn bound(&self, window: u32, is_walk: bool, most: u32) -> u32 {
        if window < WINDOW_MIN {
            return window;
        }
        let pages = self.read_ns().checked_div(PAGE_NS).and_then(|pages| pages.checked_ilog2());
        let worth = pages.filter(|_| is_walk && self.kind() != Kind::Ram).map_or(1, |power| 1 << power).min(WORTH_MAX);
        window.max(worth).min(self.window()).min(most.max(WINDOW_MIN))
    }

    /// Whether the next read for a page that somebody waits for is to bring what lies around it. Ask once for each such page.
    pub(crate) fn takes_neighbours(&self) -> bool {
        let is_due = || self.probes.fetch_add(1, Relaxed).is_multiple_of(PROBE_EVERY);
        self.kind() == Kind::Hdd && (self.window() > WINDOW_MIN || is_due())
    }

    /// True if a read of slot `at` would take a seek.
    pub(crate) fn must_seek(&self, at: u32) -> bool {
        self.kind() == Kind::Hdd && at.wrapping_sub(self.head.load(Relaxed)) >= REACH
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ahead(kind: Kind) -> Ahead {
        let ahead = Ahead::default();
        ahead.begin(kind);
        ahead
    }

    #[test]
    fn a_window_stays_within_its_bounds_whatever_is_noted() {
        for kind in [Kind::Ssd, Kind::Hdd, Kind::Ram] {
            let ahead = ahead(kind);
            let mut seed = 1u32;
            for _ in 0..20_000 {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let before = ahead.window();
                let (used, unused) = ((seed >> 8) % 40, (seed >> 16) % 40);
                ahead.note(used, unused);
                let now = ahead.window();
                assert!(now.is_power_of_two() && (WINDOW_MIN..=kind.window_max()).contains(&now), "{now}");
                assert!(now >= before || unused > 0, "grew smaller for {used} used");
                assert!(now <= before || used > 0, "grew larger for {unused} unused");
                assert!(now <= before * 2 && now >= before / 2);
            }
            ahead.note(u32::MAX, 0);
            ahead.note(0, u32::MAX);
        }
    }

    #[test]
    fn what_is_used_makes_a_window_larger_and_what_is_not_makes_it_smaller() {
        let ahead = ahead(Kind::Hdd);
        assert_eq!(ahead.window(), NEIGHBOURS_FIRST);
        (0..100).for_each(|_| ahead.note(0, 1));
        assert_eq!(ahead.window(), WINDOW_MIN);
        (0..100).for_each(|_| ahead.note(1, 0));
        assert_eq!(ahead.window(), NEIGHBOURS_MAX as u32);
        (0..100).for_each(|_| ahead.note(1, 1));
        assert_eq!(ahead.window(), NEIGHBOURS_MAX as u32, "half and half changes nothing");
        assert_eq!(ahead.counts(), (200, 200));
    }

    #[test]
    fn what_nobody_uses_comes_seldom_until_it_is_used_again() {
        let ahead = ahead(Kind::Hdd);
        assert!((0..100).all(|_| ahead.takes_neighbours()));
        (0..100).for_each(|_| ahead.note(0, 1));
        let came = (0..PROBE_EVERY * 10).filter(|_| ahead.takes_neighbours()).count();
        assert_eq!(came, 10);
        (0..4).for_each(|_| ahead.note(1, 0));
        assert!((0..100).all(|_| ahead.takes_neighbours()));
        assert!(!super::tests::ahead(Kind::Ssd).takes_neighbours());
    }

    #[test]
    fn a_slow_read_is_worth_more_pages_and_no_page_is_read_ahead_without_a_walk() {
        let ahead = ahead(Kind::Ssd);
        assert_eq!([0, 1, 2, 64].map(|window| ahead.bound(window, true, 128)), [0, 1, 2, 64]);
        (0..100).for_each(|i| ahead.note_read(i, 1, Some(100_000)));
        assert_eq!([0, 1, 2, 64].map(|window| ahead.bound(window, true, 128)), [0, 1, 8, 64]);
        (0..100).for_each(|i| ahead.note_read(i, 1, Some(50_000_000)));
        assert_eq!([0, 1, 2, 64, 128].map(|window| ahead.bound(window, true, 64)), [0, 1, 16, 64, 64]);
        assert_eq!([0, 1, 2, 8].map(|window| ahead.bound(window, false, 128)), [0, 1, 2, 8], "no step of a walk");
        (0..1000).for_each(|_| ahead.note(0, 1));
        assert_eq!([0, 1, 2, 64].map(|window| ahead.bound(window, true, 128)), [0, 1, 2, 2], "but nobody used them");
    }

    #[test]
    fn memory_is_worth_no_more_pages_however_long_a_read_takes() {
        let ahead = ahead(Kind::Ram);
        (0..100).for_each(|i| ahead.note_read(i, 1, Some(50_000_000)));
        assert_eq!([0, 1, 2, 64].map(|window| ahead.bound(window, true, 128)), [0, 1, 2, 64]);
        assert!(!ahead.must_seek(5000));
        (0..1000).for_each(|_| ahead.note(0, 1));
        assert_eq!(ahead.bound(64, true, 128), 2, "nobody used them");
    }

    #[test]
    fn the_time_of_a_read_is_an_average_of_those_that_tell() {
        let ahead = ahead(Kind::Hdd);
        ahead.note_read(0, 1, None);
        ahead.note_read(0, 128, Some(1));
        assert_eq!(ahead.read_ns(), 0);
        ahead.note_read(0, 1, Some(8000));
        ahead.note_read(0, 16, Some(16_000));
        assert_eq!(ahead.read_ns(), 9000);
        (0..200).for_each(|_| ahead.note_read(0, 1, Some(0)));
        assert!(ahead.read_ns() < 10, "{}", ahead.read_ns());
    }

    #[test]
    fn only_a_disk_that_turns_seeks_and_not_for_what_comes_next() {
        let (hdd, ssd) = (ahead(Kind::Hdd), ahead(Kind::Ssd));
        [&hdd, &ssd].into_iter().for_each(|ahead| ahead.note_read(100, 4, None));
        assert_eq!([103, 104, 119, 120].map(|at| hdd.must_seek(at)), [true, false, false, true]);
        assert_eq!([0, 103, 104, 5000].map(|at| ssd.must_seek(at)), [false; 4]);
    }
}
