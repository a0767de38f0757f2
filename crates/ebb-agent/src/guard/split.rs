//! Transfers larger than a call may pin, or with buffers more scattered, made in pieces.
//!
//! What the program sees must be what one call could have done:
//!
//! * regular files, block devices and memory devices (`/dev/zero`): pieces until all is done, or one comes back short
//!   (end of file, full disk, file size limit), or fails; an error after a piece was done is the done count. Each
//!   piece is a whole number of pages, so that direct I/O stays aligned;
//! * reading a stream (pipe, stream socket, terminal): one piece. Less than asked for is what a stream may give; only
//!   with MSG_WAITALL it is read on;
//! * writing a stream: pieces until all is written, as a blocking write is; a short piece ends it, which on a
//!   descriptor that does not block means that the stream is full, and on one that does that a signal came. With
//!   MSG_ZEROCOPY it is one piece: the kernel tells the end of each call that it was made;
//! * other devices (FUSE, tapes), whose calls are messages: one piece, if that can be pinned;
//! * several messages in one call (`recvmmsg`): as many at a time as can be pinned;
//! * memory of processes: pieces until all is done or one comes back short, which is where the memory of one side ends;
//! * messages (datagrams, sequenced packets, RWF_ATOMIC writes) are one piece whatever they cost: the guard pins what
//!   fits, which is where a message is.
//!
//! A write whose bytes would fit and whose buffers only are scattered is tried in one, so that appends and small writes
//! to pipes stay whole: its pages are brought in, and pinned as far as that goes. What an eviction in that moment cuts
//! short goes on in pieces.
//!
//! What can be pinned is a sixteenth of the budget. Of streams it is less, down to 64 KiB, while other calls have pinned much:
//! threads may wait in such calls for ever.
//!
//! Not kept: a write larger than what can be pinned is not atomic against other writers of the same file or stream between its
//! pieces; a socket's timeouts begin anew with each piece; of `recvmmsg`, a socket's error that comes between the look for one
//! and the next piece's first message is not told again by the next call; and a vector that is changed during the call, by its
//! own transfer or by somebody else, counts as it is when its turn comes.

mod process_vm;
pub(super) mod recvmmsg;

use super::{Before, Memory, NOT_MADE, Pinner, prepare};
use crate::refused;
use crate::table::visit::{Buffer, IOV_MAX, Kind, PAGE_BYTES, RW_BYTES_MAX};
use crate::table::{self, Split};
use core::mem::{MaybeUninit, offset_of};
use linux_raw_sys::{errno, general as g};

const EFAULT: i64 = errno::EFAULT as i64;

type DoCall<'a> = &'a mut dyn FnMut(u64, &[u64; 6]) -> i64;

const MSG_OOB: u64 = 0x1;
const MSG_PEEK: u64 = 0x2;
const MSG_DONTWAIT: u64 = 0x40;
const MSG_WAITALL: u64 = 0x100;
const MSG_ERRQUEUE: u64 = 0x2000;
const MSG_NOSIGNAL: u64 = 0x4000;
const MSG_ZEROCOPY: u64 = 0x400_0000;
const MSG_FASTOPEN: u64 = 0x2000_0000;
const RWF_NOWAIT: u64 = 0x8;
const RWF_ATOMIC: u64 = 0x40;
/// End of user addresses as the kernel checks them for every vector before it transfers anything.
const TASK_END: u64 = 0x7fff_ffff_f000;
/// Entries of a piece's vector.
const PIECE_VECTORS: usize = 64;
/// Entries when those of a piece are too far apart to be pinned together.
const SCATTERED_VECTORS: usize = 4;
/// Bytes that a pipe takes in one (`PIPE_BUF`).
const PIPE_BUF: u64 = 4096;
/// A device that is memory: null, zero, full, random.
const MAJOR_MEM: u64 = 1;
/// Terminals, the virtual ones and those at serial lines, and consoles.
const MAJORS_TERMINAL: [u64; 14] = [4, 5, 136, 137, 138, 139, 140, 141, 142, 143, 166, 188, 204, 229];
/// Bytes of a piece that is made whatever others have pinned.
const PIECE_SMALL: u64 = super::PIECE_BYTES_MIN - SLACK;
/// What pieces are smaller than what can be pinned: partial pages, vectors and headers.
const SLACK: u64 = 4 * PAGE_BYTES;
/// The answer of a piece that was not made because others have pinned much meanwhile. No call answers so.
const TOO_MUCH: i64 = -4096;

