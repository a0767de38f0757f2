//! What managed processes hold beside what they are granted: thread stacks, data of programs and libraries, memory that the kernel
//! wrote for them, small tables. Nobody in the process knows of these, so the kernel is asked, from outside.
//!
//! All anonymous memory of the managed processes together, less what they are granted, is beside that. What several share
//! since a fork must count once: the kernel says that too, but looks at every page for it. So only processes that share are asked,
//! all of them together, when any of them has faulted, grown or come since, and no more often than that costs a small part of
//! the time. In between they count with what they have grown. What a fork's child has in common with others counts there.
//!
//! Processes fork, exec and end while they are looked at, and then one look may see far too much. So what counts is the least of
//! all looks of a second: what stays, as stacks and data do.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use ebb::tree::{MemberId, Page};

use crate::running::outside::Table;

/// Between two looks at what is shared, at least; and how many times as long as the look took, fewer while others share than it
/// saw.
const SHARED_EVERY: Duration = Duration::from_millis(250);
const SHARED_REST: u32 = 50;
const OTHERS_REST: u32 = 20;
/// What was seen for so long counts, and in so many looks at least.
const STAYS: Duration = Duration::from_secs(1);
const STAYS_LOOKS: usize = 3;

/// What one look found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// Pages beside what is granted.
    pub pages: u64,
    /// What the kernel has for these processes.
    pub kernel_bytes: u64,
}

/// A process that shares memory, when it was last looked at: its pages, and its part of those that others have too.
#[derive(Debug, Clone, Copy)]
struct Shared {
    anonymous: u64,
    proportional: u64,
    /// How often it had faulted; none where it was not looked at yet.
    faults: Option<u64>,
}

impl Shared {
    /// One that has just come. What it has in common with others these are counted for still; what it had before it shared
    /// anything is its own.
    fn new(anonymous: u64, was_alone: bool) -> Self {
        Self { anonymous, proportional: if was_alone { anonymous } else { 0 }, faults: None }
    }

    /// True when it has neither written, nor got anything, nor given anything up since.
    fn is_same(self, anonymous: u64, faults: Option<u64>) -> bool {
        self.anonymous == anonymous && self.faults.is_some() && self.faults == faults
    }

    /// Its part now, when it has `anonymous` pages.
    fn now(self, anonymous: u64) -> u64 {
        self.proportional.min(anonymous) + anonymous.saturating_sub(self.anonymous)
    }
}

/// What the last looks have found.
#[derive(Debug, Default)]
struct Window(VecDeque<(Instant, i64)>);

impl Window {
    /// Adds what a look has found; what stays.
    fn least(&mut self, now: Instant, pages: i64) -> i64 {
        self.0.push_back((now, pages));
        let is_old = |at: &Instant| now.duration_since(*at) >= STAYS;
        // The youngest of the old ones says that the others reach back so far.
        while self.0.len() > STAYS_LOOKS && self.0.get(1).is_some_and(|(at, _)| is_old(at)) {
            self.0.pop_front();
        }
        let stays = self.0.len() >= STAYS_LOOKS && self.0.front().is_some_and(|(at, _)| is_old(at));
        if stays { self.0.iter().map(|(_, pages)| *pages).min().unwrap_or(0) } else { 0 }
    }
}

/// What is known since the last look.
#[derive(Debug, Default)]
pub struct Beside {
    shared: HashMap<MemberId, Shared>,
    /// Those that shared nothing.
    alone: HashSet<MemberId>,
    /// Others share now than when what is shared was looked at.
    are_others: bool,
    /// When that was, and how long it took.
    looked: Option<(Instant, Duration)>,
    window: Window,
}

