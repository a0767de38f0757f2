//! Versions: readers never meet a change, and each version is whole. Bounds: what moves one disturbs no look-up.

use super::{explore, get, replace};
use ebb::bounds;
use ebb::gate::{Gate, GateFlag, Inside};
use ebb::versions::Versions;
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;

/// A gate, the flags of three threads, and two words that belong together, in two buffers.
#[derive(Default)]
struct Versioned {
    gate: Gate,
    flags: [GateFlag; 3],
    versions: Versions<2>,
    buffers: [[UnsafeCell<u64>; 2]; 2],
    change: Mutex<()>,
}

impl Versioned {
    /// The current version, each word of which is read at a moment of its own.
    fn read(&self, who: usize) -> u64 {
        let inside = self.gate.enter(&self.flags[who]);
        let [first, second] = &self.buffers[self.versions.current(&inside)];
        let value = get(first);
        assert_eq!(value, get(second));
        value
    }

    /// Adds one, beside readers. False if no buffer was free.
    fn add(&self, who: usize) -> bool {
        let inside = self.gate.enter(&self.flags[who]);
        let _change = self.change.lock().unwrap();
        let Some(free) = self.versions.free(&inside, &self.gate, || self.flags.iter()) else { return false };
        let value = get(&self.buffers[self.versions.current(&inside)][0]) + 1;
        self.buffers[free].iter().for_each(|word| {
            replace(word, value);
        });
        self.versions.publish(&inside, &self.gate, free);
        true
    }

    /// Adds one, alone and in place.
    fn add_alone(&self) {
        let exclusive = self.gate.close(1, self.flags.iter());
        let current = self.versions.current(&exclusive);
        self.buffers[current].iter().for_each(|word| {
            replace(word, get(word) + 1);
        });
        self.versions.set_current(&exclusive, current);
    }
}

#[test]
fn readers_meet_no_change_and_see_no_version_twice() {
    explore(3, || {
        let versioned = Arc::new(Versioned::default());
        let reader = {
            let versioned = versioned.clone();
            thread::spawn(move || {
                let first = versioned.read(0);
                assert!(first <= versioned.read(0));
            })
        };
        // The first finds a buffer free. The second does once the reader has left the version before.
        assert!(versioned.add(1));
        let again = versioned.add(1);
        reader.join().unwrap();
        assert_eq!(versioned.read(0), 1 + u64::from(again));
        assert!(versioned.add(1), "everybody has left");
    });
}

#[test]
fn two_who_make_versions_lose_none() {
    explore(3, || {
        let versioned = Arc::new(Versioned::default());
        let other = {
            let versioned = versioned.clone();
            thread::spawn(move || u64::from(versioned.add(0)))
        };
        let reader = {
            let versioned = versioned.clone();
            thread::spawn(move || versioned.read(2))
        };
        let own = u64::from(versioned.add(1));
        let added = own + other.join().unwrap();
        assert!(reader.join().unwrap() <= added);
        assert_eq!(versioned.read(0), added);
    });
}

#[test]
fn whoever_has_closed_the_gate_changes_the_current_version_in_place() {
    explore(3, || {
        let versioned = Arc::new(Versioned::default());
        let other = {
            let versioned = versioned.clone();
            thread::spawn(move || u64::from(versioned.add(0)))
        };
        versioned.add_alone();
        let added = 1 + other.join().unwrap();
        assert_eq!(versioned.read(1), added);
        assert!(versioned.add(1), "nobody is inside");
    });
}

/// A table of one range whose protection or mapping changes beside threads that are inside, as in `beside`. Each buffer has what
/// the table says of the range; `kernel` is what the kernel has.
struct Range {
    gate: Gate,
    flags: [GateFlag; 3],
    versions: Versions<8>,
    buffers: [UnsafeCell<u64>; 8],
    change: Mutex<()>,
    kernel: AtomicU64,
    /// What belongs to whoever finds the range, or has it alone.
    content: UnsafeCell<u64>,
}

