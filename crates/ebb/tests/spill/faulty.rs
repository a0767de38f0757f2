//! Devices that fail: what they do not take, do not give back, change, tear, or keep waiting for. Nothing is lost that was not lost on
//! the device, nothing wrong is ever read, and the program goes on. `EBB_FORCE` forces fallbacks.

use crate::harness::alone::{
    COMPRESSIBLE, PAGE, Pages, RAM, RAM_PAGES, RANDOM, StopsAtEnd, alone, assert_sound, file_pages, fork, mixed,
    rewrite, run_alone, space_on, wait,
};
use crate::harness::faulty::{Device, Transfer, Verdict};
use crate::harness::folios::with_folios;
use crate::harness::{PATIENCE, Random, ctx, force, leave, space_with};
use ebb::stats::{Shared, Thp};
use ebb::{Fault, Space, SwapOffError, SwapOnError, SwapSpec, SwapState};
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const A: &CStr = c"/var/tmp";
const B: &CStr = c"/tmp";

/// A space on devices in these directories, in the order of their priorities, of which that of the first is faulty.
fn space_in(dirs: &[&CStr]) -> (&'static Space, Device) {
    let device = Device::new();
    let specs: Vec<_> =
        dirs.iter().map(|dir| SwapSpec { dir, bytes: 1 << 30, priority: None, ..SwapSpec::DEFAULT }).collect();
    let space = space_on(&specs, true);
    device.watch(space.fds().take(2).skip(1));
    (space, device)
}

fn stat(space: &Space, of: fn(&Shared) -> &AtomicU64) -> u64 {
    of(space.stats()).load(Relaxed)
}

fn retired(space: &Space) -> u64 {
    stat(space, |stats| &stats.retired_slots)
}

/// The devices' directories, and whether they are closed.
fn devices(space: &Space) -> Vec<(String, bool)> {
    let mut all = Vec::new();
    space.devices(|device| all.push((device.dir.to_string_lossy().into_owned(), device.state == SwapState::Closed)));
    all
}

fn used(space: &Space, dir: &CStr) -> u64 {
    let mut bytes = 0;
    space.devices(|device| bytes += if device.dir == dir { device.used_bytes } else { 0 });
    bytes
}

fn swapoff(space: &'static Space, dir: &CStr) -> Result<(), SwapOffError> {
    space.swapoff(ctx(space), dir, &mut |_| true)
}

/// Runs `case` in a process of its own, which must succeed and say so many lines on standard error, each with these texts.
fn says(wanted: &[&[&str]], case: impl FnOnce()) {
    let Some(ran) = run_alone(case) else { return };
    ran.assert_passed();
    let lines: Vec<_> = ran.err.lines().filter(|line| line.starts_with("ebb: ")).collect();
    let is_said = |texts: &[&str]| lines.iter().any(|line| texts.iter().all(|text| line.contains(text)));
    wanted.iter().for_each(|texts| assert!(is_said(texts), "{texts:?} is not in {lines:?}"));
    assert_eq!(lines.len(), wanted.len(), "{lines:?}");
}

/// Touches each page by itself. Those that cannot be read; all others have their content.
fn unreadable(pages: &Pages) -> Vec<usize> {
    let fault = |page: &usize| pages.space.fault(ctx(pages.space), pages.addr(*page), false);
    let is_lost = |page: &usize| {
        let is_lost = fault(page) == Fault::Unreadable;
        if !is_lost {
            pages.check(*page);
        }
        is_lost
    };
    (0..pages.len()).filter(is_lost).collect()
}

/// Writes some pages anew that compress.
fn rewrite_some(pages: &mut Pages, seed: u64) {
    let mut random = Random(seed);
    for _ in 0..pages.len() / 8 {
        let page = random.below(pages.len());
        pages.write(page, seed << 32 | page as u64, COMPRESSIBLE);
    }
}

/// Reads of the slot at `offset` fail.
fn unreadable_at(offset: u64) -> impl FnMut(Transfer) -> Verdict + Send {
    move |transfer| match !transfer.is_write && transfer.touches(offset) {
        true => Verdict::Fail(libc::EIO),
        false => Verdict::Pass,
    }
}

