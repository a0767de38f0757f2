//! What the processes of a tree write to each directory, and how much of that they may.
//!
//! A directory has one allowance for all processes and all their files there, whatever the kind of device. Whoever writes takes from it
//! first, and gives back what was not written. The directory has a place in a table of the tree's page, by its key.
//!
//! An allowance is a [`Bucket`]. It holds the whole budget of a period, so the first period may see twice that; then the average is the
//! budget. It gives nothing unless it has enough for a whole batch: a write never gets smaller because little is left.
//!
//! The clock is CLOCK_REALTIME. The other clocks differ between time namespaces, and a tree may live in several.

use crate::base::uapi;
use crate::protocols::bucket::Bucket;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

/// Directories that are counted apart, as many as there are places for devices.
pub const PLACES: usize = super::devices::PLACES;
/// Bytes of the largest batch, and the smallest budget.
pub const BATCH_BYTES: u64 = 256 << 10;
/// Bytes of a slot. Whole slots are written.
const SLOT_BYTES: u64 = 4096;
/// The largest budget is below this: the rest of the word says the period.
const BYTES_END: u64 = 1 << 56;
/// How often the user is told at most that a budget is spent.
const SAID_EVERY_NS: u64 = 3_600_000_000_000;

/// A length of time that a budget is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Period {
    /// One second.
    Second,
    /// One minute.
    Minute,
    /// One hour.
    Hour,
    /// 24 hours.
    Day,
    /// Seven days.
    Week,
}

impl Period {
    /// All of them, the shortest first.
    pub const ALL: [Self; 5] = [Self::Second, Self::Minute, Self::Hour, Self::Day, Self::Week];

    /// The period with this name.
    pub fn of_name(name: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|period| period.name().as_bytes() == name)
    }

    /// Its name, as the user writes it.
    pub const fn name(self) -> &'static str {
        ["second", "minute", "hour", "day", "week"][self as usize]
    }

    /// Its length in nanoseconds.
    pub const fn ns(self) -> u64 {
        [1, 60, 3600, 86_400, 604_800][self as usize] * 1_000_000_000
    }
}

/// A write budget: how much may be written to a directory in a period.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Writes {
    bytes: u64,
    period: Period,
}

impl Writes {
    /// So many bytes in each such period. None if that is less than [`BATCH_BYTES`], which would never be enough for a batch.
    pub fn new(bytes: u64, period: Period) -> Option<Self> {
        (BATCH_BYTES..BYTES_END).contains(&bytes).then_some(Self { bytes, period })
    }

    /// Bytes in each period.
    pub fn bytes(self) -> u64 {
        self.bytes
    }

    /// The period.
    pub fn period(self) -> Period {
        self.period
    }

    /// Parses `BYTES/PERIOD`, where the size is a decimal number.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let (size, period) = text.split_at(text.iter().position(|byte| *byte == b'/')?);
        let digit = |bytes: u64, byte: &u8| {
            let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
            bytes.checked_mul(10)?.checked_add(digit)
        };
        Self::new(size.iter().try_fold(0, digit)?, Period::of_name(&period[1..])?)
    }

    /// The time in which so many bytes come back, rounded up.
    fn ns_of(self, bytes: u64) -> u64 {
        (u128::from(bytes) * u128::from(self.period.ns())).div_ceil(u128::from(self.bytes)) as u64
    }

    /// The bytes that come back in such a time.
    fn bytes_of(self, ns: u64) -> u64 {
        (u128::from(ns) * u128::from(self.bytes) / u128::from(self.period.ns())) as u64
    }

    fn to_word(self) -> u64 {
        self.bytes | (self.period as u64) << 56
    }

    /// Any process of the tree may have written anything.
    fn of_word(word: u64) -> Option<Self> {
        let period = Period::ALL.get((word >> 56) as usize)?;
        Self::new(word & (BYTES_END - 1), *period)
    }
}

/// What was taken for a write: whether there was a budget, and when.
#[derive(Clone, Copy, Default, Debug)]
pub struct Grant {
    is_budgeted: bool,
    taken_at: u64,
}

/// What is written to one directory.
#[repr(C)]
#[derive(Debug)]
pub struct Allowance {
    /// 0 for a free place.
    key: AtomicU64,
    /// The budget: [`Writes::to_word`], 0 for none.
    budget: AtomicU64,
    bucket: Bucket,
    /// Bytes written, and about to be.
    written: AtomicU64,
    /// When the user was last told that the budget is spent; 0 for never.
    said_at: AtomicU64,
}

