//! What a program may ask about its own memory, and the budget that it may set: `ebb.h` in a program that runs under Ebb.

use crate::base::PAGE;
use crate::space::{RAM_BYTES_MIN, Space};
use crate::threads::ctx::ThreadCtx;
use crate::tree::said;
use crate::way_out::{publish, reclaim};
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

/// What this process and its tree hold now. Sizes are bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Figures {
    /// Memory with content, wherever the content is.
    pub wanted: u64,
    /// What counts against the budget: resident and staged pages, the pool, and Ebb's tables. Memory that is shared since a fork
    /// counts in each process here.
    pub held: u64,
    /// Of that, pages in page tables, and Ebb's tables.
    pub resident: u64,
    /// Of that, pages that are unmapped and not compressed yet.
    pub staged: u64,
    /// Of that, the compressed pool.
    pub pool: u64,
    /// Content of the pool before compression.
    pub pool_content: u64,
    /// Content that is neither resident nor staged.
    pub swapped: u64,
    /// Content on devices, before compression.
    pub device: u64,
    /// Faults that this process has served.
    pub faults: u64,
    /// The budget of the tree.
    pub ram: u64,
    /// What the tree holds of it.
    pub tree_held: u64,
    /// The most that the tree has held.
    pub tree_peak: u64,
    /// Faults of the tree that found a staged page.
    pub faults_staged: u64,
    /// Faults of the tree that found a page in the pool.
    pub faults_pool: u64,
    /// Faults of the tree that found a page on a device.
    pub faults_device: u64,
    /// Pages of the tree that were brought in before anybody touched them.
    pub read_ahead: u64,
    /// Memory of the tree that was swapped out: compressed, written, or found to be same-filled.
    pub out: u64,
    /// What the tree has written to devices.
    pub written: u64,
    /// Time that the tree's threads have lost to swap, in nanoseconds.
    pub stall_ns: u64,
}

impl Space {
    /// What this process and its tree hold now. Outside the gate.
    pub fn figures(&self, ctx: &ThreadCtx) -> Figures {
        publish::publish_sizes_outside(self, ctx);
        publish::publish_tiers_outside(self, ctx);
        let bytes = |pages: u64| pages.saturating_mul(PAGE as u64);
        let (member, sum) = (self.tree().member(), self.tree().page().sum());
        let (wanted, charged) = (said(&member.wanted), said(&member.charged));
        let (staged, pool) = (said(&member.staged), said(&member.pool));
        let resident = charged.saturating_sub(staged + pool);
        let total = |counters: &[&AtomicU64]| counters.iter().fold(0u64, |all, c| all.saturating_add(c.load(Relaxed)));
        let (stats, tree_held) = (self.stats(), bytes(sum.held.max(0) as u64));
        Figures {
            wanted: bytes(wanted),
            held: bytes(charged),
            resident: bytes(resident),
            staged: bytes(staged),
            pool: bytes(pool),
            pool_content: bytes(said(&member.hot_pages) + said(&member.cold_pages)),
            swapped: bytes(wanted.saturating_sub(resident + staged)),
            device: bytes(said(&member.on_device)),
            faults: member.faults.load(Relaxed),
            ram: bytes(sum.limit.max(0) as u64),
            tree_held,
            // Not every charge raises the peak at once.
            tree_peak: stats.peak_held_bytes.load(Relaxed).max(tree_held),
            faults_staged: total(&[&stats.faults_soft]),
            faults_pool: total(&[&stats.faults_pool]),
            faults_device: total(&[&stats.faults_file]),
            read_ahead: bytes(total(&[&stats.readahead_pages, &stats.read_beside_pages])),
            out: bytes(total(&[&stats.out_pool_pages, &stats.out_same_pages, &stats.out_file_pages])),
            written: total(&[&stats.file_bytes]),
            stall_ns: total(&[&stats.fault_ns, &stats.direct_reclaim_ns]),
        }
    }

    /// Changes the budget of the tree to `bytes`, rounded down to whole pages. False if that is less than anything can run in.
    /// What is held beyond a smaller budget stays until [`Space::keep_budget`] or somebody who wants memory takes it.
    pub fn set_ram(&self, bytes: u64) -> bool {
        let bytes = bytes & !(PAGE as u64 - 1);
        if bytes < RAM_BYTES_MIN {
            return false;
        }
        self.tree().page().set_limit(bytes / PAGE as u64);
        self.stats().ram_limit_bytes.store(bytes, Relaxed);
        true
    }

    /// Gives up memory, or asks colder processes for theirs, until the tree holds no more than its budget, for `for_ns` at most.
    /// Returns how many pages it still holds beyond that. Outside the gate.
    pub fn keep_budget(&self, ctx: &ThreadCtx, for_ns: u64) -> u64 {
        self.tree().reap_sometimes();
        self.budget.give_back_unused();
        let excess = || (-self.tree().page().sum().free()).max(0) as u64;
        if excess() > 0 {
            // Room for one page is asked for: a process that may keep what it has asks for nothing.
            reclaim::try_direct_reclaim(self, ctx, 1, for_ns);
            self.budget.give_back_unused();
        }
        excess()
    }
}