/// Brings in some page that a file has, and says where its content was there.
fn offset_of_some(pages: &Pages, device: &Device, from: usize) -> (usize, u64) {
    let read = Arc::new(AtomicU64::new(u64::MAX));
    let reads = read.clone();
    device.rule(move |transfer| {
        if transfer.is_write {
            return Verdict::Pass;
        }
        // If a whole run does not come, the page that was touched is read alone.
        if transfer.len == PAGE {
            reads.store(transfer.offset, SeqCst);
        }
        Verdict::Fail(libc::EIO)
    });
    let is_lost = |page: &usize| pages.space.fault(ctx(pages.space), pages.addr(*page), false) == Fault::Unreadable;
    let page = (from..pages.len()).find(is_lost).expect("a page in the file");
    device.mend();
    (page, read.load(SeqCst))
}

/// All is as it was written, and the books are right, after something was reported.
fn assert_whole(pages: &Pages) {
    pages.check_all();
    assert_eq!(pages.space.validate(), Ok(()));
}

#[test]
fn what_the_device_does_not_take_goes_elsewhere_and_its_slots_are_never_used_again() {
    alone(|| {
        let (space, device) = space_in(&[A]);
        let (bad, again) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let (bads, agains) = (bad.clone(), again.clone());
        device.rule(move |transfer| {
            let mut bad = bads.lock().expect("no other fails");
            let overlaps = |other: &Transfer| {
                transfer.offset < other.offset + other.len as u64
                    && other.offset < transfer.offset + transfer.len as u64
            };
            if transfer.is_write && bad.iter().any(overlaps) {
                agains.store(true, SeqCst);
            }
            // Fewer than close it.
            if transfer.is_write && bad.len() < 6 {
                bad.push(transfer);
                return Verdict::Fail(libc::EIO);
            }
            Verdict::Pass
        });
        let mut pages = Pages::new(space, 3 * RAM_PAGES, RANDOM);
        (1..4).for_each(|seed| rewrite(&mut pages, seed));
        let lost: usize = bad.lock().expect("no other fails").iter().map(|transfer| transfer.len / PAGE).sum();
        assert!(lost > 0 && !again.load(SeqCst));
        assert_eq!((retired(space), stat(space, |stats| &stats.device_write_errors)), (lost as u64, 6));
        assert_eq!(devices(space), [("/var/tmp".into(), false)]);
        assert!(file_pages(space) > RAM_PAGES as u64);
        assert_sound(&pages);
    });
}

#[test]
fn a_device_that_takes_nothing_is_closed_and_the_program_goes_on_in_the_pool() {
    let text = "/var/tmp: 8 writes to the spill file failed within 10 minutes, the last with EIO";
    says(&[&[text]], || {
        let (space, device) = space_in(&[A]);
        device.rule(|transfer| if transfer.is_write { Verdict::Fail(libc::EIO) } else { Verdict::Pass });
        let noise = Pages::new(space, RAM_PAGES / 4, RANDOM);
        let mut pages = Pages::new(space, 2 * RAM_PAGES, COMPRESSIBLE);
        // After each failure the pool is alone for a second.
        let end = Instant::now() + PATIENCE;
        let mut seed = 0;
        while !devices(space)[0].1 {
            assert!(Instant::now() < end, "{} writes", device.nr_writes());
            seed += 1;
            rewrite_some(&mut pages, seed);
        }
        let writes = device.nr_writes();
        // Another thread may have been at a write, too.
        assert!((8..=10).contains(&writes), "{writes} writes");
        (0..pages.len()).step_by(3).for_each(|page| pages.write(page, 7, COMPRESSIBLE));
        assert_eq!((device.nr_writes(), file_pages(space)), (writes, 0));
        assert_sound(&noise);
        assert_sound(&pages);
    });
}

#[test]
fn a_closed_device_is_read_taken_away_and_replaced() {
    let text = "remove the device with `ebb swapoff`";
    says(&[&[text]], || {
        let (space, device) = space_in(&[A, B]);
        let mut pages = Pages::new(space, 2 * RAM_PAGES, RANDOM);
        assert!(used(space, A) > 0 && used(space, B) == 0);
        device.rule(|transfer| if transfer.is_write { Verdict::Fail(libc::EIO) } else { Verdict::Pass });
        rewrite(&mut pages, 3);
        assert_eq!(devices(space), [("/var/tmp".into(), true), ("/tmp".into(), false)]);
        assert!(used(space, A) > 0 && used(space, B) > 0);
        assert_sound(&pages);
        let spec = SwapSpec { dir: A, bytes: 1 << 30, priority: None, ..SwapSpec::DEFAULT };
        assert_eq!(space.swapon(ctx(space), &spec, &mut || true), Err(SwapOnError::Used));
        assert_eq!(swapoff(space, A), Ok(()));
        // A new file there is a new device.
        assert_eq!(space.swapon(ctx(space), &spec, &mut || true), Ok(()));
        assert_eq!(devices(space), [("/var/tmp".into(), false), ("/tmp".into(), false)]);
        rewrite(&mut pages, 4);
        assert_sound(&pages);
    });
}

