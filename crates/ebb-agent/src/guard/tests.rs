//! Tests the guard with memory whose pages come and go, and with real descriptors. A call that would touch an evicted
//! page of that memory fails as it would in the kernel.

use super::{Before, Memory, NOT_MADE, Pin, call, prepare, split};
use crate::table::visit::{Kind, PAGE_BYTES, ReadMemory};
use crate::table::walk::for_each_buffer;
use crate::table::{self, Split};
use linux_raw_sys::{general as g, ioctl};
use proptest::prelude::*;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::io::{Read, Seek, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

mod calls;
mod drivers;
mod process_vm;
mod streams;
mod transfers;

const EFAULT: i64 = libc::EFAULT as i64;

/// Managed pages at real addresses. At first none is resident.
struct Pages {
    start: u64,
    bytes: u64,
    pin_max: u64,
    /// What the first large calls may pin, taken from the end: others have pinned much.
    piece_max: RefCell<Vec<u64>>,
    /// How many large calls find that others have just pinned much.
    too_much: Cell<u32>,
    /// How many ranges can be pinned, whatever their size.
    ranges_max: usize,
    resident: RefCell<BTreeSet<u64>>,
    pins: RefCell<Vec<(u64, u64)>>,
    begun: Cell<u32>,
    blocked: Cell<bool>,
    excluded: RefCell<Vec<(u64, u64)>>,
    /// Whether the budget can bear what is registered.
    registers: Cell<bool>,
    /// Addresses that drivers were given.
    given: RefCell<BTreeSet<u64>>,
    unreadable: Cell<u64>,
}

impl Pages {
    fn new(bytes: u64, pin_max: u64) -> Self {
        Self::map(core::ptr::null_mut(), 0, bytes, pin_max)
    }

    /// The same at an address where nothing is.
    fn at(start: u64, bytes: u64, pin_max: u64) -> Self {
        Self::map(start as *mut _, libc::MAP_FIXED_NOREPLACE, bytes, pin_max)
    }

    fn map(at: *mut libc::c_void, flags: i32, bytes: u64, pin_max: u64) -> Self {
        let flags = flags | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh mapping.
        let at = unsafe { libc::mmap(at, bytes as usize, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        Self {
            start: at as u64,
            bytes,
            pin_max,
            piece_max: RefCell::default(),
            too_much: Cell::new(0),
            ranges_max: usize::MAX,
            resident: RefCell::default(),
            pins: RefCell::default(),
            begun: Cell::new(0),
            blocked: Cell::new(false),
            excluded: RefCell::default(),
            registers: Cell::new(true),
            given: RefCell::default(),
            unreadable: Cell::new(0),
        }
    }

    #[allow(clippy::mut_from_ref)]
    fn slice(&self, at: usize, len: usize) -> &mut [u8] {
        assert!((at + len) as u64 <= self.bytes);
        // SAFETY: within the mapping; tests use disjoint or read-only slices one at a time.
        unsafe { core::slice::from_raw_parts_mut((self.start as usize + at) as *mut u8, len) }
    }

    fn put_word(&self, at: usize, word: u64) {
        self.slice(at, 8).copy_from_slice(&word.to_ne_bytes());
    }

    fn is_managed(&self, page: u64) -> bool {
        page >= self.start && page < self.start + self.bytes
    }

    fn managed_pages(&self, addr: u64, len: u64) -> impl Iterator<Item = u64> + '_ {
        let end = (addr + len).min(self.start + self.bytes);
        let first = (addr & !(PAGE_BYTES - 1)).max(self.start);
        (first..end.max(first)).step_by(PAGE_BYTES as usize).filter(|&p| self.is_managed(p))
    }

    fn all_resident(&self, addr: u64, len: u64) -> bool {
        let resident = self.resident.borrow();
        self.managed_pages(addr, len).all(|p| resident.contains(&p))
    }

    fn all_pinned(&self, addr: u64, len: u64) -> bool {
        let pins = self.pins.borrow();
        self.managed_pages(addr, len).all(|p| pins.iter().any(|&(s, e)| p + PAGE_BYTES > s && p < e))
    }

    fn pinned_bytes(&self) -> u64 {
        self.pins.borrow().iter().map(|(s, e)| e - s).sum()
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: nobody uses the mapping any more.
        unsafe { libc::munmap(self.start as *mut _, self.bytes as usize) };
    }
}

impl ReadMemory for Pages {
    fn read(&self, addr: u64, out: &mut [u8]) -> bool {
        self.resident.borrow_mut().extend(self.managed_pages(addr, out.len() as u64));
        let local = libc::iovec { iov_base: out.as_mut_ptr().cast(), iov_len: out.len() };
        let remote = libc::iovec { iov_base: addr as *mut _, iov_len: out.len() };
        // SAFETY: writes `out` only.
        unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) == out.len() as isize }
    }

    fn is_self(&self, pid: i32) -> bool {
        pid as u32 == std::process::id()
    }

    fn may_be_managed(&self, addr: u64, len: u64) -> bool {
        self.managed_pages(addr, len).next().is_some()
    }
}

impl Memory for Pages {
    fn pin_begin(&self) {
        self.pins.borrow_mut().clear();
        self.begun.set(1);
    }

    fn pin_fast(&self, addr: u64, len: u64) -> bool {
        let fits = len <= self.pin_max && self.all_resident(addr, len);
        if fits {
            self.pin_begin();
            self.pins.borrow_mut().push((addr, addr + len));
        }
        fits
    }

