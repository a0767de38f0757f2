//! Versions: readers never meet a change, and each version is whole.

use super::{explore, get, replace};
use ebb::gate::{Gate, GateFlag};
use ebb::versions::Versions;
use loom::cell::UnsafeCell;
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
