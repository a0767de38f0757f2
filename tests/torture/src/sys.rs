//! System calls as the workers use them, and the pieces that must be assembly: guarded accesses, a jump out of a
//! handler, vfork, threads by raw clone.

use crate::content::PAGE;
use crate::report::fail;
use core::arch::global_asm;
use std::ffi::c_void;
use std::io::Error;

pub const NONE: i32 = libc::PROT_NONE;
pub const READ: i32 = libc::PROT_READ;
pub const RW: i32 = libc::PROT_READ | libc::PROT_WRITE;
pub const RX: i32 = libc::PROT_READ | libc::PROT_EXEC;

const MAP: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

fn errno() -> i32 {
    Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Private anonymous memory anywhere.
pub fn map(pages: usize, prot: i32, flags: i32) -> usize {
    // SAFETY: a new mapping where the kernel likes.
    let at = unsafe { libc::mmap(core::ptr::null_mut(), pages * PAGE, prot, MAP | flags, -1, 0) };
    if at == libc::MAP_FAILED {
        fail(format_args!("mmap of {pages} pages, flags {flags:#x}: {}", Error::last_os_error()));
    }
    at as usize
}

/// Private anonymous memory over what this worker owns at `addr`.
pub fn map_over(addr: usize, pages: usize, prot: i32) {
    // SAFETY: the caller owns the range.
    let at = unsafe { libc::mmap(addr as *mut c_void, pages * PAGE, prot, MAP | libc::MAP_FIXED, -1, 0) };
    if at as usize != addr {
        fail(format_args!("mmap MAP_FIXED at {addr:#x}: {}", Error::last_os_error()));
    }
}

/// Private anonymous memory at `addr` if nothing is there.
pub fn map_hole(addr: usize, pages: usize, prot: i32) -> bool {
    let flags = MAP | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: replaces nothing.
    let at = unsafe { libc::mmap(addr as *mut c_void, pages * PAGE, prot, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        if errno() != libc::EEXIST {
            fail(format_args!("mmap MAP_FIXED_NOREPLACE at {addr:#x}: {}", Error::last_os_error()));
        }
        return false;
    }
    if at as usize != addr {
        fail(format_args!("mmap MAP_FIXED_NOREPLACE at {addr:#x} went to {:#x}", at as usize));
    }
    true
}

/// Unmaps what this worker owns.
pub fn unmap(addr: usize, pages: usize) {
    // SAFETY: the caller owns the range.
    if unsafe { libc::munmap(addr as *mut c_void, pages * PAGE) } != 0 {
        fail(format_args!("munmap {addr:#x}, {pages} pages: {}", Error::last_os_error()));
    }
}

/// Changes the protection of what this worker owns.
pub fn protect(addr: usize, pages: usize, prot: i32) {
    // SAFETY: the caller owns the range and models its protection.
    if unsafe { libc::mprotect(addr as *mut c_void, pages * PAGE, prot) } != 0 {
        fail(format_args!("mprotect {addr:#x}, {pages} pages, {prot}: {}", Error::last_os_error()));
    }
}

/// Advises; returns the error number, 0 for none.
pub fn advise(addr: usize, pages: usize, advice: i32) -> i32 {
    // SAFETY: the caller owns the range and models what the advice does to it.
    if unsafe { libc::madvise(addr as *mut c_void, pages * PAGE, advice) } == 0 { 0 } else { errno() }
}

/// Moves or resizes what this worker owns; `Err` holds the error number.
pub fn remap(addr: usize, old: usize, new: usize, flags: i32, to: usize) -> Result<usize, i32> {
    // SAFETY: the caller owns both ranges and models the move.
    let at = unsafe { libc::mremap(addr as *mut c_void, old * PAGE, new * PAGE, flags, to as *mut c_void) };
    if at == libc::MAP_FAILED { Err(errno()) } else { Ok(at as usize) }
}

/// Repeats a call while a signal interrupts it; fails the run on any other error.
pub fn must(what: &str, mut call: impl FnMut() -> isize) -> usize {
    loop {
        let n = call();
        if n >= 0 {
            return n as usize;
        }
        if errno() != libc::EINTR {
            fail(format_args!("{what}: {}", Error::last_os_error()));
        }
    }
}

/// Repeats a call while a signal interrupts it; returns its error number if it has one.
pub fn attempt(mut call: impl FnMut() -> isize) -> Result<usize, i32> {
    loop {
        let n = call();
        if n >= 0 {
            return Ok(n as usize);
        }
        if errno() != libc::EINTR {
            return Err(errno());
        }
    }
}

global_asm!(
    ".global torture_guarded_load, torture_guarded_store, torture_guarded_load_at, torture_guarded_store_at",
    ".global torture_guarded_fault, torture_call_with_jump, torture_vfork_exec, torture_clone_thread",
    // fn(addr rdi, out rsi) -> 0 read, 1 fault
    "torture_guarded_load:",
    "torture_guarded_load_at:",
    "mov al, byte ptr [rdi]",
    "mov byte ptr [rsi], al",
    "xor eax, eax",
    "ret",
    // fn(addr rdi, value sil) -> 0 written, 1 fault
    "torture_guarded_store:",
    "torture_guarded_store_at:",
    "mov byte ptr [rdi], sil",
    "xor eax, eax",
    "ret",
    "torture_guarded_fault:",
    "mov eax, 1",
    "ret",
    // fn(buffer rdi, function rsi, argument rdx) -> 0 returned, else what siglongjmp gave
    "torture_call_with_jump:",
    "push rbx",
    "push r12",
    "push r13",
    "mov rbx, rsi",
    "mov r12, rdx",
    "mov esi, 1",
    "call __sigsetjmp@PLT",
    "test eax, eax",
    "jnz 2f",
    "mov rdi, r12",
    "call rbx",
    "xor eax, eax",
    "2:",
    "pop r13",
    "pop r12",
    "pop rbx",
    "ret",
    // fn(path rdi, argv rsi, envp rdx) -> pid or -errno; the child runs on this stack and touches none of it
    "torture_vfork_exec:",
    "mov eax, 58",
    "syscall",
    "test rax, rax",
    "jnz 2f",
    "mov eax, 59",
    "syscall",
    "mov edi, 127",
    "mov eax, 231",
    "syscall",
    "ud2",
    "2:",
    "ret",
    // fn(args rdi: *const [u64; 7]): flags, stack, parent tid, child tid, tls, function, argument -> tid or -errno
    "torture_clone_thread:",
    "push r12",
    "push r13",
    "mov r12, qword ptr [rdi + 40]",
    "mov r13, qword ptr [rdi + 48]",
    "mov rsi, qword ptr [rdi + 8]",
    "mov rdx, qword ptr [rdi + 16]",
    "mov r10, qword ptr [rdi + 24]",
    "mov r8, qword ptr [rdi + 32]",
    "mov rdi, qword ptr [rdi]",
    "mov eax, 56",
    "syscall",
    "test rax, rax",
    "jnz 2f",
    "xor ebp, ebp",
    "mov rdi, r13",
    "call r12",
    "xor edi, edi",
    "mov eax, 60",
    "syscall",
    "ud2",
    "2:",
    "pop r13",
    "pop r12",
    "ret",
);

unsafe extern "C" {
    fn torture_guarded_load(addr: usize, out: *mut u8) -> i32;
    fn torture_guarded_store(addr: usize, value: u8) -> i32;
    static torture_guarded_load_at: u8;
    static torture_guarded_store_at: u8;
    static torture_guarded_fault: u8;
    fn torture_call_with_jump(buffer: *mut JumpBuffer, function: extern "C" fn(usize), argument: usize) -> i32;
    fn torture_vfork_exec(path: *const i8, argv: *const *const i8, envp: *const *const i8) -> isize;
    fn torture_clone_thread(args: *const [u64; 7]) -> isize;
    fn siglongjmp(buffer: *mut JumpBuffer, value: i32) -> !;
}

/// Reads one byte, or `None` where that is a segmentation fault.
pub fn guarded_load(addr: usize) -> Option<u8> {
    let mut value = 0;
    // SAFETY: a fault at the load is turned into the result by `guard_handler`.
    (unsafe { torture_guarded_load(addr, &mut value) } == 0).then_some(value)
}

/// Writes one byte; false where that is a segmentation fault.
pub fn guarded_store(addr: usize, value: u8) -> bool {
    // SAFETY: a fault at the store is turned into the result by `guard_handler`; the caller owns the byte.
    unsafe { torture_guarded_store(addr, value) == 0 }
}

/// The handler of SIGSEGV: a guarded access reports its fault, any other ends the run.
pub extern "C" fn guard_handler(signal: i32, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel hands a handler valid pointers.
    let (info, context) = unsafe { (&*info, &mut *context.cast::<libc::ucontext_t>()) };
    let rip = &mut context.uc_mcontext.gregs[libc::REG_RIP as usize];
    let is = |label: *const u8| *rip as usize == label as usize;
    let load = &raw const torture_guarded_load_at;
    let store = &raw const torture_guarded_store_at;
    let fault = &raw const torture_guarded_fault;
    if signal == libc::SIGSEGV && (is(load) || is(store)) {
        *rip = fault as i64;
        return;
    }
    // SAFETY: SIGSEGV, SIGBUS and SIGILL carry an address.
    let addr = unsafe { info.si_addr() } as usize;
    fail(format_args!("unexpected signal {signal}, code {}, address {addr:#x}, at rip {:#x}", info.si_code, *rip));
}

/// Room for glibc's `sigjmp_buf` (200 bytes on x86-64).
#[repr(C, align(16))]
pub struct JumpBuffer([u64; 32]);

impl JumpBuffer {
    pub const fn new() -> Self {
        Self([0; 32])
    }
}

/// Calls `function(argument)`; true when a handler jumped out of it with [`jump`].
pub fn call_with_jump(buffer: *mut JumpBuffer, function: extern "C" fn(usize), argument: usize) -> bool {
    // SAFETY: `function` keeps nothing on its frames that would need dropping.
    unsafe { torture_call_with_jump(buffer, function, argument) != 0 }
}

/// Leaves a handler to the place that [`call_with_jump`] saved.
///
/// # Safety
/// That call must still be running, on this thread.
pub unsafe fn jump(buffer: *mut JumpBuffer) -> ! {
    // SAFETY: promised by the caller.
    unsafe { siglongjmp(buffer, 1) }
}

/// vfork and execve, nothing between them; the pid or a negative error number.
pub fn vfork_exec(path: *const i8, argv: *const *const i8, envp: *const *const i8) -> isize {
    // SAFETY: the child only calls execve with strings and arrays that outlive it, then exits.
    unsafe { torture_vfork_exec(path, argv, envp) }
}

/// Starts a thread by the clone system call alone; its id, or a negative error number.
///
/// # Safety
/// The stack, the thread-local block and what `function` uses must outlive the thread.
pub unsafe fn clone_thread(args: &[u64; 7]) -> isize {
    // SAFETY: promised by the caller.
    unsafe { torture_clone_thread(args) }
}

/// Installs a handler with the given flags; the mask stays empty.
pub fn on_signal(signal: i32, handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut c_void), flags: i32) {
    on_signal_without(signal, handler, flags, None);
}

/// The same; while the handler runs, signal `masked` waits, too.
pub fn on_signal_without(
    signal: i32,
    handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut c_void),
    flags: i32,
    masked: Option<i32>,
) {
    // SAFETY: zero is a valid sigaction; the handler is async-signal-safe.
    unsafe {
        let mut action: libc::sigaction = core::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | flags;
        masked.map(|masked| libc::sigaddset(&raw mut action.sa_mask, masked));
        if libc::sigaction(signal, &action, core::ptr::null_mut()) != 0 {
            fail(format_args!("sigaction {signal}: {}", Error::last_os_error()));
        }
    }
}
