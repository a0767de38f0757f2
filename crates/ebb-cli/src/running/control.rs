//! The connection to the agent in a running process, and what is said over it (`docs/contract.md`, "Control socket").
//!
//! A process has no control socket until somebody asks for one. To ask, `ebb` raises a number in the counters of the
//! process's tree, and wakes the threads that wait on it. Then Ebb's own thread in each process of the tree opens a
//! socket. The program notices nothing.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ebb::stats::Writes;

use crate::base::failure::Failure;
use crate::base::socket::Socket;
use crate::base::sys;
use crate::base::text::printable;
use crate::running::process::{self, Process};

/// How long a process may take to open its control socket. Its thread may be writing to a disk that others use, too.
const OPEN_PATIENCE: Duration = Duration::from_secs(12);
/// How long to wait for a stopped process to continue, and for a process to accept a connection.
const STOPPED_PATIENCE: Duration = Duration::from_secs(5);
const OPEN_STEP: Duration = Duration::from_millis(10);
/// How often a process is asked to open one. Its thread may only just have started.
const ASK_STEP: Duration = Duration::from_millis(100);
/// How long Ebb's thread may take to start.
const BEGIN_PATIENCE: Duration = Duration::from_millis(200);

/// How often a request is tried. A program that closes all possible descriptors may close a new connection before its
/// agent knows of it.
const ATTEMPTS: u32 = 10;

/// What a user can do about a lost connection.
const LOST: &str = "check with `ps` that the process is still running, and try again";

/// Longest answer: a directory has at most 511 bytes, and a reason is one line.
const ANSWER_BYTES_MAX: usize = 4096;

/// The exit status if the process refused.
const STATUS_REFUSED: i32 = 1;

/// A device, as its process describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    pub kind: String,
    /// The largest size it may reach.
    pub size_bytes: u64,
    pub used_bytes: u64,
    pub prio: i32,
    /// What its medium is: `ssd`, `hdd` or `ram`.
    pub medium: String,
    /// The average time of a read; 0 before the first.
    pub read_ns: u64,
    /// Pages that were read ahead and used, and such that were not.
    pub hits: u64,
    pub misses: u64,
    /// What its tree wrote to the directory, and may write.
    pub written_bytes: u64,
    pub writes: Option<Writes>,
    pub name: OsString,
}

/// Makes a request, and repeats it if the connection was lost before an answer came. `request` sets its argument when
/// an answer has come.
pub fn attempt<T>(mut request: impl FnMut(&mut bool) -> Result<T, Failure>) -> Result<T, Failure> {
    let mut attempts = 1;
    loop {
        let mut answered = false;
        match request(&mut answered) {
            Err(failure) if failure.remedy == LOST && !answered && attempts < ATTEMPTS => attempts += 1,
            result => return result,
        }
        std::thread::sleep(OPEN_STEP);
    }
}

/// One message from a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    Row(Row),
    /// How many bytes of a device are still to be read back.
    Left(u64),
    Given(Given),
    Done,
    Refused(Refusal),
}

/// What a process has given up so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Given {
    pub bytes: u64,
    /// Processor time of the thread that did it.
    pub processor_ns: u64,
}

impl Given {
    fn parse(text: &[u8]) -> Option<Self> {
        let (bytes, processor_ns) = std::str::from_utf8(text).ok()?.split_once(' ')?;
        Some(Self { bytes: bytes.parse().ok()?, processor_ns: processor_ns.parse().ok()? })
    }
}

/// Why a process refused a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub errno: i32,
    pub why: String,
    pub remedy: String,
}

impl Refusal {
    fn parse(text: &str) -> Option<Self> {
        let (errno, text) = text.split_once(' ')?;
        let (why, remedy) = text.split_once("; ").unwrap_or((text, "list its devices with `ebb swapon --show`"));
        Some(Self { errno: errno.parse().ok()?, why: printable(why), remedy: printable(remedy) })
    }

    /// Turns it into a failure of `what`.
    pub fn of(self, what: impl ToString) -> Failure {
        Failure::with_status(STATUS_REFUSED, what, self.why, self.remedy)
    }
}

