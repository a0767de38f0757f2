//! Watches a tree from outside, in a thread of `ebb run` beside the program. It measures what processes hold that are
//! not managed, or not yet, and what managed ones hold beside their grants. It also takes back what dead processes
//! held.
//!
//! While there is no process to look at, the thread waits and does nothing. An exec wakes it (`Page::left`). The less
//! happens, the less often it looks. It writes what a process outside holds into its member's `outside`. A process may
//! have no place of its own, because it closed the descriptor, or because its parent did not make one. Such processes
//! count in a place that `ebb run` takes. The memory of all managed processes is compared with their grants
//! (`beside.rs`).
//!
//! A process counts from the second look on, with the smaller of two looks' memory. This is because a process before
//! exec still has all the memory that it is about to leave, and a fork's child has its parent's. A program that execs
//! may leave in its place how much memory the next program is going to have. That figure counts until the program has
//! had time to reach it.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::atomic::Ordering::{Acquire, SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ebb::tree::ages::OfShared;
use ebb::tree::{self, Kind, MemberId};

use crate::base::sys;
use crate::run::beside::Beside;
use crate::run::thrash::Thrash;
use crate::run::unmanaged::{Judge, Unmanaged};
use crate::running::counters::{Counters, PAGE_BYTES};
use crate::running::outside::{Children, Process, Table};
use crate::running::process::PROC;
use crate::running::squeeze;

/// Time between two looks while more than half of the budget is used, or after something new was seen.
const SOON: Duration = Duration::from_millis(50);
/// Likewise while at least half of the budget is left.
const USUAL: Duration = Duration::from_millis(250);
/// Likewise while nothing changes.
const LATE: Duration = Duration::from_secs(1);
/// Least time from the start of one look to the next; and the same as a multiple of the time a look takes. However many
/// processes call exec, looks take only a small part of the time.
const GAP: Duration = Duration::from_millis(20);
const REST: u32 = 20;
/// After so long, a program is taken to have what it was expected to have.
const SETTLED: Duration = Duration::from_millis(500);
/// Time between two searches for processes without a place.
const SEARCH_EVERY: Duration = Duration::from_secs(1);
/// After so many looks without a change, looks are less frequent.
const QUIET_LOOKS: u32 = 4;

/// Result of one look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    /// Processes outside that hold memory.
    processes: usize,
    /// Managed processes, and the pages that they hold beside their grants (`beside`).
    managed: usize,
    beside: u64,
    /// Processes outside that were seen for the first time.
    new: usize,
    /// Pages that processes outside hold.
    pages: u64,
    /// Further pages that processes outside hold, if the next look confirms it.
    unconfirmed: u64,
}

/// How soon to look again; none while there is nothing to look at.
fn period(seen: Seen, held: i64, limit: i64, quiet_looks: u32) -> Option<Duration> {
    if seen.processes == 0 && seen.managed == 0 && held <= limit {
        None
    } else if seen.new > 0 || seen.unconfirmed > limit as u64 / 64 || (held > limit / 2 && quiet_looks < QUIET_LOOKS) {
        Some(SOON)
    } else if quiet_looks < QUIET_LOOKS {
        Some(USUAL)
    } else {
        Some(LATE)
    }
}

/// Where the memory of a process counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Place {
    Member(MemberId),
    /// The process has no place: it counts in the place of this process.
    Own,
}

/// A process outside, as of the last look.
#[derive(Debug, Clone, Copy)]
struct Known {
    pages: u64,
    look: u64,
}

/// What the process at a place expected of its next program when it called exec, when that was first seen, and the
/// figure that this thread wrote last.
#[derive(Debug, Clone, Copy)]
struct Expected {
    pages: i64,
    since: Instant,
    told: i64,
}

struct Watcher {
    counters: Arc<Counters>,
    found: Arc<Mutex<Unmanaged>>,
    judge: Judge,
    beside: Beside,
    known: HashMap<Process, Known>,
    expected: HashMap<MemberId, Expected>,
    look: u64,
    /// The place that this process has taken for processes without one.
    own: Option<MemberId>,
    searched: Option<Instant>,
    /// `Page::left` at the last search.
    searched_left: u32,
}

/// State of one look.
struct Look<'a> {
    table: Table<'a>,
    children: Children<'a>,
    /// Processes that have a place.
    holders: HashMap<i32, (MemberId, Kind)>,
    visited: HashSet<i32>,
    /// Processes outside, each with the place where it counts.
    outside: Vec<(i32, Place)>,
}

