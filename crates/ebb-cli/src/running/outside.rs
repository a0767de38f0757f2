//! What a process holds, and which processes it started, as anybody can read in `/proc`.
//!
//! Needs no rights over the process: what is read here is readable for set-user-ID programs, too.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use crate::base::sys;

/// A process: its number, and when it began in ticks since boot, because numbers are reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Process {
    pub pid: i32,
    pub began: u64,
}

/// The fields after the name in `/proc/PID/stat`. The name itself may contain anything.
fn stat_fields(stat: &str) -> Option<Vec<&str>> {
    let name_end = stat.rfind(')')?;
    Some(stat[name_end + 1..].split_ascii_whitespace().collect())
}

/// The number of the parent.
fn parent(stat: &str) -> Option<i32> {
    stat_fields(stat)?.get(1)?.parse().ok()
}

/// When the process began.
fn began(stat: &str) -> Option<u64> {
    stat_fields(stat)?.get(19)?.parse().ok()
}

/// How often the process has faulted.
fn faults(stat: &str) -> Option<u64> {
    let fields = stat_fields(stat)?;
    [7, 9].iter().map(|at| fields.get(*at)?.parse::<u64>().ok()).sum()
}

/// Most threads of a process that are asked how long they have waited.
const THREADS_MAX: usize = 64;

/// Processor time of the children of a process that have ended, in ticks.
fn children_ticks(stat: &str) -> Option<u64> {
    let fields = stat_fields(stat)?;
    fields.get(13..15)?.iter().map(|field| field.parse::<u64>().ok()).sum()
}

/// The value of a line of `/proc/PID/status` or `/proc/PID/smaps_rollup`: a number of KiB, or another number.
fn number(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

/// The memory of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Memory {
    /// Anonymous pages in memory, including those that it shares with other processes since a fork.
    pub anonymous_pages: u64,
    /// Memory that the kernel uses for the process: page tables, and a stack for each thread.
    pub kernel_bytes: u64,
}

/// Reads the memory of a process from its `status`.
fn memory(status: &str) -> Option<Memory> {
    const STACK_KIB: u64 = 16;
    let kernel_kib = number(status, "VmPTE")? + number(status, "Threads")? * STACK_KIB;
    Some(Memory { anonymous_pages: number(status, "RssAnon")? / 4, kernel_bytes: kernel_kib * 1024 })
}

fn read(proc: &Path, pid: i32, name: &str) -> Option<String> {
    fs::read(proc.join(pid.to_string()).join(name)).ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// The processes shown in one `/proc`.
#[derive(Debug, Clone, Copy)]
pub struct Table<'a>(pub &'a Path);

impl Table<'_> {
    /// The process that has this number now.
    pub fn process(self, pid: i32) -> Option<Process> {
        Some(Process { pid, began: began(&read(self.0, pid, "stat")?)? })
    }

    /// Whether the process still runs.
    pub fn is_there(self, process: Process) -> bool {
        self.process(process.pid) == Some(process)
    }

    /// How often the process has faulted, including faults of the kernel when it writes to the process's memory. While
    /// the count does not change, the process copies no page.
    pub fn faults(self, pid: i32) -> Option<u64> {
        faults(&read(self.0, pid, "stat")?)
    }

    /// Processor time of the process and of its children that have ended.
    pub fn cpu_ns(self, pid: i32) -> Option<u64> {
        let ticks = children_ticks(&read(self.0, pid, "stat")?)?;
        Some(sys::process_time_ns(pid)?.saturating_add(ticks.saturating_mul(1_000_000_000 / sys::ticks_per_second())))
    }

    /// How long the threads of the process have waited for a processor, as far as the first [`THREADS_MAX`] of them go.
    pub fn delay_ns(self, pid: i32) -> u64 {
        let Ok(tasks) = fs::read_dir(self.0.join(pid.to_string()).join("task")) else { return 0 };
        let of_task = |task: fs::DirEntry| {
            let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
            text.split_ascii_whitespace().nth(1)?.parse::<u64>().ok()
        };
        tasks.flatten().take(THREADS_MAX).filter_map(of_task).sum()
    }

    /// What the process holds, and what the kernel uses for it. None if the process has ended.
    pub fn memory(self, pid: i32) -> Option<Memory> {
        memory(&read(self.0, pid, "status")?)
    }

    /// The process's anonymous pages in memory, each divided by the number of processes that have it. The kernel walks
    /// all its page tables for this. None if the kernel does not show it.
    pub fn proportional_pages(self, pid: i32) -> Option<u64> {
        Some(number(&read(self.0, pid, "smaps_rollup")?, "Pss_Anon")? / 4)
    }

    /// The program's name, as the kernel has it.
    pub fn command(self, pid: i32) -> Option<String> {
        read(self.0, pid, "comm").map(|name| name.trim_end_matches('\n').to_owned())
    }

    /// True if two processes share their memory, as between vfork(2) and exec. If the kernel does not say, they do if
    /// both show the same sizes.
    pub fn shares_memory(self, one: i32, other: i32) -> bool {
        sys::shares_memory(one, other).unwrap_or_else(|| {
            let statm = |pid| read(self.0, pid, "statm");
            statm(one).is_some() && statm(one) == statm(other)
        })
    }

    /// The children of a process. None if the kernel does not list children.
    fn listed_children(self, pid: i32) -> Option<Vec<i32>> {
        let tasks = fs::read_dir(self.0.join(pid.to_string()).join("task")).ok()?;
        let mut children = Vec::new();
        let mut is_listed = false;
        for task in tasks.flatten() {
            if let Ok(text) = fs::read_to_string(task.path().join("children")) {
                is_listed = true;
                children.extend(text.split_ascii_whitespace().filter_map(|word| word.parse::<i32>().ok()));
            }
        }
        is_listed.then_some(children)
    }

    /// Every process, with its parent.
    fn parents(self) -> Vec<(i32, i32)> {
        let entries = fs::read_dir(self.0).into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        pids.filter_map(|pid| Some((pid, parent(&read(self.0, pid, "stat")?)?))).collect()
    }
}

