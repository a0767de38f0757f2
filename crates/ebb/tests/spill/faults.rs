//! What the engine does when a device fails, is full or lies, and when the process forks.
//!
//! A process has one space, so each test runs in a process of its own: the test starts this program again, for itself
//! alone, and looks at how that ends. `EBB_FORCE` forces fallbacks.

use crate::harness::alone::{
    COMPRESSIBLE, PAGE, Pages, RAM, RAM_PAGES, RANDOM, alone, assert_sound, ends, file_pages, fork, mixed, rewrite,
    space_on, wait,
};
use crate::harness::{PATIENCE, Random, check, ctx, fill, force, leave, map, unmap};
use ebb::uapi::thread::{block_signals, restore_signals};
use ebb::{Fault, Space, SwapSpec};
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

fn space(spill: Option<(&CStr, u64)>, strict: bool) -> &'static Space {
    space_on(spill.map(|(dir, bytes)| SwapSpec { dir, bytes, priority: None, ..SwapSpec::DEFAULT }).as_slice(), strict)
}

#[test]
fn what_a_full_spill_file_does_not_take_stays_in_ram() {
    alone(|| {
        let space = space(Some((c"/var/tmp", 4 << 20)), true);
        let pages = Pages::new(space, RAM_PAGES + 500, RANDOM);
        assert_sound(&pages);
        assert!(file_pages(space) >= 1000, "{} pages", file_pages(space));
    });
}

#[test]
fn more_than_pool_and_spill_file_take_ends_the_program_with_a_reason() {
    ends("ebb: out of swap: the RAM budget of 16.0 MiB is full (", || {
        let space = space(Some((c"/var/tmp", 1 << 20)), true);
        Pages::new(space, 2 * RAM_PAGES, RANDOM);
    });
}

#[test]
fn the_reason_names_the_full_file_and_what_to_do() {
    ends(
        "the swap file in /var/tmp takes no more (its 1.0 MiB are full); give more than --ram 16M, or a --swap with room\n",
        || {
            let space = space(Some((c"/var/tmp", 1 << 20)), true);
            Pages::new(space, 2 * RAM_PAGES, RANDOM);
        },
    );
}

#[test]
fn the_account_of_all_that_is_held_comes_where_details_are_wanted() {
    ends("\nebb: this process holds ", || {
        let space = space(None, true);
        ebb::uapi::stderr::want_details();
        Pages::new(space, 2 * RAM_PAGES, RANDOM);
    });
}

#[test]
fn where_there_is_no_spill_file_the_reason_says_so() {
    ends("there is no swap file; give more than --ram 16M, or a --swap with room\n", || {
        let space = space(None, true);
        Pages::new(space, 2 * RAM_PAGES, RANDOM);
    });
}

#[test]
fn where_no_spill_file_could_be_made_the_reason_says_so() {
    ends("could not create a swap file (EACCES)", || {
        let space = space(None, true);
        space.note_unmade_file(ebb::uapi::Errno(libc::EACCES));
        Pages::new(space, 2 * RAM_PAGES, RANDOM);
    });
}

#[test]
fn without_a_spill_file_what_does_not_compress_stays_in_ram() {
    alone(|| {
        let space = space(None, true);
        let noise = Pages::new(space, RAM_PAGES / 2, RANDOM);
        let rest = Pages::new(space, RAM_PAGES, COMPRESSIBLE);
        assert_sound(&noise);
        assert_sound(&rest);
        assert_eq!(file_pages(space), 0);
    });
}

#[test]
fn a_full_disk_is_a_full_spill_file() {
    alone(|| {
        // SAFETY: asks for a number.
        if unsafe { libc::geteuid() } != 0 {
            eprintln!("skipped: mounting a small tmpfs needs root");
            return;
        }
        let dir = std::env::temp_dir().join(format!("ebb-faults-{}", std::process::id()));
        std::fs::create_dir(&dir).expect("a directory");
        let path = std::ffi::CString::new(dir.to_str().expect("a plain path")).expect("a plain path");
        // SAFETY: mounts in a mount namespace of this process alone, which ends with it.
        unsafe {
            let tmpfs = c"tmpfs".as_ptr();
            assert_eq!(libc::unshare(libc::CLONE_NEWNS), 0);
            let private = (libc::MS_REC | libc::MS_PRIVATE) as libc::c_ulong;
            assert_eq!(libc::mount(tmpfs, c"/".as_ptr(), std::ptr::null(), private, std::ptr::null()), 0);
            assert_eq!(libc::mount(tmpfs, path.as_ptr(), tmpfs, 0, c"size=4m".as_ptr().cast()), 0);
        }
        let space = space(Some((&path, 8 << 20)), true);
        let pages = Pages::new(space, RAM_PAGES + 500, RANDOM);
        assert_sound(&pages);
        assert!(file_pages(space) >= 900, "{} pages", file_pages(space));
        // SAFETY: the mount is this process's own.
        unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
        std::fs::remove_dir(&dir).expect("the directory is empty");
    });
}