impl Look<'_> {
    /// Adds the descendants of `pid` that have no place. Descendants of a process with a place are added only if
    /// `through_members`.
    fn descend(&mut self, pid: i32, place: Place, through_members: bool) {
        let mut parents = vec![(pid, place)];
        while let Some((parent, place)) = parents.pop() {
            for child in self.children.of(parent) {
                let holder = self.holders.get(&child).copied();
                if (holder.is_some() && !through_members) || !self.visited.insert(child) {
                    continue;
                }
                match holder {
                    // It counts in its own place, together with its descendants.
                    Some((_, Kind::Outside)) => {}
                    Some(_) => parents.push((child, Place::Own)),
                    None => {
                        if !self.table.shares_memory(child, parent) {
                            self.outside.push((child, place));
                        }
                        parents.push((child, place));
                    }
                }
            }
        }
    }

    /// Adds a process and its descendants without a place.
    fn add(&mut self, pid: i32, place: Place) {
        if self.visited.insert(pid) {
            self.outside.push((pid, place));
            self.descend(pid, place, false);
        }
    }
}

impl Watcher {
    fn new(counters: Arc<Counters>, found: Arc<Mutex<Unmanaged>>) -> Self {
        let (judge, beside) = (Judge::default(), Beside::default());
        let (known, expected) = (HashMap::new(), HashMap::new());
        Self { counters, found, judge, beside, known, expected, look: 0, own: None, searched: None, searched_left: 0 }
    }

    /// Processes that have a place, except this one.
    fn holders(&self) -> HashMap<i32, (MemberId, Kind)> {
        let (page, fd) = (self.counters.tree(), self.counters.fd());
        let own = self.own.map(|id| id.index);
        let used = page
            .members()
            .filter(|(index, member)| Some(*index) != own && matches!(member.kind(), Kind::Managed | Kind::Outside));
        let holders = used.filter_map(|(index, member)| {
            let id = MemberId { index, generation: member.generation() };
            let pid = tree::holder(fd, index).filter(|pid| *pid > 0)?;
            // A process that execs has two places for a moment. Its place as a managed process counts.
            Some((pid, (id, member.kind())))
        });
        let mut all = HashMap::new();
        for (pid, place) in holders {
            if place.1 == Kind::Managed || !all.contains_key(&pid) {
                all.insert(pid, place);
            }
        }
        all
    }

