//! Makes transfers in pieces if they are larger than a call may pin, or if their buffers are too scattered.
//!
//! The program must see only what one call could have done:
//!
//! * Regular files, block devices and memory devices (`/dev/zero`): pieces until all is done, or until one fails or
//!   comes back short (end of file, full disk, file size limit). After an error in a later piece, the answer is the
//!   count that is done. Each piece is a whole number of pages, so that direct I/O stays aligned.
//! * Reading a stream (pipe, stream socket, terminal): one piece, then without waiting whatever else is there already
//!   (`read_on`). A program that uses edge-triggered epoll(7) takes a short read to mean that nothing is left. With
//!   MSG_WAITALL, the further pieces wait.
//! * Writing a stream: pieces until all is written, like a blocking write. A short piece ends the call. On a
//!   non-blocking descriptor, it means that the stream is full; on a blocking one, that a signal came. With
//!   MSG_ZEROCOPY, the write is one piece, because the kernel notifies the program once for each call.
//! * Other devices (FUSE, tapes), whose calls are messages: one piece, if that can be pinned. If not, a read is one
//!   piece of what can be pinned, and a write is made in pieces.
//! * Several messages in one call (`recvmmsg`): as many at a time as can be pinned.
//! * Memory of processes: pieces until all is done, or until one comes back short, which is where the memory of one
//!   side ends.
//! * Messages (datagrams, sequenced packets, RWF_ATOMIC writes): one piece at any cost. The guard pins as much of the
//!   buffer's beginning as fits, and a message goes to the beginning.
//!
//! A write whose bytes could be pinned, but whose buffers are scattered, is first tried as one call, so that appends
//! and small writes to pipes stay whole. All its pages are brought in, and as many as possible are pinned. If an
//! eviction at that moment cuts the call short, the rest goes on in pieces.
//!
//! One call can pin a sixteenth of the budget, but at least 64 KiB and at most 8 MiB. A stream gets less, down to 64
//! KiB, while other calls have pinned much, because threads may wait in such calls for ever.
//!
//! What differs from one call:
//!
//! * A write larger than what can be pinned is not atomic: other writers of the same file or stream may come between
//!   its pieces.
//! * A socket's timeouts begin anew with each piece.
//! * If buffers are too far apart to be pinned together, a read of a terminal that blocks or gives lines returns less
//!   at a time.
//! * `recvmmsg`: if the socket gets an error after the agent looked for one and before the next piece's first message,
//!   the next call does not report that error again.
//! * If a vector is changed during the call, by its own transfer or by somebody else, each entry counts as it is when
//!   its turn comes.

use crate::guard::{Before, Memory, NOT_MADE, Pinner, prepare};
use crate::kept::refused;
use crate::table::visit::{Buffer, IOV_MAX, Kind, PAGE_BYTES, RW_BYTES_MAX};
use crate::table::{self, Split};
use core::mem::offset_of;
use linux_raw_sys::{errno, general as g};
use plan::{NotMade, Plan, Policy, plan};

mod plan;
mod process_vm;
mod read_on;
pub(super) mod recvmmsg;

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
/// End of user addresses. The kernel checks every vector against it before it transfers anything.
const TASK_END: u64 = 0x7fff_ffff_f000;
/// Entries of a piece's vector.
const PIECE_VECTORS: usize = 64;
/// Entries of a piece's vector if the buffers are too far apart to be pinned together.
const SCATTERED_VECTORS: usize = 4;
/// Bytes that a pipe takes as a whole (`PIPE_BUF`).
const PIPE_BUF: u64 = 4096;
/// Bytes of a piece that is made however much other calls have pinned.
const PIECE_SMALL: u64 = super::PIECE_BYTES_MIN - SLACK;
/// Bytes by which a piece is smaller than what can be pinned: for partial pages, vectors and headers.
const SLACK: u64 = 4 * PAGE_BYTES;
/// The answer of a piece that was not made, because other calls have meanwhile pinned much. No system call returns it.
const TOO_MUCH: i64 = -4096;

/// Makes a call in pieces, and returns its answer.
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
        // If the vector cannot be used, the kernel will say why.
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

/// Bytes of one piece if `pinned_max` bytes can be pinned.
fn piece_bytes_max(pinned_max: u64) -> u64 {
    const ROUND: u64 = 64 << 10;
    let bytes = pinned_max.saturating_sub(SLACK);
    let bytes = if bytes >= 4 * ROUND { bytes - bytes % ROUND } else { bytes - bytes % PAGE_BYTES };
    bytes.max(PAGE_BYTES)
}

/// Makes one call, with as much of its buffers pinned as fits.
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

/// Like [`piece`], but returns [`TOO_MUCH`] if the pins are more than other calls leave.
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

/// Makes a call that cannot be made in pieces. Repeats a send that failed for an evicted page: nothing was sent.
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