fn limit_file_size(bytes: u64) {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    // SAFETY: the structure lives through the call.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &limit) }, 0);
}

#[test]
fn a_file_size_limit_makes_the_spill_file_small_and_sends_no_signal() {
    alone(|| {
        limit_file_size(4 << 20);
        let space = space(Some((c"/var/tmp", 8 << 20)), true);
        assert_sound(&Pages::new(space, RAM_PAGES + 500, RANDOM));
    });
}

#[test]
fn the_reason_names_the_limit_on_file_sizes() {
    ends("the swap file in /var/tmp takes no more (the limit on file sizes); give more than --ram 16M", || {
        limit_file_size(1 << 20);
        let space = space(Some((c"/var/tmp", 1 << 30)), true);
        Pages::new(space, 2 * RAM_PAGES, RANDOM);
    });
}

#[test]
fn a_file_size_limit_that_comes_later_is_not_the_spill_files() {
    alone(|| {
        let space = space(Some((c"/var/tmp", 1 << 30)), true);
        limit_file_size(4 << 20);
        assert_sound(&Pages::new(space, 3 * RAM_PAGES, RANDOM));
    });
}

/// Pages of the spill file that the kernel keeps in memory, after all of a program's memory has gone there and has come back; beside a
/// child that does the same.
fn cached_after_use() -> u64 {
    let space = space(Some((c"/var/tmp", 1 << 30)), true);
    let mut pages = Pages::new(space, 4 * RAM_PAGES, RANDOM);
    let child = fork(space, || pages.check_all());
    pages.check_all();
    assert_eq!(wait(child), 0);
    rewrite(&mut pages, 9);
    assert!(file_pages(space) > 3 * RAM_PAGES as u64);
    ebb::uapi::cache::cached_pages(spill_fd(space), 0, 1 << 30).unwrap_or(0)
}

#[test]
fn a_spill_file_leaves_nothing_in_the_page_cache() {
    alone(|| {
        let cached = cached_after_use();
        assert!(cached < 1024, "{cached} pages");
    });
}

#[test]
fn where_there_is_no_direct_io_a_spill_file_leaves_nothing_in_the_page_cache() {
    alone(|| {
        // SAFETY: nobody else runs.
        unsafe { std::env::set_var("EBB_FORCE", "no-direct") };
        let cached = cached_after_use();
        assert!(cached < 1024, "{cached} pages");
    });
}

#[test]
fn without_direct_io_a_file_size_limit_that_comes_later_is_not_the_spill_files() {
    alone(|| {
        // SAFETY: nobody else runs.
        unsafe { std::env::set_var("EBB_FORCE", "no-direct") };
        let space = space(Some((c"/var/tmp", 1 << 30)), true);
        limit_file_size(4 << 20);
        assert_sound(&Pages::new(space, 3 * RAM_PAGES, RANDOM));
        let cached = ebb::uapi::cache::cached_pages(spill_fd(space), 0, 1 << 30).unwrap_or(0);
        assert!(cached < 1024, "{cached} pages");
    });
}

/// The spill file of a space that has one.
fn spill_fd(space: &Space) -> i32 {
    space.fds().nth(1).expect("a spill file")
}

fn size_of_file(fd: i32) -> usize {
    // SAFETY: the structure is plain data, written by the kernel.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        assert_eq!(libc::fstat(fd, &mut stat), 0);
        stat.st_size as usize
    }
}

/// A slot's bytes, as direct I/O wants them to lie.
#[repr(align(4096))]
struct SlotBytes([u8; PAGE]);

fn read_slot(fd: i32, slot: usize) -> [u8; PAGE] {
    let mut bytes = SlotBytes([0u8; PAGE]);
    // SAFETY: the kernel writes within `bytes`.
    let got = unsafe { libc::pread(fd, bytes.0.as_mut_ptr().cast(), PAGE, (slot * PAGE) as i64) };
    assert_eq!(got as usize, PAGE);
    bytes.0
}

