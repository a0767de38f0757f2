//! The constructor: reads the contract from the environment, makes the space, arms the first thread.
//!
//! Without `EBB_RAM` the library does nothing at all. A start that fails says why and ends the process with status 125,
//! because a program that silently runs without its limit is worse than one that does not run.

use crate::actions;
use crate::contract::Settings;
use crate::control;
use crate::entry;
use crate::exec;
use crate::fds;
use crate::interpose;
use crate::lifeline;
use crate::process;
use crate::signals;
use crate::text::Line;
use crate::thread;
use crate::trap;
use core::ffi::CStr;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use ebb::stats::Shared;
use ebb::{Config, DEVICES_MAX, InitError, Space, SwapSpec, uapi};
use linux_raw_sys::general as g;

static SPACE: AtomicPtr<Space> = AtomicPtr::new(core::ptr::null_mut());
static TEXT_START: AtomicU64 = AtomicU64::new(0);
static TEXT_END: AtomicU64 = AtomicU64::new(0);

/// The process's space; none while the agent is inert.
#[inline]
pub fn space() -> Option<&'static Space> {
    // SAFETY: stored once from a reference that lives as long as the process.
    unsafe { SPACE.load(Ordering::Relaxed).as_ref() }
}

/// Where the agent's own code lies: system calls from there pass.
pub fn text_range() -> (u64, u64) {
    (TEXT_START.load(Ordering::Relaxed), TEXT_END.load(Ordering::Relaxed))
}

/// Called by the dynamic linker with the arguments of `main`.
#[cfg(not(test))]
extern "C" fn constructor(_argc: i32, _argv: *const *const i8, envp: *const *const i8) {
    // SAFETY: the dynamic linker passes the process's environment, before a second thread exists.
    unsafe { start(envp.cast()) }
}

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn(i32, *const *const i8, *const *const i8) = constructor;

/// Ends the process with status 125 after one line of explanation.
fn fail(line: &mut Line) -> ! {
    line.str("\n").write();
    uapi::exit_group(125)
}

/// # Safety
/// `envp` must be the environment as the kernel laid it out, with the auxiliary vector behind it; no second thread.
#[cfg_attr(test, expect(dead_code, reason = "only the dynamic linker calls the constructor"))]
unsafe fn start(envp: *const *const core::ffi::c_char) {
    // SAFETY: no second thread exists.
    let kept = unsafe { exec::kept_at_start() };
    let mut settings = Settings::default();
    let mut at = envp;
    // SAFETY: the environment ends with a null pointer; each entry is a string.
    while let Some(var) = unsafe { at.read().as_ref() } {
        // SAFETY: as above.
        let var = unsafe { CStr::from_ptr(var) };
        if kept.offer(var.to_bytes()).is_err() {
            fail(Line::new().str("ebb: environment: LD_PRELOAD or an EBB_ variable is too long; shorten it"));
        }
        if let Err(name) = settings.offer(var.to_bytes()) {
            fail(
                Line::new().str("ebb: ").str(name).str(": its value is not understood; start the program with ebb run"),
            );
        }
        // SAFETY: not past the null pointer.
        at = unsafe { at.add(1) };
    }
    if settings.ram_bytes.is_none() {
        return;
    }
    // SAFETY: the auxiliary vector follows the null pointer.
    let (has_fsgsbase, stack_end) = unsafe { read_auxv(at.add(1).cast()) };
    thread::set_has_fsgsbase(has_fsgsbase);
    find_text();
    let mask = match actions::start() {
        Ok(mask) => mask,
        Err(errno) => fail(Line::new().str("ebb: signal handlers: errno ").num(errno.0 as u64).str("; report it")),
    };
    let space = make_space(&settings);
    let Ok(block) = thread::alloc() else {
        fail(
            Line::new().str("ebb: memory for the first thread: refused; raise the limit on address space (ulimit -v)"),
        );
    };
    // SAFETY: the block is this thread's.
    let b = unsafe { &mut *block };
    let Some(ctx) = space.attach_thread() else {
        fail(Line::new().str("ebb: the first thread: no context; report it"));
    };
    b.ctx = ctx;
    process::start_main(b, stack_end);
    b.blocked = signals::virtual_part(mask);
    // SAFETY: nobody else uses the block.
    unsafe { thread::set_current(block) };
    let stack = b.stack();
    // SAFETY: the kernel reads one structure; the stack is the block's own.
    let ret = unsafe { entry::raw_syscall(g::__NR_sigaltstack as u64, &[&raw const stack as u64, 0, 0, 0, 0, 0]) };
    if ret != 0 {
        fail(Line::new().str("ebb: signal stack: errno ").num(-ret as u64).str("; report it"));
    }
    space.answer_asks(control::start);
    SPACE.store(core::ptr::from_ref(space).cast_mut(), Ordering::Release);
    ebb::stats::add(&space.stats().threads, 1);
    if let Err(errno) = trap::arm() {
        fail(
            Line::new()
                .str("ebb: Syscall User Dispatch: the kernel refuses it with errno ")
                .num(errno.0 as u64)
                .str("; use Linux 5.11 or later with CONFIG_GENERIC_ENTRY and sysctl kernel.syscall_user_dispatch=1"),
        );
    }
    if let Some(ends) = &settings.life_ends {
        lifeline::start(ends);
    }
    interpose::set_enabled(settings.interposes);
    signals::set_kernel_mask(signals::kernel_part(mask));
}