/// In how many pieces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Policy {
    /// One, as it is.
    Whole,
    /// One, cut to what can be pinned.
    Once,
    /// As many as it takes, from or to a file: no signal ends it.
    LoopFile,
    /// As many as it takes.
    Loop,
    /// Likewise, into a socket: a peer that goes away after the first piece makes a short count, and no signal.
    LoopSocket,
}

/// The pieces, and how large they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Plan {
    policy: Policy,
    /// They may wait for as long as they like, so they pin no more than others leave.
    waits: bool,
}

impl Plan {
    fn waiting(policy: Policy) -> Self {
        Self { policy, waits: true }
    }

    /// Bytes of a piece of a call with so many.
    fn bytes_max<M: Memory>(self, mem: &M, total: u64) -> u64 {
        match self.waits {
            true => piece_bytes_max(mem.piece_max()),
            false if total <= mem.pin_max() => total,
            false => piece_bytes_max(mem.pin_max()),
        }
    }
}

impl From<Policy> for Plan {
    fn from(policy: Policy) -> Self {
        Self { policy, waits: false }
    }
}

/// Makes a call in pieces; its answer.
pub(super) fn run<M: Memory>(mem: &M, nr: u64, args: &[u64; 6], do_call: DoCall<'_>) -> i64 {
    let split = table::row(nr).split;
    debug_assert!(split != Split::No);
    if split == Split::ProcessVm {
        return process_vm::run(mem, nr, args, do_call);
    }
    if split == Split::Recvmmsg {
        return recvmmsg::run(mem, nr, args, do_call);
    }
    let (buffer_at, len_at) = if split == Split::Getrandom { (0, 1) } else { (1, 2) };
    let len = if split == Split::Getdents { args[len_at] as u32 as u64 } else { args[len_at] };
    let vector = if is_vectored(split) { Vector::of(mem, split, args) } else { None };
    let total = vector.map_or(len, |vector| vector.total).min(RW_BYTES_MAX);
    let plan = match plan(mem, split, args, total, do_call) {
        Ok(plan) => plan,
        Err(NotMade) => return NOT_MADE,
    };
    if plan.policy == Policy::Whole {
        return whole(mem, nr, split, args, do_call);
    }
    if is_vectored(split) {
        // Without one, the kernel will say what is wrong with it.
        let Some(mut vector) = vector else { return piece(mem, nr, args, do_call) };
        let done = match in_one(mem, nr, split, args, &mut vector, plan.policy, do_call) {
            Ok(done) => done,
            Err(answer) => return answer,
        };
        return vectored(mem, nr, split, args, vector, done, plan, do_call);
    }
    if !is_user_range(args[buffer_at], len) {
        return piece(mem, nr, args, do_call);
    }
    scalar(mem, nr, split, args, Scalar { buffer_at, len_at, total }, plan, do_call)
}

/// A signal came before anything was transferred: the call is to be made anew.
struct NotMade;

/// A question to the kernel about the descriptor: whether it answered with success.
fn ask<M: Memory>(mem: &M, nr: u32, args: &[u64; 6], do_call: DoCall<'_>) -> Result<bool, NotMade> {
    if !refused::may_make(nr) {
        return Ok(false);
    }
    match piece(mem, nr as u64, args, do_call) {
        NOT_MADE => Err(NotMade),
        ret => Ok(ret == 0),
    }
}

/// Bytes of one piece where so many can be pinned.
fn piece_bytes_max(pinned_max: u64) -> u64 {
    const ROUND: u64 = 64 << 10;
    let bytes = pinned_max.saturating_sub(SLACK);
    let bytes = if bytes >= 4 * ROUND { bytes - bytes % ROUND } else { bytes - bytes % PAGE_BYTES };
    bytes.max(PAGE_BYTES)
}

/// Makes one call with its buffers pinned as far as they fit.
fn piece<M: Memory>(mem: &M, nr: u64, args: &[u64; 6], do_call: DoCall<'_>) -> i64 {
    match prepare(mem, table::row(nr), nr, args, false) {
        Before::Fail(answer) => answer,
        Before::Pinned => {
            let ret = do_call(nr, args);
            mem.pin_end();
            ret
        }
        Before::Plain | Before::Split => do_call(nr, args),
    }
}

