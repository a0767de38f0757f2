//! Write budgets: no more is written than a directory's budget allows, what cannot be written there goes elsewhere or waits, and nothing
//! is lost. `EBB_FORCE` forces fallbacks.

use crate::harness::alone::{
    COMPRESSIBLE, PAGE, Pages, RAM, RAM_PAGES, RANDOM, alone, assert_sound, fork, rewrite, run_alone, space_in_tree,
    space_on, wait,
};
use crate::harness::faulty::{Device, Verdict};
use crate::harness::{Random, ctx, force, leave, space_with};
use ebb::stats::{Period, Writes};
use ebb::{Config, Force, NoDevice, Reclaim, ReclaimTo, Space, SwapOffError, SwapOnError, SwapSpec, SwapState};
use std::ffi::CStr;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const A: &CStr = c"/var/tmp";
const B: &CStr = c"/tmp";
/// Bytes of the largest write.
const BATCH: u64 = 256 << 10;
/// Of this, next to nothing comes back during a test.
const FEW: u64 = 4 << 20;

fn budget(bytes: u64, period: Period) -> Option<Writes> {
    Some(Writes::new(bytes, period).expect("a budget"))
}

fn device(dir: &'static CStr, writes: Option<Writes>) -> SwapSpec<'static> {
    SwapSpec { dir, bytes: 1 << 30, writes, ..SwapSpec::DEFAULT }
}

/// A device that is filled first, and may take little; and another one.
fn little_and_much() -> [SwapSpec<'static>; 2] {
    [SwapSpec { priority: Some(5), ..device(A, budget(FEW, Period::Week)) }, device(B, None)]
}

/// Bytes that the tree wrote to a directory.
fn written(space: &Space, dir: &CStr) -> u64 {
    space.stats().writes.find(dir.to_bytes()).map_or(0, |allowance| allowance.written())
}

/// Bytes in use, state and budget of the process's device in a directory. What it shows as written is what the tree wrote, looked at
/// while no process of a family writes.
fn shown(space: &Space, dir: &CStr) -> (u64, SwapState, Option<Writes>) {
    loop {
        let before = written(space, dir);
        let (mut found, mut shown) = (None, 0);
        space.devices(|device| {
            if device.dir == dir {
                shown = device.written_bytes;
                found = Some((device.used_bytes, device.state, device.writes));
            }
        });
        let found = found.expect("a device");
        if written(space, dir) == before {
            assert_eq!(shown, before);
            return found;
        }
    }
}

/// Bytes that the file system has given to this process's files in a directory.
fn on_disk(space: &Space, dir: &CStr) -> u64 {
    let prefix = format!("{}/", dir.to_string_lossy());
    let of_file = |fd: i32| {
        let link = std::fs::read_link(format!("/proc/self/fd/{fd}")).ok()?;
        let is_there = link.to_string_lossy().starts_with(&prefix);
        is_there.then(|| std::fs::metadata(format!("/proc/self/fd/{fd}")).map_or(0, |of| of.blocks() * 512))
    };
    space.fds().filter(|fd| *fd >= 0).filter_map(of_file).sum()
}

fn swapoff(space: &'static Space, dir: &CStr) -> Result<(), SwapOffError> {
    space.swapoff(ctx(space), dir, &mut |_| true)
}

/// The first device takes what its budget allows, and the second the rest, whatever is written.
fn takes_what_it_may(space: &'static Space) {
    assert_eq!(shown(space, A).1, SwapState::Good);
    let mut hard = Pages::new(space, 2 * RAM_PAGES, RANDOM);
    let mut heap = Pages::new(space, 4 * RAM_PAGES, COMPRESSIBLE);
    (1..3).for_each(|seed| rewrite(&mut hard, seed));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _ = ctx(space);
            rewrite(&mut hard, 3);
            leave(space);
        });
        rewrite(&mut heap, 4);
    });
    let (used, state, writes) = shown(space, A);
    assert_eq!((state, writes), (SwapState::Held, budget(FEW, Period::Week)));
    assert!((FEW - BATCH..=FEW).contains(&written(space, A)), "{}", written(space, A));
    // The file system may round up what it gives.
    assert!(used <= FEW && on_disk(space, A) <= FEW + (64 << 10), "{used} {}", on_disk(space, A));
    let (used, state, writes) = shown(space, B);
    assert!(used > RAM && state == SwapState::Good && writes.is_none(), "{used}");
    let stats = space.stats();
    assert_eq!(written(space, A) + written(space, B), stats.file_bytes.load(Relaxed));
    assert_sound(&hard);
    assert_sound(&heap);
}