fn write_slot(fd: i32, slot: usize, bytes: &[u8; PAGE]) {
    let bytes = SlotBytes(*bytes);
    // SAFETY: the kernel reads `bytes`.
    let put = unsafe { libc::pwrite(fd, bytes.0.as_ptr().cast(), PAGE, (slot * PAGE) as i64) };
    assert_eq!(put as usize, PAGE);
}

fn bytes_on_disk(fd: i32) -> usize {
    // SAFETY: the structure is plain data, written by the kernel.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        assert_eq!(libc::fstat(fd, &mut stat), 0);
        stat.st_blocks as usize * 512
    }
}

#[test]
fn what_nobody_uses_any_more_is_given_back_and_can_be_used_again() {
    alone(|| {
        let space = space(Some((c"/var/tmp", 16 * RAM)), true);
        let fd = spill_fd(space);
        for round in 0..3 {
            let pages = Pages::new(space, 10 * RAM_PAGES, RANDOM);
            let (disk, charged) = (bytes_on_disk(fd), space.charged_pages());
            assert!(disk > 7 * RAM as usize, "round {round}: {disk} bytes on disk");
            pages.check_all();
            drop(pages);
            // Perhaps by the background thread: it takes a moment. Sixteen clusters keep their space and tables.
            let end = Instant::now() + PATIENCE;
            while (bytes_on_disk(fd) > 3 * RAM as usize || space.charged_pages() > charged / 4) && Instant::now() < end
            {
                std::thread::sleep(Duration::from_millis(2));
            }
            let (disk, charged) = (bytes_on_disk(fd), space.charged_pages());
            assert!(disk <= 3 * RAM as usize, "round {round}: {disk} bytes on disk");
            assert!(charged <= RAM_PAGES / 4, "round {round}: {charged} pages charged");
            assert_eq!(space.validate(), Ok(()));
        }
    });
}

/// Memory comes back because there is room for it now: nothing is evicted any more, and only the program knows what it reads.
#[test]
fn what_is_left_of_a_file_when_all_is_in_memory_again_is_given_back() {
    alone(|| {
        if force().no_background {
            eprintln!("there is no background thread that could give something back: not tested");
            return;
        }
        let space = space(Some((c"/var/tmp", 16 * RAM)), true);
        let fd = spill_fd(space);
        let mut pages = Pages::new(space, 10 * RAM_PAGES, RANDOM);
        let disk = bytes_on_disk(fd);
        assert!(disk > 7 * RAM as usize, "{disk} bytes on disk");
        space.stats().tree.set_limit(16 * RAM_PAGES as u64);
        // In no order: nothing is read ahead, which the background thread would do.
        (0..pages.len()).for_each(|i| pages.write(i * 7919 % (10 * RAM_PAGES), 2, RANDOM));
        let end = Instant::now() + PATIENCE;
        while bytes_on_disk(fd) > 3 * RAM as usize && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(2));
        }
        let disk = bytes_on_disk(fd);
        assert!(disk <= 3 * RAM as usize, "{disk} bytes on disk");
        pages.check_all();
    });
}

/// Fills three budgets, lets `spoil` at the file, and looks at every page: right, or unreadable.
fn spoiled(spoil: fn(fd: i32, slots: usize)) {
    let space = space(Some((c"/var/tmp", 4 * RAM)), false);
    let pages = Pages::new(space, 3 * RAM_PAGES, RANDOM);
    let fd = spill_fd(space);
    spoil(fd, size_of_file(fd) / PAGE);
    let mut unreadable = 0;
    for page in 0..pages.len() {
        match space.fault(ctx(space), pages.addr(page), false) {
            Fault::Unreadable => unreadable += 1,
            _ => pages.check(page),
        }
    }
    assert!(unreadable >= RAM_PAGES, "{unreadable} pages");
    assert!(!space.bring_in(ctx(space), pages.addr(0), pages.len() * PAGE));
    assert_ne!(space.stats().error_bytes()[0], 0);
    drop(pages);
    assert_eq!(space.validate(), Ok(()));
}

#[test]
fn garbage_in_the_spill_file_is_never_read_as_content() {
    alone(|| {
        spoiled(|fd, slots| (0..slots).for_each(|slot| write_slot(fd, slot, &[0x5a; PAGE])));
    });
}

#[test]
fn one_wrong_bit_makes_a_page_unreadable() {
    alone(|| {
        spoiled(|fd, slots| {
            for slot in 0..slots {
                let mut bytes = read_slot(fd, slot);
                bytes[slot % PAGE] ^= 1 << (slot % 8);
                write_slot(fd, slot, &bytes);
            }
        });
    });
}