impl Row {
    fn parse(message: &[u8]) -> Option<Self> {
        // The name comes last, and may contain blanks.
        let mut words = message.splitn(11, |byte| *byte == b' ');
        let mut word = || std::str::from_utf8(words.next()?).ok();
        let (kind, size, used, prio) = (word()?, word()?, word()?, word()?);
        let (medium, read_ns, hits, misses) = (word()?, word()?, word()?, word()?);
        let (written, writes) = (word()?, word()?);
        Some(Self {
            kind: kind.to_owned(),
            size_bytes: size.parse().ok()?,
            used_bytes: used.parse().ok()?,
            prio: prio.parse().ok()?,
            medium: medium.to_owned(),
            read_ns: read_ns.parse().ok()?,
            hits: hits.parse().ok()?,
            misses: misses.parse().ok()?,
            written_bytes: written.parse().ok()?,
            writes: if writes == "-" { None } else { Some(Writes::parse(writes.as_bytes())?) },
            name: OsStr::from_bytes(words.next().filter(|name| !name.is_empty())?).to_owned(),
        })
    }
}

impl Answer {
    /// Parses one message; none if it is not understood.
    pub fn parse(message: &[u8]) -> Option<Self> {
        if message == b"ok" {
            return Some(Self::Done);
        }
        if let Some(text) = message.strip_prefix(b"error ") {
            return Refusal::parse(&String::from_utf8_lossy(text)).map(Self::Refused);
        }
        if let Some(bytes) = message.strip_prefix(b"left ") {
            return std::str::from_utf8(bytes).ok()?.parse().ok().map(Self::Left);
        }
        if let Some(text) = message.strip_prefix(b"given ") {
            return Given::parse(text).map(Self::Given);
        }
        Row::parse(message).map(Self::Row)
    }
}

/// A connection to the agent of one process. It carries one request, then its answers.
#[derive(Debug)]
pub struct Control {
    pid: i32,
    socket: Socket,
}

impl Control {
    /// Connects to process `pid`. Asks it for a control socket if it has none.
    pub fn open(pid: i32) -> Result<Self, Failure> {
        Self::open_unless(pid, |_, step| {
            std::thread::sleep(step);
            Ok(())
        })
    }

    /// Likewise, but waits by `wait`, which gets the process and how long to wait, and may give up.
    pub fn open_unless(
        pid: i32,
        mut wait: impl FnMut(&Process, Duration) -> Result<(), Failure>,
    ) -> Result<Self, Failure> {
        // Open the descriptor first: it shows whether the process ended, even if another process has its number later.
        let descriptor = sys::process_descriptor(pid).map_err(|error| not_a_process(pid, error))?;
        let process = Process::find(Path::new(process::PROC), pid)?;
        process.counters()?;
        if process.is_dormant() {
            return Err(too_small(process::what(pid), "it has never"));
        }
        if !process.is_managed() {
            return Err(Failure::ebb(
                process::what(pid),
                "it belongs to a tree under Ebb, but Ebb does not manage it",
                "name a process that `ebb swapon --show` lists",
            ));
        }
        if let Some(control) = Self::connect(&process)? {
            return Ok(control);
        }
        let counters = process.writable_counters()?;
        let started = Instant::now();
        let mut next_ask = Duration::ZERO;
        loop {
            if started.elapsed() >= next_ask {
                next_ask = started.elapsed() + ASK_STEP;
                counters.page().asked.fetch_add(1, Ordering::Release);
                sys::futex_wake_all(&counters.page().asked);
            }
            wait(&process, OPEN_STEP)?;
            if let Some(control) = Self::connect(&process)? {
                return Ok(control);
            }
            let elapsed = started.elapsed();
            let has_begun = elapsed < BEGIN_PATIENCE || process.has_background();
            let is_stopped = || elapsed >= STOPPED_PATIENCE && process.is_stopped();
            if !has_begun || elapsed >= OPEN_PATIENCE || is_stopped() {
                return Err(silent(&process, &descriptor));
            }
        }
    }

    /// Connects to the socket that the process itself listens on, if there is one. Sockets of other processes are
    /// inherited.
    fn connect(process: &Process) -> Result<Option<Self>, Failure> {
        for path in process.control_sockets() {
            match Socket::connect(&path, STOPPED_PATIENCE) {
                Ok(socket) if socket.peer_pid().is_ok_and(|pid| pid == process.pid) => {
                    return Ok(Some(Self { pid: process.pid, socket }));
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    return Err(process::unreadable(process.pid, &error));
                }
                // No process listens there any more, or not yet.
                Err(_) => {}
            }
        }
        Ok(None)
    }

