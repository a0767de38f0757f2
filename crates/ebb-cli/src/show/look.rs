//! What a running tree and its processes hold, as they have published it.
//!
//! Each process publishes what it holds, so a figure may be as old as the process's last work. Memory is what a process
//! was charged, in pages: resident pages and metadata, staged pages, and the pool.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use ebb::stats::{Device, Shared};
use ebb::tree::{Kind, Member, MemberId, now_ms, said};

use crate::base::text::printable;
use crate::running::counters::PAGE_BYTES;
use crate::running::outside::Table;
use crate::running::process;
use crate::running::trees::{Holder, RunningTree};

/// Shown in place of a command that is not known.
const NONE: &str = "-";
/// The time over which stalls are averaged, as in PSI's `avg10`.
pub const STALL_OVER_MS: u64 = 10_000;

/// What a place for pages that left memory holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tier {
    pub name: &'static str,
    pub pages: u64,
    pub bytes: u64,
}

/// Figures that one member published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Figures {
    pub wanted: u64,
    pub charged: u64,
    /// Charged pages that another process also holds since a fork, and that count there.
    pub shared: u64,
    pub staged: u64,
    pub pool: u64,
    pub faults: u64,
    pub age_ms: Option<u64>,
    pub tiers: [Tier; 3],
}

impl Figures {
    fn of(member: &Member, shared: u64) -> Self {
        // Read `charged` once: it may change meanwhile, and what is shared must not exceed it.
        let charged = said(&member.charged);
        Self {
            wanted: said(&member.wanted),
            charged,
            shared: shared.min(charged),
            staged: said(&member.staged),
            pool: said(&member.pool),
            faults: member.faults.load(Relaxed),
            age_ms: member.coldest_ms(now_ms()),
            tiers: [
                Tier { name: "hot", pages: said(&member.hot_pages), bytes: said_bytes(&member.hot_bytes) },
                Tier { name: "cold", pages: said(&member.cold_pages), bytes: said_bytes(&member.cold_bytes) },
                Tier { name: "device", pages: said(&member.on_device), bytes: said_bytes(&member.device_bytes) },
            ],
        }
    }

    /// Pages in page tables, and Ebb's metadata.
    pub fn resident(&self) -> u64 {
        self.charged.saturating_sub(self.staged + self.pool)
    }

    /// What the process holds of the budget.
    pub fn held(&self) -> u64 {
        self.charged.saturating_sub(self.shared)
    }

    /// Pages whose content is neither resident nor staged: it is in the pool, in a file, or same-filled. Too few by
    /// Ebb's metadata, which counts as resident.
    pub fn swapped(&self) -> u64 {
        self.wanted.saturating_sub(self.resident() + self.staged)
    }
}

/// Bytes that a member published. Any process of the tree may have written any value.
fn said_bytes(word: &AtomicU64) -> u64 {
    word.load(Relaxed).min(1 << 50)
}

/// A process of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// None for a process in another pid namespace.
    pub pid: Option<i32>,
    pub command: String,
    pub what: What,
}

impl Row {
    /// Pages of the budget that the process holds.
    pub fn held(&self) -> u64 {
        match &self.what {
            What::Managed { figures, .. } => figures.held(),
            What::Outside { pages } | What::Others { pages } => *pages,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    Managed {
        figures: Figures,
        faults_per_s: u64,
    },
    /// Pages that it holds, as measured from outside.
    Outside {
        pages: u64,
    },
    /// Likewise for processes without places of their own, which count in the place of `ebb run`.
    Others {
        pages: u64,
    },
}

/// A tree and its processes.
pub struct Shown {
    pub label: String,
    pub name: Option<String>,
    pub supervisor: i32,
    pub budget_bytes: u64,
    pub held_bytes: u64,
    pub peak_bytes: u64,
    /// The size of RAM that the programs are shown; none for the true size.
    pub show_ram_bytes: Option<u64>,
    pub idle: Idle,
    pub events: Events,
    /// The share of the last [`STALL_OVER_MS`] in which at least one thread waited in a fault, in millionths; none if it is not known.
    pub stalled_some: Option<u64>,
    /// Likewise, and no other thread could have run: known to an observer that has looked for some time (`top/lookout.rs`), and an estimate.
    pub stalled_full: Option<u64>,
    pub rows: Vec<Row>,
}

/// What the processes of a tree hold together, in pages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Processes that Ebb manages, and others.
    pub managed: u64,
    pub others: u64,
    /// What the others hold.
    pub outside: u64,
    /// Of the managed ones.
    pub wanted: u64,
    pub resident: u64,
    pub staged: u64,
    pub pool: u64,
    pub shared: u64,
    pub swapped: u64,
    pub faults: u64,
    /// Faults a second.
    pub faults_per_s: u64,
    pub hot: Content,
    pub cold: Content,
    pub device: Content,
}

/// The content of a tier.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Content {
    /// What it would take in memory.
    pub pages: u64,
    /// What it takes.
    pub bytes: u64,
}

