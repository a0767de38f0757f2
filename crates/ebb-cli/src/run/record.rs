//! What a tree held and did while it ran, at even times: for the page of `ebb run --report`.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::running::counters::Counters;
use crate::running::curve::{Curve, Interval};
use crate::running::sample::Sample;

/// Time between two looks in the beginning.
const EVERY: Duration = Duration::from_millis(100);
/// Most moments that are kept. If there are more, every second one goes, and from then on twice the time passes between two.
const MOST: usize = 1000;

/// Kinds of faults: new pages, pages about to leave, compressed ones, ones in a file.
pub const KINDS: usize = 4;

/// One moment of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Moment {
    /// Since the start of the program.
    pub at: Duration,
    /// In pages.
    pub budget: u64,
    pub wanted: u64,
    pub resident: u64,
    pub staged: u64,
    pub pool: u64,
    pub on_device: u64,
    /// Faults so far, by kind.
    pub faults: [u64; KINDS],
    /// How long the program's threads have run, or waited for something else than swap, and how long for swap.
    pub own_ns: f64,
    pub stall_ns: f64,
}

/// A whole run.
#[derive(Debug, Clone, Default)]
pub struct Record {
    pub moments: Vec<Moment>,
    pub curve: Curve,
    /// Looks from one moment to the next, less 1.
    skipped: usize,
    looks: usize,
}

impl Record {
    fn add(&mut self, moment: Moment) {
        self.looks += 1;
        if !(self.looks - 1).is_multiple_of(self.skipped + 1) {
            return;
        }
        self.moments.push(moment);
        if self.moments.len() > MOST {
            let mut at = 0;
            self.moments.retain(|_| {
                at += 1;
                at % 2 == 1
            });
            self.skipped = self.skipped * 2 + 1;
            self.looks = 1;
        }
    }
}

/// The thread that looks.
pub struct Recorder {
    ends: Arc<AtomicBool>,
    record: Arc<Mutex<Record>>,
    thread: JoinHandle<()>,
}

impl Recorder {
    /// Starts the thread. `trap_ns` is what a fault costs apart from what its handler does.
    pub fn start(counters: &Arc<Counters>, trap_ns: u64) -> std::io::Result<Self> {
        let ends = Arc::new(AtomicBool::new(false));
        let record = Arc::new(Mutex::new(Record { curve: Curve::new(trap_ns), ..Record::default() }));
        let (counters, its_end, its_record) = (Arc::clone(counters), Arc::clone(&ends), Arc::clone(&record));
        let look = move || {
            let began = Instant::now();
            let mut last: Option<(Sample, f64, f64)> = None;
            loop {
                let is_over = its_end.load(Relaxed);
                let sample = Sample::take(&counters);
                let (mut own_ns, mut stall_ns) = (0.0, 0.0);
                if let Some((before, own, stall)) = &last {
                    let spent = Interval::between(before, &sample, trap_ns);
                    (own_ns, stall_ns) = (own + spent.own_ns, stall + spent.stall_ns);
                }
                // What dead processes held does not belong into the picture.
                if !is_over || last.is_none() {
                    let mut record = its_record.lock().unwrap_or_else(PoisonError::into_inner);
                    record.add(moment(&counters, &sample, began.elapsed(), own_ns, stall_ns));
                    record.curve.add(sample.clone(), true);
                }
                if is_over {
                    return;
                }
                last = Some((sample, own_ns, stall_ns));
                std::thread::park_timeout(EVERY);
            }
        };
        let thread = std::thread::Builder::new().name("ebb-record".to_owned()).spawn(look)?;
        Ok(Self { ends, record, thread })
    }

    /// Ends the thread, and returns what it has seen.
    pub fn end(self) -> Record {
        self.ends.store(true, Relaxed);
        self.thread.thread().unpark();
        let _ = self.thread.join();
        self.record.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn moment(counters: &Counters, sample: &Sample, at: Duration, own_ns: f64, stall_ns: f64) -> Moment {
    let stats = counters.page();
    let get = |counter: &AtomicU64| counter.load(Relaxed);
    Moment {
        at,
        budget: counters.tree().limit(),
        wanted: sample.wanted,
        resident: sample.resident,
        staged: sample.staged,
        pool: sample.pool,
        on_device: sample.on_device,
        faults: [
            get(&stats.faults_first_touch),
            get(&stats.faults_soft),
            get(&stats.faults_pool),
            get(&stats.faults_file),
        ],
        own_ns,
        stall_ns,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Moment {
        Moment {
            at: Duration::from_millis(ms),
            budget: 0,
            wanted: 0,
            resident: 0,
            staged: 0,
            pool: 0,
            on_device: 0,
            faults: [0; KINDS],
            own_ns: 0.0,
            stall_ns: 0.0,
        }
    }

    #[test]
    fn long_runs_are_kept_at_even_times() {
        let mut record = Record::default();
        (0..10_000).for_each(|look| record.add(at(look * 100)));
        let gaps: Vec<u128> = record.moments.windows(2).map(|pair| (pair[1].at - pair[0].at).as_millis()).collect();
        assert!((MOST / 2..=MOST).contains(&record.moments.len()), "{}", record.moments.len());
        assert!(gaps.iter().all(|gap| *gap == gaps[0]), "{gaps:?}");
        assert_eq!(record.moments[0].at, Duration::ZERO);
        assert!(record.moments.last().unwrap().at >= Duration::from_millis(10_000 * 100 - 100 * 16));
    }

    #[test]
    fn a_recorder_sees_at_least_the_beginning() {
        let counters = Arc::new(Counters::create().unwrap());
        counters.set_budget(64 << 20);
        let recorder = Recorder::start(&counters, 0).unwrap();
        let record = recorder.end();
        assert!(!record.moments.is_empty());
        assert_eq!(record.moments[0].budget, (64 << 20) / 4096);
    }
}
