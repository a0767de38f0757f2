//! Decides in how many pieces to make a call, by the file behind its descriptor.

use crate::guard::split::{
    DoCall, Header, MSG_DONTWAIT, MSG_ERRQUEUE, MSG_OOB, MSG_PEEK, MSG_WAITALL, MSG_ZEROCOPY, RWF_ATOMIC, RWF_NOWAIT,
    is_read, piece, piece_bytes_max,
};
use crate::guard::{Memory, NOT_MADE};
use crate::kept::refused;
use crate::table::Split;
use core::mem::MaybeUninit;
use linux_raw_sys::{general as g, ioctl};

/// Devices that are memory: null, zero, full, random.
const MAJOR_MEM: u64 = 1;
/// Terminals: virtual ones, those on serial lines, and consoles.
const MAJORS_TERMINAL: [u64; 14] = [4, 5, 136, 137, 138, 139, 140, 141, 142, 143, 166, 188, 204, 229];
/// The other side of a pseudo-terminal: `/dev/ptmx`.
const DEVICE_MASTER: (u64, u64) = (5, 2);

/// In how many pieces a call is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Policy {
    /// One piece, as the call is.
    Whole,
    /// One piece, cut to what can be pinned.
    Once,
    /// One piece, then as many as there is data for already. The further pieces wait for nothing.
    ReadOn(NoWait),
    /// As many pieces as it takes, from or to a file. No signal ends the call.
    LoopFile,
    /// As many pieces as it takes.
    Loop,
    /// As many pieces as it takes, into a socket. If the peer goes away after the first piece, the count is short and
    /// no signal is sent.
    LoopSocket,
}

/// How to keep a further piece of a stream from waiting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NoWait {
    /// Make the same call: it waits for nothing.
    Same,
    /// By a flag of the socket calls.
    Socket,
    /// By a flag of preadv2.
    File,
}

/// In how many pieces a call is made, and how large they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Plan {
    pub policy: Policy,
    /// The pieces may wait for any length of time, so they pin no more than other calls leave.
    pub waits: bool,
    /// The call waits for nothing, so no signal ends it between two pieces.
    pub never_waits: bool,
}

impl Plan {
    fn waiting(policy: Policy) -> Self {
        Self { policy, waits: true, never_waits: false }
    }

    fn stream(policy: Policy, never_waits: bool) -> Self {
        Self { policy, waits: !never_waits, never_waits }
    }

    /// Bytes of one piece of a call that transfers `total` bytes.
    pub fn bytes_max<M: Memory>(self, mem: &M, total: u64) -> u64 {
        match self.waits {
            true => piece_bytes_max(mem.piece_max()),
            false if total <= mem.pin_max() => total,
            false => piece_bytes_max(mem.pin_max()),
        }
    }

    /// True if no signal ends the call once `done` bytes are done.
    pub fn goes_on(self, done: u64) -> bool {
        match self.policy {
            Policy::LoopFile => true,
            Policy::ReadOn(_) => done > 0,
            _ => self.never_waits && done > 0,
        }
    }
}

impl From<Policy> for Plan {
    fn from(policy: Policy) -> Self {
        Self { policy, waits: false, never_waits: false }
    }
}

/// A signal came before anything was transferred: the call is to be made again.
pub(super) struct NotMade;

/// Asks the kernel about the descriptor. Returns its answer, or none if a filter would kill for the question.
fn answer<M: Memory>(mem: &M, nr: u32, args: &[u64; 6], do_call: DoCall<'_>) -> Result<Option<i64>, NotMade> {
    if !refused::may_make(nr) {
        return Ok(None);
    }
    match piece(mem, nr as u64, args, do_call) {
        NOT_MADE => Err(NotMade),
        ret => Ok(Some(ret)),
    }
}

/// Asks as [`answer`] does. True if the kernel answered with success.
fn ask<M: Memory>(mem: &M, nr: u32, args: &[u64; 6], do_call: DoCall<'_>) -> Result<bool, NotMade> {
    Ok(answer(mem, nr, args, do_call)? == Some(0))
}

