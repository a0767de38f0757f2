//! What the kernel and Ebb count, read before and after what is measured.

use ebb::stats::{MAGIC, Shared};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;

/// One reading.
pub struct Counters {
    pub major_faults: u64,
    pub minor_faults: u64,
    /// Processor time of all threads of the process, Ebb's background thread included.
    pub cpu_ns: u64,
    pub ebb: Vec<(&'static str, u64)>,
}

/// Ebb's counters, if this process is managed. The agent hides its own files and mappings from its process, so they are
/// those of the `ebb run` that started it.
pub fn of_agent() -> Option<&'static Shared> {
    let parent = std::fs::read_dir(format!("/proc/{}/fd", std::os::unix::process::parent_id())).ok()?;
    let is_area =
        |path: &PathBuf| std::fs::read_link(path).is_ok_and(|to| to.as_os_str() == "/memfd:ebb-stats (deleted)");
    let area = parent.filter_map(|entry| Some(entry.ok()?.path())).find(is_area)?;
    let file = File::open(area).ok()?;
    if file.metadata().ok()?.len() < Shared::MAP_BYTES as u64 {
        return None;
    }
    // SAFETY: a fresh mapping of the whole area at an address of the kernel's choice; `ebb run` seals the file against shrinking.
    let at = unsafe {
        libc::mmap(std::ptr::null_mut(), Shared::MAP_BYTES, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0)
    };
    if at == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: mapped for good, large enough, page-aligned, and made of atomics only.
    let shared = unsafe { &*at.cast::<Shared>() };
    (shared.magic.load(Relaxed) == MAGIC).then_some(shared)
}

impl Counters {
    pub fn read(ebb: Option<&'static Shared>) -> Self {
        // SAFETY: all zero is a valid rusage, and the kernel fills it.
        let usage = unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            libc::getrusage(libc::RUSAGE_SELF, &mut usage);
            usage
        };
        let ns = |t: libc::timeval| t.tv_sec as u64 * 1_000_000_000 + t.tv_usec as u64 * 1_000;
        let mut counters = Vec::new();
        if let Some(shared) = ebb {
            shared.for_each(|name, value| counters.push((name, value)));
        }
        Self {
            major_faults: usage.ru_majflt as u64,
            minor_faults: usage.ru_minflt as u64,
            cpu_ns: ns(usage.ru_utime) + ns(usage.ru_stime),
            ebb: counters,
        }
    }

    /// What was counted since `before`. Peaks and limits stay as they are.
    pub fn since(&self, before: &Self) -> Self {
        let is_level = |name: &str| name.starts_with("peak_") || name.ends_with("_limit_bytes");
        let ebb = self.ebb.iter().zip(&before.ebb);
        Self {
            major_faults: self.major_faults - before.major_faults,
            minor_faults: self.minor_faults - before.minor_faults,
            cpu_ns: self.cpu_ns - before.cpu_ns,
            ebb: ebb.map(|(now, then)| (now.0, if is_level(now.0) { now.1 } else { now.1 - then.1 })).collect(),
        }
    }

    /// One of Ebb's.
    pub fn ebb(&self, name: &str) -> u64 {
        self.ebb.iter().find(|(n, _)| *n == name).map_or(0, |(_, value)| *value)
    }

    /// Pages whose content was not in memory and came back: the kernel's major faults, or what Ebb got out of its pool
    /// and files.
    pub fn pages_in(&self) -> u64 {
        if self.ebb.is_empty() {
            self.major_faults
        } else {
            self.ebb("faults_pool") + self.ebb("faults_file") + self.ebb("readahead_pages")
        }
    }
}
