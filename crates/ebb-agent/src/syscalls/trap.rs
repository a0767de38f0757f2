//! System calls of the program, as Syscall User Dispatch hands them over.
//!
//! The SIGSYS handler decides what a call needs. Calls about the agent's own affairs (address space, signals, threads,
//! descriptors) it performs at once. Every other call it only prepares, and returns into `entry`'s stub, which makes
//! the call with the program's registers, stack and mask. So a call that waits holds nothing of the agent, and its
//! buffers' pins live on until the thread's next entry ([`masks::end_pins`]).

use crate::base::calls::{self, PR_SET_SYSCALL_USER_DISPATCH};
use crate::base::change::Change;
use crate::base::frame::Context;
use crate::base::outcome::Outcome;
use crate::base::{user, zerocopy};
use crate::guard::{self, After, Before, SpaceMemory, aio};
use crate::kept::{fds, marks, refused, shown};
use crate::process::{clone, exec, tasks};
use crate::signals::{delivery, masks, own, syscalls, traced};
use crate::syscalls::proc_files::{self, ram};
use crate::syscalls::{hints, memory, process_madvise};
use crate::threads::entry::{self, StubAt};
use crate::threads::thread::{self, ThreadBlock};
use core::sync::atomic::Ordering::Relaxed;
use ebb::{Space, stats};
use linux_raw_sys::{errno as e, general as g};

pub(crate) const SYS_USER_DISPATCH: i32 = 2;
pub(crate) const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
/// Bytes of a system-call instruction.
const CALL_BYTES: u64 = 2;
const PR_SET_TSC: u64 = 26;
const PR_SET_THP_DISABLE: u64 = 41;
const PR_SET_MEMORY_MERGE: u64 = 67;
const PR_GET_MEMORY_MERGE: u64 = 68;
const ARCH_SET_GS: u64 = 0x1001;
const ARCH_GET_GS: u64 = 0x1004;

pub(crate) const ENOSYS: i64 = -(e::ENOSYS as i64);
const EINVAL: i64 = -(e::EINVAL as i64);
const EFAULT: i64 = -(e::EFAULT as i64);
const EBADF: i64 = -(e::EBADF as i64);

