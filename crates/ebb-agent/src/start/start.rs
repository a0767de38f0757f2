//! The start, in two parts. The constructor keeps what the environment says and leaves the process dormant (`dormant`).
//! Activation makes the space and arms the first thread. Where a process cannot be dormant, both come at once.
//!
//! Without `EBB_RAM` the library does nothing at all. A start that fails says why and ends the process with status 125,
//! because a program that silently runs without its limit is worse than one that does not run.

#[cfg(feature = "events")]
use crate::base::contract;
use crate::base::contract::{Early, Misread, Settings};
use crate::base::entries::{self, Entries};
use crate::base::frame::AltStack;
use crate::base::here::{self, SPACE, TEXT_END, TEXT_START};
use crate::base::text::Line;
use crate::base::{calls, outside, relocations, signum};
use crate::dormant::state::{self, Auxv};
use crate::handlers::{fault, signal, sigsys};
use crate::kept::stats;
use crate::kept::stats::map_stats;
use crate::kept::{environment, fds, leaving, lifeline, marks, refused, shown};
use crate::process::{control, exec, tasks};
use crate::signals::{delivery, first, masks};
use crate::start::takeover::{Found, unlock_future};
use crate::syscalls::proc_files::ram;
use crate::syscalls::{interpose, memory};
use crate::threads::{actions, entry, stack, thread};
use core::ffi::CStr;
use core::sync::atomic::{AtomicU64, Ordering};
use ebb::stats::Shared;
use ebb::{Config, DEVICES_MAX, InitError, Space, SwapSpec, uapi};
use linux_raw_sys::general as g;

/// Called by the dynamic linker with the arguments of `main`.
#[cfg(not(test))]
extern "C" fn constructor(_argc: i32, _argv: *const *const i8, envp: *const *const i8) {
    // SAFETY: the dynamic linker passes the process's environment, before a second thread exists.
    unsafe { start(envp.cast()) }
}

// The loader finds the constructor by its offset (`DT_INIT`), not in a table of addresses, which would have to be
// relocated (`relocations`).
#[cfg(not(test))]
core::arch::global_asm!(
    ".pushsection .text.ebb_entry,\"ax\",@progbits",
    ".p2align 4",
    ".globl ebb_init",
    ".hidden ebb_init",
    ".type ebb_init,@function",
    "ebb_init:",
    // Names the function below, so that the loader calls it.
    "mov rax, qword ptr [rip + ebb_resolve@GOTPCREL]",
    "jmp {constructor}",
    ".size ebb_init, . - ebb_init",
    // The loader calls this to learn the address of a function, as soon as it has relocated this library: before that of the
    // program, whose own such functions may call what this library interposes, and before any constructor.
    ".p2align 4",
    ".hidden ebb_resolve",
    ".type ebb_resolve,@gnu_indirect_function",
    "ebb_resolve:",
    "push rax",
    "call {relocate}",
    "pop rcx",
    "lea rax, [rip + ebb_init]",
    "ret",
    ".size ebb_resolve, . - ebb_resolve",
    ".popsection",
    relocate = sym relocations::apply_to_calls,
    constructor = sym constructor,
);

/// Ends the process with status 125 after one line of explanation.
fn fail(line: &mut Line) -> ! {
    relocations::apply();
    line.str("\n").write();
    uapi::exit_group(125)
}

/// # Safety
/// `envp` must be the environment as the kernel laid it out, with the auxiliary vector behind it. There must be no
/// second thread.
#[cfg_attr(test, expect(dead_code, reason = "only the dynamic linker calls the constructor"))]
unsafe fn start(envp: *const *const core::ffi::c_char) {
    // SAFETY: no second thread exists.
    let kept = unsafe { environment::kept_at_start() };
    let mut at = envp;
    // SAFETY: the environment ends with a null pointer; each entry is a string.
    while let Some(var) = unsafe { at.read().as_ref() } {
        // SAFETY: as above.
        if environment::concerns(unsafe { *core::ptr::from_ref(var).cast::<u8>() })
            // SAFETY: as above.
            && kept.offer(unsafe { CStr::from_ptr(var) }.to_bytes()).is_err()
        {
            fail(Line::new().str("ebb: environment: LD_PRELOAD or an EBB_ variable is too long; shorten it"));
        }
        // SAFETY: not past the null pointer.
        at = unsafe { at.add(1) };
    }
    let early = match Early::of(kept.vars()) {
        Ok(Some(early)) => early,
        Ok(None) => return,
        Err(name) => not_understood(name.into()),
    };
    uapi::stderr::know(early.stderr);
    if let Some(bytes) = early.show_ram_bytes {
        shown::set(bytes);
    }
    // SAFETY: the auxiliary vector follows the null pointer.
    let auxv = unsafe { read_auxv(at.add(1).cast()) };
    thread::set_has_fsgsbase(auxv.has_fsgsbase);
    STACK_END.store(auxv.stack_end, Ordering::Relaxed);
    // The number may be another file's by now.
    if let Some(fd) = early.stats_fd.filter(|fd| stats::file_bytes(*fd) >= Shared::MAP_BYTES as u64) {
        fds::protect_stats(fd);
    }
    // SAFETY: by the constructor.
    let is_dormant = unsafe { state::begin(&early, &auxv) };
    if !is_dormant {
        relocations::apply();
        begin_managed(&early);
    } else {
        tell_begun(&early);
        if let Some(ends) = &early.life_ends {
            lifeline::start(ends);
        }
    }
}

