//! `ebb ps --validate`: checks that what a tree's members publish is consistent, and matches the processes that exist.
//!
//! The processes keep running, so one look proves nothing against them: a violation counts only if it stays.

use std::fmt;
use std::time::Duration;

use ebb::tree::{self, Kind, MEMBERS_MAX, PAGES_MAX, Page, SHARES_MAX};

use crate::base::size::human_bytes;
use crate::running::counters::PAGE_BYTES;
use crate::running::trees::{Holder, RunningTree};

/// The most looks at a tree in which something is wrong, and the time between them.
const LOOKS: u32 = 10;
const BETWEEN: Duration = Duration::from_millis(10);
/// How often at most the two sums of a tree at work are taken, until both are of the same moment.
const SUMS: u32 = 1000;
/// Pages that a process may have published as charged, but not been granted yet: what its threads are about to charge.
const SLACK_PAGES: u64 = 1024;

/// The exit status if something is wrong.
const STATUS_WRONG: i32 = 1;

/// A state that cannot be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Violation {
    /// A process is charged more pages than it was granted.
    Ungranted { index: u32, granted: i64, charged: u64 },
    /// A member's process has ended, although dead members were just taken back.
    Dead { index: u32 },
    /// A member is in use, but not among those that are added up.
    Unsummed { index: u32 },
    /// The members add up to something other than the tree's sum.
    Sum { recounted: i64, held: i64 },
    /// A share leaves more out of the sum than several processes hold in common.
    Surplus { share: u32, surplus: i64, recounted: i64 },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ungranted { index, granted, charged } => {
                write!(f, "member {index}: granted {granted} pages, but charged {charged}")
            }
            Self::Dead { index } => write!(f, "member {index}: its process has ended"),
            Self::Unsummed { index } => write!(f, "member {index}: in use, but missing from the sum"),
            Self::Sum { recounted, held } => write!(f, "sum: {held} pages held, but members hold {recounted}"),
            Self::Surplus { share, surplus, recounted } => {
                write!(f, "share {share}: {surplus} pages are left out of the sum, but only {recounted} are held twice")
            }
        }
    }
}

/// Recounts what the tree holds: what each member's words say, less the surplus, plus what counts beside the grants.
fn recount(page: &Page) -> i64 {
    let of = |index: u32| {
        let member = page.member(index);
        let load =
            |word: &std::sync::atomic::AtomicI64| word.load(std::sync::atomic::Ordering::SeqCst).min(PAGES_MAX as i64);
        match member.kind() {
            Kind::Free => 0,
            Kind::Outside => {
                // Until its bits are taken back, the member also counts for what it was granted before.
                let has_bits = member.has_bits.load(std::sync::atomic::Ordering::SeqCst) != 0;
                load(&member.outside).max(0) + if has_bits { load(&member.granted).max(0) } else { 0 }
            }
            Kind::Managed | Kind::Reserved => load(&member.granted).max(0),
        }
    };
    let surplus: i64 = (0..SHARES_MAX as u32).map(|index| page.share(index).surplus()).sum();
    (page.places().map(of).sum::<i64>() - surplus).max(0) + page.beside_counted(page.limit() as i64)
}

/// Shares that leave more out than several processes hold in common. Leaving out too little is no violation: a process
/// may have been killed halfway through counting it.
fn wrong_surplus(page: &Page, fd: i32) -> Vec<Violation> {
    let mut found = Vec::new();
    let before: Vec<i64> = (0..SHARES_MAX as u32).map(|index| page.share(index).surplus()).collect();
    tree::recount(page, fd, |share, recounted, _| {
        // Take the smaller of the surplus before and after: meanwhile, forks raise it and other processes lower it.
        let surplus = before[share as usize].min(page.share(share).surplus());
        if surplus > recounted {
            found.push(Violation::Surplus { share, surplus, recounted });
        }
    });
    found
}

/// Whether the tree's sum is that of all members. For a tree at work, the two need to match at only one of many
/// moments.
fn wrong_sum(page: &Page) -> Option<Violation> {
    let mut wrong = None;
    for _ in 0..SUMS {
        let (recounted, held) = (recount(page), page.sum().held);
        if recounted == held {
            return None;
        }
        wrong = Some(Violation::Sum { recounted, held });
    }
    wrong
}

/// What is wrong in the shared file now. `is_dead` says which members' processes have ended.
fn look(page: &Page, is_dead: impl Fn(u32) -> bool) -> Vec<Violation> {
    let mut found = Vec::new();
    let summed = page.members().count();
    for index in page.places() {
        let member = page.member(index);
        let kind = member.kind();
        if kind != Kind::Free && index as usize >= summed {
            found.push(Violation::Unsummed { index });
        }
        if matches!(kind, Kind::Managed | Kind::Outside) && is_dead(index) {
            found.push(Violation::Dead { index });
        }
        // Read `charged` first: pages are granted before they are charged.
        let charged = member.charged.load(std::sync::atomic::Ordering::SeqCst);
        let granted = member.granted.load(std::sync::atomic::Ordering::SeqCst);
        if kind == Kind::Managed && charged > granted.max(0) as u64 + SLACK_PAGES {
            found.push(Violation::Ungranted { index, granted, charged });
        }
    }
    found.extend(wrong_sum(page));
    found
}