#[test]
fn a_file_system_that_becomes_read_only_closes_the_device_at_once() {
    let text = "/var/tmp: its file system is read-only now (EROFS)";
    says(&[&[text]], || {
        let (space, device) = space_in(&[A, B]);
        let mut pages = Pages::new(space, 2 * RAM_PAGES, RANDOM);
        let refused = Arc::new(AtomicU64::new(0));
        let counted = refused.clone();
        device.rule(move |transfer| {
            if !transfer.is_write {
                return Verdict::Pass;
            }
            counted.fetch_add(1, SeqCst);
            Verdict::Fail(libc::EROFS)
        });
        rewrite(&mut pages, 3);
        // Each thread may have been at a write.
        assert!((1..=2).contains(&refused.load(SeqCst)), "{refused:?}");
        assert_eq!((retired(space), devices(space)[0].1), (0, true));
        assert_sound(&pages);
    });
}

#[test]
fn a_full_disk_or_quota_costs_no_slot() {
    alone(|| {
        let (space, device) = space_in(&[A, B]);
        let mut pages = Pages::new(space, 2 * RAM_PAGES, RANDOM);
        for (seed, errno) in (1..).zip([libc::ENOSPC, libc::EDQUOT]) {
            device.rule(move |transfer| if transfer.is_write { Verdict::Fail(errno) } else { Verdict::Pass });
            rewrite(&mut pages, seed);
            device.mend();
            rewrite(&mut pages, seed + 10);
            assert_sound(&pages);
        }
        assert!(device.nr_ruled() > 0);
        assert_eq!((retired(space), devices(space)), (0, vec![("/var/tmp".into(), false), ("/tmp".into(), false)]));
    });
}

#[test]
fn errors_that_pass_are_waited_for() {
    alone(|| {
        let (space, device) = space_in(&[A]);
        let mut pages = mixed(space);
        let mut random = Random(5);
        device.rule(move |_| match random.below(8) {
            0 => Verdict::Fail(libc::EAGAIN),
            1 => Verdict::Fail(libc::ENOMEM),
            2 => Verdict::Fail(libc::EINTR),
            _ => Verdict::Pass,
        });
        rewrite(&mut pages, 3);
        // What lasts is no fault of the device all the same.
        device.rule(|transfer| if transfer.is_write { Verdict::Fail(libc::ENOMEM) } else { Verdict::Pass });
        let more = Pages::new(space, RAM_PAGES / 8, COMPRESSIBLE);
        device.mend();
        assert!(device.nr_ruled() > 0);
        assert_eq!((retired(space), devices(space)), (0, vec![("/var/tmp".into(), false)]));
        assert_sound(&more);
        assert_sound(&pages);
    });
}

#[test]
fn short_transfers_go_on_where_they_ended() {
    alone(|| {
        let (space, device) = space_in(&[A]);
        let mut pages = mixed(space);
        let mut random = Random(7);
        device.rule(move |transfer| match random.below(4) {
            // Whole blocks, but not always whole slots.
            0 => Verdict::Short((random.below(transfer.len / 512) + 1) * 512),
            1 => Verdict::Short(PAGE),
            _ => Verdict::Pass,
        });
        (3..6).for_each(|seed| rewrite(&mut pages, seed));
        assert!(device.nr_ruled() > 100, "{}", device.nr_ruled());
        assert_eq!((retired(space), stat(space, |stats| &stats.device_write_errors)), (0, 0));
        assert_sound(&pages);
    });
}

