//! Faults: SIGBUS for an evicted or untouched page, SIGSEGV for memory that the program may not touch.

use crate::base::frame::{Context, FLAG_ALIGNMENT, SigInfo};
use crate::base::here;
use crate::handlers::signal;
use crate::signals::masks;
use crate::syscalls::trap;
use crate::threads::entry::handler_entry;
use crate::threads::thread;
use ebb::Fault;

const BUS_ADRALN: i32 = 1;
const BUS_ADRERR: i32 = 2;

handler_entry!(
    /// The kernel's entry for SIGBUS.
    on_sigbus,
    sigbus
);

unsafe extern "C" fn sigbus(_sig: i32, info: *const SigInfo, uc: *mut Context) {
    // SAFETY: the kernel calls with its own frame; the block is the calling thread's.
    let (b, info, uc) = unsafe { (&*thread::on_stack(), &*info, &mut *uc) };
    if info.code == BUS_ADRALN && here::is_own_code(uc.regs.ip) {
        // The program runs with the alignment check on, and called a libc function that the agent replaces.
        uc.regs.flags &= !FLAG_ALIGNMENT;
        return;
    }
    if info.code == BUS_ADRERR
        && let Some(space) = crate::base::here::space()
    {
        if !b.owns(uc.regs.sp) && !masks::is_inside(uc) {
            masks::note_open(b, uc);
            masks::end_pins(b);
        }
        match space.fault(b.ctx(), info.addr as usize, trap::is_write(uc)) {
            Fault::Resolved => return,
            // What cannot be brought back, the engine has reported.
            Fault::NotManaged | Fault::Unreadable => {}
        }
    }
    if !b.owns(uc.regs.sp) {
        masks::allow_faults();
    }
    signal::arrive(b, info, uc);
}

handler_entry!(
    /// The kernel's entry for SIGSEGV.
    on_sigsegv,
    sigsegv
);

unsafe extern "C" fn sigsegv(_sig: i32, info: *const SigInfo, uc: *mut Context) {
    // SAFETY: the kernel calls with its own frame; the block is the calling thread's.
    let (b, info, uc) = unsafe { (&*thread::on_stack(), &*info, &mut *uc) };
    if !b.owns(uc.regs.sp) {
        masks::allow_faults();
    }
    if info.is_fault() && trap::help_stub(b, uc) {
        return;
    }
    signal::arrive(b, info, uc);
}