/// As [`piece`], unless its pins are more than others leave: [`TOO_MUCH`].
fn modest_piece<M: Memory>(mem: &M, nr: u64, args: &[u64; 6], do_call: DoCall<'_>) -> i64 {
    match prepare(mem, table::row(nr), nr, args, true) {
        Before::Fail(answer) => answer,
        Before::Pinned => {
            let ret = do_call(nr, args);
            mem.pin_end();
            ret
        }
        Before::Plain => do_call(nr, args),
        Before::Split => TOO_MUCH,
    }
}

/// Makes a call that cannot be made in pieces. A message that was refused for an evicted page was not sent.
fn whole<M: Memory>(mem: &M, nr: u64, split: Split, args: &[u64; 6], do_call: DoCall<'_>) -> i64 {
    let tries = if matches!(split, Split::Sendto | Split::Sendmsg) { super::TRIES_MAX } else { 1 };
    let mut ret = -EFAULT;
    for _ in 0..tries {
        ret = piece(mem, nr, args, do_call);
        if ret != -EFAULT {
            break;
        }
    }
    ret
}

/// Tries a write whose bytes can be pinned in one call, although its buffers are scattered: what is done of it, or the
/// answer.
fn in_one<M: Memory>(
    mem: &M,
    nr: u64,
    split: Split,
    args: &[u64; 6],
    vector: &mut Vector,
    policy: Policy,
    do_call: DoCall<'_>,
) -> Result<u64, i64> {
    let bytes_max = if policy == Policy::LoopFile { piece_bytes_max(mem.pin_max()) } else { PIPE_BUF };
    if is_read(split) || vector.total > bytes_max {
        return Ok(0);
    }
    match one_of(mem, nr, args, (policy, false), do_call) {
        ret if ret == -EFAULT => Ok(0),
        ret if ret >= 0 && (ret as u64) < vector.total && policy == Policy::LoopFile => {
            vector.skip(mem, ret as u64).map(|()| ret as u64).ok_or(ret)
        }
        ret => Err(ret),
    }
}

/// As [`piece`] or [`modest_piece`], for one of several: a file is read or written to its end also when a signal comes in
/// between.
fn one_of<M: Memory>(
    mem: &M,
    nr: u64,
    args: &[u64; 6],
    (policy, is_modest): (Policy, bool),
    do_call: DoCall<'_>,
) -> i64 {
    /// Signals within one piece before it counts as failed.
    const SIGNALS_MAX: u32 = 1 << 16;
    for _ in 0..SIGNALS_MAX {
        let ret = if is_modest { modest_piece(mem, nr, args, do_call) } else { piece(mem, nr, args, do_call) };
        if ret != NOT_MADE || policy != Policy::LoopFile {
            return ret;
        }
    }
    -(errno::EINTR as i64)
}

/// The kernel's own first check of a buffer.
fn is_user_range(addr: u64, len: u64) -> bool {
    addr.checked_add(len).is_some_and(|end| end <= TASK_END)
}

fn is_vectored(split: Split) -> bool {
    use Split::*;
    matches!(split, Readv | Writev | Preadv | Pwritev | Preadv2 | Pwritev2 | Recvmsg | Sendmsg)
}

fn is_read(split: Split) -> bool {
    use Split::*;
    matches!(split, Read | Pread | Readv | Preadv | Preadv2 | Recvfrom | Recvmsg | Getrandom | Getdents)
}

