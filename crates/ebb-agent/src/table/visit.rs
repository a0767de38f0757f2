//! Turns a row and the actual arguments into the ranges of memory that the kernel will touch.
//!
//! Structures that point further (vectors of buffers, message headers, arrays of strings) are read through
//! [`ReadMemory`], which fails on a bad address where a plain read would kill the program. Counts come from the program
//! and are never trusted. Each is cut to the kernel's own limit, so every loop is bounded. One call visits at most
//! [`BUFFERS_MAX`] buffers.

use super::{Arg, Dir, Shape};

/// The program's memory, as the guard sees it.
pub trait ReadMemory {
    /// Copies `out.len()` bytes from `addr`, and brings in evicted pages for that. False if the program could not read
    /// the bytes either.
    fn read(&self, addr: u64, out: &mut [u8]) -> bool;

    /// False only if no page of the range is managed. Then the content of the range need not be looked at.
    fn may_be_managed(&self, _addr: u64, _len: u64) -> bool {
        true
    }

    /// True if the page is managed and has content, or is plain memory that is present. Any other page may be a
    /// device's register, or a read of it may wait for somebody. It must not be touched only because a number looks
    /// like its address.
    fn may_be_looked_at(&self, addr: u64) -> bool {
        self.may_be_managed(addr, 1)
    }

    /// True if the address is on the calling thread's stack. That is the program's own memory, and may be looked at.
    fn is_on_stack(&self, _addr: u64) -> bool {
        false
    }

    /// True unless the descriptor's file is of a kind that keeps nothing of what a call gives it.
    fn is_driver(&self, _fd: i32) -> bool {
        true
    }

    /// True if what is written to the descriptor is a command, which leads to further memory.
    fn takes_commands(&self, _fd: i32) -> bool {
        false
    }

    /// Notes that a guest has `bytes` bytes of memory in one piece.
    fn note_guest_memory(&self, _bytes: u64) {}

    /// The most bytes that a guest has in one piece; 0 if none was seen.
    fn guest_memory_max(&self) -> u64 {
        0
    }

    /// True if `pid` names this process.
    fn is_self(&self, _pid: i32) -> bool {
        false
    }
}

/// What must be done with a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Keep it resident until the call ends.
    Pin,
    /// Like [`Kind::Pin`], but only a guess: the kernel may touch less or nothing, and the range may not even be
    /// mapped.
    Probe,
    /// Keep it resident for good: the kernel or a device uses it after the call.
    Exclude,
    /// Like [`Kind::Exclude`], at the wish of a program that can be told that there is not enough memory.
    Register,
    /// Like [`Kind::Probe`], and a driver of which nothing is known is given this address: it may keep what the address
    /// leads to.
    Driver,
    /// Keep it resident until the request with this context and control block is done; see `aio`.
    Request { context: u64, block: u64 },
}

/// A range of memory that a call touches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Buffer {
    /// First byte.
    pub addr: u64,
    /// Bytes: at least one, and never past the end of user addresses.
    pub len: u64,
    /// The kernel may write to it.
    pub write: bool,
    /// What must be done with it.
    pub kind: Kind,
}

impl Buffer {
    /// An address at which there is no memory.
    pub const NOWHERE: u64 = 1;
}

/// Bytes of a page.
pub const PAGE_BYTES: u64 = 4096;
/// End of user addresses, with five-level page tables.
const USER_END: u64 = 1 << 56;
/// Bytes of a kernel `struct msghdr`.
pub(super) const MSGHDR_BYTES: u64 = 56;
/// The most requests of one io_submit that are passed on.
pub const BLOCKS_MAX: u64 = 1 << 16;
/// The most bytes that the kernel transfers in one call (`MAX_RW_COUNT`).
pub const RW_BYTES_MAX: u64 = 0x7fff_f000;
/// Entries of one vector (`UIO_MAXIOV`).
pub const IOV_MAX: u64 = 1024;
/// Bytes of a path, including its zero byte (`PATH_MAX`).
const PATH_BYTES_MAX: u64 = 4096;
/// Bytes of one argument of execve (`MAX_ARG_STRLEN`).
const ARG_BYTES_MAX: u64 = 32 * PAGE_BYTES;
/// Strings in one array of execve that are looked at. More would exceed the kernel's limit for the stack.
const ARGS_MAX: u64 = 1 << 20;
/// Descriptors of one `fd_set` (the default of `fs.nr_open`). The kernel cuts larger numbers to the size of its table.
const FDS_MAX: u64 = 1 << 20;
/// Bits of one node mask (`PAGE_SIZE * 8`).
const MASK_BITS_MAX: u64 = PAGE_BYTES * 8;
/// The most bytes of a structure that names its own size.
const SELF_SIZED_MAX: u64 = PAGE_BYTES;
/// The fewest bytes of a guess.
const PROBE_BYTES: u64 = 256;
/// Buffers and reads of one call, all together. More than the kernel accepts anywhere except in execve.
pub(super) const BUFFERS_MAX: u32 = 1 << 21;