    /// Sends the request.
    pub fn ask(&self, request: &[u8]) -> Result<(), Failure> {
        self.socket.send(request).map_err(|error| self.ended(error))
    }

    /// Waits for the next answer.
    pub fn answer(&self) -> Result<Answer, Failure> {
        let mut buffer = [0; ANSWER_BYTES_MAX];
        match self.socket.receive(&mut buffer) {
            Ok([]) => Err(self.ended("the process ended or closed the connection")),
            Ok(message) => Answer::parse(message).ok_or_else(|| self.misunderstood()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(Failure::ebb(
                process::what(self.pid),
                "it does not answer",
                format!(
                    "if it is stopped, continue it with `kill -CONT {}`; if it waits for a disk or a server, see to that; \
                     then look at `ebb swapon --show`, and try again",
                    self.pid
                ),
            )),
            Err(error) => Err(self.ended(error)),
        }
    }

    /// Limits each wait for an answer from now on.
    pub fn set_patience(&self, patience: Duration) -> Result<(), Failure> {
        self.socket.set_receive_patience(patience).map_err(|error| self.ended(error))
    }

    /// Asks the process to give up what it is doing. Its last answer still comes.
    pub fn cancel(&self) {
        self.socket.finish();
    }

    /// The failure for an answer that does not fit the request.
    pub fn misunderstood(&self) -> Failure {
        Failure::ebb(
            process::what(self.pid),
            "ebb does not understand its answer",
            "use the same version of `ebb` that started it",
        )
    }

    fn ended(&self, why: impl ToString) -> Failure {
        Failure::ebb(process::what(self.pid), why, LOST)
    }
}

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn not_a_process(pid: i32, error: io::Error) -> Failure {
    match error.raw_os_error() {
        // Which error a thread's number gives depends on the kernel's version.
        Some(libc::EINVAL | libc::ENOENT) => Failure::ebb(
            process::what(pid),
            "this is the ID of a thread, not of a process",
            format!("give the PID of the thread's process, after `Tgid:` in /proc/{pid}/status"),
        ),
        _ => process::unreadable(pid, &error),
    }
}

/// The failure for what never grew. `who` begins the sentence.
pub fn too_small(what: impl ToString, who: &str) -> Failure {
    Failure::ebb(
        what,
        format!("{who} held the 8 MiB at which Ebb starts to manage a process, so none of its memory is swapped"),
        "try again when it has grown",
    )
}

/// Why a process opened no control socket.
fn silent(process: &Process, descriptor: &OwnedFd) -> Failure {
    let what = process::what(process.pid);
    if sys::has_ended(descriptor) {
        Failure::ebb(what, "it has ended", "name a running process that `ebb swapon --show` lists")
    } else if !process.has_background() {
        too_small(what, "it has never")
    } else if process.is_stopped() {
        Failure::ebb(what, "it is stopped", format!("continue it with `kill -CONT {}`, and try again", process.pid))
    } else {
        Failure::ebb(
            what,
            format!("it opened no control socket within {} s", OPEN_PATIENCE.as_secs()),
            "check that it has a free descriptor (ulimit -n) and can write to /dev/shm, /tmp or \
             /var/tmp, or try again",
        )
    }
}

/// A request as it is sent: `verb`, a blank, and the bytes of `argument`.
pub fn request(verb: &str, argument: impl Into<OsString>) -> Vec<u8> {
    let mut request = format!("{verb} ").into_bytes();
    request.extend(argument.into().into_vec());
    request
}

#[cfg(test)]
mod tests {
    use super::*;

    const PID: i32 = 12;

    fn connection() -> (Control, Socket) {
        let (socket, agent) = Socket::pair().unwrap();
        (Control { pid: PID, socket }, agent)
    }

