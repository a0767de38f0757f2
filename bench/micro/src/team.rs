//! Several processes that measure together: each has its share of the memory, their phases begin together and none gives
//! its memory up before all are measured. Process 0 is the one that was started, and gathers what the others found.

use crate::histogram::Histogram;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Duration;

/// Most processes.
pub const PROCESSES_MAX: usize = 64;
/// How long a process that waits for others sleeps between two looks: little beside a phase.
const LOOK: Duration = Duration::from_micros(50);
/// Words of a process's result: some figures, then its histogram.
const RESULT_WORDS: usize = FIGURES + Histogram::WORDS;
/// Figures of a result, in the order of [`Found`].
const FIGURES: usize = 8;

/// Memory that all processes share. Zeroed, it is that of a team that has not begun.
#[repr(C)]
struct Area {
    arrived: AtomicU32,
    round: AtomicU32,
    /// One of them cannot go on.
    has_failed: AtomicU32,
    results: [[AtomicU64; RESULT_WORDS]; PROCESSES_MAX],
}

/// This process as one of several.
pub struct Team {
    area: Option<&'static Area>,
    processes: usize,
    pub index: usize,
}

/// What a process found: sums over its threads, and times of its phases.
#[derive(Clone, Copy, Default, Debug)]
pub struct Found {
    pub accesses: u64,
    pub thread_ns: u64,
    pub wall_ns: u64,
    pub cpu_ns: u64,
    pub major_faults: u64,
    pub minor_faults: u64,
    pub beyond_wall_ns: u64,
    pub verified: u64,
}

impl Found {
    fn figures(&self) -> [u64; FIGURES] {
        let Self { accesses, thread_ns, wall_ns, cpu_ns, major_faults, minor_faults, beyond_wall_ns, verified } = *self;
        [accesses, thread_ns, wall_ns, cpu_ns, major_faults, minor_faults, beyond_wall_ns, verified]
    }

    /// With another process's: sums, and the longer times.
    fn merge(&mut self, other: [u64; FIGURES]) {
        let [accesses, thread_ns, wall_ns, cpu_ns, major_faults, minor_faults, beyond_wall_ns, verified] = other;
        self.accesses += accesses;
        self.thread_ns += thread_ns;
        self.wall_ns = self.wall_ns.max(wall_ns);
        self.cpu_ns += cpu_ns;
        self.major_faults += major_faults;
        self.minor_faults += minor_faults;
        self.beyond_wall_ns = self.beyond_wall_ns.max(beyond_wall_ns);
        self.verified += verified;
    }
}

impl Team {
    /// Makes the other processes. By the only thread, before there is any memory to share.
    pub fn start(processes: usize) -> Self {
        if processes == 1 {
            return Self { area: None, processes, index: 0 };
        }
        // SAFETY: new memory, shared with the children to come, and never unmapped; zeroed, it is a valid area.
        let area: &'static Area = unsafe {
            let prot = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
            let at = libc::mmap(std::ptr::null_mut(), size_of::<Area>(), prot, flags, -1, 0);
            assert!(at != libc::MAP_FAILED, "memory to share");
            &*at.cast()
        };
        for index in 1..processes {
            // SAFETY: there is one thread; the child ends with the process that made it.
            let pid = unsafe {
                let pid = libc::fork();
                if pid == 0 {
                    libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                }
                pid
            };
            assert!(pid >= 0, "fork");
            if pid == 0 {
                return Self { area: Some(area), processes, index };
            }
        }
        Self { area: Some(area), processes, index: 0 }
    }

    /// Waits until all are here. Ends the process when one of them cannot come.
    pub fn wait(&self) {
        let Some(area) = self.area else { return };
        let round = area.round.load(SeqCst);
        if area.arrived.fetch_add(1, SeqCst) + 1 == self.processes as u32 {
            area.arrived.store(0, SeqCst);
            area.round.store(round + 1, SeqCst);
            return;
        }
        while area.round.load(SeqCst) == round {
            std::thread::sleep(LOOK);
            let mut status = 0;
            // SAFETY: asks for children that have ended, without waiting.
            let ended = unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG) };
            if ended > 0 && status != 0 {
                self.fail();
            }
            if area.has_failed.load(SeqCst) != 0 {
                eprintln!("ebb-bench-micro: another of {} processes has ended", self.processes);
                std::process::exit(1);
            }
        }
    }

    /// Tells the others that this process cannot go on.
    pub fn fail(&self) {
        if let Some(area) = self.area {
            area.has_failed.store(1, SeqCst);
        }
    }

    /// Gathers what all have found. Only process 0 comes back from it: the others end.
    pub fn gather(&self, found: &mut Found, latency: &mut Histogram) {
        let Some(area) = self.area else { return };
        let words = found.figures().into_iter().chain(latency.words());
        area.results[self.index].iter().zip(words).for_each(|(to, word)| to.store(word, Relaxed));
        self.wait();
        if self.index > 0 {
            std::process::exit(0);
        }
        for result in &area.results[1..self.processes] {
            let words: Vec<u64> = result.iter().map(|word| word.load(Relaxed)).collect();
            let (figures, counts) = words.split_at(FIGURES);
            found.merge(figures.try_into().expect("so many figures"));
            latency.merge(&Histogram::from_words(counts));
        }
    }
}
