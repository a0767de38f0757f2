//! A space inside a test process: managed memory, served by a SIGBUS handler as in the agent. Each test has a process of its own
//! ([`alone`]), so that tests of all kinds can run side by side.

pub mod alone;
pub mod faulty;
pub mod folios;

use ebb::{Config, Fault, Force, Space, SwapSpec, ThreadCtx};
use std::cell::Cell;
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;
use std::time::Duration;

static SPACE: OnceLock<&'static Space> = OnceLock::new();

thread_local! {
    static CTX: Cell<Option<&'static ThreadCtx>> = const { Cell::new(None) };
}

extern "C" fn on_sigbus(_signo: i32, info: *mut libc::siginfo_t, uc: *mut libc::c_void) {
    let (space, ctx) = (SPACE.get().expect("a space"), CTX.get().expect("an attached thread"));
    // SAFETY: the kernel hands a siginfo and a ucontext to the handler.
    let (addr, error) = unsafe {
        ((*info).si_addr() as usize, (*uc.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_ERR as usize])
    };
    let fault = space.fault(ctx, addr, error & 2 != 0);
    if fault != Fault::Resolved {
        // Nobody can do without the page, so nothing is lost if the message fails.
        eprintln!("the fault at {addr:x} (error {error:x}) is not served: {fault:?}");
        std::process::abort();
    }
}

/// The fallbacks that `EBB_FORCE` names, and always strict.
pub fn force() -> Force {
    let list = std::env::var_os("EBB_FORCE").unwrap_or_default();
    Force { strict: true, ..Force::of_list(list.as_bytes()) }
}

/// Makes the process's space, once; later calls return the same.
pub fn space(ram_bytes: u64, force: Force) -> &'static Space {
    space_with(&Config {
        ram_bytes,
        swap: &[SwapSpec { dir: c"/var/tmp", bytes: 4 << 30, priority: None, ..SwapSpec::DEFAULT }],
        stats: None,
        stats_fd: None,
        force: Force { strict: true, ..force },
    })
}

/// The same, with every setting. Of two tests in a process, one would have the other's: each runs [`alone::alone`].
pub fn space_with(config: &Config) -> &'static Space {
    assert!(alone::is_alone(), "a test with a space needs a process of its own");
    SPACE.get_or_init(|| {
        let space = Space::create(config).expect("userfaultfd");
        // SAFETY: installs a handler with the matching signature.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_sigbus as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigfillset(&mut action.sa_mask);
            libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
        }
        space
    })
}

/// The calling thread's context; attached the first time.
pub fn ctx(space: &'static Space) -> &'static ThreadCtx {
    CTX.get().unwrap_or_else(|| {
        let ctx = space.attach_thread().expect("a context");
        // The standard library's own signal stack is small; the agent gives every thread one like this.
        let stack = Box::leak(vec![0u8; 128 << 10].into_boxed_slice());
        let stack = libc::stack_t { ss_sp: stack.as_mut_ptr().cast(), ss_flags: 0, ss_size: stack.len() };
        // SAFETY: the stack is leaked, so it outlives the thread.
        assert_eq!(unsafe { libc::sigaltstack(&stack, std::ptr::null_mut()) }, 0);
        CTX.set(Some(ctx));
        ctx
    })
}

/// Gives the calling thread's context back; call it last in a thread.
pub fn leave(space: &'static Space) {
    if let Some(ctx) = CTX.take() {
        space.detach_thread(ctx);
    }
}

/// How long to wait for what another thread or process does. Only a test that fails waits so long: on a busy machine that
/// thread may have to wait for a processor again and again.
pub const PATIENCE: Duration = Duration::from_secs(400);

/// Processor time of the calling thread: what others do on the machine is not in it.
pub fn thread_time() -> Duration {
    Duration::from_nanos(ebb::uapi::thread_time_ns())
}

/// Managed memory of `bytes`, readable and writable.
pub fn map(space: &'static Space, bytes: usize) -> *mut u8 {
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as u64;
    let at = space.mmap(ctx(space), [0, bytes as u64, 3, flags, u64::MAX, 0]);
    assert!(at > 0, "mmap: {at}");
    at as *mut u8
}

/// Maps `pages` managed pages: at `at` in place of what is there, or where the kernel finds room if that is 0.
pub fn map_at(space: &'static Space, at: usize, pages: usize, prot: i32) -> usize {
    let fixed = if at == 0 { 0 } else { libc::MAP_FIXED };
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | fixed) as u64;
    let got = space.mmap(ctx(space), [at as u64, (pages * PAGE) as u64, prot as u64, flags, u64::MAX, 0]);
    assert!(got > 0, "mmap: {got}");
    got as usize
}