/// What is wrong in a tree, and stays wrong.
fn violations(tree: &RunningTree) -> Vec<Violation> {
    let (page, fd) = (tree.counters.tree(), tree.counters.fd());
    let own = tree.own();
    let mut found = Vec::new();
    for at in 0..LOOKS {
        if at > 0 {
            std::thread::sleep(BETWEEN);
        }
        tree::reap(page, fd, &own);
        found = look(page, |index| tree.holder(index, &own) == Holder::Nobody);
        found.extend(wrong_surplus(page, fd));
        if found.is_empty() {
            break;
        }
    }
    found
}

/// The text to print about the trees, and the exit status.
pub fn report(trees: &[RunningTree]) -> (String, i32) {
    let mut out = String::new();
    let mut status = 0;
    for tree in trees {
        let found = violations(tree);
        for violation in &found {
            out += &format!("ebb: tree {}: {violation}\n", tree.label());
            status = STATUS_WRONG;
        }
        if found.is_empty() {
            let page = tree.counters.tree();
            let used = page.members().filter(|(_, member)| member.kind() != Kind::Free).count();
            let held = page.sum().held.max(0) as u64 * PAGE_BYTES;
            out += &format!(
                "ebb: tree {}: ok: {used} of {MEMBERS_MAX} members hold {}\n",
                tree.label(),
                human_bytes(held)
            );
        }
    }
    (out, status)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::running::counters::Counters;
    use ebb::tree::masks::{Extent, Masks};
    use std::sync::atomic::Ordering::SeqCst;

    fn managed(page: &Page, index: u32, granted: i64, charged: u64) {
        let member = page.member(index);
        member.granted.store(granted, SeqCst);
        member.charged.store(charged, SeqCst);
        member.set_kind(Kind::Managed);
        page.raise_high_water(index);
    }

    #[test]
    fn a_tree_whose_members_fit_together_is_valid() {
        let counters = Counters::create().unwrap();
        let page = counters.tree();
        managed(page, 0, 100, 90);
        managed(page, 2, 50, 50 + SLACK_PAGES);
        page.member(1).outside.store(7, SeqCst);
        page.member(1).set_kind(Kind::Outside);
        let parent = tree::MemberId { index: 0, generation: page.member(0).generation() };
        let child = page.reserve(3, parent, 1);
        page.member(3).granted.store(60, SeqCst);
        let share = page.share(4);
        let extent = Extent::new([1].into_iter(), (0, 0));
        let masks = Masks::create(counters.fd(), 4, &extent).unwrap();
        page.raise_shares_high_water(4);
        let numbers = [parent, child].map(|id| {
            page.member(id.index).has_bits.store(1, SeqCst);
            share.enter(id).unwrap()
        });
        for at in 0..40 {
            let spot = masks.make((1 << 30) + at * 4096).unwrap();
            let [own, child] = numbers.map(|number| masks.bit(spot, number).unwrap());
            assert!(share.begin(own, child));
        }
        share.count(40, 0);
        assert_eq!((recount(page), page.sum().held), (177, 177));
        assert_eq!((look(page, |_| false), wrong_surplus(page, counters.fd())), (vec![], vec![]));
        share.count(1, 0);
        let found = wrong_surplus(page, counters.fd());
        assert_eq!(found, [Violation::Surplus { share: 4, surplus: 41, recounted: 40 }]);
        assert_eq!(found[0].to_string(), "share 4: 41 pages are left out of the sum, but only 40 are held twice");
        share.count(-1, 0);
        // Until its bits are taken back, the parent counts as before.
        page.member(0).set_kind(Kind::Outside);
        assert_eq!((recount(page), page.sum().held), (177, 177));
        // Afterwards the child counts in full.
        tree::reap(page, counters.fd(), &[0, 1, 2, 3]);
        assert_eq!((share.number_of(parent), share.surplus(), page.member(0).has_bits.load(SeqCst)), (None, 0, 0));
        assert_eq!((recount(page), page.sum().held), (117, 117));
        assert_eq!(wrong_surplus(page, counters.fd()), []);
    }

    #[test]
    fn each_violation_is_found() {
        let counters = Counters::create().unwrap();
        let page = counters.tree();
        managed(page, 0, 100, 101 + SLACK_PAGES);
        page.member(9).granted.store(5, SeqCst);
        page.member(9).set_kind(Kind::Managed);
        let found = look(page, |index| index == 0);
        let texts: Vec<String> = found.iter().map(Violation::to_string).collect();
        assert_eq!(
            texts,
            [
                "member 0: its process has ended",
                "member 0: granted 100 pages, but charged 1125",
                "member 9: in use, but missing from the sum",
                "sum: 100 pages held, but members hold 105",
            ]
        );
    }
}
