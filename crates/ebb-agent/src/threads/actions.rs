//! Signal actions: what the program set, and what the kernel is told instead.
//!
//! The program's table is kept here. The kernel has the agent's handler for each signal that the program handles, and
//! for each that the agent holds for itself; see `signals`.

use crate::base::action::{
    Action, SA_NATIVE, SA_ONSTACK, SA_RESETHAND, SA_RESTART, SA_RESTORER, SA_SIGINFO, SIG_DFL, SIG_IGN,
};
use crate::base::signum::{
    FATAL, FULL_MASK, OURS, SIGBUS, SIGKILL, SIGNALS, SIGSEGV, SIGSTOP, SIGSYS, SIGTRAP, UNBLOCKABLE, bit,
};
use crate::base::{calls, entries};
use crate::threads::entry;
use core::ptr;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicU64};
use ebb::uapi;
use ebb_sync::Lock;
use linux_raw_sys::general as g;

/// The signal actions of one process, as the program set them.
pub struct SigTable {
    actions: Lock<Actions, SignalsLock>,
    /// The signals of [`FATAL`] that have their default action, for code that may not take the lock.
    fatal: AtomicU64,
}

pub type Actions = [Action; SIGNALS as usize];

ebb_sync::lock_classes! {
    /// A process's signal actions. Held for one short system call at most, with every signal blocked, and never while
    /// the program's memory is touched. Fork takes it first, so that the child finds it free.
    SignalsLock = "signal actions";
}

impl SigTable {
    /// All actions are the default.
    pub const fn new() -> Self {
        const DEFAULT: Action = Action { handler: SIG_DFL, flags: 0, restorer: 0, mask: 0 };
        Self { actions: Lock::new([DEFAULT; SIGNALS as usize]), fatal: AtomicU64::new(FATAL) }
    }

    /// The lock, which fork must hold.
    pub fn lock(&self) -> &Lock<Actions, SignalsLock> {
        &self.actions
    }

    fn with<R>(&self, f: impl FnOnce(&mut Actions) -> R) -> R {
        f(&mut self.actions.lock())
    }

    /// As [`SigTable::with`], for a change.
    fn change<R>(&self, f: impl FnOnce(&mut Actions) -> R) -> R {
        self.with(|actions| {
            let result = f(actions);
            let default = (1..).zip(actions.iter()).filter(|(_, action)| action.handler == SIG_DFL);
            self.fatal.store(default.map(|(sig, _)| bit(sig)).sum::<u64>() & FATAL, Relaxed);
            result
        })
    }

    /// The signals that end or stop the process by their default action, but SIGKILL, SIGSTOP and those that [`FATAL`] leaves out.
    /// Another thread may be changing that.
    pub fn fatal(&self) -> u64 {
        self.fatal.load(Relaxed)
    }

    /// The action of `sig`.
    pub fn get(&self, sig: i32) -> Action {
        self.with(|actions| actions[sig as usize - 1])
    }

    /// The action for a signal that has just arrived. An action with SA_RESETHAND is used once: the signal then has its
    /// default.
    pub fn take(&self, sig: i32) -> Action {
        self.change(|actions| {
            let slot = &mut actions[sig as usize - 1];
            let action = *slot;
            if action.is_handler() && action.flags & SA_RESETHAND != 0 {
                slot.handler = SIG_DFL;
                // The default cannot be refused.
                let _ = install(sig, slot);
            }
            action
        })
    }

    /// Replaces the action of `sig`. Returns the old one, or the kernel's error.
    pub fn set(&self, sig: i32, action: Action) -> Result<Action, uapi::Errno> {
        self.change(|actions| {
            install(sig, &action)?;
            Ok(core::mem::replace(&mut actions[sig as usize - 1], action))
        })
    }

    /// Copies the actions of `other`. The calling thread must be the only one that uses this table.
    pub fn copy_from(&self, other: &SigTable) {
        let copy = other.with(|actions| *actions);
        self.change(|actions| *actions = copy);
    }

    /// Resets every handler to the default, as execve and CLONE_CLEAR_SIGHAND do.
    pub fn clear_handlers(&self) {
        self.change(|actions| {
            for (sig, slot) in (1..).zip(actions.iter_mut()) {
                if slot.is_handler() {
                    *slot = Action::default();
                    // The default cannot be refused.
                    let _ = install(sig, slot);
                }
            }
        });
    }

    /// The signals among [`OURS`] that the program ignores.
    pub fn ignored_ours(&self) -> u64 {
        self.with(|actions| {
            [SIGBUS, SIGSEGV, SIGSYS]
                .into_iter()
                .filter(|&sig| actions[sig as usize - 1].handler == SIG_IGN)
                .map(bit)
                .sum()
        })
    }
}

/// The actions of this process; processes that share its memory may have their own.
pub static PROCESS: SigTable = SigTable::new();

/// Whether the agent holds SIGTRAP as well. It needs it from the first call that `uprobe` handles.
static HOLDS_TRAP: AtomicBool = AtomicBool::new(false);

/// Has SIGTRAP delivered to the agent, whatever the program does about it.
pub fn hold_trap(table: &SigTable) -> Result<(), uapi::Errno> {
    if HOLDS_TRAP.load(Relaxed) {
        return Ok(());
    }
    table.with(|actions| {
        HOLDS_TRAP.store(true, Relaxed);
        install(SIGTRAP, &actions[SIGTRAP as usize - 1])
    })
}

