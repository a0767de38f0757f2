//! Whether anybody could go on while a thread of a tree waits for swap: "full" of the kernel's pressure stall information (PSI).
//!
//! The tree's shared page knows when somebody waited, and nobody but the kernel knows who else would have run. `/proc` shows both of a
//! thread at one moment: its state, and whether it is in a fault. In a managed process SIGBUS is blocked while Ebb serves a fault of
//! the thread, and never otherwise: what the program blocks of it, the agent only remembers.
//!
//! As in the kernel (`kernel/sched/psi.c`), a thread is productive if it runs or waits for a processor, and does not wait for memory.
//! One that sleeps, or waits for a disk or a lock, is not. A thread in a fault is stalled, though it may be running: it decompresses, or
//! reclaims. Ebb's own threads are neither.
//!
//! Threads are looked at one after the other, within less time than a fault takes that a look can see.

use std::fs;
use std::path::Path;

use ebb::tree::Kind;

use crate::running::process;
use crate::running::trees::{Holder, RunningTree};

/// What the threads of a tree did at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// Nobody waited for swap.
    Calm,
    /// Somebody waited, and somebody else ran or could have run.
    Some,
    /// Somebody waited, and nobody could have run.
    Full,
}

/// What one thread did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doing {
    Stalls,
    Runs,
    Nothing,
}

/// The names of Ebb's own threads in a process.
const OWN: [&str; 2] = ["ebb-reclaim", "ebb-control"];
/// Fields of `/proc/PID/task/TID/stat`, counted from the one after the name: the state, and the first 31 blocked signals as a number.
const STATE: usize = 0;
const BLOCKED: usize = 29;
const SIGBUS: u64 = 1 << (libc::SIGBUS - 1);

/// What a thread does, by its `stat`. None if the text is cut off.
fn doing(stat: &str, is_managed: bool) -> Option<Doing> {
    let (head, fields) = stat.rsplit_once(')')?;
    let name = head.split_once('(')?.1;
    let mut fields = fields.split_ascii_whitespace();
    let state = fields.nth(STATE)?;
    let blocked: u64 = fields.nth(BLOCKED - STATE - 1)?.parse().ok()?;
    Some(match state {
        _ if is_managed && OWN.contains(&name) => Doing::Nothing,
        // What has ended, or was stopped, waits for nothing.
        "Z" | "X" | "T" | "t" => Doing::Nothing,
        _ if is_managed && blocked & SIGBUS != 0 => Doing::Stalls,
        "R" => Doing::Runs,
        _ => Doing::Nothing,
    })
}

/// What it means that threads did this. Asks for no more of them than it takes to know.
fn moment(all: impl Iterator<Item = Doing>) -> Moment {
    let (mut stalls, mut runs) = (false, false);
    for doing in all {
        stalls |= doing == Doing::Stalls;
        runs |= doing == Doing::Runs;
        if stalls && runs {
            return Moment::Some;
        }
    }
    if stalls { Moment::Full } else { Moment::Calm }
}

/// What the threads of process `pid` do.
fn threads(pid: i32, is_managed: bool) -> impl Iterator<Item = Doing> {
    let tasks = fs::read_dir(Path::new(process::PROC).join(pid.to_string()).join("task"));
    tasks.into_iter().flatten().flatten().filter_map(move |task| {
        // A name may be no UTF-8.
        let stat = fs::read(task.path().join("stat")).ok()?;
        doing(&String::from_utf8_lossy(&stat), is_managed)
    })
}

/// Looks at the threads of a tree. None if one of its processes cannot be seen from here.
pub fn look(tree: &RunningTree) -> Option<Moment> {
    let (own, own_pid, supervisor) = (tree.own(), std::process::id() as i32, tree.supervisor());
    let mut processes: Vec<(i32, bool)> = Vec::new();
    for (index, member) in tree.counters.tree().members() {
        let is_managed = member.kind() == Kind::Managed;
        if !is_managed && member.kind() != Kind::Outside {
            continue;
        }
        match tree.holder(index, &own) {
            Holder::Process(pid) => processes.push((pid, is_managed)),
            Holder::Unseen => return None,
            Holder::Nobody => {}
        }
    }
    // Those without a place.
    let others =
        tree.pids.iter().filter(|pid| processes.iter().all(|(known, _)| known != *pid)).map(|pid| (*pid, false));
    let others: Vec<_> = others.collect();
    processes.extend(others);
    processes.retain(|(pid, _)| *pid != own_pid && *pid != supervisor);
    // Only these can stall, and mostly none does.
    processes.sort_by_key(|(_, is_managed)| !is_managed);
    Some(moment(processes.into_iter().flat_map(|(pid, is_managed)| threads(pid, is_managed))))
}

