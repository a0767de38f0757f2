//! Files that a family of processes shares: slots come back from those that are gone, and from nobody else. `EBB_FORCE` forces
//! fallbacks.

use crate::harness::alone::{
    COMPRESSIBLE, PAGE, Pages, RAM_PAGES, RANDOM, alone, assert_sound, fork, space_in_tree, space_on, wait,
};
use crate::harness::{Random, ctx};
use ebb::tree::Kind;
use ebb::uapi::thread::{block_signals, restore_signals};
use ebb::{Space, SwapSpec};
use std::io::Read;
use std::os::fd::{BorrowedFd, FromRawFd};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Pages of content, and what the file takes at most: hardly more than what is out.
const PAGES: usize = 2 * RAM_PAGES;
const FILE_BYTES: u64 = 40 << 20;
/// What a file keeps beside its content: see `SPACE_KEPT`, and the cluster in use.
const KEPT_BYTES: u64 = 36 << 20;

fn space_of(bytes: u64) -> &'static Space {
    space_on(&[SwapSpec { dir: c"/var/tmp", bytes, priority: None, ..SwapSpec::DEFAULT }], true)
}

fn rewrite_all(pages: &mut Pages, version: u64) {
    (0..pages.len()).for_each(|page| pages.write(page, version, RANDOM));
}

/// Forks a child that waits for its end before it takes its place. `meanwhile` gets its number before its parent goes on.
fn fork_unborn(space: &'static Space, meanwhile: impl FnOnce(i32)) -> i32 {
    let mask = block_signals();
    space.fork_prepare(ctx(space));
    // SAFETY: the child does nothing but wait.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        // SAFETY: ends with its parent at the latest, which may fail.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        loop {
            // SAFETY: waits.
            unsafe { libc::pause() };
        }
    }
    meanwhile(pid);
    space.fork_parent(true);
    restore_signals(mask);
    pid
}

#[test]
fn a_child_that_was_killed_at_birth_holds_nothing() {
    alone(|| {
        let swap = [SwapSpec { dir: c"/var/tmp", bytes: FILE_BYTES, priority: None, ..SwapSpec::DEFAULT }];
        let (space, _) = space_in_tree((RAM_PAGES * PAGE) as u64, &swap);
        let mut pages = Pages::new(space, PAGES, RANDOM);
        for version in 2..6 {
            let tree = space.tree().page();
            let is_alone = || tree.members().filter(|(_, member)| member.kind() != Kind::Free).count() == 1;
            let pid = fork_unborn(space, |_| {});
            // Once it is dead, any thread of its parent may see that.
            assert!(!is_alone());
            kill(pid);
            // A zombie: nobody else tells that it is gone.
            wait_for_zombie(pid);
            let (began, mut left) = (Instant::now(), 0..pages.len());
            while !is_alone() {
                pages.write(left.next().expect("who is short looks"), version, RANDOM);
            }
            // Others wait for five seconds for a child to take its place.
            assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
            left.for_each(|page| pages.write(page, version, RANDOM));
            assert_eq!(wait(pid), libc::SIGKILL);
        }
        assert_sound(&pages);
    });
}

fn kill(pid: i32) {
    // SAFETY: this process's own child.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
}

/// Waits until a child has ended, and leaves it a zombie.
fn wait_for_zombie(pid: i32) {
    // SAFETY: the kernel writes the structure given.
    let ended = unsafe {
        let mut info = core::mem::zeroed();
        libc::waitid(libc::P_PID, pid as u32, &mut info, libc::WEXITED | libc::WNOWAIT)
    };
    assert_eq!(ended, 0);
}

/// A pipe: who reads from it waits until the other end is closed everywhere.
fn pipe() -> [i32; 2] {
    let mut ends = [0; 2];
    // SAFETY: the kernel writes both numbers.
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    ends
}

fn close(fd: i32) {
    // SAFETY: the test's own descriptor.
    unsafe { libc::close(fd) };
}

fn wait_until_closed(fd: i32) {
    // SAFETY: the kernel writes one byte at most.
    unsafe { libc::read(fd, [0u8; 1].as_mut_ptr().cast(), 1) };
}

