//! Groups: who pays for a page wherever it is and whoever brings it in, and what limits do.

use crate::harness::alone::{
    COMPRESSIBLE, PAGE, Pages, RAM_PAGES, RANDOM, alone, assert_sound, ends, fork, space_on, wait,
};
use crate::harness::{PATIENCE, check, ctx, fill, leave, map, unmap};
use ebb::{Fault, GROUP_DEPTH_MAX, GroupError, GroupId, GroupInfo, GroupLimits, PinResult, Space, SwapSpec, ThreadCtx};
use std::ffi::CStr;
use std::fmt::Debug;
use std::time::{Duration, Instant};

const DIR: &CStr = c"/var/tmp";
const NO_LIMITS: GroupLimits = GroupLimits { ram_max_pages: None, ram_high_pages: None, swap_max_pages: None };

fn space() -> &'static Space {
    space_on(&[SwapSpec { dir: DIR, bytes: 256 << 20, priority: None, ..SwapSpec::DEFAULT }], true)
}

fn ram_max(pages: u64) -> GroupLimits {
    GroupLimits { ram_max_pages: Some(pages), ..NO_LIMITS }
}

fn swap_max(pages: u64) -> GroupLimits {
    GroupLimits { swap_max_pages: Some(pages), ..NO_LIMITS }
}

fn create(space: &'static Space, parent: GroupId, limits: GroupLimits) -> GroupId {
    space.create_group(ctx(space), parent, &limits).expect("a group")
}

fn info(space: &'static Space, id: GroupId) -> GroupInfo {
    space.group_info(ctx(space), id).expect("the group")
}

fn ram(space: &'static Space, id: GroupId) -> u64 {
    info(space, id).ram.current_pages
}

fn swap(space: &'static Space, id: GroupId) -> u64 {
    info(space, id).swap.current_pages
}

/// Pages of a group, all written.
fn pages_in(space: &'static Space, id: GroupId, n: usize, kind: u64) -> Pages {
    space.set_thread_group(ctx(space), id).expect("the group");
    let pages = Pages::new(space, n, kind);
    space.set_thread_group(ctx(space), GroupId::ROOT).expect("the root");
    pages
}

/// What `have` says is `wanted`, or will be: who reads ahead beside the program has charged a window, which for a moment is
/// paid for in RAM and in swap, and gives back what it did not need.
#[track_caller]
fn comes_to<T: PartialEq + Debug>(have: impl Fn() -> T, wanted: T) {
    let end = Instant::now() + PATIENCE;
    while have() != wanted && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(have(), wanted);
}

/// Swaps everything out that a group has.
fn evict(space: &'static Space, id: GroupId) {
    let limits = info(space, id).limits;
    space.set_group_limits(ctx(space), id, &ram_max(1)).expect("limits");
    space.set_group_limits(ctx(space), id, &limits).expect("limits");
    assert!(ram(space, id) <= 1, "{:?}", info(space, id));
}

fn move_to(pages: &Pages, first: usize, n: usize, id: GroupId) {
    pages.space.move_to_group(ctx(pages.space), pages.addr(first), n * PAGE, id).expect("moved");
}

/// Runs `f` in a thread whose group is `id`.
fn in_group(space: &'static Space, id: GroupId, f: impl FnOnce(&'static ThreadCtx) + Send) {
    std::thread::scope(|scope| {
        scope.spawn(move || {
            space.set_thread_group(ctx(space), id).expect("the group");
            f(ctx(space));
            leave(space);
        });
    });
}

fn addr_of(pages: &Pages) -> usize {
    pages.at as usize
}

/// A range of pages on its own, for another thread.
struct Part {
    addr: usize,
    first: usize,
    n: usize,
    kind: u64,
}

impl Part {
    fn check(&self) {
        (self.first..self.first + self.n).for_each(|page| check(self.addr as *mut u8, page, 1, self.kind));
    }
}