fn takes_what_it_may_with(change: fn(&mut Force)) {
    let mut force = Force { strict: true, ..force() };
    change(&mut force);
    takes_what_it_may(space_with(&Config {
        ram_bytes: RAM,
        swap: &little_and_much(),
        stats: None,
        stats_fd: None,
        force,
    }));
}

#[test]
fn a_device_takes_what_its_budget_allows_and_the_next_one_the_rest() {
    alone(|| takes_what_it_may_with(|_| ()));
}

#[test]
fn without_flights_a_device_takes_no_more() {
    alone(|| takes_what_it_may_with(|force| force.no_flights = true));
}

#[test]
fn what_flew_in_vain_counts() {
    alone(|| {
        let swap = little_and_much();
        let force = Force { strict: true, failing_flights: true, ..force() };
        let space = space_with(&Config { ram_bytes: 4 * RAM, swap: &swap, stats: None, stats_fd: None, force });
        let pages = Pages::new(space, 6 * RAM_PAGES, RANDOM);
        assert!((FEW - 2 * BATCH..=FEW).contains(&written(space, A)), "{}", written(space, A));
        let failed = space.stats().failed_flights.load(Relaxed);
        let in_vain = written(space, A) + written(space, B) - space.stats().file_bytes.load(Relaxed);
        assert!(in_vain >= failed * PAGE as u64, "{in_vain} in {failed} flights");
        assert_sound(&pages);
    });
}

#[test]
fn a_device_gets_no_byte_more_even_if_it_fails() {
    alone(|| {
        let device = Device::new();
        let space = space_on(&little_and_much(), true);
        device.watch(space.fds().take(2).skip(1));
        // What the file got for certain, and what it may have got.
        let got = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let (sums, mut random, mut faults) = (got.clone(), Random(3), 0);
        device.rule(move |transfer| {
            if !transfer.is_write {
                return Verdict::Pass;
            }
            faults += 1;
            let pages = transfer.len / PAGE;
            let (half, part) = (pages / 2 * PAGE, random.below(pages) * PAGE);
            let (verdict, bytes, perhaps) = match faults {
                2 | 5 => (Verdict::Fail(libc::EIO), 0, transfer.len),
                3 => (Verdict::Short(half), half, 0),
                7 => (Verdict::Torn(part, libc::EIO), part, transfer.len - part),
                8 => (Verdict::Fail(libc::EAGAIN), 0, 0),
                9 => (Verdict::Fail(libc::ENOSPC), 0, 0),
                _ => (Verdict::Pass, transfer.len, 0),
            };
            sums[0].fetch_add(bytes as u64, Relaxed);
            sums[1].fetch_add(perhaps as u64, Relaxed);
            verdict
        });
        let mut pages = Pages::new(space, 3 * RAM_PAGES, RANDOM);
        // It does not grow for a second after ENOSPC.
        let end = Instant::now() + crate::harness::PATIENCE;
        while shown(space, A).1 != SwapState::Held {
            assert!(Instant::now() < end);
            rewrite(&mut pages, 5);
        }
        assert!(device.nr_ruled() >= 6, "{}", device.nr_ruled());
        let [got, perhaps] = [0, 1].map(|i| got[i].load(Relaxed));
        assert_eq!(got + perhaps, written(space, A));
        assert!(got + perhaps <= FEW && got >= FEW - 5 * BATCH, "{got} {perhaps}");
        assert_sound(&pages);
    });
}

#[test]
fn a_budget_that_binds_makes_threads_wait_until_some_has_come_back() {
    alone(|| {
        const RATE: u64 = 8 << 20;
        let space = space_on(&[device(A, budget(RATE, Period::Second))], true);
        let begin = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let _ = ctx(space);
                    assert_sound(&Pages::new(space, 2 * RAM_PAGES, RANDOM));
                    leave(space);
                });
            }
        });
        let most = RATE as f64 * (1.0 + begin.elapsed().as_secs_f64());
        let written = written(space, A);
        assert!(written > 2 * RATE && written as f64 <= most, "{written} of {most}");
    });
}