#[test]
fn the_content_of_another_slot_is_not_taken_for_the_own() {
    alone(|| {
        spoiled(|fd, slots| {
            for slot in (0..slots - 1).step_by(2) {
                let (left, right) = (read_slot(fd, slot), read_slot(fd, slot + 1));
                write_slot(fd, slot, &right);
                write_slot(fd, slot + 1, &left);
            }
        });
    });
}

#[test]
fn a_truncated_spill_file_is_unreadable() {
    alone(|| {
        spoiled(|fd, _| {
            // SAFETY: only the file's length changes.
            assert_eq!(unsafe { libc::ftruncate(fd, 0) }, 0);
        });
    });
}

#[test]
fn both_sides_of_a_fork_keep_every_page() {
    alone(|| {
        let space = space(Some((c"/var/tmp", 1 << 30)), true);
        let mut pages = mixed(space);
        let in_file = Pages::new(space, RAM_PAGES, RANDOM);
        let child = fork(space, || {
            let mut own = Pages { space, at: pages.at, versions: pages.versions.clone() };
            assert_sound(&in_file);
            assert_sound(&own);
            rewrite(&mut own, 77);
            assert_sound(&in_file);
            assert_sound(&own);
            std::mem::forget(own);
        });
        rewrite(&mut pages, 99);
        assert_sound(&in_file);
        assert_eq!(wait(child), 0);
        assert_sound(&pages);
        assert_sound(&in_file);
        assert!(file_pages(space) > 0);
    });
}

#[test]
fn children_of_children_keep_every_page() {
    alone(|| {
        let space = space(Some((c"/var/tmp", 1 << 30)), true);
        let mut pages = mixed(space);
        let child = fork(space, || {
            let mut own = Pages { space, at: pages.at, versions: pages.versions.clone() };
            rewrite(&mut own, 5);
            let grandchild = fork(space, || {
                let mut own = Pages { space, at: own.at, versions: own.versions.clone() };
                rewrite(&mut own, 6);
                assert_sound(&own);
                std::mem::forget(own);
            });
            rewrite(&mut own, 7);
            assert_eq!(wait(grandchild), 0);
            assert_sound(&own);
            std::mem::forget(own);
        });
        rewrite(&mut pages, 8);
        assert_eq!(wait(child), 0);
        assert_sound(&pages);
    });
}

#[test]
fn slots_that_children_held_are_used_again() {
    alone(|| {
        // Room for what there is twice over; all rounds together write five times as much.
        let n = 3 * RAM_PAGES / 2;
        let space = space(Some((c"/var/tmp", (2 * n * PAGE) as u64)), true);
        let mut pages = Pages::new(space, n, RANDOM);
        for round in 0..15u64 {
            let child = fork(space, || {
                for page in (round as usize % 7..pages.len()).step_by(7) {
                    pages.check(page);
                }
            });
            for page in (round as usize % 3..n).step_by(3) {
                pages.write(page, round + 2, RANDOM);
            }
            if round % 3 == 2 {
                // SAFETY: the child is this process's own and not waited for yet.
                unsafe { libc::kill(child, libc::SIGKILL) };
                wait(child);
            } else {
                assert_eq!(wait(child), 0);
            }
        }
        assert_sound(&pages);
        assert!(file_pages(space) > 2 * n as u64, "{} pages", file_pages(space));
    });
}

#[test]
fn a_child_is_whole_whatever_other_threads_were_at() {
    alone(|| {
        let space = space(Some((c"/var/tmp", 1 << 30)), true);
        let mut pages = mixed(space);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for seed in 1..3u64 {
                let stop = &stop;
                scope.spawn(move || {
                    let mut own = Pages::new(space, RAM_PAGES, COMPRESSIBLE);
                    let mut random = Random(seed);
                    while !stop.load(Relaxed) {
                        let page = random.below(own.len());
                        own.check(page);
                        own.write(page, random.0, random.0 & 3);
                    }
                    own.check_all();
                    drop(own);
                    leave(space);
                });
            }
            for round in 0..12u64 {
                let child = fork(space, || {
                    for page in (round as usize..pages.len()).step_by(9) {
                        pages.check(page);
                    }
                    assert_eq!(space.validate(), Ok(()));
                });
                for page in (round as usize..pages.len()).step_by(40) {
                    pages.write(page, round + 9, RANDOM);
                }
                assert_eq!(wait(child), 0);
            }
            stop.store(true, Relaxed);
        });
        assert_sound(&pages);
    });
}

