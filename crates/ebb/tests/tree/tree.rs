//! Processes that share a budget: what a fork costs, what a death gives back, and what both sides of a fork read.

use crate::harness::alone::{
    COMPRESSIBLE, Pages, RAM, RAM_PAGES, alone, assert_sound, fork, mixed, rewrite, space_in_tree, wait,
};
use crate::harness::{PATIENCE, ctx, force};
use ebb::tree::Kind;
use ebb::{Space, SwapSpec};
use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// What a process may have in hand beyond what it uses: a few batches, its books, and what a sweep overshoots by.
const SLACK_PAGES: i64 = 512;
/// The same without the books: what the parent's and the child's batches come to, and what a fork copies of the tests' own memory.
const BOOKS_SLACK_PAGES: i64 = 192;

/// The process's space, in a tree of its own.
fn space() -> &'static Space {
    space_and_file().0
}

fn space_and_file() -> (&'static Space, i32) {
    space_in_tree(RAM, &[SwapSpec { dir: c"/var/tmp", bytes: 1 << 30, priority: None, ..SwapSpec::DEFAULT }])
}

/// Runs `f` in a thread with a table of descriptors of its own: to the kernel another owner of locks.
fn in_own_table(f: &(dyn Fn() + Sync)) {
    let thread = || {
        // SAFETY: changes this thread's table of descriptors alone.
        assert_eq!(unsafe { libc::unshare(libc::CLONE_FILES) }, 0);
        f();
    };
    std::thread::scope(|scope| scope.spawn(thread).join().expect("no panic"));
}

/// Whether this process has locked the place.
fn is_locked(fd: i32, index: u32) -> bool {
    let (found, pid) = (AtomicBool::new(false), std::process::id() as i32);
    in_own_table(&|| found.store(ebb::tree::holder(fd, index) == Some(pid), Relaxed));
    found.load(Relaxed)
}

/// Gives up what is locked in this table, as its end does.
fn lose_locks(fd: i32) {
    // SAFETY: a descriptor of the test's own.
    unsafe { libc::close(libc::dup(fd)) };
}

fn held(space: &Space) -> i64 {
    space.tree().page().sum().held
}

/// Anonymous memory of this process and `child`, each page once, in pages.
fn anonymous_pages(child: i32) -> i64 {
    anonymous_pages_of("self") + anonymous_pages_of(&child.to_string())
}

/// The part of a process.
fn anonymous_pages_of(pid: &str) -> i64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("the process's maps");
    let line = text.lines().find_map(|line| line.strip_prefix("Pss_Anon:")).expect("Linux 5.4 or newer");
    line.trim().trim_end_matches(" kB").parse::<i64>().expect("a number") / 4
}

/// Two ends by which a parent and a child tell each other to go on.
struct Steps {
    to_child: (std::io::PipeReader, std::io::PipeWriter),
    to_parent: (std::io::PipeReader, std::io::PipeWriter),
}

impl Steps {
    fn new() -> Self {
        Self { to_child: std::io::pipe().expect("a pipe"), to_parent: std::io::pipe().expect("a pipe") }
    }

    fn child_waits(&self) {
        (&self.to_child.0).read_exact(&mut [0]).expect("the parent lives");
    }

    fn child_is_done(&self) {
        (&self.to_parent.1).write_all(&[1]).expect("the parent lives");
    }

    fn parent_has(&self) {
        (&self.to_child.1).write_all(&[1]).expect("the child lives");
        self.parent_waits();
    }

    fn parent_waits(&self) {
        (&self.to_parent.0).read_exact(&mut [0]).expect("the child lives");
    }
}

/// Waits for the end of a child, and takes back what it held.
fn end(space: &Space, pid: i32) {
    assert_eq!(wait(pid), 0);
    space.tree().reap();
}

