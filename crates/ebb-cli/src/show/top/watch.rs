//! What `ebb top` sees of the running trees over time: looks, rates between two of them, and the last minutes.
//!
//! The figures are those of `ebb ps` (`look.rs`). A tree is known by its shared file, so one that ends and another of the same name are
//! two.

use std::collections::VecDeque;
use std::path::Path;
use std::time::Instant;

use crate::base::failure::Failure;
use crate::base::name::Target;
use crate::base::sys;
use crate::running::counters::PAGE_BYTES;
use crate::running::process;
use crate::running::trees::{self, Access, Inode, RunningTree};
use crate::show::look::{Events, Faults, Shown, Totals, shown};
use crate::show::top::lookout::Lookout;

/// How far back a graph can reach.
pub const HISTORY_S: f64 = 600.0;
/// The most points of one tree.
const POINTS_MAX: usize = 4096;

/// What happened a second, between two looks.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Rates {
    /// All faults that brought memory in.
    pub faults: f64,
    pub first_touch: f64,
    pub staged: f64,
    pub pool: f64,
    pub device: f64,
    /// Pages that came back although they had left a short time ago.
    pub refaults: f64,
    /// Pages that were read ahead and used, and those that were not.
    pub ahead_hits: f64,
    pub ahead_misses: f64,
    /// How many threads waited at a time, on average.
    pub waiting: f64,
}

impl Rates {
    fn between(before: &Events, now: &Events, seconds: f64) -> Self {
        // Any process of the tree may have written any number, a smaller one, too.
        let rate = |of: fn(&Events) -> u64| of(now).saturating_sub(of(before)) as f64 / seconds.max(1e-3);
        let (first_touch, staged) = (rate(|of| of.faults_first_touch), rate(|of| of.faults_staged));
        let (pool, device) = (rate(|of| of.faults_pool), rate(|of| of.faults_file));
        Self {
            faults: first_touch + staged + pool + device,
            first_touch,
            staged,
            pool,
            device,
            refaults: rate(|of| of.refaults_near),
            ahead_hits: rate(|of| of.ahead_hits),
            ahead_misses: rate(|of| of.ahead_misses),
            waiting: rate(Events::stall_ns) / 1e9,
        }
    }
}

/// A moment of a tree's past. It stands for the time since the point before.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// Seconds since `ebb top` began.
    pub since_s: f64,
    pub at_s: f64,
    pub held_bytes: u64,
    /// Faults a second from the pool and from devices: those of memory that had left.
    pub swapins: f64,
    /// In millionths.
    pub stalled_some: u64,
}

/// A tree at the last look.
pub struct Tree {
    pub id: Inode,
    pub shown: Shown,
    pub totals: Totals,
    pub rates: Rates,
    pub past: VecDeque<Point>,
}

/// What the last look at a tree left for the next.
struct Before {
    id: Inode,
    at: Instant,
    faults: Faults,
    events: Events,
    past: VecDeque<Point>,
}

/// All trees, at one moment.
pub struct Picture {
    /// Seconds since `ebb top` began.
    pub at_s: f64,
    /// The time of day.
    pub clock: String,
    pub trees: Vec<Tree>,
}

impl Picture {
    pub fn held_bytes(&self) -> u64 {
        self.trees.iter().map(|tree| tree.shown.held_bytes).fold(0, u64::saturating_add)
    }

    pub fn wanted_bytes(&self) -> u64 {
        self.trees
            .iter()
            .map(|tree| (tree.totals.wanted + tree.totals.outside) * PAGE_BYTES)
            .fold(0, u64::saturating_add)
    }

    pub fn processes(&self) -> usize {
        self.trees.iter().map(|tree| tree.shown.rows.len()).sum()
    }
}

/// Looks at the trees, again and again.
pub struct Watch {
    /// The trees to show; all if empty.
    targets: Vec<Target>,
    began: Instant,
    before: Vec<Before>,
    lookout: Lookout,
}

