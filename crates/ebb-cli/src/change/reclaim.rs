//! `ebb reclaim`: takes memory from a running tree now, whatever its budget.
//!
//! The processes of the tree are asked one after the other, over their control sockets: the one whose memory has been cold
//! for longest first, for a part of what it holds, because after that another one may have the coldest. Memory that processes
//! share since a fork comes last. It is free only when all its holders have given it up, so all of them are asked in turn,
//! and what counts is what the tree holds less.

use std::collections::HashSet;
use std::path::Path;
use std::time::{Duration, Instant};

use ebb::tree::{self, Kind, Member, now_ms, said};

use crate::base::end::{self, End};
use crate::base::failure::Failure;
use crate::base::interrupt::{Event, Interrupts};
use crate::base::name::Target;
use crate::base::progress::Progress;
use crate::base::size::{Amount, human_bytes, human_ns, short_bytes};
use crate::base::sys;
use crate::base::text::printable;
use crate::running::control::{Answer, Control, Given, Refusal, attempt, request};
use crate::running::counters::PAGE_BYTES;
use crate::running::outside::Table;
use crate::running::process::{self, Process};
use crate::running::trees::{self, Holder, RunningTree};

/// The exit status if only a part could be taken.
const STATUS_PART: i32 = 1;
/// How long a process may take to give up [`Pace::step`] bytes.
const PATIENCE: Duration = Duration::from_secs(5);
/// That many bytes, or a 64th of what is asked for if that is less.
const STEP_BYTES: u64 = 4 << 20;
const STEP_PART: u64 = 64;
/// After so many processes that took longer, no other is asked.
const SLOW_MAX: u32 = 3;
/// How often to look whether a process from which nothing comes is stopped.
const LOOK: Duration = Duration::from_millis(200);
/// Of several processes, each is asked for at most this part (1 / 8) of what it holds at a time, or for so many pages.
const PART: u64 = 8;
const PART_PAGES_MIN: u64 = 1024;
/// A process that holds fewer pages is not asked.
const HELD_MIN: u64 = 64;
/// How many of the processes that were passed over are named.
const NAMED_MAX: usize = 3;

/// Where the content is to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum To {
    Pool,
    Cold,
    Device,
}

/// What the user asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Demand {
    pub target: Target,
    /// A share is of what the tree holds.
    pub amount: Amount,
    /// None for where it goes by itself.
    pub to: Option<To>,
}

/// Whose memory is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    Own,
    Shared,
}

/// Why a process gave nothing, or no more.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Passed {
    Stopped,
    Slow,
    /// A process of another pid namespace.
    Unseen,
    Refused(Refusal),
    Failed(Failure),
}

/// How asking one process ended.
enum Asked {
    Gave(Given),
    Passed(Given, Passed),
    Interrupted(Given, libc::c_int),
}

/// Takes what `demand` asks for. Returns a line for the user, and the exit status.
pub fn reclaim(demand: &Demand) -> Result<(String, i32), Failure> {
    let tree = trees::find(&demand.target)?;
    // What dead processes held belongs to nobody.
    tree::reap(tree.counters.tree(), tree.counters.fd(), &tree.own());
    let held = held_bytes(&tree);
    let wanted = wanted_bytes(demand.amount, held).map_err(|most| {
        let what = format!("reclaim {} {}", tree.label(), short_amount(demand.amount));
        let remedy = format!("ask for at most {}, or for a percentage such as 50%", short_bytes(most));
        Failure::ebb(what, format!("the tree holds only {}", human_bytes(most)), remedy)
    })?;
    let of_signals = |error| Failure::ebb("waiting for signals", error, "raise the limit with `ulimit -n 1024`");
    let interrupts = Interrupts::hold().map_err(of_signals)?;
    let mut job = Job::new(&tree, &interrupts, wanted, demand.to);
    if !job.has_process() {
        return Err(Failure::ebb(
            job.what(),
            "none of its processes is managed and holds enough to give any up",
            format!("see what holds its memory with `ebb ps {}`", tree.label()),
        ));
    }
    let interrupted = job.run().map_err(of_signals)?;
    job.progress = None;
    if let Some(signal) = interrupted {
        sys::complain(&format!("ebb: {}: interrupted; {}", job.what(), job.account()));
        interrupts.release();
        return Ok((String::new(), end::end_likewise(End::Signaled(signal))));
    }
    job.result().map(|line| (line, 0))
}

