//! Threads and processes: all forms of clone.
//!
//! * A child that shares the memory (thread, vfork, posix_spawn) starts on a block of its own, which its parent
//!   prepares. It makes the block current, arms itself and returns into the program through a copy of the parent's
//!   signal frame. It never touches the parent's stack. A child that is another process has signal actions of its own,
//!   as in the kernel; its block is freed when its parent's vfork returns, or when it exits.
//! * A child with a copy of the memory returns from the handler in which its parent makes it; the engine gives it a
//!   userfaultfd of its own first.

use crate::base::arguments::load_arguments;
use crate::base::frame::Context;
use crate::base::outcome::Outcome;
use crate::base::{calls, signum, text, user};
use crate::kept::{lifeline, listener};
use crate::kept::{owner, shown, texts};
use crate::process::tasks::{self, LIVE};
use crate::signals::{first, masks, traced};
use crate::threads::actions;
use crate::threads::thread::{self, ThreadBlock};
use core::arch::global_asm;
use core::ptr;
use core::sync::atomic::Ordering;
use ebb::{Space, uapi};
use linux_raw_sys::{errno as e, general as g};

const CLONE_VM: u64 = g::CLONE_VM as u64;
const CLONE_VFORK: u64 = g::CLONE_VFORK as u64;
const CLONE_THREAD: u64 = g::CLONE_THREAD as u64;
const CLONE_SIGHAND: u64 = g::CLONE_SIGHAND as u64;
const CLONE_PIDFD: u64 = g::CLONE_PIDFD as u64;
const CLONE_PARENT_SETTID: u64 = g::CLONE_PARENT_SETTID as u64;
const CLONE_CHILD_CLEARTID: u64 = g::CLONE_CHILD_CLEARTID as u64;
const CLONE_CHILD_SETTID: u64 = g::CLONE_CHILD_SETTID as u64;
const CLONE_CLEAR_SIGHAND: u64 = 0x1_0000_0000;
const CSIGNAL: u64 = 0xff;

const EAGAIN: i64 = -(e::EAGAIN as i64);
const EFAULT: i64 = -(e::EFAULT as i64);
const EINVAL: i64 = -(e::EINVAL as i64);
const E2BIG: i64 = -(e::E2BIG as i64);

/// Size of `struct clone_args` in all versions so far, in bytes.
const CLONE_ARGS_BYTES: usize = 88;
const CLONE_ARGS_BYTES_MIN: usize = 64;
type CloneArgs = [u64; CLONE_ARGS_BYTES / 8];
const FLAGS: usize = 0;
const PIDFD: usize = 1;
const CHILD_TID: usize = 2;
const PARENT_TID: usize = 3;
const STACK: usize = 5;
const STACK_SIZE: usize = 6;
const SET_TID: usize = 8;
const SET_TID_SIZE: usize = 9;

/// A request to make a child.
#[derive(Clone, Copy)]
struct Request {
    nr: u32,
    flags: u64,
    child_tid: u64,
    /// What the kernel writes in the parent (tid, pidfd), and the array that it reads: address and bytes of each.
    touched: [(u64, usize); 3],
    /// The child's stack pointer; 0 for the parent's.
    sp: u64,
    /// Lowest address of the child's stack where it is known.
    stack_start: u64,
    /// The registers for the kernel, unless the call is clone3.
    registers: [u64; 6],
    /// The structure for the kernel, if the call is clone3.
    structure: CloneArgs,
    structure_bytes: usize,
}

