//! Reads that wait for a device outside the gate: others close the gate meanwhile, and what has changed since is never
//! taken for what it was.

use crate::harness::alone::{COMPRESSIBLE, PAGE, Pages, RAM_PAGES, RANDOM, alone, assert_sound, fork, space_on, wait};
use crate::harness::faulty::{Device, Verdict};
use crate::harness::{ctx, leave, map, unmap};
use ebb::{PinResult, Reclaim, ReclaimTo, Space, SwapSpec};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

fn faulty_space() -> (&'static Space, Device) {
    let device = Device::new();
    let space = space_on(&[SwapSpec { dir: c"/var/tmp", bytes: 1 << 30, priority: None, ..SwapSpec::DEFAULT }], true);
    device.watch(space.fds().take(2).skip(1));
    (space, device)
}

/// Has everything go to the device.
fn all_out(space: &'static Space) {
    let demand = Reclaim { pages: usize::MAX, to: ReclaimTo::Device, shared: true };
    space.reclaim(ctx(space), demand, &mut |_| true).expect("a device");
}

/// Touches `page` alone, after others without an order, so that it is no step of a walk, and then others far from it, in case
/// it is in memory. The first read of one slot is as `verdict` says.
fn touch(space: &'static Space, (at, n): (usize, usize), page: usize, device: &Device, verdict: Verdict) {
    let others = (1..30).map(|i| (page + i * i * 61) % n).filter(|other| other.abs_diff(page) > 64);
    others.for_each(|page| _ = space.fault(ctx(space), at + page * PAGE, false));
    next_read_is(device, verdict);
    (0..20).for_each(|i| _ = space.fault(ctx(space), at + (page + i * 997) % n * PAGE, false));
}

/// The next read of a single slot is as `verdict` says.
fn next_read_is(device: &Device, verdict: Verdict) {
    let mut is_first = true;
    device.set_hanging(true);
    device.rule(move |transfer| {
        let is_it = !transfer.is_write && transfer.len == PAGE && std::mem::take(&mut is_first);
        if is_it { verdict } else { Verdict::Pass }
    });
}

#[test]
fn while_a_read_hangs_others_fork_map_and_read() {
    alone(|| {
        let (space, device) = faulty_space();
        let pages = Pages::new(space, 2 * RAM_PAGES, RANDOM);
        all_out(space);
        let (is_back, memory) = (AtomicBool::new(false), (pages.addr(0), pages.len()));
        std::thread::scope(|scope| {
            let hanging = scope.spawn(|| {
                touch(space, memory, 77, &device, Verdict::Hang);
                is_back.store(true, SeqCst);
                leave(space);
            });
            device.wait_for_hanging();
            let began = Instant::now();
            // Recounts everything with the gate closed.
            assert_eq!(space.validate(), Ok(()));
            let child = fork(space, || (1000..1100).for_each(|page| pages.check(page)));
            assert_eq!(wait(child), 0);
            let more = map(space, 64 * PAGE);
            unmap(space, more, 64 * PAGE);
            pages.check_all();
            assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
            assert!(!is_back.load(SeqCst), "the read still hangs");
            device.go_on();
            hanging.join().expect("it goes on");
        });
        assert_sound(&pages);
    });
}

#[test]
fn a_call_whose_buffer_a_device_holds_up_stalls_the_tree() {
    alone(|| {
        let (space, device) = faulty_space();
        let pages = Pages::new(space, 2 * RAM_PAGES, RANDOM);
        all_out(space);
        let (buffer, before) = (pages.addr(77), space.stats().stalls.total());
        std::thread::scope(|scope| {
            let call = scope.spawn(|| {
                let ctx = ctx(space);
                next_read_is(&device, Verdict::Hang);
                space.pin_begin(ctx, 0);
                assert!(matches!(space.pin_add(ctx, buffer, PAGE), PinResult::Ok));
                space.pin_end(ctx);
                leave(space);
            });
            device.wait_for_hanging();
            std::thread::sleep(Duration::from_millis(100));
            device.go_on();
            call.join().expect("it goes on");
        });
        // Instants are 0.4 to 2 ms apart.
        let stalled = space.stats().stalls.total() - before;
        assert!(stalled >= 25, "{stalled} instants");
        assert_sound(&pages);
    });
}

#[test]
fn what_has_changed_since_it_was_read_is_read_again() {
    alone(|| {
        let (space, device) = faulty_space();
        let mut pages = Pages::new(space, RAM_PAGES / 2, RANDOM);
        for round in 0..30u64 {
            all_out(space);
            let page = (round as usize * 37 + 5) % pages.len();
            let memory = (pages.addr(0), pages.len());
            std::thread::scope(|scope| {
                let device = &device;
                let late = scope.spawn(move || {
                    touch(space, memory, page, device, Verdict::Late);
                    leave(space);
                });
                device.wait_for_hanging();
                // The slot that was read is free, and has something else a moment later.
                for i in 0..pages.len() {
                    if round % 3 == 0 || i == page {
                        pages.write(i, 2 + round, if round % 2 == 0 { RANDOM } else { COMPRESSIBLE });
                    }
                }
                all_out(space);
                device.go_on();
                late.join().expect("it goes on");
            });
            pages.check(page);
        }
        device.mend();
        assert_sound(&pages);
    });
}

#[test]
fn a_file_that_goes_away_meanwhile_is_not_missed() {
    alone(|| {
        let (space, device) = faulty_space();
        let pages = Pages::new(space, 2 * RAM_PAGES, RANDOM);
        all_out(space);
        let memory = (pages.addr(0), pages.len());
        std::thread::scope(|scope| {
            let late = scope.spawn(|| {
                touch(space, memory, 77, &device, Verdict::Late);
                leave(space);
            });
            device.wait_for_hanging();
            // At once, before the device counts as one that does not answer.
            let spec = SwapSpec { dir: c"/tmp", bytes: 1 << 30, priority: None, ..SwapSpec::DEFAULT };
            assert_eq!(space.swapon(ctx(space), &spec, &mut || true), Ok(()));
            let off = space.swapoff(ctx(space), c"/var/tmp", &mut |_| true);
            device.go_on();
            late.join().expect("it goes on");
            assert_eq!(off, Ok(()));
        });
        assert_sound(&pages);
    });
}