impl Content {
    pub fn and(self, other: Self) -> Self {
        Self { pages: self.pages + other.pages, bytes: self.bytes + other.bytes }
    }

    /// How many times smaller the content got; none without any.
    pub fn ratio(self) -> Option<f64> {
        (self.bytes > 0).then(|| (self.pages * PAGE_BYTES) as f64 / self.bytes as f64)
    }
}

impl Totals {
    /// Adds one process.
    pub fn add(&mut self, row: &Row) {
        match &row.what {
            What::Managed { figures, faults_per_s } => {
                self.managed += 1;
                self.wanted += figures.wanted;
                self.resident += figures.resident();
                self.staged += figures.staged;
                self.pool += figures.pool;
                self.shared += figures.shared;
                self.swapped += figures.swapped();
                // Any process may have written any number.
                self.faults = self.faults.saturating_add(figures.faults);
                self.faults_per_s = self.faults_per_s.saturating_add(*faults_per_s);
                let tiers = [&mut self.hot, &mut self.cold, &mut self.device];
                for (sum, tier) in tiers.into_iter().zip(figures.tiers) {
                    *sum = sum.and(Content { pages: tier.pages, bytes: tier.bytes });
                }
            }
            What::Outside { pages } | What::Others { pages } => {
                self.others += 1;
                self.outside += pages;
            }
        }
    }

    /// The tiers by their names.
    pub fn tiers(&self) -> [(&'static str, Content); 3] {
        [("hot", self.hot), ("cold", self.cold), ("device", self.device)]
    }

    /// What is compressed in RAM.
    pub fn compressed(&self) -> Content {
        self.hot.and(self.cold)
    }
}

/// What has happened in a tree since it began, its dead processes included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Events {
    pub faults_first_touch: u64,
    pub faults_staged: u64,
    pub faults_pool: u64,
    /// Of these, those in its cold tier.
    pub faults_cold: u64,
    pub faults_file: u64,
    pub faults_protected: u64,
    pub faults_spurious: u64,
    /// Pages that came back so soon that a little more memory would have kept them.
    pub refaults_near: u64,
    /// Pages that were read ahead from devices and used, and those that were not.
    pub ahead_hits: u64,
    pub ahead_misses: u64,
    /// Time that threads spent in faults without reclaim, and in reclaim, summed over the threads.
    pub fault_ns: u64,
    pub reclaim_ns: u64,
    /// Time in which at least one thread was in a fault.
    pub some_ns: u64,
    pub out_pool_pages: u64,
    pub out_same_pages: u64,
    pub out_zero_pages: u64,
    pub out_file_pages: u64,
    pub writeback_pages: u64,
}

impl Events {
    pub fn of(page: &Shared) -> Self {
        let get = |counter: &AtomicU64| counter.load(Relaxed);
        let ahead = |of: fn(&Device) -> &AtomicU64| {
            page.devices.iter().map(|device| get(of(device))).fold(0, u64::saturating_add)
        };
        Self {
            faults_first_touch: get(&page.faults_first_touch),
            faults_staged: get(&page.faults_soft),
            faults_pool: get(&page.faults_pool),
            faults_cold: get(&page.faults_cold),
            faults_file: get(&page.faults_file),
            faults_protected: get(&page.faults_protected),
            faults_spurious: get(&page.faults_spurious),
            refaults_near: get(&page.refaults_near),
            ahead_hits: ahead(|device| &device.readahead_hits),
            ahead_misses: ahead(|device| &device.readahead_misses),
            fault_ns: get(&page.fault_ns),
            reclaim_ns: get(&page.direct_reclaim_ns),
            some_ns: page.stalled_some_ns(),
            out_pool_pages: get(&page.out_pool_pages),
            out_same_pages: get(&page.out_same_pages),
            out_zero_pages: get(&page.swpout_zero),
            out_file_pages: get(&page.out_file_pages),
            writeback_pages: get(&page.writeback_pages),
        }
    }