/// Processor time of the whole process.
fn process_time() -> Duration {
    // SAFETY: the kernel writes the structure.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_SELF, &mut usage), 0);
        usage
    };
    let of = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    of(usage.ru_utime) + of(usage.ru_stime)
}

#[test]
fn a_process_that_waits_for_its_budget_is_neither_ended_nor_busy_and_says_so_once() {
    let ran = run_alone(|| {
        let space = space_on(&[device(A, budget(1 << 20, Period::Week))], true);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let _ = ctx(space);
                assert_sound(&Pages::new(space, 3 * RAM_PAGES, RANDOM));
                leave(space);
            });
            let end = Instant::now() + crate::harness::PATIENCE;
            while shown(space, A).1 != SwapState::Held {
                assert!(Instant::now() < end);
                std::thread::sleep(Duration::from_millis(10));
            }
            // Longer than a process waits that has no hope.
            std::thread::sleep(Duration::from_secs(2));
            let (before, worked) = (written(space, A), process_time());
            std::thread::sleep(Duration::from_secs(12));
            let worked = process_time() - worked;
            assert!(!waiting.is_finished() && written(space, A) == before && before <= 1 << 20);
            assert!(worked < Duration::from_secs(3), "{worked:?}");
            // A greater budget counts at once.
            assert!(space.set_writes(ctx(space), A, Writes::new(1 << 40, Period::Minute).expect("a budget")));
            assert_eq!(shown(space, A).1, SwapState::Good);
            waiting.join().expect("it goes on");
        });
        leave(space);
    });
    let Some(ran) = ran else { return };
    ran.assert_passed();
    let lines: Vec<_> = ran.err.lines().filter(|line| line.starts_with("ebb: ")).collect();
    let begin = "ebb: /var/tmp: the write budget of 1M/week is spent; it takes 256K more in ";
    assert!(lines.len() == 1 && lines[0].starts_with(begin), "{lines:?}");
    assert!(lines[0].ends_with("raise the budget with `ebb swapon PID file:DIR,writes=SIZE/PERIOD`"), "{lines:?}");
}

#[test]
fn a_family_shares_one_budget() {
    alone(|| {
        let (space, _fd) = space_in_tree(RAM, &little_and_much());
        let pages = Pages::new(space, RAM_PAGES, RANDOM);
        let before = written(space, A);
        assert!(before > 0 && before < FEW / 2, "{before}");
        let children: Vec<i32> = (0..2)
            .map(|_| {
                fork(space, || {
                    assert_eq!(shown(space, A).2, budget(FEW, Period::Week));
                    let own = Pages::new(space, RAM_PAGES, RANDOM);
                    assert!(written(space, A) > before && written(space, A) <= FEW);
                    assert!(on_disk(space, A) <= FEW + (64 << 10));
                    assert_sound(&own);
                    pages.check_all();
                })
            })
            .collect();
        children.into_iter().for_each(|child| assert_eq!(wait(child), 0));
        assert!((FEW - BATCH..=FEW).contains(&written(space, A)), "{}", written(space, A));
        assert_eq!(shown(space, A).1, SwapState::Held);
        // What is written now goes to the other device.
        let more = Pages::new(space, RAM_PAGES, RANDOM);
        assert!(written(space, A) <= FEW);
        assert_sound(&pages);
        assert_sound(&more);
    });
}

#[test]
fn cleaning_stays_within_the_budget() {
    alone(|| {
        let space = space_on(&[SwapSpec { bytes: 2 * RAM + RAM / 4, ..device(A, None) }], true);
        let mut pages = Pages::new(space, 2 * RAM_PAGES, RANDOM);
        let mut random = Random(7);
        let mut version = 10;
        while space.stats().cleaned_pages.load(Relaxed) == 0 && version < 40 * RAM_PAGES as u64 {
            pages.write(random.below(pages.versions.len()), version, RANDOM);
            version += 1;
        }
        assert!(space.stats().cleaned_pages.load(Relaxed) > 0);
        assert!(space.set_writes(ctx(space), A, Writes::new(BATCH, Period::Week).expect("a budget")));
        assert_eq!(space.swapon(ctx(space), &device(B, None), &mut || true), Ok(()));
        let before = written(space, A);
        (0..3 * RAM_PAGES).for_each(|n| pages.write(random.below(2 * RAM_PAGES), version + n as u64, RANDOM));
        assert!(written(space, A) - before <= BATCH, "{}", written(space, A) - before);
        assert!(written(space, B) > RAM);
        assert_sound(&pages);
    });
}