impl Watch {
    /// Takes the first look. Fails if a tree is named that is not there.
    pub fn begin(targets: &[Target]) -> Result<Self, Failure> {
        let lookout = Lookout::begin();
        let mut watch = Self { targets: targets.to_vec(), began: Instant::now(), before: Vec::new(), lookout };
        let all = identified(trees::select(watch.running(targets)?, targets)?);
        watch.before = all.iter().map(|(id, tree)| watch.keep(*id, tree, VecDeque::new())).collect();
        watch.lookout.follow(all);
        Ok(watch)
    }

    fn running(&self, targets: &[Target]) -> Result<Vec<RunningTree>, Failure> {
        // As for `ebb ps`: what dead processes held is taken back first.
        trees::running(Path::new(process::PROC), Access::Change, targets)
    }

    fn keep(&self, id: Inode, tree: &RunningTree, past: VecDeque<Point>) -> Before {
        let events = Events::of(tree.counters.page());
        Before { id, at: Instant::now(), faults: Faults::look(tree), events, past }
    }

    /// Looks once more. A tree that has ended is left out, even if it was named.
    pub fn look(&mut self) -> Result<Picture, Failure> {
        let all = identified(trees::those(self.running(&[])?, &self.targets));
        let now_s = self.began.elapsed().as_secs_f64();
        let (mut seen, mut kept) = (Vec::new(), Vec::new());
        for (id, tree) in &all {
            let id = *id;
            let before = self.before.iter().position(|before| before.id == id).map(|at| self.before.swap_remove(at));
            let before = before.unwrap_or_else(|| self.keep(id, tree, VecDeque::new()));
            let mut shown = shown(tree, &before.faults);
            shown.stalled_full = self.lookout.full(id, shown.stalled_some);
            let seconds = before.at.elapsed().as_secs_f64();
            let rates = Rates::between(&before.events, &shown.events, seconds);
            let mut past = before.past;
            past.push_back(Point {
                since_s: now_s - seconds,
                at_s: now_s,
                held_bytes: shown.held_bytes,
                swapins: rates.pool + rates.device,
                stalled_some: shown.stalled_some.unwrap_or(0),
            });
            forget(&mut past, now_s);
            kept.push(self.keep(id, tree, past.clone()));
            seen.push(Tree { id, totals: shown.totals(), shown, rates, past });
        }
        self.before = kept;
        self.lookout.follow(all);
        Ok(Picture { at_s: now_s, clock: sys::local_time(), trees: seen })
    }
}

fn identified(trees: Vec<RunningTree>) -> Vec<(Inode, RunningTree)> {
    trees.into_iter().filter_map(|tree| Some((Inode::of_counters(&tree.counters).ok()?, tree))).collect()
}

/// Drops what no graph reaches any more.
fn forget(past: &mut VecDeque<Point>, now_s: f64) {
    while past.len() > POINTS_MAX || past.front().is_some_and(|point| point.at_s < now_s - HISTORY_S) {
        past.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_what_happened_a_second() {
        let before = Events { faults_pool: 10, fault_ns: 500_000_000, ahead_hits: 7, ..Events::default() };
        let now = Events {
            faults_pool: 30,
            faults_file: 4,
            fault_ns: 2_000_000_000,
            reclaim_ns: 500_000_000,
            ..Events::default()
        };
        let rates = Rates::between(&before, &now, 2.0);
        assert_eq!((rates.pool, rates.device, rates.faults, rates.waiting), (10.0, 2.0, 12.0, 1.0));
        assert_eq!(rates.ahead_hits, 0.0, "a counter that went back");
        assert!(Rates::between(&before, &now, 0.0).pool.is_finite());
    }

    #[test]
    fn the_past_is_as_long_as_a_graph() {
        let point = |at_s| Point { since_s: at_s - 1.0, at_s, held_bytes: 0, swapins: 0.0, stalled_some: 0 };
        let mut past: VecDeque<Point> = (0..1000).map(|at| point(f64::from(at))).collect();
        forget(&mut past, 999.0);
        assert_eq!(past.front().map(|point| point.at_s), Some(399.0));
        past.extend((0..2 * POINTS_MAX).map(|_| point(999.0)));
        forget(&mut past, 999.0);
        assert_eq!(past.len(), POINTS_MAX);
    }
}