fn held_bytes(tree: &RunningTree) -> u64 {
    tree.counters.tree().sum().held.max(0) as u64 * PAGE_BYTES
}

fn is_stopped(pid: i32) -> bool {
    Process::find(Path::new(process::PROC), pid).is_ok_and(|process| process.is_stopped())
}

/// The bytes that are asked for, in whole pages, of a tree that holds `held`. The error is the most that can be asked for.
fn wanted_bytes(amount: Amount, held: u64) -> Result<u64, u64> {
    let bytes = match amount {
        Amount::Bytes(bytes) => bytes,
        Amount::Share { millionths } => (u128::from(held) * u128::from(millionths) / 1_000_000) as u64,
    };
    if bytes > held { Err(held) } else { Ok(bytes.max(1).next_multiple_of(PAGE_BYTES)) }
}

fn short_amount(amount: Amount) -> String {
    match amount {
        Amount::Bytes(bytes) => short_bytes(bytes),
        Amount::Share { millionths } => format!("{}%", millionths as f64 / 10_000.0),
    }
}

/// Measures for how long too little has come.
struct Pace {
    step: u64,
    since: Instant,
    bytes: u64,
}

impl Pace {
    fn new(wanted: u64) -> Self {
        Self { step: STEP_BYTES.min(wanted / STEP_PART).max(1), since: Instant::now(), bytes: 0 }
    }

    fn restart(&mut self) {
        (self.since, self.bytes) = (Instant::now(), 0);
    }

    /// Notes that `bytes` have come since the last restart. True if too little comes.
    fn is_slow(&mut self, bytes: u64) -> bool {
        if bytes >= self.bytes + self.step {
            (self.since, self.bytes) = (Instant::now(), bytes);
        }
        self.since.elapsed() > PATIENCE
    }
}

/// A demand under way.
struct Job<'a> {
    tree: &'a RunningTree,
    interrupts: &'a Interrupts,
    wanted: u64,
    to: Option<To>,
    /// What the tree held at the beginning.
    held_before: u64,
    given: Given,
    started: Instant,
    pace: Pace,
    slow: u32,
    /// The places of processes that have no more to give.
    finished: HashSet<u32>,
    passed: Vec<(i32, Passed)>,
    progress: Option<Progress>,
}

impl<'a> Job<'a> {
    fn new(tree: &'a RunningTree, interrupts: &'a Interrupts, wanted: u64, to: Option<To>) -> Self {
        Self {
            tree,
            interrupts,
            wanted,
            to,
            held_before: held_bytes(tree),
            given: Given::default(),
            started: Instant::now(),
            pace: Pace::new(wanted),
            slow: 0,
            finished: HashSet::new(),
            passed: Vec::new(),
            progress: Some(Progress::new("reclaim")),
        }
    }

    fn what(&self) -> String {
        let to = match self.to {
            None => "",
            Some(To::Pool) => " --to pool",
            Some(To::Cold) => " --to cold",
            Some(To::Device) => " --to device",
        };
        format!("reclaim {} {}{to}", self.tree.label(), short_bytes(self.wanted))
    }

    fn left(&self) -> u64 {
        self.wanted.saturating_sub(self.given.bytes)
    }

    fn candidates(&self) -> impl Iterator<Item = (u32, &Member)> {
        let members = self.tree.counters.tree().members();
        members.filter(|(index, member)| {
            member.kind() == Kind::Managed && said(&member.charged) >= HELD_MIN && !self.finished.contains(index)
        })
    }

    fn has_process(&self) -> bool {
        self.candidates().next().is_some()
    }

    /// Takes memory until it is enough or no more comes. Returns the signal that interrupted it, if one did.
    fn run(&mut self) -> std::io::Result<Option<libc::c_int>> {
        let interrupted = self.take_own()?;
        if interrupted.is_some() || self.left() == 0 {
            return Ok(interrupted);
        }
        self.take_shared()
    }