#[test]
fn a_torn_write_loses_nothing_and_retires_only_what_was_not_written() {
    alone(|| {
        let (space, device) = space_in(&[A]);
        let left = Arc::new(AtomicU64::new(6));
        let (lefts, mut is_next) = (left.clone(), None);
        device.rule(move |transfer: Transfer| {
            // After a part of a run comes the rest of it, and that fails.
            if transfer.is_write && is_next.take() == Some(transfer.offset) {
                lefts.fetch_sub(1, SeqCst);
                return Verdict::Torn(512, libc::EIO);
            }
            if transfer.is_write && transfer.len >= 4 * PAGE && lefts.load(SeqCst) > 0 {
                is_next = Some(transfer.offset + 2 * PAGE as u64);
                return Verdict::Short(2 * PAGE);
            }
            Verdict::Pass
        });
        let mut pages = Pages::new(space, 3 * RAM_PAGES, RANDOM);
        rewrite(&mut pages, 3);
        assert_eq!(left.load(SeqCst), 0);
        let lost = retired(space);
        assert!(lost > 0 && lost.is_multiple_of(2), "{lost}");
        assert_eq!(stat(space, |stats| &stats.device_write_errors), 6);
        assert_sound(&pages);
    });
}

#[test]
fn a_page_that_cannot_be_read_is_unreadable_alone_and_comes_once_the_error_has_passed() {
    let text =
        ["/var/tmp, offset ", " of the spill file: the read fails with EIO; check the disk; the program gets SIGBUS"];
    says(&[&text, &text], || {
        let (space, device) = space_in(&[A]);
        let pages = Pages::new(space, 3 * RAM_PAGES, RANDOM);
        let (page, offset) = offset_of_some(&pages, &device, 0);
        device.rule(unreadable_at(offset));
        // It stays where it is, whatever leaves memory meanwhile, and is looked for again at each touch.
        assert_eq!(unreadable(&pages), [page]);
        assert_eq!(
            (stat(space, |stats| &stats.unreadable_pages), devices(space)),
            (2, vec![("/var/tmp".into(), false)])
        );
        device.mend();
        assert_whole(&pages);
    });
}

#[test]
fn of_a_run_that_cannot_be_read_as_a_whole_all_other_pages_come() {
    let text = ["/var/tmp, offset ", "EIO"];
    says(&[&text, &text], || {
        let (space, device) = space_in(&[A]);
        let pages = Pages::new(space, 3 * RAM_PAGES, RANDOM);
        let (page, offset) = offset_of_some(&pages, &device, pages.len() / 2);
        device.rule(unreadable_at(offset));
        // In order, with read-ahead, from which what cannot be read is left out without a word.
        for other in (0..pages.len()).filter(|other| *other != page) {
            pages.check(other);
        }
        assert!(device.nr_ruled() > 1);
        assert_eq!(stat(space, |stats| &stats.unreadable_pages), 1);
        assert_eq!(space.fault(ctx(space), pages.addr(page), true), Fault::Unreadable);
        device.mend();
        assert_whole(&pages);
    });
}

#[test]
fn read_ahead_that_fails_reports_nothing() {
    says(&[], || {
        let (space, device) = space_in(&[A]);
        let pages = Pages::new(space, 3 * RAM_PAGES, RANDOM);
        // More than one slot at a time is only read for others than the one that is touched.
        device.rule(|transfer| match !transfer.is_write && transfer.len > PAGE {
            true => Verdict::Fail(libc::EIO),
            false => Verdict::Pass,
        });
        (0..2).for_each(|_| pages.check_all());
        let willneed = [pages.addr(0) as u64, (pages.len() * PAGE) as u64, libc::MADV_WILLNEED as u64, 0, 0, 0];
        assert_eq!(space.madvise(ctx(space), willneed), 0);
        assert!(device.nr_ruled() > 10, "{}", device.nr_ruled());
        assert_eq!(devices(space), [("/var/tmp".into(), false)]);
        assert_sound(&pages);
    });
}