/// Decides how to make a call of `total` bytes that cannot be made like any other: its bytes cannot be pinned at once,
/// or other calls have pinned much.
pub(super) fn plan<M: Memory>(
    mem: &M,
    split: Split,
    args: &[u64; 6],
    total: u64,
    do_call: DoCall<'_>,
) -> Result<Plan, NotMade> {
    let flags = match split {
        Split::Getrandom => return Ok(Policy::Loop.into()),
        Split::Getdents => return Ok(Policy::Once.into()),
        Split::Preadv2 | Split::Pwritev2 => args[5],
        Split::Recvfrom | Split::Sendto => args[3],
        Split::Recvmsg | Split::Sendmsg => args[2],
        _ => 0,
    };
    if split == Split::Pwritev2 && flags & RWF_ATOMIC != 0 {
        return Ok(Policy::Whole.into());
    }
    const AT_EMPTY_PATH: u64 = 0x1000;
    let mut stat = MaybeUninit::<g::stat>::zeroed();
    let at = stat.as_mut_ptr() as u64;
    // A filter that refuses the first call allows the second, which today's libraries use.
    if !ask(mem, g::__NR_fstat, &[args[0], at, 0, 0, 0, 0], do_call)?
        && !ask(mem, g::__NR_newfstatat, &[args[0], c"".as_ptr() as u64, at, AT_EMPTY_PATH, 0, 0], do_call)?
    {
        return Ok(Policy::Whole.into());
    }
    // SAFETY: any bytes are a valid `stat`.
    let stat = unsafe { stat.assume_init() };
    let (major, minor) = ((stat.st_rdev >> 8) & 0xfff, stat.st_rdev & 0xff);
    let reads = is_read(split);
    Ok(match stat.st_mode & g::S_IFMT {
        g::S_IFREG | g::S_IFBLK => Policy::LoopFile.into(),
        g::S_IFCHR if major == MAJOR_MEM => Policy::Loop.into(),
        g::S_IFCHR if !MAJORS_TERMINAL.contains(&major) => match total <= mem.pin_max() {
            true => Policy::Whole.into(),
            false if reads => Policy::Once.into(),
            false => Policy::Loop.into(),
        },
        kind @ (g::S_IFCHR | g::S_IFIFO) => {
            let status = answer(mem, g::__NR_fcntl, &[args[0], g::F_GETFL as u64, 0, 0, 0, 0], do_call)?;
            // If this cannot be asked, assume that the descriptor waits.
            let status = status.filter(|flags| *flags >= 0).unwrap_or(0) as u32;
            let by_call = matches!(split, Split::Preadv2 | Split::Pwritev2) && flags & RWF_NOWAIT != 0;
            let never_waits = status & g::O_NONBLOCK != 0 || by_call;
            let policy = if !reads {
                Policy::Loop
            } else if kind == g::S_IFIFO && status & g::O_DIRECT != 0 {
                // A pipe of packets: a read drops what it leaves of a packet.
                return Ok(Policy::Whole.into());
            } else if kind == g::S_IFIFO || is_plain_terminal(mem, args[0], (major, minor), do_call)? {
                Policy::ReadOn(if never_waits { NoWait::Same } else { NoWait::File })
            } else {
                Policy::Once
            };
            Plan::stream(policy, never_waits)
        }
        g::S_IFSOCK => return socket_plan(mem, split, args, flags, total, do_call),
        // Descriptors of no file (inotify, timers) give whole records, up to the buffer's size.
        _ if reads => Policy::Once.into(),
        _ => Policy::Whole.into(),
    })
}

