//! Tests that need a process of their own, and what they have in common: pages of known content, and forks.

use super::{PATIENCE, Random, check, ctx, fill, force, map, space_with, unmap};
use ebb::stats::Shared;
use ebb::uapi::thread::{block_signals, restore_signals};
use ebb::{Config, Force, Space, SwapSpec};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Stops the threads of a scope when their owner is done, also by a failure.
pub struct StopsAtEnd<'a>(pub &'a AtomicBool);

impl Drop for StopsAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Bytes of the budget.
pub const RAM: u64 = 16 << 20;
/// Bytes of a page.
pub const PAGE: usize = 4096;
/// Pages of the budget.
pub const RAM_PAGES: usize = RAM as usize / PAGE;
/// A kind of content, as the harness makes them.
pub const COMPRESSIBLE: u64 = 2;
/// Another.
pub const RANDOM: u64 = 3;

/// Names the test that a process was started for.
const ALONE: &str = "EBB_TEST_ALONE";

/// What a test that ran in a process of its own has left.
pub struct Ran {
    pub status: ExitStatus,
    pub out: String,
    pub err: String,
}

impl Ran {
    /// The test ran, no other did, and it succeeded.
    pub fn assert_passed(&self) {
        assert!(self.status.success(), "{}: {}{}", self.status, self.out, self.err);
        assert!(self.out.contains("test result: ok. 1 passed; 0 failed;"), "not one test: {}{}", self.out, self.err);
    }
}

/// The test that a closure stands in, as the program lists it.
fn test_of<F>() -> &'static str {
    let closure = std::any::type_name::<F>();
    let (test, _) = closure.split_once("::{{closure}}").expect("a test passes a closure");
    test.split_once("::").expect("the path begins with the crate").1
}

/// Whether this process was started for one test.
pub fn is_alone() -> bool {
    std::env::var_os(ALONE).is_some()
}

/// A test that takes longer than this, in seconds, has failed; one at random, than this beyond [`stress_time`].
const LONGEST_S: u32 = 300;

