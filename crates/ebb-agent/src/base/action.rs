//! The action that a process has for a signal, as the kernel holds it.

use crate::base::signum::{UNBLOCKABLE, bit};

pub const SIG_DFL: u64 = 0;
pub const SIG_IGN: u64 = 1;

const SA_NOCLDSTOP: u64 = 1;
const SA_NOCLDWAIT: u64 = 2;
pub const SA_SIGINFO: u64 = 4;
const SA_EXPOSE_TAGBITS: u64 = 0x800;
pub const SA_RESTORER: u64 = 0x0400_0000;
pub const SA_ONSTACK: u64 = 0x0800_0000;
pub(crate) const SA_RESTART: u64 = 0x1000_0000;
pub const SA_NODEFER: u64 = 0x4000_0000;
pub const SA_RESETHAND: u64 = 0x8000_0000;
/// Flags that the kernel keeps; it clears the others.
pub(crate) const SA_KNOWN: u64 = SA_NOCLDSTOP
    | SA_NOCLDWAIT
    | SA_SIGINFO
    | SA_EXPOSE_TAGBITS
    | SA_RESTORER
    | SA_ONSTACK
    | SA_RESTART
    | SA_NODEFER
    | SA_RESETHAND;
/// Flags that the kernel itself must see, even when the installed handler is the agent's.
pub(crate) const SA_NATIVE: u64 = SA_NOCLDSTOP | SA_NOCLDWAIT | SA_RESTART | SA_EXPOSE_TAGBITS;

/// The kernel's `struct sigaction`.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Action {
    pub handler: u64,
    pub flags: u64,
    pub restorer: u64,
    pub mask: u64,
}

impl Action {
    pub fn is_handler(&self) -> bool {
        self.handler != SIG_DFL && self.handler != SIG_IGN
    }

    /// The mask that is in effect during the handler, for a thread whose mask is `base`.
    pub fn mask_during(&self, sig: i32, base: u64) -> u64 {
        let own = if self.flags & SA_NODEFER == 0 { bit(sig) } else { 0 };
        (base | self.mask | own) & !UNBLOCKABLE
    }
}
