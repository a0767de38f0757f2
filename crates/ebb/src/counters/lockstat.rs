//! Where threads wait for each other: one record for each class of locks at each place that asks for one, summed over
//! the process tree.
//!
//! Only a thread that had to wait writes here, so this is always on. A place is known by its name, not by an address:
//! the agent lies elsewhere in each process, and every process of the tree writes to the same records. The records tell
//! what `perf lock contention` tells of the kernel: how often threads waited, how long in all, and how long at most.

use crate::base::clock;
use crate::base::text::Text;
use crate::counters::stats::{Shared, add, raise};
use core::panic::Location;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicPtr, AtomicU64};
use ebb_sync::Hooks;

/// Places that are told apart. Waits at further ones count as lost.
const SITES: usize = 64;
/// Bytes of a place's name.
const NAME_BYTES: usize = 88;
/// Records that a search looks at before it gives a place up.
const PROBES_MAX: usize = 16;

/// One class of locks at one place.
#[repr(C)]
#[derive(Debug)]
pub struct Site {
    /// Hash of class and place; 0 while the record is free.
    key: AtomicU64,
    /// 1 once the name is written.
    is_named: AtomicU64,
    /// `CLASS\0FILE:LINE\0`.
    name: [AtomicU64; NAME_BYTES / 8],
    contended: AtomicU64,
    total_ns: AtomicU64,
    max_ns: AtomicU64,
}

#[cfg(test)]
impl Site {
    const fn new() -> Self {
        Self {
            key: AtomicU64::new(0),
            is_named: AtomicU64::new(0),
            name: [const { AtomicU64::new(0) }; NAME_BYTES / 8],
            contended: AtomicU64::new(0),
            total_ns: AtomicU64::new(0),
            max_ns: AtomicU64::new(0),
        }
    }
}

/// All records. Zeroed memory is an empty table.
#[repr(C)]
#[derive(Debug)]
pub struct Table {
    sites: [Site; SITES],
    /// Waits at places that found no record.
    lost: AtomicU64,
}

/// What is known of one class at one place.
#[derive(Clone, Copy, Debug)]
pub struct Contention {
    name: [u8; NAME_BYTES],
    /// How often a thread had to wait.
    pub contended: u64,
    /// Nanoseconds of all these waits together.
    pub total_ns: u64,
    /// Nanoseconds of the longest wait.
    pub max_ns: u64,
}

impl Contention {
    /// The class of the lock.
    pub fn class(&self) -> &str {
        self.part(0)
    }

    /// The place that asked for the lock, as `FILE:LINE`.
    pub fn place(&self) -> &str {
        self.part(1)
    }

    fn part(&self, index: usize) -> &str {
        let part = self.name.split(|byte| *byte == 0).nth(index).unwrap_or(b"");
        core::str::from_utf8(part).unwrap_or("?")
    }

    /// Nanoseconds of a wait, on average.
    pub fn average_ns(&self) -> u64 {
        self.total_ns / self.contended.max(1)
    }
}

#[cfg(test)]
impl Table {
    const fn new() -> Self {
        Self { sites: [const { Site::new() }; SITES], lost: AtomicU64::new(0) }
    }
}

impl Table {
    /// Counts one wait.
    pub fn record(&self, class: &str, caller: &Location<'_>, wait_ns: u64) {
        // From the crate's name on, which is the same in each build.
        let file = caller.file();
        let file = file.find("crates/").map_or(file, |at| &file[at + "crates/".len()..]);
        let Some(site) = self.find(class, file, caller.line()) else {
            add(&self.lost, 1);
            return;
        };
        add(&site.contended, 1);
        add(&site.total_ns, wait_ns);
        raise(&site.max_ns, wait_ns);
    }

    fn find(&self, class: &str, file: &str, line: u32) -> Option<&Site> {
        let key = hash(class, file, line);
        for probe in 0..PROBES_MAX {
            let site = &self.sites[(key as usize + probe) % SITES];
            match site.key.compare_exchange(0, key, Relaxed, Relaxed) {
                Ok(_) => {
                    site.write_name(class, file, line);
                    return Some(site);
                }
                Err(found) if found == key => return Some(site),
                Err(_) => {}
            }
        }
        None
    }

