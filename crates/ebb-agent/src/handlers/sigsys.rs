//! SIGSYS: a system call of the program's that Syscall User Dispatch caught.

use crate::base::frame::{Context, SigInfo};
use crate::base::outcome::Outcome;
use crate::handlers::signal;
use crate::process::tasks;
use crate::signals::masks;
use crate::syscalls::trap::{self, AUDIT_ARCH_X86_64, ENOSYS, SYS_USER_DISPATCH};
use crate::syscalls::uprobe;
use crate::threads::entry::handler_entry;
use crate::threads::thread;
use ebb::stats;

handler_entry!(
    /// The kernel's entry for SIGSYS.
    on_sigsys,
    sigsys
);

unsafe extern "C" fn sigsys(_sig: i32, info: *const SigInfo, uc: *mut Context) {
    // SAFETY: the kernel calls with its own frame; the block is the calling thread's.
    let (b, info, uc) = unsafe { (&*thread::on_stack(), &*info, &mut *uc) };
    if info.code != SYS_USER_DISPATCH || info.addr != uc.regs.ip || b.owns(uc.regs.sp) {
        return signal::arrive(b, info, uc);
    }
    let Some(space) = crate::base::here::space() else { return };
    stats::add(&space.stats().traps, 1);
    thread::note_fs(b);
    masks::note_open(b, uc);
    masks::end_pins(b);
    tasks::at_call(space, uc.regs.ax);
    b.call.ip.set(uc.regs.ip);
    b.call.nr.set(uc.regs.ax as u32 as u64);
    b.call.args.set(uc.regs.args());
    b.call.has_mask.set(false);
    if info.arch != AUDIT_ARCH_X86_64 {
        // A 32-bit call from 64-bit code: its numbers and pointers mean something else.
        uc.regs.ax = ENOSYS as u64;
        return;
    }
    if uprobe::is_one(b.call.nr.get() as u32) && uprobe::pass(space, b, uc).is_ok() {
        return;
    }
    let args = b.call.args.get();
    match trap::dispatch(space, b, uc, b.call.nr.get() as u32, &args) {
        Outcome::Done(ret) => uc.regs.ax = ret as u64,
        Outcome::Set => {}
        Outcome::Again => trap::rewind(b, uc),
        Outcome::Forward(used) => trap::forward(space, b, uc, used),
    }
}