/// Pages that take so much of the budget that what does not compress goes to the device, and no more than that.
fn ballast(space: &'static Space) -> Pages {
    Pages::new(space, RAM_PAGES - RAM_PAGES / 9, COMPRESSIBLE)
}

/// The accounting fault: pages of A are swapped out and moved to B, A goes, C takes the device away and brings the pages in.
fn who_pays_after_swapoff(walk: bool) {
    const N: usize = 200;
    let space = space();
    let ballast = ballast(space);
    let [a, b, c] = [(); 3].map(|()| create(space, GroupId::ROOT, NO_LIMITS));
    let pages = pages_in(space, a, N, RANDOM);
    comes_to(|| (ram(space, a), swap(space, a)), (N as u64, 0));
    evict(space, a);
    let left = ram(space, a);
    comes_to(|| swap(space, a), N as u64 - left);
    let mut used = 0;
    space.devices(|device| used += device.used_bytes);
    assert!(used >= (N as u64 / 2) << 12, "{used} bytes on the device");
    drop(ballast);
    move_to(&pages, 0, N, b);
    comes_to(|| (ram(space, a), swap(space, a), ram(space, b), swap(space, b)), (0, 0, left, N as u64 - left));
    space.remove_group(ctx(space), a).expect("removed");
    let part = Part { addr: addr_of(&pages), first: 0, n: N, kind: RANDOM };
    in_group(space, c, |ctx| {
        space.swapoff(ctx, DIR, &mut |_| true).expect("the pool takes it");
        comes_to(|| (ram(space, b), swap(space, b)), (left, N as u64 - left));
        if !walk {
            assert!(space.bring_in(ctx, part.addr, part.n * PAGE));
        }
        part.check();
    });
    comes_to(|| ram(space, b), N as u64);
    let bystander = info(space, c);
    assert_eq!((bystander.ram.peak_pages, bystander.swap.peak_pages), (0, 0));
    assert_eq!(space.group_info(ctx(space), a), Err(GroupError::NotFound));
    assert_sound(&pages);
}

#[test]
fn what_a_bystander_brings_in_after_swapoff_is_charged_to_the_owner() {
    alone(|| who_pays_after_swapoff(false));
}

#[test]
fn what_a_bystander_reads_ahead_after_swapoff_is_charged_to_the_owner() {
    alone(|| who_pays_after_swapoff(true));
}

#[test]
fn what_a_dead_group_had_is_charged_to_the_nearest_living_ancestor() {
    alone(|| {
        const N: usize = 200;
        let space = space();
        let ballast = ballast(space);
        let top = create(space, GroupId::ROOT, NO_LIMITS);
        let a = create(space, top, NO_LIMITS);
        let below = create(space, a, NO_LIMITS);
        let c = create(space, GroupId::ROOT, NO_LIMITS);
        let pages = pages_in(space, below, N, RANDOM);
        evict(space, below);
        drop(ballast);
        space.remove_group(ctx(space), below).expect("removed");
        space.remove_group(ctx(space), a).expect("removed");
        comes_to(|| ram(space, top) + swap(space, top), N as u64);
        let part = Part { addr: addr_of(&pages), first: 0, n: N, kind: RANDOM };
        in_group(space, c, |ctx| {
            space.swapoff(ctx, DIR, &mut |_| true).expect("the pool takes it");
            part.check();
        });
        comes_to(|| (ram(space, top), info(space, c).ram.peak_pages), (N as u64, 0));
        assert_eq!(space.group_of(ctx(space), pages.addr(0)), Some(top));
        space.remove_group(ctx(space), top).expect("removed");
        assert_eq!(space.group_of(ctx(space), pages.addr(0)), Some(GroupId::ROOT));
        assert_sound(&pages);
    });
}

