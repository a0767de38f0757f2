//! A child that asks to be traced (PTRACE_TRACEME), until it is another program.
//!
//! A traced thread stops before each signal that it takes, so that its tracer can look. The agent's own signals would
//! stop it, too: SIGSYS at each system call, SIGBUS at a page that is out. Between fork and exec a tracer expects
//! neither. If it waits in vfork for the exec, it would wait for ever, because nobody continues the child.
//!
//! So the request is kept back, and made
//!
//! * right before execve, once everything that the kernel will read has been copied, so that the exec is the first stop;
//! * before anything else that would stop the child: a signal that it sends, or takes. Meanwhile the agent gets the
//!   signals whose default action the kernel would take.
//!
//! If execve fails all the same, a child of vfork makes its few remaining calls as without Ebb, because its parent
//! waits. A child with memory of its own goes on under Ebb, with stops that its tracer sees.

use crate::base::frame::SigInfo;
use crate::base::text::Line;
use crate::base::{calls, signum};
use crate::signals::masks;
use crate::threads::actions;
use crate::threads::thread::ThreadBlock;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;
use ebb::uapi;
use linux_raw_sys::{errno as e, general as g};

const PTRACE_TRACEME: u64 = 0;

/// Whether this process is a fork's child, and has begun no other program.
static IS_FORKED: AtomicBool = AtomicBool::new(false);

/// Takes note that this is fork's child. A request that its parent kept back is not the child's.
pub fn in_child(b: &ThreadBlock) {
    IS_FORKED.store(true, Relaxed);
    if b.asks_to_be_traced.take() {
        actions::default_by_agent(b.table(), false);
    }
}

/// Whether a call asks to be traced.
pub fn is_request(nr: u32, a: &[u64; 6]) -> bool {
    nr == g::__NR_ptrace && a[0] == PTRACE_TRACEME
}

/// Keeps back PTRACE_TRACEME by a child between fork and exec, and returns its answer; none when the kernel must be
/// asked at once.
pub fn ask(b: &ThreadBlock, is_alone: bool) -> Option<i64> {
    let is_child =
        if b.foreign.get() { b.parent_frees.get() && b.has_own_table() } else { IS_FORKED.load(Relaxed) && is_alone };
    if !is_child || b.asks_to_be_traced.get() || is_traced() {
        return None;
    }
    b.asks_to_be_traced.set(true);
    actions::default_by_agent(b.table(), true);
    Some(0)
}

/// Makes the request that was kept back.
pub fn make(b: &ThreadBlock) {
    if b.asks_to_be_traced.take() {
        actions::default_by_agent(b.table(), false);
        // SAFETY: no effect on memory.
        unsafe { calls::raw_syscall(g::__NR_ptrace as u64, &[PTRACE_TRACEME, 0, 0, 0, 0, 0]) };
    }
}

/// Makes the request when a signal came that would have stopped the child. True when the signal comes again.
pub fn at_signal(b: &ThreadBlock, info: &SigInfo) -> bool {
    const SIGTRAP: i32 = 5;
    let was_kept = b.asks_to_be_traced.get();
    if was_kept {
        make(b);
        // Other faults happen again by themselves.
        if !info.is_fault() || info.signo == SIGTRAP || info.signo == signum::SIGSYS {
            masks::raise(info);
        }
    }
    was_kept
}

/// Makes the request before a call that may send the child a signal.
pub fn before_call(b: &ThreadBlock, nr: u32) {
    let sends = matches!(
        nr,
        g::__NR_kill
            | g::__NR_tkill
            | g::__NR_tgkill
            | g::__NR_rt_sigqueueinfo
            | g::__NR_rt_tgsigqueueinfo
            | g::__NR_pidfd_send_signal
    );
    if sends {
        make(b);
    }
}

/// Checks execve of `path` in the directory `dir`, for a child that has asked to be traced. The error is what execve
/// would answer; with it the child goes on as it is.
pub fn before_exec(dir: i32, path: u64) -> Result<(), i64> {
    const X_OK: u64 = 1;
    const S_IFMT: u32 = 0o170_000;
    const S_IFREG: u32 = 0o100_000;
    const ST_MODE_AT: usize = 3;
    let mut stat = [0u64; 18];
    // SAFETY: the path was copied, and ends; the kernel reads it, and writes one `struct stat`, 144 bytes.
    let (seen, found) = unsafe {
        let access = [dir as u64, path, X_OK, g::AT_EACCESS as u64, 0, 0];
        let look = [dir as u64, path, stat.as_mut_ptr() as u64, 0, 0, 0];
        (calls::raw_syscall(g::__NR_faccessat2 as u64, &access), calls::raw_syscall(g::__NR_newfstatat as u64, &look))
    };
    let certain = [e::ENOENT, e::EACCES, e::ENOTDIR, e::ELOOP, e::ENAMETOOLONG].map(|errno| -(errno as i64));
    // An empty path may mean the file of `dir` itself.
    // SAFETY: as above.
    let is_empty = unsafe { (path as *const u8).read() } == 0;
    if !is_empty && certain.contains(&seen) {
        return Err(seen);
    }
    if !is_empty && found == 0 && stat[ST_MODE_AT] as u32 & S_IFMT != S_IFREG {
        return Err(-(e::EACCES as i64));
    }
    Ok(())
}

/// Disarms a child of vfork that is traced now, after its exec has failed.
pub fn exec_failed(b: &ThreadBlock) {
    if b.foreign.get() && calls::disarm().is_err() {
        Line::new()
            .str("ebb: cannot stop intercepting the system calls of a traced child: prctl failed; ")
            .str("report this as a bug in Ebb\n")
            .write();
        uapi::exit_group(125);
    }
}

/// Whether this thread is traced, as far as the kernel says.
fn is_traced() -> bool {
    const KEY: &[u8] = b"TracerPid:";
    let mut text = [0u8; 1024];
    let Ok(fd) = uapi::open_read(c"/proc/thread-self/status") else { return false };
    let n = uapi::read(fd, &mut text).unwrap_or(0);
    uapi::close(fd);
    let line = text[..n].split(|&c| c == b'\n').find_map(|line| line.strip_prefix(KEY));
    line.is_some_and(|rest| rest.trim_ascii() != b"0")
}
