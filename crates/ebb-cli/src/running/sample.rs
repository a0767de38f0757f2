//! What a tree holds and what its threads have waited for, at one moment.

use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use ebb::stats::reaches::STEPS;
use ebb::tree::{self, Kind, said};

use crate::running::counters::Counters;
use crate::running::outside::Table;
use crate::running::process::PROC;

/// Figures of a whole tree. Those of memory are in pages, as of now. The others only grow.
#[derive(Debug, Clone)]
pub struct Sample {
    pub at: Instant,
    /// Pages in page tables, and Ebb's metadata.
    pub resident: u64,
    pub staged: u64,
    pub pool: u64,
    pub wanted: u64,
    /// Content that is on devices.
    pub on_device: u64,
    /// Processor time that faults took of the program's threads.
    pub fault_ns: u64,
    /// How long faults took, by the clock.
    pub fault_wall_ns: u64,
    /// How long reads of devices took, also those that nobody waited for.
    pub device_ns: u64,
    /// Processor time of background threads.
    pub background_ns: u64,
    /// All faults.
    pub faults: u64,
    /// Faults on pages that nobody had touched before.
    pub touched: u64,
    /// Faults on pages that had left memory, or were about to.
    pub missed: u64,
    /// Of these, faults on pages that were on a device.
    pub of_file: u64,
    /// Processor time of the processes, with that of their children that have ended.
    pub cpu_ns: u64,
    /// How long their threads could have run and had no processor.
    pub delay_ns: u64,
    /// See [`ebb::stats::Reaches`].
    pub reaches: [u64; STEPS],
}

impl Sample {
    /// Looks at the tree whose shared file `counters` has.
    pub fn take(counters: &Counters) -> Self {
        let (page, stats) = (counters.tree(), counters.page());
        let get = |counter: &std::sync::atomic::AtomicU64| counter.load(Relaxed);
        let sum_of = |counters: &[&std::sync::atomic::AtomicU64]| {
            counters.iter().fold(0u64, |sum, counter| sum.saturating_add(get(counter)))
        };
        let mut sample = Self {
            at: Instant::now(),
            resident: 0,
            staged: 0,
            pool: 0,
            wanted: 0,
            on_device: 0,
            fault_ns: get(&stats.fault_cpu_ns),
            fault_wall_ns: sum_of(&[&stats.fault_ns, &stats.direct_reclaim_ns]),
            device_ns: stats.devices.iter().fold(0, |sum: u64, device| sum.saturating_add(get(&device.read_ns))),
            background_ns: get(&stats.background_ns),
            faults: sum_of(&[
                &stats.faults_first_touch,
                &stats.faults_soft,
                &stats.faults_pool,
                &stats.faults_file,
                &stats.faults_spurious,
            ]),
            touched: get(&stats.faults_first_touch),
            missed: sum_of(&[&stats.faults_soft, &stats.faults_pool, &stats.faults_file]),
            of_file: get(&stats.faults_file),
            cpu_ns: 0,
            delay_ns: 0,
            reaches: stats.reaches.counts(),
        };
        let table = Table(Path::new(PROC));
        for (index, member) in page.members().filter(|(_, member)| member.kind() == Kind::Managed) {
            let (charged, staged, pool) = (said(&member.charged), said(&member.staged), said(&member.pool));
            let resident = charged.saturating_sub(staged + pool);
            for (sum, pages) in [
                (&mut sample.resident, resident.saturating_sub(said(&member.shared).min(resident))),
                (&mut sample.staged, staged),
                (&mut sample.pool, pool),
                (&mut sample.wanted, said(&member.wanted)),
                (&mut sample.on_device, said(&member.on_device)),
            ] {
                *sum = sum.saturating_add(pages);
            }
            if let Some(pid) = tree::holder(counters.fd(), index).filter(|pid| *pid > 0) {
                sample.cpu_ns = sample.cpu_ns.saturating_add(table.cpu_ns(pid).unwrap_or(0));
                sample.delay_ns = sample.delay_ns.saturating_add(table.delay_ns(pid));
            }
        }
        sample
    }
}

#[cfg(test)]
impl Sample {
    /// Of a tree that holds nothing and has done nothing, as of now: what tests begin with.
    pub fn empty() -> Self {
        Self {
            at: Instant::now(),
            resident: 0,
            staged: 0,
            pool: 0,
            wanted: 0,
            on_device: 0,
            fault_ns: 0,
            fault_wall_ns: 0,
            device_ns: 0,
            background_ns: 0,
            faults: 0,
            touched: 0,
            missed: 0,
            of_file: 0,
            cpu_ns: 0,
            delay_ns: 0,
            reaches: [0; STEPS],
        }
    }
}