impl Request {
    fn parse(nr: u32, a: &[u64; 6]) -> Result<Self, i64> {
        let none = [(0, 0); 3];
        let zero = [0u64; CLONE_ARGS_BYTES / 8];
        Ok(match nr {
            g::__NR_clone3 => {
                let bytes = a[1] as usize;
                if bytes > ebb::PAGE {
                    return Err(E2BIG);
                }
                if bytes < CLONE_ARGS_BYTES_MIN {
                    return Err(EINVAL);
                }
                let mut s = zero;
                let known = bytes.min(CLONE_ARGS_BYTES);
                let mut raw = [0u8; CLONE_ARGS_BYTES];
                user::read_bytes(a[0], &mut raw[..known]).map_err(|_| EFAULT)?;
                for (word, chunk) in s.iter_mut().zip(raw.chunks_exact(8)) {
                    let mut b = [0u8; 8];
                    b.copy_from_slice(chunk);
                    *word = u64::from_ne_bytes(b);
                }
                // Whatever a newer program asks for beyond the known fields must be zero.
                for at in known..bytes {
                    if user::read::<u8>(a[0].wrapping_add(at as u64)).map_err(|_| EFAULT)? != 0 {
                        return Err(E2BIG);
                    }
                }
                if !is_stack_valid(s[STACK], s[STACK_SIZE]) {
                    return Err(EINVAL);
                }
                let flags = s[FLAGS];
                let mut touched = none;
                if flags & CLONE_PARENT_SETTID != 0 {
                    touched[0] = (s[PARENT_TID], 4);
                }
                if flags & CLONE_PIDFD != 0 {
                    touched[1] = (s[PIDFD], 4);
                }
                touched[2] = (s[SET_TID], (s[SET_TID_SIZE] as usize).min(64) * 4);
                Self {
                    nr,
                    flags,
                    child_tid: s[CHILD_TID],
                    touched,
                    sp: if s[STACK] == 0 { 0 } else { s[STACK] + s[STACK_SIZE] },
                    stack_start: s[STACK],
                    registers: [0; 6],
                    structure: s,
                    structure_bytes: known,
                }
            }
            g::__NR_clone => {
                let flags = a[0] & 0xffff_ffff & !CSIGNAL;
                let mut touched = none;
                if flags & (CLONE_PARENT_SETTID | CLONE_PIDFD) != 0 {
                    touched[0] = (a[2], 4);
                }
                Self {
                    nr,
                    flags,
                    child_tid: a[3],
                    touched,
                    sp: a[1],
                    stack_start: 0,
                    registers: *a,
                    structure: zero,
                    structure_bytes: 0,
                }
            }
            _ => Self {
                nr,
                flags: if nr == g::__NR_vfork { CLONE_VM | CLONE_VFORK } else { 0 },
                child_tid: 0,
                touched: none,
                sp: 0,
                stack_start: 0,
                registers: [0; 6],
                structure: zero,
                structure_bytes: 0,
            },
        })
    }

    /// Takes flags out of what the kernel sees. Only flags that the kernel would accept: it must see those that it refuses.
    fn drop_flags(&mut self, flags: u64) {
        self.structure[FLAGS] &= !flags;
        self.registers[0] &= !flags;
    }

    /// Makes the kernel start the child with the parent's stack pointer.
    fn drop_stack(&mut self) {
        self.structure[STACK] = 0;
        self.structure[STACK_SIZE] = 0;
        self.registers[1] = 0;
    }

    /// The call's number and registers.
    fn call(&self) -> (u64, [u64; 6]) {
        match self.nr {
            g::__NR_clone3 => {
                (self.nr as u64, [self.structure.as_ptr() as u64, self.structure_bytes as u64, 0, 0, 0, 0])
            }
            _ => (self.nr as u64, self.registers),
        }
    }
}

/// Whether clone3 would accept a stack (`clone3_stack_valid` in `kernel/fork.c`). The agent checks this, because a
/// child with a copy of the memory does not get its stack from the kernel.
fn is_stack_valid(at: u64, bytes: u64) -> bool {
    const USER_END: u64 = 0x7fff_ffff_f000;
    if at == 0 { bytes == 0 } else { bytes != 0 && at.checked_add(bytes).is_some_and(|end| end <= USER_END) }
}