pub(crate) fn dispatch(space: &'static Space, b: &ThreadBlock, uc: &mut Context, nr: u32, a: &[u64; 6]) -> Outcome {
    use Outcome::{Done, Forward, Set};
    if b.asks_to_be_traced.get() {
        traced::before_call(b, nr);
    }
    match nr {
        g::__NR_rt_sigreturn => {
            delivery::sigreturn(b, uc);
            Set
        }
        g::__NR_rt_sigprocmask => Done(syscalls::sigprocmask(b, uc, a)),
        g::__NR_rt_sigaction => Done(syscalls::sigaction(b, a)),
        g::__NR_rt_sigpending => Done(syscalls::sigpending(b, a)),
        g::__NR_sigaltstack => Done(delivery::sigaltstack(b, uc.regs.sp, a)),
        g::__NR_kill if own::is_for_another(b, uc, a, tasks::live()) => Done(own::kill(a)),
        g::__NR_rt_sigtimedwait => syscalls::sigtimedwait(b, a).map_or(Forward(*a), Done),
        g::__NR_rt_sigsuspend => masked(b, uc, *a, 0, false),
        g::__NR_ppoll => masked(b, uc, *a, 3, false),
        g::__NR_epoll_pwait | g::__NR_epoll_pwait2 => masked(b, uc, *a, 4, false),
        g::__NR_pselect6 | g::__NR_io_pgetevents => masked(b, uc, *a, 5, true),
        g::__NR_clone | g::__NR_clone3 | g::__NR_fork | g::__NR_vfork => clone::clone(space, b, uc, nr, a),
        g::__NR_execve => exec::exec(b, uc, nr, a, 0),
        g::__NR_execveat => exec::exec(b, uc, nr, a, 1),
        g::__NR_exit => exec::exit(space, b, a[0]),
        g::__NR_exit_group => exec::exit_group(space, b, a[0]),
        g::__NR_close => fds::close(space, a),
        g::__NR_close_range => {
            let mut call = *a;
            let takes_own = takes_own_table(space, b, &mut call[2], fds::CLOSE_RANGE_UNSHARE);
            let outcome = fds::close_range(space, &call);
            b.shares_files.set(b.shares_files.get() & (!(takes_own && matches!(outcome, Done(0)))));
            outcome
        }
        g::__NR_dup2 | g::__NR_dup3 => fds::dup_onto(space, b.foreign.get(), a),
        g::__NR_fcntl => fds::fcntl(space, a),
        g::__NR_dup if fds::is_protected(space, a[0]) => Done(EBADF),
        g::__NR_dup if marks::is_marked(a[0]) => {
            // SAFETY: the program's call, on numbers.
            let ret = unsafe { calls::raw_syscall(nr as u64, a) };
            marks::mark(ret);
            Done(ret)
        }
        g::__NR_open | g::__NR_openat | g::__NR_openat2 if proc_files::opens_such(nr, a) => {
            let mem = SpaceMemory::new(space, b.ctx(), uc.regs.sp);
            performed(uc, a, |call| {
                let ret = guard::call(&mem, nr as u64, a, call);
                marks::mark(ret);
                Some(ret)
            })
        }
        g::__NR_stat | g::__NR_lstat | g::__NR_newfstatat | g::__NR_statx
            if tasks::would_be_counted(space) && proc_files::counts_tasks(nr, a) =>
        {
            let mem = SpaceMemory::new(space, b.ctx(), uc.regs.sp);
            performed(uc, a, |call| {
                let ret = guard::call(&mem, nr as u64, a, call);
                if ret == 0 {
                    proc_files::counts::correct_links(nr, a);
                }
                Some(ret)
            })
        }
        _ if hints::is_one(nr) => Done(hints::perform(space, b, nr, a)),
        _ if marks::is_marked(a[0]) && proc_files::concerns(nr) && !fds::is_protected(space, a[0]) => {
            let sp = uc.regs.sp;
            performed(uc, a, |call| proc_files::call(space, b, (nr, sp), a, call))
        }
        g::__NR_sysinfo if shown::is_on() => Done(ram::sysinfo(space, a)),
        g::__NR_sendfile | g::__NR_splice | g::__NR_copy_file_range if shown::is_on() && ram::is_moved(nr, a) => {
            Done(ram::MOVED)
        }
        g::__NR_unshare => {
            let mut call = *a;
            if !takes_own_table(space, b, &mut call[0], g::CLONE_FILES) || !b.foreign.get() {
                return Forward(call);
            }
            // SAFETY: the program's call, on numbers.
            let ret = unsafe { calls::raw_syscall(nr as u64, &call) };
            b.shares_files.set(b.shares_files.get() & (ret != 0));
            Done(ret)
        }
        g::__NR_process_madvise if process_madvise::is_followed(a) => {
            let mem = SpaceMemory::new(space, b.ctx(), uc.regs.sp);
            performed(uc, a, |call| {
                let answer = |args: &[u64; 6]| guard::call(&mem, nr as u64, args, call);
                Some(process_madvise::advise(space, b.ctx(), a, answer))
            })
        }
        g::__NR_sendto | g::__NR_sendmsg | g::__NR_sendmmsg if zerocopy::is_one(nr, a) => {
            zerocopy::note();
            Forward(*a)
        }
        _ => about_process(space, b, nr, a),
    }
}

/// Handles what a thread asks of the kernel for itself or its process, and calls that change the address space.
fn about_process(space: &'static Space, b: &ThreadBlock, nr: u32, a: &[u64; 6]) -> Outcome {
    use Outcome::{Done, Forward};
    match nr {
        // Requests are in shared memory, where no system call shows them; programs do without io_uring.
        g::__NR_io_uring_setup => Done(ENOSYS),
        g::__NR_prctl if a[0] as u32 as u64 == PR_SET_SYSCALL_USER_DISPATCH => Done(EINVAL),
        g::__NR_prctl if a[0] as u32 as u64 == PR_SET_TSC => {
            ebb::clock::forbid();
            Forward(*a)
        }
        g::__NR_prctl if a[0] as u32 as u64 == PR_SET_MEMORY_MERGE || a[0] as u32 as u64 == PR_GET_MEMORY_MERGE => {
            memory::merge(a)
        }
        g::__NR_prctl if a[0] as u32 as u64 == PR_SET_THP_DISABLE => {
            // SAFETY: the program's own call, which changes no memory.
            let ret = unsafe { calls::raw_syscall(nr as u64, a) };
            memory::look_at_thp(space);
            Done(ret)
        }
        g::__NR_seccomp | g::__NR_prctl if refused::is_load(nr, a) => {
            refused::before_managed_load(space, nr, a);
            if !refused::may_fly() {
                space.fly_no_more();
            }
            Forward(*a)
        }
        g::__NR_ptrace if traced::is_request(nr, a) => traced::ask(b, tasks::live() == 1).map_or(Forward(*a), Done),
        g::__NR_fstat | g::__NR_ioctl if fds::is_protected(space, a[0]) => Done(EBADF),
        g::__NR_arch_prctl if a[0] == ARCH_SET_GS && !thread::has_fsgsbase() => Done(EINVAL),
        // A base of the program's need not be kept: no handler of the agent changes it.
        // SAFETY: nothing of the agent's relies on the GS base.
        g::__NR_arch_prctl if a[0] == ARCH_SET_GS => Done(unsafe { calls::raw_syscall(nr as u64, a) }),
        g::__NR_arch_prctl if a[0] == ARCH_GET_GS => {
            let base = if thread::has_gs(b) { 0 } else { thread::gs_base() };
            Done(if user::write(a[1], &base).is_ok() { 0 } else { EFAULT })
        }
        _ => memory::call(space, b.ctx(), nr, a).map_or(Forward(*a), Done),
    }
}

