//! Stands in for the program towards the process that started `ebb`: passes signals to the program, and passes its
//! stops and its end out.
//!
//! `ebb` and the program share a process group, so the terminal's signals reach both directly. `ebb` blocks every
//! signal that can be blocked, and takes them one by one with sigtimedwait(2). So there is no handler, and nothing is
//! lost.
//!
//! * A signal from the kernel (Ctrl-C, Ctrl-Z, a hang-up, a new window size) is not passed on: the program has it
//!   already.
//! * A signal that a process sent to `ebb` is passed on, with its value, unless the program sent it.
//! * SIGTERM has an answer within a second. If the program cannot take it, because it is in an uninterruptible wait,
//!   `ebb` says so. The program may just be writing to a slow disk, so only a second SIGTERM gives it up. Then its tree
//!   ends with `ebb`.
//! * When the program stops, `ebb` stops itself by the same signal. When `ebb` is continued, it continues the program.

use std::io;
use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

use libc::{c_int, pid_t};

use crate::base::end::End;
use crate::base::sys;

/// Never blocked. The first two cannot be, glibc keeps the next two for itself, and the rest report a fault in `ebb`.
const NOT_TAKEN: [c_int; 10] = [
    libc::SIGKILL,
    libc::SIGSTOP,
    32,
    33,
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGSYS,
];

/// Resources that the program, and the children it waited for, used.
#[derive(Debug, Clone, Copy, Default)]
pub struct Usage {
    pub user_ns: u64,
    pub system_ns: u64,
    pub max_rss_bytes: u64,
}

impl Usage {
    fn of(usage: &libc::rusage) -> Self {
        let ns = |time: libc::timeval| time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1_000;
        Self {
            user_ns: ns(usage.ru_utime),
            system_ns: ns(usage.ru_stime),
            max_rss_bytes: usage.ru_maxrss as u64 * 1024,
        }
    }
}

/// How long a program may be unable to take SIGTERM before `ebb` says so.
const STUCK: Duration = Duration::from_millis(900);
/// Time between two looks at such a program, before and after `ebb` has said so.
const LOOK_EVERY: Duration = Duration::from_millis(50);
const LOOK_LATER: Duration = Duration::from_millis(500);

/// A SIGTERM that was passed on.
struct Untaken {
    since: Instant,
    is_told: bool,
}

impl Untaken {
    /// Says, once, that the program cannot take the signal.
    fn tell(&mut self, child: pid_t) {
        if !self.is_told && self.since.elapsed() >= STUCK {
            self.is_told = true;
            sys::complain(&format!(
                "ebb: SIGTERM: process {child} waits in the kernel (state D) and gets the signal when that wait ends; \
                 send SIGTERM again to kill the whole tree with SIGKILL"
            ));
        }
    }
}

enum Event {
    Nothing,
    Stopped(c_int),
    Ended(End, Usage),
}