/// Tries a write as one call if its bytes can be pinned, although its buffers are scattered. Returns the bytes that are
/// done if the call goes on in pieces, or the call's answer as an error.
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
    match one_of(mem, nr, args, How { goes_on: policy == Policy::LoopFile, is_modest: false }, do_call) {
        ret if ret == -EFAULT => Ok(0),
        ret if ret >= 0 && (ret as u64) < vector.total && policy == Policy::LoopFile => {
            vector.skip(mem, ret as u64).map(|()| ret as u64).ok_or(ret)
        }
        ret => Err(ret),
    }
}

/// How to make one of several pieces.
#[derive(Clone, Copy)]
struct How {
    /// Make the piece even if a signal comes first: a file is read or written to its end, and a signal does not end a
    /// call that waits for nothing.
    goes_on: bool,
    /// Pin no more than other calls leave.
    is_modest: bool,
}

/// Like [`piece`] or [`modest_piece`], for one of several pieces.
fn one_of<M: Memory>(mem: &M, nr: u64, args: &[u64; 6], how: How, do_call: DoCall<'_>) -> i64 {
    /// Attempts at one piece, each prevented by a signal, after which the piece fails with EINTR.
    const SIGNALS_MAX: u32 = 1 << 16;
    for _ in 0..SIGNALS_MAX {
        let ret = if how.is_modest { modest_piece(mem, nr, args, do_call) } else { piece(mem, nr, args, do_call) };
        if ret != NOT_MADE || !how.goes_on {
            return ret;
        }
    }
    -(errno::EINTR as i64)
}

/// The check of a buffer that the kernel makes first.
fn is_user_range(addr: u64, len: u64) -> bool {
    addr.checked_add(len).is_some_and(|end| end <= TASK_END)
}

fn is_vectored(split: Split) -> bool {
    use Split::*;
    matches!(split, Readv | Writev | Preadv | Pwritev | Preadv2 | Pwritev2 | Recvmsg | Sendmsg)
}

fn is_message(split: Split) -> bool {
    matches!(split, Split::Recvmsg | Split::Sendmsg)
}

fn is_read(split: Split) -> bool {
    use Split::*;
    matches!(split, Read | Pread | Readv | Preadv | Preadv2 | Recvfrom | Recvmsg | Getrandom | Getdents)
}

/// Adds a piece's answer to `done`. Returns the answer of the whole call if it ends here.
fn progress(done: &mut u64, wanted: u64, total: u64, ret: i64, policy: Policy) -> Option<i64> {
    if ret < 0 {
        return Some(if *done > 0 { *done as i64 } else { ret });
    }
    *done += ret as u64;
    // If nothing was wanted, the vector has changed meanwhile, and ends here.
    let is_end = ret as u64 != wanted || wanted == 0 || *done >= total;
    (is_end || policy == Policy::Once).then_some(*done as i64)
}

/// Which arguments are the buffer and the length, and how many bytes one call transfers.
struct Scalar {
    buffer_at: usize,
    len_at: usize,
    total: u64,
}

/// Transfers a buffer given by pointer and length.
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
        let how = How { goes_on: plan.goes_on(done), is_modest: plan.waits && wanted > PIECE_SMALL };
        let ret = match policy {
            Policy::ReadOn(no_wait) if done > 0 => {
                read_on::scalar(mem, (nr, split), &now, (buffer_at, len_at), (no_wait, how), do_call)
            }
            _ => one_of(mem, nr, &now, how, do_call),
        };
        most = if ret == TOO_MUCH { PIECE_SMALL } else { u64::MAX };
        if ret == TOO_MUCH {
            continue;
        }
        if let Some(answer) = progress(&mut done, wanted, total, ret, policy) {
            return answer;
        }
        if matches!(policy, Policy::ReadOn(_)) && !read_on::has_more(mem, args[0], do_call) {
            return done as i64;
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
    const EMPTY: Self =
        Self { name: 0, name_len: 0, pad: 0, iov: 0, iov_len: 0, control: 0, control_len: 0, flags: 0, pad_end: 0 };
    const BYTES: usize = size_of::<Self>();
    const NAME_LEN_AT: u64 = offset_of!(Self, name_len) as u64;
    const CONTROL_LEN_AT: u64 = offset_of!(Self, control_len) as u64;
    const FLAGS_AT: u64 = offset_of!(Self, flags) as u64;

    fn read<M: Memory>(mem: &M, addr: u64) -> Option<Self> {
        let mut bytes = [0u8; Self::BYTES];
        if addr == 0 || !mem.read(addr, &mut bytes) {
            return None;
        }
        // SAFETY: integers without padding, of exactly this size: any bytes are a valid value.
        Some(unsafe { core::mem::transmute::<[u8; Self::BYTES], Self>(bytes) })
    }

    /// Copies back to the program what the kernel wrote to the header of a received message.
    fn write_back<M: Memory>(&self, mem: &M, addr: u64) -> bool {
        (self.name == 0 || mem.write(addr + Self::NAME_LEN_AT, &self.name_len.to_ne_bytes()))
            && mem.write(addr + Self::CONTROL_LEN_AT, &self.control_len.to_ne_bytes())
            && mem.write(addr + Self::FLAGS_AT, &self.flags.to_ne_bytes())
    }
}