fn make_space(settings: &Settings) -> &'static Space {
    let mut devices = [SwapSpec { dir: c"", bytes: 0, priority: None }; DEVICES_MAX];
    let nr_devices = settings.devices(&mut devices);
    let stats = settings.stats_fd.and_then(map_stats);
    let config = Config {
        ram_bytes: settings.ram_bytes.unwrap_or(0),
        swap: &devices[..nr_devices],
        stats,
        stats_fd: stats.and(settings.stats_fd),
        force: settings.force,
    };
    let error = match Space::create(&config) {
        Ok(space) => return space,
        Err(error) => error,
    };
    let mut line = Line::new();
    line.str("ebb: ");
    match error {
        InitError::BudgetTooSmall => {
            line.str("budget of ").num(config.ram_bytes).str(" bytes: too small to run in; give at least ");
            line.num(ebb::RAM_BYTES_MIN >> 20).str(" MiB with --ram");
        }
        InitError::Userfaultfd(errno) => {
            line.str("userfaultfd: the kernel refuses it with errno ").num(errno.0 as u64);
            line.str("; run `ebb doctor` to see what blocks it");
        }
        InitError::AddressSpace(errno) => {
            line.str("address space for metadata: errno ").num(errno.0 as u64);
            line.str("; raise the limit (ulimit -v unlimited)");
        }
        InitError::Spill(i, errno) => {
            line.str("spill file in ").bytes(devices[i].dir.to_bytes()).str(": errno ");
            line.num(errno.0 as u64).str("; name another directory with --swap file:DIR, or use --swap none");
        }
        InitError::Processes => {
            line.str("processes: more than ").num(ebb::tree::MEMBERS_MAX as u64);
            line.str(" share the budget; start fewer at a time");
        }
        InitError::Threads => {
            line.str("threads: more than there are contexts for; report it");
        }
    }
    fail(&mut line)
}

/// Maps the counters, if the descriptor still is what `ebb run` opened.
fn map_stats(fd: i32) -> Option<&'static Shared> {
    let at = uapi::map_shared(fd, Shared::MAP_BYTES).ok()?;
    // SAFETY: mapped above, never unmapped while referred to; all fields are atomics. A file that is too short is
    // told by its size first.
    let shared = unsafe { &*at.cast::<Shared>() };
    if file_bytes(fd) < Shared::MAP_BYTES as u64 || shared.magic.load(Ordering::Relaxed) != ebb::stats::MAGIC {
        // SAFETY: nobody refers to the mapping.
        let _ = unsafe { uapi::munmap(at as usize, Shared::MAP_BYTES) };
        return None;
    }
    fds::protect_stats(fd);
    Some(shared)
}

/// Size of an open file; 0 when it is none.
fn file_bytes(fd: i32) -> u64 {
    const ST_SIZE_AT: usize = 6;
    let mut stat = [0u64; 18];
    // SAFETY: the kernel writes one `struct stat`, 144 bytes.
    let ret = unsafe { entry::raw_syscall(g::__NR_fstat as u64, &[fd as u64, stat.as_mut_ptr() as u64, 0, 0, 0, 0]) };
    if ret == 0 { stat[ST_SIZE_AT] } else { 0 }
}

/// Whether user space may write the GS base, and an address near the end of the stack.
///
/// # Safety
/// `auxv` must be the auxiliary vector.
unsafe fn read_auxv(mut auxv: *const [u64; 2]) -> (bool, u64) {
    const AT_NULL: u64 = 0;
    const AT_HWCAP2: u64 = 26;
    const HWCAP2_FSGSBASE: u64 = 1 << 1;
    let mut has_fsgsbase = false;
    loop {
        // SAFETY: the vector ends with AT_NULL.
        let [key, value] = unsafe { auxv.read() };
        match key {
            AT_NULL => return (has_fsgsbase, auxv as u64),
            AT_HWCAP2 => has_fsgsbase = value & HWCAP2_FSGSBASE != 0,
            _ => {}
        }
        // SAFETY: not past AT_NULL.
        auxv = unsafe { auxv.add(1) };
    }
}

/// Finds the segment that holds the agent's code.
fn find_text() {
    unsafe extern "C" {
        /// Start of the loaded library, from the linker.
        static __ehdr_start: [u8; 64];
    }
    const PT_LOAD: u32 = 1;
    let base = &raw const __ehdr_start as u64;
    // SAFETY: the linker places the ELF header and its program headers in the first loaded segment.
    unsafe {
        let first = (base + (base as *const u64).byte_add(32).read()) as *const [u64; 7];
        let count = (base as *const u16).byte_add(56).read();
        for i in 0..count {
            let header = first.add(i as usize).read();
            let (start, bytes) = (base + header[2], header[5]);
            if header[0] as u32 == PT_LOAD && (start..start + bytes).contains(&entry::stub()) {
                TEXT_START.store(start, Ordering::Relaxed);
                TEXT_END.store(start + bytes, Ordering::Relaxed);
            }
        }
    }
}
