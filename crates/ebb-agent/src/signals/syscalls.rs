//! System calls about signals, as the program makes them.

use crate::base::action::{Action, SA_KNOWN, SIG_IGN};
use crate::base::frame::{Context, SigInfo};
use crate::base::signum::{self, OURS, SIGNALS, UNBLOCKABLE, bit};
use crate::base::{calls, copy, user};
use crate::signals::{delivery, masks};
use crate::threads::thread::ThreadBlock;
use core::sync::atomic::Ordering::Relaxed;
use linux_raw_sys::{errno as e, general as g};

const EFAULT: i64 = -(e::EFAULT as i64);

const EINVAL: i64 = -(e::EINVAL as i64);

/// rt_sigaction(2).
pub fn sigaction(b: &ThreadBlock, a: &[u64; 6]) -> i64 {
    let sig = a[0] as i32;
    if a[3] != 8 {
        return EINVAL;
    }
    let new = match a[1] {
        0 => None,
        at => match user::read::<Action>(at) {
            Ok(action) => Some(action),
            Err(_) => return EFAULT,
        },
    };
    if !(1..=SIGNALS).contains(&sig) || (new.is_some() && UNBLOCKABLE & bit(sig) != 0) {
        return EINVAL;
    }
    let old = match new {
        None => b.table().get(sig),
        Some(mut action) => {
            action.flags &= SA_KNOWN;
            action.mask &= !UNBLOCKABLE;
            match b.table().set(sig, action) {
                Ok(old) => {
                    if action.handler == SIG_IGN && bit(sig) & OURS != 0 {
                        b.queue().discard(sig);
                    }
                    old
                }
                Err(errno) => return -(errno.0 as i64),
            }
        }
    };
    if a[2] != 0 && user::write(a[2], &old).is_err() { EFAULT } else { 0 }
}

/// Writes a dequeued signal's details where rt_sigtimedwait wants them. Returns that call's answer.
pub(crate) fn dequeue(to: u64, info: &SigInfo) -> i64 {
    if to != 0 && user::write(to, info).is_err() {
        return -(e::EFAULT as i64);
    }
    info.signo as i64
}

/// The mask that `how` makes of `old` and `set`; none for an unknown `how`.
pub(crate) fn combine(how: u32, old: u64, set: u64) -> Option<u64> {
    let mask = match how {
        g::SIG_BLOCK => old | set,
        g::SIG_UNBLOCK => old & !set,
        g::SIG_SETMASK => set,
        _ => return None,
    };
    Some(mask & !UNBLOCKABLE)
}

/// rt_sigprocmask(2).
pub fn sigprocmask(b: &ThreadBlock, uc: &mut Context, a: &[u64; 6]) -> i64 {
    if a[3] != 8 {
        return EINVAL;
    }
    let old = masks::program_mask(b, uc);
    if a[1] != 0 {
        let Ok(set) = user::read::<u64>(a[1]) else { return EFAULT };
        let Some(mask) = combine(a[0] as u32, old, set) else { return EINVAL };
        masks::set_program_mask(b, uc, mask);
    }
    if a[2] != 0 && user::write(a[2], &old).is_err() { EFAULT } else { 0 }
}

/// rt_sigpending(2).
pub fn sigpending(b: &ThreadBlock, a: &[u64; 6]) -> i64 {
    let mut set = 0u64;
    // SAFETY: the kernel writes at most one mask.
    let ret = unsafe { calls::raw_syscall(g::__NR_rt_sigpending as u64, &[&raw mut set as u64, a[1], 0, 0, 0, 0]) };
    if ret != 0 {
        return ret;
    }
    set |= b.queue().pending() & b.blocked.get();
    let bytes = set.to_ne_bytes();
    // SAFETY: the agent's side is `bytes`; the kernel accepted the size, which is at most a mask's.
    let copied = unsafe { copy::copy(a[0], bytes.as_ptr() as u64, (a[1] as usize).min(8)) };
    if copied { 0 } else { EFAULT }
}

/// rt_sigtimedwait(2), if the signal waits in the agent; none if not.
pub fn sigtimedwait(b: &ThreadBlock, a: &[u64; 6]) -> Option<i64> {
    if b.queue().pending() == 0 || a[3] != 8 {
        return None;
    }
    let set = user::read::<u64>(a[0]).ok()?;
    let info = b.queue().pop(set)?;
    Some(dequeue(a[1], &info))
}

/// Prepares a call that replaces the mask while it waits: argument `at` points to the mask, and the next argument is
/// its size. Points `used` to the agent's copy of the mask. A missing mask, or one of another size, is left to the
/// kernel. The error is the call's answer.
pub fn replace_mask(b: &ThreadBlock, used: &mut [u64; 6], at: usize) -> Result<(), i64> {
    if used[at] == 0 || used[at + 1] != 8 {
        return Ok(());
    }
    let mask = user::read::<u64>(used[at]).map_err(|_| EFAULT)?;
    set_call_mask(b, mask);
    used[at] = b.call.kernel_mask.as_ptr().cast_const() as u64;
    Ok(())
}

/// As [`replace_mask`], where argument `at` points to the mask's address and size.
pub fn replace_mask_arg(b: &ThreadBlock, used: &mut [u64; 6], at: usize) -> Result<(), i64> {
    if used[at] == 0 {
        return Ok(());
    }
    let arg = user::read::<[u64; 2]>(used[at]).map_err(|_| EFAULT)?;
    if arg[0] == 0 || arg[1] != 8 {
        return Ok(());
    }
    let mask = user::read::<u64>(arg[0]).map_err(|_| EFAULT)?;
    set_call_mask(b, mask);
    b.call.mask_arg.set([b.call.kernel_mask.as_ptr().cast_const() as u64, arg[1]]);
    used[at] = b.call.mask_arg.as_ptr() as u64;
    Ok(())
}

fn set_call_mask(b: &ThreadBlock, mask: u64) {
    b.call.has_mask.set(true);
    b.call.mask.set(mask & !UNBLOCKABLE);
    // What the call's own mask blocks must not be handed over to this thread while it waits.
    b.open.store(b.open.load(Relaxed) & !mask, Relaxed);
    b.call.kernel_mask.set(signum::kernel_part(mask));
}

/// Delivers the waiting signals that a call's own mask lets through. True if there are any: then the call is over
/// before it began.
pub fn deliver_under_call_mask(b: &ThreadBlock, uc: &mut Context) -> bool {
    if !b.call.has_mask.get() || b.queue().pending() & !b.call.mask.get() == 0 {
        return false;
    }
    let (base, old) = (b.call.mask.get(), masks::program_mask(b, uc));
    while let Some(info) = b.queue().pop(!base) {
        uc.regs.ax = -(e::EINTR as i64) as u64;
        delivery::deliver(b, &info, uc, base, old);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::signum::{SIGKILL, bit};

    #[test]
    fn blocking_adds_and_unblocking_removes() {
        assert_eq!(combine(g::SIG_BLOCK, bit(1), bit(7)), Some(bit(1) | bit(7)));
        assert_eq!(combine(g::SIG_UNBLOCK, bit(1) | bit(7), bit(7)), Some(bit(1)));
    }

    #[test]
    fn nobody_blocks_sigkill() {
        assert_eq!(combine(g::SIG_SETMASK, 0, bit(SIGKILL) | bit(1)), Some(bit(1)));
    }

    #[test]
    fn an_unknown_way_to_change_a_mask_is_refused() {
        assert_eq!(combine(7, 0, 0), None);
    }
}