/// True for a terminal whose reads end at no particular place, neither at the end of a line nor of a packet.
fn is_plain_terminal<M: Memory>(mem: &M, fd: u64, device: (u64, u64), do_call: DoCall<'_>) -> Result<bool, NotMade> {
    let mut word = 0u32;
    let mut flag = |request: u32| {
        let asked = ask(mem, g::__NR_ioctl, &[fd, request as u64, &raw mut word as u64, 0, 0, 0], do_call)?;
        Ok(asked.then_some(word))
    };
    if device == DEVICE_MASTER {
        return Ok(flag(ioctl::TIOCGPKT)? == Some(0));
    }
    // Line discipline 0 is the one of terminals.
    if flag(ioctl::TIOCGETD)? != Some(0) {
        return Ok(false);
    }
    let mut settings = MaybeUninit::<g::termios>::zeroed();
    let at = settings.as_mut_ptr() as u64;
    let asked = ask(mem, g::__NR_ioctl, &[fd, ioctl::TCGETS as u64, at, 0, 0, 0], do_call)?;
    // SAFETY: any bytes are a valid `termios`.
    Ok(asked && unsafe { settings.assume_init() }.c_lflag & g::ICANON == 0)
}

fn socket_plan<M: Memory>(
    mem: &M,
    split: Split,
    args: &[u64; 6],
    flags: u64,
    total: u64,
    do_call: DoCall<'_>,
) -> Result<Plan, NotMade> {
    const SOL_SOCKET: u64 = 1;
    const SO_TYPE: u64 = 3;
    const SO_PROTOCOL: u64 = 38;
    const SOCK_STREAM: u32 = 1;
    const IPPROTO_SCTP: u32 = 132;
    let mut option = |name| {
        // The value and its length.
        let mut option = [0u32, 4];
        let at = option.as_mut_ptr() as u64;
        let known = ask(mem, g::__NR_getsockopt, &[args[0], SOL_SOCKET, name, at, at + 4, 0], do_call)?;
        Ok(known.then_some(option[0]))
    };
    // An SCTP stream consists of messages.
    let is_stream = option(SO_TYPE)? == Some(SOCK_STREAM) && option(SO_PROTOCOL)? != Some(IPPROTO_SCTP);
    let (reads, fits) = (is_read(split), total <= mem.pin_max());
    let by_call = match split {
        Split::Preadv2 | Split::Pwritev2 => flags & RWF_NOWAIT != 0,
        _ => flags & MSG_DONTWAIT != 0,
    };
    // The flags of preadv2 and pwritev2 are not MSG flags.
    let flags = if matches!(split, Split::Preadv2 | Split::Pwritev2) { 0 } else { flags };
    if !is_stream || flags & MSG_OOB != 0 || reads && flags & MSG_ERRQUEUE != 0 {
        return Ok(Policy::Whole.into());
    }
    let never_waits = by_call || {
        let status = answer(mem, g::__NR_fcntl, &[args[0], g::F_GETFL as u64, 0, 0, 0, 0], do_call)?;
        status.is_some_and(|flags| flags >= 0 && flags as u32 & g::O_NONBLOCK != 0)
    };
    if !reads {
        return Ok(match flags & MSG_ZEROCOPY != 0 {
            true if fits => Policy::Whole.into(),
            true => Policy::Once.into(),
            false => Plan::stream(Policy::LoopSocket, never_waits),
        });
    }
    // A call that waits for nothing does not wait for all bytes either.
    if flags & MSG_PEEK == 0 && (flags & MSG_WAITALL == 0 || never_waits) {
        let how = if never_waits { NoWait::Same } else { NoWait::Socket };
        return Ok(Plan::stream(Policy::ReadOn(how), never_waits));
    }
    // Control data belongs to a place in the stream: a second piece would lose it.
    let has_control = split == Split::Recvmsg && Header::read(mem, args[1]).is_none_or(|h| h.control_len != 0);
    Ok(match has_control || flags & MSG_PEEK != 0 {
        false => Plan::waiting(Policy::Loop),
        // A program that asks for this much may take less for the end of the data.
        true if fits => Policy::Whole.into(),
        true => Policy::Once.into(),
    })
}