    /// Takes memory that processes have to themselves.
    fn take_own(&mut self) -> std::io::Result<Option<libc::c_int>> {
        while self.left() > 0 && self.slow < SLOW_MAX {
            let now = now_ms();
            let coldest = self.candidates().max_by_key(|(_, member)| member.coldest_ms(now).unwrap_or(0));
            let Some((index, member)) = coldest else { break };
            let is_alone = self.candidates().nth(1).is_none();
            let part = (said(&member.charged) / PART).max(PART_PAGES_MIN) * PAGE_BYTES;
            let bytes = if is_alone { self.left() } else { self.left().min(part) };
            let (given, signal) = self.ask(index, bytes, Of::Own)?;
            self.given.bytes += given.bytes;
            self.given.processor_ns += given.processor_ns;
            if signal.is_some() {
                return Ok(signal);
            }
            if given.bytes < bytes {
                self.finished.insert(index);
            }
        }
        Ok(None)
    }

    /// Takes memory that processes share since a fork, from all of them in turn. What the tree holds less is given up.
    fn take_shared(&mut self) -> std::io::Result<Option<libc::c_int>> {
        // A process that was passed over is not asked again. One that has nothing more to itself is.
        let passed: HashSet<i32> = self.passed.iter().map(|(pid, _)| *pid).collect();
        // What the tree held before, less what it has given up. It may hold more, by what that took.
        let mut least = self.held_before.saturating_sub(self.given.bytes);
        let mut fell = Instant::now();
        loop {
            let (mut asked, mut of_round) = (HashSet::new(), 0);
            while self.left() > 0 && self.slow < SLOW_MAX {
                let members = self.tree.counters.tree().members();
                let largest = members
                    .filter(|(index, member)| member.kind() == Kind::Managed && !asked.contains(index))
                    .map(|(index, member)| (index, said(&member.shared)))
                    .filter(|(_, shared)| *shared >= HELD_MIN)
                    .max_by_key(|(_, shared)| *shared);
                let Some((index, _)) = largest else { break };
                asked.insert(index);
                if matches!(self.holder(index), Holder::Process(pid) if passed.contains(&pid)) {
                    continue;
                }
                let (given, signal) = self.ask(index, self.left(), Of::Shared)?;
                self.given.processor_ns += given.processor_ns;
                of_round += given.bytes;
                let held = held_bytes(self.tree);
                if held < least {
                    self.given.bytes += least - held;
                    (least, fell) = (held, Instant::now());
                }
                if signal.is_some() {
                    return Ok(signal);
                }
            }
            // The first to give up a page that others have frees nothing, so a round may be of use only to the next.
            let is_over = of_round < self.pace.step || fell.elapsed() > PATIENCE;
            if is_over || self.left() == 0 || self.slow >= SLOW_MAX {
                return Ok(None);
            }
        }
    }

    fn holder(&self, index: u32) -> Holder {
        self.tree.holder(index, &self.tree.own())
    }

    /// Asks the process at `index` for `bytes`. Returns what it gave, and the signal that interrupted it, if one did.
    fn ask(&mut self, index: u32, bytes: u64, of: Of) -> std::io::Result<(Given, Option<libc::c_int>)> {
        let pid = match self.holder(index) {
            Holder::Process(pid) => pid,
            Holder::Unseen => {
                self.pass(index, 0, Passed::Unseen);
                return Ok((Given::default(), None));
            }
            Holder::Nobody => {
                self.finished.insert(index);
                return Ok((Given::default(), None));
            }
        };
        self.pace.restart();
        match self.ask_process(pid, bytes, of)? {
            Asked::Gave(given) => Ok((given, None)),
            Asked::Interrupted(given, signal) => Ok((given, Some(signal))),
            Asked::Passed(given, why) => {
                self.slow += u32::from(why == Passed::Slow);
                self.pass(index, pid, why);
                Ok((given, None))
            }
        }
    }

    fn pass(&mut self, index: u32, pid: i32, why: Passed) {
        self.finished.insert(index);
        self.passed.push((pid, why));
    }