/// Makes a process that cannot be dormant a managed one, before its program begins.
#[inline(never)]
fn begin_managed(early: &Early<'_>) {
    // The mask as it was at the start of the program: Ebb has blocked nothing yet.
    let mask = masks::set_kernel_mask(signum::FULL_MASK);
    match refused::by_inherited(early.life_ends.as_ref().map_or(0, |ends| ends.holder)) {
        Some(name) => {
            leaving::take_place(0);
            refused::say(name);
        }
        None => activate(mask, Found::read(state::is_alone()), false),
    }
    if let Some(ends) = &early.life_ends {
        lifeline::start(ends);
    }
    masks::set_kernel_mask(signum::kernel_part(mask));
}

/// Tells `ebb` that the agent runs in the program that it started, which may never grow. Other processes do not tell
/// it, because in a small program each system call counts.
fn tell_begun(early: &Early<'_>) {
    let is_first = early.life_ends.as_ref().is_some_and(|ends| uapi::getppid() == ends.holder);
    if let Some(fd) = early.stats_fd.filter(|fd| is_first && stats::file_bytes(*fd) >= Shared::MAP_BYTES as u64) {
        // If this fails and the program never grows, `ebb` wrongly says at the end that the loader did not start the agent.
        let _ = uapi::pwrite_all(fd, &1u32.to_ne_bytes(), core::mem::offset_of!(Shared, has_begun) as u64);
    }
}

/// Address at which the stack of the first thread ends.
static STACK_END: AtomicU64 = AtomicU64::new(0);

/// How much is shown of an entry that there is not.
const ENTRY_BYTES_SHOWN: usize = 48;

fn not_understood(misread: Misread<'_>) -> ! {
    let mut line = Line::new();
    line.str("ebb: ").str(misread.name);
    if misread.entry.is_empty() {
        fail(line.str(": invalid value; start the program with `ebb run`"))
    }
    // A long one must leave room for what to do.
    let entry = &misread.entry[..misread.entry.len().min(ENTRY_BYTES_SHOWN)];
    fail(line.str(": there is no `").bytes(entry).str("`; docs/contract.md lists what there is"))
}

/// Activates a process that runs, with the program's signal mask `mask`. Returns the mask for the kernel to have
/// instead. All signals must be blocked, and no stack but the dormant one in use.
pub fn activate_running(mask: u64) -> u64 {
    let found = Found::read(false);
    if found.as_ref().is_some_and(|found| found.has_ring) {
        fail(Line::new().str(
            "ebb: io_uring: the program created a ring that Ebb did not notice; run it with EBB_FORCE=no-dormant",
        ));
    }
    unlock_future(found.as_ref());
    activate(mask, found, true);
    signum::kernel_part(mask)
}

