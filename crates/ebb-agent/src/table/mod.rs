//! What every system call of Linux on x86-64 does with its arguments: which point to memory, to how much, and in which
//! direction the bytes travel.
//!
//! The kernel answers EFAULT for a page that Ebb evicted. So the guard must know every byte that a call will touch
//! before the call is made. This room owns that knowledge and nothing else. It is pure: it neither reads memory by
//! itself nor makes calls. [`row`] is one array lookup. [`walk::visit_row`] turns a row and the actual arguments into
//! ranges of memory.
//!
//! Invariants:
//! * Every number that the kernel defines has a row. A number without a row is treated as [`UNKNOWN`]: each argument
//!   may be a pointer.
//! * A row without pointers has [`Flags::NO_POINTERS`], which is all that the hot path looks at.
//! * A row never says less than the kernel touches. If the kernel's own size is unknown, the row says
//!   [`Flags::UNSIZED`]. A call that failed is then repeated with more brought in, if that is harmless: [`may_repeat`].
//!   For the `ioctl` of a driver it is not, so what the call may touch is guessed before the first try.

mod ioctl;
mod rows;
mod scan;
mod special;
pub mod visit;
pub mod walk;

#[cfg(test)]
mod tests;

pub use rows::row;

/// Which way the bytes behind a pointer travel, from the kernel's point of view.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Dir {
    /// The kernel reads them.
    In = 0,
    /// The kernel writes them.
    Out = 1,
    /// Both.
    InOut = 2,
}

impl Dir {
    /// True when the kernel may write.
    pub const fn writes(self) -> bool {
        !matches!(self, Self::In)
    }
}

/// What one argument is. Packed into 16 bits in a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// A number.
    Value,
    /// A structure of this many bytes.
    Fixed(u16),
    /// An array: argument `count` times `element` bytes. The count is 32 bits wide if `narrow`.
    Array { count: u8, element: u8, narrow: bool },
    /// A buffer whose length is the 32-bit word that argument `len_ptr` points to.
    LenPtr { len_ptr: u8 },
    /// A bit mask with as many bits as argument `bits` says.
    Bits { bits: u8 },
    /// A string that ends with a zero byte, at most a path long.
    Str,
    /// An array of pointers to strings that ends with a null pointer.
    StrArray,
    /// An array of as many `iovec` as argument `count` says. The direction is the one of the buffers.
    Iovec { count: u8 },
    /// A `msghdr` with its name, vectors and control bytes. The direction is the one of the data.
    Msghdr,
    /// An array of as many `mmsghdr` as argument `count` says.
    Mmsghdr { count: u8 },
    /// An `fd_set` for as many descriptors as argument `nfds` says.
    FdSet { nfds: u8 },
    /// A structure that holds its own size, in the 32-bit word at byte `at`. It has at least `least` bytes.
    SelfSized { at: u8, least: u8 },
    /// A pointer to a signal set and its size, as in the last argument of pselect6.
    SigsetArg,
    /// A pointer to something of unknown size.
    Probe,
    /// This many bytes that the kernel uses after the call, too: they must stay resident for good.
    Exclude(u16),
    /// Like [`Shape::Exclude`], with the bytes that argument `len` says.
    ExcludeLen { len: u8 },
}

/// One argument, packed. Bits 0-1 are the direction, bits 2-6 the shape, bits 7-15 the shape's parameter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arg(u16);

const PARAM_SHIFT: u16 = 7;
const PARAM_MAX: u16 = (1 << (16 - PARAM_SHIFT)) - 1;

impl Arg {
    /// A number.
    pub const VALUE: Self = Self(0);

    /// Packs a shape.
    ///
    /// # Panics
    /// At compile time, because all callers are constants: when a parameter does not fit.
    pub const fn new(dir: Dir, shape: Shape) -> Self {
        let (code, param) = match shape {
            Shape::Value => (0, 0),
            Shape::Fixed(bytes) => (1, bytes),
            Shape::Array { count, element, narrow } => {
                assert!(element < 64);
                (if narrow { 3 } else { 2 }, count as u16 | (element as u16) << 3)
            }
            Shape::LenPtr { len_ptr } => (4, len_ptr as u16),
            Shape::Bits { bits } => (5, bits as u16),
            Shape::Str => (6, 0),
            Shape::StrArray => (7, 0),
            Shape::Iovec { count } => (8, count as u16),
            Shape::Msghdr => (9, 0),
            Shape::Mmsghdr { count } => (10, count as u16),
            Shape::FdSet { nfds } => (11, nfds as u16),
            // The size stands at byte 0 or 4, and the least size is a multiple of 8: three bits and six.
            Shape::SelfSized { at, least } => {
                assert!(at < 8 && least.is_multiple_of(8));
                (12, at as u16 | (least as u16 / 8) << 3)
            }
            Shape::SigsetArg => (13, 0),
            Shape::Probe => (14, 0),
            Shape::Exclude(bytes) => (15, bytes),
            Shape::ExcludeLen { len } => (16, len as u16),
        };
        assert!(param <= PARAM_MAX);
        Self(dir as u16 | code << 2 | param << PARAM_SHIFT)
    }

    /// The direction.
    pub const fn dir(self) -> Dir {
        match self.0 & 3 {
            0 => Dir::In,
            1 => Dir::Out,
            _ => Dir::InOut,
        }
    }

