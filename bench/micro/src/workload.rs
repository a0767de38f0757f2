//! One run: fill, warm up, measure, verify. The first thread is the main one, so that a run with one thread is a
//! process with one thread: what unmapping costs depends on that.

use crate::content::{Contents, PAGE_BYTES};
use crate::counters::{self, Counters};
use crate::histogram::Histogram;
use crate::memory::{self, Memory};
use crate::options::Options;
use crate::pattern::{self, Pattern, Workload, share};
use crate::random::{Random, Zipf, mix};
use crate::team::{Found, Team};
use ebb::stats::Shared;
use std::arch::x86_64::{_mm_lfence, _rdtsc};
use std::ops::Range;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

/// Pages compared byte by byte at the end, unless all are.
const SAMPLE_PAGES: usize = 2048;

/// Exit status when a page does not hold what was written.
const STATUS_CORRUPT: i32 = 3;

/// What happened in one part of a run.
pub struct Phase {
    pub wall_ns: u64,
    pub counted: Counters,
}

/// What a run found.
pub struct Outcome {
    pub ns_per_cycle: f64,
    /// Pages filled, and how, up to --resident and beyond.
    pub fill: [(usize, Phase); 2],
    pub measured: Phase,
    pub accesses: u64,
    /// Time of all threads together.
    pub thread_ns: u64,
    pub latency: Histogram,
    pub verified: usize,
}

/// Accesses of one thread.
struct Tally {
    accesses: u64,
    cycles: u64,
    latency: Histogram,
}

impl Tally {
    fn new() -> Self {
        Self { accesses: 0, cycles: 0, latency: Histogram::new() }
    }
}

/// All that the threads share.
struct Run<'a> {
    options: &'a Options,
    contents: Contents,
    memory: Memory,
    /// How often each page was changed.
    versions: Box<[AtomicU8]>,
    barrier: Barrier,
    team: Team,
    counters: Option<&'static Shared>,
    ns_per_cycle: f64,
    zipf: Option<Arc<Zipf>>,
}

/// What the first thread learns beside its own tally.
struct Led {
    fill: [(usize, Phase); 2],
    measured: Phase,
}

fn cycles() -> u64 {
    // SAFETY: every x86-64 processor has both; the fence waits for the loads before it.
    unsafe {
        _mm_lfence();
        _rdtsc()
    }
}

fn calibrate() -> f64 {
    let (start, first) = (Instant::now(), cycles());
    while start.elapsed() < Duration::from_millis(5) {}
    let passed = cycles() - first;
    start.elapsed().as_nanos() as f64 / passed as f64
}

/// Does what the options say.
pub fn run(options: &Options) -> Outcome {
    let team = Team::start(options.processes);
    let memory = Memory::map(options);
    let run = Run {
        team,
        contents: Contents::new(options.data, options.seed),
        versions: (0..options.pages).map(|_| AtomicU8::new(0)).collect(),
        barrier: Barrier::new(options.threads),
        counters: memory.space().map(|space| space.stats()).or_else(counters::of_agent),
        ns_per_cycle: calibrate(),
        zipf: options.zipf.map(|exponent| pattern::zipf(options.pages, exponent)),
        memory,
        options,
    };
    memory::keep(run.contents.bank());
    memory::keep(&run.versions);
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..options.threads)
            .map(|index| {
                scope.spawn({
                    let run = &run;
                    move || run.work(index).0
                })
            })
            .collect();
        let (mut tally, led) = run.work(0);
        for other in others {
            let other = other.join().expect("a thread that measures");
            tally.accesses += other.accesses;
            tally.cycles += other.cycles;
            tally.latency.merge(&other.latency);
        }
        let Some(Led { mut fill, mut measured }) = led else { unreachable!("the first thread leads") };
        run.memory.enter_thread();
        let mut found = Found {
            accesses: tally.accesses,
            thread_ns: (tally.cycles as f64 * run.ns_per_cycle) as u64,
            wall_ns: measured.wall_ns,
            cpu_ns: measured.counted.cpu_ns,
            major_faults: measured.counted.major_faults,
            minor_faults: measured.counted.minor_faults,
            beyond_wall_ns: fill[1].1.wall_ns,
            verified: run.verify() as u64,
        };
        run.team.gather(&mut found, &mut tally.latency);
        (measured.wall_ns, measured.counted.cpu_ns) = (found.wall_ns, found.cpu_ns);
        (measured.counted.major_faults, measured.counted.minor_faults) = (found.major_faults, found.minor_faults);
        fill.iter_mut().for_each(|(pages, _)| *pages *= options.processes);
        fill[1].1.wall_ns = found.beyond_wall_ns;
        Outcome {
            ns_per_cycle: run.ns_per_cycle,
            fill,
            measured,
            accesses: found.accesses,
            thread_ns: found.thread_ns,
            latency: tally.latency,
            verified: found.verified as usize,
        }
    })
}