impl Beside {
    /// Looks at the managed processes at `now`, and says in the tree what they hold.
    pub fn look(&mut self, page: &Page, table: Table<'_>, managed: &[(i32, MemberId)], now: Instant) -> Found {
        let sharing: Vec<MemberId> =
            page.shares().flat_map(|(_, share)| share.holders().map(|(_, id)| id).collect::<Vec<_>>()).collect();
        let (mut anonymous, mut kernel_bytes) = (0, 0);
        let (mut sharers, mut alone) = (Vec::new(), HashSet::new());
        for (pid, id) in managed {
            // It has just ended.
            let Some(memory) = table.memory(*pid) else { continue };
            kernel_bytes += memory.kernel_bytes;
            if sharing.contains(id) {
                sharers.push((*pid, *id, memory.anonymous_pages));
            } else {
                alone.insert(*id);
                anonymous += memory.anonymous_pages;
            }
        }
        anonymous += self.parts(table, &sharers);
        self.alone = alone;
        let pages = self.window.least(now, page.beside_of(anonymous as i64));
        page.tell_beside(pages);
        Found { pages: pages as u64, kernel_bytes }
    }

    /// What processes that share memory have, each page once: their numbers, names and pages. None of it where the kernel does not
    /// say.
    fn parts(&mut self, table: Table<'_>, sharers: &[(i32, MemberId, u64)]) -> u64 {
        let nr_known = self.shared.len();
        self.shared.retain(|id, _| sharers.iter().any(|(_, other, _)| other == id));
        self.are_others |= self.shared.len() < nr_known;
        if self.is_due() && (self.are_others || self.has_changed(table, sharers)) {
            let began = Instant::now();
            for (pid, id, anonymous) in sharers {
                let faults = table.faults(*pid);
                let proportional = table.proportional_pages(*pid).unwrap_or(0);
                self.shared.insert(*id, Shared { anonymous: *anonymous, proportional, faults });
            }
            self.looked = Some((Instant::now(), began.elapsed()));
            self.are_others = false;
        }
        let part = |(_, id, anonymous): &(i32, MemberId, u64)| {
            let shared = self.shared.entry(*id).or_insert_with(|| {
                self.are_others = true;
                Shared::new(*anonymous, self.alone.contains(id))
            });
            shared.now(*anonymous)
        };
        sharers.iter().map(part).sum()
    }

    /// The last look at what is shared was long enough ago.
    fn is_due(&self) -> bool {
        let rest = if self.are_others { OTHERS_REST } else { SHARED_REST };
        self.looked.is_none_or(|(at, took)| at.elapsed() >= SHARED_EVERY.max(took * rest))
    }