/// Calls `f` with what the kernel touches at the end of a thread whose robust list is `head`: the links, and the word
/// of each lock that the thread still holds.
pub fn for_each_robust<M: ReadMemory + ?Sized>(head: u64, mem: &M, f: &mut impl FnMut(Buffer)) {
    /// The kernel gives up after this many entries (`ROBUST_LIST_LIMIT`).
    const ENTRIES_MAX: u32 = 2048;
    let mut visit = Visit { mem, f, left: BUFFERS_MAX };
    let Some([first, offset, pending]) = visit.words(head) else { return };
    visit.emit(head, 24, Dir::In, Kind::Pin);
    visit.emit((pending & !1).wrapping_add(offset), if pending == 0 { 0 } else { 4 }, Dir::InOut, Kind::Pin);
    let mut entry = first;
    for _ in 0..ENTRIES_MAX {
        // The lowest bit marks a lock with priority inheritance.
        let at = entry & !1;
        if at == 0 || at == head {
            return;
        }
        visit.emit(at, 8, Dir::In, Kind::Pin);
        visit.emit(at.wrapping_add(offset), 4, Dir::InOut, Kind::Pin);
        let Some([next]) = visit.words(at) else { return };
        entry = next;
    }
}

/// One walk over a call's arguments.
pub(super) struct Visit<'a, M: ?Sized, F> {
    pub(super) mem: &'a M,
    pub(super) f: &'a mut F,
    pub(super) left: u32,
}