/// Makes this process a managed one. `found`: what memory it has, as far as that can be told. `is_running`: whether the
/// program has begun. `mask`: the program's mask. Every signal must be blocked.
fn activate(mask: u64, found: Option<Found>, is_running: bool) {
    let mut settings = Settings::default();
    for var in environment::kept_vars() {
        if let Err(misread) = settings.offer(var) {
            not_understood(misread);
        }
    }
    find_text();
    here::find_written();
    memory::take_over_merge();
    entries::set(&Entries {
        bus: fault::on_sigbus as *const () as u64,
        segv: fault::on_sigsegv as *const () as u64,
        sys: sigsys::on_sigsys as *const () as u64,
        other: signal::on_signal as *const () as u64,
    });
    if let Err(errno) = actions::take_over() {
        fail(
            Line::new()
                .str("ebb: cannot install signal handlers (errno ")
                .num(errno.0 as u64)
                .str("); report this as a bug in Ebb"),
        );
    }
    let space = make_space(&settings, is_running);
    memory::look_at_thp(space);
    let Ok(block) = thread::alloc() else {
        fail(Line::new().str("ebb: no memory for the first thread; raise the limit on address space (ulimit -v)"));
    };
    // SAFETY: the block is this thread's.
    let b = unsafe { &*block };
    let Some(ctx) = space.attach_thread() else {
        fail(Line::new().str("ebb: no context for the first thread; report this as a bug in Ebb"));
    };
    b.ctx.set(ctx);
    exec::start_main(b, STACK_END.load(Ordering::Relaxed));
    b.blocked.set(signum::virtual_part(mask));
    b.open.store(!mask, Ordering::Relaxed);
    // SAFETY: nobody else uses the block.
    unsafe { thread::set_current(block, core::ptr::null()) };
    let (stack, mut old) = (b.stack(), AltStack::default());
    // SAFETY: the kernel reads and writes one structure each; the stack is the block's own. A handler of the program's
    // may run on the old stack, but this code does not.
    let ret = unsafe {
        let args = [&raw const stack as u64, &raw mut old as u64, 0, 0, 0, 0];
        calls::raw_syscall(g::__NR_sigaltstack as u64, &args)
    };
    if ret != 0 {
        fail(
            Line::new()
                .str("ebb: cannot set the signal stack (errno ")
                .num(-ret as u64)
                .str("); report this as a bug in Ebb"),
        );
    }
    delivery::take_over_stack(b, &old);
    space.answer_asks(control::start);
    space.background().ask_before_start(tasks::may_start);
    if state::has_forked() {
        space.note_forked();
    }
    SPACE.store(core::ptr::from_ref(space).cast_mut(), Ordering::Release);
    thread::set_owner();
    first::set(b);
    ebb::killable::set_fatal(masks::fatal);
    b.tell_alt_stack();
    ebb::stats::add(&space.stats().threads, 1);
    if let Err(errno) = calls::arm() {
        fail(
            Line::new().str("ebb: the kernel refuses Syscall User Dispatch (errno ").num(errno.0 as u64).str(
                "); use Linux 5.11 or later, and allow prctl(PR_SET_SYSCALL_USER_DISPATCH) in every seccomp filter",
            ),
        );
    }
    if shown::is_on() {
        ram::find_meminfo();
    }
    // A program may inherit a file that tells how much RAM there is.
    if is_running || shown::is_on() {
        marks::mark_earlier();
    }
    if let Some(found) = found {
        let ctx = b.ctx();
        stack::on_own(b, || {
            found.take_over(space);
            space.make_taken_fit(ctx);
        });
    }
    interpose::set_enabled(settings.interposes);
}

/// Approximate minimum of the limit on address space that leaves Ebb room beside a small program, in bytes. Some of
/// Ebb's tables are as large as the limit allows, and some grow with the budget.
fn limit_for(ram_bytes: u64) -> u64 {
    const FIXED_BYTES: u64 = 1350 << 20;
    (FIXED_BYTES + ram_bytes).max(ram_bytes / 20 * 67)
}

/// Begins to record what happens to each page, if the environment says so: `EBB_EVENTS` is the beginning of the file's path,
/// and the process's number its end. `EBB_EVENTS_FILTER` is the number of pages to keep mapped.
#[cfg(feature = "events")]
fn begin_events() {
    let of = |name: &[u8]| environment::kept_vars().find_map(|var| var.strip_prefix(name));
    let Some(path) = of(b"EBB_EVENTS=") else { return };
    let mut name = Line::new();
    name.bytes(path).str(".").num(uapi::getpid() as u64).bytes(&[0]);
    let name = CStr::from_bytes_until_nul(name.as_bytes()).unwrap_or_default();
    if let Err(errno) = ebb::events::begin(name) {
        fail(Line::new().str("ebb: EBB_EVENTS: cannot make the file (errno ").num(errno.0 as u64).str(")"));
    }
    if let Some(pages) = of(b"EBB_EVENTS_FILTER=").and_then(contract::number) {
        ebb::events::set_filter(pages as usize);
    }
}

