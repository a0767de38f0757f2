//! A program that keeps a table of 256 MiB in 64 MiB of RAM with the engine alone: without `ebb run`, and without the
//! agent.
//!
//! ```sh
//! cargo run --release -p ebb --example embed
//! ```
//!
//! The agent does all of this for a program that knows nothing of it. A program that uses the engine itself has four
//! duties:
//!
//! 1. Its SIGBUS handler passes each fault to [`Space::fault`]. The handler runs on its own signal stack with every
//!    signal blocked. A stack is never managed memory.
//! 2. Each thread attaches itself before it touches managed memory or calls the engine ([`Space::attach_thread`]).
//! 3. Every signal is blocked around each call of the engine.
//! 4. The kernel does not fault pages in. The program brings in and pins a buffer before a system call reads or writes
//!    it, and the buffer stays pinned until the call returns.

use ebb::uapi::thread::{block_signals, restore_signals};
use ebb::{Config, Fault, Force, PinResult, Space, SwapSpec, ThreadCtx};
use std::cell::Cell;
use std::error::Error;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::OnceLock;

const RAM_BYTES: u64 = 64 << 20;
const TABLE_BYTES: usize = 256 << 20;
const SIGNAL_STACK_BYTES: usize = 128 << 10;
/// Words of the table that the program visits at random.
const VISITS: usize = 200_000;

static SPACE: OnceLock<&'static Space> = OnceLock::new();

thread_local! {
    static CTX: Cell<Option<&'static ThreadCtx>> = const { Cell::new(None) };
}

/// Brings in the page whose absence raised the signal.
extern "C" fn on_sigbus(_signo: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    const WRITE: i64 = 2;
    // SAFETY: the kernel hands both structures to the handler.
    let (addr, error) = unsafe {
        let context = &*context.cast::<libc::ucontext_t>();
        ((*info).si_addr() as usize, context.uc_mcontext.gregs[libc::REG_ERR as usize])
    };
    let outcome = match (SPACE.get(), CTX.get()) {
        (Some(space), Some(ctx)) => space.fault(ctx, addr, error & WRITE != 0),
        _ => Fault::NotManaged,
    };
    // `NotManaged` is a bug of the program's own. `Unreadable` is a spill file that was lost or damaged.
    if outcome != Fault::Resolved {
        std::process::abort();
    }
}

/// Installs the handler, with every signal blocked while it runs.
fn handle_sigbus() -> Result<(), Box<dyn Error>> {
    // SAFETY: a handler with the signature that SA_SIGINFO asks for.
    let done = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_sigbus as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigfillset(&mut action.sa_mask);
        libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut())
    };
    if done == 0 { Ok(()) } else { Err(std::io::Error::last_os_error().into()) }
}

/// Calls the engine with every signal blocked.
fn quietly<R>(f: impl FnOnce() -> R) -> R {
    let mask = block_signals();
    let result = f();
    restore_signals(mask);
    result
}