    /// Processes outside, each with the place where it counts.
    fn processes<'a>(
        &mut self,
        table: Table<'a>,
        holders: HashMap<i32, (MemberId, Kind)>,
        may_search: bool,
    ) -> Vec<(i32, Place)> {
        let mut look =
            Look { table, children: Children::new(table), holders, visited: HashSet::new(), outside: Vec::new() };
        let members: Vec<(i32, MemberId)> = look
            .holders
            .iter()
            .filter(|(_, (_, kind))| *kind == Kind::Outside)
            .map(|(pid, (id, _))| (*pid, *id))
            .collect();
        for (pid, id) in members {
            look.add(pid, Place::Member(id));
        }
        // Processes that were seen before, and have lost their parent or their place.
        for process in self.known.keys().filter(|process| table.is_there(**process)) {
            if !look.holders.contains_key(&process.pid) {
                look.add(process.pid, Place::Own);
            }
        }
        if may_search {
            let this = std::process::id() as i32;
            look.visited.insert(this);
            look.descend(this, Place::Own, true);
            self.searched = Some(Instant::now());
        }
        look.outside
    }

    /// Looks once at everything outside, and writes into the tree's page what it holds.
    fn look(&mut self, left: u32) -> Seen {
        let counters = Arc::clone(&self.counters);
        let (page, fd) = (counters.tree(), counters.fd());
        let table = Table(Path::new(PROC));
        tree::reap(page, fd, self.own.map(|id| id.index).as_slice());
        let may_search = self.searched.is_none_or(|at| at.elapsed() >= SEARCH_EVERY);
        if may_search {
            self.searched_left = left;
        }
        let holders = self.holders();
        let managed = holders.iter().filter(|(_, (_, kind))| *kind == Kind::Managed);
        let managed: Vec<(i32, MemberId)> = managed.map(|(pid, (id, _))| (*pid, *id)).collect();
        let processes = self.processes(table, holders, may_search);
        self.look += 1;
        self.judge.begin();
        let mut held = HashMap::<Place, u64>::new();
        let mut seen = Seen { processes: 0, managed: managed.len(), beside: 0, new: 0, pages: 0, unconfirmed: 0 };
        let mut unmanaged_pages = 0;
        let mut kernel_bytes = 0;
        for (pid, place) in processes {
            let total = held.entry(place).or_default();
            let (Some(process), Some(memory)) = (table.process(pid), table.memory(pid)) else { continue };
            let pages = memory.anonymous_pages;
            // The process has ended, or is about to.
            if pages == 0 {
                continue;
            }
            kernel_bytes += memory.kernel_bytes;
            let before = self.known.insert(process, Known { pages, look: self.look });
            let counted = before.map_or(0, |before| before.pages.min(pages));
            *total += counted;
            seen.processes += 1;
            seen.new += usize::from(before.is_none());
            seen.pages += counted;
            seen.unconfirmed += pages - counted;
            if let Some(file) = self.judge.unmanaged(table, process) {
                unmanaged_pages += counted;
                if self.found.lock().unwrap_or_else(PoisonError::into_inner).add(&file) {
                    ebb::stats::add(&counters.page().unmanaged_programs, 1);
                }
            }
        }
        self.judge.end();
        let look = self.look;
        self.known.retain(|_, known| known.look == look);
        self.found.lock().unwrap_or_else(PoisonError::into_inner).hold(unmanaged_pages);
        self.tell(&held, Instant::now());
        let found = self.beside.look(page, table, &managed, Instant::now());
        seen.beside = found.pages;
        ebb::stats::raise(&counters.page().peak_beside_bytes, found.pages * PAGE_BYTES);
        ebb::stats::raise(&counters.page().peak_kernel_bytes, kernel_bytes + found.kernel_bytes);
        let sum = page.sum();
        ebb::stats::raise(&counters.page().peak_held_bytes, sum.held.max(0) as u64 * PAGE_BYTES);
        if sum.free() < 0 {
            squeeze::ask(page, -sum.free(), OfShared::IfIdle);
        }
        seen
    }

    /// Writes into each place what is held there. If this thread did not write a place's present figure, that figure is
    /// what a process expects of the program that it execs.
    fn tell(&mut self, held: &HashMap<Place, u64>, now: Instant) {
        let (page, fd) = (self.counters.tree(), self.counters.fd());
        for (place, pages) in held {
            if let Place::Member(id) = place
                && let Some(member) = page.find(*id)
            {
                let is = member.outside.load(SeqCst);
                let new = Expected { pages: is, since: now, told: is };
                let expected = self.expected.entry(*id).or_insert(new);
                if expected.told != is {
                    *expected = new;
                }
                let is_settled = now.duration_since(expected.since) >= SETTLED;
                let pages = if is_settled { *pages as i64 } else { expected.pages.max(*pages as i64) };
                // Fails if the process writes a figure of its own at this moment.
                if member.outside.compare_exchange(is, pages, SeqCst, SeqCst).is_ok() {
                    expected.told = pages;
                }
            }
        }
        self.expected.retain(|id, _| held.contains_key(&Place::Member(*id)));
        let pages = held.get(&Place::Own).copied().unwrap_or(0);
        if pages > 0 && self.own.is_none() {
            self.own = tree::claim_outside(page, fd);
        }
        let Some(id) = self.own else { return };
        if pages == 0 {
            tree::drop_outside(page, fd, id);
            self.own = None;
        } else {
            page.member(id.index).outside.store(pages as i64, SeqCst);
        }
    }

    /// Looks again and again for as long as this process lives.
    fn run(mut self, thrash: &Mutex<Thrash>, words: Words) -> ! {
        let counters = Arc::clone(&self.counters);
        let page = counters.tree();
        let mut last = None;
        let mut quiet_looks = 0;
        loop {
            let left = page.left.load(Acquire);
            let began = Instant::now();
            let seen = self.look(left);
            if words.are_wanted
                && let Some(line) =
                    thrash.lock().unwrap_or_else(PoisonError::into_inner).look(&counters, words.has_device)
            {
                sys::complain(&line);
            }
            // If a tree holds too much and gives nothing, what it holds does not change, so it is asked less often.
            let held = page.sum().held.max(0) as u64;
            let is_quiet = last.replace((seen, left, held)).is_some_and(|(before, left_before, held_before)| {
                let before: Seen = before;
                let moved = before.pages.abs_diff(seen.pages) + before.beside.abs_diff(seen.beside);
                let are_same = (before.processes, before.managed) == (seen.processes, seen.managed);
                left == left_before && are_same && moved.max(held.abs_diff(held_before)) <= page.limit() / 64
            });
            quiet_looks = if is_quiet { quiet_looks + 1 } else { 0 };
            let sum = page.sum();
            // A process that called exec since the last search may have closed the descriptor, and lost its place.
            let to_search = (left != self.searched_left).then_some(SEARCH_EVERY);
            let period = period(seen, sum.held, sum.limit, quiet_looks).or(to_search);
            let rest = GAP.max(began.elapsed() * REST);
            sys::futex_wait(&page.left, left, period);
            std::thread::sleep(rest.saturating_sub(began.elapsed()));
        }
    }
}

/// What the thread says while the program runs.
#[derive(Debug, Clone, Copy)]
pub struct Words {
    /// That swap takes most of the time.
    pub are_wanted: bool,
    /// Whether there is something to swap to beside the pool.
    pub has_device: bool,
}

/// The thread's findings: unmanaged programs in the tree, and what swap costs.
pub struct Watch {
    found: Arc<Mutex<Unmanaged>>,
    thrash: Arc<Mutex<Thrash>>,
    words: Words,
}