/// Whether a call with these `flags` gives the calling thread a descriptor table of its own, as `bit` asks. Takes the
/// bit away if this is the program's only thread. For the program that changes nothing. The thread keeps the table that
/// it has: Ebb's threads may have it, too, and it may have the locks by which others know the process.
fn takes_own_table(space: &Space, b: &ThreadBlock, flags: &mut u64, bit: u32) -> bool {
    let bit = u64::from(bit);
    if *flags & bit == 0 {
        return false;
    }
    if !b.foreign.get() && tasks::live() == 1 && !thread::has_foreign() {
        *flags &= !bit;
        return false;
    }
    if !b.foreign.get() {
        space.note_own_tables();
    }
    true
}

/// Lets `f` perform a call here; `f` is given a function that makes one call. If it returns none, the kernel performs the call.
fn performed(
    uc: &Context,
    a: &[u64; 6],
    f: impl FnOnce(&mut dyn FnMut(u64, &[u64; 6]) -> i64) -> Option<i64>,
) -> Outcome {
    let mask = uc.mask;
    // SAFETY: the guard passes on the program's own call.
    let mut call = |nr: u64, args: &[u64; 6]| unsafe { entry::inner_call(nr, args, mask) };
    match f(&mut call) {
        Some(guard::NOT_MADE) => Outcome::Again,
        Some(ret) => Outcome::Done(ret),
        None => Outcome::Forward(*a),
    }
}

/// Handles a call that replaces the signal mask while it waits.
fn masked(b: &ThreadBlock, uc: &mut Context, mut used: [u64; 6], at: usize, indirect: bool) -> Outcome {
    let replaced =
        if indirect { syscalls::replace_mask_arg(b, &mut used, at) } else { syscalls::replace_mask(b, &mut used, at) };
    match replaced {
        Err(errno) => Outcome::Done(errno),
        Ok(()) if syscalls::deliver_under_call_mask(b, uc) => Outcome::Set,
        Ok(()) => Outcome::Forward(used),
    }
}

/// Has the kernel perform the thread's call, with arguments `used`.
pub(crate) fn forward(space: &'static Space, b: &ThreadBlock, uc: &mut Context, mut used: [u64; 6]) {
    let nr = b.call.nr.get();
    if let Err(answer) = aio::begin(space, &b.call, &mut used) {
        return uc.regs.ax = answer as u64;
    }
    b.call.used.set(used);
    let before = guard::before(space, b.ctx(), nr, &used, uc.regs.sp);
    aio::published(space, &b.call);
    let pinned = match before {
        Before::Plain => false,
        Before::Pinned => true,
        Before::Fail(answer) => {
            aio::answered(space, &b.call, answer);
            return uc.regs.ax = answer as u64;
        }
        Before::Split => {
            let mask = uc.mask;
            // SAFETY: the guard passes on the program's own call, in pieces.
            let mut call = |nr: u64, args: &[u64; 6]| unsafe { entry::inner_call(nr, args, mask) };
            let ret = guard::run_split(space, b.ctx(), nr, &used, uc.regs.sp, &mut call);
            if ret == guard::NOT_MADE {
                rewind(b, uc);
            } else {
                uc.regs.ax = ret as u64;
            }
            return;
        }
    };
    b.call.tries.set(0);
    tasks::before(space, b, &used);
    leave_hint(b, uc.regs.sp);
    enter_stub(b, uc, pinned);
}