#[test]
fn read_ahead_stops_at_another_groups_pages() {
    alone(|| {
        const N: usize = 400;
        let space = space();
        let [a, b] = [(); 2].map(|()| create(space, GroupId::ROOT, NO_LIMITS));
        let pages = pages_in(space, a, N, COMPRESSIBLE);
        evict(space, a);
        // Not where a window would end by itself.
        let border = 203;
        move_to(&pages, border, N - border, b);
        let (left, before) = (ram(space, b), swap(space, b));
        (0..border).for_each(|page| pages.check(page));
        comes_to(|| (ram(space, a), ram(space, b), swap(space, b)), (border as u64, left, before));
        pages.check(border);
        assert!(ram(space, b) > left);
        assert_sound(&pages);
    });
}

#[test]
fn a_group_at_its_limit_reclaims_its_own_pages_and_no_others() {
    alone(|| {
        const MAX: u64 = 256;
        let space = space();
        let [a, b] = [ram_max(MAX), NO_LIMITS].map(|limits| create(space, GroupId::ROOT, limits));
        let other = pages_in(space, b, 500, RANDOM);
        let pages = pages_in(space, a, 3000, COMPRESSIBLE);
        pages.check_all();
        let (mine, others) = (info(space, a), info(space, b));
        assert!(mine.ram.peak_pages <= MAX && mine.events.max > 0, "{mine:?}");
        assert!(mine.ram.current_pages + mine.swap.current_pages >= 3000);
        assert_eq!((others.ram.current_pages, others.swap.peak_pages), (500, 0));
        assert_sound(&pages);
        assert_sound(&other);
    });
}

#[test]
fn pages_of_two_groups_in_one_unit_are_reclaimed_apart() {
    alone(|| {
        let space = space();
        let [a, b] = [(); 2].map(|()| create(space, GroupId::ROOT, NO_LIMITS));
        let pages = pages_in(space, a, 512, COMPRESSIBLE);
        (0..512).step_by(8).for_each(|page| move_to(&pages, page, 4, b));
        comes_to(|| (ram(space, a), ram(space, b)), (256, 256));
        evict(space, a);
        comes_to(|| (ram(space, b), info(space, b).swap.peak_pages), (256, 0));
        assert_sound(&pages);
    });
}

#[test]
fn a_limit_holds_for_all_descendants_together() {
    alone(|| {
        const MAX: u64 = 300;
        let space = space();
        let top = create(space, GroupId::ROOT, ram_max(MAX));
        let [a, b] = [(); 2].map(|()| create(space, top, ram_max(200)));
        let mine = pages_in(space, a, 600, COMPRESSIBLE);
        let others = pages_in(space, b, 600, RANDOM);
        mine.check_all();
        others.check_all();
        comes_to(|| ram(space, a) + ram(space, b) == ram(space, top), true);
        comes_to(|| swap(space, a) + swap(space, b) == swap(space, top), true);
        let [top, a, b] = [top, a, b].map(|id| info(space, id));
        assert!(top.ram.peak_pages <= MAX && a.ram.peak_pages <= 200 && b.ram.peak_pages <= 200);
        assert!(top.events.max > 0 && top.nr_children == 2 && a.parent == Some(top.id));
        assert_sound(&mine);
        assert_sound(&others);
    });
}