#[test]
fn content_that_the_disk_changed_is_reported_and_never_taken() {
    let text = ["/var/tmp, offset ", "the content was changed"];
    says(&[&text, &text, &text, &text], || {
        let (space, device) = space_in(&[A]);
        let left = Arc::new(AtomicU64::new(4));
        let lefts = left.clone();
        device.rule(move |transfer| {
            let is_next = transfer.is_write && transfer.len == PAGE && lefts.load(SeqCst) > 0;
            if is_next {
                lefts.fetch_sub(1, SeqCst);
            }
            if is_next { Verdict::Change } else { Verdict::Pass }
        });
        let mut pages = Pages::new(space, 2 * RAM_PAGES, RANDOM);
        // Pages that leave one by one.
        let end = Instant::now() + PATIENCE;
        let mut random = Random(3);
        while left.load(SeqCst) > 0 {
            assert!(Instant::now() < end);
            let page = random.below(pages.len());
            if space.fault(ctx(space), pages.addr(page), true) != Fault::Unreadable {
                pages.write(page, random.0, RANDOM);
            }
        }
        device.mend();
        let reported = stat(space, |stats| &stats.unreadable_pages);
        let lost = unreadable(&pages);
        assert_eq!((lost.len() as u64 + reported, stat(space, |stats| &stats.unreadable_pages)), (4, 4), "{lost:?}");
        assert_eq!(space.validate(), Ok(()));
        // A page that is given up and used anew is a new one.
        for page in lost {
            let call = [pages.addr(page) as u64, PAGE as u64, libc::MADV_DONTNEED as u64, 0, 0, 0];
            assert_eq!(space.madvise(ctx(space), call), 0);
            pages.write(page, 5, RANDOM);
        }
        assert_whole(&pages);
    });
}

#[test]
fn what_is_changed_on_its_way_in_comes_with_the_next_read() {
    let text = ["/var/tmp, offset ", "the content was changed"];
    says(&[&text], || {
        let (space, device) = space_in(&[A]);
        let pages = Pages::new(space, 2 * RAM_PAGES, RANDOM);
        let (page, offset) = {
            let changed = Arc::new(AtomicU64::new(u64::MAX));
            let changes = changed.clone();
            device.rule(move |transfer| {
                let is_first = !transfer.is_write && transfer.len == PAGE && changes.load(SeqCst) == u64::MAX;
                if is_first {
                    changes.store(transfer.offset, SeqCst);
                }
                if is_first { Verdict::Change } else { Verdict::Pass }
            });
            let end = Instant::now() + PATIENCE;
            let mut lost = unreadable(&pages);
            // Where the first read was one that nobody waited for, nothing is lost, and another one is changed.
            while lost.is_empty() {
                assert!(Instant::now() < end);
                changed.store(u64::MAX, SeqCst);
                lost = unreadable(&pages);
            }
            assert_eq!(lost.len(), 1);
            (lost[0], changed.load(SeqCst))
        };
        assert_ne!(offset, u64::MAX);
        pages.check(page);
        assert_whole(&pages);
    });
}

#[test]
fn a_call_whose_buffer_cannot_be_brought_back_fails_and_names_the_device() {
    let (first, second) =
        (["/var/tmp, offset ", "SIGBUS"], ["/var/tmp, offset ", "the system call that needs it fails"]);
    says(&[&first, &second], || {
        let (space, device) = space_in(&[A]);
        let pages = Pages::new(space, 2 * RAM_PAGES, RANDOM);
        let (page, offset) = offset_of_some(&pages, &device, 0);
        device.rule(unreadable_at(offset));
        assert!(!space.bring_in(ctx(space), pages.addr(page), PAGE));
        device.mend();
        assert!(space.bring_in(ctx(space), pages.addr(page), PAGE));
        assert_whole(&pages);
    });
}

#[test]
fn a_swapoff_saves_all_that_can_be_read_and_completes_once_the_rest_can() {
    let text = ["/var/tmp, offset "];
    says(&[&text, &text], || {
        let (space, device) = space_in(&[A, B]);
        let pages = Pages::new(space, 3 * RAM_PAGES, RANDOM);
        let (page, offset) = offset_of_some(&pages, &device, 0);
        device.rule(unreadable_at(offset));
        assert!(matches!(swapoff(space, A), Err(SwapOffError::Unreadable(_))));
        assert_eq!(used(space, A), PAGE as u64);
        assert_eq!(devices(space), [("/var/tmp".into(), false), ("/tmp".into(), false)]);
        assert_eq!(unreadable(&pages), [page]);
        assert_eq!(space.validate(), Ok(()));
        device.mend();
        assert_eq!(swapoff(space, A), Ok(()));
        assert_whole(&pages);
    });
}

