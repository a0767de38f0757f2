//! The gate: many inside, or one alone.

use super::{explore, get, replace};
use ebb::gate::{Gate, GateFlag};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

/// A gate, the flags of its threads, and what it protects.
#[derive(Default)]
struct Gated {
    gate: Gate,
    flags: [GateFlag; 2],
    value: UnsafeCell<u64>,
}

impl Gated {
    fn read(&self, who: usize) -> u64 {
        let _inside = self.gate.enter(&self.flags[who]);
        get(&self.value)
    }

    fn write(&self, process: u32) {
        let _exclusive = self.gate.close(process, self.flags.iter());
        // Whether somebody waits by now or not.
        assert_eq!(self.gate.closed_by(), Some(process));
        replace(&self.value, get(&self.value) + 1);
    }
}

#[test]
fn whoever_closes_the_gate_is_alone() {
    explore(3, || {
        let gated = Arc::new(Gated::default());
        let readers: [_; 2] = core::array::from_fn(|who| {
            let gated = gated.clone();
            thread::spawn(move || {
                let first = gated.read(who);
                assert!(first <= gated.read(who));
            })
        });
        gated.write(7);
        for reader in readers {
            reader.join().unwrap();
        }
        assert_eq!(gated.read(0), 1);
    });
}

#[test]
fn of_two_who_close_the_gate_one_waits_for_the_other() {
    explore(3, || {
        let gated = Arc::new(Gated::default());
        let closer = {
            let gated = gated.clone();
            thread::spawn(move || gated.write(u32::MAX))
        };
        let reader = {
            let gated = gated.clone();
            thread::spawn(move || gated.read(0))
        };
        gated.write(7);
        closer.join().unwrap();
        assert!(reader.join().unwrap() <= 2);
        assert_eq!(gated.read(0), 2);
        assert_eq!(gated.gate.closed_by(), None);
    });
}