/// Changes the protection of `pages` pages.
pub fn protect(space: &'static Space, at: usize, pages: usize, prot: i32) {
    let args = [at as u64, (pages * PAGE) as u64, prot as u64, 0, 0, 0];
    assert_eq!(space.mprotect(ctx(space), libc::SYS_mprotect as u32, args), 0);
}

/// Unmaps managed memory.
pub fn unmap(space: &'static Space, at: *mut u8, bytes: usize) {
    assert_eq!(space.munmap(ctx(space), [at as u64, bytes as u64, 0, 0, 0, 0]), 0);
}

/// A word that tells pages, versions and kinds of content apart. `kind` 0: zero; 1: one word repeated; 2: compressible;
/// 3: random; 4: one word repeated that fills all its bits; 5: pointers, small numbers and zeros; 6: random, but beginning like an object of
/// some codec; 7: letters and words of text.
pub fn word_of(page: usize, version: u64, kind: u64, index: usize) -> u64 {
    let mix = |mut x: u64| {
        x ^= x >> 31;
        x = x.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x ^= x >> 29;
        x.wrapping_mul(0xbf58_476d_1ce4_e5b9)
    };
    let key = mix(page as u64 * 0x1_0000_0001 + version);
    let other = mix(key ^ (index as u64) << 17);
    match kind {
        0 => 0,
        1 => key & 0xffff_ffff | key << 32,
        2 if index.is_multiple_of(4) => key ^ index as u64,
        2 => index as u64 / 8,
        4 => key,
        5 if index.is_multiple_of(3) => 0x7f3a_0000_0000 | key & 0xff00_0000 | other & 0xf_fff8,
        5 if index % 3 == 1 => other % 1000,
        5 => 0,
        6 if index == 0 => (other & !0xff) | (1 + key % 3),
        7 if index.is_multiple_of(4) => letters(other),
        7 => letters(mix(other % 64)),
        _ => other,
    }
}

/// Eight of sixteen letters.
fn letters(bits: u64) -> u64 {
    u64::from_le_bytes(bits.to_le_bytes().map(|byte| b'a' + byte % 16))
}

/// Fills a page.
pub fn fill(at: *mut u8, page: usize, version: u64, kind: u64) {
    for i in 0..512 {
        // SAFETY: the caller owns the page.
        unsafe { at.add(page * 4096 + i * 8).cast::<u64>().write_volatile(word_of(page, version, kind, i)) };
    }
}

/// Checks every word of a page.
pub fn check(at: *mut u8, page: usize, version: u64, kind: u64) {
    for i in 0..512 {
        // SAFETY: the caller owns the page.
        let found = unsafe { at.add(page * 4096 + i * 8).cast::<u64>().read_volatile() };
        let want = word_of(page, version, kind, i);
        assert_eq!(found, want, "page {page} version {version} kind {kind} word {i}");
    }
}

/// A small generator of test numbers.
pub struct Random(pub u64);

impl Random {
    /// The next number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}

/// Bytes of a page.
const PAGE: usize = 4096;

/// Pushes everything else out.
pub fn press(space: &'static Space, budget: u64) {
    let pages = 2 * budget as usize / PAGE;
    let at = map(space, pages * PAGE);
    for page in 0..pages {
        fill(at, page, 9, 3);
    }
    unmap(space, at, pages * PAGE);
}

/// How many pages of the range the kernel has in memory.
pub fn resident(at: *mut u8, pages: usize) -> usize {
    let mut out = vec![0u8; pages];
    // SAFETY: the kernel writes a byte for each page.
    assert_eq!(unsafe { libc::mincore(at.cast(), pages * PAGE, out.as_mut_ptr()) }, 0);
    out.iter().filter(|byte| **byte & 1 != 0).count()
}