/// Bytes of the disk that the space's first file has.
fn disk_bytes(space: &Space) -> u64 {
    let fd = space.fds().nth(1).expect("a spill file");
    // SAFETY: open for as long as the space.
    let file = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned().expect("another descriptor");
    std::fs::File::from(file).metadata().expect("it is open").blocks() * 512
}

#[test]
fn slots_of_children_that_are_zombies_are_used_again() {
    alone(|| {
        let space = space_of(FILE_BYTES);
        let mut pages = Pages::new(space, PAGES, RANDOM);
        let zombies: Vec<i32> = (2..8)
            .map(|version| {
                let pid = fork(space, || {});
                wait_for_zombie(pid);
                rewrite_all(&mut pages, version);
                pid
            })
            .collect();
        assert_sound(&pages);
        zombies.into_iter().for_each(|pid| assert_eq!(wait(pid), 0));
    });
}

#[test]
fn slots_of_children_that_called_exec_are_used_again() {
    alone(|| {
        let space = space_of(FILE_BYTES);
        let mut pages = Pages::new(space, PAGES, RANDOM);
        let children: Vec<i32> = (2..6)
            .map(|version| {
                let [read, write] = pipe();
                let pid = fork(space, || {
                    // SAFETY: the arguments are strings, and end.
                    unsafe {
                        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                        libc::fcntl(write, libc::F_SETFD, libc::FD_CLOEXEC);
                        let (path, name, days) = (c"/bin/sleep", c"sleep", c"9d");
                        libc::execl(path.as_ptr(), name.as_ptr(), days.as_ptr(), core::ptr::null::<u8>());
                    }
                });
                close(write);
                // The kernel closes it in the exec.
                wait_until_closed(read);
                close(read);
                rewrite_all(&mut pages, version);
                pid
            })
            .collect();
        assert_sound(&pages);
        for pid in children {
            // SAFETY: this process's own child.
            unsafe { libc::kill(pid, libc::SIGKILL) };
            assert_eq!(wait(pid), libc::SIGKILL);
        }
    });
}

#[test]
fn slots_of_children_that_were_killed_at_birth_are_used_again() {
    alone(|| {
        let space = space_of(FILE_BYTES);
        let mut pages = Pages::new(space, PAGES, RANDOM);
        for version in 2..8 {
            let pid = fork_unborn(space, |pid| {
                kill(pid);
                wait_for_zombie(pid);
            });
            rewrite_all(&mut pages, version);
            assert_eq!(wait(pid), libc::SIGKILL);
        }
        assert_sound(&pages);
    });
}

#[test]
fn seventy_children_keep_what_they_inherited_and_leave_nothing() {
    alone(|| {
        // Room for two versions: what the children hold, and what this process has.
        let space = space_of(2 * FILE_BYTES);
        let mut pages = Pages::new(space, PAGES, RANDOM);
        for round in 0..2 {
            let [read, write] = pipe();
            let children: Vec<i32> = (0..70)
                .map(|i| {
                    fork(space, || {
                        close(write);
                        wait_until_closed(read);
                        // Each some of it, together all.
                        (i % 10..pages.len()).step_by(10).for_each(|page| pages.check(page));
                    })
                })
                .collect();
            close(read);
            rewrite_all(&mut pages, 10 * round + 2);
            close(write);
            children.into_iter().for_each(|pid| assert_eq!(wait(pid), 0));
            (3..6).for_each(|version| rewrite_all(&mut pages, 10 * round + version));
        }
        assert_sound(&pages);
    });
}

