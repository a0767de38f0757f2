//! `torture`: many threads use memory in every way they can think of, and check every byte.
//!
//! Run it alone to prove the program, and under `ebb run --ram` to prove the swap. It exits with 0 and one line of
//! counts, or with 1 at the first wrong byte, after saying where it was, what was expected, what was found, and which
//! kind of error that makes it.

mod content;
mod model;
mod ops;
mod report;
mod rng;
mod shared;
mod sys;
mod worker;

use crate::ops::program_break::Break;
use crate::report::{COUNTS, detail, fail};
use crate::shared::Shared;
use crate::worker::{Limit, WORKERS_MAX, Worker};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const USAGE: &str = "usage: torture [--seconds N] [--threads T] [--megabytes M] [--seed S] [--operations N]
               [--until FILE] [--ops LIST] [--quiet]

  --seconds N      stop after so long (10)
  --threads T      workers, 1 to 64 (4)
  --megabytes M    memory in use at once, about (64)
  --seed S         the whole run follows from it, as far as threads allow (the time)
  --operations N   stop after so many operations of each worker (no limit)
  --until FILE     stop within a second of this file being there
  --ops LIST       only these operations (a,b), or all but these (-a,-b); `--ops help` names them
  --quiet          print nothing but failures";

/// A worker that begins no operation for so long is stuck.
const STUCK_S: u64 = 300;

struct Options {
    seconds: u64,
    threads: usize,
    megabytes: usize,
    seed: u64,
    operations: u64,
    until: Option<PathBuf>,
    ops: Vec<&'static ops::Op>,
    quiet: bool,
}

fn options() -> Result<Options, String> {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let mut options = Options {
        seconds: 10,
        threads: 4,
        megabytes: 64,
        seed: since.map_or(1, |time| u64::from(time.subsec_nanos()) ^ time.as_secs()),
        operations: u64::MAX,
        until: None,
        ops: ops::select("").unwrap_or_default(),
        quiet: false,
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        if arg == "--quiet" {
            options.quiet = true;
            continue;
        }
        let value = args.next().ok_or_else(|| format!("{arg} needs a value, or is unknown"))?;
        let number = || value.parse::<u64>().map_err(|error| format!("{arg} {value}: {error}"));
        match arg.as_str() {
            "--seconds" => options.seconds = number()?,
            "--threads" => options.threads = number()? as usize,
            "--megabytes" => options.megabytes = number()? as usize,
            "--seed" => options.seed = number()?,
            "--operations" => options.operations = number()?,
            "--until" => options.until = Some(PathBuf::from(value)),
            "--ops" => {
                options.ops = ops::select(&value).map_err(|name| {
                    let names: Vec<_> = ops::OPS.iter().map(|op| op.name).collect();
                    format!("no operation is called {name}; they are {}", names.join(" "))
                })?;
            }
            _ => return Err(format!("unknown option {arg}")),
        }
    }
    if !(1..=WORKERS_MAX).contains(&options.threads) || options.megabytes == 0 || options.ops.is_empty() {
        return Err("threads must be 1 to 64, megabytes at least 1, and some operation must be left".to_owned());
    }
    Ok(options)
}