/// clone(2), clone3(2), fork(2), vfork(2).
pub fn clone(space: &'static Space, b: &ThreadBlock, uc: &mut Context, nr: u32, a: &[u64; 6]) -> Outcome {
    let request = match Request::parse(nr, a) {
        Ok(request) => request,
        Err(errno) => return Outcome::Done(errno),
    };
    // The kernel does not say so when it cannot write one of these. It writes one of them only when the child ends.
    space.pin_begin(b.ctx(), uc.regs.sp);
    for (at, bytes) in request.touched {
        if at != 0 && bytes != 0 {
            space.pin_add(b.ctx(), at as usize, bytes);
        }
    }
    if request.flags & (CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID) != 0 && request.child_tid != 0 {
        space.pin_add(b.ctx(), request.child_tid as usize, 4);
        if request.flags & CLONE_CHILD_CLEARTID != 0 && space.is_managed(request.child_tid as usize) {
            space.exclude(b.ctx(), request.child_tid as usize, 4);
        }
    }
    let ret =
        if request.flags & CLONE_VM != 0 { share_memory(space, b, uc, request) } else { copy(space, b, uc, request) };
    space.pin_end(b.ctx());
    Outcome::Done(ret)
}

/// Makes a child that shares the memory.
fn share_memory(space: &'static Space, b: &ThreadBlock, uc: &Context, mut request: Request) -> i64 {
    let flags = request.flags;
    let Ok(block) = thread::alloc() else { return EAGAIN };
    // SAFETY: the block is this thread's until the child runs.
    let child = unsafe { &*block };
    let Some(ctx) = space.attach_thread() else {
        // SAFETY: nobody knows the block.
        unsafe { thread::free(block) };
        return EAGAIN;
    };
    let is_thread = flags & CLONE_THREAD != 0;
    if is_thread && flags & g::CLONE_FILES as u64 == 0 && !b.foreign.get() {
        space.note_own_tables();
    }
    child.ctx.set(ctx);
    child.made_by.set(b);
    child.blocked.set(b.blocked.get());
    child.foreign.set(!is_thread || b.foreign.get());
    child.tid_namespace.set(b.namespace.load(Ordering::Relaxed));
    child.namespace.store(b.namespace.load(Ordering::Relaxed), Ordering::Relaxed);
    child.version.store(b.version.load(Ordering::Relaxed), Ordering::Relaxed);
    child
        .shares_files
        .set(child.foreign.get() && flags & g::CLONE_FILES as u64 != 0 && (!b.foreign.get() || b.shares_files.get()));
    child.parent_frees.set(flags & CLONE_VFORK != 0 && !is_thread);
    if flags & CLONE_VFORK != 0 {
        child.alt.set(b.alt.get());
    }
    if flags & CLONE_SIGHAND != 0 {
        child.table.set(b.table.get());
    } else {
        child.own_table.copy_from(b.table());
        child.table.set(&raw const child.own_table);
        child.resets_actions.set(flags & CLONE_CLEAR_SIGHAND != 0);
        // The kernel would take the agent's handlers away, too.
        request.drop_flags(CLONE_CLEAR_SIGHAND);
    }
    child.set_start(uc, request.sp);
    if request.stack_start != 0 {
        child.stack_start.set(request.stack_start + 4096);
        child.stack_end.set(request.sp);
    } else if request.sp == 0 {
        child.stack_start.set(b.stack_start.get());
        child.stack_end.set(b.stack_end.get());
    }
    let counted = is_thread && !child.foreign.get();
    if counted {
        LIVE.fetch_add(1, Ordering::Relaxed);
    }
    let parent_frees = child.parent_frees.get();
    let foreign = child.foreign.get();
    let (nr, registers) = request.call();
    // Make vfork as clone: its child must not come back on this stack.
    let (nr, registers) = if nr == g::__NR_vfork as u64 {
        (g::__NR_clone as u64, [CLONE_VM | CLONE_VFORK | g::SIGCHLD as u64, 0, 0, 0, 0, 0])
    } else {
        (nr, registers)
    };
    let serial = child.serial;
    // No signal at all may find the child before it is on its own block and stack.
    masks::set_kernel_mask(u64::MAX);
    // SAFETY: the block is prepared; every signal is blocked.
    let ret = unsafe { clone_on(nr, &registers, block) };
    masks::set_kernel_mask(signum::FULL_MASK);
    if ret < 0 {
        if counted {
            LIVE.fetch_sub(1, Ordering::Relaxed);
        }
        space.detach_thread(ctx);
        // SAFETY: no child came of it.
        unsafe { thread::free(block) };
    } else if parent_frees {
        // SAFETY: the child is gone or has another address space: nobody uses the block but this thread.
        unsafe {
            space.outlive(ctx, thread::number_of_child(&*block, ret as i32));
            thread::release_scratch(&*block);
            space.detach_thread(ctx);
            thread::free(block);
        }
    } else if foreign {
        thread::set_number(block, serial, ret as i32);
    }
    ret
}

