//! Devices by their kind: a disk that turns is written in order, and read ahead by what lies together there; one beside it that does not
//! turn is read ahead by address. And what a file keeps if nothing is discarded.

use crate::harness::alone::{
    COMPRESSIBLE, PAGE, Pages, RAM_PAGES, RANDOM, StopsAtEnd, alone, assert_sound, file_pages, fork, space_on, wait,
};
use crate::harness::faulty::{Device as Disk, Verdict};
use crate::harness::{Random, ctx, leave};
use ebb::stats::Device;
use ebb::{Discard, Kind, Space, SwapSpec};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Content that compresses better than [`COMPRESSIBLE`].
const SOME: u64 = 5;
/// A test that takes longer than this has failed.
const PATIENCE: Duration = Duration::from_secs(60);

fn device(dir: &'static std::ffi::CStr, kind: Kind) -> SwapSpec<'static> {
    SwapSpec { dir, bytes: 1 << 30, priority: Some(1), kind, ..SwapSpec::DEFAULT }
}

/// What is counted for the tree's device of this kind.
fn counts(space: &'static Space, kind: Kind) -> &'static Device {
    space.stats().devices.iter().find(|device| device.kind() == kind.number()).expect("a device of this kind")
}

fn kinds(space: &'static Space) -> Vec<Kind> {
    let mut kinds = Vec::new();
    assert!(space.devices(|device| kinds.push(device.kind)));
    kinds
}

/// The spill file in `dir`, which has no name.
fn spill_file(dir: &str) -> std::fs::File {
    let fds = std::fs::read_dir("/proc/self/fd").expect("the descriptors").flatten();
    let is_spill = |path: &Path| {
        std::fs::read_link(path).is_ok_and(|to| to.starts_with(dir) && to.to_string_lossy().ends_with("(deleted)"))
    };
    let path = fds.map(|entry| entry.path()).find(|path| is_spill(path)).expect("the spill file");
    std::fs::File::open(path).expect("it can be opened again")
}

fn seek(file: &std::fs::File, at: i64, whence: i32) -> i64 {
    // SAFETY: moves the descriptor's own position.
    unsafe { libc::lseek(file.as_raw_fd(), at, whence) }
}

fn blocks(file: &std::fs::File) -> u64 {
    std::os::unix::fs::MetadataExt::blocks(&file.metadata().expect("its status"))
}

fn page_out(pages: &Pages) {
    let args = [pages.at as u64, (pages.len() * PAGE) as u64, libc::MADV_PAGEOUT as u64, 0, 0, 0];
    assert_eq!(pages.space.madvise(ctx(pages.space), args), 0);
}

/// Clusters of a file, 2 MiB each, that have any data.
fn clusters_with_data(file: &std::fs::File) -> usize {
    let cluster = 2 << 20;
    let (mut n, mut at) = (0, seek(file, 0, libc::SEEK_DATA));
    while at >= 0 {
        n += 1;
        at = seek(file, (at / cluster + 1) * cluster, libc::SEEK_DATA);
    }
    n
}

/// Pages that compress, of which most are in files, several in a slot.
fn packed(space: &'static Space, n: usize) -> Pages {
    let mut pages = Pages::new(space, n, COMPRESSIBLE);
    (0..n).step_by(2).for_each(|page| pages.write(page, 2, SOME));
    let written = space.stats().writeback_pages.load(Relaxed);
    assert!(written > n as u64 / 4, "{written} of {n} pages were written back");
    pages
}

/// All pages in groups of `size` neighbours, the groups at random, and those of a group at random: no walk, but near each other.
fn groups(pages: usize, size: usize, seed: u64) -> Vec<usize> {
    let mut random = Random(seed);
    let mut shuffle = |all: &mut [usize]| (1..all.len()).for_each(|i| all.swap(i, random.below(i + 1)));
    let mut firsts: Vec<usize> = (0..pages).step_by(size).collect();
    shuffle(&mut firsts);
    let group = |first: usize| {
        let mut group: Vec<usize> = (first..(first + size).min(pages)).collect();
        shuffle(&mut group);
        group
    };
    firsts.into_iter().flat_map(group).collect()
}

#[test]
fn a_kind_is_shown_and_a_child_has_a_file_of_the_same_kind() {
    alone(|| {
        let space = space_on(&[device(c"/var/tmp", Kind::Hdd), device(c"/tmp", Kind::Ssd)], true);
        assert_eq!(kinds(space), [Kind::Hdd, Kind::Ssd]);
        let pages = Pages::new(space, 2 * RAM_PAGES, RANDOM);
        let child = fork(space, || {
            let mut kinds = kinds(space);
            kinds.truncate(2);
            kinds.sort_by_key(|kind| kind.name());
            assert_eq!(kinds, [Kind::Hdd, Kind::Ssd]);
            pages.check_all();
        });
        assert_eq!(wait(child), 0);
        let more = SwapSpec { dir: c"/dev/shm", priority: None, ..device(c"/dev/shm", Kind::Hdd) };
        space.swapon(ctx(space), &more, &mut || true).expect("a device");
        assert_eq!(kinds(space), [Kind::Hdd, Kind::Ssd, Kind::Hdd]);
        assert_sound(&pages);
    });
}

#[test]
fn threads_write_to_a_disk_that_turns_one_after_the_other() {
    alone(|| {
        let spec = SwapSpec { discard: Discard::None, ..device(c"/var/tmp", Kind::Hdd) };
        let space = space_on(&[spec], true);
        ctx(space);
        let file = spill_file("/var/tmp");
        let mut end = 0;
        let mut all: Vec<Pages> = Vec::new();
        for _ in 0..4 {
            // Three threads at once, and nothing comes back.
            let made = std::thread::scope(|scope| {
                let make = || {
                    ctx(space);
                    let pages = Pages::new(space, RAM_PAGES, RANDOM);
                    page_out(&pages);
                    leave(space);
                    pages
                };
                let threads: Vec<_> = (0..3).map(|_| scope.spawn(make)).collect();
                threads.into_iter().map(|thread| thread.join().expect("it ends well")).collect::<Vec<_>>()
            });
            all.extend(made);
            // The file system writes what it was given late; a hole would stay.
            file.sync_all().expect("the file is written");
            let began = Instant::now();
            loop {
                let now = seek(&file, 0, libc::SEEK_HOLE);
                if now > end && seek(&file, now, libc::SEEK_DATA) < 0 {
                    end = now;
                    break;
                }
                assert!(began.elapsed() < PATIENCE, "a hole at {now}, data until then {end}");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        let written = file_pages(space);
        assert!(end as u64 / PAGE as u64 >= written / 10 * 9, "{end} bytes for {written} pages");
        all.iter().for_each(assert_sound);
    });
}

/// What is counted for a device: reads, and pages that were read ahead and used, and not used.
fn of(device: &Device) -> [u64; 3] {
    [&device.reads, &device.readahead_hits, &device.readahead_misses].map(|count| count.load(Relaxed))
}

/// Two devices in one space, each by its own rule: one that turns keeps nobody from reading ahead on the other.
#[test]
fn each_device_is_read_ahead_by_its_own_rule_at_the_same_time() {
    alone(|| {
        let space = space_on(&[device(c"/var/tmp", Kind::Hdd), device(c"/tmp", Kind::Ssd)], true);
        let mut pages = Pages::new(space, 4 * RAM_PAGES, RANDOM);
        let (hdd, ssd) = (counts(space, Kind::Hdd), counts(space, Kind::Ssd));
        // What is near on the disk comes along, without any walk.
        let before = [of(hdd), of(ssd)];
        for page in groups(pages.len(), 64, 7) {
            pages.check(page);
        }
        let [reads, used, unused] = std::array::from_fn(|i| of(hdd)[i] - before[0][i]);
        assert!(used > 500 && used > unused && used > reads / 2, "{reads} reads, {used} used, {unused} not");
        let [reads, used, unused] = std::array::from_fn(|i| of(ssd)[i] - before[1][i]);
        assert!(reads > 500 && used + unused < reads / 4, "{reads} reads, {used} used, {unused} not");
        // A walk is what the other one goes by. A part is written anew, so that the files have gaps.
        (0..pages.len()).step_by(7).for_each(|page| pages.write(page, 3, RANDOM));
        let before = [of(hdd), of(ssd)];
        pages.check_all();
        let [reads, used, unused] = std::array::from_fn(|i| of(ssd)[i] - before[1][i]);
        assert!(used > reads && used > 4 * unused, "{reads} reads, {used} used, {unused} not");
        let [reads, ..] = std::array::from_fn::<u64, 3, _>(|i| of(hdd)[i] - before[0][i]);
        assert!(reads < RAM_PAGES as u64, "{reads} reads for {} pages", 2 * RAM_PAGES);
        assert_sound(&pages);
    });
}

#[test]
fn each_device_is_read_ahead_by_its_own_rule_where_slots_have_several_objects() {
    alone(|| {
        let space = space_on(&[device(c"/var/tmp", Kind::Hdd), device(c"/tmp", Kind::Ssd)], true);
        let pages = packed(space, 8 * RAM_PAGES);
        let (hdd, ssd) = (counts(space, Kind::Hdd), counts(space, Kind::Ssd));
        let before = [of(hdd), of(ssd)];
        for page in groups(pages.len(), 64, 7) {
            pages.check(page);
        }
        let [reads, used, unused] = std::array::from_fn(|i| of(hdd)[i] - before[0][i]);
        // A read brings more pages than slots.
        assert!(used > 500 && used > unused && used > 4 * reads, "{reads} reads, {used} used, {unused} not");
        let [reads, used, unused] = std::array::from_fn(|i| of(ssd)[i] - before[1][i]);
        assert!(reads > 500 && used + unused < reads / 4, "{reads} reads, {used} used, {unused} not");
        let before = [of(hdd), of(ssd)];
        pages.check_all();
        let [reads, used, unused] = std::array::from_fn(|i| of(ssd)[i] - before[1][i]);
        assert!(used > reads && used > 4 * unused, "{reads} reads, {used} used, {unused} not");
        let [reads, ..] = std::array::from_fn::<u64, 3, _>(|i| of(hdd)[i] - before[0][i]);
        assert!(reads < pages.len() as u64 / 8, "{reads} reads for {} pages", pages.len());
        assert_sound(&pages);
    });
}

#[test]
fn memory_is_read_ahead_by_the_walk_alone() {
    alone(|| {
        let space = space_on(&[device(c"/dev/shm", Kind::Ram)], true);
        let pages = packed(space, 8 * RAM_PAGES);
        let ram = counts(space, Kind::Ram);
        let before = of(ram);
        groups(pages.len(), 64, 7).into_iter().for_each(|page| pages.check(page));
        let [reads, used, unused] = std::array::from_fn(|i| of(ram)[i] - before[i]);
        assert!(reads > 500 && used + unused < reads / 4, "{reads} reads, {used} used, {unused} not");
        let before = of(ram);
        pages.check_all();
        let [reads, used, unused] = std::array::from_fn(|i| of(ram)[i] - before[i]);
        assert!(used > reads && used > 4 * unused, "{reads} reads, {used} used, {unused} not");
        assert_sound(&pages);
    });
}

/// Each file has clusters of its own in use, one for each shard.
#[test]
fn threads_write_to_clusters_of_their_own_in_each_file_that_does_not_turn() {
    alone(|| {
        let dirs = [c"/var/tmp", c"/tmp"];
        let space = space_on(&dirs.map(|dir| device(dir, Kind::Ssd)), true);
        ctx(space);
        let files = ["/var/tmp", "/tmp"].map(spill_file);
        let threads = 4;
        let turn = std::sync::Barrier::new(threads);
        // Threads that work at the same time have shards of their own. Each writes few pages at a time, so to both files in turn.
        let all: Vec<Pages> = std::thread::scope(|scope| {
            let write = |_| {
                scope.spawn(|| {
                    ctx(space);
                    let pages = Pages::new(space, RAM_PAGES, RANDOM);
                    turn.wait();
                    page_out(&pages);
                    turn.wait();
                    leave(space);
                    pages
                })
            };
            let threads: Vec<_> = (0..threads).map(write).collect();
            threads.into_iter().map(|thread| thread.join().expect("it ends well")).collect()
        });
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let expected = cpus.min(threads);
        for file in &files {
            file.sync_all().expect("the file is written");
            let clusters = clusters_with_data(file);
            assert!(clusters >= expected, "{clusters} clusters in use for {expected} shards");
        }
        all.iter().for_each(assert_sound);
    });
}

#[test]
fn what_is_read_ahead_in_vain_is_read_ahead_less() {
    alone(|| {
        let space = space_on(&[device(c"/var/tmp", Kind::Hdd)], true);
        let pages = Pages::new(space, 16 * RAM_PAGES, RANDOM);
        let hdd = counts(space, Kind::Hdd);
        let mut random = Random(3);
        let mut unused_of = |n: usize| {
            let before = hdd.readahead_misses.load(Relaxed);
            (0..n).for_each(|_| pages.check(random.below(pages.len())));
            hdd.readahead_misses.load(Relaxed) - before
        };
        unused_of(4000);
        let unused = unused_of(4000);
        // At first there were seven for each read.
        assert!((1..6000).contains(&unused), "{unused} pages of no use for 4000");
        assert_sound(&pages);
    });
}

#[test]
fn a_window_that_cannot_be_read_or_was_changed_costs_no_page() {
    alone(|| {
        let disk = Disk::new();
        let space = space_on(&[device(c"/var/tmp", Kind::Hdd)], true);
        disk.watch(space.fds().take(2).skip(1));
        let pages = packed(space, 6 * RAM_PAGES);
        let hdd = counts(space, Kind::Hdd);
        for (seed, verdict) in (5..).zip([Verdict::Fail(libc::EIO), Verdict::Change, Verdict::Torn(PAGE, libc::EIO)]) {
            // What is read alone comes well.
            disk.rule(move |transfer| if transfer.is_write || transfer.len == PAGE { Verdict::Pass } else { verdict });
            let before = disk.nr_ruled();
            groups(pages.len(), 16, seed).into_iter().for_each(|page| pages.check(page));
            assert!(disk.nr_ruled() > before + 100, "{} windows failed", disk.nr_ruled() - before);
            disk.mend();
        }
        let before = of(hdd);
        groups(pages.len(), 16, 2).into_iter().for_each(|page| pages.check(page));
        assert!(of(hdd)[1] > before[1] + 500, "windows come again once they can be read");
        assert_sound(&pages);
    });
}

#[test]
fn a_file_keeps_its_space_if_nothing_is_discarded() {
    alone(|| {
        let (none, pages) = (Discard::None, Discard::Pages);
        let specs = [(c"/var/tmp", none), (c"/tmp", pages)]
            .map(|(dir, discard)| SwapSpec { discard, ..device(dir, Kind::Ssd) });
        let space = space_on(&specs, true);
        let (keeps, gives) = (spill_file("/var/tmp"), spill_file("/tmp"));
        let all = Pages::new(space, 16 * RAM_PAGES, RANDOM);
        all.check_all();
        let [had, gave] = [&keeps, &gives].map(blocks);
        drop(all);
        let few = 56 << 20 >> 9;
        assert!(had > 2 * few && gave > 2 * few, "{had} and {gave} blocks");
        let began = Instant::now();
        while blocks(&gives) > few && began.elapsed() < PATIENCE {
            // The background thread does it when it is called.
            drop(Pages::new(space, 2 * RAM_PAGES, RANDOM));
        }
        assert!(blocks(&gives) <= few && blocks(&keeps) >= had, "{} and {}", blocks(&gives), blocks(&keeps));
        assert_eq!(space.validate(), Ok(()));
    });
}

#[test]
fn pages_move_between_the_pool_and_disks_that_turn_while_all_goes_on() {
    alone(|| {
        let space = space_on(&[device(c"/var/tmp", Kind::Hdd), device(c"/tmp", Kind::Hdd)], true);
        let mut all = [1, 2, 3].map(|_| packed(space, 4 * RAM_PAGES));
        let is_over = AtomicBool::new(false);
        let (last, busy) = all.split_last_mut().expect("three");
        std::thread::scope(|scope| {
            let _stop = StopsAtEnd(&is_over);
            for (seed, pages) in (5..).zip(busy) {
                let is_over = &is_over;
                scope.spawn(move || {
                    ctx(space);
                    let mut round = 2;
                    while !is_over.load(Relaxed) {
                        for page in groups(pages.len(), 8, seed + round).into_iter().take(2000) {
                            pages.check(page);
                            pages.write(
                                page,
                                round,
                                [COMPRESSIBLE, SOME, RANDOM, COMPRESSIBLE][(page + round as usize) % 4],
                            );
                        }
                        round += 1;
                    }
                    leave(space);
                });
            }
            for round in 0..2 {
                last.check_all();
                let child = fork(space, || {
                    groups(last.len(), 8, round).into_iter().for_each(|page| last.check(page));
                    last.check_all();
                });
                assert_eq!(wait(child), 0);
                space.swapoff(ctx(space), c"/tmp", &mut |_| true).expect("there is room elsewhere");
                let again = SwapSpec { priority: Some(1), ..device(c"/tmp", Kind::Hdd) };
                space.swapon(ctx(space), &again, &mut || true).expect("a device");
            }
        });
        assert!(counts(space, Kind::Hdd).readahead_hits.load(Relaxed) > 0);
        all.iter().for_each(assert_sound);
    });
}
