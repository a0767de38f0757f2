//! What processes of several generations hold in common is counted once, whatever they do: compared with the kernel's own
//! account of who maps a page.

use crate::harness::alone::{PAGE, Pages, alone, fork, space_in_tree};
use crate::harness::{PATIENCE, Random};
use ebb::gate::Gate;
use ebb::tree;
use ebb::tree::masks::{Extent, LEAF_SHIFT};
use ebb::tree::share::HOLDERS_MAX;
use ebb::uapi::pagemap;
use ebb::{Space, SwapSpec};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

/// All that a test writes stays in memory.
const RAM: u64 = 256 << 20;
/// Pages that the first process has.
const PAGES: usize = 1280;
/// A write opens so many around it, aligned: they are each one's own from then on, though they may never be copied.
const OPENED: usize = 64;
/// Processes at a time.
const PLACES: usize = 8;
/// Pages that a kill in the midst of a fork or a write may have counted too often.
const PAGES_PER_KILL: i64 = 128;

// What a process is to do: a command, and two numbers.
const IDLE: u64 = 0;
const WRITE: u64 = 1;
const FORK: u64 = 2;
const EXIT: u64 = 3;
/// Writes and forks until it is killed.
const GO_ON: u64 = 4;

/// What the test and its processes tell each other: for each process a command, which it sets to [`IDLE`] when it has done so,
/// and its number.
struct Board {
    commands: [AtomicU64; PLACES],
    pids: [AtomicU64; PLACES],
    /// Processes that found something wrong.
    failures: AtomicU64,
}

/// Counts the process as one that failed when it does.
struct Guard<'a>(&'a Board);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.failures.fetch_add(1, SeqCst);
        }
    }
}

fn shared_memory<T>() -> &'static T {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    // SAFETY: fresh memory that is never unmapped; zeroed it is a valid board.
    unsafe {
        let at = libc::mmap(std::ptr::null_mut(), size_of::<T>().next_multiple_of(PAGE), prot, flags, -1, 0);
        assert!(at != libc::MAP_FAILED);
        &*at.cast::<T>()
    }
}

/// The process's space, in a tree of its own, and the file of that.
fn space() -> (&'static Space, i32) {
    space_in_tree(RAM, &[])
}

/// What a process does until it is told to end. Its pages have the content that it, or who forked it, wrote last.
fn serve(board: &'static Board, place: usize, pages: &mut Pages) {
    let _guard = Guard(board);
    board.pids[place].store(u64::from(std::process::id()), SeqCst);
    board.commands[place].store(IDLE, SeqCst);
    let mut random = Random(place as u64 + 99);
    loop {
        let command = board.commands[place].load(SeqCst);
        let (what, first, second) = (command & 0xff, (command >> 8) as usize & 0xff_ffff, (command >> 32) as usize);
        match what {
            WRITE => (first..second).for_each(|page| pages.write(page, command, 3)),
            FORK => return_in_child(board, first, pages),
            EXIT => {
                pages.check_all();
                return;
            }
            GO_ON => {
                let page = random.below(PAGES);
                (page..(page + 50).min(PAGES)).for_each(|page| pages.write(page, command, 3));
                // SAFETY: takes dead children away.
                while unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) } > 0 {}
                fork(pages.space, || {
                    let _guard = Guard(board);
                    pages.check(page);
                });
                continue;
            }
            _ => {
                std::thread::sleep(Duration::from_micros(200));
                continue;
            }
        }
        board.commands[place].store(IDLE, SeqCst);
    }
}

/// Forks a process that serves at another place.
fn return_in_child(board: &'static Board, place: usize, pages: &mut Pages) {
    let versions = pages.versions.clone();
    let (space, at) = (pages.space, pages.at);
    fork(space, || {
        let mut own = std::mem::ManuallyDrop::new(Pages { space, at, versions });
        serve(board, place, &mut own);
    });
}