impl Watch {
    /// Starts the thread. It inherits this thread's signal mask.
    pub fn start(counters: &Arc<Counters>, words: Words) -> std::io::Result<Self> {
        let (found, thrash) = (Arc::default(), Arc::<Mutex<Thrash>>::default());
        let watcher = Watcher::new(Arc::clone(counters), Arc::clone(&found));
        let its_thrash = Arc::clone(&thrash);
        std::thread::Builder::new().name("ebb-watch".to_owned()).spawn(move || watcher.run(&its_thrash, words))?;
        Ok(Self { found, thrash, words })
    }

    /// What swap has cost, in a line for the user; none if that was little.
    pub fn summary(&self, budget: u64) -> Option<String> {
        self.thrash.lock().unwrap_or_else(PoisonError::into_inner).summary(budget, self.words.has_device)
    }

    /// What the thread has found so far.
    pub fn found(&self) -> Unmanaged {
        self.found.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Seen = Seen { processes: 0, managed: 0, beside: 0, new: 0, pages: 0, unconfirmed: 0 };
    const SOME: Seen = Seen { processes: 2, pages: 50, ..NOTHING };

    #[test]
    fn nothing_outside_is_not_looked_at() {
        assert_eq!(period(NOTHING, 90, 100, 0), None);
        assert_eq!(period(NOTHING, 101, 100, 0), Some(SOON));
        assert_eq!(period(Seen { managed: 1, ..NOTHING }, 90, 100, QUIET_LOOKS), Some(LATE));
    }

    #[test]
    fn looks_are_the_rarer_the_less_happens() {
        assert_eq!(period(Seen { new: 1, ..SOME }, 10, 100, 9), Some(SOON));
        assert_eq!(period(Seen { unconfirmed: 2, ..SOME }, 10, 100, 9), Some(SOON));
        assert_eq!(period(SOME, 60, 100, 0), Some(SOON));
        assert_eq!(period(SOME, 10, 100, 0), Some(USUAL));
        assert_eq!(period(SOME, 60, 100, QUIET_LOOKS), Some(LATE));
        assert_eq!(period(SOME, 101, 100, QUIET_LOOKS - 1), Some(SOON));
        assert_eq!(period(SOME, 101, 100, QUIET_LOOKS), Some(LATE));
    }

    /// A child process that holds little memory, and ends with the test.
    struct Sleeper(std::process::Child);

    impl Sleeper {
        fn new() -> Self {
            Self(std::process::Command::new("/bin/sleep").arg("60").spawn().unwrap())
        }
    }

    impl Drop for Sleeper {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn what_a_program_said_that_it_will_have_counts_until_it_has_had_the_time() {
        let counters = Arc::new(Counters::create().unwrap());
        let page = counters.tree();
        let member = page.member(0);
        member.set_kind(Kind::Outside);
        page.raise_high_water(0);
        member.outside.store(700, SeqCst);
        let place = Place::Member(MemberId { index: 0, generation: member.generation() });
        let mut watcher = Watcher::new(Arc::clone(&counters), Arc::default());
        let begin = Instant::now();
        let mut told = |ms, pages| {
            watcher.tell(&HashMap::from([(place, pages)]), begin + Duration::from_millis(ms));
            member.counted_outside()
        };
        // What the program and its children hold meanwhile counts only while it is there.
        let seen = [(0, 0), (100, 50), (200, 900), (300, 50), (499, 0), (500, 60), (600, 20)];
        assert_eq!(seen.map(|(ms, pages)| told(ms, pages)), [700, 700, 900, 700, 700, 60, 20]);
        // Another program starts there.
        member.outside.store(300, SeqCst);
        assert_eq!(
            [(700, 50), (1100, 400), (1199, 0), (1200, 50)].map(|(ms, pages)| told(ms, pages)),
            [300, 400, 300, 50]
        );
    }

    #[test]
    fn a_process_without_a_place_counts_in_that_of_the_watcher_from_the_second_look_on() {
        let sleeper = Sleeper::new();
        let counters = Arc::new(Counters::create().unwrap());
        counters.set_budget(64 << 20);
        let mut watcher = Watcher::new(Arc::clone(&counters), Arc::default());
        let first = watcher.look(0);
        assert!(first.new >= 1 && first.pages == 0, "{first:?}");
        assert_eq!(counters.tree().sum().held, 0);
        let second = watcher.look(0);
        assert!(second.pages > 0, "{second:?}");
        assert_eq!(counters.tree().sum().held, second.pages as i64);
        // The search also finds children of other tests, which may end at any time.
        let pid = sleeper.0.id() as i32;
        drop(sleeper);
        watcher.look(0);
        assert!(watcher.known.keys().all(|process| process.pid != pid));
    }
}