/// Gives the kernel the action that stands for the program's `action`.
fn install(sig: i32, action: &Action) -> Result<(), uapi::Errno> {
    let entries = entries::get();
    let handler = match sig {
        SIGBUS => entries.bus,
        SIGSEGV => entries.segv,
        SIGSYS => entries.sys,
        _ => entries.other,
    };
    let is_held = bit(sig) & OURS != 0 || sig == SIGTRAP && HOLDS_TRAP.load(Relaxed);
    if !is_held && !action.is_handler() {
        return set_kernel_action(sig, action);
    }
    // A held signal that is ignored must at least restart the call that it interrupts.
    let native = if action.is_handler() { action.flags & SA_NATIVE } else { SA_RESTART };
    set_kernel_action(
        sig,
        &Action {
            handler,
            flags: native | SA_SIGINFO | SA_ONSTACK | SA_RESTORER,
            restorer: entry::restorer(),
            // `ebb top` takes a thread in which SIGBUS is blocked for one in a fault.
            mask: if sig == SIGBUS || sig == SIGSEGV { u64::MAX } else { FULL_MASK },
        },
    )
}

pub fn set_kernel_action(sig: i32, action: &Action) -> Result<(), uapi::Errno> {
    // SAFETY: the kernel reads one action.
    let ret = unsafe {
        calls::raw_syscall(g::__NR_rt_sigaction as u64, &[sig as u64, ptr::from_ref(action) as u64, 0, 8, 0, 0])
    };
    uapi::check(ret).map(drop)
}

/// Replaces the kernel's action of `sig`. Returns the one that it had.
pub fn exchange_kernel_action(sig: i32, action: &Action) -> Result<Action, uapi::Errno> {
    let mut old = Action::default();
    // SAFETY: the kernel reads one action and writes one.
    let ret = unsafe {
        let args = [sig as u64, ptr::from_ref(action) as u64, &raw mut old as u64, 8, 0, 0];
        calls::raw_syscall(g::__NR_rt_sigaction as u64, &args)
    };
    uapi::check(ret).map(|_| old)
}

/// Routes every signal that has its default action, and would end or stop the process by it, to the agent. With
/// `by_agent` false, gives these signals back to the kernel.
pub fn default_by_agent(table: &SigTable, by_agent: bool) {
    const WITHOUT_EFFECT: [i32; 4] = [17, 18, 23, 28];
    let agents = Action {
        handler: entries::get().other,
        flags: SA_SIGINFO | SA_ONSTACK | SA_RESTORER | SA_RESTART,
        restorer: entry::restorer(),
        mask: FULL_MASK,
    };
    for sig in (1..=SIGNALS).filter(|&sig| (OURS | UNBLOCKABLE) & bit(sig) == 0 && !WITHOUT_EFFECT.contains(&sig)) {
        let action = table.get(sig);
        if action.handler == SIG_DFL {
            let _ = set_kernel_action(sig, if by_agent { &agents } else { &action });
        }
    }
}

/// Has the kernel really ignore the signals `ignored`, which are among [`OURS`], so that this outlasts an execve. With
/// `really` false, the agent handles them again.
pub fn set_really_ignored(table: &SigTable, ignored: u64, really: bool) {
    for sig in [SIGBUS, SIGSEGV, SIGSYS] {
        if ignored & bit(sig) != 0 {
            let action = table.get(sig);
            let _ = if really { set_kernel_action(sig, &action) } else { install(sig, &action) };
        }
    }
}

/// The kernel's action of `sig`.
pub fn kernel_action(sig: i32) -> Result<Action, uapi::Errno> {
    let mut old = Action::default();
    // SAFETY: the kernel writes one action.
    let ret =
        unsafe { calls::raw_syscall(g::__NR_rt_sigaction as u64, &[sig as u64, 0, &raw mut old as u64, 8, 0, 0]) };
    uapi::check(ret).map(|_| old)
}

/// Takes over the process's actions: those that it came with, and those that the program set while it was dormant. The
/// agent takes [`OURS`]. Every signal must be blocked.
pub fn take_over() -> Result<(), uapi::Errno> {
    for sig in (1..=SIGNALS).filter(|&sig| sig != SIGKILL && sig != SIGSTOP) {
        let old = kernel_action(sig)?;
        PROCESS.change(|actions| actions[sig as usize - 1] = old);
        if bit(sig) & OURS != 0 || old.is_handler() {
            install(sig, &old)?;
        }
    }
    Ok(())
}

const _: () = assert!(size_of::<Action>() == 32);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::action::SA_NODEFER;

    #[test]
    fn a_handler_blocks_its_own_signal() {
        let action = Action { handler: 4096, flags: 0, restorer: 0, mask: bit(2) };
        assert_eq!(action.mask_during(10, bit(1)), bit(1) | bit(2) | bit(10));
    }

    #[test]
    fn what_is_fatal_follows_the_actions() {
        let (int, chld) = (bit(2), bit(17));
        let table = SigTable::new();
        assert_eq!(table.fatal() & (int | chld | OURS | UNBLOCKABLE), int);
        table.change(|actions| actions[1].handler = SIG_IGN);
        assert_eq!(table.fatal(), FATAL & !int);
        table.change(|actions| actions[1].handler = 4096);
        assert_eq!(table.fatal(), FATAL & !int);
        let copy = SigTable::new();
        copy.copy_from(&table);
        assert_eq!(copy.fatal(), FATAL & !int);
        table.change(|actions| actions[1].handler = SIG_DFL);
        assert_eq!(table.fatal(), FATAL);
    }

    #[test]
    fn a_nodefer_handler_does_not() {
        let action = Action { handler: 4096, flags: SA_NODEFER, restorer: 0, mask: 0 };
        assert_eq!(action.mask_during(10, 0), 0);
    }
}