/// Bytes resident and proportional of the mapping at `at`, pages.
fn mapped(pid: u64, at: usize) -> (i64, i64) {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap_or_default();
    let mut is_this = false;
    let (mut rss, mut pss) = (0, 0);
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let Some(name) = words.next() else { continue };
        if let Some((start, end)) = name.split_once('-') {
            let hex = |text| usize::from_str_radix(text, 16).unwrap_or(0);
            is_this = (hex(start)..hex(end)).contains(&at);
        } else if is_this && (name == "Rss:" || name == "Pss:") {
            let kib: i64 = words.next().and_then(|n| n.parse().ok()).expect("a number");
            *if name == "Rss:" { &mut rss } else { &mut pss } += kib;
        }
    }
    (rss, pss)
}

struct Family {
    space: &'static Space,
    fd: i32,
    board: &'static Board,
    at: usize,
}

impl Family {
    /// One process, with all pages.
    fn new() -> Self {
        let (space, fd) = space();
        let board = shared_memory::<Board>();
        let mut pages = std::mem::ManuallyDrop::new(Pages::aligned(space, PAGES, 3));
        let this = Self { space, fd, board, at: pages.at as usize };
        this.board.commands[0].store(FORK, SeqCst);
        return_in_child(board, 0, &mut pages);
        this.wait_for(0);
        // What this process has is none of the test's business.
        std::mem::ManuallyDrop::into_inner(pages);
        this
    }

