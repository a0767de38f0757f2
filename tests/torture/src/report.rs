//! Saying what went wrong, once, without allocating: also from a forked child or a signal handler. And the counts.

use core::fmt::{self, Write};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Counts for the closing line. Relaxed: they order nothing.
pub struct Counts {
    pub operations: AtomicU64,
    pub pages_checked: AtomicU64,
    pub pages_written: AtomicU64,
    pub forks: AtomicU64,
    pub execs: AtomicU64,
    pub threads: AtomicU64,
    pub signals: AtomicU64,
    pub guarded_faults: AtomicU64,
    pub io_bytes: AtomicU64,
    pub mremaps: AtomicU64,
}

/// The counts of this process.
pub static COUNTS: Counts = Counts {
    operations: AtomicU64::new(0),
    pages_checked: AtomicU64::new(0),
    pages_written: AtomicU64::new(0),
    forks: AtomicU64::new(0),
    execs: AtomicU64::new(0),
    threads: AtomicU64::new(0),
    signals: AtomicU64::new(0),
    guarded_faults: AtomicU64::new(0),
    io_bytes: AtomicU64::new(0),
    mremaps: AtomicU64::new(0),
};

/// Adds to one count.
pub fn add(count: &AtomicU64, n: usize) {
    count.fetch_add(n as u64, Ordering::Relaxed);
}

/// A line on the stack; what does not fit is cut.
pub struct Line {
    bytes: [u8; 1536],
    len: usize,
}

impl Line {
    pub fn new() -> Self {
        Self { bytes: [0; 1536], len: 0 }
    }

    /// Writes the line to standard error in one call.
    pub fn emit(&mut self) {
        let _ = self.write_str("\n");
        // SAFETY: the buffer is on this stack and `len` bytes long.
        unsafe { libc::write(2, self.bytes.as_ptr().cast(), self.len) };
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let n = text.len().min(self.bytes.len() - self.len);
        self.bytes[self.len..self.len + n].copy_from_slice(&text.as_bytes()[..n]);
        self.len += n;
        Ok(())
    }
}

static REPORTED: AtomicBool = AtomicBool::new(false);

/// Reports the first failure of this process and ends it with status 1; later ones wait for that end.
pub fn fail(what: fmt::Arguments<'_>) -> ! {
    if REPORTED.swap(true, Ordering::AcqRel) {
        loop {
            // SAFETY: waits for a signal; the reporting thread ends the process.
            unsafe { libc::pause() };
        }
    }
    let mut line = Line::new();
    // SAFETY: no preconditions.
    let (pid, tid) = unsafe { (libc::getpid(), libc::syscall(libc::SYS_gettid)) };
    let _ = write!(line, "torture: FAILED: {what} [pid {pid} tid {tid}]");
    line.emit();
    crate::worker::print_history();
    exit_now(1)
}

/// Prints one more line of details before [`fail`].
pub fn detail(what: fmt::Arguments<'_>) {
    let mut line = Line::new();
    let _ = write!(line, "torture:   {what}");
    line.emit();
}

/// Ends the process without running anything of the C library's exit.
pub fn exit_now(status: i32) -> ! {
    // SAFETY: ends the process; touches no memory.
    unsafe { libc::_exit(status) }
}
