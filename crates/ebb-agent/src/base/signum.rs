//! Signals by number, and masks of them.

/// Highest signal number.
pub const SIGNALS: i32 = 64;
pub const SIGHUP: i32 = 1;
pub const SIGINT: i32 = 2;
pub const SIGQUIT: i32 = 3;
pub const SIGKILL: i32 = 9;
pub const SIGSTOP: i32 = 19;
pub const SIGILL: i32 = 4;
pub const SIGTRAP: i32 = 5;
pub const SIGBUS: i32 = 7;
pub const SIGSEGV: i32 = 11;
pub const SIGPIPE: i32 = 13;
pub const SIGALRM: i32 = 14;
pub const SIGCHLD: i32 = 17;
pub const SIGCONT: i32 = 18;
pub const SIGTSTP: i32 = 20;
pub const SIGURG: i32 = 23;
pub const SIGXFSZ: i32 = 25;
pub const SIGWINCH: i32 = 28;
pub const SIGSYS: i32 = 31;
/// `sigaltstack`: there is no alternate stack.
pub const SS_DISABLE: i32 = 2;

/// The signals that the agent holds for itself.
pub const OURS: u64 = bit(SIGBUS) | bit(SIGSEGV) | bit(SIGSYS);
/// The signals that are blocked while agent code runs: all but those that its own accesses to program memory may raise.
pub const FULL_MASK: u64 = !(bit(SIGBUS) | bit(SIGSEGV));
/// Signals that by default end or stop the process, except those that the engine itself may bring about (SIGPIPE and SIGXFSZ, by
/// writing) and those that the agent needs.
pub const FATAL: u64 = !(OURS
    | UNBLOCKABLE
    | bit(SIGTRAP)
    | bit(SIGPIPE)
    | bit(SIGXFSZ)
    | bit(SIGCHLD)
    | bit(SIGCONT)
    | bit(SIGURG)
    | bit(SIGWINCH));
/// Signals that nobody can block or handle.
pub const UNBLOCKABLE: u64 = bit(SIGKILL) | bit(SIGSTOP);

/// A signal's bit in a mask.
pub const fn bit(sig: i32) -> u64 {
    1 << (sig - 1)
}

/// The part of a mask that the kernel gets.
pub const fn kernel_part(mask: u64) -> u64 {
    mask & !OURS & !UNBLOCKABLE
}

/// The part of a mask that is virtual: only the agent knows it.
pub const fn virtual_part(mask: u64) -> u64 {
    mask & OURS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filled_mask_leaves_the_agents_signals_to_the_kernel_unblocked() {
        assert_eq!(kernel_part(u64::MAX) & OURS, 0);
    }

    #[test]
    fn kernel_and_virtual_part_together_are_the_programs_mask() {
        let mask = bit(SIGBUS) | bit(2) | bit(SIGSYS);
        assert_eq!(kernel_part(mask) | virtual_part(mask), mask);
    }
}