    /// The shape.
    pub const fn shape(self) -> Shape {
        let param = self.0 >> PARAM_SHIFT;
        let low = param as u8;
        match (self.0 >> 2) & 31 {
            0 => Shape::Value,
            1 => Shape::Fixed(param),
            code @ (2 | 3) => Shape::Array { count: low & 7, element: (param >> 3) as u8, narrow: code == 3 },
            4 => Shape::LenPtr { len_ptr: low },
            5 => Shape::Bits { bits: low },
            6 => Shape::Str,
            7 => Shape::StrArray,
            8 => Shape::Iovec { count: low },
            9 => Shape::Msghdr,
            10 => Shape::Mmsghdr { count: low },
            11 => Shape::FdSet { nfds: low },
            12 => Shape::SelfSized { at: low & 7, least: (param >> 3) as u8 * 8 },
            13 => Shape::SigsetArg,
            14 => Shape::Probe,
            15 => Shape::Exclude(param),
            _ => Shape::ExcludeLen { len: low },
        }
    }
}

/// Properties of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flags(u8);

impl Flags {
    /// Nothing special.
    pub const NONE: Self = Self(0);
    /// No argument points to memory that the kernel touches: nothing to bring in, nothing to pin.
    pub const NO_POINTERS: Self = Self(1);
    /// If the call fails with EFAULT, it has had no effect that a second attempt would repeat or miss.
    pub const SIDE_EFFECT_FREE_ON_EFAULT: Self = Self(2);
    /// The call may sleep as long as somebody else pleases, with its buffers pinned.
    pub const MAY_BLOCK: Self = Self(4);
    /// Another room of the agent emulates or inspects this call. The row says only what the call touches.
    pub const HANDLED: Self = Self(8);
    /// The kernel may touch more than the visitor can name.
    pub const UNSIZED: Self = Self(16);

    /// True if all flags of `other` are set.
    #[inline]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// These flags without those of `other`.
    pub(crate) const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// The flags of both.
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// How a transfer too large to pin can be made in pieces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Split {
    /// It cannot.
    No,
    /// `read(fd, buf, len)`.
    Read,
    /// `write(fd, buf, len)`.
    Write,
    /// `pread64(fd, buf, len, offset)`.
    Pread,
    /// `pwrite64(fd, buf, len, offset)`.
    Pwrite,
    /// `readv(fd, iov, n)`.
    Readv,
    /// `writev(fd, iov, n)`.
    Writev,
    /// `preadv(fd, iov, n, offset, unused)`.
    Preadv,
    /// `pwritev(fd, iov, n, offset, unused)`.
    Pwritev,
    /// `preadv2(fd, iov, n, offset, unused, flags)`.
    Preadv2,
    /// `pwritev2(fd, iov, n, offset, unused, flags)`.
    Pwritev2,
    /// `recvfrom(fd, buf, len, flags, addr, addr_len)`.
    Recvfrom,
    /// `sendto(fd, buf, len, flags, addr, addr_len)`.
    Sendto,
    /// `recvmsg(fd, msg, flags)`.
    Recvmsg,
    /// `sendmsg(fd, msg, flags)`.
    Sendmsg,
    /// `recvmmsg(fd, messages, n, flags, timeout)`.
    Recvmmsg,
    /// `getrandom(buf, len, flags)`.
    Getrandom,
    /// `getdents64(fd, buf, len)` and its predecessor `getdents`.
    Getdents,
    /// `process_vm_readv(pid, iov, n, remote_iov, remote_n, flags)`, and `process_vm_writev`.
    ProcessVm,
}

/// Calls whose arguments change their meaning with an option among them. [`special`] knows what they mean.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Special {
    None,
    Bpf,
    Clone,
    Clone3,
    Fcntl,
    FileHandle,
    Fsconfig,
    Futex,
    FutexRequeue,
    FutexWait,
    FutexWaitv,
    Getsockopt,
    Ioctl,
    IoSubmit,
    IoUringEnter,
    IoUringRegister,
    Kcmp,
    Keyctl,
    Landlock,
    Mincore,
    Mount,
    MqNotify,
    Msgctl,
    Msgrcv,
    Msgsnd,
    Prctl,
    ProcessVm,
    Ptrace,
    Quotactl,
    QuotactlFd,
    Seccomp,
    Semctl,
    Setsockopt,
    Shmctl,
    Vmsplice,
    Write,
    XattrIn,
    XattrOut,
    /// Nothing is known: every argument may be a pointer.
    Unknown,
}

/// One system call.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    args: [Arg; 6],
    /// Properties.
    pub flags: Flags,
    /// How it can be split.
    pub split: Split,
    pub(crate) special: Special,
    /// True if the kernel defines the row's number.
    pub defined: bool,
}

impl Row {
    /// True if an option among the arguments says what the others are.
    #[cfg(test)]
    pub fn has_special(&self) -> bool {
        self.special != Special::None
    }

    /// The arguments, in order.
    pub const fn args(&self) -> &[Arg; 6] {
        &self.args
    }
}

/// True if a call that failed with EFAULT has had no effect that a second attempt would repeat or miss.
pub fn may_repeat(row: &Row, args: &[u64; 6]) -> bool {
    row.flags.has(Flags::SIDE_EFFECT_FREE_ON_EFAULT)
        && (row.special != Special::Ioctl || ioctl::may_repeat(args[1] as u32))
}

/// The row of a number that nobody knows.
pub static UNKNOWN: Row = Row {
    args: [Arg::VALUE; 6],
    flags: Flags::SIDE_EFFECT_FREE_ON_EFAULT.with(Flags::MAY_BLOCK).with(Flags::UNSIZED),
    split: Split::No,
    special: Special::Unknown,
    defined: false,
};
