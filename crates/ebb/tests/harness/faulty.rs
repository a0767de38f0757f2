//! A device that fails: reads and writes of the process's spill files are decided on by a *ruler*, which the test sets and changes.
//!
//! A seccomp filter hands each pread and pwrite of the threads that begin after [`Device::new`], and of the one that calls it, to a thread
//! of the harness, which was there before and is not filtered. That thread answers in place of the kernel: it lets the call through,
//! refuses it, transfers a part of it, or changes what is transferred. It shares memory and descriptors with the threads that it
//! answers, so it can do all that itself. A child of fork is filtered too, but the harness does not have its memory: its calls are let
//! through or refused, and nothing else. Nothing is in flight while a thread goes on, because the harness would not see it.
//!
//! Needs neither root nor a device.

use super::PATIENCE;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A read or a write of a spill file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    pub is_write: bool,
    pub fd: i32,
    pub offset: u64,
    pub len: usize,
    /// A child of fork makes the call.
    pub by_child: bool,
}

impl Transfer {
    /// Whether it touches the slot at `offset`.
    pub fn touches(&self, offset: u64) -> bool {
        (self.offset..self.offset + self.len as u64).contains(&offset)
    }
}

/// What becomes of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The kernel does it.
    Pass,
    /// It fails with this error.
    Fail(i32),
    /// Only so many bytes are transferred.
    Short(usize),
    /// So many bytes are transferred, and the call fails all the same.
    Torn(usize, i32),
    /// It is transferred, but one bit of each slot is another.
    Change,
    /// The kernel does it, but only once [`Device::go_on`] is called.
    Hang,
    /// It is transferred now, but the call returns only once [`Device::go_on`] is called.
    Late,
    /// Something was done in place of the kernel, with this result.
    Done(i64),
}

type Ruler = Box<dyn FnMut(Transfer) -> Verdict + Send>;

struct State {
    ruler: Mutex<Ruler>,
    is_hanging: Mutex<bool>,
    goes_on: Condvar,
    fds: Mutex<Vec<i32>>,
    pid: u32,
    reads: AtomicU64,
    writes: AtomicU64,
    ruled: AtomicU64,
    waiting: AtomicU32,
    is_over: AtomicBool,
}

/// The device of the process's spill files.
#[derive(Clone)]
pub struct Device(Arc<State>);

const NOTIFY: u32 = libc::SECCOMP_RET_USER_NOTIF;
const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;

/// Tells a new thread the listener, and has it answer until the process ends.
fn filtered(answer: impl FnOnce(i32) + Send + 'static) {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || answer(told.recv().expect("a listener")));
    let load = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    let equal = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    let end = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut steps = [
        step(load, 0, 0, 0),
        step(equal, 2, 0, libc::SYS_pread64 as u32),
        step(equal, 1, 0, libc::SYS_pwrite64 as u32),
        step(equal, 1, 2, libc::SYS_io_setup as u32),
        step(end, 0, 0, NOTIFY),
        step(end, 0, 0, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32),
        step(end, 0, 0, ALLOW),
    ];
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: the program lives through the call.
    let listener = unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program)
    };
    assert!(listener >= 0, "seccomp: {}", std::io::Error::last_os_error());
    tell.send(listener as i32).expect("the thread waits");
}

impl Device {
    /// Makes the devices of this process faulty, which do what they should until [`Self::rule`]. Call it before the space is made.
    pub fn new() -> Self {
        let state = State {
            ruler: Mutex::new(Box::new(|_| Verdict::Pass)),
            is_hanging: Mutex::new(true),
            goes_on: Condvar::new(),
            fds: Mutex::new(Vec::new()),
            pid: std::process::id(),
            reads: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            ruled: AtomicU64::new(0),
            waiting: AtomicU32::new(0),
            is_over: AtomicBool::new(false),
        };
        let this = Self(Arc::new(state));
        let answering = this.clone();
        filtered(move |listener| answering.answer(listener));
        this
    }

    /// Says which descriptors are spill files. Of a child, all descriptors are.
    pub fn watch(&self, fds: impl Iterator<Item = i32>) {
        *self.0.fds.lock().unwrap_or_else(PoisonError::into_inner) = fds.filter(|fd| *fd >= 0).collect();
    }

    /// Sets what becomes of each transfer from now on.
    pub fn rule(&self, ruler: impl FnMut(Transfer) -> Verdict + Send + 'static) {
        *self.0.ruler.lock().unwrap_or_else(PoisonError::into_inner) = Box::new(ruler);
    }

    /// Lets everything through again.
    pub fn mend(&self) {
        self.rule(|_| Verdict::Pass);
    }

    /// Transfers so far that something else became of than the kernel does.
    pub fn nr_ruled(&self) -> u64 {
        self.0.ruled.load(SeqCst)
    }

    /// Writes so far.
    pub fn nr_writes(&self) -> u64 {
        self.0.writes.load(SeqCst)
    }

    /// Reads so far.
    pub fn nr_reads(&self) -> u64 {
        self.0.reads.load(SeqCst)
    }