/// Goes on in a child of its own. The parent, whose memory the child has in common, waits and ends as the child does.
fn become_child() {
    // SAFETY: there is one thread.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork");
    if pid > 0 {
        let mut status = 0;
        // SAFETY: waits for the child just made.
        unsafe { libc::waitpid(pid, &mut status, 0) };
        std::process::exit(if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { 1 });
    }
}

impl Run<'_> {
    /// One thread's part.
    fn work(&self, index: usize) -> (Tally, Option<Led>) {
        self.memory.enter_thread();
        let (workload, threads) = (self.options.workload, self.options.threads);
        let (resident, pages) = (self.options.resident_pages, self.options.pages);
        let (_, first) = self.phase(index, || self.fill(share(resident, index, threads)));
        let rest = share(pages - resident, index, threads);
        let rest = rest.start + resident..rest.end + resident;
        let (filled, mut second) = self.phase(index, || match workload {
            Workload::SwapOutRandom => {
                self.fill(pattern::scattered(rest.len(), self.options.seed).map(|i| rest.start + i))
            }
            _ => self.fill(rest),
        });
        let (tally, measured) = match workload {
            Workload::SwapOut | Workload::SwapOutRandom => (filled, None),
            Workload::PageOut => {
                second = self.phase(index, || self.memory.page_out(share(pages, index, threads))).1;
                self.phase(index, || self.access_once(share(pages, index, threads), false))
            }
            Workload::Free => {
                let own = share(pages, index, threads);
                second = self.phase(index, || self.memory.page_out(own.clone())).1;
                self.phase(index, || self.free(own))
            }
            Workload::Cow => {
                become_child();
                self.phase(index, || self.access_once(share(pages, index, threads), true))
            }
            Workload::RandomRw => {
                let mut pattern = self.pattern(index);
                self.phase(index, || self.copy(&mut pattern, self.options.warm_seconds, pages / threads));
                self.phase(index, || self.copy(&mut pattern, self.options.seconds, 0))
            }
            Workload::SwapIn => {
                if index == 0 {
                    self.memory.drop_pages(self.live_pages()..pages);
                }
                self.phase(index, || self.access_once(share(self.live_pages(), index, threads), false))
            }
            _ => {
                let mut pattern = self.pattern(index);
                // As many accesses as there are pages: a scan has gone round, and random use has replaced what is resident.
                self.phase(index, || self.repeat(&mut pattern, self.options.warm_seconds, pages / threads));
                self.phase(index, || self.repeat(&mut pattern, self.options.seconds, 0))
            }
        };
        let beyond = if matches!(workload, Workload::PageOut | Workload::Free) { pages } else { pages - resident };
        let led = first.zip(second).map(|(first, second)| {
            let measured = measured.unwrap_or_else(|| Phase {
                wall_ns: second.wall_ns,
                counted: Counters { ebb: second.counted.ebb.clone(), ..second.counted },
            });
            Led { fill: [(resident, first), (beyond, second)], measured }
        });
        if index > 0 {
            self.memory.leave_thread();
        }
        (tally, led)
    }

    /// Runs `part` in all threads at once; what happened meanwhile, for the first thread.
    fn phase<R>(&self, index: usize, part: impl FnOnce() -> R) -> (R, Option<Phase>) {
        self.barrier.wait();
        let before = (index == 0).then(|| {
            self.team.wait();
            (Counters::read(self.counters), Instant::now())
        });
        self.barrier.wait();
        let result = part();
        self.barrier.wait();
        let phase = before.map(|(before, start)| Phase {
            wall_ns: start.elapsed().as_nanos() as u64,
            counted: Counters::read(self.counters).since(&before),
        });
        if index == 0 {
            self.team.wait();
        }
        (result, phase)
    }

    /// Pages that still have content when all is measured.
    fn live_pages(&self) -> usize {
        match self.options.workload {
            Workload::SwapIn => self.options.pages / 5,
            Workload::Free => 0,
            _ => self.options.pages,
        }
    }

    fn pattern(&self, index: usize) -> Pattern {
        let (pages, threads) = (self.options.pages, self.options.threads);
        let random = Random::new(mix(self.options.seed) ^ index as u64);
        match (self.options.workload, &self.zipf) {
            (Workload::RandomRw, Some(zipf)) => Pattern::OwnZipf { pages, index, threads, zipf: zipf.clone(), random },
            (Workload::RandomRw, None) => Pattern::Own { pages, index, threads, random },
            (Workload::ZipfRead, Some(zipf)) => Pattern::Zipf { pages, zipf: zipf.clone(), random },
            (Workload::RandomWrite, _) => Pattern::Own { pages, index, threads, random },
            (Workload::SeqRead | Workload::SeqWrite, _) => {
                let Range { start, end } = share(pages, index, threads);
                Pattern::Sequence { first: start, end, next: start }
            }
            _ => Pattern::Uniform { pages, random },
        }
    }

    fn fill(&self, pages: impl Iterator<Item = usize>) -> Tally {
        let mut tally = Tally::new();
        let start = cycles();
        let mut last = start;
        for page in pages {
            self.memory.fill(&self.contents, page);
            let now = cycles();
            tally.latency.add(now - last);
            tally.accesses += 1;
            last = now;
        }
        tally.cycles = last - start;
        tally
    }

    /// Unmaps pages with one call, as an access to each of them.
    fn free(&self, pages: Range<usize>) -> Tally {
        let mut tally = Tally::new();
        tally.accesses = pages.len() as u64;
        let start = cycles();
        self.memory.unmap(pages);
        tally.cycles = cycles() - start;
        tally.latency.add(tally.cycles);
        tally
    }

    /// Reads or changes each page once.
    fn access_once(&self, pages: Range<usize>, write: bool) -> Tally {
        let mut tally = Tally::new();
        let start = cycles();
        for page in pages {
            self.access(page, write, &mut tally);
        }
        tally.cycles = cycles() - start;
        tally
    }

    /// Copies whole pages for so long, and at least so many: every second time in, else out.
    fn copy(&self, pattern: &mut Pattern, seconds: f64, copies_min: usize) -> Tally {
        let mut tally = Tally::new();
        let mut buffer = [0; PAGE_BYTES / 8];
        let start = cycles();
        let end = start + (seconds * 1e9 / self.ns_per_cycle) as u64;
        let mut now = start;
        while now < end || tally.accesses < copies_min as u64 {
            let page = pattern.next();
            let mut version = self.versions[page].load(Relaxed);
            let is_in = tally.accesses % 2 == 1;
            if is_in {
                version = version.wrapping_add(1);
                self.contents.fill(page, &mut buffer);
                buffer[..2].copy_from_slice(&self.contents.head(page, version));
            }
            let before = cycles();
            if is_in {
                self.memory.copy_in(page, &buffer)
            } else {
                self.memory.copy_out(page, &mut buffer)
            }
            now = cycles();
            if is_in {
                self.versions[page].store(version, Relaxed);
            } else if buffer[..2] != self.contents.head(page, version) {
                self.corrupt(page, version);
            }
            tally.latency.add(now - before);
            tally.accesses += 1;
        }
        tally.cycles = now - start;
        tally
    }

    /// Accesses pages for so long, and at least so many.
    fn repeat(&self, pattern: &mut Pattern, seconds: f64, accesses_min: usize) -> Tally {
        let writes = self.options.workload.writes();
        let mut tally = Tally::new();
        let start = cycles();
        let end = start + (seconds * 1e9 / self.ns_per_cycle) as u64;
        let mut now = start;
        while now < end || tally.accesses < accesses_min as u64 {
            now = self.access(pattern.next(), writes, &mut tally);
        }
        tally.cycles = now - start;
        tally
    }

    /// Reads or changes a page and checks its head; the time when that was done.
    #[inline]
    fn access(&self, page: usize, write: bool, tally: &mut Tally) -> u64 {
        let version = self.versions[page].load(Relaxed).wrapping_add(write as u8);
        let wanted = self.contents.head(page, version);
        let start = cycles();
        let found = match write {
            true => [self.memory.write(page, wanted[1]), wanted[1]],
            false => self.memory.read(page),
        };
        let end = cycles();
        if write {
            self.versions[page].store(version, Relaxed);
        }
        if found != wanted {
            self.corrupt(page, version);
        }
        tally.latency.add(end - start);
        tally.accesses += 1;
        end
    }

    /// Compares pages byte by byte, while every other thread is gone; how many.
    fn verify(&self) -> usize {
        let live = self.live_pages();
        let mut random = Random::new(!self.options.seed);
        let sample = if self.options.verify_all { live } else { SAMPLE_PAGES.min(live) };
        for i in 0..sample {
            let page = if sample == live { i } else { random.below(live) };
            let version = self.versions[page].load(Relaxed);
            if !self.contents.is_intact(page, version, self.memory.words(page)) {
                self.corrupt(page, version);
            }
        }
        sample
    }

    fn corrupt(&self, page: usize, version: u8) -> ! {
        self.team.fail();
        eprintln!("ebb-bench-micro: page {page}, changed {version} times, does not hold what was written");
        std::process::exit(STATUS_CORRUPT);
    }
}
