//! What the kernel leaves on the stack for a signal handler, and takes back from it.
//!
//! Owns the layouts of `arch/x86/include/uapi/asm/{sigcontext,ucontext}.h` and the arithmetic of a signal frame
//! (`get_sigframe` in `arch/x86/kernel/signal.c`), because the agent builds frames for the program as the kernel would.

use core::arch::asm;
use core::mem::{offset_of, size_of};

/// Bytes below the stack pointer that the ABI lets a leaf function use.
pub const RED_ZONE_BYTES: u64 = 128;
/// Size of a siginfo, in bytes.
pub const SIGINFO_BYTES: usize = 128;
/// Room for the vector state of any processor, in bytes: AMX and AVX-512 together take less.
pub const FPSTATE_BYTES_MAX: usize = 16 << 10;

const FXSAVE_BYTES: usize = 512;
/// Offset in the legacy area at which the kernel describes what follows that area.
const SW_BYTES_AT: usize = 464;
const FP_XSTATE_MAGIC1: u32 = 0x4650_5853;

/// Trap flag: the processor traps after the next instruction.
pub const FLAG_TRAP: u64 = 1 << 8;
const FLAG_DIRECTION: u64 = 1 << 10;
const FLAG_RESUME: u64 = 1 << 16;
/// Alignment check flag: an unaligned access is a fault.
pub const FLAG_ALIGNMENT: u64 = 1 << 18;
/// Offset of the flags in a [`Context`].
pub const FLAGS_AT: usize = offset_of!(Context, regs) + offset_of!(Registers, flags);

const USER_CS: u16 = 0x33;
const USER_DS: u16 = 0x2b;

/// Whether a selector is valid for a stack. The program may have removed the segment since it loaded the selector
/// (`force_valid_ss` in `arch/x86/kernel/signal.c`).
fn is_stack_segment(selector: u16) -> bool {
    /// A present, writable data segment of user mode.
    const WANTED: u32 = 0xf200;
    /// The bits to compare. Left out: whether the segment was accessed, and whether it grows down.
    const MASK: u32 = 0xfa00;
    let access: u32;
    // SAFETY: reads the descriptor of a segment; a selector without one leaves the register as it is.
    unsafe { asm!("lar {0:e}, {1:e}", inout(reg) 0u32 => access, in(reg) selector as u32, options(nomem, nostack)) };
    access & MASK == WANTED
}

/// `stack_t`.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct AltStack {
    pub sp: u64,
    pub flags: i32,
    pub pad: i32,
    pub size: u64,
}

/// `struct sigcontext_64`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Registers {
    pub r8: u64,
    pub r9: u64,
    pub r10: u64,
    pub r11: u64,
    pub r12: u64,
    pub r13: u64,
    pub r14: u64,
    pub r15: u64,
    pub di: u64,
    pub si: u64,
    pub bp: u64,
    pub bx: u64,
    pub dx: u64,
    pub ax: u64,
    pub cx: u64,
    pub sp: u64,
    pub ip: u64,
    pub flags: u64,
    pub cs: u16,
    pub gs: u16,
    pub fs: u16,
    pub ss: u16,
    pub err: u64,
    pub trapno: u64,
    pub oldmask: u64,
    pub cr2: u64,
    pub fpstate: u64,
    pub reserved: [u64; 8],
}

impl Registers {
    /// The argument registers of a system call.
    pub fn args(&self) -> [u64; 6] {
        [self.di, self.si, self.dx, self.r10, self.r8, self.r9]
    }

    /// Sets the argument registers of a system call.
    pub fn set_args(&mut self, a: &[u64; 6]) {
        [self.di, self.si, self.dx, self.r10, self.r8, self.r9] = *a;
    }

    /// Points the registers at a signal handler, as the kernel does.
    pub fn enter_handler(&mut self, handler: u64, sig: i32, frame: u64) {
        self.ip = handler;
        self.sp = frame;
        self.di = sig as u64;
        self.si = frame + size_of::<u64>() as u64 + size_of::<Context>() as u64;
        self.dx = frame + size_of::<u64>() as u64;
        self.ax = 0;
        self.cs = USER_CS;
        if self.ss != USER_DS && !is_stack_segment(self.ss) {
            self.ss = USER_DS;
        }
        self.flags &= !(FLAG_TRAP | FLAG_DIRECTION | FLAG_RESUME);
        // No state to restore: the handler starts with the initial vector state.
        self.fpstate = 0;
    }
}

/// The kernel's `struct ucontext`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Context {
    pub flags: u64,
    pub link: u64,
    pub stack: AltStack,
    pub regs: Registers,
    pub mask: u64,
}