global_asm!(
    ".pushsection .text.ebb_entry,\"ax\",@progbits",
    // rdi: number, rsi: six arguments, rdx: the child's block. The child touches no stack but its own.
    ".p2align 4",
    ".cfi_startproc",
    ".globl ebb_clone",
    ".hidden ebb_clone",
    ".type ebb_clone,@function",
    "ebb_clone:",
    "push r12",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_rel_offset r12, 0",
    "mov r12, rdx",
    "mov rax, rdi",
    "mov r11, rsi",
    load_arguments!("r11"),
    "syscall",
    "test rax, rax",
    "jz 2f",
    "pop r12",
    ".cfi_adjust_cfa_offset -8",
    ".cfi_restore r12",
    "ret",
    ".cfi_undefined rip",
    "2: mov rsp, r12",
    "xor ebp, ebp",
    "mov rdi, r12",
    "call {child_main}",
    "mov rsp, rax",
    "mov eax, {sigreturn}",
    "syscall",
    "ud2",
    ".cfi_endproc",
    ".size ebb_clone, . - ebb_clone",
    ".popsection",
    sigreturn = const g::__NR_rt_sigreturn,
    child_main = sym child_main,
);

unsafe extern "C" {
    fn ebb_clone(nr: u64, args: *const u64, block: *mut core::ffi::c_void) -> i64;
}

/// Performs clone or clone3 so that the child starts at [`child_main`], on `block`'s stack.
///
/// # Safety
/// The block must be prepared and belong to the child alone; every signal must be blocked.
unsafe fn clone_on(nr: u64, args: &[u64; 6], block: *mut ThreadBlock) -> i64 {
    // SAFETY: forwarded contract.
    unsafe { ebb_clone(nr, args.as_ptr(), block.cast()) }
}

/// Begins a new thread, on its block's stack with every signal blocked. Returns the frame to return to.
pub unsafe extern "C" fn child_main(block: *mut ThreadBlock) -> *const Context {
    // SAFETY: the block is this thread's from here on.
    unsafe {
        let b = &*block;
        thread::set_current(block, b.made_by.get());
        if b.foreign.get() {
            thread::note_namespace(b);
        }
        if b.resets_actions.get() {
            b.table().clear_handlers();
        }
        if calls::arm().is_err() {
            text::Line::new()
                .str("ebb: cannot intercept the system calls of a new thread: prctl failed; ")
                .str("report this as a bug in Ebb\n")
                .write();
            uapi::exit_group(125);
        }
        if let Some(space) = crate::base::here::space() {
            ebb::stats::add(&space.stats().threads, 1);
        }
        &raw const (*b.start.get()).context
    }
}