/// Points the context at the stub, for the call that is prepared in `b`.
fn enter_stub(b: &ThreadBlock, uc: &mut Context, pinned: bool) {
    b.call.pinned.store(pinned, Relaxed);
    uc.regs.set_args(&b.call.used.get());
    uc.regs.ax = b.call.nr.get();
    // The stub that returns by itself finds the program's registers by the GS base.
    let asks = aio::is_followed(b.call.nr.get() as u32)
        || b.call.change.get() != Change::None
        || pinned && pins_much(b.call.nr.get() as u32, &b.call.used.get())
        || shown::is_on() && ram::opens(b.call.nr.get() as u32)
        || !thread::has_gs(b);
    uc.regs.ip = if asks { entry::stub_asking() } else { entry::stub() };
}

/// True when it may be worth ending the call's pins as soon as it returns, rather than at the thread's next entry: when
/// an argument could be the length of something long, or the call takes a vector of buffers.
fn pins_much(nr: u32, args: &[u64; 6]) -> bool {
    const FEW_BYTES: u64 = 64 << 10;
    /// An argument above this is an address or a flag word, not a length that can be pinned.
    const LENGTH_MAX: u64 = 1 << 40;
    let vectored = matches!(
        nr,
        g::__NR_readv
            | g::__NR_writev
            | g::__NR_preadv
            | g::__NR_pwritev
            | g::__NR_preadv2
            | g::__NR_pwritev2
            | g::__NR_sendmsg
            | g::__NR_recvmsg
            | g::__NR_sendmmsg
            | g::__NR_recvmmsg
            | g::__NR_process_vm_readv
            | g::__NR_process_vm_writev
            | g::__NR_vmsplice
    );
    vectored || args[1..4].iter().any(|arg| (FEW_BYTES..LENGTH_MAX).contains(arg))
}

/// Leaves the call's return address below the red zone, where the stub's unwind table says it is. Only on a stack that
/// is known to go on below, so that nothing but unused stack is written.
fn leave_hint(b: &ThreadBlock, sp: u64) {
    let at = sp.wrapping_sub(entry::HINT_BYTES);
    if at >= b.stack_start.get() && sp <= b.stack_end.get() {
        let _ = user::write(at, &b.call.ip.get());
    }
}

/// Shows the call as not made yet, so that the program's own instruction makes it again.
pub fn rewind(b: &ThreadBlock, uc: &mut Context) {
    masks::end_pins(b);
    if b.call.change.get() != Change::None
        && let Some(space) = crate::base::here::space()
    {
        tasks::not_made(space, b);
    }
    if b.call.has_requests.get()
        && let Some(space) = crate::base::here::space()
    {
        aio::answered(space, &b.call, entry::ERESTARTSYS);
    }
    uc.regs.set_args(&b.call.args.get());
    uc.regs.ax = b.call.nr.get();
    uc.regs.ip = b.call.ip.get() - CALL_BYTES;
}

/// Shows the call as returned with `ret`.
pub fn finish(b: &ThreadBlock, uc: &mut Context, ret: i64) {
    masks::end_pins(b);
    if b.call.change.get() != Change::None
        && let Some(space) = crate::base::here::space()
    {
        tasks::answered(space, b, ret);
    }
    uc.regs.set_args(&b.call.args.get());
    uc.regs.ax = ret as u64;
    uc.regs.ip = b.call.ip.get();
    // As the `syscall` instruction leaves these registers.
    uc.regs.cx = b.call.ip.get();
    uc.regs.r11 = uc.regs.flags;
}

/// Handles the kernel's answer to the call, while the thread still is in the stub.
pub fn returned(b: &ThreadBlock, uc: &mut Context) {
    let ret = uc.regs.ax as i64;
    let Some(space) = crate::base::here::space() else { return };
    aio::answered(space, &b.call, ret);
    if shown::is_on() && ram::opens(b.call.nr.get() as u32) {
        ram::note(ret);
    }
    if ret != EFAULT {
        return finish(b, uc, ret);
    }
    masks::end_pins(b);
    match guard::after(space, b.ctx(), b.call.nr.get(), &b.call.used.get(), uc.regs.sp, ret, &b.call.tries) {
        After::Done(ret) => finish(b, uc, ret),
        After::Retry => {
            stats::add(&space.stats().efault_retries, 1);
            enter_stub(b, uc, true);
        }
    }
}

/// Goes on when the stub asks the agent to. False when the thread is not there.
pub fn help_stub(b: &ThreadBlock, uc: &mut Context) -> bool {
    let asks = entry::stub_at(uc.regs.ip) == StubAt::Asks;
    if asks {
        returned(b, uc);
    }
    asks
}

/// True when the interrupted access was a write.
pub fn is_write(uc: &Context) -> bool {
    const PAGE_FAULT_WRITE: u64 = 2;
    uc.regs.err & PAGE_FAULT_WRITE != 0
}