/// How a call with `total` bytes is made, which cannot be made as any other: they cannot be pinned, or others have pinned much.
fn plan<M: Memory>(mem: &M, split: Split, args: &[u64; 6], total: u64, do_call: DoCall<'_>) -> Result<Plan, NotMade> {
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
    // A filter that refuses the first allows the second, which is what today's libraries use.
    if !ask(mem, g::__NR_fstat, &[args[0], at, 0, 0, 0, 0], do_call)?
        && !ask(mem, g::__NR_newfstatat, &[args[0], c"".as_ptr() as u64, at, AT_EMPTY_PATH, 0, 0], do_call)?
    {
        return Ok(Policy::Whole.into());
    }
    // SAFETY: any bytes are a valid `stat`.
    let stat = unsafe { stat.assume_init() };
    let major = (stat.st_rdev >> 8) & 0xfff;
    let reads = is_read(split);
    Ok(match stat.st_mode & g::S_IFMT {
        g::S_IFREG | g::S_IFBLK => Policy::LoopFile.into(),
        g::S_IFCHR if major == MAJOR_MEM => Policy::Loop.into(),
        g::S_IFCHR if !MAJORS_TERMINAL.contains(&major) => match total <= mem.pin_max() {
            true => Policy::Whole.into(),
            false if reads => Policy::Once.into(),
            false => Policy::Loop.into(),
        },
        g::S_IFCHR | g::S_IFIFO if !reads => Plan::waiting(Policy::Loop),
        g::S_IFCHR | g::S_IFIFO => Plan::waiting(Policy::Once),
        g::S_IFSOCK => return socket_plan(mem, split, args, flags, total, do_call),
        // Descriptors of no file (inotify, timers), which give whole records up to the buffer's size.
        _ if reads => Policy::Once.into(),
        _ => Policy::Whole.into(),
    })
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
    // The streams of SCTP are of messages.
    let is_stream = option(SO_TYPE)? == Some(SOCK_STREAM) && option(SO_PROTOCOL)? != Some(IPPROTO_SCTP);
    let (reads, fits) = (is_read(split), total <= mem.pin_max());
    if !is_stream || flags & MSG_OOB != 0 || reads && flags & MSG_ERRQUEUE != 0 {
        return Ok(Policy::Whole.into());
    }
    if !reads {
        return Ok(match flags & MSG_ZEROCOPY != 0 {
            true if fits => Policy::Whole.into(),
            true => Policy::Once.into(),
            false => Plan::waiting(Policy::LoopSocket),
        });
    }
    if flags & (MSG_WAITALL | MSG_PEEK) == 0 {
        return Ok(Plan::waiting(Policy::Once));
    }
    // Control data belongs to a place in the stream: a second piece would lose it.
    let has_control = split == Split::Recvmsg && Header::read(mem, args[1]).is_none_or(|h| h.control_len != 0);
    Ok(match has_control || flags & MSG_PEEK != 0 {
        false => Plan::waiting(Policy::Loop),
        // Who asks for so much may take less for an end.
        true if fits => Policy::Whole.into(),
        true => Policy::Once.into(),
    })
}

/// Adds a piece's answer to what is done; the answer of the whole call when it ends here.
fn progress(done: &mut u64, wanted: u64, total: u64, ret: i64, policy: Policy) -> Option<i64> {
    if ret < 0 {
        return Some(if *done > 0 { *done as i64 } else { ret });
    }
    *done += ret as u64;
    // Nothing wanted: the vector has changed meanwhile, and ends here now.
    let is_end = ret as u64 != wanted || wanted == 0 || *done >= total;
    (is_end || policy == Policy::Once).then_some(*done as i64)
}

/// Where a call has its buffer and length, and how much of it one call transfers.
struct Scalar {
    buffer_at: usize,
    len_at: usize,
    total: u64,
}

/// A buffer given by pointer and length.
fn scalar<M: Memory>(
    mem: &M,
    nr: u64,
    split: Split,
    args: &[u64; 6],
    Scalar { buffer_at, len_at, total }: Scalar,
    plan: Plan,
    do_call: DoCall<'_>,
) -> i64 {
    let policy = plan.policy;
    let (mut done, mut most) = (0, u64::MAX);
    loop {
        let wanted = (total - done).min(plan.bytes_max(mem, total)).min(most);
        let mut now = *args;
        let mut nr = nr;
        now[buffer_at] = args[buffer_at] + done;
        now[len_at] = wanted;
        if done > 0 {
            match split {
                Split::Pread | Split::Pwrite => now[3] = args[3].wrapping_add(done),
                // The address went with the first piece.
                Split::Sendto => (now[3], now[4], now[5]) = (args[3] & !MSG_FASTOPEN | MSG_NOSIGNAL, 0, 0),
                Split::Write if policy == Policy::LoopSocket && refused::may_make(g::__NR_sendto) => {
                    nr = g::__NR_sendto as u64;
                    (now[3], now[4], now[5]) = (MSG_NOSIGNAL, 0, 0);
                }
                _ => {}
            }
        }
        let ret = one_of(mem, nr, &now, (policy, plan.waits && wanted > PIECE_SMALL), do_call);
        most = if ret == TOO_MUCH { PIECE_SMALL } else { u64::MAX };
        if ret == TOO_MUCH {
            continue;
        }
        if let Some(answer) = progress(&mut done, wanted, total, ret, policy) {
            return answer;
        }
    }
}

/// A `struct msghdr`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Header {
    name: u64,
    name_len: u32,
    pad: u32,
    iov: u64,
    iov_len: u64,
    control: u64,
    control_len: u64,
    flags: u32,
    pad_end: u32,
}