    /// Waits until a transfer hangs.
    pub fn wait_for_hanging(&self) {
        let end = Instant::now() + PATIENCE;
        while self.0.waiting.load(SeqCst) == 0 {
            assert!(Instant::now() < end, "nothing hangs");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Lets what hangs, and will hang, go on.
    pub fn go_on(&self) {
        self.set_hanging(false);
    }

    /// Whether what is to hang does so.
    pub fn set_hanging(&self, hangs: bool) {
        *self.0.is_hanging.lock().unwrap_or_else(PoisonError::into_inner) = hangs;
        self.0.goes_on.notify_all();
    }

    fn answer(&self, listener: i32) {
        while !self.0.is_over.load(SeqCst) {
            // SAFETY: zeroes are a value of this, as the kernel demands.
            let mut call: libc::seccomp_notif = unsafe { std::mem::zeroed() };
            // SAFETY: the kernel writes the structure.
            if unsafe { libc::ioctl(listener, RECEIVE, &raw mut call) } != 0 {
                // The thread that made the call was killed, or the last one is gone.
                if std::io::Error::last_os_error().raw_os_error() == Some(libc::EBADF) {
                    return;
                }
                continue;
            }
            let (transfer, verdict) = self.decide(&call);
            if matches!(verdict, Verdict::Hang | Verdict::Late) {
                let this = self.clone();
                let is_done = verdict == Verdict::Late;
                let done = if is_done { perform(&transfer, call.data.args[1], transfer.len) } else { 0 };
                self.0.waiting.fetch_add(1, SeqCst);
                std::thread::spawn(move || {
                    let hangs = this.0.is_hanging.lock().unwrap_or_else(PoisonError::into_inner);
                    drop(this.0.goes_on.wait_while(hangs, |hangs| *hangs));
                    this.0.waiting.fetch_sub(1, SeqCst);
                    let verdict = if is_done { Verdict::Done(done) } else { Verdict::Pass };
                    reply(listener, call.id, &transfer, call.data.args[1], verdict);
                });
            } else {
                reply(listener, call.id, &transfer, call.data.args[1], verdict);
            }
        }
    }

    fn decide(&self, call: &libc::seccomp_notif) -> (Transfer, Verdict) {
        let args = call.data.args;
        let transfer = Transfer {
            is_write: i64::from(call.data.nr) == libc::SYS_pwrite64,
            fd: args[0] as i32,
            offset: args[3],
            len: args[2] as usize,
            by_child: !is_own_thread(self.0.pid, call.pid),
        };
        let is_watched = self.0.fds.lock().unwrap_or_else(PoisonError::into_inner).contains(&transfer.fd);
        if !is_watched && !transfer.by_child {
            return (transfer, Verdict::Pass);
        }
        let counter = if transfer.is_write { &self.0.writes } else { &self.0.reads };
        counter.fetch_add(1, SeqCst);
        let verdict = (self.0.ruler.lock().unwrap_or_else(PoisonError::into_inner))(transfer);
        if verdict != Verdict::Pass {
            self.0.ruled.fetch_add(1, SeqCst);
        }
        (transfer, verdict)
    }
}

fn is_own_thread(pid: u32, tid: u32) -> bool {
    std::path::Path::new(&format!("/proc/{pid}/task/{tid}")).exists()
}

/// `SECCOMP_IOCTL_NOTIF_RECV` and `SECCOMP_IOCTL_NOTIF_SEND`.
const RECEIVE: libc::c_ulong = 0xc050_2100;
const SEND: libc::c_ulong = 0xc018_2101;

/// Answers a call in place of the kernel.
fn reply(listener: i32, id: u64, transfer: &Transfer, at: u64, verdict: Verdict) {
    let mut response = libc::seccomp_notif_resp { id, val: 0, error: 0, flags: 0 };
    match verdict {
        Verdict::Done(done) => set(&mut response, done),
        Verdict::Pass | Verdict::Hang | Verdict::Late => response.flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32,
        Verdict::Fail(errno) => response.error = -errno,
        Verdict::Short(bytes) => set(&mut response, perform(transfer, at, bytes)),
        Verdict::Torn(bytes, errno) => {
            perform(transfer, at, bytes);
            response.error = -errno;
        }
        Verdict::Change => {
            let done = perform(transfer, at, transfer.len);
            change(transfer, at, done);
            set(&mut response, done);
        }
    }
    // SAFETY: the kernel reads the structure. Whoever made the call may be gone meanwhile.
    unsafe { libc::ioctl(listener, SEND, &raw mut response) };
}

fn set(response: &mut libc::seccomp_notif_resp, done: i64) {
    if done < 0 {
        response.error = done as i32;
    } else {
        response.val = done;
    }
}

/// Transfers the first `bytes` of it, as the caller, whose memory this process shares.
fn perform(transfer: &Transfer, at: u64, bytes: usize) -> i64 {
    assert!(!transfer.by_child, "the memory of a child is not here");
    let bytes = bytes.min(transfer.len);
    // SAFETY: the caller waits for the answer, and meanwhile its buffer is there.
    let done = unsafe {
        match transfer.is_write {
            true => libc::pwrite(transfer.fd, at as *const libc::c_void, bytes, transfer.offset as i64),
            false => libc::pread(transfer.fd, at as *mut libc::c_void, bytes, transfer.offset as i64),
        }
    };
    if done < 0 { -i64::from(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)) } else { done as i64 }
}

/// A page, as direct I/O wants it to lie.
#[repr(align(4096))]
struct Slot([u8; 4096]);

/// Changes one bit of each slot that was transferred, in the file or in the caller's buffer.
fn change(transfer: &Transfer, at: u64, done: i64) {
    for first in (0..done.max(0) as usize).step_by(4096) {
        if !transfer.is_write {
            // SAFETY: as above.
            unsafe { *((at as usize + first) as *mut u8) ^= 1 };
            continue;
        }
        let mut slot = Slot([0; 4096]);
        let offset = (transfer.offset + first as u64) as i64;
        // SAFETY: the buffer is of this size.
        unsafe {
            assert_eq!(libc::pread(transfer.fd, slot.0.as_mut_ptr().cast(), 4096, offset), 4096);
            slot.0[0] ^= 1;
            assert_eq!(libc::pwrite(transfer.fd, slot.0.as_ptr().cast(), 4096, offset), 4096);
        }
    }
}