/// One entry of a vector: pointer and length.
type Entry = [u64; 2];

/// The program's vector, and how far it has been transferred.
#[derive(Clone, Copy)]
struct Vector {
    at: u64,
    count: u64,
    /// Bytes that one call transfers.
    total: u64,
    index: u64,
    /// Bytes of the entry at `index` that are transferred.
    offset: u64,
}

impl Vector {
    /// The vector of a call; none if the kernel would refuse it.
    fn of<M: Memory>(mem: &M, split: Split, args: &[u64; 6]) -> Option<Self> {
        let (at, count) = match split {
            Split::Recvmsg | Split::Sendmsg => Header::read(mem, args[1]).map(|h| (h.iov, h.iov_len))?,
            _ => (args[1], args[2] as u32 as u64),
        };
        Self::at(mem, at, count)
    }

    /// The vector of `count` entries at address `at`; none if the kernel would refuse it.
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

    /// Skips bytes that are transferred already. None if the vector cannot be read or has become too short.
    fn skip<M: Memory>(&mut self, mem: &M, mut bytes: u64) -> Option<()> {
        let mut entries = [[0; 2]; 16];
        while bytes > 0 {
            let (_, skipped) = self.take(mem, &mut entries, bytes)?;
            // The vector has become shorter meanwhile.
            bytes = bytes.checked_sub(skipped).filter(|_| skipped > 0)?;
        }
        Some(())
    }

    /// Takes the next entries, at most `bytes_max` bytes. Returns how many entries and how many bytes.
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

/// True if the engine can pin all these entries together.
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

/// Transfers buffers given by a vector, of which `done` bytes are transferred already.
#[allow(clippy::too_many_arguments)] // The parts of one call; a structure for them would be used once.
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
    // As the program gave it. Later pieces must not use what the kernel wrote to the program's header for the first.
    let header = if is_message(split) { Header::read(mem, args[1]) } else { None };
    let mut had_control = false;
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
        let how = How { goes_on: plan.goes_on(done), is_modest: plan.waits && wanted > PIECE_SMALL };
        let no_wait = if let (true, Policy::ReadOn(no_wait)) = (done > 0, policy) { Some(no_wait) } else { None };
        let ret = match (split, no_wait) {
            (Split::Recvmsg | Split::Sendmsg, _) => {
                let Some(header) = header else { return if done > 0 { done as i64 } else { -EFAULT } };
                let header = Header { iov: at, iov_len: n as u64, ..header };
                message(mem, nr, args, header, (done, policy), &mut had_control, how, do_call)
            }
            (_, Some(no_wait)) => read_on::vector(mem, (nr, split), args, (at, n), (no_wait, how), do_call),
            (Split::Writev | Split::Pwritev2, _)
                if policy == Policy::LoopSocket && done > 0 && refused::may_make(g::__NR_sendmsg) =>
            {
                let waits_not = split == Split::Pwritev2 && args[5] & RWF_NOWAIT != 0;
                let mut header = Header { iov: at, iov_len: n as u64, ..Header::EMPTY };
                let flags = MSG_NOSIGNAL | if waits_not { MSG_DONTWAIT } else { 0 };
                let call = [args[0], &raw mut header as u64, flags, 0, 0, 0];
                one_of(mem, g::__NR_sendmsg as u64, &call, how, do_call)
            }
            _ => {
                (now[1], now[2]) = (at, n as u64);
                let moves = match split {
                    Split::Preadv | Split::Pwritev => true,
                    // Offset -1 means the file's own position.
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
        // Control data belongs to the place where the piece ended.
        if matches!(policy, Policy::ReadOn(_)) && (had_control || !read_on::has_more(mem, args[0], do_call)) {
            return done as i64;
        }
    }
}

/// Makes one piece of `sendmsg` or `recvmsg`, after `done` bytes. Sets `had_control` if control data was received.
#[allow(clippy::too_many_arguments)] // As above.
fn message<M: Memory>(
    mem: &M,
    nr: u64,
    args: &[u64; 6],
    mut header: Header,
    (done, policy): (u64, Policy),
    had_control: &mut bool,
    how: How,
    do_call: DoCall<'_>,
) -> i64 {
    let mut flags = args[2];
    let is_send = nr == g::__NR_sendmsg as u64;
    if done > 0 {
        // The address went with the first piece.
        (header.name, header.name_len) = (0, 0);
        match policy {
            // No control data has come so far.
            Policy::ReadOn(_) => flags |= MSG_DONTWAIT,
            _ => (header.control, header.control_len) = (0, 0),
        }
        if is_send {
            flags = flags & !MSG_FASTOPEN | MSG_NOSIGNAL;
        }
    }
    let ret = one_of(mem, nr, &[args[0], &raw mut header as u64, flags, 0, 0, 0], how, do_call);
    if ret >= 0 && !is_send {
        *had_control |= header.control_len != 0 && header.control != 0;
        if !header.write_back(mem, args[1]) {
            return -EFAULT;
        }
    }
    ret
}