    /// Waits at places that found no record.
    pub fn lost(&self) -> u64 {
        self.lost.load(Relaxed)
    }

    /// All records that have a name, in no particular order.
    pub fn all(&self) -> impl Iterator<Item = Contention> + '_ {
        self.sites.iter().filter(|site| site.is_named.load(Acquire) != 0).map(|site| {
            let mut name = [0; NAME_BYTES];
            for (bytes, word) in name.chunks_exact_mut(8).zip(&site.name) {
                bytes.copy_from_slice(&word.load(Relaxed).to_le_bytes());
            }
            Contention {
                name,
                contended: site.contended.load(Relaxed),
                total_ns: site.total_ns.load(Relaxed),
                max_ns: site.max_ns.load(Relaxed),
            }
        })
    }
}

impl Site {
    /// Writes the name, in the thread that took the record. A process that is killed here leaves a record without a
    /// name, which is never shown.
    fn write_name(&self, class: &str, file: &str, line: u32) {
        let mut text = Text::default();
        text.str(class.as_bytes()).str(b"\0").str(file.as_bytes()).str(b":").number(line as usize);
        let mut name = [0u8; NAME_BYTES];
        // The last byte stays zero.
        let len = text.bytes().len().min(NAME_BYTES - 1);
        name[..len].copy_from_slice(&text.bytes()[..len]);
        for (word, bytes) in self.name.iter().zip(name.chunks_exact(8)) {
            let mut value = [0; 8];
            value.copy_from_slice(bytes);
            word.store(u64::from_le_bytes(value), Relaxed);
        }
        self.is_named.store(1, Release);
    }
}

/// FNV-1a; never 0.
fn hash(class: &str, file: &str, line: u32) -> u64 {
    let bytes = class.bytes().chain([0]).chain(file.bytes()).chain(line.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)) | 1
}

/// Where this process counts; null until it has a space.
static COUNTERS: AtomicPtr<Shared> = AtomicPtr::new(core::ptr::null_mut());

static HOOKS: Hooks = Hooks { yield_now: crate::base::outlived::yield_now, now_ns, contended: record };

/// From now on counts waits in `stats`.
pub(crate) fn start(stats: &'static Shared) {
    COUNTERS.store(core::ptr::from_ref(stats).cast_mut(), Release);
    ebb_sync::set_hooks(&HOOKS);
}

fn now_ns() -> u64 {
    clock::ns(clock::cycles())
}

fn record(class: &'static str, caller: &'static Location<'static>, wait_ns: u64) {
    // SAFETY: null, or what `start` stored: a reference that lives for ever.
    if let Some(stats) = unsafe { COUNTERS.load(Acquire).as_ref() } {
        stats.locks.record(class, caller, wait_ns);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn waits_of_one_place_add_up_under_its_name() {
        let table = Table::new();
        let here = Location::caller();
        table.record("gate", here, 5);
        table.record("gate", here, 9);
        table.record("page", here, 1);
        let of = |class| table.all().find(|site| site.class() == class);
        let gate = of("gate").expect("it was counted");
        assert_eq!((gate.contended, gate.total_ns, gate.max_ns, gate.average_ns()), (2, 14, 9, 7));
        assert!(gate.place().starts_with("ebb/src/counters/lockstat.rs:"), "{}", gate.place());
        assert_eq!(of("page").map(|site| site.contended), Some(1));
        assert_eq!(table.lost(), 0);
    }

    #[test]
    fn names_that_are_too_long_are_cut_and_places_that_are_too_many_are_counted() {
        let table = Table::new();
        for line in 0..1000 {
            if let Some(site) = table.find("a class", &"directory/".repeat(12), line) {
                add(&site.contended, 1);
            } else {
                add(&table.lost, 1);
            }
        }
        assert_eq!(table.all().map(|site| site.contended).sum::<u64>() + table.lost(), 1000);
        assert!(table.lost() > 0);
        assert!(table.all().all(|site| site.class() == "a class" && site.place().len() == NAME_BYTES - 9));
    }
}