#[test]
fn a_fork_is_counted_once_until_one_side_writes() {
    alone(|| {
        let space = space();
        let n = RAM_PAGES / 4;
        let mut pages = Pages::new(space, n, 3);
        let (before, steps) = (held(space), Steps::new());
        let child = fork(space, || {
            steps.child_is_done();
            steps.child_waits();
            let mut own = Pages { space, at: pages.at, versions: pages.versions.clone() };
            (0..n / 2).for_each(|page| own.write(page, 7, 3));
            steps.child_is_done();
            steps.child_waits();
            own.check_all();
            std::mem::forget(own);
            steps.child_is_done();
            steps.child_waits();
        });
        steps.parent_waits();
        let (forked, real_before) = (held(space), anonymous_pages(child));
        assert!(forked - before < n as i64 / 2, "held {before} before the fork and {forked} after it");
        steps.parent_has();
        let (half, real_half) = (held(space), anonymous_pages(child));
        // What the sum says has grown by is what the kernel has copied.
        let (grown, copied) = (half - forked, real_half - real_before);
        assert!((grown - copied).abs() <= SLACK_PAGES, "{grown} pages more are held, {copied} were copied");
        assert!(grown >= n as i64 / 2 - SLACK_PAGES, "{grown}");
        // The parent writes to the same pages: they are nobody else's now, and are not counted again.
        (0..n / 2).for_each(|page| pages.write(page, 8, 3));
        assert!(held(space) - half <= SLACK_PAGES, "{half} and then {}", held(space));
        // And to others.
        (n / 2..n).for_each(|page| pages.write(page, 9, 3));
        assert!(held(space) - half >= n as i64 / 2 - SLACK_PAGES);
        steps.parent_has();
        drop((&steps.to_child.1).write_all(&[1]));
        end(space, child);
        assert!((held(space) - before).abs() <= SLACK_PAGES, "{before} before and {} after", held(space));
        assert_sound(&pages);
    });
}

#[test]
fn what_a_child_has_for_itself_at_once_is_in_the_budget() {
    alone(|| {
        let space = space();
        let pages = mixed(space);
        let limit = space.tree().limit() as i64;
        for _ in 0..8 {
            // The budget is full, and much of it is staged.
            pages.check_all();
            let steps = Steps::new();
            space.make_fork_room(ctx(space));
            let child = fork(space, || {
                steps.child_is_done();
                steps.child_waits();
            });
            // What is copied to be unmapped is there twice for a moment: only the background thread does that here.
            let patience = if force().no_background { Duration::ZERO } else { PATIENCE };
            let began = Instant::now();
            let mut forked = held(space);
            while forked > limit && began.elapsed() < patience {
                std::thread::sleep(Duration::from_millis(1));
                forked = held(space);
            }
            steps.parent_waits();
            assert!(forked <= limit, "{forked} pages are held of {limit}");
            steps.to_child.1.try_clone().and_then(|mut end| end.write_all(&[1])).expect("the child lives");
            end(space, child);
        }
        assert_sound(&pages);
    });
}

#[test]
fn books_are_counted_as_the_kernel_has_them_after_a_fork() {
    alone(|| {
        let space = space();
        let pages = Pages::new(space, 16 * RAM_PAGES, COMPRESSIBLE);
        // From the first fork on the parent's are charged as the kernel has them, too.
        space.make_fork_room(ctx(space));
        end(space, fork(space, || ()));
        // Less what nobody manages, such as this test's own memory.
        let beside = held(space) - anonymous_pages_of("self");
        let steps = Steps::new();
        space.make_fork_room(ctx(space));
        let child = fork(space, || {
            steps.child_is_done();
            steps.child_waits();
            // All tables are written to, and much of them is given back.
            drop(Pages { space, at: pages.at, versions: pages.versions.clone() });
            steps.child_is_done();
            steps.child_waits();
        });
        steps.parent_waits();
        let until_counted = |what: &str| {
            let began = Instant::now();
            while ((held(space) - anonymous_pages(child)) - beside).abs() > BOOKS_SLACK_PAGES {
                let now = held(space) - anonymous_pages(child);
                assert!(began.elapsed() < PATIENCE, "{what}: {beside} pages beside, {now} now");
                std::thread::sleep(Duration::from_millis(10));
            }
        };
        until_counted("after the fork");
        steps.parent_has();
        until_counted("after the child has written to them");
        drop((&steps.to_child.1).write_all(&[1]));
        end(space, child);
        assert_sound(&pages);
    });
}