impl Header {
    const BYTES: usize = size_of::<Self>();
    const NAME_LEN_AT: u64 = offset_of!(Self, name_len) as u64;
    const CONTROL_LEN_AT: u64 = offset_of!(Self, control_len) as u64;
    const FLAGS_AT: u64 = offset_of!(Self, flags) as u64;

    fn read<M: Memory>(mem: &M, addr: u64) -> Option<Self> {
        let mut bytes = [0u8; Self::BYTES];
        if addr == 0 || !mem.read(addr, &mut bytes) {
            return None;
        }
        // SAFETY: integers without padding, of that size: any bytes are a value.
        Some(unsafe { core::mem::transmute::<[u8; Self::BYTES], Self>(bytes) })
    }

    /// Gives the program what the kernel wrote of a received message's header.
    fn write_back<M: Memory>(&self, mem: &M, addr: u64) -> bool {
        (self.name == 0 || mem.write(addr + Self::NAME_LEN_AT, &self.name_len.to_ne_bytes()))
            && mem.write(addr + Self::CONTROL_LEN_AT, &self.control_len.to_ne_bytes())
            && mem.write(addr + Self::FLAGS_AT, &self.flags.to_ne_bytes())
    }
}

/// One entry of a vector: pointer and length.
type Entry = [u64; 2];

/// The program's vector, and how far it has been used.
#[derive(Clone, Copy)]
struct Vector {
    at: u64,
    count: u64,
    /// Bytes that one call transfers.
    total: u64,
    index: u64,
    /// Bytes used of the entry at `index`.
    offset: u64,
}

impl Vector {
    /// The vector of a call; none when the kernel would refuse it.
    fn of<M: Memory>(mem: &M, split: Split, args: &[u64; 6]) -> Option<Self> {
        let (at, count) = match split {
            Split::Recvmsg | Split::Sendmsg => Header::read(mem, args[1]).map(|h| (h.iov, h.iov_len))?,
            _ => (args[1], args[2] as u32 as u64),
        };
        Self::at(mem, at, count)
    }

    /// The vector of `count` entries at `at`; none when the kernel would refuse it.
    fn at<M: Memory>(mem: &M, at: u64, count: u64) -> Option<Self> {
        if count > IOV_MAX {
            return None;
        }
        let mut vector = Self { at, count, total: 0, index: 0, offset: 0 };
        let mut total = 0u64;
        for i in 0..count {
            let [base, len] = vector.entry(mem, i)?;
            if !is_user_range(base, len) {
                return None;
            }
            total = total.saturating_add(len);
        }
        vector.total = total.min(RW_BYTES_MAX);
        Some(vector)
    }

    fn entry<M: Memory>(&self, mem: &M, i: u64) -> Option<Entry> {
        let mut entry = [[0u8; 8]; 2];
        mem.read(self.at.wrapping_add(i * 16), entry.as_flattened_mut()).then(|| entry.map(u64::from_ne_bytes))
    }

    /// Passes over bytes that are transferred already.
    fn skip<M: Memory>(&mut self, mem: &M, mut bytes: u64) -> Option<()> {
        let mut entries = [[0; 2]; 16];
        while bytes > 0 {
            let (_, skipped) = self.take(mem, &mut entries, bytes)?;
            // It has become shorter meanwhile.
            bytes = bytes.checked_sub(skipped).filter(|_| skipped > 0)?;
        }
        Some(())
    }

    /// Takes the next entries, `bytes_max` bytes at most: their number, and their bytes.
    fn take<M: Memory>(&mut self, mem: &M, out: &mut [Entry], bytes_max: u64) -> Option<(usize, u64)> {
        let (mut n, mut bytes) = (0, 0);
        while n < out.len() && bytes < bytes_max && self.index < self.count {
            let [base, len] = self.entry(mem, self.index)?;
            let used = len.saturating_sub(self.offset).min(bytes_max - bytes);
            if used > 0 {
                out[n] = [base + self.offset, used];
                n += 1;
                bytes += used;
            }
            if self.offset + used >= len {
                self.index += 1;
                self.offset = 0;
            } else {
                self.offset += used;
            }
        }
        Some((n, bytes))
    }
}