/// Finds children of processes, within one look at a tree.
pub struct Children<'a> {
    table: Table<'a>,
    /// Children of every process. Used if the kernel does not list children.
    scanned: Option<HashMap<i32, Vec<i32>>>,
}

impl<'a> Children<'a> {
    pub fn new(table: Table<'a>) -> Self {
        Self { table, scanned: None }
    }

    /// The children of one process.
    pub fn of(&mut self, pid: i32) -> Vec<i32> {
        if self.scanned.is_none() {
            if let Some(children) = self.table.listed_children(pid) {
                return children;
            }
            // The process may just have ended.
            if self.table.process(pid).is_none() {
                return Vec::new();
            }
        }
        let scanned = self.scanned.get_or_insert_with(|| {
            let mut children = HashMap::<i32, Vec<i32>>::new();
            for (child, parent) in self.table.parents() {
                children.entry(parent).or_default().push(child);
            }
            children
        });
        scanned.get(&pid).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::process::{Command, Stdio};

    use super::*;

    const STAT: &str = "12 (a) b (c) S 7 12 12 0 -1 4194560 119 5 2 3 0 0 0 0 20 0 1 0 4711 2527232 240 1844";

    #[test]
    fn a_name_with_parentheses_does_not_shift_the_fields() {
        assert_eq!((parent(STAT), began(STAT), faults(STAT)), (Some(7), Some(4711), Some(121)));
        assert_eq!(parent("12 (cut"), None);
    }

    #[test]
    fn memory_of_the_kernel_is_page_tables_and_stacks() {
        let status = "Name:\tx\nRssAnon:\t    4096 kB\nVmPTE:\t      60 kB\nThreads:\t3\n";
        assert_eq!(memory(status), Some(Memory { anonymous_pages: 1024, kernel_bytes: 108 << 10 }));
        assert_eq!(memory("Name:\tzombie\nThreads:\t1\n"), None);
    }

    #[test]
    fn the_share_of_a_process_in_its_memory_is_at_most_all_of_it() {
        // A process at rest: this one's memory changes with tests that run at the same time.
        let mut cat = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        cat.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        cat.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let (table, pid) = (Table(Path::new("/proc")), cat.id() as i32);
        let (all, own) = (table.memory(pid).unwrap().anonymous_pages, table.proportional_pages(pid).unwrap());
        drop(cat.stdin.take());
        cat.wait().unwrap();
        // The kernel counts resident pages by processor. The sum that it shows lags by some tens of pages.
        assert!(own > 0 && own < all + 1024, "{own} of {all}");
    }

    #[test]
    fn this_process_is_found_with_its_memory_and_its_name() {
        let table = Table(Path::new("/proc"));
        let this = table.process(std::process::id() as i32).unwrap();
        assert!(table.is_there(this) && !table.is_there(Process { began: this.began + 1, ..this }));
        assert!(table.memory(this.pid).is_some_and(|memory| memory.anonymous_pages > 0));
        assert!(table.command(this.pid).is_some_and(|name| !name.is_empty()));
        assert_eq!(table.process(i32::MAX), None);
    }

    /// A stand-in for `/proc`.
    fn fake(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn children_are_those_of_every_thread() {
        let root = fake(&[("12/task/12/children", "20 21 "), ("12/task/13/children", "30 "), ("12/stat", STAT)]);
        let mut children = Children::new(Table(root.path()));
        let mut found = children.of(12);
        found.sort_unstable();
        assert_eq!(found, [20, 21, 30]);
        assert!(children.of(99).is_empty());
    }

    #[test]
    fn children_are_searched_by_their_parents_where_the_kernel_lists_none() {
        let child = "20 (x) S 12 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 5 0 0 0";
        let root = fake(&[("12/task/12/comm", "x"), ("12/stat", STAT), ("20/stat", child)]);
        let mut children = Children::new(Table(root.path()));
        assert_eq!(children.of(12), [20]);
        assert_eq!(children.of(7), [12]);
    }
}