    fn ask_process(&mut self, pid: i32, bytes: u64, of: Of) -> std::io::Result<Asked> {
        let mut words = bytes.to_string();
        words.push_str(match self.to {
            None => "",
            Some(To::Pool) => " pool",
            Some(To::Cold) => " cold",
            Some(To::Device) => " device",
        });
        words.push_str(if of == Of::Shared { " shared" } else { "" });
        if is_stopped(pid) {
            return Ok(Asked::Passed(Given::default(), Passed::Stopped));
        }
        let (mut given, mut error) = (Given::default(), None);
        let mut ended = None;
        let done = attempt(|answered| {
            let control = Control::open_unless(pid, |process, step| {
                match self.interrupts.wait_for(step) {
                    Ok(None) if process.is_stopped() => ended = Some(Asked::Passed(given, Passed::Stopped)),
                    Ok(None) if self.pace.is_slow(0) => ended = Some(Asked::Passed(given, Passed::Slow)),
                    Ok(None) => return Ok(()),
                    Ok(Some(signal)) => ended = Some(Asked::Interrupted(given, signal)),
                    Err(why) => error = Some(why),
                }
                Err(Failure::ebb("reclaim", "given up", ""))
            })?;
            control.ask(&request("reclaim", words.as_str()))?;
            loop {
                let event = match self.interrupts.wait(&control, Some(LOOK)) {
                    Ok(event) => event,
                    Err(why) => {
                        error = Some(why);
                        return Ok(Answer::Done);
                    }
                };
                let is_slow = self.pace.is_slow(given.bytes);
                let end = match event {
                    Event::Signal(signal) => Some(Asked::Interrupted(given, signal)),
                    // What the process says now may be its last word.
                    Event::Message => None,
                    Event::Nothing if is_stopped(pid) => Some(Asked::Passed(given, Passed::Stopped)),
                    Event::Nothing if is_slow => Some(Asked::Passed(given, Passed::Slow)),
                    Event::Nothing => continue,
                };
                if end.is_some() {
                    control.cancel();
                    ended = end;
                    return Ok(Answer::Done);
                }
                let answer = control.answer()?;
                *answered = true;
                match answer {
                    Answer::Given(now) => {
                        given = now;
                        let own = if of == Of::Own { given.bytes } else { 0 };
                        let left = self.wanted.saturating_sub(self.given.bytes + own);
                        if let Some(progress) = &mut self.progress {
                            progress.show(&format!("{} left", short_bytes(left)));
                        }
                        if self.pace.is_slow(given.bytes) && given.bytes < bytes {
                            control.cancel();
                            ended = Some(Asked::Passed(given, Passed::Slow));
                            return Ok(Answer::Done);
                        }
                    }
                    Answer::Done | Answer::Refused(_) => return Ok(answer),
                    Answer::Row(_) | Answer::Left(_) => return Err(control.misunderstood()),
                }
            }
        });
        if let Some(error) = error {
            return Err(error);
        }
        Ok(match (ended, done) {
            (Some(ended), _) => ended,
            (None, Ok(Answer::Refused(refusal))) => Asked::Passed(given, Passed::Refused(refusal)),
            (None, Ok(_)) => Asked::Gave(given),
            (None, Err(failure)) => Asked::Passed(given, Passed::Failed(failure)),
        })
    }

    /// What was given up, as text for people.
    fn account(&self) -> String {
        let (took, processor) = (self.started.elapsed().as_nanos() as u64, self.given.processor_ns);
        let page = self.tree.counters.tree();
        format!(
            "{} given up of {} asked for, in {} ({} of processor time); the tree holds {} of {}",
            human_bytes(self.given.bytes),
            human_bytes(self.wanted),
            human_ns(took),
            human_ns(processor),
            human_bytes(held_bytes(self.tree)),
            human_bytes(page.limit() * PAGE_BYTES),
        )
    }

    /// The line for the user. The failure says why no more was given up.
    fn result(&self) -> Result<String, Failure> {
        if self.left() == 0 {
            return Ok(format!("{}: {}\n", self.tree.label(), self.account()));
        }
        // Where every process refuses for the same reason, nothing was tried.
        let refusal = |passed: &(i32, Passed)| match &passed.1 {
            Passed::Refused(refusal) => Some(refusal.clone()),
            _ => None,
        };
        if let Some(first) = self.passed.first().and_then(refusal)
            && self.given.bytes == 0
            && self.passed.iter().all(|passed| refusal(passed).is_some_and(|refusal| refusal.errno == first.errno))
            && first.errno != libc::EINTR
        {
            let (why, remedy) = match first.errno {
                libc::ENODEV => (
                    "no process of the tree has a device with room".to_owned(),
                    "add one with `ebb swapon PID file:DIR`, or leave --to device out".to_owned(),
                ),
                _ => (first.why, first.remedy),
            };
            return Err(Failure::ebb(self.what(), why, remedy));
        }
        let (why, remedy) = self.why_not_more();
        let why = format!("only {}: {why}", self.account().replacen("; ", ", and ", 1));
        Err(Failure::with_status(STATUS_PART, self.what(), why, remedy))
    }