/// The share of the time, in millionths, in which somebody waited and nobody could have run. `some` is the share in which somebody
/// waited, which is known well; `full` of `stalled` moments at which somebody waited were such that nobody could have run. None if it is
/// not known: somebody waited, and no look has met that.
pub fn full(some: Option<u64>, stalled: u64, full: u64) -> Option<u64> {
    match some? {
        0 => Some(0),
        some => (some * full.min(stalled)).checked_div(stalled),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(name: &str, state: &str, blocked: u64) -> String {
        let mut fields = vec!["1".to_owned(); 50];
        (fields[STATE], fields[BLOCKED]) = (state.to_owned(), blocked.to_string());
        format!("77 ({name}) {}\n", fields.join(" "))
    }

    #[test]
    fn whoever_is_in_a_fault_is_stalled_whatever_its_state() {
        let in_fault = |state| doing(&stat("a) R (b", state, 0x7fff_feff), true);
        assert_eq!(["R", "S", "D"].map(in_fault), [Some(Doing::Stalls); 3]);
        assert_eq!(["Z", "T", "t"].map(in_fault), [Some(Doing::Nothing); 3]);
        // SIGUSR1 alone, and every signal but SIGBUS and SIGSEGV, as in system calls.
        for blocked in [1 << 9, 0x7fff_ffff & !SIGBUS & !(1 << 10)] {
            let doing = |state| doing(&stat("python3", state, blocked), true);
            assert_eq!(["R", "S", "D"].map(doing), [Some(Doing::Runs), Some(Doing::Nothing), Some(Doing::Nothing)]);
        }
    }

    #[test]
    fn ebbs_own_threads_do_nothing_and_others_may_block_what_they_like() {
        assert_eq!(doing(&stat("ebb-reclaim", "R", 0x7fff_feff), true), Some(Doing::Nothing));
        assert_eq!(doing(&stat("ebb-reclaim", "R", 0), false), Some(Doing::Runs));
        assert_eq!(doing(&stat("static", "S", SIGBUS), false), Some(Doing::Nothing));
        assert_eq!(doing("77 (x) R 1", true), None);
    }

    #[test]
    fn the_stat_of_this_very_thread_is_read() {
        let held = crate::base::sys::signals([libc::SIGBUS]);
        let own = || doing(&fs::read_to_string("/proc/thread-self/stat").unwrap(), true);
        assert_eq!(own(), Some(Doing::Runs));
        crate::base::sys::change_mask(libc::SIG_BLOCK, &held);
        assert_eq!(own(), Some(Doing::Stalls));
        crate::base::sys::change_mask(libc::SIG_UNBLOCK, &held);
    }

    #[test]
    fn full_is_when_somebody_waits_and_nobody_runs() {
        use Doing::{Nothing, Runs, Stalls};
        for (all, expected) in [
            (vec![], Moment::Calm),
            (vec![Runs, Nothing], Moment::Calm),
            (vec![Nothing, Stalls, Stalls], Moment::Full),
            (vec![Runs, Stalls], Moment::Some),
            (vec![Stalls, Nothing, Runs], Moment::Some),
        ] {
            assert_eq!(moment(all.into_iter()), expected);
        }
        let known = [Stalls, Runs].into_iter().chain(std::iter::from_fn(|| panic!("nobody else matters")));
        assert_eq!(moment(known), Moment::Some);
    }

    #[test]
    fn full_is_a_part_of_some() {
        assert_eq!(full(None, 5, 5), None);
        assert_eq!(full(Some(0), 0, 0), Some(0));
        assert_eq!(full(Some(200_000), 0, 0), None);
        assert_eq!(full(Some(200_000), 40, 10), Some(50_000));
        assert_eq!(full(Some(200_000), 40, 41), Some(200_000));
    }
}