/// The next change of the program's state, if there is one.
fn poll(child: pid_t) -> io::Result<Event> {
    loop {
        let mut status = 0;
        let mut usage = MaybeUninit::<libc::rusage>::zeroed();
        // Wait for any child: as the first process of a container, `ebb` inherits orphans, and must reap them.
        // SAFETY: both results are whole, and all zeroes are valid for them.
        let pid = unsafe { libc::wait4(-1, &mut status, libc::WNOHANG | libc::WUNTRACED, usage.as_mut_ptr()) };
        match sys::check(pid) {
            Ok(0) => return Ok(Event::Nothing),
            Ok(pid) if pid != child => {}
            Ok(_) if libc::WIFSTOPPED(status) => return Ok(Event::Stopped(libc::WSTOPSIG(status))),
            Ok(_) => {
                // SAFETY: filled by the kernel, and all zeroes before.
                let usage = Usage::of(&unsafe { usage.assume_init() });
                let end = if libc::WIFSIGNALED(status) {
                    End::Signaled(libc::WTERMSIG(status))
                } else {
                    End::Exited(libc::WEXITSTATUS(status))
                };
                return Ok(Event::Ended(end, usage));
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Passes a signal on to the program as it came.
fn pass_on(child: pid_t, signal: c_int, info: &libc::siginfo_t) {
    // SAFETY: the fields exist for a signal that a process sent, which the caller has checked. The child is not reaped
    // yet, so its number is still its own.
    unsafe {
        if info.si_pid() == child {
            return;
        }
        if info.si_code == libc::SI_QUEUE {
            libc::sigqueue(child, signal, info.si_value());
        } else {
            libc::kill(child, signal);
        }
    }
}

/// The letter of the process's state in `/proc`.
fn state(pid: pid_t) -> Option<u8> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    stat.get(name_end + 2).copied()
}

/// Whether the program is in an uninterruptible wait with `signal` still pending. A signal that the program blocks, or
/// that waits because the program is stopped, does not count.
fn cannot_take(pid: pid_t, signal: c_int) -> bool {
    let Ok(status) = std::fs::read_to_string(format!("/proc/{pid}/status")) else { return false };
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let set = |name: &str| field(name).and_then(|text| u64::from_str_radix(text, 16).ok()).unwrap_or(0);
    let bit = 1 << (signal - 1);
    let is_pending = (set("SigPnd:") | set("ShdPnd:")) & bit != 0;
    is_pending && set("SigBlk:") & bit == 0 && field("State:").is_some_and(|state| state.starts_with('D'))
}

/// Continues the program if it is stopped. Check first: if the whole group was continued, so was the program, and a
/// second SIGCONT would run its handler twice.
fn resume(child: pid_t) {
    if state(child).is_none_or(|state| state == b'T') {
        // SAFETY: the child is not reaped yet.
        unsafe { libc::kill(child, libc::SIGCONT) };
    }
}

/// Stops this process by `signal`, as the program was stopped.
fn stop_likewise(signal: c_int) {
    let set = sys::one_signal(signal);
    // SAFETY: `old` is a whole `sigaction`, which the first call fills; all zeroes mean the default action.
    unsafe {
        let default: libc::sigaction = std::mem::zeroed();
        let mut old: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, &default, &mut old);
        libc::kill(libc::getpid(), signal);
        sys::change_mask(libc::SIG_UNBLOCK, &set);
        // This process is stopped here until somebody continues it.
        sys::change_mask(libc::SIG_BLOCK, &set);
        libc::sigaction(signal, &old, std::ptr::null_mut());
    }
}

/// The signals that `ebb` takes in the program's place. They are blocked before the program starts, and from then on.
pub fn taken_signals() -> libc::sigset_t {
    sys::all_signals_but(&NOT_TAKEN)
}

/// Waits for the program to end. The signals in `taken` are blocked already, and stay so.
pub fn supervise(child: pid_t, taken: &libc::sigset_t) -> io::Result<(End, Usage)> {
    let mut untaken: Option<Untaken> = None;
    loop {
        match poll(child)? {
            Event::Ended(end, usage) => return Ok((end, usage)),
            Event::Stopped(signal) => {
                stop_likewise(signal);
                continue;
            }
            Event::Nothing => {}
        }
        untaken = untaken.filter(|_| cannot_take(child, libc::SIGTERM));
        if let Some(untaken) = &mut untaken {
            untaken.tell(child);
        }
        let pause = untaken.as_ref().map(|untaken| if untaken.is_told { LOOK_LATER } else { LOOK_EVERY });
        let pause = pause.map(|pause| libc::timespec { tv_sec: 0, tv_nsec: pause.as_nanos() as i64 });
        let limit = pause.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        // SAFETY: the set is initialised, `info` is a whole `siginfo_t`, and the limit outlives the call or is null.
        let signal = unsafe { libc::sigtimedwait(taken, info.as_mut_ptr(), limit) };
        // SAFETY: filled by the kernel, and all zeroes before.
        let info = unsafe { info.assume_init() };
        match signal {
            // Interrupted by a stop or a debugger, or it is time for another look.
            -1 | libc::SIGCHLD => {}
            libc::SIGCONT => resume(child),
            libc::SIGTERM if untaken.as_ref().is_some_and(|untaken| untaken.is_told) => {
                // SAFETY: the child is not reaped yet.
                unsafe { libc::kill(child, libc::SIGKILL) };
                return Ok((End::GivenUp(libc::SIGTERM), Usage::default()));
            }
            signal if info.si_code <= 0 => {
                pass_on(child, signal, &info);
                if signal == libc::SIGTERM {
                    // The time counts from the first one.
                    untaken = untaken.or_else(|| Some(Untaken { since: Instant::now(), is_told: false }));
                }
            }
            _ => {}
        }
    }
}