    #[test]
    fn every_answer_is_read() {
        assert_eq!(Answer::parse(b"ok"), Some(Answer::Done));
        assert_eq!(Answer::parse(b"left 4096"), Some(Answer::Left(4096)));
        let given = Given { bytes: 8192, processor_ns: 1500 };
        assert_eq!(Answer::parse(b"given 8192 1500"), Some(Answer::Given(given)));
        let row = Row {
            kind: "file".into(),
            size_bytes: 1 << 30,
            used_bytes: 0,
            prio: -2,
            medium: "hdd".into(),
            read_ns: 8_000_000,
            hits: 12,
            misses: 3,
            written_bytes: 8192,
            writes: Writes::parse(b"1073741824/day"),
            name: "/mnt/a directory".into(),
        };
        assert_eq!(
            Answer::parse(b"file 1073741824 0 -2 hdd 8000000 12 3 8192 1073741824/day /mnt/a directory"),
            Some(Answer::Row(row))
        );
        let refusal = Refusal { errno: 28, why: "the disk is full".into(), remedy: "make room; or wait".into() };
        assert_eq!(Answer::parse(b"error 28 the disk is full; make room; or wait"), Some(Answer::Refused(refusal)));
    }

    #[test]
    fn other_answers_are_not_understood() {
        for message in [
            "",
            "okay",
            "left",
            "left much",
            "given 4096",
            "given 1 -2",
            "error",
            "error x y",
            "file 1 2 3 /",
            "file 1 2 3 ssd 1 2 3 4 -",
            "file 1 2 3 ssd 1 2 3 4 - ",
            "file 1 -2 3 ssd 1 2 3 4 - /",
            "file 1 2 3 ssd -1 2 3 4 - /",
            "file 1 2 3 ssd 1 2 3 /",
            "file 1 2 3 ssd 1 2 3 4 1073741824 /",
            "file 1 2 3 ssd 1 2 3 4 1G/day /",
        ] {
            assert_eq!(Answer::parse(message.as_bytes()), None, "{message}");
        }
    }

    #[test]
    fn a_refusal_is_one_line_with_status_1() {
        let Some(Answer::Refused(refusal)) = Answer::parse(b"error 16 it is\nbusy\x1b[2J; wait") else { panic!() };
        let failure = refusal.of("swapoff /x in process 12");
        assert_eq!(failure.to_string(), "ebb: swapoff /x in process 12: it is\\x0abusy\\x1b[2J; wait");
        assert_eq!(failure.status, 1);
        let Some(Answer::Refused(refusal)) = Answer::parse(b"error 22 no") else { panic!() };
        assert!(refusal.remedy.contains("--show"));
    }

    #[test]
    fn a_request_gets_its_answers() {
        let (control, agent) = connection();
        control.ask(&request("swapoff", "/x")).unwrap();
        let mut buffer = [0; 64];
        assert_eq!(agent.receive(&mut buffer).unwrap(), b"swapoff /x");
        agent.send(b"left 12").unwrap();
        assert_eq!(control.answer().unwrap(), Answer::Left(12));
        control.cancel();
        assert_eq!(agent.receive(&mut buffer).unwrap(), b"");
        agent.send(b"error 4 it was interrupted; try again").unwrap();
        assert!(matches!(control.answer().unwrap(), Answer::Refused(Refusal { errno: libc::EINTR, .. })));
    }

    #[test]
    fn an_end_without_a_last_answer_is_told() {
        let (control, agent) = connection();
        drop(agent);
        assert_eq!(
            control.answer().unwrap_err().to_string(),
            "ebb: process 12: the process ended or closed the connection; \
             check with `ps` that the process is still running, and try again"
        );
        assert_eq!(control.ask(b"show").unwrap_err().what, "process 12");
    }

    #[test]
    fn an_answer_that_does_not_come_or_makes_no_sense_is_told() {
        let (control, agent) = connection();
        control.set_patience(Duration::from_millis(1)).unwrap();
        assert_eq!(control.answer().unwrap_err().why, "it does not answer");
        agent.send(b"what?").unwrap();
        assert_eq!(control.answer().unwrap_err().why, "ebb does not understand its answer");
    }

    #[test]
    fn a_process_that_does_not_exist_is_told() {
        let failure = Control::open(i32::MAX).unwrap_err();
        assert_eq!(failure.why, "No such process (os error 3)");
        assert_eq!(failure.remedy, "name a process that runs under `ebb run`, by its PID in `ps`");
    }
}