#[test]
fn a_swapoff_to_a_device_that_fails_loses_nothing() {
    let text = ["/tmp: 8 writes"];
    says(&[&text], || {
        let (space, device) = space_in(&[A, B]);
        let pages = Pages::new(space, 2 * RAM_PAGES, RANDOM);
        device.watch(space.fds().skip(2));
        device.rule(|transfer| if transfer.is_write { Verdict::Fail(libc::EIO) } else { Verdict::Pass });
        let end = Instant::now() + PATIENCE;
        while !devices(space)[1].1 {
            assert!(Instant::now() < end);
            assert_eq!(swapoff(space, A), Err(SwapOffError::NoRoom));
        }
        assert_eq!(devices(space), [("/var/tmp".into(), false), ("/tmp".into(), true)]);
        assert_sound(&pages);
    });
}

#[test]
fn a_write_back_that_fails_leaves_the_content_in_the_pool() {
    alone(|| {
        let (space, device) = space_in(&[A]);
        let mut pages = Pages::new(space, 4 * RAM_PAGES, COMPRESSIBLE);
        let mut left = 6;
        device.rule(move |transfer| {
            let fails = transfer.is_write && left > 0;
            left -= i32::from(fails);
            if fails { Verdict::Fail(libc::EIO) } else { Verdict::Pass }
        });
        for seed in 1..5 {
            rewrite_some(&mut pages, seed);
            let more = Pages::new(space, RAM_PAGES, COMPRESSIBLE);
            more.check_all();
        }
        assert_eq!(stat(space, |stats| &stats.device_write_errors), 6);
        assert!(stat(space, |stats| &stats.writeback_pages) > 0);
        assert_sound(&pages);
    });
}

#[test]
fn cleaning_that_fails_leaves_everything_where_it_is() {
    alone(|| {
        let (space, device) = space_in(&[A]);
        let mut pages = Pages::new(space, 6 * RAM_PAGES, RANDOM);
        let mut random = Random(9);
        // Reads and writes of cleaning fail as often as all others. Read errors that pass are not seen by the program.
        let mut left = 6;
        device.rule(move |transfer| match random.below(16) {
            0 if transfer.is_write && left > 0 => {
                left -= 1;
                Verdict::Fail(libc::EIO)
            }
            1 => Verdict::Fail(libc::ENOMEM),
            2 => Verdict::Short(PAGE),
            // Of single slots, a fault may ask.
            3 if !transfer.is_write && transfer.len > PAGE => Verdict::Fail(libc::EIO),
            _ => Verdict::Pass,
        });
        for seed in 1..6 {
            rewrite(&mut pages, seed);
        }
        assert_sound(&pages);
    });
}

#[test]
fn folios_that_do_not_come_whole_come_page_by_page() {
    alone(|| {
        let device = Device::new();
        let (space, is_on) = with_folios(Thp::Always);
        if !is_on {
            eprintln!("there are no folios here: not tested");
            return;
        }
        device.watch(space.fds().take(2).skip(1));
        let pages = Pages::aligned(space, 3 * crate::harness::folios::RAM as usize / 2 / PAGE, RANDOM);
        let mut random = Random(11);
        device.rule(move |transfer| match random.below(3) {
            0 if !transfer.is_write && transfer.len > PAGE => Verdict::Fail(libc::EIO),
            _ => Verdict::Pass,
        });
        (0..2).for_each(|_| pages.check_all());
        assert!(device.nr_ruled() > 0);
        assert_sound(&pages);
    });
}

#[test]
fn a_child_that_cannot_read_its_parents_file_loses_nothing_of_its_own_and_the_parent_nothing_at_all() {
    says(&[&["/var/tmp, offset ", "EIO"]], || {
        let (space, device) = space_in(&[A]);
        let mut pages = Pages::new(space, 2 * RAM_PAGES, RANDOM);
        let mut failed = None;
        device.rule(move |transfer| {
            let is_it = transfer.by_child && !transfer.is_write && transfer.len == PAGE && transfer.offset < 1 << 30;
            if is_it && *failed.get_or_insert(transfer.offset) == transfer.offset {
                return Verdict::Fail(libc::EIO);
            }
            Verdict::Pass
        });
        let child = fork(space, || {
            let own = Pages { space, at: pages.at, versions: pages.versions.clone() };
            assert_eq!(unreadable(&own).len(), 1);
            assert_eq!(devices(space), [("/var/tmp".into(), false)]);
            assert_eq!(space.validate(), Ok(()));
            std::mem::forget(own);
        });
        rewrite(&mut pages, 4);
        assert_eq!(wait(child), 0);
        assert_whole(&pages);
    });
}

