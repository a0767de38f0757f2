//! What managed processes hold beside what they are granted: thread stacks, data of programs and libraries, memory that the kernel
//! wrote for them, small tables. Nobody in the process knows of these, so the kernel is asked, from outside.
//!
//! All anonymous memory of the managed processes together, less what they are granted, is beside that. What several share
//! since a fork must count once: the kernel says that too, but looks at every page for it. So only processes that share are asked,
//! and no more often than that costs a small part of the time; in between they count with what they have grown since.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use ebb::tree::{MemberId, Page};

use crate::outside::Table;

/// Between two looks at what is shared, at least; and how many times as long as the look took.
const SHARED_EVERY: Duration = Duration::from_millis(250);
const SHARED_REST: u32 = 50;

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

/// What is known since the last look.
#[derive(Debug, Default)]
pub struct Beside {
    shared: HashMap<MemberId, Shared>,
    /// When to look again at what is shared.
    due: Option<Instant>,
    /// All pages at the last look.
    before: Option<u64>,
}

impl Beside {
    /// Looks at the managed processes, and says in the tree what they hold.
    pub fn look(&mut self, page: &Page, table: Table<'_>, managed: &[(i32, MemberId)]) -> Found {
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
        // The smaller of two looks: a process may be granted memory between the look at it and the look at the tree, or have
        // memory for a moment that it is about to leave.
        let counted = self.before.replace(anonymous).map_or(0, |before| before.min(anonymous));
        Found { pages: page.tell_anonymous(counted as i64) as u64, kernel_bytes }
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
    fn what_a_process_was_not_granted_is_counted_from_the_second_look_on() {
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
        assert_eq!(beside.look(page, table, &managed).pages, 0);
        let found = beside.look(page, table, &managed);
        assert!(found.pages >= 16384 && found.kernel_bytes > 64 << 10, "{found:?}");
        // Eight MiB are free.
        assert!(page.sum().held >= found.pages as i64 - 2048);
        // Memory that it is granted is not beside it.
        member.granted.store(found.pages as i64 - 4096, SeqCst);
        beside.look(page, table, &managed);
        let less = beside.look(page, table, &managed);
        assert!(less.pages < found.pages - 8192, "{less:?} {found:?}");
        drop(held);
    }

    #[test]
    fn half_of_the_budget_stays_for_what_is_granted() {
        let counters = Counters::create().unwrap();
        counters.set_budget(64 << 20);
        assert_eq!(counters.tree().tell_anonymous(1 << 20), 1 << 20);
        assert_eq!(counters.tree().sum().free(), (32 << 20) / 4096);
    }
}
