//! How threads and processes end, and how a process executes another program: execve gets copies of its arguments, and
//! an environment in which Ebb goes on.

use crate::base::frame::{AltStack, Context};
use crate::base::outcome::Outcome;
use crate::base::{calls, signum};
use crate::guard::SpaceMemory;
use crate::kept::{environment, leaving};
use crate::process::binding;
use crate::process::tasks::{self, LIVE};
use crate::signals::{first, masks, traced};
use crate::table::visit::for_each_robust;
use crate::threads::thread::{self, ThreadBlock};
use crate::threads::{actions, entry};
use core::ptr;
use core::sync::atomic::Ordering;
use ebb::tree::MemberId;
use ebb::{Space, uapi};
use linux_raw_sys::{errno as e, general as g};

/// exit(2).
pub fn exit(space: &'static Space, b: &ThreadBlock, status: u64) -> ! {
    keep_robust(space, b);
    if !b.foreign.get() {
        // The engine's own thread would keep the process alive. As in the kernel (5.17 and later), the status of a
        // process is the status of its last thread.
        if LIVE.fetch_sub(1, Ordering::AcqRel) == 1 {
            uapi::exit_group(status as i32);
        }
        tasks::leave(space, b);
        first::leave(b);
    }
    if b.parent_frees.get() {
        loop {
            // SAFETY: ends this thread.
            unsafe { calls::raw_syscall(g::__NR_exit as u64, &[status, 0, 0, 0, 0, 0]) };
        }
    }
    // Nothing may use this stack once the block is freed.
    masks::set_kernel_mask(u64::MAX);
    space.detach_thread(b.ctx());
    // SAFETY: every signal is blocked; the context was given back, nothing else refers to the block.
    unsafe { entry::exit_thread(status, thread::used_word(b)) }
}

/// exit_group(2).
pub fn exit_group(space: &'static Space, b: &ThreadBlock, status: u64) -> ! {
    keep_robust(space, b);
    uapi::exit_group(status as i32)
}

/// Keeps the robust locks resident that the thread still holds. The kernel marks them when the thread is gone, and cannot say
/// so when it finds no page. Nobody is left to pin them for, so they stay resident for good; it hardly ever happens.
fn keep_robust(space: &'static Space, b: &ThreadBlock) {
    let (mut head, mut bytes) = (0u64, 0u64);
    // SAFETY: the kernel writes the two words.
    let ret = unsafe {
        let args = [0, &raw mut head as u64, &raw mut bytes as u64, 0, 0, 0];
        calls::raw_syscall(g::__NR_get_robust_list as u64, &args)
    };
    if ret != 0 || head == 0 {
        return;
    }
    let memory = SpaceMemory::new(space, b.ctx(), b.stack_top());
    for_each_robust(head, &memory, &mut |buffer| {
        if space.is_managed(buffer.addr as usize) {
            space.exclude(b.ctx(), buffer.addr as usize, buffer.len as usize);
        }
    });
}

/// Tells the tree that this process is about to become another program. That program counts for `pages` at first;
/// others measure it until it says what it holds. A process that shares the memory takes a place of its own for this,
/// if its descriptors are its own.
fn leave_for_exec(b: &ThreadBlock, pages: usize) -> Option<MemberId> {
    let tree = crate::base::here::space()?.tree();
    if !b.foreign.get() {
        return tree.leave_for_exec(pages as i64);
    }
    if b.shares_files.get() { None } else { tree.claim_outside(pages as i64) }
}

/// Undoes [`leave_for_exec`]: the exec failed.
fn back_from_exec(b: &ThreadBlock, outside: Option<MemberId>) {
    let Some(space) = crate::base::here::space() else { return };
    if let Some(id) = outside {
        space.tree().drop_outside(id);
    }
    if !b.foreign.get() {
        space.back_from_exec();
    }
}

/// execve(2) and execveat(2); the path is argument `path_at`.
pub fn exec(b: &ThreadBlock, uc: &Context, nr: u32, a: &[u64; 6], path_at: usize) -> Outcome {
    let Ok(at) = uapi::map_for_now(environment::SCRATCH_BYTES) else { return Outcome::Done(-(e::ENOMEM as i64)) };
    b.scratch.set(at as usize);
    b.scratch_bytes.set(environment::SCRATCH_BYTES);
    // SAFETY: fresh memory that only this thread knows.
    let memory = unsafe { core::slice::from_raw_parts_mut(at, environment::SCRATCH_BYTES) };
    let dir = if path_at == 0 { g::AT_FDCWD } else { a[0] as i32 };
    let mut relocated_pages = 0;
    let takes_agent = |path| {
        let program = leaving::program(dir, path);
        relocated_pages = program.relocated_pages;
        program.kind.takes_agent()
    };
    let copies = environment::arguments(memory, [a[path_at], a[path_at + 1], a[path_at + 2]], takes_agent);
    let is_followed = b.asks_to_be_traced.get();
    let ret = match copies.and_then(|copies| {
        // An exec that is about to fail must not begin the trace.
        if is_followed { traced::before_exec(dir, copies[0]).map(|()| copies) } else { Ok(copies) }
    }) {
        Err(errno) => errno,
        Ok(copies) => {
            let mut used = *a;
            used[path_at..path_at + 3].copy_from_slice(&copies);
            // execve resets handlers, but what is ignored stays ignored. While other threads run, the agent cannot do
            // without its handlers.
            let alone =
                if b.foreign.get() { ptr::eq(b.table.get(), &b.own_table) } else { LIVE.load(Ordering::Relaxed) == 1 };
            let ignored = if alone { b.table().ignored_ours() } else { 0 };
            actions::set_really_ignored(b.table(), ignored, true);
            if let Some(space) = crate::base::here::space().filter(|_| is_followed && b.foreign.get()) {
                binding::bring_in(space, b.ctx());
            }
            let outside = leave_for_exec(b, relocated_pages);
            traced::make(b);
            // SAFETY: the program asked for it; on success nothing of it is left.
            let ret = unsafe { entry::inner_call(nr as u64, &used, masks::program_mask(b, uc)) };
            back_from_exec(b, outside);
            actions::set_really_ignored(b.table(), ignored, false);
            if is_followed {
                traced::exec_failed(b);
            }
            ret
        }
    };
    thread::release_scratch(b);
    b.scratch.set(0);
    if ret == entry::ERESTARTSYS { Outcome::Again } else { Outcome::Done(ret) }
}

/// Sets up the block of the process's first thread, which the program has already.
pub fn start_main(b: &ThreadBlock, stack_end: u64) {
    const STACK_BYTES: u64 = 8 << 20;
    b.table.set(&actions::PROCESS);
    b.alt.set(AltStack { sp: 0, flags: signum::SS_DISABLE, pad: 0, size: 0 });
    b.stack_start.set(stack_end - STACK_BYTES);
    b.stack_end.set(stack_end);
}