#[test]
fn who_changes_what_it_may_do_keeps_no_map_of_its_pages() {
    alone(|| {
        let space = space();
        let pages = Pages::new(space, RAM_PAGES, COMPRESSIBLE);
        let nr_fds = || space.fds().filter(|fd| *fd >= 0).count();
        let none = nr_fds();
        let steps = Steps::new();
        space.make_fork_room(ctx(space));
        assert_eq!(nr_fds(), none + 1);
        let child = fork(space, || {
            steps.child_is_done();
            steps.child_waits();
        });
        steps.parent_waits();
        let before = held(space);
        space.close_books();
        assert_eq!(nr_fds(), none);
        // Nobody knows any more what is copied: it counts as if all were.
        assert!(held(space) > before, "{before} and {} then", held(space));
        drop((&steps.to_child.1).write_all(&[1]));
        end(space, child);
        space.make_fork_room(ctx(space));
        assert_eq!(nr_fds(), none + 1);
        assert_sound(&pages);
    });
}

#[test]
fn what_is_given_up_on_one_side_is_the_other_sides() {
    alone(|| {
        let space = space();
        let n = RAM_PAGES / 4;
        let mut pages = Some(Pages::new(space, n, 3));
        let steps = Steps::new();
        let (at, versions) = pages.as_ref().map(|pages| (pages.at, pages.versions.clone())).expect("pages");
        let before = held(space);
        let child = fork(space, || {
            steps.child_is_done();
            steps.child_waits();
            let own = Pages { space, at, versions };
            own.check_all();
            drop(own);
            steps.child_is_done();
            steps.child_waits();
        });
        steps.parent_waits();
        // The parent unmaps: the child has them, so they are held as before.
        drop(pages.take());
        let left = held(space);
        assert!((left - before).abs() <= SLACK_PAGES, "{before} and then {left}");
        steps.parent_has();
        assert!(before - held(space) >= n as i64 - SLACK_PAGES, "{before} and then {}", held(space));
        drop((&steps.to_child.1).write_all(&[1]));
        end(space, child);
    });
}

#[test]
fn both_sides_of_a_fork_keep_their_content_under_pressure() {
    if force().no_background {
        // Then nobody gives up memory for who only waits, and here two wait for the third.
        return;
    }
    alone(|| {
        let space = space();
        let mut pages = mixed(space);
        for round in 1..4 {
            let child = fork(space, || {
                let mut own = Pages { space, at: pages.at, versions: pages.versions.clone() };
                own.check_all();
                rewrite(&mut own, 100 + round);
                // One more shares with both.
                let grandchild = fork(space, || own.check_all());
                rewrite(&mut own, 200 + round);
                assert_eq!(wait(grandchild), 0);
                assert_sound(&own);
                std::mem::forget(own);
            });
            rewrite(&mut pages, round);
            end(space, child);
            assert_sound(&pages);
            let now = held(space);
            assert!(now <= RAM_PAGES as i64 + SLACK_PAGES, "{now} pages of {RAM_PAGES}");
        }
    });
}

#[test]
fn an_idle_parent_gives_up_what_its_child_has_written_to() {
    alone(|| {
        let space = space();
        let n = RAM_PAGES / 4 * 3;
        let pages = Pages::new(space, n, COMPRESSIBLE);
        let steps = Steps::new();
        let child = fork(space, || {
            let mut own = Pages { space, at: pages.at, versions: pages.versions.clone() };
            let own_index = space.tree().id().index;
            let parents = || {
                let others = space.tree().page().members().filter(|(index, _)| *index != own_index);
                others.map(|(_, member)| member.charged.load(Relaxed)).sum::<u64>()
            };
            let (before, start) = (parents(), Instant::now());
            // Without a background thread nobody answers for it.
            let is_enough = || force().no_background || before - parents().min(before) > n as u64 / 4;
            let mut version = 7;
            while !is_enough() && start.elapsed() < PATIENCE {
                version += 1;
                // Three quarters: much is shared still when it is done.
                (0..n / 4 * 3).for_each(|page| own.write(page, version, COMPRESSIBLE));
            }
            assert!(is_enough(), "it gave {} of {n} pages", before.saturating_sub(parents()));
            steps.child_is_done();
            steps.child_waits();
            own.check_all();
            std::mem::forget(own);
        });
        steps.parent_waits();
        drop((&steps.to_child.1).write_all(&[1]));
        end(space, child);
        assert_sound(&pages);
    });
}