/// Makes a child with a copy of the memory.
fn copy(space: &'static Space, b: &ThreadBlock, uc: &mut Context, mut request: Request) -> i64 {
    let clears = request.flags & CLONE_CLEAR_SIGHAND != 0;
    // A parent that waits for its child's exec would hold up every other thread at the gate meanwhile. A child with
    // memory of its own does not need its parent to wait. Nor can two processes with memories of their own share
    // descriptors: each has a userfaultfd and files of its own.
    request.drop_flags(CLONE_CLEAR_SIGHAND | CLONE_VFORK | g::CLONE_FILES as u64);
    // The child comes back in this very handler; its stack pointer is set in the frame.
    request.drop_stack();
    let (nr, registers) = request.call();
    if !space.may_fork() {
        return -(e::EMFILE as i64);
    }
    space.make_fork_room(b.ctx());
    // With the locks held, whatever they protect is whole in the child.
    let table = b.table().lock().lock();
    let arena = thread::arena_lock().lock();
    let texts = texts::texts_lock().lock();
    let shown = shown::texts_lock().lock();
    space.fork_prepare(b.ctx());
    // A signal that is sent to the child waits in the kernel until the child has cleared its copy of the parent's
    // queue. Otherwise SIGBUS and SIGSEGV, which the agent takes at any time, would be cleared, too. Nobody touches the
    // program's memory until then.
    let mask = masks::set_kernel_mask(u64::MAX);
    // SAFETY: the child's memory is a copy; the child goes on below.
    let ret = unsafe { calls::raw_syscall(nr, &registers) };
    if ret == 0 {
        b.queue().clear();
    }
    masks::set_kernel_mask(mask);
    if ret != 0 {
        space.fork_parent(ret > 0);
        return ret;
    }
    // This comes first: the next file that is opened here may get a number that the parent was about to close.
    listener::in_child();
    tasks::in_child(b);
    // The thread that did is not in this process.
    owner::GIVES_UP.store(false, Ordering::Relaxed);
    if space.fork_child(b.ctx()).is_err() {
        text::Line::new()
            .str("ebb: cannot manage a child of fork: the kernel refuses userfaultfd or memory; raise the limits ")
            .str("on open files (ulimit -n) and address space (ulimit -v)\n")
            .write();
        uapi::exit_group(125);
    }
    thread::keep_only(b);
    drop(shown);
    drop(texts);
    drop(arena);
    drop(table);
    lifeline::arm();
    if !ptr::eq(b.table.get(), &actions::PROCESS) {
        // SAFETY: the thread that held it is not in this process; whatever it did to the table is replaced as a whole.
        unsafe { actions::PROCESS.lock().reset() };
        actions::PROCESS.copy_from(b.table());
        b.table.set(&actions::PROCESS);
    }
    b.foreign.set(false);
    b.namespace.store(0, Ordering::Relaxed);
    thread::set_owner();
    first::set(b);
    b.shares_files.set(false);
    b.parent_frees.set(false);
    traced::in_child(b);
    b.scratch.set(0);
    LIVE.store(1, Ordering::Relaxed);
    if clears {
        b.table().clear_handlers();
    }
    if calls::arm().is_err() {
        text::Line::new()
            .str("ebb: cannot intercept the system calls of a child of fork: prctl failed; ")
            .str("report this as a bug in Ebb\n")
            .write();
        uapi::exit_group(125);
    }
    if request.sp != 0 {
        uc.regs.sp = request.sp;
        b.stack_start.set(0);
        b.stack_end.set(0);
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_request_names_what_the_kernel_touches() {
        let flags = CLONE_VM | CLONE_THREAD | CLONE_PARENT_SETTID;
        let request = Request::parse(g::__NR_clone, &[flags, 0x7000, 0x1234, 0x5678, 0, 0]);
        assert!(request.is_ok_and(|r| r.touched[0] == (0x1234, 4) && r.sp == 0x7000 && r.child_tid == 0x5678));
    }

    #[test]
    fn a_stack_that_the_kernel_refuses_is_refused() {
        assert!(is_stack_valid(0, 0) && is_stack_valid(0x7fff_ffff_e000, 0x1000));
        for (at, bytes) in
            [(0x1000, 0), (0, 4), (0xffff_8000_0000_0000, 4096), (0x7fff_ffff_e000, 1 << 40), (8, u64::MAX)]
        {
            assert!(!is_stack_valid(at, bytes), "{at:x} {bytes:x}");
        }
    }

    #[test]
    fn the_signal_of_clone_is_no_flag() {
        let request = Request::parse(g::__NR_clone, &[g::SIGCHLD as u64, 0, 0, 0, 0, 0]);
        assert!(request.is_ok_and(|r| r.flags == 0));
    }

    #[test]
    fn a_dropped_stack_is_not_the_kernels_business() {
        let mut request = Request::parse(g::__NR_clone, &[0, 0x7000, 0, 0, 0, 0]).ok();
        if let Some(r) = request.as_mut() {
            r.drop_stack();
        }
        assert!(request.is_some_and(|r| r.call().1[1] == 0 && r.sp == 0x7000));
    }
}