    fn pin_add(&self, addr: u64, len: u64) -> Pin {
        assert!(self.blocked.get() && self.begun.get() == 1);
        if self.managed_pages(addr, len).count() as u64 * PAGE_BYTES > self.pin_max + 2 * PAGE_BYTES {
            return Pin::TooLarge;
        }
        if self.pins.borrow().len() >= self.ranges_max {
            return Pin::TooLarge;
        }
        self.pins.borrow_mut().push((addr, addr + len));
        if self.bring_in(addr, len) { Pin::Ok } else { Pin::Unreadable }
    }

    fn pin_end(&self) {
        assert_eq!(self.begun.get(), 1);
        self.begun.set(0);
        self.pins.borrow_mut().clear();
        // The worst that can happen to unpinned pages.
        self.resident.borrow_mut().clear();
    }

    fn pin_max(&self) -> u64 {
        self.pin_max
    }

    fn piece_max(&self) -> u64 {
        self.piece_max.borrow_mut().pop().map_or(self.pin_max, |bytes| bytes.min(self.pin_max))
    }

    fn calls_pin_too_much(&self) -> bool {
        assert!(self.pinned_bytes() > super::PIECE_BYTES_MIN);
        let left = self.too_much.get();
        self.too_much.set(left.saturating_sub(1));
        left > 0
    }

    fn bring_in(&self, addr: u64, len: u64) -> bool {
        assert!(self.blocked.get());
        self.resident.borrow_mut().extend(self.managed_pages(addr, len));
        !self.managed_pages(addr, len).any(|p| p == self.unreadable.get())
    }

    fn exclude(&self, addr: u64, len: u64) {
        assert!(self.blocked.get());
        self.excluded.borrow_mut().push((addr, len));
    }

    fn register(&self, addr: u64, len: u64) -> bool {
        if self.registers.get() {
            self.exclude(addr, len);
            self.resident.borrow_mut().extend(self.managed_pages(addr, len));
        }
        self.registers.get()
    }

    fn is_known_to_drivers(&self, addr: u64) -> bool {
        self.given.borrow().contains(&addr)
    }

    fn give_to_driver(&self, addr: u64) {
        assert!(self.blocked.get());
        self.given.borrow_mut().insert(addr);
    }

    fn request(&self, _context: u64, _block: u64, addr: u64, len: u64) {
        assert!(self.blocked.get());
        self.resident.borrow_mut().extend(self.managed_pages(addr, len));
    }

    fn write(&self, addr: u64, bytes: &[u8]) -> bool {
        // SAFETY: tests pass addresses of their own.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), addr as *mut u8, bytes.len()) };
        true
    }

    fn block(&self) -> u64 {
        assert!(!self.blocked.replace(true));
        7
    }

    fn unblock(&self, mask: u64) {
        assert_eq!(mask, 7);
        assert!(self.blocked.replace(false));
    }
}

/// The kernel: fails on evicted pages, and insists that buffers are pinned and signals are not blocked.
fn kernel(mem: &Pages) -> impl FnMut(u64, &[u64; 6]) -> i64 + '_ {
    move |nr, args| {
        assert!(!mem.blocked.get());
        // Each buffer is pinned in whole pages; two vectors have 64 entries each.
        assert!(mem.pinned_bytes() <= mem.pin_max + 2 * 64 * PAGE_BYTES);
        let mut evicted = false;
        for_each_buffer(nr, args, mem, &mut |b| {
            evicted |= b.kind == Kind::Pin && !(mem.all_resident(b.addr, b.len) && mem.all_pinned(b.addr, b.len));
        });
        if evicted {
            return -EFAULT;
        }
        refusing_kernel(nr, args)
    }
}

/// The kernel, for calls that are not expected to get as far as their buffers.
fn refusing_kernel(nr: u64, args: &[u64; 6]) -> i64 {
    // SAFETY: tests make calls on memory and descriptors of their own.
    let ret = unsafe { libc::syscall(nr as i64, args[0], args[1], args[2], args[3], args[4], args[5]) };
    if ret == -1 { -(std::io::Error::last_os_error().raw_os_error().unwrap() as i64) } else { ret }
}

fn run(mem: &Pages, nr: u32, args: [u64; 6]) -> i64 {
    let ret = call(mem, nr as u64, &args, &mut kernel(mem));
    assert!(!mem.blocked.get() && mem.begun.get() == 0 && mem.pins.borrow().is_empty());
    ret
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 4096 * 7) as u8).collect()
}

fn file_with(content: &[u8]) -> std::fs::File {
    // SAFETY: a name, and no flags.
    let fd = unsafe { libc::memfd_create(c"guard".as_ptr(), 0) };
    assert!(fd >= 0);
    // SAFETY: fresh descriptor.
    let mut file = unsafe { std::fs::File::from_raw_fd(fd) };
    file.write_all(content).unwrap();
    file.rewind().unwrap();
    file
}

fn pipe(flags: i32) -> (std::fs::File, std::fs::File) {
    let mut fds = [0; 2];
    // SAFETY: the array receives two descriptors.
    assert_eq!(unsafe { libc::pipe2(fds.as_mut_ptr(), flags) }, 0);
    // SAFETY: fresh descriptors.
    unsafe { (std::fs::File::from_raw_fd(fds[0]), std::fs::File::from_raw_fd(fds[1])) }
}

fn socket_pair(kind: i32) -> (std::fs::File, std::fs::File) {
    let mut fds = [0; 2];
    // SAFETY: the array receives two descriptors.
    assert_eq!(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) }, 0);
    // SAFETY: fresh descriptors.
    unsafe { (std::fs::File::from_raw_fd(fds[0]), std::fs::File::from_raw_fd(fds[1])) }
}

fn fd(file: &impl AsRawFd) -> u64 {
    file.as_raw_fd() as u64
}

const MIB: usize = 1 << 20;
