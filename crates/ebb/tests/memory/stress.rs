//! Everything at once: threads that snapshot, write, let the kernel write, move, pin and unmap, beside devices that come and
//! go and, in one test, forks. `EBB_STRESS_SECONDS` says for how long; `EBB_FORCE` forces fallbacks.

use crate::harness::alone::{COMPRESSIBLE, PAGE, Pages, RANDOM, StopsAtEnd, alone, fork, space_on, stress_time, wait};
use crate::harness::{Random, ctx, leave, map, word_of};
use ebb::{PinResult, SnapshotError, Space, SwapSpec};
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

const DIRS: [&CStr; 2] = [c"/var/tmp", c"/tmp"];

fn device(dir: &'static CStr, mib: u64, priority: usize) -> SwapSpec<'static> {
    SwapSpec { dir, bytes: mib << 20, priority: Some(priority as i16), ..SwapSpec::DEFAULT }
}

fn view(of: &Pages) -> Option<Pages> {
    match of.space.snapshot(ctx(of.space), of.at as usize, of.len() * PAGE) {
        Ok(at) => Some(Pages { space: of.space, at: at as *mut u8, versions: of.versions.clone() }),
        Err(SnapshotError::NoRoom | SnapshotError::TooMany) => None,
        Err(error) => panic!("{error:?}"),
    }
}

/// The kernel writes a page, through a pipe.
fn write_by_the_kernel(pages: &mut Pages, page: usize, version: u64, kind: u64, ends: [i32; 2]) {
    let (space, ctx, at) = (pages.space, ctx(pages.space), pages.addr(page));
    let content: Vec<u64> = (0..512).map(|i| word_of(page, version, kind, i)).collect();
    space.pin_begin(ctx, 1);
    assert_eq!(space.pin_add(ctx, at, PAGE), PinResult::Ok);
    // SAFETY: the content lives through the call; the page is managed memory of this test, and pinned.
    unsafe {
        assert_eq!(libc::write(ends[1], content.as_ptr().cast(), PAGE), PAGE as isize);
        assert_eq!(libc::read(ends[0], at as *mut _, PAGE), PAGE as isize);
    }
    space.pin_end(ctx);
    pages.versions[page] = (version, kind);
}

fn move_elsewhere(pages: &mut Pages) {
    const MAYMOVE_FIXED: u64 = 3;
    let len = (pages.len() * PAGE) as u64;
    let to = map(pages.space, len as usize) as u64;
    let moved = pages.space.mremap(ctx(pages.space), [pages.at as u64, len, len, MAYMOVE_FIXED, to, 0]);
    assert_eq!(moved as u64, to);
    pages.at = to as *mut u8;
}

/// One thread's part, on pages of its own and views of them.
fn use_memory(space: &'static Space, seed: u64, stop: &AtomicBool) {
    let mut random = Random(seed);
    let mut all = vec![Pages::new(space, 900, 1 + seed % 3)];
    let mut ends = [0; 2];
    // SAFETY: the kernel writes two numbers.
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    let mut version = 1 << 20;
    while !stop.load(Relaxed) {
        let nth = random.below(all.len());
        let has_more = all.len() > 1;
        let pages = &mut all[nth];
        match random.below(10) {
            0 | 1 => {
                let seen = view(pages);
                all.extend(seen);
            }
            2 | 3 if has_more => {
                pages.check_all();
                all.remove(nth);
            }
            4 => {
                for _ in 0..200 {
                    version += 1;
                    let page = random.below(pages.len());
                    pages.write(page, version, random.below(7) as u64);
                }
            }
            5 => {
                let first = random.below(700);
                (first..first + 200).for_each(|page| pages.check(page));
            }
            6 => pages.check_all(),
            7 => {
                for _ in 0..20 {
                    version += 1;
                    let page = random.below(pages.len());
                    write_by_the_kernel(pages, page, version, random.below(7) as u64, ends);
                }
            }
            8 => move_elsewhere(pages),
            _ => {
                let at = pages.addr(3);
                space.exclude(ctx(space), at, 5 * PAGE);
                space.munlock(ctx(space), [at as u64, 5 * PAGE as u64, 0, 0, 0, 0]);
            }
        }
        if all.len() > 5 {
            all.remove(0);
        }
    }
    all.iter().for_each(Pages::check_all);
    drop(all);
    leave(space);
}

/// A child checks what it has, changes its part, and makes a view of its own.
fn child(space: &'static Space, pages: &Pages, seen: Option<&Pages>) {
    let mut own = Pages { space, at: pages.at, versions: pages.versions.clone() };
    own.check_all();
    (0..300).for_each(|page| own.write(page * 2, 9999, RANDOM));
    if let Some(mine) = view(&own) {
        own.write(1, 4, RANDOM);
        mine.check_all();
    }
    seen.into_iter().for_each(Pages::check_all);
    own.check_all();
    assert_eq!(space.stats().error_bytes()[0], 0);
    std::mem::forget(own);
}

fn run(mib: u64, forks: bool) {
    // One device stays: a process whose only device went may rightly be out of swap when it writes more.
    let space = space_on(&[device(DIRS[0], mib, 5), device(c"/dev/shm", 256, 0)], true);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = StopsAtEnd(&stop);
        for seed in 1..=3 {
            let stop = &stop;
            scope.spawn(move || use_memory(space, 77 + 13 * seed, stop));
        }
        let mut random = Random(99);
        let mut children = Vec::new();
        let mut own = forks.then(|| Pages::new(space, 600, COMPRESSIBLE));
        let end = Instant::now() + stress_time();
        while Instant::now() < end {
            let _ = space.swapon(ctx(space), &device(DIRS[random.below(2)], mib, 1 + random.below(7)), &mut || true);
            std::thread::sleep(Duration::from_millis(30));
            let _ = space.swapoff(ctx(space), DIRS[random.below(2)], &mut |_| true);
            let Some(own) = &mut own else { continue };
            let seen = view(own);
            children.push(fork(space, || child(space, own, seen.as_ref())));
            (0..100).for_each(|page| own.write(page * 3, random.below(1000) as u64, random.below(7) as u64));
            if children.len() > 2 {
                assert_eq!(wait(children.remove(0)), 0);
            }
        }
        children.into_iter().for_each(|pid| assert_eq!(wait(pid), 0));
    });
    assert_eq!(space.validate(), Ok(()));
    assert_eq!(space.stats().error_bytes()[0], 0);
    let mut used = 0;
    space.devices(|device| used += device.used_bytes);
    assert_eq!(used, 0);
}

#[test]
fn with_room_on_devices() {
    alone(|| run(256, false));
}

#[test]
fn on_devices_that_are_full() {
    alone(|| run(12, false));
}

#[test]
fn with_forks() {
    alone(|| run(256, true));
}
