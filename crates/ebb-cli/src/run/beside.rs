//! Measures what managed processes hold beside their grants: thread stacks, data of programs and libraries, memory that
//! the kernel wrote for them, small tables. Nobody in the process knows of this memory, so `ebb run` asks the kernel
//! from outside.
//!
//! Memory beside the grants is all anonymous memory of the managed processes together, less what they are granted.
//! Pages that several processes share since a fork must count once. The kernel can tell that, but it walks every page
//! for it. So the kernel is asked only about processes that share memory, and about all of them together. It is asked
//! when one of them has faulted, grown or just come, and only so often that this costs a small part of the time. In
//! between, a process counts with its part as of then, plus what it has grown since. What a fork's child has in common
//! with other processes counts with those.
//!
//! Processes fork, exec and end while this looks at them, and then one look may see far too much. So the least figure
//! of all looks of a second counts: memory that stays, as stacks and data do.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use ebb::tree::{MemberId, Page};

use crate::running::outside::Table;

/// Least time between two looks at shared memory. It is also at least so many times as long as the last look took:
/// `OTHERS_REST` while other processes share than those it saw, otherwise `SHARED_REST`.
const SHARED_EVERY: Duration = Duration::from_millis(250);
const SHARED_REST: u32 = 50;
const OTHERS_REST: u32 = 20;
/// A figure counts after so much time, and after so many looks.
const STAYS: Duration = Duration::from_secs(1);
const STAYS_LOOKS: usize = 3;

/// Result of one look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// Pages beside the grants.
    pub pages: u64,
    /// Memory that the kernel uses for these processes.
    pub kernel_bytes: u64,
}

/// A process that shares memory, as of the last look: its anonymous pages, and its part of the pages that others also
/// have.
#[derive(Debug, Clone, Copy)]
struct Shared {
    anonymous: u64,
    proportional: u64,
    /// How often it had faulted; none if it has not been looked at yet.
    faults: Option<u64>,
}

impl Shared {
    /// A process that has just come. What it has in common with others still counts with those. What it had before it
    /// shared anything counts as its own.
    fn new(anonymous: u64, was_alone: bool) -> Self {
        Self { anonymous, proportional: if was_alone { anonymous } else { 0 }, faults: None }
    }

    /// True if it has written nothing, got nothing and given nothing up since the last look.
    fn is_same(self, anonymous: u64, faults: Option<u64>) -> bool {
        self.anonymous == anonymous && self.faults.is_some() && self.faults == faults
    }

    /// Its part now that it has `anonymous` pages.
    fn now(self, anonymous: u64) -> u64 {
        self.proportional.min(anonymous) + anonymous.saturating_sub(self.anonymous)
    }
}

/// Results of the last looks.
#[derive(Debug, Default)]
struct Window(VecDeque<(Instant, i64)>);

impl Window {
    /// Adds the result of a look. Returns the least result that has stayed; 0 if the results do not reach back far
    /// enough yet.
    fn least(&mut self, now: Instant, pages: i64) -> i64 {
        self.0.push_back((now, pages));
        let is_old = |at: &Instant| now.duration_since(*at) >= STAYS;
        // Keep one old result: it shows that the others reach back far enough.
        while self.0.len() > STAYS_LOOKS && self.0.get(1).is_some_and(|(at, _)| is_old(at)) {
            self.0.pop_front();
        }
        let stays = self.0.len() >= STAYS_LOOKS && self.0.front().is_some_and(|(at, _)| is_old(at));
        if stays { self.0.iter().map(|(_, pages)| *pages).min().unwrap_or(0) } else { 0 }
    }
}

/// State kept between looks.
#[derive(Debug, Default)]
pub struct Beside {
    shared: HashMap<MemberId, Shared>,
    /// Managed processes that shared nothing at the last look.
    alone: HashSet<MemberId>,
    /// True if other processes share now than at the last look at shared memory.
    are_others: bool,
    /// When the last look at shared memory ended, and how long it took.
    looked: Option<(Instant, Duration)>,
    window: Window,
}

impl Beside {
    /// Looks at the managed processes at `now`, and writes into the tree's page what they hold beside their grants.
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

    /// Anonymous memory of processes that share memory, in pages, each page counted once. `sharers` are their process
    /// numbers, members and pages. A process counts 0 where the kernel does not say.
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

    /// True if the last look at shared memory was long enough ago.
    fn is_due(&self) -> bool {
        let rest = if self.are_others { OTHERS_REST } else { SHARED_REST };
        self.looked.is_none_or(|(at, took)| at.elapsed() >= SHARED_EVERY.max(took * rest))
    }

    /// True if the processes' memory may have changed since that look.
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
        // First alone, then with a child that has everything in common with it.
        tell(1, 10, 900);
        assert_eq!(beside.parts(table, &[(1, id(1), 900)]), 900);
        tell(1, 10, 450);
        tell(2, 3, 450);
        let both = [(1, id(1), 900), (2, id(2), 900)];
        assert_eq!(beside.parts(table, &both), 900);
        beside.looked = beside.looked.map(|(at, _)| (at - SHARED_EVERY, Duration::ZERO));
        assert_eq!(beside.parts(table, &both), 900);
        assert!(!beside.are_others);
        // Nothing visible from outside has happened.
        tell(2, 3, 700);
        past(&mut beside);
        assert_eq!(beside.parts(table, &both), 900);
        tell(2, 4, 700);
        past(&mut beside);
        assert_eq!(beside.parts(table, &both), 1150);
        // A process that ends leaves more to the others.
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
        // 64 MiB that no other test in this process frees meanwhile.
        let held = vec![1u8; 64 << 20];
        let begin = Instant::now();
        let mut look = |ms: u64| beside.look(page, table, &managed, begin + Duration::from_millis(ms));
        assert_eq!([0, 500, 999].map(|ms| look(ms).pages), [0; 3]);
        let found = look(1000);
        assert!(found.pages >= 16384 && found.kernel_bytes > 64 << 10, "{found:?}");
        // 8 MiB do not count.
        assert!(page.sum().held >= found.pages as i64 - 2048);
        // Granted memory is not beside the grants.
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
        // Rare looks reach back further.
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