#[test]
fn a_child_makes_no_file_where_its_parents_is_closed_and_reads_that() {
    says(&[&["/var/tmp: its file system"]], || {
        let (space, device) = space_in(&[A, B]);
        let mut pages = Pages::new(space, 2 * RAM_PAGES, RANDOM);
        device.rule(|transfer| if transfer.is_write { Verdict::Fail(libc::EROFS) } else { Verdict::Pass });
        rewrite(&mut pages, 2);
        assert!(devices(space)[0].1);
        device.mend();
        let child = fork(space, || {
            let mut own = Pages { space, at: pages.at, versions: pages.versions.clone() };
            own.check_all();
            rewrite(&mut own, 5);
            let all: Vec<_> = devices(space);
            assert_eq!(all, [("/tmp".into(), false), ("/var/tmp".into(), false)]);
            assert_sound(&own);
            std::mem::forget(own);
        });
        rewrite(&mut pages, 4);
        assert_eq!(wait(child), 0);
        assert_sound(&pages);
    });
}

#[test]
fn a_file_that_does_not_give_back_what_it_took_is_asked_last() {
    let text = ["/var/tmp, offset "];
    says(&[&text[..]; 9], || {
        let (space, device) = space_in(&[A, B]);
        let mut pages = Pages::new(space, 2 * RAM_PAGES, RANDOM);
        assert_eq!(used(space, B), 0);
        device.rule(|transfer| if transfer.is_write { Verdict::Pass } else { Verdict::Fail(libc::EIO) });
        let is_lost = |page: &usize| space.fault(ctx(space), pages.addr(*page), false) == Fault::Unreadable;
        assert_eq!((0..pages.len()).filter(is_lost).take(9).count(), 9);
        device.mend();
        let writes = device.nr_writes();
        rewrite(&mut pages, 2);
        assert!(used(space, B) > 0 && device.nr_writes() <= writes + 4, "{} {writes}", device.nr_writes());
        assert_eq!(devices(space), [("/var/tmp".into(), false), ("/tmp".into(), false)]);
        assert_whole(&pages);
    });
}

#[test]
fn faults_of_many_kinds_beside_threads_swapoffs_and_forks_lose_nothing() {
    alone(|| {
        let (space, device) = space_in(&[A, B]);
        device.watch(space.fds().skip(1));
        let mut random = Random(13);
        let mut faulty = 0;
        device.rule(move |transfer| match random.below(40) {
            0 if transfer.is_write && faulty < 7 => {
                faulty += 1;
                Verdict::Fail(libc::EIO)
            }
            // A file does not grow for a second after each, so that more of them would leave time for little else.
            1 if transfer.is_write && random.below(10) == 0 => Verdict::Fail(libc::ENOSPC),
            2 => Verdict::Fail(libc::EINTR),
            3 => Verdict::Fail(libc::ENOMEM),
            4 if !transfer.by_child => Verdict::Short((random.below(transfer.len / 512) + 1) * 512),
            5 if transfer.is_write && !transfer.by_child && random.below(10) == 0 => Verdict::Torn(512, libc::ENOSPC),
            6 if !transfer.is_write && transfer.len > PAGE => Verdict::Fail(libc::EIO),
            _ => Verdict::Pass,
        });
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for seed in 1..=2u64 {
                let stop = &stop;
                scope.spawn(move || {
                    let mut pages = mixed(space);
                    for round in 1.. {
                        if stop.load(Relaxed) {
                            break;
                        }
                        rewrite(&mut pages, round * 8 + seed);
                    }
                    pages.check_all();
                    drop(pages);
                    leave(space);
                });
            }
            let _stop = StopsAtEnd(&stop);
            let pages = mixed(space);
            let end = Instant::now() + Duration::from_secs(5);
            while Instant::now() < end {
                let child = fork(space, || (0..pages.len()).step_by(11).for_each(|page| pages.check(page)));
                let _ = swapoff(space, B);
                let _ = space.swapon(
                    ctx(space),
                    &SwapSpec { dir: B, bytes: 1 << 30, priority: Some(1), ..SwapSpec::DEFAULT },
                    &mut || true,
                );
                device.watch(space.fds().skip(1));
                pages.check_all();
                assert_eq!(wait(child), 0);
            }
        });
        assert!(device.nr_ruled() > 50, "{}", device.nr_ruled());
        assert_eq!(space.validate(), Ok(()));
        assert_eq!(space.stats().error_bytes()[0], 0);
    });
}