/// `siginfo_t`, as far as the agent looks into it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct SigInfo {
    pub signo: i32,
    pub errno: i32,
    pub code: i32,
    pub pad: i32,
    /// SIGBUS, SIGSEGV: the address of the access; SIGSYS: the address after the instruction.
    pub addr: u64,
    /// SIGSYS: the call's number.
    pub syscall: i32,
    /// SIGSYS: the architecture of the call.
    pub arch: u32,
    pub rest: [u64; 12],
}

impl SigInfo {
    /// All fields zero.
    pub const ZERO: Self = Self { signo: 0, errno: 0, code: 0, pad: 0, addr: 0, syscall: 0, arch: 0, rest: [0; 12] };

    /// True when the kernel raised the signal for something the thread itself did.
    pub fn is_fault(&self) -> bool {
        const SIGBUS: i32 = 7;
        /// SIGILL, SIGTRAP, SIGBUS, SIGFPE, SIGSEGV, SIGSYS. Other signals have positive codes too: timers, children, files.
        const SYNCHRONOUS: [i32; 6] = [4, 5, SIGBUS, 8, 11, 31];
        const BUS_MCEERR_AO: i32 = 5;
        self.code > 0 && SYNCHRONOUS.contains(&self.signo) && !(self.signo == SIGBUS && self.code == BUS_MCEERR_AO)
    }
}

/// `struct rt_sigframe`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Frame {
    pub restorer: u64,
    pub context: Context,
    pub info: SigInfo,
}

const _: () = assert!(size_of::<Registers>() == 256);
const _: () = assert!(size_of::<Context>() == 304);
const _: () = assert!(size_of::<SigInfo>() == SIGINFO_BYTES);
const _: () = assert!(size_of::<Frame>() == 440);

/// Where a frame goes: the addresses of the [`Frame`] and of its vector state (0 without one).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    pub frame: u64,
    pub fpstate: u64,
}

/// Places a frame with `fpstate_bytes` of vector state below `sp`.
pub fn place(sp: u64, fpstate_bytes: usize) -> Place {
    let mut sp = sp;
    let mut fpstate = 0;
    if fpstate_bytes > 0 {
        sp = sp.wrapping_sub(fpstate_bytes as u64) & !63;
        fpstate = sp;
    }
    let frame = (sp.wrapping_sub(size_of::<Frame>() as u64) & !15).wrapping_sub(8);
    Place { frame, fpstate }
}

/// Bytes of the vector state that begins with `legacy`, its first 512 bytes.
pub fn fpstate_bytes(legacy: &[u8; FXSAVE_BYTES]) -> usize {
    let word = |at: usize| {
        let mut bytes = [0u8; 4];
        bytes.copy_from_slice(&legacy[at..at + 4]);
        u32::from_le_bytes(bytes)
    };
    if word(SW_BYTES_AT) != FP_XSTATE_MAGIC1 {
        return FXSAVE_BYTES;
    }
    (word(SW_BYTES_AT + 4) as usize).clamp(FXSAVE_BYTES, FPSTATE_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_placed_as_a_called_function_expects_its_stack() {
        let at = place(0x7fff_0000_1234, 2696);
        assert_eq!(at.frame % 16, 8);
        assert_eq!(at.fpstate % 64, 0);
    }

    #[test]
    fn frame_and_vector_state_do_not_overlap() {
        let at = place(0x7fff_0000_1234, 2696);
        assert!(at.frame + 440 <= at.fpstate && at.fpstate + 2696 <= 0x7fff_0000_1234);
    }

    #[test]
    fn a_legacy_vector_state_has_512_bytes() {
        assert_eq!(fpstate_bytes(&[0; 512]), 512);
    }

    #[test]
    fn an_extended_vector_state_says_its_size() {
        let mut legacy = [0u8; 512];
        legacy[464..468].copy_from_slice(&0x4650_5853u32.to_le_bytes());
        legacy[468..472].copy_from_slice(&2700u32.to_le_bytes());
        assert_eq!(fpstate_bytes(&legacy), 2700);
    }

    #[test]
    fn a_stack_segment_is_told_from_what_is_none() {
        assert!(is_stack_segment(USER_DS));
        for selector in [0, USER_CS, 0x7, 0xffff, 0x10] {
            assert!(!is_stack_segment(selector), "{selector:x}");
        }
    }

    #[test]
    fn a_timers_signal_is_no_fault() {
        let info = SigInfo { signo: 14, code: 0x80, ..SigInfo::ZERO };
        assert!(!info.is_fault());
    }

    #[test]
    fn an_asynchronous_memory_error_is_no_fault() {
        let info = SigInfo { signo: 7, code: 5, ..SigInfo::ZERO };
        assert!(!info.is_fault());
    }
}