impl Allowance {
    /// The budget, if there is one.
    pub fn budget(&self) -> Option<Writes> {
        Writes::of_word(self.budget.load(Relaxed))
    }

    /// Bytes that the tree wrote there.
    pub fn written(&self) -> u64 {
        self.written.load(Relaxed)
    }

    /// Sets the budget, if there is none yet.
    pub fn begin(&self, writes: Writes) {
        let _ = self.budget.compare_exchange(0, writes.to_word(), Relaxed, Relaxed);
    }

    /// Changes the budget. What is spent stays so.
    pub fn change(&self, writes: Writes) {
        let old = Writes::of_word(self.budget.swap(writes.to_word(), Relaxed));
        if let Some(old) = old.filter(|old| *old != writes) {
            let scaled = |ns| writes.ns_of(old.bytes_of(ns).min(writes.bytes));
            self.bucket.rescale(old.period.ns(), uapi::calendar_ns, scaled);
            // What the user was told holds no longer.
            self.said_at.store(0, Relaxed);
        }
    }

    /// Takes as much as `slots` slots, at most a batch; none if the budget does not have a whole batch.
    pub fn take(&self, slots: usize) -> Option<Grant> {
        let bytes = slots as u64 * SLOT_BYTES;
        debug_assert!(bytes <= BATCH_BYTES);
        let budget = self.budget();
        let taken_at = match budget {
            None => 0,
            Some(writes) => {
                let costs = (writes.ns_of(bytes), writes.ns_of(BATCH_BYTES));
                self.bucket.take(costs, writes.period.ns(), uapi::calendar_ns)?
            }
        };
        self.written.fetch_add(bytes, Relaxed);
        Some(Grant { is_budgeted: budget.is_some(), taken_at })
    }

    /// Gives back `slots` slots of what was taken, because they were not written.
    pub fn give_back(&self, grant: Grant, slots: usize) {
        let bytes = slots as u64 * SLOT_BYTES;
        self.written.fetch_sub(bytes, Relaxed);
        // Of the budget as it is now, which may have changed since.
        if let Some(writes) = self.budget().filter(|_| grant.is_budgeted) {
            // What was taken was rounded up.
            self.bucket.give_back(writes.ns_of(bytes).saturating_sub(1), grant.taken_at, uapi::calendar_ns());
        }
    }

    /// For how long nothing can be taken; 0 if something can.
    pub fn held_ns(&self) -> u64 {
        self.budget()
            .map_or(0, |writes| self.bucket.missing(writes.ns_of(BATCH_BYTES), writes.period.ns(), uapi::calendar_ns))
    }

    /// Whether the caller is the one to tell the user that the budget is spent.
    pub fn may_say(&self) -> bool {
        let (said_at, now) = (self.said_at.load(Relaxed), uapi::calendar_ns());
        let is_recent = said_at != 0 && said_at <= now && now - said_at < SAID_EVERY_NS;
        !is_recent && self.said_at.compare_exchange(said_at, now, Relaxed, Relaxed).is_ok()
    }
}

/// The directories of a tree.
#[repr(C)]
#[derive(Debug)]
pub struct Table {
    all: [Allowance; PLACES],
}

impl Table {
    /// The number of a directory's place, from 1 on; 0 if there is none.
    pub fn enter(&self, dir: &[u8]) -> u32 {
        let key = key(dir);
        let takes = |place: &Allowance| {
            let taken = place.key.compare_exchange(0, key, Relaxed, Relaxed);
            taken.is_ok() || taken == Err(key)
        };
        self.all.iter().position(takes).map_or(0, |i| i as u32 + 1)
    }

    /// The place with this number.
    pub fn get(&self, place: u32) -> Option<&Allowance> {
        self.all.get((place as usize).checked_sub(1)?)
    }

    /// The place of a directory that has one.
    pub fn find(&self, dir: &[u8]) -> Option<&Allowance> {
        let key = key(dir);
        self.all.iter().find(|place| place.key.load(Relaxed) == key)
    }
}