    /// Faults by what they found, as users name it.
    pub fn faults(&self) -> [(&'static str, u64); 6] {
        [
            ("first_touch", self.faults_first_touch),
            ("staged", self.faults_staged),
            ("pool", self.faults_pool),
            ("file", self.faults_file),
            ("protected", self.faults_protected),
            ("spurious", self.faults_spurious),
        ]
    }

    /// Pages that were swapped out, by where to.
    pub fn swapped_out(&self) -> [(&'static str, u64); 4] {
        [
            ("pool", self.out_pool_pages),
            ("same_filled", self.out_same_pages),
            ("zero", self.out_zero_pages),
            ("file", self.out_file_pages),
        ]
    }

    /// Time that threads lost to swap, summed over the threads.
    pub fn stall_ns(&self) -> u64 {
        self.fault_ns.saturating_add(self.reclaim_ns)
    }
}

/// What has left memory because nobody used it.
pub struct Idle {
    /// The idle period; 0 while there is none.
    pub period_ms: u64,
    pub out_bytes: u64,
    /// What of that went on from the pool to a device.
    pub written_bytes: u64,
}

impl Idle {
    fn of(stats: &Shared) -> Self {
        let bytes = |pages: &AtomicU64| pages.load(Relaxed).saturating_mul(PAGE_BYTES);
        Self {
            period_ms: stats.idle_ms.load(Relaxed),
            out_bytes: bytes(&stats.idle_out_pages),
            written_bytes: bytes(&stats.idle_writeback_pages),
        }
    }
}

impl Shown {
    /// What its processes hold together.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        self.rows.iter().for_each(|row| totals.add(row));
        totals
    }

    /// Bytes that are left; 0 if the tree holds too much.
    pub fn free_bytes(&self) -> u64 {
        self.budget_bytes.saturating_sub(self.held_bytes)
    }
}

/// Fault counts of every member at one time.
pub struct Faults {
    at: Instant,
    of: Vec<(MemberId, u64)>,
}

impl Faults {
    pub fn look(tree: &RunningTree) -> Self {
        let all = tree.counters.tree().members();
        let of = all
            .map(|(index, member)| (MemberId { index, generation: member.generation() }, member.faults.load(Relaxed)));
        Self { at: Instant::now(), of: of.collect() }
    }

    /// Faults a second since then, of a member that has had `now` faults by now.
    pub fn per_s(&self, id: MemberId, now: u64) -> u64 {
        let before = self.of.iter().find(|(other, _)| *other == id).map_or(0, |(_, faults)| *faults);
        let ms = self.at.elapsed().as_millis().max(1) as u64;
        now.saturating_sub(before).saturating_mul(1000) / ms
    }
}

/// Pages of each member that count for another member.
fn shared(tree: &RunningTree) -> HashMap<MemberId, u64> {
    let mut all = HashMap::new();
    ebb::tree::recount(tree.counters.tree(), tree.counters.fd(), |_, _, holders| {
        holders.iter().for_each(|(id, pages)| *all.entry(*id).or_default() += pages);
    });
    all
}

fn rows(tree: &RunningTree, before: &Faults) -> Vec<Row> {
    let table = Table(Path::new(process::PROC));
    let own = tree.own();
    let supervisor = tree.supervisor();
    // Take back what dead processes held: it belongs to nobody.
    ebb::tree::reap(tree.counters.tree(), tree.counters.fd(), &own);
    let shared = shared(tree);
    let row = |(index, member): (u32, &Member)| {
        let kind = member.kind();
        let pid = match (kind, tree.holder(index, &own)) {
            (Kind::Free | Kind::Reserved, _) | (_, Holder::Nobody) => return None,
            (_, Holder::Process(pid)) => Some(pid),
            (_, Holder::Unseen) => None,
        };
        let id = MemberId { index, generation: member.generation() };
        let pages = tree.counters.tree().held_by(member).max(0) as u64;
        let command = pid.and_then(|pid| table.command(pid)).map_or_else(|| NONE.to_owned(), |name| printable(&name));
        Some(match kind {
            Kind::Outside if pid == Some(supervisor) => {
                Row { pid: None, command: "(others)".to_owned(), what: What::Others { pages } }
            }
            Kind::Outside => Row { pid, command, what: What::Outside { pages } },
            _ => {
                let figures = Figures::of(member, shared.get(&id).copied().unwrap_or(0));
                Row { pid, command, what: What::Managed { figures, faults_per_s: before.per_s(id, figures.faults) } }
            }
        })
    };
    let mut rows: Vec<Row> = tree.counters.tree().members().filter_map(row).collect();
    // Processes without a number come last.
    rows.sort_by_key(|row| row.pid.unwrap_or(i32::MAX));
    rows
}

pub fn shown(tree: &RunningTree, before: &Faults) -> Shown {
    let rows = rows(tree, before);
    let sum = tree.counters.tree().sum();
    Shown {
        label: tree.label(),
        name: tree.counters.name(),
        supervisor: tree.supervisor(),
        budget_bytes: sum.limit.max(0) as u64 * PAGE_BYTES,
        held_bytes: sum.held.max(0) as u64 * PAGE_BYTES,
        peak_bytes: tree.counters.page().peak_held_bytes.load(Relaxed),
        show_ram_bytes: Some(tree.counters.page().show_ram_bytes.load(Relaxed)).filter(|bytes| *bytes > 0),
        idle: Idle::of(tree.counters.page()),
        events: Events::of(tree.counters.page()),
        stalled_some: tree.counters.page().stalled_some(STALL_OVER_MS),
        stalled_full: None,
        rows,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_that_do_not_fit_each_other_are_no_huge_numbers() {
        let figures = Figures {
            wanted: 5,
            charged: 10,
            shared: 0,
            staged: 20,
            pool: 30,
            faults: 0,
            age_ms: None,
            tiers: [Tier { name: "none", pages: 0, bytes: 0 }; 3],
        };
        assert_eq!((figures.resident(), figures.swapped()), (0, 0));
    }
}