#[test]
fn a_swapoff_to_a_device_whose_budget_is_spent_says_so_and_loses_nothing() {
    alone(|| {
        let space = space_on(&[device(A, None)], true);
        let mut pages = Pages::new(space, 3 * RAM_PAGES, RANDOM);
        let spec = device(B, budget(FEW, Period::Week));
        assert_eq!(space.swapon(ctx(space), &spec, &mut || true), Ok(()));
        assert_eq!(swapoff(space, A), Err(SwapOffError::Held));
        assert!((FEW - BATCH..=FEW).contains(&written(space, B)), "{}", written(space, B));
        rewrite(&mut pages, 2);
        assert!(written(space, B) <= FEW);
        assert!(space.set_writes(ctx(space), B, Writes::new(1 << 40, Period::Day).expect("a budget")));
        assert_eq!(swapoff(space, A), Ok(()));
        assert_sound(&pages);
    });
}

#[test]
fn a_reclaim_to_devices_whose_budgets_are_spent_is_refused() {
    alone(|| {
        let space = space_on(&[device(A, budget(BATCH, Period::Week))], true);
        let pages = Pages::new(space, RAM_PAGES / 2, RANDOM);
        let demand = |pages| Reclaim { pages, to: ReclaimTo::Device, shared: false };
        let freed = space.reclaim(ctx(space), demand(RAM_PAGES / 4), &mut |_| true).expect("a device");
        assert!(freed < RAM_PAGES / 8, "{freed}");
        assert!(space.is_held(ctx(space)));
        assert_eq!(space.reclaim(ctx(space), demand(1), &mut |_| true), Err(NoDevice::Held));
        assert!(written(space, A) <= BATCH);
        assert_sound(&pages);
    });
}

#[test]
fn a_directory_has_one_budget_which_the_last_swapon_with_one_sets() {
    alone(|| {
        let space = space_on(&[device(A, budget(FEW, Period::Week))], true);
        let swapon = |spec: &SwapSpec<'_>| space.swapon(ctx(space), spec, &mut || true);
        assert_eq!(swapon(&device(A, budget(FEW, Period::Day))), Err(SwapOnError::Used));
        assert_eq!(shown(space, A).2, budget(FEW, Period::Week));
        // Without a budget of its own, the directory's counts.
        assert_eq!(swapoff(space, A), Ok(()));
        assert_eq!(swapon(&device(A, None)), Ok(()));
        assert_eq!(shown(space, A).2, budget(FEW, Period::Week));
        assert_eq!(swapoff(space, A), Ok(()));
        assert_eq!(swapon(&device(A, budget(FEW, Period::Hour))), Ok(()));
        assert_eq!(shown(space, A).2, budget(FEW, Period::Hour));
        assert!(!space.set_writes(ctx(space), B, Writes::new(FEW, Period::Hour).expect("a budget")));
    });
}

#[test]
fn where_no_budget_can_be_kept_a_device_with_one_is_refused() {
    alone(|| {
        let space = space_on(&[device(A, None)], true);
        (0..16u8).for_each(|i| _ = space.stats().writes.enter(&[b'/', b'a' + i]));
        assert_eq!(
            space.swapon(ctx(space), &device(B, budget(FEW, Period::Day)), &mut || true),
            Err(SwapOnError::NoPlace)
        );
        assert_eq!(space.swapon(ctx(space), &device(B, None), &mut || true), Ok(()));
        let pages = Pages::new(space, 3 * RAM_PAGES, RANDOM);
        assert!(shown(space, B).0 > 0 || shown(space, A).0 > 0);
        assert_sound(&pages);
    });
}