/// Attaches the calling thread, and gives it a signal stack that is large enough for the engine.
fn attach(space: &'static Space) -> Result<&'static ThreadCtx, Box<dyn Error>> {
    let stack = Box::leak(vec![0u8; SIGNAL_STACK_BYTES].into_boxed_slice());
    let stack = libc::stack_t { ss_sp: stack.as_mut_ptr().cast(), ss_flags: 0, ss_size: stack.len() };
    // SAFETY: the stack is never freed.
    if unsafe { libc::sigaltstack(&stack, std::ptr::null_mut()) } != 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    let ctx = quietly(|| space.attach_thread()).ok_or("more threads than the engine has contexts for")?;
    CTX.set(Some(ctx));
    Ok(ctx)
}

/// Maps managed memory. The engine's call takes the arguments of mmap(2) and returns the same result: an address, or a
/// negative error number.
fn map(space: &Space, ctx: &ThreadCtx, bytes: usize) -> Result<*mut u64, Box<dyn Error>> {
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as u64;
    let at = quietly(|| space.mmap(ctx, [0, bytes as u64, protection, flags, u64::MAX, 0]));
    if at > 0 { Ok(at as *mut u64) } else { Err(std::io::Error::from_raw_os_error(-at as i32).into()) }
}

/// Performs write(2) from managed memory.
fn write_managed(
    space: &Space,
    ctx: &ThreadCtx,
    file: &File,
    at: *const u64,
    bytes: usize,
) -> Result<usize, Box<dyn Error>> {
    let here = 0u8;
    // The stack pointer tells this call's pins from those of calls that a signal handler interrupted.
    let pinned = quietly(|| {
        space.pin_begin(ctx, (&raw const here) as u64);
        space.pin_add(ctx, at.addr(), bytes)
    });
    let written = match pinned {
        // SAFETY: the range is mapped, and stays in memory until `pin_end`.
        PinResult::Ok => match unsafe { libc::write(file.as_raw_fd(), at.cast(), bytes) } {
            -1 => Err(std::io::Error::last_os_error().into()),
            n => Ok(n as usize),
        },
        PinResult::TooLarge => Err("more than may be pinned at once: write it in parts".into()),
        PinResult::Unreadable => Err("a page of it is lost: its spill file was damaged".into()),
    };
    quietly(|| space.pin_end(ctx));
    written
}

fn main() -> Result<(), Box<dyn Error>> {
    let config = Config {
        ram_bytes: RAM_BYTES,
        swap: &[SwapSpec { dir: c"/var/tmp", bytes: 1 << 30, priority: None, ..SwapSpec::DEFAULT }],
        stats: None,
        stats_fd: None,
        force: Force::default(),
    };
    let space = quietly(|| Space::create(&config))?;
    SPACE.get_or_init(|| space);
    handle_sigbus()?;
    let ctx = attach(space)?;

    let words = TABLE_BYTES / 8;
    let table = map(space, ctx, TABLE_BYTES)?;
    for i in 0..words {
        // SAFETY: inside the mapping, which only this thread uses.
        unsafe { table.add(i).write(i as u64 / 3) };
    }
    let mut at = 1usize;
    for _ in 0..VISITS {
        at = at.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ at >> 29;
        let i = at % words;
        // SAFETY: as above.
        assert_eq!(unsafe { table.add(i).read() }, i as u64 / 3, "word {i}");
    }
    let mut file = tempfile()?;
    let written = write_managed(space, ctx, &file, table, 1 << 20)?;
    check(&mut file, written)?;

    let (held, stats) = (space.charged_pages() * 4 / 1024, space.stats());
    let swapped = stats.out_pool_pages.load(std::sync::atomic::Ordering::Relaxed) * 4 / 1024;
    println!(
        "{} MiB of data in {held} MiB of RAM; {swapped} MiB were compressed; every word was right",
        TABLE_BYTES >> 20
    );
    assert!(held <= (RAM_BYTES >> 20) as usize);
    quietly(|| space.munmap(ctx, [table as u64, TABLE_BYTES as u64, 0, 0, 0, 0]));
    quietly(|| space.detach_thread(ctx));
    Ok(())
}

/// A file without a name.
fn tempfile() -> Result<File, Box<dyn Error>> {
    // SAFETY: a new descriptor, which the file owns.
    let fd = unsafe { libc::open(c"/var/tmp".as_ptr(), libc::O_TMPFILE | libc::O_RDWR | libc::O_CLOEXEC, 0o600) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    // SAFETY: as above.
    Ok(unsafe { std::os::fd::FromRawFd::from_raw_fd(fd) })
}

/// Checks that the file has the beginning of the table.
fn check(file: &mut File, bytes: usize) -> Result<(), Box<dyn Error>> {
    use std::io::{Read, Seek};
    let mut content = vec![0u8; bytes];
    file.rewind()?;
    file.read_exact(&mut content)?;
    for (i, word) in content.chunks_exact(8).enumerate() {
        assert_eq!(word, (i as u64 / 3).to_ne_bytes(), "word {i} of the file");
    }
    Ok(())
}