/// For how long tests at random go on.
pub fn stress_time() -> Duration {
    let seconds = std::env::var("EBB_STRESS_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(4))
}

/// Starts this program again for the test that `case` stands in, and says what came of it. In that process it runs `case`.
pub fn run_alone<F: FnOnce()>(case: F) -> Option<Ran> {
    let test = test_of::<F>();
    if let Some(wanted) = std::env::var_os(ALONE) {
        assert_eq!(wanted, test, "a test runs another");
        // A thread that waits for one that has failed must not wait for ever: the failure would not be shown.
        // SAFETY: sets a timer.
        unsafe { libc::alarm(LONGEST_S + stress_time().as_secs() as u32) };
        case();
        return None;
    }
    let mut command = Command::new(std::env::current_exe().expect("the test's own path"));
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(ALONE, test);
    let output = command.output().expect("the test runs itself");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let ran = Ran { status: output.status, out: text(&output.stdout), err: text(&output.stderr) };
    // For `--nocapture`.
    print!("{}", ran.out);
    eprint!("{}", ran.err);
    Some(ran)
}

/// Runs `case` in a process of its own; it must succeed.
pub fn alone(case: impl FnOnce()) {
    if let Some(ran) = run_alone(case) {
        ran.assert_passed();
    }
}

/// Runs `case` in a process of its own, which the engine must end, saying `message`.
pub fn ends(message: &str, case: impl FnOnce()) {
    if let Some(ran) = run_alone(case) {
        assert_eq!(ran.status.signal(), Some(libc::SIGKILL), "{}", ran.err);
        assert!(ran.err.contains(message), "{}", ran.err);
    }
}

/// The process's space, with these devices.
pub fn space_on(swap: &[SwapSpec<'_>], strict: bool) -> &'static Space {
    let mask = block_signals();
    let space =
        space_with(&Config { ram_bytes: RAM, swap, stats: None, stats_fd: None, force: Force { strict, ..force() } });
    restore_signals(mask);
    space
}

/// The process's space, in a tree whose page other processes can map, and that page's file.
pub fn space_in_tree(ram_bytes: u64, swap: &[SwapSpec<'_>]) -> (&'static Space, i32) {
    // SAFETY: a file of the test's own, and a mapping of it that is never unmapped; zeroed, it is a valid page.
    let (fd, stats) = unsafe {
        let fd = libc::memfd_create(c"tree".as_ptr(), 0);
        assert!(fd >= 0 && libc::ftruncate(fd, Shared::MAP_BYTES as i64) == 0);
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let at = libc::mmap(std::ptr::null_mut(), Shared::MAP_BYTES, prot, libc::MAP_SHARED, fd, 0);
        assert!(at != libc::MAP_FAILED);
        (fd, &*at.cast::<Shared>())
    };
    let mask = block_signals();
    let force = Force { strict: true, ..force() };
    let space = space_with(&Config { ram_bytes, swap, stats: Some(stats), stats_fd: Some(fd), force });
    restore_signals(mask);
    (space, fd)
}

/// Managed pages with content, and what it is.
pub struct Pages {
    pub space: &'static Space,
    pub at: *mut u8,
    pub versions: Vec<(u64, u64)>,
}

// SAFETY: whoever has the pages is the only one to use their memory.
unsafe impl Send for Pages {}

impl Pages {
    /// `n` pages of one kind.
    pub fn new(space: &'static Space, n: usize, kind: u64) -> Self {
        Self::at(space, map(space, n * PAGE), n, kind)
    }

    /// The same from the beginning of a unit on: how many pages a fault brings in, or a write opens, depends on where units end.
    pub fn aligned(space: &'static Space, n: usize, kind: u64) -> Self {
        let (bytes, unit) = (n * PAGE, 2 << 20);
        let lower = map(space, bytes + unit);
        let before = lower.align_offset(unit);
        // SAFETY: inside the mapping, or at its end.
        let (at, end) = unsafe { (lower.add(before), lower.add(before + bytes)) };
        if before > 0 {
            unmap(space, lower, before);
        }
        unmap(space, end, unit - before);
        Self::at(space, at, n, kind)
    }

    fn at(space: &'static Space, at: *mut u8, n: usize, kind: u64) -> Self {
        let mut this = Self { space, at, versions: vec![(0, 0); n] };
        (0..n).for_each(|page| this.write(page, 1, kind));
        this
    }

    pub fn len(&self) -> usize {
        self.versions.len()
    }

    pub fn write(&mut self, page: usize, version: u64, kind: u64) {
        self.versions[page] = (version, kind);
        fill(self.at, page, version, kind);
    }

    pub fn check(&self, page: usize) {
        let (version, kind) = self.versions[page];
        check(self.at, page, version, kind);
    }

    pub fn check_all(&self) {
        (0..self.len()).for_each(|page| self.check(page));
    }

    pub fn addr(&self, page: usize) -> usize {
        self.at as usize + page * PAGE
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        unmap(self.space, self.at, self.len() * PAGE);
    }
}

/// Whether this process may have a context for transfers in flight.
pub fn can_fly() -> bool {
    let mut context = 0u64;
    // SAFETY: the kernel writes the context's number.
    unsafe { libc::syscall(libc::SYS_io_setup, 1, &raw mut context) == 0 }
}

/// How much a counter grows while `f` runs.
pub fn growth(counter: &AtomicU64, f: impl FnOnce()) -> u64 {
    let before = counter.load(Relaxed);
    f();
    counter.load(Relaxed) - before
}

pub fn file_pages(space: &Space) -> u64 {
    space.stats().out_file_pages.load(Relaxed) + space.stats().writeback_pages.load(Relaxed)
}

/// Everything is as it was written, the books are right, nothing was reported.
pub fn assert_sound(pages: &Pages) {
    pages.check_all();
    assert_eq!(pages.space.validate(), Ok(()));
    assert_eq!(pages.space.stats().error_bytes()[0], 0);
}

/// Forks as the agent does, but for the room that it makes first. The child runs `child` and ends; its process number.
pub fn fork(space: &'static Space, child: impl FnOnce()) -> i32 {
    let ctx = ctx(space);
    let mask = block_signals();
    space.fork_prepare(ctx);
    // SAFETY: the child runs on its copy of the memory; libc's own locks are taken care of by its fork.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid > 0 {
        space.fork_parent(true);
        restore_signals(mask);
        return pid;
    }
    // A child that hangs must not hang the test.
    // SAFETY: sets a timer.
    unsafe { libc::alarm(PATIENCE.as_secs() as u32) };
    let managed = space.fork_child(ctx).is_ok();
    restore_signals(mask);
    let ok = managed && std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).is_ok();
    // SAFETY: ends the child without the parent's exit handlers.
    unsafe { libc::_exit(if ok { 0 } else { 1 }) }
}

pub fn wait(pid: i32) -> i32 {
    let mut status = 0;
    // SAFETY: the kernel writes the status.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    status
}

/// Pages of all kinds, three budgets in all, a third of them in the spill file.
pub fn mixed(space: &'static Space) -> Pages {
    let mut pages = Pages::new(space, 3 * RAM_PAGES, COMPRESSIBLE);
    for page in (0..pages.len()).filter(|page| page % 3 != 0) {
        pages.write(page, 2, [0, 1, RANDOM][page / 3 % 3]);
    }
    pages
}

/// Writes a part of the pages anew, everything of all kinds, and checks all.
pub fn rewrite(pages: &mut Pages, seed: u64) {
    let mut random = Random(seed);
    for i in 0..pages.len() / 2 {
        let page = random.below(pages.len());
        pages.write(page, seed << 32 | i as u64, random.below(4) as u64);
    }
    pages.check_all();
}
