//! Linux AIO (io_setup(2)): transfers of a file that the kernel performs while the caller goes on.
//!
//! A context is a number, which is also the address of a ring in this process's memory. Completions appear in the ring,
//! and may be read there without a call. A child of fork has neither the context nor, with [`Context::new`], the ring.

use super::time::timespec;
use super::{Errno, call, madvise, own};
use core::sync::atomic::{AtomicU32, Ordering};
use linux_raw_sys::general as g;

/// A transfer, as the kernel wants it (`struct iocb`).
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Request {
    data: u64,
    key: u32,
    flags_of_transfer: u32,
    opcode: u16,
    priority: u16,
    fd: u32,
    at: u64,
    len: u64,
    offset: u64,
    reserved: u64,
    flags: u32,
    eventfd: u32,
}

const _: () = assert!(size_of::<Request>() == 64);

const PREAD: u16 = 0;
const PWRITE: u16 = 1;
/// `IOCB_FLAG_IOPRIO`: the priority is meant.
const HAS_PRIORITY: u32 = 2;
/// The last of the usual priorities (class *best effort*, level 7).
const LAST: u16 = 2 << 13 | 7;

/// How a transfer ended (`struct io_event`).
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Event {
    /// What the request was told.
    pub data: u64,
    request: u64,
    /// Bytes that were transferred, or an error number, negative.
    pub result: i64,
    more: i64,
}

/// The ring's head (`struct aio_ring`); the events follow.
#[repr(C)]
struct Ring {
    id: u32,
    nr: u32,
    head: AtomicU32,
    tail: AtomicU32,
    magic: u32,
    compatible: u32,
    incompatible: u32,
    header_bytes: u32,
}

const MAGIC: u32 = 0xa10a_10a1;

impl Request {
    /// Writes `data` at `offset`, after what others read and write if the disk's scheduler knows priorities. `token` comes
    /// back with the completion. `data` must stay as it is until then.
    pub fn write(fd: i32, data: &[u8], offset: u64, token: u64) -> Self {
        let (at, len) = (data.as_ptr() as u64, data.len() as u64);
        let (opcode, priority, flags) = (PWRITE, LAST, HAS_PRIORITY);
        Self { data: token, opcode, priority, flags, fd: fd as u32, at, len, offset, ..Self::default() }
    }

    /// Does not come after others.
    pub fn at_once(self) -> Self {
        Self { priority: 0, flags: 0, ..self }
    }

    /// Reads at `offset` into the `len` bytes at `out`. They are the kernel's until the completion.
    pub fn read(fd: i32, out: *mut u8, len: usize, offset: u64, token: u64) -> Self {
        Self { data: token, opcode: PREAD, fd: fd as u32, at: out as u64, len: len as u64, offset, ..Self::default() }
    }
}

/// A context: requests that are in flight together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Context(u64);

impl Context {
    /// Makes a context for at most `n` requests in flight.
    pub fn new(n: u32) -> Result<Self, Errno> {
        let mut context = 0u64;
        // SAFETY: the kernel writes the number.
        unsafe { call(g::__NR_io_setup, [u64::from(n), &raw mut context as u64, 0, 0, 0, 0]) }?;
        // Something that answers in the kernel's place may have done nothing.
        if context == 0 {
            return Err(Errno::NOSYS);
        }
        // SAFETY: the number is the ring's address.
        let nr = unsafe { (*(context as *const Ring)).nr } as usize;
        let this = Self(context);
        if !this.is_known() {
            this.destroy();
            return Err(Errno::NOSYS);
        }
        let bytes = (size_of::<Ring>() + nr * size_of::<Event>()).next_multiple_of(4096);
        let _ = madvise(context as usize, bytes, g::MADV_DONTFORK);
        // A program that looks at all its memory must not find it.
        own::add(context as usize, bytes);
        Ok(this)
    }

    /// Whether the ring is laid out as here.
    fn is_known(self) -> bool {
        // SAFETY: the ring is mapped for as long as the context, and these never change.
        let ring = unsafe { &*(self.0 as *const Ring) };
        (ring.magic, ring.incompatible, ring.header_bytes) == (MAGIC, 0, size_of::<Ring>() as u32)
    }

    /// The context with this number.
    pub fn of_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Its number, which is not 0.
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// In fork's child: forgets the context, which is the parent's. There is nothing at its address.
    pub fn forget(self) {
        own::remove(self.0 as usize);
    }

