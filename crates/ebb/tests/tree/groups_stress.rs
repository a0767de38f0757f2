//! Threads that fill, move, give up and unmap pages of groups with limits, while groups are created, limited and removed
//! and a device comes and goes. `EBB_STRESS_SECONDS` says for how long; `EBB_FORCE` forces fallbacks.

use crate::harness::alone::{COMPRESSIBLE, PAGE, Pages, StopsAtEnd, alone, fork, space_on, stress_time, wait};
use crate::harness::{Random, ctx, leave};
use ebb::{GroupError, GroupId, GroupLimits, PinResult, Space, SwapSpec};
use std::ffi::CStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

const NO_LIMITS: GroupLimits = GroupLimits { ram_max_pages: None, ram_high_pages: None, swap_max_pages: None };
/// The directory of the device that comes and goes.
const DIR: &CStr = c"/var/tmp";
/// Pages of a thread.
const N: usize = 800;

/// Groups that any thread may use, limit and remove. Each can be reclaimed, so nobody gets stuck: none has a limit of swap.
struct Shared {
    groups: Mutex<Vec<GroupId>>,
    stop: AtomicBool,
}

impl Shared {
    fn some(&self, random: &mut Random) -> GroupId {
        let groups = self.groups.lock().expect("no panic");
        groups[random.below(groups.len())]
    }
}

fn some_limits(random: &mut Random) -> GroupLimits {
    let n = random.below(600) as u64 + 50;
    match random.below(3) {
        0 => GroupLimits { ram_max_pages: Some(n), ..NO_LIMITS },
        1 => GroupLimits { ram_max_pages: Some(n), ram_high_pages: Some(n - n / 8), ..NO_LIMITS },
        _ => NO_LIMITS,
    }
}

fn change_groups(space: &'static Space, shared: &Shared, random: &mut Random) {
    let (group, limits) = (shared.some(random), some_limits(random));
    match random.below(4) {
        0 | 1 => match space.create_group(ctx(space), group, &limits) {
            Ok(new) => shared.groups.lock().expect("no panic").push(new),
            Err(error) => {
                use GroupError::{NotFound, TooDeep, TooMany};
                assert!(matches!(error, NotFound | TooDeep | TooMany), "{error}");
            }
        },
        2 => match space.remove_group(ctx(space), group) {
            Ok(()) => shared.groups.lock().expect("no panic").retain(|other| *other != group),
            Err(error) => {
                assert!(matches!(error, GroupError::NotFound | GroupError::HasChildren | GroupError::Root), "{error}");
            }
        },
        _ => match space.set_group_limits(ctx(space), group, &limits) {
            Ok(()) => {}
            Err(error) => assert!(matches!(error, GroupError::NotFound | GroupError::Root), "{error}"),
        },
    }
}

/// One thread's part.
fn use_memory(space: &'static Space, seed: u64, shared: &Shared) {
    let mut random = Random(seed);
    let mut pages = Pages::new(space, N, COMPRESSIBLE);
    let mut version = 1;
    while !shared.stop.load(Relaxed) {
        let first = random.below(N);
        let n = random.below((N - first).min(200)) + 1;
        match random.below(9) {
            0 | 1 => {
                let group = shared.some(&mut random);
                match space.move_to_group(ctx(space), pages.addr(first), n * PAGE, group) {
                    Ok(()) => {}
                    Err(error) => assert_eq!(error, GroupError::NotFound),
                }
            }
            2 | 3 => {
                for page in first..first + n {
                    version += 1;
                    pages.write(page, version, random.below(4) as u64);
                }
            }
            4 | 5 => (first..first + n).for_each(|page| pages.check(page)),
            6 => {
                let call = [pages.addr(first) as u64, (n * PAGE) as u64, libc::MADV_DONTNEED as u64, 0, 0, 0];
                assert_eq!(space.madvise(ctx(space), call), 0);
                pages.versions[first..first + n].fill((0, 0));
            }
            7 => {
                let n = n.min(40);
                space.pin_begin(ctx(space), 1);
                assert_eq!(space.pin_add(ctx(space), pages.addr(first), n * PAGE), PinResult::Ok);
                space.pin_end(ctx(space));
                pages.check(first);
            }
            _ => {
                pages.check_all();
                let group = shared.some(&mut random);
                if space.set_thread_group(ctx(space), group).is_ok() {
                    pages = Pages::new(space, N, 1 + random.below(3) as u64);
                }
            }
        }
        change_groups(space, shared, &mut random);
    }
    pages.check_all();
    drop(pages);
    leave(space);
}

fn run(forks: bool) {
    let device = |dir, mib: u64| SwapSpec { dir, bytes: mib << 20, priority: None, ..SwapSpec::DEFAULT };
    let space = space_on(&[device(DIR, 128), device(c"/dev/shm", 256)], true);
    let shared = Shared { groups: Mutex::new(vec![GroupId::ROOT]), stop: AtomicBool::new(false) };
    std::thread::scope(|scope| {
        let _stop = StopsAtEnd(&shared.stop);
        for seed in 1..=4 {
            let shared = &shared;
            scope.spawn(move || use_memory(space, 1234 + 77 * seed, shared));
        }
        // Pages of a group without swap, which nobody else touches: they never go.
        let limits = GroupLimits { swap_max_pages: Some(0), ..NO_LIMITS };
        let keeps = space.create_group(ctx(space), GroupId::ROOT, &limits).expect("a group");
        space.set_thread_group(ctx(space), keeps).expect("the group");
        let kept = Pages::new(space, 300, COMPRESSIBLE);
        let end = Instant::now() + stress_time();
        while Instant::now() < end {
            let _ = space.swapoff(ctx(space), DIR, &mut |_| true);
            std::thread::sleep(Duration::from_millis(40));
            let _ = space.swapon(ctx(space), &device(DIR, 128), &mut || true);
            assert_eq!(space.validate(), Ok(()));
            if forks {
                let pid = fork(space, || {
                    assert_eq!(space.validate(), Ok(()));
                    kept.check_all();
                    space.remove_group(ctx(space), keeps).expect("removed");
                    assert_eq!(space.validate(), Ok(()));
                });
                assert_eq!(wait(pid), 0);
            }
        }
        let info = space.group_info(ctx(space), keeps).expect("the group");
        assert_eq!((info.ram.current_pages, info.swap.peak_pages), (300, 0));
        kept.check_all();
    });
    assert_eq!(space.validate(), Ok(()));
    let mut rest = 0;
    space.groups(ctx(space), |info| {
        rest += if info.id == GroupId::ROOT { 0 } else { info.ram.current_pages + info.swap.current_pages };
    });
    assert_eq!((rest, space.stats().error_bytes()[0]), (0, 0));
}

#[test]
fn groups_that_come_and_go_under_threads() {
    alone(|| run(false));
}

#[test]
fn groups_that_come_and_go_under_threads_and_forks() {
    alone(|| run(true));
}