/// True when the engine can pin all of these together.
fn fits<'e, M: Memory>(mem: &M, entries: impl IntoIterator<Item = &'e Entry>) -> bool {
    let mut pinner = Pinner::new(mem, true, false);
    for &[addr, len] in entries {
        pinner.add(Buffer { addr, len, write: true, kind: Kind::Probe });
    }
    match pinner.finish() {
        Before::Pinned => mem.pin_end(),
        Before::Split | Before::Fail(_) => return false,
        Before::Plain => {}
    }
    true
}

/// Buffers given by a vector, of which `done` bytes are transferred.
#[allow(clippy::too_many_arguments)] // One call's parts; a structure for them would be used once.
fn vectored<M: Memory>(
    mem: &M,
    nr: u64,
    split: Split,
    args: &[u64; 6],
    mut vector: Vector,
    mut done: u64,
    plan: Plan,
    do_call: DoCall<'_>,
) -> i64 {
    let (policy, total) = (plan.policy, vector.total);
    let mut entries: [Entry; PIECE_VECTORS] = [[0; 2]; PIECE_VECTORS];
    let mut most = u64::MAX;
    loop {
        let from = vector;
        let max = plan.bytes_max(mem, total).min(most);
        let mut taken = vector.take(mem, &mut entries, (total - done).min(max));
        if let Some((n, _)) = taken
            && n > SCATTERED_VECTORS
            && !fits(mem, &entries[..n])
        {
            vector = from;
            taken = vector.take(mem, &mut entries[..SCATTERED_VECTORS], (total - done).min(max));
        }
        let Some((n, wanted)) = taken else {
            return if done > 0 { done as i64 } else { -EFAULT };
        };
        let at = entries.as_mut_ptr() as u64;
        let mut now = *args;
        let is_modest = plan.waits && wanted > PIECE_SMALL;
        let how = (policy, is_modest);
        let ret = match split {
            Split::Recvmsg | Split::Sendmsg => message(mem, nr, args, (at, n), done, how, do_call),
            Split::Writev | Split::Pwritev2
                if policy == Policy::LoopSocket && done > 0 && refused::may_make(g::__NR_sendmsg) =>
            {
                let waits_not = split == Split::Pwritev2 && args[5] & RWF_NOWAIT != 0;
                let mut header = Header {
                    name: 0,
                    name_len: 0,
                    pad: 0,
                    iov: at,
                    iov_len: n as u64,
                    control: 0,
                    control_len: 0,
                    flags: 0,
                    pad_end: 0,
                };
                let flags = MSG_NOSIGNAL | if waits_not { MSG_DONTWAIT } else { 0 };
                let call = [args[0], &raw mut header as u64, flags, 0, 0, 0];
                one_of(mem, g::__NR_sendmsg as u64, &call, how, do_call)
            }
            _ => {
                (now[1], now[2]) = (at, n as u64);
                let moves = match split {
                    Split::Preadv | Split::Pwritev => true,
                    // Offset -1 is the file's own position.
                    Split::Preadv2 | Split::Pwritev2 => args[3] != u64::MAX,
                    _ => false,
                };
                if moves {
                    now[3] = args[3].wrapping_add(done);
                }
                one_of(mem, nr, &now, how, do_call)
            }
        };
        most = if ret == TOO_MUCH { PIECE_SMALL } else { u64::MAX };
        if ret == TOO_MUCH {
            vector = from;
            continue;
        }
        if let Some(answer) = progress(&mut done, wanted, total, ret, policy) {
            return answer;
        }
    }
}

/// One piece of `sendmsg` or `recvmsg`, with `entries` (address and number) for its vector.
fn message<M: Memory>(
    mem: &M,
    nr: u64,
    args: &[u64; 6],
    entries: (u64, usize),
    done: u64,
    how: (Policy, bool),
    do_call: DoCall<'_>,
) -> i64 {
    let Some(mut header) = Header::read(mem, args[1]) else { return -EFAULT };
    (header.iov, header.iov_len) = (entries.0, entries.1 as u64);
    let mut flags = args[2];
    let is_send = nr == g::__NR_sendmsg as u64;
    if done > 0 {
        // Address and control data went with the first piece.
        (header.name, header.name_len, header.control, header.control_len) = (0, 0, 0, 0);
        if is_send {
            flags = flags & !MSG_FASTOPEN | MSG_NOSIGNAL;
        }
    }
    let ret = one_of(mem, nr, &[args[0], &raw mut header as u64, flags, 0, 0, 0], how, do_call);
    if ret >= 0 && !is_send && !header.write_back(mem, args[1]) {
        return -EFAULT;
    }
    ret
}
