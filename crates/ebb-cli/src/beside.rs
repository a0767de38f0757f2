//! What managed processes hold beside what they are granted: thread stacks, data of programs and libraries, memory that the kernel
//! wrote for them, small tables. Nobody in the process knows of these, so the kernel is asked, from outside.
//!
//! All anonymous memory of the managed processes together, less what they are granted, is beside that. What several share
//! since a fork must count once: the kernel says that too, but looks at every page for it. So only processes that share are asked,
//! and no more often than that costs a small part of the time; in between they count with what they have grown since.
//!
//! Processes fork, exec and end while they are looked at, and then one look may see far too much. So what counts is the least of
//! all looks of a second: what stays, as stacks and data do.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use ebb::tree::{MemberId, Page};

use crate::outside::Table;

/// Between two looks at what is shared, at least; and how many times as long as the look took.
const SHARED_EVERY: Duration = Duration::from_millis(250);
const SHARED_REST: u32 = 50;
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
}

impl Shared {
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
    /// When to look again at what is shared.
    due: Option<Instant>,
    window: Window,
}

impl Beside {
    /// Looks at the managed processes at `now`, and says in the tree what they hold.
    pub fn look(&mut self, page: &Page, table: Table<'_>, managed: &[(i32, MemberId)], now: Instant) -> Found {
        let sharing: Vec<MemberId> =
            page.shares().flat_map(|(_, share)| share.holders().map(|(_, id)| id).collect::<Vec<_>>()).collect();
        self.shared.retain(|id, _| sharing.contains(id));
        let began = Instant::now();
        let is_due = self.due.is_none_or(|due| began >= due);
        let (mut anonymous, mut kernel_bytes, mut has_looked) = (0, 0, false);
        for (pid, id) in managed {
            // It has just ended.
            let Some(memory) = table.memory(*pid) else { continue };
            kernel_bytes += memory.kernel_bytes;
            anonymous += if sharing.contains(id) {
                has_looked |= is_due || !self.shared.contains_key(id);
                self.part(table, *pid, *id, memory.anonymous_pages, is_due)
            } else {
                memory.anonymous_pages
            };
        }
        if has_looked {
            self.due = Some(Instant::now() + SHARED_EVERY.max(began.elapsed() * SHARED_REST));
        }
        let pages = self.window.least(now, page.beside_of(anonymous as i64));
        page.tell_beside(pages);
        Found { pages: pages as u64, kernel_bytes }
    }

    /// The part of a process that shares memory and has so many pages. None of it where the kernel does not say.
    fn part(&mut self, table: Table<'_>, pid: i32, id: MemberId, anonymous: u64, is_due: bool) -> u64 {
        let known = self.shared.get(&id).copied().filter(|_| !is_due);
        let shared = known.unwrap_or_else(|| {
            let proportional = table.proportional_pages(pid).unwrap_or(0);
            Shared { anonymous, proportional }
        });
        self.shared.insert(id, shared);
        shared.now(anonymous)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Counters;
    use ebb::tree::Kind;
    use std::path::Path;
    use std::sync::atomic::Ordering::SeqCst;

    #[test]
    fn growth_counts_in_full_and_what_is_gone_does_not() {
        let shared = Shared { anonymous: 1000, proportional: 400 };
        assert_eq!((shared.now(1000), shared.now(1100), shared.now(900), shared.now(300)), (400, 500, 400, 300));
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