#[test]
fn what_a_child_left_to_its_parent_is_shared_with_the_next_one() {
    alone(|| {
        let space = space();
        let n = RAM_PAGES / 4 * 3;
        let pages = Pages::new(space, n, COMPRESSIBLE);
        // More stretches than not, of more pages than a write opens, so that units are left with both kinds.
        let is_rewritten = |page: &usize| page / 64 % 8 < 5;
        let own = || std::mem::ManuallyDrop::new(Pages { space, at: pages.at, versions: pages.versions.clone() });
        let first = Steps::new();
        let elder = fork(space, || {
            let (mut own, mut more) = (own(), Pages::new(space, RAM_PAGES / 3, COMPRESSIBLE));
            let start = Instant::now();
            let mut version = 7;
            // The parent has to look for what is its own now, and gives most of it up.
            while start.elapsed() < Duration::from_secs(2) {
                version += 1;
                (0..n).filter(is_rewritten).for_each(|page| own.write(page, version, COMPRESSIBLE));
                (0..more.len()).for_each(|page| more.write(page, version, COMPRESSIBLE));
            }
            own.check_all();
            first.child_is_done();
            first.child_waits();
        });
        first.parent_waits();
        drop((&first.to_child.1).write_all(&[1]));
        end(space, elder);
        let second = Steps::new();
        let younger = fork(space, || {
            second.child_is_done();
            second.child_waits();
            let mut own = own();
            (0..n).filter(|page| !is_rewritten(page)).for_each(|page| own.write(page, 99, COMPRESSIBLE));
            second.child_is_done();
            second.child_waits();
            own.check_all();
        });
        second.parent_waits();
        // Another thread may still be at what the dead process held.
        let beyond = || {
            let began = Instant::now();
            let mut pages = held(space) - anonymous_pages(younger);
            while pages.abs() > SLACK_PAGES && began.elapsed() < PATIENCE {
                std::thread::sleep(Duration::from_millis(10));
                space.tree().reap();
                pages = held(space) - anonymous_pages(younger);
            }
            pages
        };
        let before = beyond();
        second.parent_has();
        let after = beyond();
        assert!(before.abs().max(after.abs()) <= SLACK_PAGES, "held beyond what is there: {before}, and then {after}");
        drop((&second.to_child.1).write_all(&[1]));
        end(space, younger);
        assert_sound(&pages);
    });
}

#[test]
fn what_a_killed_process_held_comes_back() {
    alone(|| {
        let space = space();
        let before = held(space);
        let steps = Steps::new();
        let child = fork(space, || {
            let own = Pages::new(space, RAM_PAGES / 2, 3);
            steps.child_is_done();
            steps.child_waits();
            drop(own);
        });
        steps.parent_waits();
        assert!(held(space) - before >= RAM_PAGES as i64 / 2);
        // SAFETY: a child of this test.
        unsafe { libc::kill(child, libc::SIGKILL) };
        assert_eq!(wait(child) & 0x7f, libc::SIGKILL);
        // A charge that does not fit otherwise finds it out by itself.
        let pages = Pages::new(space, RAM_PAGES * 3 / 4, 3);
        assert!(
            space
                .tree()
                .page()
                .members()
                .all(|(index, member)| { member.kind() == Kind::Free || index == space.tree().id().index })
        );
        assert_sound(&pages);
    });
}

#[test]
fn a_place_that_was_reserved_by_a_process_that_died_is_free_again() {
    alone(|| {
        let space = space();
        let before = held(space);
        let child = fork(space, || {
            let _own = std::mem::ManuallyDrop::new(Pages::new(space, RAM_PAGES / 4, 3));
            // It dies between the two halves of a fork.
            space.fork_prepare(ctx(space));
            // SAFETY: ends the child.
            unsafe { libc::_exit(0) };
        });
        assert_eq!(wait(child), 0);
        assert_eq!(space.tree().reap() + space.tree().reap(), 2);
        assert!((held(space) - before).abs() <= SLACK_PAGES);
    });
}

