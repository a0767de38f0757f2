//! System calls that the kernel's own code makes in the program's place: uretprobe and uprobe.
//!
//! A system-wide tracer may have put probes on functions of any file. The kernel has then put a page of code into the
//! process. Where a probed function returns, or a patched place is reached, that page makes one of these calls. The
//! kernel takes them from that page only, and ends the process by SIGILL elsewhere. So the agent cannot make them in
//! its stub. Instead the thread goes back to the instruction with Syscall User Dispatch off and the trap flag set: the
//! system call itself does not trap, the instruction behind it does. Only the kernel's page runs in between.

use crate::base::calls;
use crate::base::frame::{Context, FLAG_TRAP, SigInfo};
use crate::base::signum::{self, SIGTRAP, bit};
use crate::signals::masks;
use crate::syscalls::trap;
use crate::threads::actions;
use crate::threads::thread::ThreadBlock;
use core::sync::atomic::Ordering::Relaxed;
use ebb::Space;
use ebb::uapi::{self, Errno};

/// Linux 6.11 and later.
const NR_URETPROBE: u32 = 335;
/// Linux 6.18 and later.
const NR_UPROBE: u32 = 336;
/// What these calls read and write at the stack pointer: at most four words.
const STACK_BYTES: usize = 32;

/// True for a call that only the kernel's own code makes.
pub fn is_one(nr: u32) -> bool {
    nr == NR_URETPROBE || nr == NR_UPROBE
}

/// Sends the thread back to make the caught call by itself.
pub fn pass(space: &Space, b: &ThreadBlock, uc: &mut Context) -> Result<(), Errno> {
    actions::hold_trap(b.table())?;
    trap::rewind(b, uc);
    space.pin_begin(b.ctx(), uc.regs.sp);
    space.pin_add(b.ctx(), uc.regs.sp as usize, STACK_BYTES);
    b.call.pinned.store(true, Relaxed);
    calls::disarm()?;
    b.pass_mask.set(masks::program_mask(b, uc));
    b.is_passing.set(true);
    // SIGILL is open because the kernel sends it when the page is not its own.
    uc.mask = signum::FULL_MASK & !bit(SIGTRAP) & !bit(signum::SIGILL);
    uc.regs.flags |= FLAG_TRAP;
    Ok(())
}

/// Arms the thread again that [`pass`] sent back, when a signal finds it on that way. True when the signal was for
/// nothing else.
pub fn end(b: &ThreadBlock, info: &SigInfo, uc: &mut Context) -> bool {
    const TRAP_TRACE: i32 = 2;
    b.is_passing.set(false);
    uc.regs.flags &= !FLAG_TRAP;
    let mask = b.pass_mask.get();
    masks::set_program_mask(b, uc, mask);
    masks::end_pins(b);
    if calls::arm().is_err() {
        uapi::kill_self();
    }
    info.signo == SIGTRAP && info.code == TRAP_TRACE
}