/// What is charged, once nothing is beyond the budget that work which frees memory took for itself: the background sees to
/// that, and where there is none, the next thread that needs a page.
fn within_the_budget(space: &'static Space) -> usize {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let charged = space.charged_pages();
        if charged <= space.limit_pages() {
            return charged;
        }
        assert!(charged <= space.limit_pages() + 64, "{charged} pages");
        assert!(Instant::now() < deadline, "{charged} pages");
        let _one_more = Pages::new(space, 1, RANDOM);
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn forks_leave_no_charge_behind() {
    alone(|| {
        let space = space(Some((c"/var/tmp", 1 << 30)), true);
        let pages = mixed(space);
        let before = within_the_budget(space);
        for _ in 0..20 {
            let child = fork(space, || {
                let charged = space.charged_pages();
                assert!(charged <= before + 64, "{charged} pages, {before} before");
                (0..pages.len()).step_by(50).for_each(|page| pages.check(page));
            });
            assert_eq!(wait(child), 0);
        }
        assert!(space.charged_pages() <= before + 64, "{} pages, {before} before", space.charged_pages());
        assert_sound(&pages);
    });
}

#[test]
fn a_fork_that_failed_leaves_no_slot_behind() {
    alone(|| {
        let n = 3 * RAM_PAGES / 2;
        let space = space(Some((c"/var/tmp", (2 * n * PAGE) as u64)), true);
        let mut pages = Pages::new(space, n, RANDOM);
        for round in 0..12u64 {
            let mask = block_signals();
            space.fork_prepare(ctx(space));
            space.fork_parent(false);
            restore_signals(mask);
            for page in (round as usize % 3..n).step_by(3) {
                pages.write(page, round + 2, RANDOM);
            }
        }
        assert_sound(&pages);
    });
}

#[test]
fn a_child_has_nothing_of_what_its_parent_keeps_to_itself() {
    alone(|| {
        let space = space(Some((c"/var/tmp", 1 << 30)), true);
        let [pages, wiped, kept] = [2, 1, 1].map(|n| Pages::new(space, n * RAM_PAGES, RANDOM));
        for (pages, advice) in [(&wiped, libc::MADV_WIPEONFORK), (&kept, libc::MADV_DONTFORK)] {
            let call = [pages.at as u64, (pages.len() * PAGE) as u64, advice as u64, 0, 0, 0];
            assert_eq!(space.madvise(ctx(space), call), 0);
        }
        let child = fork(space, || {
            (0..wiped.len()).for_each(|page| check(wiped.at, page, 0, 0));
            // It may have gone since the fault, or come and gone again: the kernel is asked again first, but not for ever.
            let fault = || space.fault(ctx(space), kept.addr(0), false);
            assert_eq!(fault(), Fault::Resolved);
            assert!((0..16).any(|_| fault() == Fault::NotManaged));
            assert_sound(&pages);
        });
        assert_eq!(wait(child), 0);
        assert_sound(&pages);
        assert_sound(&wiped);
        assert_sound(&kept);
    });
}

#[test]
fn mapping_and_unmapping_costs_nothing_in_the_end() {
    alone(|| {
        let space = space(Some((c"/var/tmp", 1 << 30)), true);
        for _ in 0..2 * RAM_PAGES {
            let at = map(space, 8 * PAGE);
            fill(at, 7, 1, RANDOM);
            unmap(space, at, 8 * PAGE);
        }
        assert!(space.charged_pages() < RAM_PAGES / 8, "{} pages", space.charged_pages());
        assert_eq!(space.validate(), Ok(()));
    });
}

#[test]
fn a_drop_that_the_kernel_refuses_half_way_leaves_no_page_missing() {
    alone(|| {
        let space = space(Some((c"/var/tmp", 1 << 30)), true);
        let pages = Pages::new(space, 100, RANDOM);
        let lock = [pages.addr(50) as u64, PAGE as u64, 0, 0, 0, 0];
        assert_eq!(space.mlock(ctx(space), libc::SYS_mlock as u32, lock), 0);
        let call = [pages.at as u64, (100 * PAGE) as u64, libc::MADV_DONTNEED as u64, 0, 0, 0];
        assert_eq!(space.madvise(ctx(space), call), -libc::EINVAL as i64);
        (0..50).for_each(|page| check(pages.at, page, 0, 0));
        (50..100).for_each(|page| pages.check(page));
        assert_eq!(space.validate(), Ok(()));
    });
}