#[test]
fn who_lost_its_lock_takes_a_place_again() {
    const GRANTED: i64 = 1 << 20;
    alone(|| {
        let space = space();
        let pages = Pages::new(space, RAM_PAGES / 4, 3);
        let (id, steps) = (space.tree().id(), Steps::new());
        let child = fork(space, || {
            steps.child_is_done();
            steps.child_waits();
            assert_eq!(space.tree().reap(), 1);
            // Somebody else is at the place now, who may hold much.
            let other = space.tree().claim_outside(0).expect("a place");
            let member = space.tree().page().find(other).expect("a member");
            assert_eq!(other.index, id.index);
            member.granted.store(GRANTED, Relaxed);
            steps.child_is_done();
            steps.child_waits();
            assert_eq!(member.granted.load(Relaxed), GRANTED);
            assert_eq!((member.wanted.load(Relaxed), member.charged.load(Relaxed)), (0, 0));
        });
        steps.parent_waits();
        // Another descriptor of the file, and its end.
        let links = std::fs::read_dir("/proc/self/fd").expect("descriptors").flatten();
        let ours = links.map(|link| link.path()).find(|link| {
            std::fs::read_link(link).is_ok_and(|target| target.to_string_lossy().starts_with("/memfd:tree"))
        });
        drop(std::fs::File::open(ours.expect("the tree's file")).expect("a second descriptor"));
        steps.parent_has();
        assert!(space.tree().page().find(id).is_none());
        let alone_held = held(space);
        // What it charges next tells it: all that it has counts again.
        let more = Pages::new(space, SLACK_PAGES as usize, 3);
        assert_ne!(space.tree().id(), id);
        assert!(held(space) - alone_held >= RAM_PAGES as i64 / 4, "{alone_held} and then {}", held(space));
        drop((&steps.to_child.1).write_all(&[1]));
        end(space, child);
        assert_sound(&pages);
        assert_sound(&more);
    });
}

#[test]
fn a_thread_with_its_own_table_of_descriptors_is_the_same_member() {
    alone(|| {
        let space = space();
        let pages = Pages::new(space, RAM_PAGES / 4, 3);
        let members = || space.tree().page().members().filter(|(_, member)| member.kind() != Kind::Free).count();
        let (id, there, before) = (space.tree().id(), members(), held(space));
        in_own_table(&|| {
            space.hold_membership();
            assert_eq!((space.tree().id(), members(), held(space)), (id, there, before));
            // What is locked in the other table would go with the others at an exec of this one.
            let other = space.tree().leave_for_exec(70).expect("another place");
            assert_ne!(other.index, id.index);
            // The new program has that one.
            let counts = [id, other].map(|id| space.tree().page().member(id.index).counted_outside());
            assert_eq!(counts, [0, 70]);
            assert_eq!(members(), there + 1);
            space.tree().drop_outside(other);
            space.back_from_exec();
            assert_eq!((space.tree().id(), members()), (id, there));
        });
        assert_sound(&pages);
    });
}

