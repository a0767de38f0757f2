//! What the trampoline of a dormant process looks at, and what it keeps for `wake`.

use core::sync::atomic::{AtomicU32, AtomicU64};

/// Most sites.
pub const SITES_MAX: usize = 16;
/// Bytes of a slot.
const SLOT_BYTES: usize = 16;

/// A site of libc that is patched.
#[repr(C)]
pub struct Site {
    /// Address of the `syscall` instruction behind the jump.
    pub after: AtomicU64,
    /// The system call's number.
    pub nr: AtomicU64,
}

/// What the trampoline looks at. It is all in one page, the only page of this library's data that a small process touches.
#[repr(C, align(64))]
pub struct Trampoline {
    /// 1 while the process is dormant.
    pub is_dormant: AtomicU32,
    pad: u32,
    /// Bytes asked for since the last look at the real size.
    pub gross: AtomicU64,
    /// Above this sum the real size is read.
    pub limit: AtomicU64,
    /// Highest program break asked for.
    pub brk: AtomicU64,
    /// The program's signal mask, while a call takes the slow way.
    pub mask: AtomicU64,
    pub sites: [Site; SITES_MAX],
}

pub static TRAMPOLINE: Trampoline = Trampoline {
    is_dormant: AtomicU32::new(0),
    pad: 0,
    gross: AtomicU64::new(0),
    limit: AtomicU64::new(0),
    brk: AtomicU64::new(0),
    mask: AtomicU64::new(0),
    sites: [const { Site { after: AtomicU64::new(0), nr: AtomicU64::new(0) } }; SITES_MAX],
};

/// What the slow way keeps on the program's stack, below the red zone.
#[repr(C)]
pub struct Frame {
    /// Arguments in place of the program's, for [`CALL_REPLACED`].
    pub replaced: [u64; 6],
    /// The answer, for [`ANSWER`].
    pub answer: u64,
    pub bp: u64,
    pub bx: u64,
    pub r9: u64,
    pub r8: u64,
    pub r10: u64,
    pub dx: u64,
    pub si: u64,
    pub di: u64,
    /// The system call's number, [`IN_CHILD`] or [`WAKE`].
    pub nr: u64,
    /// The `syscall` instruction to go back to.
    pub after: u64,
    pub flags: u64,
}

/// [`Frame::nr`] when fork's child comes back.
pub const IN_CHILD: u64 = u64::MAX;
/// [`Frame::nr`] when the program asks Ebb for something, by `ebb.h`, and the process is to be managed therefore.
pub const WAKE: u64 = u64::MAX - 1;
/// Go back to the `syscall` instruction.
pub const CALL_THERE: u64 = 0;
/// Make the call with [`Frame::replaced`], and go on behind the instruction.
pub const CALL_REPLACED: u64 = 1;
/// Make the call, which forks, and go on behind the instruction. The child comes here again first.
pub const CALL_FORK: u64 = 2;
/// Go on behind the instruction with [`Frame::answer`].
pub const ANSWER: u64 = 3;

unsafe extern "C" {
    fn ebb_slots();
    fn ebb_dormant_restorer();
}

/// The address that site `i` jumps to: its slot.
pub fn slot(i: usize) -> u64 {
    ebb_slots as *const () as u64 + (i * SLOT_BYTES) as u64
}

/// The address that the handlers of the slow way return to.
pub fn restorer() -> u64 {
    ebb_dormant_restorer as *const () as u64
}

/// Room for the vector state, in bytes: AMX and AVX-512 together take less.
pub const VECTORS_BYTES: usize = 16 << 10;