    /// Gives the context back; waits until nothing is in flight.
    pub fn destroy(self) {
        own::remove(self.0 as usize);
        // SAFETY: a number that is no context is refused.
        let _ = unsafe { call(g::__NR_io_destroy, [self.0, 0, 0, 0, 0, 0]) };
    }

    /// Begins requests, the first of them first; returns how many began.
    ///
    /// # Safety
    /// Until the completion, memory that is read into belongs to the kernel, and memory that is written does not change.
    pub unsafe fn submit(self, requests: &mut [Request]) -> Result<usize, Errno> {
        let mut pointers = [core::ptr::null_mut::<Request>(); SUBMIT_MAX];
        let n = requests.len().min(SUBMIT_MAX);
        pointers.iter_mut().zip(requests).for_each(|(pointer, request)| *pointer = request);
        // SAFETY: the kernel reads the requests, and writes their keys; the rest is the caller's contract.
        unsafe { call(g::__NR_io_submit, [self.0, n as u64, pointers.as_ptr() as u64, 0, 0, 0]) }.map(|n| n as usize)
    }

    /// How many completions are in the ring.
    pub fn available(self) -> u32 {
        let ring = self.0 as *const Ring;
        // SAFETY: the ring is mapped for as long as the context; others change only its head and tail.
        let (head, tail, nr) = unsafe { (&(*ring).head, &(*ring).tail, (*ring).nr) };
        (tail.load(Ordering::Acquire) + nr - head.load(Ordering::Acquire)) % nr
    }

    /// Takes a completion out of the ring, if there is one. One thread at a time.
    pub fn completed(self) -> Option<Event> {
        let ring = self.0 as *const Ring;
        // SAFETY: the ring is mapped for as long as the context; others change only its head and tail.
        let (head, tail, nr) = unsafe { (&(*ring).head, &(*ring).tail, (*ring).nr) };
        let at = head.load(Ordering::Relaxed);
        if at == tail.load(Ordering::Acquire) {
            return None;
        }
        // SAFETY: the kernel has filled this entry, and does not touch it before the head has passed it.
        let event = unsafe { ring.add(1).cast::<Event>().add(at as usize).read() };
        head.store((at + 1) % nr, Ordering::Release);
        Some(event)
    }

    /// Waits for completions, for at most `timeout_ns` if that is given; returns how many there are in `out`, which is
    /// none only then.
    pub fn wait(self, out: &mut [Event], timeout_ns: Option<u64>) -> Result<usize, Errno> {
        let timeout = timeout_ns.map(timespec);
        let timeout_at = timeout.as_ref().map_or(0, |timeout| &raw const *timeout as u64);
        // SAFETY: the kernel reads the time and writes the events.
        unsafe { call(g::__NR_io_getevents, [self.0, 1, out.len() as u64, out.as_mut_ptr() as u64, timeout_at, 0]) }
            .map(|n| n as usize)
    }
}

/// Most requests that one call begins.
pub const SUBMIT_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(align(4096))]
    struct Page([u8; 4096]);

    #[test]
    fn what_is_written_in_flight_is_read_back() {
        let context = match Context::new(4) {
            // The machine's limit (`fs.aio-max-nr`) may be used up, and a container may forbid it.
            Err(Errno::AGAIN | Errno::NOSYS | Errno::PERM) => return,
            context => context.expect("a context"),
        };
        let fd = crate::base::uapi::open_tmpfile(c"/var/tmp").expect("a file");
        let (data, mut back) = (Page([7; 4096]), Page([0; 4096]));
        // SAFETY: the pages outlive the requests, and nobody touches them meanwhile.
        unsafe {
            assert_eq!(context.submit(&mut [Request::write(fd, &data.0, 4096, 1)]), Ok(1));
            let mut events = [Event::default(); 4];
            assert_eq!(context.wait(&mut events, None), Ok(1));
            assert_eq!((events[0].data, events[0].result), (1, 4096));
            assert_eq!(context.submit(&mut [Request::read(fd, back.0.as_mut_ptr(), 4096, 4096, 2)]), Ok(1));
        }
        let event = loop {
            if let Some(event) = context.completed() {
                break event;
            }
        };
        assert_eq!((event.data, event.result), (2, 4096));
        assert!(context.completed().is_none());
        assert!(back.0 == data.0);
        context.destroy();
        crate::base::uapi::close(fd);
    }
}