    fn wait_for(&self, place: usize) {
        let began = Instant::now();
        while self.board.commands[place].load(SeqCst) != IDLE {
            assert!(began.elapsed() < PATIENCE, "the process at {place} does not answer");
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    fn tell(&self, place: usize, what: u64, first: usize, second: usize) {
        self.board.commands[place].store(what | (first as u64) << 8 | (second as u64) << 32, SeqCst);
    }

    fn do_now(&self, place: usize, what: u64, first: usize, second: usize) {
        self.tell(place, what, first, second);
        if what != EXIT {
            return self.wait_for(place);
        }
        self.wait_for_end(place);
    }

    fn fork(&self, place: usize, child: usize) {
        self.board.commands[child].store(FORK, SeqCst);
        self.do_now(place, FORK, child, 0);
        self.wait_for(child);
    }

    fn kill(&self, place: usize) {
        // SAFETY: a process of this test's.
        unsafe { libc::kill(self.board.pids[place].load(SeqCst) as i32, libc::SIGKILL) };
        self.wait_for_end(place);
    }

    fn wait_for_end(&self, place: usize) {
        let pid = self.board.pids[place].swap(0, SeqCst);
        let began = Instant::now();
        let lives = || {
            // SAFETY: takes it away when it is this process's child.
            unsafe { libc::waitpid(pid as i32, std::ptr::null_mut(), libc::WNOHANG) };
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            !stat.is_empty() && !stat.contains(") Z ")
        };
        while lives() {
            assert!(began.elapsed() < PATIENCE, "the process at {place} does not end");
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    fn lives(&self, place: usize) -> bool {
        self.board.pids[place].load(SeqCst) != 0
    }

    /// Pages that are left out of the sum, and those that are mapped more than once.
    fn surplus(&self) -> (i64, i64) {
        assert_eq!(self.board.failures.load(SeqCst), 0, "a process found something wrong");
        self.space.tree().reap();
        let page = self.space.tree().page();
        let mut mapped_kib = 0;
        for place in (0..PLACES).filter(|place| self.lives(*place)) {
            let (rss, pss) = mapped(self.board.pids[place].load(SeqCst), self.at);
            assert!(rss >= (4 * PAGES) as i64, "something was swapped out");
            mapped_kib += rss - pss;
        }
        let counted = page.shares().map(|(_, share)| share.surplus()).sum::<i64>();
        (counted, mapped_kib / 4)
    }

    /// It is exactly what the kernel says, and what the masks say.
    fn assert_exact(&self) {
        let (counted, mapped) = self.surplus();
        // The kernel rounds the part of each mapping.
        assert!((counted - mapped).abs() <= 2 * PLACES as i64, "{counted} are left out, {mapped} are mapped again");
        tree::recount(self.space.tree().page(), self.fd, |index, recounted, _| {
            assert_eq!(self.space.tree().page().share(index).surplus(), recounted);
        });
    }

    fn end(self) {
        for place in 0..PLACES {
            if self.lives(place) {
                self.do_now(place, EXIT, 0, 0);
            }
        }
        self.assert_exact();
        let page = self.space.tree().page();
        assert_eq!(page.shares().map(|(_, share)| share.surplus()).sum::<i64>(), 0);
        let own = self.space.tree().id();
        assert!(page.shares().all(|(_, share)| share.holders().all(|(_, id)| id == own)), "somebody has bits still");
    }
}

#[test]
fn three_generations_count_once_when_the_middle_one_dies() {
    alone(|| {
        let family = Family::new();
        family.fork(0, 1);
        family.fork(1, 2);
        family.assert_exact();
        family.do_now(1, WRITE, 0, 320);
        family.assert_exact();
        family.do_now(0, WRITE, 128, 448);
        family.assert_exact();
        family.kill(1);
        family.assert_exact();
        assert_eq!(family.surplus().0, PAGES as i64 - 320);
        family.do_now(2, WRITE, 0, PAGES);
        assert_eq!(family.surplus().0, 0);
        family.end();
    });
}

#[test]
fn children_share_after_their_parent_is_dead() {
    alone(|| {
        let family = Family::new();
        (1..5).for_each(|child| family.fork(0, child));
        family.assert_exact();
        // A write of the one that all share with makes one page more, not four.
        family.do_now(0, WRITE, 0, 512);
        assert_eq!(family.surplus().0, 4 * PAGES as i64 - 512);
        family.do_now(0, EXIT, 0, 0);
        family.assert_exact();
        assert_eq!(family.surplus().0, 3 * PAGES as i64);
        family.fork(2, 0);
        family.assert_exact();
        assert_eq!(family.surplus().0, 4 * PAGES as i64);
        family.end();
    });
}

/// What was written since the last fork goes where an earlier child still has the old content.
#[test]
fn pages_that_earlier_children_share_are_shared_anew() {
    alone(|| {
        let family = Family::new();
        family.fork(0, 1);
        family.fork(0, 2);
        family.do_now(0, WRITE, 0, 640);
        family.fork(0, 3);
        family.assert_exact();
        family.do_now(0, WRITE, 0, 384);
        family.fork(0, 4);
        family.do_now(0, WRITE, 0, 192);
        family.fork(0, 5);
        family.assert_exact();
        family.end();
    });
}

#[test]
fn random_families_agree_with_the_kernel() {
    alone(|| {
        let seed = std::env::var("EBB_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or_else(|| u64::from(std::process::id()));
        eprintln!("EBB_TEST_SEED={seed}");
        let mut random = Random(seed | 1);
        let family = Family::new();
        for _ in 0..250 {
            let place = random.below(PLACES);
            let nr_living = (0..PLACES).filter(|place| family.lives(*place)).count();
            let other = (0..PLACES).find(|place| !family.lives(*place));
            if !family.lives(place) {
                continue;
            }
            match (random.below(8), other) {
                (0..3, Some(child)) => family.fork(place, child),
                (3, _) if nr_living > 1 => family.kill(place),
                (4, _) if nr_living > 1 => family.do_now(place, EXIT, 0, 0),
                _ => {
                    let first = random.below(PAGES / OPENED) * OPENED;
                    family.do_now(place, WRITE, first, (first + random.below(6) * OPENED).min(PAGES));
                }
            }
            family.assert_exact();
        }
        family.end();
    });
}

/// Killed in the midst of forks and writes: what is left out of the sum is never too much.
#[test]
fn who_is_killed_at_work_leaves_too_little_out_never_too_much() {
    alone(|| {
        let mut random = Random(u64::from(std::process::id()) | 1);
        let family = Family::new();
        (1..PLACES / 2).for_each(|place| family.fork(place - 1, place));
        let (mut kills, mut lost) = (0, 0);
        for _ in 0..40 {
            let victim = 1 + random.below(PLACES / 2 - 1);
            family.tell(victim, GO_ON, 0, 0);
            std::thread::sleep(Duration::from_micros(random.below(15_000) as u64));
            family.kill(victim);
            kills += 1;
            // Its own children end by themselves.
            let began = Instant::now();
            while family.space.tree().page().members().filter(|(_, m)| m.kind() != tree::Kind::Free).count()
                > 1 + (0..PLACES).filter(|place| family.lives(*place)).count()
            {
                assert!(began.elapsed() < PATIENCE, "somebody does not end");
                family.space.tree().reap();
                std::thread::sleep(Duration::from_millis(1));
            }
            let slack = 2 * PLACES as i64;
            let began = Instant::now();
            loop {
                let (counted, mapped) = family.surplus();
                assert!(counted <= mapped + slack, "{counted} are left out, only {mapped} are mapped again");
                if mapped - counted <= slack + kills * PAGES_PER_KILL {
                    lost = lost.max(mapped - counted);
                    break;
                }
                // A child that was just made, whose parent died before it was a member, ends a moment later.
                assert!(began.elapsed() < PATIENCE, "{counted} are left out, {mapped} are mapped again");
                std::thread::sleep(Duration::from_millis(10));
            }
            let page = family.space.tree().page();
            assert!(page.shares().all(|(_, share)| !share.is_void()));
            tree::recount(page, family.fd, |index, recounted, _| {
                assert!(page.share(index).surplus() <= recounted);
            });
            family.fork(0, victim);
        }
        for place in 0..PLACES {
            if family.lives(place) {
                family.do_now(place, EXIT, 0, 0);
            }
        }
        assert_eq!(family.surplus(), (0, 0));
        eprintln!("at most {lost} pages counted too often after {kills} kills");
    });
}

/// A child that checks its pages, and waits until it is killed or the thread ends that made it.
fn fork_waiting(pages: &Pages) -> i32 {
    // SAFETY: concerns only the child.
    fork_orphan(pages, || assert_eq!(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) }, 0))
}

/// The same, once it has done `first`; until it is killed.
fn fork_orphan(pages: &Pages, first: impl FnOnce()) -> i32 {
    fork(pages.space, || {
        first();
        pages.check_all();
        loop {
            // SAFETY: waits for a signal.
            unsafe { libc::pause() };
        }
    })
}

fn kill_all(space: &Space, children: &[i32]) {
    for child in children {
        // SAFETY: a child of this test.
        unsafe {
            libc::kill(*child, libc::SIGKILL);
            libc::waitpid(*child, std::ptr::null_mut(), 0);
        }
    }
    space.tree().reap();
}

fn surplus(space: &Space) -> i64 {
    space.tree().page().shares().map(|(_, share)| share.surplus()).sum()
}

/// What is left out of the sum is so much, and what is held by several.
fn assert_left_out(space: &Space, fd: i32, pages: usize) {
    let page = space.tree().page();
    assert_eq!(surplus(space), pages as i64);
    tree::recount(page, fd, |index, recounted, holders| {
        assert_eq!(page.share(index).surplus(), recounted);
        assert_eq!(holders.iter().map(|(_, pages)| *pages as i64).sum::<i64>(), recounted);
    });
}

/// What many children have in common counts once, whoever of them writes, forks and dies; what is beyond the places of a share counts
/// twice, and nothing else is wrong. The places come back.
#[test]
fn what_many_children_have_in_common_counts_once() {
    alone(|| {
        let (space, fd) = space();
        let shares = || space.tree().page().shares().filter(|(_, share)| !share.is_empty()).count();
        let mut pages = Pages::aligned(space, PAGES, 3);
        let children: Vec<i32> = (0..HOLDERS_MAX - 1).map(|_| fork_waiting(&pages)).collect();
        assert_left_out(space, fd, (HOLDERS_MAX - 1) * PAGES);
        assert_eq!(shares(), 1);
        // Nobody has a place for it: what it has in common counts in full.
        let one_more = fork_waiting(&pages);
        assert_left_out(space, fd, (HOLDERS_MAX - 1) * PAGES);
        // The parent's own copies are shared with nobody, and a write makes one page more, not one for each child.
        let before = space.tree().page().sum().held;
        (0..PAGES / 2).for_each(|page| pages.write(page, 9, 3));
        let more = space.tree().page().sum().held - before;
        // What is granted comes in batches.
        assert!((more - PAGES as i64 / 2).abs() <= 128, "{more} pages more");
        assert_left_out(space, fd, (HOLDERS_MAX - 1) * PAGES - PAGES / 2);
        kill_all(space, &[one_more]);
        // Far holders die, and near ones.
        let (near, far) = children.split_at(HOLDERS_MAX / 2);
        kill_all(space, far);
        assert_left_out(space, fd, near.len() * PAGES - PAGES / 2);
        let more: Vec<i32> = (0..80).map(|_| fork_waiting(&pages)).collect();
        assert_left_out(space, fd, (near.len() + more.len()) * PAGES - PAGES / 2);
        kill_all(space, near);
        assert_left_out(space, fd, more.len() * PAGES);
        kill_all(space, &more);
        assert_left_out(space, fd, 0);
        let last = fork_waiting(&pages);
        assert_left_out(space, fd, PAGES);
        kill_all(space, &[last]);
        pages.check_all();
    });
}

/// A far holder writes, forks children that are far as well, gives pages up and dies.
#[test]
fn a_family_of_far_holders_counts_once() {
    alone(|| {
        const CHILDREN: usize = 70;
        const GRANDCHILDREN: usize = 100;
        let (space, fd) = space();
        let pages = Pages::aligned(space, PAGES, 3);
        let children: Vec<i32> = (0..CHILDREN).map(|_| fork_waiting(&pages)).collect();
        let (mut reader, writer) = std::io::pipe().expect("a pipe");
        let mut told = || reader.read_exact(&mut [0]).expect("it goes on");
        let tell = || assert_eq!((&writer).write(&[1]).expect("the pipe"), 1);
        let parent = fork(space, || {
            // SAFETY: for the test to end all of them.
            unsafe { libc::setpgid(0, 0) };
            (0..GRANDCHILDREN).for_each(|_| {
                fork_orphan(&pages, || ());
            });
            tell();
            // What it writes to is one page more, and what its next child has in common with it is only theirs.
            let mut pages = Pages { versions: pages.versions.clone(), ..pages };
            (0..PAGES / 4).for_each(|page| pages.write(page, 5, 3));
            fork_orphan(&pages, || ());
            tell();
            loop {
                // SAFETY: waits for a signal.
                unsafe { libc::pause() };
            }
        });
        told();
        told();
        let held = CHILDREN + 1 + GRANDCHILDREN;
        assert_left_out(space, fd, held * PAGES - PAGES / 4 + PAGES);
        kill_all(space, &children[..CHILDREN / 2]);
        kill_all(space, &[parent]);
        // Its last child has a quarter alone, and the rest with the family.
        let held = held - 1 - CHILDREN / 2;
        assert_left_out(space, fd, held * PAGES + 3 * PAGES / 4);
        // SAFETY: what the process that is dead has left.
        unsafe { libc::kill(-parent, libc::SIGKILL) };
        let began = Instant::now();
        while surplus(space) != ((CHILDREN - CHILDREN / 2) * PAGES) as i64 {
            assert!(began.elapsed() < PATIENCE, "{} pages are left out", surplus(space));
            space.tree().reap();
        }
        kill_all(space, &children[CHILDREN / 2..]);
        assert_left_out(space, fd, 0);
        pages.check_all();
    });
}

/// Pages of a process's books, and those that no other maps.
fn books(pid: &str) -> (usize, Vec<usize>) {
    let file = std::fs::File::open(format!("/proc/{pid}/pagemap")).expect("a map");
    let (mut held, mut own) = (0, Vec::new());
    for (start, end) in ebb::uapi::own::all() {
        let _ = pagemap::for_each_held(file.as_raw_fd(), start, end, |start, end| {
            held += (end - start) / PAGE;
            let _ = pagemap::for_each_exclusive(file.as_raw_fd(), start, end, |addr| own.push(addr));
        });
    }
    (held, own)
}

/// A process writes to its books between two forks: the second child does not share with the first what that has no more.
#[test]
fn books_that_were_written_to_between_forks_are_shared_anew() {
    alone(|| {
        let (space, _) = space();
        let pages = Pages::aligned(space, PAGES, 3);
        space.make_fork_room(crate::harness::ctx(space));
        let mut more = Vec::new();
        let mut children = Vec::new();
        for _ in 0..6 {
            children.push(fork_waiting(&pages));
            (0..8).for_each(|_| more.push(Pages::aligned(space, 64, 3)));
        }
        // Time for the looks after the last fork.
        let began = Instant::now();
        while books("self").1.iter().any(|addr| space.tree().is_shared(*addr)) {
            assert!(began.elapsed() < PATIENCE, "books are said to be shared that are this process's own");
            std::thread::sleep(Duration::from_millis(20));
        }
        for (i, child) in children.iter().enumerate() {
            let (held, own) = books(&child.to_string());
            let before = surplus(space);
            kill_all(space, &[*child]);
            let left_out = (before - surplus(space)) as usize;
            let shared = PAGES + 8 * 64 * i + held - own.len();
            assert!(left_out <= shared + 2, "child {i}: {left_out} pages are left out, {shared} are another's, too");
        }
        pages.check_all();
    });
}

/// A device goes while the process forks: what is known of its memory goes with it, in one piece.
#[test]
fn a_device_may_go_while_a_family_forks() {
    alone(|| {
        let device = |dir, bytes| SwapSpec { dir, bytes, priority: None, ..SwapSpec::DEFAULT };
        let (space, _) = space_in_tree(RAM, &[device(c"/var/tmp", 1 << 30)]);
        let mut pages = Pages::aligned(space, PAGES, 3);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let changes = scope.spawn(|| {
                let mut changes = 0;
                while !is_over.load(SeqCst) {
                    space
                        .swapon(crate::harness::ctx(space), &device(c"/tmp", 1 << 30), &mut || true)
                        .expect("a device");
                    space.swapoff(crate::harness::ctx(space), c"/tmp", &mut |_| true).expect("it goes");
                    changes += 1;
                }
                changes
            });
            // What two children have together keeps its place, so the third needs another share, which goes with the next fork.
            for round in 0..300 {
                let mut children = vec![fork_waiting(&pages), fork_waiting(&pages)];
                (0..PAGES).step_by(OPENED).for_each(|page| pages.write(page, round, 3));
                children.push(fork_waiting(&pages));
                kill_all(space, &children);
            }
            is_over.store(true, SeqCst);
            assert!(changes.join().expect("no panic") > 0);
        });
        // A child that was killed before it took its place keeps that for five seconds.
        let began = Instant::now();
        while surplus(space) != 0 {
            assert!(began.elapsed() < PATIENCE, "{} pages are left out", surplus(space));
            std::thread::sleep(Duration::from_millis(50));
            space.tree().reap();
        }
        pages.check_all();
    });
}

/// A process forks in one thread while another is about to exec: the child shares nothing, and nothing else is lost.
#[test]
fn a_fork_beside_an_exec_shares_nothing() {
    alone(|| {
        let (space, _) = space();
        let mut pages = Pages::aligned(space, PAGES, 3);
        let first = fork_waiting(&pages);
        assert_eq!(surplus(space), PAGES as i64);
        space.tree().leave_for_exec(0);
        let second = fork_waiting(&pages);
        space.back_from_exec();
        // If the first child looked meanwhile, it took this process for dead, and both count what they have in full.
        assert!([0, PAGES as i64].contains(&surplus(space)), "{} pages are left out", surplus(space));
        // It finds a place for itself.
        let began = Instant::now();
        while space.tree().page().sum().held < 2 * PAGES as i64 {
            assert!(began.elapsed() < PATIENCE, "its pages are not counted");
            std::thread::sleep(Duration::from_millis(1));
        }
        // What is written afterwards is shared with the next child as ever.
        (0..PAGES).for_each(|page| pages.write(page, 5, 3));
        kill_all(space, &[first, second]);
        let third = fork_waiting(&pages);
        assert_eq!(surplus(space), PAGES as i64);
        kill_all(space, &[third]);
        pages.check_all();
    });
}

/// The other thread calls exec in the midst of the fork, and its bits may be taken back any moment: what was set since
/// stands for nothing.
#[test]
fn an_exec_in_the_midst_of_a_fork_leaves_nothing_out() {
    alone(|| {
        let (space, _) = space();
        let pages = Pages::aligned(space, PAGES, 3);
        let (tree, gate) = (space.tree(), Gate::default());
        let half_a_fork = |between: &dyn Fn()| {
            let child = tree.reserve_child().expect("a place");
            let leaves = (pages.addr(0) >> LEAF_SHIFT)..=(pages.addr(PAGES - 1) >> LEAF_SHIFT);
            let exclusive = gate.close(1, std::iter::empty());
            let mut fork = tree.begin_fork(&exclusive, child, Extent::new(leaves, (0, 0)));
            assert!((0..PAGES).all(|page| fork.share(pages.addr(page))));
            between();
            assert_eq!(fork.finish(PAGES as i64), PAGES);
            let counted = surplus(space);
            tree.drop_child(child);
            counted
        };
        assert_eq!(half_a_fork(&|| {}), PAGES as i64);
        assert_eq!(half_a_fork(&|| assert_eq!(tree.leave_for_exec(0), None)), 0);
        space.back_from_exec();
        // The next one is sound again.
        assert_eq!(half_a_fork(&|| {}), PAGES as i64);
        assert_eq!(surplus(space), 0);
        pages.check_all();
    });
}

/// Somebody who was at a share has been stopped: the dead are found all the same, and all pages count in full then.
#[test]
fn a_stopped_reaper_does_not_keep_the_dead_alive() {
    alone(|| {
        let (space, fd) = space();
        let pages = Pages::aligned(space, PAGES, 3);
        let children = [0; 2].map(|_| fork_waiting(&pages));
        let managed =
            || space.tree().page().members().filter(|(_, member)| member.kind() == tree::Kind::Managed).count();
        // A child is a member in full only when it has begun.
        let began = Instant::now();
        while managed() < 3 {
            assert!(began.elapsed() < PATIENCE, "a child does not begin");
            std::thread::sleep(Duration::from_millis(1));
        }
        // Another process has the lock and does nothing.
        let (mut reader, writer) = std::io::pipe().expect("a pipe");
        // SAFETY: the child calls what is async-signal-safe.
        let stopped = unsafe { libc::fork() };
        if stopped == 0 {
            let held = (0..8).all(|share| {
                let is_locked = ebb::uapi::record_lock::try_lock(fd, tree::share_byte(share));
                space.tree().page().share(share).note_locked();
                is_locked
            });
            // SAFETY: as above.
            unsafe {
                libc::alarm(PATIENCE.as_secs() as u32);
                // Where the test fails nobody waits for it.
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                if !held || libc::write(writer.as_raw_fd(), [1u8].as_ptr().cast(), 1) != 1 {
                    libc::_exit(1);
                }
                loop {
                    libc::pause();
                }
            }
        }
        drop(writer);
        reader.read_exact(&mut [0]).expect("it has the lock");
        // Somebody may see that it is dead before this thread goes on.
        let began = Instant::now();
        kill_all(space, &children[..1]);
        while managed() > 2 {
            assert!(began.elapsed() < PATIENCE, "the dead child is a member still");
            space.tree().reap();
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(began.elapsed() > Duration::from_secs(1));
        assert_eq!(surplus(space), 0);
        assert!(space.tree().page().sum().held >= 2 * PAGES as i64);
        // SAFETY: a child of this test.
        unsafe {
            libc::kill(stopped, libc::SIGKILL);
            libc::waitpid(stopped, std::ptr::null_mut(), 0);
        }
        kill_all(space, &children[1..]);
        // And it all begins anew.
        let last = fork_waiting(&pages);
        assert_eq!(surplus(space), PAGES as i64);
        kill_all(space, &[last]);
        pages.check_all();
    });
}

/// Where the file may not grow, nothing is shared: that costs memory, and is no reason to fail, or for a signal.
#[test]
fn without_a_file_that_may_grow_everything_counts() {
    alone(|| {
        let (space, _) = space();
        let pages = Pages::aligned(space, PAGES, 3);
        let limit = libc::rlimit { rlim_cur: 1 << 20, rlim_max: 1 << 20 };
        // SAFETY: a limit of this process's own.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &limit) }, 0);
        let before = space.tree().page().sum().held;
        let child = fork_waiting(&pages);
        assert_eq!(surplus(space), 0);
        assert!(space.tree().page().sum().held - before >= PAGES as i64);
        kill_all(space, &[child]);
        pages.check_all();
    });
}