#[test]
fn a_lock_that_went_with_another_table_of_descriptors_is_taken_again() {
    alone(|| {
        let (space, fd) = space_and_file();
        space.note_own_tables();
        let id = space.tree().id();
        let is_locked = || is_locked(fd, id.index);
        // The background thread begins in the table of the thread that needs it first.
        in_own_table(&|| drop(Pages::new(space, RAM_PAGES / 4, 3)));
        assert!(space.background().has_thread() && is_locked());
        lose_locks(fd);
        let began = Instant::now();
        while !is_locked() {
            assert!(began.elapsed() < PATIENCE, "nobody has locked it again");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!((space.tree().id(), space.tree().member().kind()), (id, Kind::Managed));
    });
}

#[test]
fn a_process_stays_outside_until_the_last_of_two_execs_has_failed() {
    alone(|| {
        let (space, fd) = space_and_file();
        let pages = Pages::new(space, RAM_PAGES / 4, 3);
        let (id, kind) = (space.tree().id(), || space.tree().member().kind());
        let left_ms = || space.tree().member().left_ms.load(Relaxed);
        assert_eq!(space.tree().leave_for_exec(0), None);
        let first_ms = left_ms();
        std::thread::sleep(Duration::from_millis(5));
        assert_eq!(space.tree().leave_for_exec(0), None);
        assert_eq!((kind(), left_ms()), (Kind::Outside, first_ms));
        space.back_from_exec();
        assert_eq!((kind(), left_ms()), (Kind::Outside, first_ms));
        // The other one may be another program at any moment, to which locks go that are taken now.
        assert!(is_locked(fd, id.index));
        lose_locks(fd);
        space.hold_membership();
        assert_eq!((is_locked(fd, id.index), space.tree().id()), (false, id));
        assert_eq!(space.tree().reserve_child(), None);
        space.back_from_exec();
        assert_eq!((kind(), space.tree().id()), (Kind::Managed, id));
        assert!(is_locked(fd, id.index));
        assert_sound(&pages);
    });
}

/// What the next program will have counts from the exec on, and is granted to it when it takes its place.
#[test]
fn what_a_program_will_have_counts_before_it_says_so() {
    alone(|| {
        let (space, fd) = space_and_file();
        let tree = space.tree();
        let (before, granted) = (held(space), tree.granted());
        assert_eq!(tree.leave_for_exec(500), None);
        assert_eq!((held(space), tree.member().counted_outside()), (before - granted + 500, 500));
        // As the new program does, in this process.
        let next = ebb::tree::Tree::join(tree.page(), Some(fd)).expect("a place");
        assert_eq!(
            (next.id().index, next.granted(), next.page().sum().held),
            (tree.id().index, 500, before - granted + 500)
        );
        // Of a small budget half stays.
        assert_eq!(next.leave_for_exec(i64::MAX), None);
        assert_eq!(next.member().counted_outside(), tree.page().limit() as i64 / 2);
    });
}

#[test]
fn an_exec_that_fails_at_once_changes_nothing() {
    /// Half of the time after which others may take back what who called exec had, less two readings of the clock.
    const AT_ONCE: Duration = Duration::from_millis(8);
    alone(|| {
        let space = space();
        let pages = Pages::new(space, RAM_PAGES / 4, 3);
        let began = Instant::now();
        loop {
            let steps = Steps::new();
            let child = fork(space, || {
                steps.child_is_done();
                steps.child_waits();
            });
            steps.parent_waits();
            let (shared, start) = (held(space), Instant::now());
            space.tree().leave_for_exec(0);
            let meanwhile = held(space);
            space.back_from_exec();
            let (took, after) = (start.elapsed(), held(space));
            (&steps.to_child.1).write_all(&[1]).expect("the child lives");
            end(space, child);
            // A process that lost its processor in between did not come back at once.
            if took < AT_ONCE {
                assert_eq!((meanwhile, after), (shared, shared));
                break;
            }
            assert!(began.elapsed() < PATIENCE, "it never came back at once");
        }
        assert_sound(&pages);
    });
}

#[test]
fn a_relative_that_is_another_program_shares_nothing() {
    alone(|| {
        let space = space();
        let n = RAM_PAGES / 4;
        let pages = Pages::new(space, n, 3);
        let (id, steps) = (space.tree().id(), Steps::new());
        let child = fork(space, || {
            steps.child_is_done();
            steps.child_waits();
            space.tree().reap();
            steps.child_is_done();
            steps.child_waits();
            pages.check_all();
        });
        steps.parent_waits();
        let shared = held(space);
        // As at an exec of the parent, whose pages are gone then: the child's count in full, its parent's no more.
        space.tree().leave_for_exec(0);
        std::thread::sleep(Duration::from_millis(50));
        steps.parent_has();
        assert!((held(space) - shared).abs() <= SLACK_PAGES, "{shared} and then {}", held(space));
        assert_eq!(space.tree().page().shares().map(|(_, share)| share.surplus()).sum::<i64>(), 0);
        assert!(space.tree().page().shares().all(|(_, share)| share.number_of(id).is_none()));
        // One that fails so late has the process's pages count in full.
        space.back_from_exec();
        assert!((held(space) - shared - n as i64).abs() <= SLACK_PAGES, "{shared} and then {}", held(space));
        drop((&steps.to_child.1).write_all(&[1]));
        end(space, child);
    });
}

#[test]
fn the_smallest_budget_is_for_the_whole_tree() {
    alone(|| {
        let space = space();
        let children: Vec<i32> = (0..4)
            .map(|seed| {
                fork(space, || {
                    let mut own = Pages::new(space, RAM_PAGES / 2, seed & 3);
                    rewrite(&mut own, seed);
                    assert_sound(&own);
                })
            })
            .collect();
        let mut most = 0;
        for child in children {
            let mut status = 0;
            // SAFETY: the kernel writes the status.
            while unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } == 0 {
                most = most.max(held(space));
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(status, 0);
        }
        assert!(most <= RAM_PAGES as i64 + 4 * SLACK_PAGES, "{most} pages of {RAM_PAGES}");
    });
}