fn make_space(settings: &Settings, is_running: bool) -> &'static Space {
    #[cfg(feature = "events")]
    begin_events();
    let mut devices = [SwapSpec { dir: c"", bytes: 0, priority: None, ..SwapSpec::DEFAULT }; DEVICES_MAX];
    let mut nr_devices = settings.devices(&mut devices);
    let stats = settings.stats_fd.and_then(map_stats);
    if is_running {
        Space::set_aside(settings.ram_bytes.unwrap_or(0), &devices[..nr_devices]);
    }
    let mut unmade = None;
    let (config, error) = loop {
        let config = Config {
            ram_bytes: settings.ram_bytes.unwrap_or(0),
            swap: &devices[..nr_devices],
            stats,
            stats_fd: stats.and(settings.stats_fd),
            force: settings.force,
        };
        match Space::create(&config) {
            Ok(space) => {
                uapi::stderr::count_in(&space.stats().messages_unsaid);
                if environment::kept_vars().any(|var| var == b"EBB_VERBOSE=2") {
                    uapi::stderr::want_details();
                }
                if !refused::may_fly() {
                    space.fly_no_more();
                }
                if let Some(errno) = unmade {
                    space.note_unmade_file(errno);
                }
                return space;
            }
            // A program that has begun may have become another user, or see other directories. Then what does not
            // compress stays in RAM, as in fork's child.
            Err(InitError::Spill(i, errno)) if is_running => {
                unmade = Some(errno);
                devices.copy_within(i + 1..nr_devices, i);
                nr_devices -= 1;
            }
            Err(error) => break (config, error),
        }
    };
    let mut line = Line::new();
    line.str("ebb: ");
    match error {
        InitError::BudgetTooSmall => {
            line.str("a budget of ").num(config.ram_bytes).str(" bytes is too small to run in; give at least ");
            line.num(ebb::RAM_BYTES_MIN >> 20).str(" MiB with --ram");
        }
        InitError::Userfaultfd(errno) => {
            line.str("the kernel refuses userfaultfd (errno ").num(errno.0 as u64);
            line.str("); run `ebb doctor` to see what blocks it");
        }
        InitError::AddressSpace(errno) => {
            let limit = uapi::address_space_limit();
            line.str("no address space for Ebb's tables (errno ").num(errno.0 as u64);
            line.str("); raise the limit (ulimit -v)");
            if limit == u64::MAX {
                line.str(", or set vm.overcommit_memory to 0 if it is 2");
            } else {
                line.str(" from ").num(limit >> 20).str(" MiB to ").num(limit_for(config.ram_bytes) >> 20);
                line.str(" MiB plus what the program needs, or give a smaller budget with --ram");
            }
        }
        InitError::Spill(i, errno) => {
            line.str("cannot create a spill file in ").bytes(config.swap[i].dir.to_bytes()).str(" (errno ");
            line.num(errno.0 as u64).str("); name another directory with --swap file:DIR, or use --swap none");
        }
        InitError::Processes => {
            line.str("more than ").num(ebb::tree::MEMBERS_MAX as u64);
            line.str(" processes share the budget; start fewer at a time");
        }
        InitError::Life => {
            line.str("fork: another thread closed one of Ebb's descriptors during the fork; ");
            line.str("close only descriptors that the program opened");
        }
        InitError::Threads => {
            line.str("more threads than Ebb has contexts for; report this as a bug in Ebb");
        }
    }
    fail(&mut line)
}

/// Reads what the kernel says of the process.
///
/// # Safety
/// `auxv` must be the auxiliary vector.
unsafe fn read_auxv(mut auxv: *const [u64; 2]) -> Auxv {
    const AT_NULL: u64 = 0;
    const AT_PHDR: u64 = 3;
    const AT_PHNUM: u64 = 5;
    const AT_HWCAP2: u64 = 26;
    const AT_MINSIGSTKSZ: u64 = 51;
    const HWCAP2_FSGSBASE: u64 = 1 << 1;
    let mut found = Auxv::default();
    loop {
        // SAFETY: the vector ends with AT_NULL.
        let [key, value] = unsafe { auxv.read() };
        match key {
            AT_NULL => {
                found.stack_end = auxv as u64;
                return found;
            }
            AT_PHDR => found.headers = value,
            AT_PHNUM => found.nr_headers = value as usize,
            AT_HWCAP2 => found.has_fsgsbase = value & HWCAP2_FSGSBASE != 0,
            AT_MINSIGSTKSZ => found.frame_bytes = value,
            _ => {}
        }
        // SAFETY: not past AT_NULL.
        auxv = unsafe { auxv.add(1) };
    }
}

/// Finds the part of the agent's code that may make system calls: its segment, up to the code whose calls are the
/// program's (`base::outside::outside`), or from behind that code on.
fn find_text() {
    let outside = outside::outside();
    let stub = entry::stub();
    let holds_stub = |&(start, end): &(u64, u64)| (start..end).contains(&stub);
    if let Some((start, end)) = here::own_segments().find(holds_stub) {
        let is_inside = start <= outside.0 && outside.1 <= end;
        let (start, end) = match is_inside {
            true if stub < outside.0 => (start, outside.0),
            true => (outside.1, end),
            false => (start, end),
        };
        TEXT_START.store(start, Ordering::Relaxed);
        TEXT_END.store(end, Ordering::Relaxed);
    }
}