    /// What they have may be something else than at that look.
    fn has_changed(&self, table: Table<'_>, sharers: &[(i32, MemberId, u64)]) -> bool {
        !sharers.iter().all(|(pid, id, anonymous)| {
            self.shared.get(id).is_some_and(|shared| shared.is_same(*anonymous, table.faults(*pid)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::running::counters::Counters;
    use ebb::tree::Kind;
    use std::path::Path;
    use std::sync::atomic::Ordering::SeqCst;

    #[test]
    fn growth_counts_in_full_and_what_is_gone_does_not() {
        let shared = Shared { anonymous: 1000, proportional: 400, faults: None };
        assert_eq!((shared.now(1000), shared.now(1100), shared.now(900), shared.now(300)), (400, 500, 400, 300));
    }

    #[test]
    fn what_has_come_counts_once() {
        let (parent, child) = (Shared::new(1000, true), Shared::new(1000, false));
        assert_eq!(parent.now(1000) + child.now(1000), 1000);
        assert_eq!(parent.now(1010) + child.now(1005), 1015);
    }

    #[test]
    fn who_has_faulted_or_given_something_up_is_looked_at_again() {
        let shared = Shared { anonymous: 1000, proportional: 400, faults: Some(7) };
        assert!(shared.is_same(1000, Some(7)));
        assert!(!shared.is_same(1000, Some(8)) && !shared.is_same(999, Some(7)) && !shared.is_same(1000, None));
        assert!(!Shared::new(1000, false).is_same(1000, None));
    }

    #[test]
    fn processes_that_share_are_looked_at_together_and_only_when_something_has_happened() {
        let root = tempfile::tempdir().unwrap();
        let tell = |pid: i32, faults: u64, proportional: u64| {
            let of = root.path().join(pid.to_string());
            std::fs::create_dir_all(&of).unwrap();
            std::fs::write(of.join("stat"), format!("{pid} (x) S 1 1 1 0 -1 0 {faults} 0 0 0")).unwrap();
            std::fs::write(of.join("smaps_rollup"), format!("Pss_Anon: {} kB\n", 4 * proportional)).unwrap();
        };
        let (table, id) = (Table(root.path()), |index| MemberId { index, generation: 1 });
        let mut beside = Beside::default();
        let past = |beside: &mut Beside| beside.looked = beside.looked.map(|(at, took)| (at - SHARED_EVERY, took));
        // Alone, and then with a child, with which it has all in common.
        tell(1, 10, 900);
        assert_eq!(beside.parts(table, &[(1, id(1), 900)]), 900);
        tell(1, 10, 450);
        tell(2, 3, 450);
        let both = [(1, id(1), 900), (2, id(2), 900)];
        assert_eq!(beside.parts(table, &both), 900);
        beside.looked = beside.looked.map(|(at, _)| (at - SHARED_EVERY, Duration::ZERO));
        assert_eq!(beside.parts(table, &both), 900);
        assert!(!beside.are_others);
        // Nothing has happened that anybody could see.
        tell(2, 3, 700);
        past(&mut beside);
        assert_eq!(beside.parts(table, &both), 900);
        tell(2, 4, 700);
        past(&mut beside);
        assert_eq!(beside.parts(table, &both), 1150);
        // Who ends leaves the rest with more.
        tell(1, 10, 900);
        past(&mut beside);
        assert_eq!(beside.parts(table, &both[..1]), 900);
    }

    #[test]
    fn what_a_process_was_not_granted_is_counted_once_it_has_stayed_a_second() {
        let counters = Counters::create().unwrap();
        counters.set_budget(1 << 30);
        let page = counters.tree();
        let member = page.member(0);
        member.set_kind(Kind::Managed);
        page.raise_high_water(0);
        let (table, pid) = (Table(Path::new("/proc")), std::process::id() as i32);
        let managed = [(pid, MemberId { index: 0, generation: member.generation() })];
        let mut beside = Beside::default();
        // 64 MiB that no other test of this process takes away meanwhile.
        let held = vec![1u8; 64 << 20];
        let begin = Instant::now();
        let mut look = |ms: u64| beside.look(page, table, &managed, begin + Duration::from_millis(ms));
        assert_eq!([0, 500, 999].map(|ms| look(ms).pages), [0; 3]);
        let found = look(1000);
        assert!(found.pages >= 16384 && found.kernel_bytes > 64 << 10, "{found:?}");
        // Eight MiB are free.
        assert!(page.sum().held >= found.pages as i64 - 2048);
        // Memory that it is granted is not beside it.
        member.granted.store(found.pages as i64 - 4096, SeqCst);
        let less = look(1001);
        assert!(less.pages < found.pages - 8192, "{less:?} {found:?}");
        drop(held);
    }

    #[test]
    fn what_one_look_saw_too_much_does_not_count() {
        let (mut window, begin) = (Window::default(), Instant::now());
        let mut least = |ms: u64, pages| window.least(begin + Duration::from_millis(ms), pages);
        assert_eq!([0, 400, 800].map(|ms| least(ms, 90)), [0; 3]);
        assert_eq!(
            [(1000, 700), (1300, 90), (1400, 40), (1500, 90)].map(|(ms, pages)| least(ms, pages)),
            [90, 90, 40, 40]
        );
        // Looks that are rare reach back further.
        assert_eq!(
            [(2600, 50), (4000, 60), (9000, 70), (20000, 80)].map(|(ms, pages)| least(ms, pages)),
            [40, 50, 50, 60]
        );
    }

    #[test]
    fn half_of_the_budget_stays_for_what_is_granted() {
        let counters = Counters::create().unwrap();
        counters.set_budget(64 << 20);
        assert_eq!(counters.tree().beside_of(1 << 20), 1 << 20);
        counters.tree().tell_beside(1 << 20);
        assert_eq!(counters.tree().sum().free(), (32 << 20) / 4096);
    }
}
