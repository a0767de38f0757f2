//! What it costs that a fault reaches a handler and comes back, apart from what the handler does. The agent cannot measure
//! that: its time begins in the handler.

use std::ptr;

use crate::base::sys;

/// Faults that are measured at a time, and how often: about ten milliseconds in all.
const FAULTS: u32 = 400;
const ROUNDS: u32 = 8;
/// Length of the instruction that faults.
const LENGTH: i64 = 2;

extern "C" fn skip(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes the context of the thread, which only this handler changes.
    let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    context.uc_mcontext.gregs[libc::REG_RIP as usize] += LENGTH;
}

/// Processor time of one fault with an empty handler, in nanoseconds; 0 if it cannot be measured. No other thread may fault
/// meanwhile.
pub fn cost_ns() -> u64 {
    // SAFETY: a page of its own that nobody may read; the handler passes the instruction that tries to. The handler and the
    // signal mask before are put back.
    unsafe {
        let at = libc::mmap(ptr::null_mut(), 4096, libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0);
        if at == libc::MAP_FAILED {
            return 0;
        }
        let mut action: libc::sigaction = std::mem::zeroed();
        let mut before: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = skip as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigfillset(&raw mut action.sa_mask);
        // Whoever started `ebb` may have blocked the signal, and a fault would then end it.
        let mut only: libc::sigset_t = std::mem::zeroed();
        let mut mask: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut only);
        libc::sigaddset(&raw mut only, libc::SIGSEGV);
        let mut cost_ns = 0;
        if libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const only, &raw mut mask) != 0 {
            libc::munmap(at, 4096);
            return 0;
        }
        if libc::sigaction(libc::SIGSEGV, &raw const action, &raw mut before) == 0 {
            let round = || {
                let began = sys::thread_time_ns();
                for _ in 0..FAULTS {
                    // Two bytes, see `LENGTH`.
                    std::arch::asm!("mov al, byte ptr [rdi]", in("rdi") at, out("al") _, options(nostack, readonly));
                }
                sys::thread_time_ns().saturating_sub(began) / u64::from(FAULTS)
            };
            // What else the processor has to do only makes it longer.
            cost_ns = (0..ROUNDS).map(|_| round()).min().unwrap_or(0);
            libc::sigaction(libc::SIGSEGV, &raw const before, ptr::null_mut());
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const mask, ptr::null_mut());
        libc::munmap(at, 4096);
        cost_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks the signal or lets it come; whether it was blocked.
    fn change_mask(how: libc::c_int) -> bool {
        // SAFETY: changes the mask of this thread alone, and asks for it.
        unsafe {
            let mut only: libc::sigset_t = std::mem::zeroed();
            let mut before: libc::sigset_t = std::mem::zeroed();
            libc::sigaddset(&raw mut only, libc::SIGSEGV);
            libc::pthread_sigmask(how, &raw const only, &raw mut before);
            libc::sigismember(&raw const before, libc::SIGSEGV) == 1
        }
    }

    // One test, because the handler is the whole process's.
    #[test]
    fn a_fault_costs_something_and_leaves_no_handler_and_the_mask_as_it_was() {
        let handler = || {
            // SAFETY: asks for the handler.
            unsafe {
                let mut now: libc::sigaction = std::mem::zeroed();
                libc::sigaction(libc::SIGSEGV, ptr::null(), &raw mut now);
                now.sa_sigaction
            }
        };
        let before = handler();
        let costs_ns = cost_ns();
        assert!((100..1_000_000).contains(&costs_ns), "{costs_ns}");
        assert_eq!(handler(), before);
        // Also where the signal is blocked.
        change_mask(libc::SIG_BLOCK);
        let costs_ns = cost_ns();
        assert_eq!((costs_ns > 0, change_mask(libc::SIG_UNBLOCK)), (true, true));
        assert!(!change_mask(libc::SIG_UNBLOCK));
    }
}