const CHANGING: u64 = 1 << 32;

impl Default for Range {
    fn default() -> Self {
        Self {
            gate: Gate::default(),
            flags: Default::default(),
            versions: Versions::default(),
            buffers: core::array::from_fn(|_| UnsafeCell::new(1)),
            change: Mutex::default(),
            kernel: AtomicU64::new(1),
            content: UnsafeCell::new(0),
        }
    }
}

impl Range {
    fn edit(&self, inside: &mut Inside<'_>, edit: impl Fn(u64) -> Option<u64>) -> bool {
        loop {
            let change = self.change.lock().unwrap();
            if let Some(free) = self.versions.free(inside, &self.gate, || self.flags.iter()) {
                let next = edit(get(&self.buffers[self.versions.current(inside)]));
                if let Some(next) = next {
                    replace(&self.buffers[free], next);
                    self.versions.publish(inside, &self.gate, free);
                }
                return next.is_some();
            }
            drop(change);
            inside.renew(&self.gate);
            thread::yield_now();
        }
    }

    /// Sets what the range is in table and kernel. Uses the content alone if that `takes` something away.
    fn set(&self, who: usize, value: u64, takes: bool) {
        let mut inside = self.gate.enter(&self.flags[who]);
        if !self.edit(&mut inside, |seen| (seen & CHANGING == 0).then_some(seen | CHANGING)) {
            drop(inside);
            let exclusive = self.gate.close(1, self.flags.iter());
            let current = self.versions.current(&exclusive);
            assert_eq!(get(&self.buffers[current]), self.kernel.load(Ordering::Relaxed), "a call under way");
            self.kernel.store(value, Ordering::Relaxed);
            replace(&self.content, value);
            replace(&self.buffers[current], value);
            self.versions.set_current(&exclusive, current);
            return;
        }
        if takes {
            self.gate.wait_for_earlier(&mut inside, || self.flags.iter());
        }
        self.kernel.store(value, Ordering::Relaxed);
        if takes {
            replace(&self.content, value);
        }
        assert!(self.edit(&mut inside, |_| Some(value)));
    }

    /// Sets what the range is in table and kernel, where that takes nothing away, without a mark: the call comes first, and is made
    /// again alone if the table says something else by then, or cannot be changed without a wait.
    fn allow(&self, who: usize, value: u64) {
        let inside = self.gate.enter(&self.flags[who]);
        let seen = get(&self.buffers[self.versions.current(&inside)]);
        if seen & CHANGING != 0 {
            drop(inside);
            return self.set(who, value, false);
        }
        self.kernel.store(value, Ordering::Relaxed);
        let is_published = {
            let _change = self.change.lock().unwrap();
            let free = self.versions.free(&inside, &self.gate, || self.flags.iter());
            let is_still = get(&self.buffers[self.versions.current(&inside)]) == seen;
            free.filter(|_| is_still).map(|free| {
                replace(&self.buffers[free], value);
                self.versions.publish(&inside, &self.gate, free);
            })
        };
        drop(inside);
        if is_published.is_none() {
            let exclusive = self.gate.close(1, self.flags.iter());
            let current = self.versions.current(&exclusive);
            self.kernel.store(value, Ordering::Relaxed);
            replace(&self.buffers[current], value);
            self.versions.set_current(&exclusive, current);
        }
    }

    /// As a fault or a sweep: uses the content if the table says that the range is there. False if it does not.
    fn use_content(&self, who: usize) -> bool {
        let inside = self.gate.enter(&self.flags[who]);
        let is_there = get(&self.buffers[self.versions.current(&inside)]) & CHANGING == 0;
        if is_there {
            get(&self.content);
        }
        is_there
    }

    fn is_settled(&self) -> bool {
        let inside = self.gate.enter(&self.flags[0]);
        get(&self.buffers[self.versions.current(&inside)]) == self.kernel.load(Ordering::Relaxed)
    }
}