    fn why_not_more(&self) -> (String, String) {
        let table = Table(Path::new(process::PROC));
        let named: Vec<String> = self
            .passed
            .iter()
            .take(NAMED_MAX)
            .map(|(pid, why)| {
                let command = table.command(*pid).map_or_else(String::new, |name| format!(" ({})", printable(&name)));
                let who = format!("process {pid}{command}");
                match why {
                    Passed::Stopped => format!("{who} is stopped"),
                    Passed::Slow => format!("{who} gave too little within {} s", PATIENCE.as_secs()),
                    Passed::Unseen => "a process of another pid namespace cannot be asked".to_owned(),
                    Passed::Refused(refusal) => format!("{who}: {}", refusal.why),
                    Passed::Failed(failure) => format!("{who}: {}", failure.why),
                }
            })
            .collect();
        let label = self.tree.label();
        let stopped = self.passed.iter().find(|(_, why)| *why == Passed::Stopped);
        let remedy = match (stopped, self.to) {
            (Some((pid, _)), _) => format!("continue it with `kill -CONT {pid}`, and try again"),
            (None, Some(To::Pool)) => "leave --to pool out, so that the rest can go to a device".to_owned(),
            (None, Some(To::Cold)) => "leave --to cold out, so that the rest can go to a device".to_owned(),
            (None, Some(To::Device)) => {
                format!("see `ebb swapon --show` for room on devices, and `ebb ps {label}` for what is managed")
            }
            (None, None) => {
                format!("ask for less, or see `ebb ps {label}`: what does not compress needs a device (`ebb swapon`)")
            }
        };
        if !named.is_empty() {
            return (named.join(", "), remedy);
        }
        let why = match self.to {
            Some(To::Pool) => "the pool is full, or what is left does not compress or is in use",
            Some(To::Cold) => "what is compressed gets no smaller, and what is left does not compress or is in use",
            _ => "what is left is in use, or Ebb's own, or has no place to go",
        };
        (why.to_owned(), remedy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_whole_pages_and_at_most_what_is_held() {
        let share = |millionths| Amount::Share { millionths };
        assert_eq!(wanted_bytes(Amount::Bytes(1), 1 << 20), Ok(4096));
        assert_eq!(wanted_bytes(Amount::Bytes(5000), 1 << 20), Ok(8192));
        assert_eq!(wanted_bytes(Amount::Bytes(1 << 20), 1 << 20), Ok(1 << 20));
        assert_eq!(wanted_bytes(Amount::Bytes((1 << 20) + 1), 1 << 20), Err(1 << 20));
        assert_eq!(wanted_bytes(share(1_000_000), 1 << 20), Ok(1 << 20));
        assert_eq!(wanted_bytes(share(250_000), 1 << 20), Ok(1 << 18));
        assert_eq!(wanted_bytes(share(1), 1 << 20), Ok(4096));
        assert_eq!(wanted_bytes(Amount::Bytes(4096), 0), Err(0));
    }

    #[test]
    fn too_little_in_too_long_is_slow() {
        let mut pace = Pace::new(1 << 30);
        assert_eq!((pace.step, Pace::new(64 << 20).step, Pace::new(10).step), (4 << 20, 1 << 20, 1));
        assert!(!pace.is_slow(0));
        pace.since -= 2 * PATIENCE;
        assert!(pace.is_slow(pace.step - 1));
        assert!(!pace.is_slow(pace.step));
        pace.since -= 2 * PATIENCE;
        assert!(pace.is_slow(2 * pace.step - 1));
        pace.restart();
        assert!(!pace.is_slow(0));
    }
}