#[test]
fn a_child_whose_parent_was_killed_keeps_what_it_inherited() {
    alone(|| {
        let space = space_of(3 * FILE_BYTES);
        let mut pages = Pages::new(space, PAGES, RANDOM);
        let [read, write] = pipe();
        let [told, tells] = pipe();
        let parent = fork(space, || {
            fork(space, || {
                close(write);
                wait_until_closed(read);
                pages.check_all();
                // SAFETY: the byte is read.
                assert_eq!(unsafe { libc::write(tells, [1u8].as_ptr().cast(), 1) }, 1);
            });
            // SAFETY: ends this process.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        });
        assert_eq!(wait(parent), libc::SIGKILL);
        close(tells);
        (2..6).for_each(|version| rewrite_all(&mut pages, version));
        close(write);
        let mut answer = [0u8; 1];
        // SAFETY: the kernel writes one byte at most.
        assert_eq!(unsafe { libc::read(told, answer.as_mut_ptr().cast(), 1) }, 1);
        assert_sound(&pages);
    });
}

#[test]
fn the_disk_has_back_what_nobody_holds() {
    alone(|| {
        let space = space_of(1 << 30);
        let mut pages = Pages::new(space, 8 * RAM_PAGES, RANDOM);
        let [read, write] = pipe();
        let children: Vec<i32> = (0..2)
            .map(|_| {
                fork(space, || {
                    close(write);
                    wait_until_closed(read);
                    // SAFETY: ends this process.
                    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
                })
            })
            .collect();
        let held = disk_bytes(space);
        rewrite_all(&mut pages, 2);
        close(write);
        children.into_iter().for_each(|pid| assert_eq!(wait(pid), libc::SIGKILL));
        (3..5).for_each(|version| rewrite_all(&mut pages, version));
        let (now, needed) = (disk_bytes(space), (pages.len() * PAGE) as u64);
        assert!(now <= needed + KEPT_BYTES, "{now} bytes for {needed}, {held} before");
        assert_sound(&pages);
    });
}

/// Bytes that this process has in files.
fn in_files(space: &'static Space) -> u64 {
    let mut bytes = 0;
    assert!(space.devices(|device| bytes += device.used_bytes));
    bytes
}

/// A child changes what it has, and a grandchild reads it; the child is killed in the midst of that.
#[test]
fn slots_that_a_killed_child_shared_with_others_are_read_on_and_come_free() {
    alone(|| {
        const MANY: usize = 6 * RAM_PAGES;
        // Three times what is out: of what children hold, little may stay for the next ones.
        let space = space_of(80 << 20);
        let mut pages = Pages::new(space, MANY, COMPRESSIBLE);
        let rewrite = |pages: &mut Pages, version| {
            (0..MANY).for_each(|page| pages.write(page, version, [COMPRESSIBLE, 5, COMPRESSIBLE][page % 3]));
        };
        rewrite(&mut pages, 2);
        let (packed, most) = (space.stats().writeback_pages.load(Relaxed), in_files(space));
        assert!(packed > MANY as u64 / 2 && most > 16 << 20, "{packed} pages in {most} bytes");
        let mut random = Random(11);
        for version in 3..8 {
            let [told, tells] = pipe();
            let child = fork(space, || {
                close(told);
                let mut own = Pages { space, at: pages.at, versions: pages.versions.clone() };
                (0..MANY).step_by(3).for_each(|page| own.write(page, 10 + version, COMPRESSIBLE));
                let say = |byte: u8| {
                    // SAFETY: the byte is read.
                    assert_eq!(unsafe { libc::write(tells, [byte].as_ptr().cast(), 1) }, 1);
                };
                fork(space, || {
                    say(1);
                    own.check_all();
                    assert_eq!(space.validate(), Ok(()));
                    say(2);
                });
                let mut random = Random(version);
                for n in 100.. {
                    let page = random.below(MANY);
                    own.check(page);
                    own.write(page, n, [COMPRESSIBLE, RANDOM][n as usize % 2]);
                }
            });
            close(tells);
            // SAFETY: the test's own descriptor, which is used nowhere else.
            let mut told = unsafe { std::fs::File::from_raw_fd(told) };
            let mut said = vec![0; if version % 3 == 0 { 0 } else { 1 }];
            told.read_exact(&mut said).expect("a grandchild begins");
            std::thread::sleep(Duration::from_millis(random.below(300) as u64));
            // SAFETY: this process's own child.
            unsafe { libc::kill(child, libc::SIGKILL) };
            rewrite(&mut pages, version);
            assert_eq!(wait(child), libc::SIGKILL);
            told.read_to_end(&mut said).expect("it can be read");
            // There may be no grandchild where the child was killed at any moment.
            assert!(said == [1, 2] || version % 3 == 0 && said.is_empty(), "the grandchild said {said:?}");
        }
        rewrite(&mut pages, 20);
        let (now, needed) = (disk_bytes(space), in_files(space));
        assert!(now <= 2 * needed + KEPT_BYTES, "{now} bytes for {needed}");
        assert_sound(&pages);
    });
}