/// A number that tells directories apart: FNV-1a.
fn key(dir: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    dir.iter().fold(0xcbf2_9ce4_8422_2325, step).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> std::boxed::Box<Table> {
        // SAFETY: zero is a valid counter.
        unsafe { std::boxed::Box::new(core::mem::zeroed()) }
    }

    /// Takes batches until nothing is left; how many.
    fn take_all(allowance: &Allowance) -> usize {
        (0..1000).take_while(|_| allowance.take(64).is_some()).count()
    }

    #[test]
    fn a_budget_is_read_back_from_text_and_word() {
        for period in Period::ALL {
            for bytes in [BATCH_BYTES, 20 << 30, BYTES_END - 1] {
                let writes = Writes::new(bytes, period).unwrap();
                assert_eq!(Writes::of_word(writes.to_word()), Some(writes));
                let text = std::format!("{bytes}/{}", period.name());
                assert_eq!(Writes::parse(text.as_bytes()), Some(writes), "{text}");
            }
        }
        for text in ["", "/", "/day", "1048576", "1048576/", "1M/day", "-1/day", "1048576/year", "0/day", "262143/day"]
        {
            assert_eq!(Writes::parse(text.as_bytes()), None, "{text}");
        }
        assert_eq!(
            (Writes::new(BYTES_END, Period::Day), Writes::of_word(0), Writes::of_word(u64::MAX)),
            (None, None, None)
        );
        assert_eq!(Writes::parse(b"99999999999999999999999/day"), None);
    }

    #[test]
    fn the_smallest_budget_is_one_batch_in_each_period() {
        for bytes in [BATCH_BYTES, BATCH_BYTES + 4095, 2 * BATCH_BYTES - 1] {
            let table = table();
            let allowance = table.get(table.enter(b"/a")).unwrap();
            allowance.change(Writes::new(bytes, Period::Week).unwrap());
            assert_eq!((allowance.held_ns(), take_all(allowance)), (0, 1), "{bytes}");
            assert!((1..=Period::Week.ns()).contains(&allowance.held_ns()));
        }
    }

    #[test]
    fn what_is_taken_is_written_but_for_what_is_given_back() {
        let table = table();
        let allowance = table.get(table.enter(b"/a")).unwrap();
        assert_eq!((take_all(allowance), allowance.written()), (1000, 1000 * BATCH_BYTES), "without a budget");
        allowance.begin(Writes::new(8 * BATCH_BYTES, Period::Day).unwrap());
        let before = allowance.written();
        let grant = allowance.take(64).unwrap();
        assert_eq!(take_all(allowance), 7);
        assert!(allowance.take(1).is_none());
        allowance.give_back(grant, 63);
        assert!(allowance.take(1).is_none());
        allowance.give_back(Grant::default(), 0);
        assert_eq!(allowance.written() - before, 8 * BATCH_BYTES - 63 * SLOT_BYTES);
    }

    #[test]
    fn the_first_budget_stays_until_it_is_changed_and_what_is_spent_stays_spent() {
        let table = table();
        let allowance = table.get(table.enter(b"/a")).unwrap();
        let writes = |batches, period| Writes::new(batches * BATCH_BYTES, period).unwrap();
        allowance.begin(writes(8, Period::Day));
        allowance.begin(writes(80, Period::Day));
        assert_eq!((allowance.budget(), take_all(allowance)), (Some(writes(8, Period::Day)), 8));
        assert!(allowance.may_say() && !allowance.may_say());
        allowance.change(writes(20, Period::Week));
        assert_eq!((allowance.budget(), take_all(allowance)), (Some(writes(20, Period::Week)), 12));
        assert!(allowance.may_say(), "it is another budget");
        allowance.change(writes(10, Period::Hour));
        assert_eq!(take_all(allowance), 0);
        assert!(allowance.held_ns() <= Period::Hour.ns() / 10);
    }

    #[test]
    fn a_directory_has_one_place_as_long_as_there_are_places() {
        let table = table();
        assert_eq!([&b"/a"[..], b"/b", b"/a"].map(|dir| table.enter(dir)), [1, 2, 1]);
        assert!(table.find(b"/b").is_some() && table.find(b"/c").is_none());
        (0..PLACES as u8).for_each(|i| _ = table.enter(&[b'/', b'c', i]));
        assert_eq!(table.enter(b"/late"), 0);
        assert!(table.get(0).is_none() && table.get(PLACES as u32 + 1).is_none());
    }
}