#[test]
fn while_a_write_hangs_others_go_on_elsewhere_and_nobody_closes_the_gate() {
    alone(|| {
        // What two threads have in hand must leave room in staging for what others store.
        const MUCH: u64 = 4 * RAM;
        const MANY: usize = 4 * RAM_PAGES;
        let device = Device::new();
        let swap = [A, B].map(|dir| SwapSpec { dir, bytes: 1 << 30, priority: None, ..SwapSpec::DEFAULT });
        let config = ebb::Config { ram_bytes: MUCH, swap: &swap, stats: None, stats_fd: None, force: force() };
        let space = space_with(&config);
        device.watch(space.fds().take(2).skip(1));
        let pages = Pages::new(space, MANY, RANDOM);
        assert_eq!(used(space, B), 0);
        device.rule(|transfer| if transfer.is_write { Verdict::Hang } else { Verdict::Pass });
        std::thread::scope(|scope| {
            let hanging = scope.spawn(|| {
                drop(Pages::new(space, MANY, RANDOM));
                leave(space);
            });
            device.wait_for_hanging();
            let end = Instant::now() + PATIENCE;
            while state(space, A) != SwapState::Stuck {
                assert!(Instant::now() < end);
                std::thread::sleep(Duration::from_millis(10));
            }
            // Everything else is on the other device.
            let more = Pages::new(space, MANY, RANDOM);
            assert!(used(space, B) > 0);
            more.check_all();
            let spec = SwapSpec { dir: c"/dev/shm", bytes: 1 << 30, priority: None, ..SwapSpec::DEFAULT };
            assert_eq!(space.swapon(ctx(space), &spec, &mut || true), Err(SwapOnError::Stuck));
            assert_eq!(swapoff(space, A), Err(SwapOffError::Stuck));
            drop_without_gate(more);
            device.go_on();
            hanging.join().expect("it goes on");
        });
        assert_eq!(state(space, A), SwapState::Good);
        assert_eq!(swapoff(space, A), Ok(()));
        assert_sound(&pages);
    });
}

/// Leaves the memory mapped: to unmap it may take the gate.
fn drop_without_gate(pages: Pages) {
    std::mem::forget(pages);
}

#[test]
fn a_device_that_does_not_answer_for_long_is_waited_for() {
    alone(|| {
        let (space, device) = space_in(&[A]);
        device.rule(|transfer| if transfer.is_write { Verdict::Hang } else { Verdict::Pass });
        std::thread::scope(|scope| {
            scope.spawn(|| {
                device.wait_for_hanging();
                // Longer than a process that can free nothing waits before it ends.
                std::thread::sleep(Duration::from_secs(14));
                device.go_on();
            });
            assert_sound(&Pages::new(space, 2 * RAM_PAGES, RANDOM));
        });
    });
}

#[test]
fn a_directory_that_is_not_there_is_no_device_and_no_probe_is_left_in_one_that_is() {
    alone(|| {
        let (space, _device) = space_in(&[A]);
        let spec = |dir| SwapSpec { dir, bytes: 1 << 30, priority: None, ..SwapSpec::DEFAULT };
        let swapon = |dir| space.swapon(ctx(space), &spec(dir), &mut || true);
        assert_eq!(swapon(c"/var/tmp/ebb-no-such"), Err(SwapOnError::Create(ebb::uapi::Errno(libc::ENOENT))));
        assert_eq!(swapon(c"/dev/null"), Err(SwapOnError::Create(ebb::uapi::Errno(libc::ENOTDIR))));
        assert_eq!(swapon(B), Ok(()));
        let names = std::fs::read_dir("/tmp")
            .expect("a directory")
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        assert_eq!(names.filter(|name| name.starts_with(".ebb-probe")).count(), 0);
    });
}

/// The state of a device.
fn state(space: &Space, dir: &CStr) -> SwapState {
    let mut state = None;
    space.devices(|device| state = if device.dir == dir { Some(device.state) } else { state });
    state.expect("a device")
}
