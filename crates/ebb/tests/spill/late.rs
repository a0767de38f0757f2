//! Transfers of several pages, and writes, while the device does not answer: a thread inside the gate leaves them to the
//! kernel as soon as others have waited for it for long enough.

use crate::harness::alone::{
    COMPRESSIBLE, PAGE, Pages, RAM_PAGES, RANDOM, alone, assert_sound, fork, rewrite, space_on, wait,
};
use crate::harness::{ctx, leave, map, unmap};
use ebb::{Kind, Reclaim, ReclaimTo, Space, SwapSpec, SwapState};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// How long others may have to wait for a thread that waits for the device: it gives up after two seconds.
const PATIENCE: Duration = Duration::from_secs(20);

fn space() -> &'static Space {
    space_on(&[SwapSpec { dir: c"/var/tmp", bytes: 1 << 30, ..SwapSpec::DEFAULT }], true)
}

/// Whether the process can have transfers in flight.
fn is_possible() -> bool {
    let mut context = 0u64;
    // SAFETY: the kernel writes the context's number.
    unsafe { libc::syscall(libc::SYS_io_setup, 1, &raw mut context) == 0 }
}

fn all_out(space: &'static Space) {
    let demand = Reclaim { pages: usize::MAX, to: ReclaimTo::Device, shared: true };
    space.reclaim(ctx(space), demand, &mut |_| true).expect("a device");
}

/// What needs all threads outside the gate is done, although one of them waits for the device.
fn others_go_on(space: &'static Space, pages: &Pages) {
    let began = Instant::now();
    assert_eq!(space.validate(), Ok(()));
    let child = fork(space, || {
        space.hold_transfers(false);
        pages.check_all();
        assert_sound(&Pages::new(space, 2 * RAM_PAGES, COMPRESSIBLE));
    });
    let more = map(space, 64 * PAGE);
    unmap(space, more, 64 * PAGE);
    assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
    assert_eq!(wait(child), 0);
}

fn is_stuck(space: &'static Space) -> bool {
    let mut is_stuck = false;
    space.devices(|device| is_stuck |= device.state == SwapState::Stuck);
    is_stuck
}

fn wait_for_late(space: &'static Space) {
    let began = Instant::now();
    while space.stats().late_transfers.load(Relaxed) == 0 {
        assert!(began.elapsed() < PATIENCE, "the thread waits and waits");
        // Somebody who wants the threads to leave.
        let _ = space.validate();
    }
}

#[test]
fn while_a_walk_waits_for_the_device_others_go_on_and_so_does_the_walk() {
    alone(|| {
        if !is_possible() {
            return;
        }
        let space = space();
        let (mut walked, others) = (Pages::new(space, RAM_PAGES, RANDOM), Pages::new(space, RAM_PAGES, RANDOM));
        all_out(space);
        space.hold_transfers(true);
        std::thread::scope(|scope| {
            let walked = &mut walked;
            let walk = scope.spawn(move || {
                let _ = ctx(space);
                walked.check_all();
                leave(space);
            });
            std::thread::sleep(Duration::from_millis(100));
            others_go_on(space, &others);
            wait_for_late(space);
            // From here on its pages come one by one, read outside the gate.
            walk.join().expect("it gets on");
        });
        space.hold_transfers(false);
        assert_sound(&walked);
        assert_sound(&others);
    });
}

#[test]
fn while_a_write_waits_for_the_device_others_go_on_and_another_device_takes_it() {
    alone(|| {
        if !is_possible() {
            return;
        }
        let space = space();
        let (mut written, others) = (Pages::new(space, 2 * RAM_PAGES, RANDOM), Pages::new(space, RAM_PAGES, RANDOM));
        all_out(space);
        space.hold_transfers(true);
        std::thread::scope(|scope| {
            let written = &mut written;
            let write = scope.spawn(move || {
                let _ = ctx(space);
                (0..written.len()).for_each(|page| written.write(page, 7, RANDOM));
                leave(space);
            });
            std::thread::sleep(Duration::from_millis(100));
            others_go_on(space, &others);
            wait_for_late(space);
            let began = Instant::now();
            while !is_stuck(space) {
                assert!(began.elapsed() < PATIENCE, "nobody sees that it does not answer");
            }
            assert!(!write.is_finished(), "there is no room");
            let spec = SwapSpec { dir: c"/dev/shm", bytes: 1 << 30, kind: Kind::Ram, ..SwapSpec::DEFAULT };
            assert_eq!(space.swapon(ctx(space), &spec, &mut || true), Ok(()));
            write.join().expect("it gets on");
        });
        space.hold_transfers(false);
        assert_sound(&written);
        assert_sound(&others);
        let began = Instant::now();
        while is_stuck(space) {
            assert!(began.elapsed() < PATIENCE, "it still does not answer");
            all_out(space);
        }
        assert_eq!(space.swapoff(ctx(space), c"/var/tmp", &mut |_| true), Ok(()));
        assert_sound(&written);
        assert_sound(&others);
    });
}

#[test]
fn who_waits_for_the_only_device_goes_on_when_it_answers() {
    alone(|| {
        if !is_possible() {
            return;
        }
        let space = space();
        let mut pages = Pages::new(space, 3 * RAM_PAGES, RANDOM);
        for seed in 1..4 {
            space.hold_transfers(true);
            std::thread::scope(|scope| {
                let write = scope.spawn(|| {
                    let _ = ctx(space);
                    rewrite(&mut pages, seed);
                    leave(space);
                });
                let began = Instant::now();
                while began.elapsed() < Duration::from_secs(3) {
                    assert_eq!(space.validate(), Ok(()));
                }
                space.hold_transfers(false);
                write.join().expect("it gets on");
            });
            pages.check_all();
        }
        assert!(space.stats().late_transfers.load(Relaxed) > 0);
        assert_sound(&pages);
    });
}
