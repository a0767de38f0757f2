//! What a running tree and its processes hold, as they have published it.
//!
//! Each process publishes what it holds, so a figure may be as old as the process's last work. Memory is what a process
//! was charged, in pages: resident pages and metadata, staged pages, and the pool.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use ebb::stats::Shared;
use ebb::tree::{Kind, Member, MemberId, now_ms, said};

use crate::base::text::printable;
use crate::running::counters::PAGE_BYTES;
use crate::running::outside::Table;
use crate::running::process;
use crate::running::trees::{Holder, RunningTree};

/// Shown in place of a command that is not known.
const NONE: &str = "-";

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
    pub rows: Vec<Row>,
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