#[test]
fn what_is_taken_away_is_nobodys_by_then() {
    explore(3, || {
        let range = Arc::new(Range::default());
        let user = {
            let range = range.clone();
            thread::spawn(move || {
                range.use_content(1);
                range.use_content(1);
            })
        };
        range.set(0, 2, true);
        user.join().unwrap();
        assert!(range.use_content(1) && range.is_settled());
    });
}

#[test]
fn two_calls_on_one_range_leave_table_and_kernel_alike() {
    for takes in [(true, true), (true, false), (false, false)] {
        explore(2, move || {
            let range = Arc::new(Range::default());
            let other = {
                let range = range.clone();
                thread::spawn(move || range.set(0, 2, takes.0))
            };
            range.set(1, 3, takes.1);
            other.join().unwrap();
            assert!(range.is_settled());
        });
    }
}

#[test]
fn a_call_without_a_mark_leaves_table_and_kernel_alike() {
    // Beside one of its kind, and beside one that takes away and gives back: what it saw may be there again.
    explore(2, || {
        let range = Arc::new(Range::default());
        let other = {
            let range = range.clone();
            thread::spawn(move || range.allow(0, 2))
        };
        range.allow(1, 3);
        other.join().unwrap();
        assert!(range.is_settled());
    });
    explore(2, || {
        let range = Arc::new(Range::default());
        let other = {
            let range = range.clone();
            thread::spawn(move || range.allow(0, 2))
        };
        range.set(1, 3, true);
        range.set(1, 1, true);
        other.join().unwrap();
        assert!(range.is_settled());
    });
}

#[test]
fn whoever_closes_the_gate_meets_no_call_half_done() {
    explore(2, || {
        let range = Arc::new(Range::default());
        let other = {
            let range = range.clone();
            thread::spawn(move || range.set(0, 2, true))
        };
        let exclusive = range.gate.close(1, range.flags.iter());
        let seen = get(&range.buffers[range.versions.current(&exclusive)]);
        assert_eq!(seen, range.kernel.load(Ordering::Relaxed));
        drop(exclusive);
        other.join().unwrap();
        assert!(range.is_settled());
    });
}

#[test]
fn two_calls_that_wait_for_who_is_inside_do_not_wait_for_each_other() {
    explore(2, || {
        let gate = Arc::new(Gate::default());
        let flags: Arc<[GateFlag; 3]> = Arc::default();
        let waits = |who: usize| {
            let (gate, flags) = (gate.clone(), flags.clone());
            move || {
                let mut inside = gate.enter(&flags[who]);
                gate.wait_for_earlier(&mut inside, || flags.iter());
            }
        };
        let other = thread::spawn(waits(0));
        waits(1)();
        other.join().unwrap();
    });
}

#[test]
fn a_look_up_beside_moving_bounds_is_right_for_some_moment() {
    // The address 6 goes from the third part to the second, and then to the first, never back.
    for moves in [&[(2, 8), (1, 7)][..], &[(1, 3), (2, 8), (1, 7)], &[(2, 9), (1, 6), (1, 8)]] {
        explore(3, move || {
            let row: Arc<[AtomicU64; 4]> = Arc::new([0, 2, 4, 20].map(AtomicU64::new));
            let look = |row: &[AtomicU64; 4]| {
                let part = bounds::look(4, |i| row[i].load(Ordering::Acquire), 6);
                assert!(part.start <= 6 && part.end > 6);
                part.index
            };
            let reader = {
                let row = row.clone();
                thread::spawn(move || {
                    let first = look(&row);
                    let second = look(&row);
                    assert!((0..=2).contains(&second) && second <= first && first <= 2);
                })
            };
            moves.iter().for_each(|(bound, to)| row[*bound].store(*to, Ordering::Release));
            assert_eq!(look(&row), 0);
            reader.join().unwrap();
        });
    }
}