#[test]
fn a_group_above_high_is_slowed_and_reclaimed() {
    alone(|| {
        const HIGH: u64 = 200;
        let space = space();
        let a = create(space, GroupId::ROOT, GroupLimits { ram_high_pages: Some(HIGH), ..NO_LIMITS });
        let pages = pages_in(space, a, 500, COMPRESSIBLE);
        assert!(info(space, a).events.high > 0);
        // Each page that comes in has it reclaimed further.
        let end = Instant::now() + PATIENCE;
        let mut page = 0;
        while ram(space, a) > HIGH && Instant::now() < end {
            page = (page + 61) % 500;
            pages.check(page);
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(ram(space, a) <= HIGH, "{:?}", info(space, a));
        assert_sound(&pages);
    });
}

#[test]
fn what_a_group_will_need_comes_in_as_far_as_its_limits_go() {
    alone(|| {
        const PAGES: usize = 500;
        let space = space();
        let will_need = |pages: &Pages, n: usize| {
            let args = [pages.at as u64, (n * PAGE) as u64, libc::MADV_WILLNEED as u64, 0, 0, 0];
            assert_eq!(space.madvise(ctx(space), args), 0);
        };
        let high = create(space, GroupId::ROOT, GroupLimits { ram_high_pages: Some(200), ..NO_LIMITS });
        let max = create(space, GroupId::ROOT, ram_max(100));
        let free = create(space, GroupId::ROOT, NO_LIMITS);
        let [of_high, of_max, of_free] = [high, max, free].map(|group| {
            let pages = pages_in(space, group, PAGES, COMPRESSIBLE);
            evict(space, group);
            pages
        });
        // Whoever asks, the owner pays; and its limits hold, without any of its pages going.
        let events = info(space, high).events.high;
        will_need(&of_high, PAGES);
        let has = ram(space, high);
        assert!((100..=200 + 16).contains(&has), "{has}");
        assert_eq!(info(space, high).events.high, events);
        will_need(&of_max, PAGES);
        let has = ram(space, max);
        assert!((50..=100).contains(&has), "{has}");
        will_need(&of_free, PAGES);
        comes_to(|| ram(space, free), PAGES as u64);
        for pages in [&of_high, &of_max, &of_free] {
            pages.check_all();
            assert_sound(pages);
        }
    });
}

#[test]
fn pages_of_a_group_without_swap_stay_and_others_go() {
    alone(|| {
        let space = space();
        let a = create(space, GroupId::ROOT, swap_max(50));
        let mine = pages_in(space, a, 400, COMPRESSIBLE);
        let others = Pages::new(space, 3 * RAM_PAGES, COMPRESSIBLE);
        others.check_all();
        let now = info(space, a);
        assert!(now.swap.peak_pages <= 50 && now.ram.current_pages >= 350, "{now:?}");
        assert_sound(&mine);
        assert_sound(&others);
    });
}

#[test]
fn lowering_a_limit_reclaims_at_once() {
    alone(|| {
        let space = space();
        let a = create(space, GroupId::ROOT, NO_LIMITS);
        let pages = pages_in(space, a, 600, RANDOM);
        space.set_group_limits(ctx(space), a, &ram_max(100)).expect("limits");
        assert!(ram(space, a) <= 100);
        assert_eq!(info(space, a).limits, ram_max(100));
        assert_sound(&pages);
    });
}

#[test]
fn a_group_that_cannot_be_reclaimed_ends_the_program() {
    ends("a group needs more than its ram.max and swap.max: raise one of them", || {
        let space = space();
        let limits = GroupLimits { ram_max_pages: Some(64), swap_max_pages: Some(8), ..NO_LIMITS };
        pages_in(space, create(space, GroupId::ROOT, limits), 100, RANDOM);
    });
}

#[test]
fn a_system_call_may_use_more_than_its_group_may_have() {
    alone(|| {
        let space = space();
        let a = create(space, GroupId::ROOT, ram_max(20));
        let pages = pages_in(space, a, 64, RANDOM);
        let ctx = ctx(space);
        space.pin_begin(ctx, 1);
        assert_eq!(space.pin_add(ctx, pages.addr(0), 60 * PAGE), PinResult::Ok);
        assert!(ram(space, a) >= 60);
        space.pin_end(ctx);
        pages.check_all();
        evict(space, a);
        assert_sound(&pages);
    });
}

#[test]
fn calls_that_change_the_address_space_keep_charges_exact() {
    alone(|| {
        const N: usize = 300;
        let space = space();
        let ctx = ctx(space);
        let a = create(space, GroupId::ROOT, NO_LIMITS);
        let total = || ram(space, a) + swap(space, a);
        let call = |result: i64| assert!(result >= 0, "errno {}", -result);
        let mut pages = pages_in(space, a, N, COMPRESSIBLE);
        evict(space, a);
        (0..100).for_each(|page| pages.write(page, 2, RANDOM));
        comes_to(total, N as u64);
        let dontneed = [pages.addr(50) as u64, 100 * PAGE as u64, libc::MADV_DONTNEED as u64, 0, 0, 0];
        call(space.madvise(ctx, dontneed));
        comes_to(total, 200);
        pages.versions[50..150].fill((0, 0));
        let new = map(space, N * PAGE);
        let moved = space.mremap(ctx, [pages.at as u64, (N * PAGE) as u64, (N * PAGE) as u64, 3, new as u64, 0]);
        assert_eq!(moved, new as i64);
        pages.at = new;
        comes_to(|| (total(), space.group_of(ctx, new as usize)), (200, Some(a)));
        call(space.mprotect(ctx, libc::SYS_mprotect as u32, [pages.addr(0) as u64, 10 * PAGE as u64, 1, 0, 0, 0]));
        assert_eq!(space.validate(), Ok(()));
        call(space.mprotect(ctx, libc::SYS_mprotect as u32, [pages.addr(0) as u64, 10 * PAGE as u64, 3, 0, 0, 0]));
        call(space.munmap(ctx, [pages.addr(200) as u64, (N - 200) as u64 * PAGE as u64, 0, 0, 0, 0]));
        comes_to(total, 100);
        pages.versions.truncate(200);
        let grown = space.mremap(ctx, [pages.at as u64, 200 * PAGE as u64, 400 * PAGE as u64, 1, 0, 0]);
        call(grown);
        pages.at = grown as *mut u8;
        pages.versions.resize(400, (0, 0));
        (200..400).for_each(|page| pages.write(page, 3, RANDOM));
        assert_sound(&pages);
        // Pages that were given up are pages of zeros now, as they were looked at.
        assert!(total() >= 400);
        drop(pages);
        comes_to(|| (ram(space, a), swap(space, a)), (0, 0));
        assert_eq!(space.validate(), Ok(()));
    });
}

#[test]
fn a_child_has_the_groups_and_charges_of_its_parent_to_itself() {
    alone(|| {
        const N: usize = 300;
        let space = space();
        let a = create(space, GroupId::ROOT, ram_max(200));
        let gone = create(space, a, NO_LIMITS);
        let pages = pages_in(space, a, N, COMPRESSIBLE);
        let wiped = pages_in(space, gone, 10, RANDOM);
        let range = [wiped.at as u64, 10 * PAGE as u64];
        let wipe = [range[0], range[1], libc::MADV_WIPEONFORK as u64, 0, 0, 0];
        assert_eq!(space.madvise(ctx(space), wipe), 0);
        let of_gone = (ram(space, gone), swap(space, gone));
        let pid = fork(space, || {
            assert_eq!(space.validate(), Ok(()));
            comes_to(|| (ram(space, gone), swap(space, gone)), (0, 0));
            assert!(ram(space, a) + swap(space, a) >= N as u64);
            let mut own = Pages { space, at: pages.at, versions: pages.versions.clone() };
            own.check_all();
            (0..N).for_each(|page| own.write(page, 2, RANDOM));
            assert_sound(&own);
            assert!(info(space, a).ram.peak_pages <= 200);
            space.remove_group(ctx(space), gone).expect("removed");
            move_to(&own, 0, N, GroupId::ROOT);
            comes_to(|| (ram(space, a), swap(space, a)), (0, 0));
            assert_sound(&own);
            std::mem::forget(own);
        });
        assert_eq!(wait(pid), 0);
        comes_to(|| (ram(space, gone), swap(space, gone)), of_gone);
        assert!(ram(space, a) + swap(space, a) >= N as u64);
        assert_sound(&pages);
    });
}

#[test]
fn a_view_is_paid_for_by_who_made_it_and_the_original_by_its_owner() {
    alone(|| {
        const N: usize = 200;
        let space = space();
        let [a, b] = [(); 2].map(|()| create(space, GroupId::ROOT, NO_LIMITS));
        let mut pages = pages_in(space, a, N, RANDOM);
        space.set_thread_group(ctx(space), b).expect("the group");
        let at = space.snapshot(ctx(space), pages.at as usize, N * PAGE).expect("a view");
        let view = Pages { space, at: at as *mut u8, versions: pages.versions.clone() };
        comes_to(|| (ram(space, a), ram(space, b)), (N as u64, 0));
        comes_to(|| (swap(space, a), swap(space, b)), (N as u64, N as u64));
        (0..N).for_each(|page| pages.write(page, 2, COMPRESSIBLE));
        comes_to(|| (swap(space, a), swap(space, b)), (0, N as u64));
        view.check_all();
        comes_to(|| ram(space, b), N as u64);
        assert_sound(&pages);
        assert_sound(&view);
    });
}

#[test]
fn a_view_beyond_swap_max_is_refused_and_leaves_nothing() {
    alone(|| {
        let space = space();
        let a = create(space, GroupId::ROOT, swap_max(100));
        let pages = pages_in(space, GroupId::ROOT, 200, RANDOM);
        space.set_thread_group(ctx(space), a).expect("the group");
        let made = space.snapshot(ctx(space), pages.at as usize, 200 * PAGE);
        assert_eq!(made, Err(ebb::SnapshotError::NoRoom));
        let now = info(space, a);
        assert!(now.swap.current_pages == 0 && now.swap.peak_pages <= 100 && now.events.swap_max > 0, "{now:?}");
        assert_sound(&pages);
    });
}

#[test]
fn what_cannot_be_done_is_refused_with_a_reason() {
    alone(|| {
        let space = space();
        let ctx = ctx(space);
        let mut deepest = GroupId::ROOT;
        for _ in 0..GROUP_DEPTH_MAX {
            deepest = create(space, deepest, NO_LIMITS);
        }
        let create = |parent, limits| space.create_group(ctx, parent, &limits);
        assert_eq!(create(deepest, NO_LIMITS), Err(GroupError::TooDeep));
        assert_eq!(create(GroupId::ROOT, ram_max(0)), Err(GroupError::NoRam));
        let top = info(space, deepest).parent.expect("a parent");
        assert_eq!(space.remove_group(ctx, top), Err(GroupError::HasChildren));
        assert_eq!(space.remove_group(ctx, GroupId::ROOT), Err(GroupError::Root));
        assert_eq!(space.set_group_limits(ctx, GroupId::ROOT, &NO_LIMITS), Err(GroupError::Root));
        let at = map(space, PAGE) as usize;
        assert_eq!(space.move_to_group(ctx, at + 1, PAGE, deepest), Err(GroupError::Range));
        assert_eq!(space.move_to_group(ctx, at, 0, deepest), Err(GroupError::Range));
        unmap(space, at as *mut u8, PAGE);
        assert_eq!(space.move_to_group(ctx, at, PAGE, deepest), Err(GroupError::NotManaged));
        space.set_thread_group(ctx, deepest).expect("the group");
        space.remove_group(ctx, deepest).expect("removed");
        assert_eq!(space.thread_group(ctx), top);
        let anonymous = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
        let call = [0, PAGE as u64, 3, anonymous, u64::MAX, 0];
        assert_eq!(space.mmap_in(ctx, call, deepest), Err(GroupError::NotFound));
        let mapped = space.mmap_in(ctx, call, GroupId::ROOT).expect("the root") as usize;
        assert_eq!(space.group_of(ctx, mapped), Some(GroupId::ROOT));
        assert_eq!(space.move_to_group(ctx, mapped, PAGE, deepest), Err(GroupError::NotFound));
        assert_eq!(GroupError::HasChildren.to_string(), "the group has children; remove them first");
        assert_eq!(space.fault(ctx, mapped, true), Fault::Resolved);
        fill(mapped as *mut u8, 0, 1, RANDOM);
        assert_eq!(space.validate(), Ok(()));
    });
}