impl<M: ReadMemory + ?Sized, F: FnMut(Buffer)> Visit<'_, M, F> {
    /// Passes a range on, cut to user addresses.
    pub(super) fn emit(&mut self, addr: u64, len: u64, dir: Dir, kind: Kind) {
        if addr == 0 || len == 0 || addr >= USER_END || self.left == 0 {
            return;
        }
        self.left -= 1;
        (self.f)(Buffer { addr, len: len.min(USER_END - addr), write: dir.writes(), kind });
    }

    /// Emits a structure of known size.
    pub(super) fn pin(&mut self, addr: u64, len: u64, dir: Dir) {
        self.emit(addr, len, dir, Kind::Pin);
    }

    /// Emits something of unknown size: up to the end of its page, and at least [`PROBE_BYTES`].
    pub(super) fn probe(&mut self, addr: u64) {
        self.probe_len(addr, 0);
    }

    /// Emits something of which at least `len` bytes exist.
    pub(super) fn probe_len(&mut self, addr: u64, len: u64) {
        let to_page_end = PAGE_BYTES - addr % PAGE_BYTES;
        self.emit(addr, len.max(to_page_end).max(PROBE_BYTES), Dir::InOut, Kind::Probe);
    }

    /// Reads `N` 64-bit words.
    pub(super) fn words<const N: usize>(&mut self, addr: u64) -> Option<[u64; N]> {
        let mut words = [0u64; N];
        // SAFETY: any bytes are valid words; the length is that of the array.
        let bytes = unsafe { core::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<u8>(), N * 8) };
        self.bytes(addr, bytes).then_some(words)
    }

    /// Reads a 32-bit word.
    pub(super) fn word32(&mut self, addr: u64) -> Option<u32> {
        let mut bytes = [0u8; 4];
        self.bytes(addr, &mut bytes).then(|| u32::from_ne_bytes(bytes))
    }

    /// Reads bytes. False for a null or impossible address, or if the walk has gone on for too long.
    pub(super) fn bytes(&mut self, addr: u64, out: &mut [u8]) -> bool {
        if addr == 0 || addr >= USER_END || self.left == 0 {
            return false;
        }
        self.left -= 1;
        self.mem.read(addr, out)
    }

    pub(super) fn arg(&mut self, arg: Arg, addr: u64, args: &[u64; 6]) {
        let dir = arg.dir();
        let number = |i: u8| args[i as usize % 6];
        match arg.shape() {
            Shape::Value => {}
            _ if addr == 0 => {}
            Shape::Fixed(bytes) => self.pin(addr, bytes as u64, dir),
            Shape::Array { count, element, narrow } => {
                let count = number(count);
                // The kernel refuses a negative `int` before it looks at the buffer.
                let count = if narrow { (count as u32 as i32).max(0) as u64 } else { count };
                self.pin(addr, count.saturating_mul(element as u64), dir);
            }
            Shape::LenPtr { len_ptr } => {
                let len = self.word32(number(len_ptr)).unwrap_or(0);
                self.pin(addr, (len as i32).max(0) as u64, dir);
            }
            Shape::Bits { bits } => self.pin(addr, number(bits).min(MASK_BITS_MAX).div_ceil(64) * 8, dir),
            Shape::Str => self.string(addr, PATH_BYTES_MAX),
            Shape::StrArray => self.string_array(addr),
            Shape::Iovec { count } => self.iovec(addr, number(count) as u32 as u64, dir, Kind::Pin),
            Shape::Msghdr => self.msghdr(addr, dir),
            Shape::Mmsghdr { count } => {
                self.mmsghdr(addr, number(count) as u32 as u64, dir);
            }
            Shape::FdSet { nfds } => {
                let nfds = (number(nfds) as u32 as i32).max(0) as u64;
                self.pin(addr, nfds.min(FDS_MAX).div_ceil(64) * 8, dir);
            }
            Shape::SelfSized { at, least } => {
                let size = self.word32(addr.wrapping_add(at as u64)).unwrap_or(0) as u64;
                self.pin(addr, size.clamp(least as u64, SELF_SIZED_MAX), dir);
            }
            Shape::SigsetArg => {
                self.pin(addr, 16, dir);
                if let Some([set, size]) = self.words(addr) {
                    self.pin(set, size.min(PROBE_BYTES), Dir::In);
                }
            }
            Shape::Probe => self.probe(addr),
            Shape::Exclude(bytes) => self.emit(addr, bytes as u64, dir, Kind::Exclude),
            Shape::ExcludeLen { len } => {
                self.emit(addr, (number(len) as u32 as u64).min(PAGE_BYTES), dir, Kind::Exclude)
            }
        }
    }

    /// Emits a string with its zero byte, at most `max` bytes.
    pub(super) fn string(&mut self, addr: u64, max: u64) {
        // Most strings are constants of the program's image or are on the stack: there is nothing to do.
        if addr == 0 || addr >= USER_END || !self.mem.may_be_managed(addr, max.min(USER_END - addr)) {
            return;
        }
        let mut chunk = [0u8; 256];
        let mut len = 0;
        while len < max {
            let at = addr + len;
            // A chunk never crosses a page, so that the next page is looked at only if the string really reaches it.
            let n = (PAGE_BYTES - at % PAGE_BYTES).min(chunk.len() as u64).min(max - len) as usize;
            if !self.bytes(at, &mut chunk[..n]) {
                break;
            }
            if let Some(zero) = chunk[..n].iter().position(|&b| b == 0) {
                len += zero as u64 + 1;
                break;
            }
            len += n as u64;
        }
        self.pin(addr, len, Dir::In);
    }

    fn string_array(&mut self, addr: u64) {
        let mut seen = 0;
        while seen < ARGS_MAX {
            let at = addr.wrapping_add(seen * 8);
            // A chunk never crosses the end of a page: an unmapped page may follow the array.
            let in_page = ((PAGE_BYTES - at % PAGE_BYTES) / 8).clamp(1, 32) as usize;
            let mut chunk = [0u64; 32];
            // SAFETY: any bytes are valid words; `in_page` is at most the array's length.
            let bytes = unsafe { core::slice::from_raw_parts_mut(chunk.as_mut_ptr().cast::<u8>(), in_page * 8) };
            if !self.bytes(at, bytes) {
                break;
            }
            for &string in &chunk[..in_page] {
                seen += 1;
                if string == 0 {
                    self.pin(addr, seen * 8, Dir::In);
                    return;
                }
                self.string(string, ARG_BYTES_MAX);
            }
        }
        self.pin(addr, seen * 8, Dir::In);
    }

    /// Emits a vector of buffers, and as much of its buffers as one call transfers.
    pub(super) fn iovec(&mut self, addr: u64, count: u64, dir: Dir, kind: Kind) {
        let count = count.min(IOV_MAX);
        self.pin(addr, count * 16, Dir::In);
        let mut total = 0u64;
        let mut i = 0;
        while i < count && total < RW_BYTES_MAX {
            let mut chunk = [0u64; 64];
            let n = (count - i).min(chunk.len() as u64 / 2);
            // SAFETY: any bytes are valid words; `n` pairs fit the array.
            let bytes = unsafe { core::slice::from_raw_parts_mut(chunk.as_mut_ptr().cast::<u8>(), n as usize * 16) };
            if !self.bytes(addr.wrapping_add(i * 16), bytes) {
                return;
            }
            for pair in chunk[..n as usize * 2].chunks_exact(2) {
                let len = pair[1].min(RW_BYTES_MAX.saturating_sub(total));
                total = total.saturating_add(pair[1]);
                self.emit(pair[0], len, dir, kind);
            }
            i += n;
        }
    }

    /// Emits a message header, what it points to, and the buffers of its vector.
    pub(super) fn msghdr(&mut self, addr: u64, dir: Dir) {
        self.pin(addr, MSGHDR_BYTES, if dir.writes() { Dir::InOut } else { Dir::In });
        let Some(header) = self.words::<7>(addr) else { return };
        let [name, name_len, iov, iov_len, control, control_len, _] = header;
        self.pin(name, (name_len as u32 as i32).max(0) as u64, dir);
        self.iovec(iov, iov_len, dir, Kind::Pin);
        self.pin(control, control_len.min(i32::MAX as u64), dir);
    }

    fn mmsghdr(&mut self, addr: u64, count: u64, dir: Dir) {
        /// A `msghdr`, the number of bytes that were transferred, and padding.
        const MMSGHDR_BYTES: u64 = 64;
        for i in 0..count.min(IOV_MAX) {
            let at = addr.wrapping_add(i * MMSGHDR_BYTES);
            // The kernel writes the number of transferred bytes in both directions.
            self.pin(at, MMSGHDR_BYTES, Dir::InOut);
            self.msghdr(at, dir);
        }
    }
}