fn main() -> ExitCode {
    let options = match options() {
        Ok(options) => options,
        Err(why) => {
            eprintln!("torture: {why}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    content::set_key(options.seed);
    ops::signals::install();
    let start = Instant::now();
    run(&options);
    if !options.quiet {
        let get = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
        println!(
            "torture: ok seed {} seconds {:.1} threads {} megabytes {} operations {} pages_checked {} pages_written {} \
             forks {} execs {} threads_made {} signals {} guarded_faults {} mremaps {} io_mib {}",
            options.seed,
            start.elapsed().as_secs_f64(),
            options.threads,
            options.megabytes,
            get(&COUNTS.operations),
            get(&COUNTS.pages_checked),
            get(&COUNTS.pages_written),
            get(&COUNTS.forks),
            get(&COUNTS.execs),
            get(&COUNTS.threads),
            get(&COUNTS.signals),
            get(&COUNTS.guarded_faults),
            get(&COUNTS.mremaps),
            get(&COUNTS.io_bytes) >> 20,
        );
    }
    ExitCode::SUCCESS
}

/// What the main thread's heap has to spare, and what makes it grow by that now: more than the C library begins with,
/// in pieces too small to be mapped on their own.
const SPARE: usize = 16 << 20;
const PIECES: [usize; 3] = [100_000; 3];

/// The program break belongs to the worker that moves it. So every thread gets a heap of its own, and the main thread's,
/// which lies at the break, gets enough to begin with and is never trimmed. It is not the main thread's alone: what that
/// thread allocated and a worker freed, the worker may get again, and `realloc` makes it larger where it came from.
fn keep_heap_off_the_break() {
    // SAFETY: sets parameters of the C library's heap before there are threads; each piece is freed once.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 4096);
        libc::mallopt(libc::M_TRIM_THRESHOLD, i32::MAX);
        libc::mallopt(libc::M_TOP_PAD, SPARE as i32);
        let before = libc::sbrk(0) as usize;
        // A compiler may leave out allocations that nobody looks at.
        let pieces = PIECES.map(|size| core::hint::black_box(libc::malloc(size)));
        for piece in pieces {
            libc::free(piece);
        }
        let grown = libc::sbrk(0) as usize - before;
        if grown < SPARE {
            fail(format_args!("the C library's heap grew by {grown} bytes at the start, not by {SPARE}"));
        }
    }
}

fn run(options: &Options) {
    let pages = options.megabytes * 256;
    let shared: &'static Shared = Box::leak(Box::new(Shared::new(pages / 4, options.threads)));
    let target = (pages * 3 / 4 / options.threads).max(64);
    let limit = Limit { until: Instant::now() + Duration::from_secs(options.seconds), operations: options.operations };
    // Worker 0 is the main thread, whose heap lies at the program break, unless some worker moves the break itself.
    let break_is_used = options.ops.iter().any(|op| op.name == "brk");
    let program_break = Mutex::new(break_is_used.then(|| {
        keep_heap_off_the_break();
        Break::new()
    }));
    let life = &|index: usize| {
        let program_break = program_break.lock().ok().filter(|_| index == 0).and_then(|mut lock| lock.take());
        let mut worker = Worker::new(index, options.seed, shared, target, program_break);
        worker.work(limit, &options.ops);
        worker.counted
    };
    let mut counted = Vec::new();
    std::thread::scope(|scope| {
        let in_main = usize::from(!break_is_used);
        let others: Vec<_> = (in_main..options.threads).map(|index| scope.spawn(move || life(index))).collect();
        let until = options.until.clone();
        if let Err(error) = std::thread::Builder::new().spawn(move || watch(until.as_deref())) {
            fail(format_args!("the watchdog could not start: {error}"));
        }
        counted.extend((0..in_main).map(life));
        for other in others {
            match other.join() {
                Ok(counts) => counted.push(counts),
                Err(_) => fail(format_args!("a worker panicked")),
            }
        }
    });
    ops::shared::check_finally(shared, &counted);
}

/// Ends the run when every worker's progress has stopped for too long, or when the file is there that says so.
fn watch(until: Option<&Path>) {
    let mut seen = [0; WORKERS_MAX];
    let mut since = Instant::now();
    loop {
        std::thread::sleep(Duration::from_secs(1));
        if until.is_some_and(Path::exists) {
            worker::stop();
        }
        let now: [u64; WORKERS_MAX] = std::array::from_fn(worker::begun);
        if now != seen {
            seen = now;
            since = Instant::now();
        } else if since.elapsed().as_secs() > STUCK_S {
            detail(format_args!("no worker has made progress for {STUCK_S} s"));
            fail(format_args!("the run is stuck"));
        }
    }
}
