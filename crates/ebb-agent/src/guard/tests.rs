//! The guard over a memory whose pages come and go, and real descriptors: a call that would touch an evicted page of
//! that memory fails as in the kernel.

use super::{Before, Memory, NOT_MADE, Pin, call, prepare, split};
use crate::table::visit::{Kind, PAGE_BYTES, ReadMemory, for_each_buffer};
use crate::table::{self, Split};
use linux_raw_sys::{general as g, ioctl};
use proptest::prelude::*;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::io::{Read, Seek, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const EFAULT: i64 = libc::EFAULT as i64;

/// Managed pages at real addresses. None is resident at first.
struct Pages {
    start: u64,
    bytes: u64,
    pin_max: u64,
    /// Ranges that can be pinned, whatever their size.
    ranges_max: usize,
    resident: RefCell<BTreeSet<u64>>,
    pins: RefCell<Vec<(u64, u64)>>,
    begun: Cell<u32>,
    blocked: Cell<bool>,
    excluded: RefCell<Vec<(u64, u64)>>,
    unreadable: Cell<u64>,
}

impl Pages {
    fn new(bytes: u64, pin_max: u64) -> Self {
        // SAFETY: a fresh mapping.
        let at = unsafe {
            libc::mmap(
                core::ptr::null_mut(),
                bytes as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(at, libc::MAP_FAILED);
        Self {
            start: at as u64,
            bytes,
            pin_max,
            ranges_max: usize::MAX,
            resident: RefCell::default(),
            pins: RefCell::default(),
            begun: Cell::new(0),
            blocked: Cell::new(false),
            excluded: RefCell::default(),
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
        // The worst that can happen to pages without a pin.
        self.resident.borrow_mut().clear();
    }

    fn pin_max(&self) -> u64 {
        self.pin_max
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

/// The kernel: fails on evicted pages; insists on pins, and on signals not being blocked.
fn kernel(mem: &Pages) -> impl FnMut(u64, &[u64; 6]) -> i64 + '_ {
    move |nr, args| {
        assert!(!mem.blocked.get());
        // Each buffer is pinned by whole pages; two vectors have 64 entries each.
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

/// The kernel, where a call is not expected to come as far as its buffers.
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

#[test]
fn a_small_buffer_is_brought_in_and_pinned_for_the_call() {
    let mem = Pages::new(1 << 20, 64 << 10);
    let file = file_with(b"hello");
    let before = prepare(&mem, table::row(0), 0, &[fd(&file), mem.start, 5, 0, 0, 0], true);
    assert_eq!(before, Before::Pinned);
    assert!(mem.all_pinned(mem.start, 5));
    mem.pin_end();
    assert_eq!(run(&mem, g::__NR_read, [fd(&file), mem.start, 100, 0, 0, 0]), 5);
    assert_eq!(mem.slice(0, 5), b"hello");
}

#[test]
fn a_call_without_managed_buffers_is_plain() {
    let mem = Pages::new(1 << 20, 64 << 10);
    let here = [0u8; 16];
    for (nr, args) in [
        (g::__NR_getpid, [0; 6]),
        (g::__NR_lseek, [3, mem.start, 0, 0, 0, 0]),
        (g::__NR_read, [3, here.as_ptr() as u64, 16, 0, 0, 0]),
        (g::__NR_open, [c"/".as_ptr() as u64, 0, 0, 0, 0, 0]),
    ] {
        assert_eq!(prepare(&mem, table::row(nr as u64), nr as u64, &args, true), Before::Plain, "{nr}");
    }
}

#[test]
fn a_page_that_cannot_be_had_fails_the_call_before_it_is_made() {
    let mem = Pages::new(1 << 20, 64 << 10);
    mem.unreadable.set(mem.start + PAGE_BYTES);
    let ret = call(&mem, g::__NR_write as u64, &[1, mem.start, 8192, 0, 0, 0], &mut |_, _| panic!("made"));
    assert_eq!(ret, -EFAULT);
    assert!(mem.begun.get() == 0 && !mem.blocked.get());
}

#[test]
fn excluded_buffers_are_excluded() {
    let mem = Pages::new(1 << 20, 64 << 10);
    let ret = call(&mem, g::__NR_set_robust_list as u64, &[mem.start, 24, 0, 0, 0, 0], &mut |_, _| 0);
    assert_eq!(ret, 0);
    assert_eq!(*mem.excluded.borrow(), [(mem.start, 24)]);
}

#[test]
fn a_large_read_of_a_file_is_whole_and_moves_the_position() {
    let mem = Pages::new(16 << 20, 512 << 10);
    let content = pattern(5 * MIB + 77);
    let mut file = file_with(&content);
    assert_eq!(
        run(&mem, g::__NR_read, [fd(&file), mem.start + 3, content.len() as u64 - 7, 0, 0, 0]),
        5 * 1048576 + 70
    );
    assert_eq!(mem.slice(3, content.len() - 7), &content[..content.len() - 7]);
    assert_eq!(file.stream_position().unwrap(), content.len() as u64 - 7);
    assert_eq!(run(&mem, g::__NR_read, [fd(&file), mem.start, 8 << 20, 0, 0, 0]), 7, "the end of the file");
    assert_eq!(run(&mem, g::__NR_read, [fd(&file), mem.start, 8 << 20, 0, 0, 0]), 0);
}

#[test]
fn a_large_positioned_transfer_leaves_the_position_alone() {
    let mem = Pages::new(8 << 20, 512 << 10);
    let content = pattern(3 * MIB);
    let mut file = file_with(&content);
    let n = 2 * MIB as u64;
    assert_eq!(run(&mem, g::__NR_pread64, [fd(&file), mem.start, n, 1000, 0, 0]), n as i64);
    assert_eq!(mem.slice(0, n as usize), &content[1000..1000 + n as usize]);
    assert_eq!(run(&mem, g::__NR_pwrite64, [fd(&file), mem.start, n, 0, 0, 0]), n as i64);
    assert_eq!(file.stream_position().unwrap(), 0);
    let mut back = Vec::new();
    file.read_to_end(&mut back).unwrap();
    assert_eq!(back[..n as usize], content[1000..1000 + n as usize]);
    assert_eq!(back.len(), content.len());
}

#[test]
fn an_error_after_a_piece_is_a_short_count() {
    let mem = Pages::new(8 << 20, 512 << 10);
    let file = file_with(&pattern(4 * MIB));
    let mut pieces = 0;
    let mut real = kernel(&mem);
    let ret = call(&mem, g::__NR_read as u64, &[fd(&file), mem.start, 4 << 20, 0, 0, 0], &mut |nr, args| {
        pieces += (nr == 0) as u32;
        if pieces == 3 { -(libc::EIO as i64) } else { real(nr, args) }
    });
    assert_eq!(ret, 2 * (448 << 10));
    assert_eq!(pieces, 3);
}

#[test]
fn an_error_in_the_first_piece_is_the_answer() {
    let mem = Pages::new(8 << 20, 512 << 10);
    let (read_end, _write_end) = pipe(libc::O_NONBLOCK);
    let ret = run(&mem, g::__NR_read, [fd(&read_end), mem.start, 4 << 20, 0, 0, 0]);
    assert_eq!(ret, -(libc::EAGAIN as i64));
    let args = [9999, mem.start, 4 << 20, 0, 0, 0];
    assert_eq!(call(&mem, g::__NR_read as u64, &args, &mut refusing_kernel), -(libc::EBADF as i64));
}

#[test]
fn a_large_read_of_a_stream_is_one_piece() {
    let mem = Pages::new(8 << 20, 512 << 10);
    let (read_end, mut write_end) = pipe(0);
    write_end.write_all(&[7; 1000]).unwrap();
    assert_eq!(run(&mem, g::__NR_read, [fd(&read_end), mem.start, 4 << 20, 0, 0, 0]), 1000);
    assert_eq!(mem.slice(0, 1000), [7; 1000]);
}

#[test]
fn a_large_write_to_a_blocking_pipe_writes_everything() {
    let mem = Pages::new(8 << 20, 512 << 10);
    let content = pattern(3 * MIB + 5);
    mem.slice(0, content.len()).copy_from_slice(&content);
    let (mut read_end, write_end) = pipe(0);
    let reader = std::thread::spawn(move || {
        let mut all = Vec::new();
        read_end.read_to_end(&mut all).unwrap();
        all
    });
    assert_eq!(
        run(&mem, g::__NR_write, [fd(&write_end), mem.start, content.len() as u64, 0, 0, 0]),
        content.len() as i64
    );
    drop(write_end);
    assert!(reader.join().unwrap() == content);
}

#[test]
fn a_large_write_to_a_full_pipe_that_does_not_block_is_short() {
    let mem = Pages::new(8 << 20, 512 << 10);
    let (_read_end, write_end) = pipe(libc::O_NONBLOCK);
    assert_eq!(run(&mem, g::__NR_write, [fd(&write_end), mem.start, 4 << 20, 0, 0, 0]), 64 << 10);
    assert_eq!(run(&mem, g::__NR_write, [fd(&write_end), mem.start, 4 << 20, 0, 0, 0]), -(libc::EAGAIN as i64));
}

#[test]
fn a_peer_that_leaves_after_a_piece_makes_a_short_count_without_a_signal() {
    let mem = Pages::new(8 << 20, 512 << 10);
    let (far, near) = socket_pair(libc::SOCK_STREAM);
    let mut real = kernel(&mem);
    let mut far = Some(far);
    let mut seen = Vec::new();
    let ret = call(&mem, g::__NR_write as u64, &[fd(&near), mem.start, 4 << 20, 0, 0, 0], &mut |nr, args| {
        if nr == g::__NR_write as u64 {
            seen.push((nr, 0));
            return args[2] as i64;
        }
        if nr == g::__NR_sendto as u64 {
            seen.push((nr, args[3]));
            far.take();
        }
        real(nr, args)
    });
    assert_eq!(ret, 448 << 10);
    assert_eq!(seen, [(g::__NR_write as u64, 0), (g::__NR_sendto as u64, libc::MSG_NOSIGNAL as u64)]);
}

#[test]
fn a_signal_before_the_first_piece_leaves_the_call_unmade() {
    let mem = Pages::new(8 << 20, 512 << 10);
    let file = file_with(&pattern(4 * MIB));
    let args = [fd(&file), mem.start, 4 << 20, 0, 0, 0];
    assert_eq!(split::run(&mem, g::__NR_read as u64, &args, &mut |_, _| NOT_MADE), NOT_MADE);
}

#[test]
fn a_signal_between_pieces_ends_a_stream_but_not_a_file() {
    let mem = Pages::new(8 << 20, 512 << 10);
    let file = file_with(&pattern(2 * MIB));
    let mut real = kernel(&mem);
    let mut n = 0;
    let mut interrupted = |nr: u64, args: &[u64; 6]| {
        n += 1;
        if n % 3 == 0 { NOT_MADE } else { real(nr, args) }
    };
    let ret = split::run(&mem, g::__NR_read as u64, &[fd(&file), mem.start, 2 << 20, 0, 0, 0], &mut interrupted);
    assert_eq!(ret, 2 << 20);

    let (_read_end, write_end) = pipe(0);
    let mut pieces = 0;
    let ret =
        split::run(&mem, g::__NR_write as u64, &[fd(&write_end), mem.start, 2 << 20, 0, 0, 0], &mut |nr, args| {
            if nr != g::__NR_write as u64 {
                return kernel(&mem)(nr, args);
            }
            pieces += 1;
            if pieces == 2 { NOT_MADE } else { args[2] as i64 }
        });
    assert_eq!(ret, 448 << 10);
}

#[test]
fn a_message_too_large_to_pin_is_made_whole() {
    let mem = Pages::new(8 << 20, 512 << 10);
    let (far, near) = socket_pair(libc::SOCK_DGRAM);
    assert_eq!(run(&mem, g::__NR_sendto, [fd(&near), mem.start, 1000, 0, 0, 0]), 1000);
    // A buffer far larger than the datagram: what the datagram fills is pinned.
    let mut calls = Vec::new();
    let ret = call(&mem, g::__NR_recvfrom as u64, &[fd(&far), mem.start, 4 << 20, 0, 0, 0], &mut |nr, args| {
        calls.push((nr, args[2]));
        if nr != g::__NR_recvfrom as u64 {
            return kernel(&mem)(nr, args);
        }
        assert!(mem.all_pinned(args[1], 512 << 10));
        // SAFETY: the test's own socket and memory.
        unsafe { libc::syscall(nr as i64, args[0], args[1], args[2], args[3], args[4], args[5]) }
    });
    assert_eq!(ret, 1000);
    assert_eq!(calls.last(), Some(&(g::__NR_recvfrom as u64, 4 << 20)));
}

#[test]
fn waiting_for_all_of_a_stream_reads_on() {
    let mem = Pages::new(8 << 20, 512 << 10);
    let (far, mut near) = socket_pair(libc::SOCK_STREAM);
    let content = pattern(2 * MIB);
    let sent = content.clone();
    let writer = std::thread::spawn(move || near.write_all(&sent).unwrap());
    let waitall = libc::MSG_WAITALL as u64;
    assert_eq!(run(&mem, g::__NR_recvfrom, [fd(&far), mem.start, 2 << 20, waitall, 0, 0]), 2 << 20);
    writer.join().unwrap();
    assert!(mem.slice(0, 2 * MIB) == content);
}

#[test]
fn a_large_message_passes_its_descriptors_once() {
    let mem = Pages::new(8 << 20, 512 << 10);
    let (far, near) = socket_pair(libc::SOCK_STREAM);
    let content = pattern(2 * MIB);
    mem.slice(0, content.len()).copy_from_slice(&content);
    let passed = file_with(b"passed");
    // SOL_SOCKET, SCM_RIGHTS, one descriptor; header and vector stand in managed memory too.
    let at = 4 * MIB;
    mem.put_word(at, 20);
    mem.put_word(at + 8, 1 | 1 << 32);
    mem.put_word(at + 16, fd(&passed));
    mem.put_word(at + 64, mem.start);
    mem.put_word(at + 72, MIB as u64);
    mem.put_word(at + 80, mem.start + MIB as u64);
    mem.put_word(at + 88, MIB as u64);
    let header = [0, 0, mem.start + at as u64 + 64, 2, mem.start + at as u64, 24, 0];
    for (i, word) in header.into_iter().enumerate() {
        mem.put_word(at + 128 + i * 8, word);
    }
    let reader = std::thread::spawn(move || {
        let mut all = Vec::new();
        let mut descriptors = Vec::new();
        let mut room = vec![0u8; 1 << 16];
        loop {
            let mut control = [0u64; 8];
            let mut iov = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
            // SAFETY: zeroes are a valid header.
            let mut msg: libc::msghdr = unsafe { core::mem::zeroed() };
            msg.msg_iov = &mut iov;
            msg.msg_iovlen = 1;
            msg.msg_control = control.as_mut_ptr().cast();
            msg.msg_controllen = 64;
            // SAFETY: everything lives here.
            let n = unsafe { libc::recvmsg(far.as_raw_fd(), &mut msg, 0) };
            if n <= 0 {
                break;
            }
            if msg.msg_controllen > 0 {
                // SAFETY: the kernel made the descriptor for us.
                descriptors.push(unsafe { OwnedFd::from_raw_fd(control[2] as i32) });
            }
            all.extend_from_slice(&room[..n as usize]);
        }
        (all, descriptors.len())
    });
    let ret = run(&mem, g::__NR_sendmsg, [fd(&near), mem.start + at as u64 + 128, 0, 0, 0, 0]);
    assert_eq!(ret, 2 << 20);
    drop(near);
    let (all, descriptors) = reader.join().unwrap();
    assert!(all == content);
    assert_eq!(descriptors, 1);
}

#[test]
fn a_received_messages_header_is_given_back() {
    let mem = Pages::new(8 << 20, 512 << 10);
    let (far, mut near) = socket_pair(libc::SOCK_STREAM);
    near.write_all(&[5; 100]).unwrap();
    mem.put_word(64, mem.start + 4096);
    mem.put_word(72, 4 << 20);
    let header = [0, 0, mem.start + 64, 1, mem.start + 2048, 64, u64::MAX];
    for (i, word) in header.into_iter().enumerate() {
        mem.put_word(128 + i * 8, word);
    }
    assert_eq!(run(&mem, g::__NR_recvmsg, [fd(&far), mem.start + 128, 0, 0, 0, 0]), 100);
    let word = |i: usize| u64::from_ne_bytes(mem.slice(128 + i * 8, 8).try_into().unwrap());
    assert_eq!((word(2), word(3)), (mem.start + 64, 1), "the vector is the program's own");
    assert_eq!(word(5), 0, "no control data came");
    assert_eq!(word(6) as u32, 0, "flags");
    assert_eq!(mem.slice(4096, 100), [5; 100]);
}

/// Twenty small buffers far apart, more than can be pinned together: memory, vector, and their content.
fn scattered() -> (Pages, u64, Vec<u8>) {
    let mut mem = Pages::new(8 << 20, 512 << 10);
    mem.ranges_max = 6;
    let mut content = Vec::new();
    for i in 0..20usize {
        let (at, len) = (MIB + i * 65_536, 10 + i);
        mem.slice(at, len).fill(i as u8);
        content.extend(std::iter::repeat_n(i as u8, len));
        mem.put_word(i * 16, mem.start + at as u64);
        mem.put_word(i * 16 + 8, len as u64);
    }
    let vector = mem.start;
    (mem, vector, content)
}

/// A kernel for which it is enough that pages are resident.
fn lenient<'a>(mem: &'a Pages, calls: &'a Cell<u32>, nr_counted: u32) -> impl FnMut(u64, &[u64; 6]) -> i64 + 'a {
    move |nr, args| {
        calls.set(calls.get() + (nr == nr_counted as u64) as u32);
        let mut evicted = false;
        for_each_buffer(nr, args, mem, &mut |b| evicted |= !mem.all_resident(b.addr, b.len));
        if evicted { -EFAULT } else { refusing_kernel(nr, args) }
    }
}

#[test]
fn a_scattered_write_that_fits_stays_one_call() {
    let (mem, vector, content) = scattered();
    let (mut read_end, write_end) = pipe(0);
    let mut file = file_with(b"");
    for to in [fd(&write_end), fd(&file)] {
        let calls = Cell::new(0);
        let args = [to, vector, 20, 0, 0, 0];
        let ret = call(&mem, g::__NR_writev as u64, &args, &mut lenient(&mem, &calls, g::__NR_writev));
        assert_eq!((ret, calls.get()), (content.len() as i64, 1));
    }
    let mut back = vec![0; content.len()];
    read_end.read_exact(&mut back).unwrap();
    assert_eq!(back, content);
    file.rewind().unwrap();
    file.read_exact(&mut back).unwrap();
    assert_eq!(back, content);
}

#[test]
fn a_scattered_write_that_an_eviction_cuts_short_goes_on_in_pinned_pieces() {
    let (mem, vector, content) = scattered();
    let mut file = file_with(b"");
    for cut in [0, 1, 33, content.len() as i64 - 1] {
        file.set_len(0).unwrap();
        file.rewind().unwrap();
        let mut first = true;
        let args = [fd(&file), vector, 20, 0, 0, 0];
        let ret = call(&mem, g::__NR_writev as u64, &args, &mut |nr, args| {
            if nr != g::__NR_writev as u64 || !std::mem::take(&mut first) {
                return kernel(&mem)(nr, args);
            }
            (&file).write_all(&content[..cut as usize]).unwrap();
            if cut == 0 { -EFAULT } else { cut }
        });
        assert_eq!(ret, content.len() as i64);
        let mut back = Vec::new();
        file.rewind().unwrap();
        file.read_to_end(&mut back).unwrap();
        assert_eq!(back, content);
    }
}

#[test]
fn a_scattered_read_is_made_in_pinned_pieces() {
    let (mem, vector, content) = scattered();
    let sent: Vec<u8> = content.iter().map(|b| !b).collect();
    let file = file_with(&sent);
    assert_eq!(run(&mem, g::__NR_readv, [fd(&file), vector, 20, 0, 0, 0]), content.len() as i64);
    let mut at = 0;
    for i in 0..20usize {
        assert_eq!(mem.slice(MIB + i * 65_536, 10 + i), &sent[at..at + 10 + i]);
        at += 10 + i;
    }
}

#[test]
fn a_scattered_message_is_sent_once_and_tried_again_after_an_eviction() {
    let (mem, vector, content) = scattered();
    let (far, near) = socket_pair(libc::SOCK_DGRAM);
    let header = [0, 0, vector, 20, 0, 0, 0];
    for (i, word) in header.into_iter().enumerate() {
        mem.put_word(4096 + i * 8, word);
    }
    let calls = Cell::new(0);
    let mut evictions = 2;
    let mut real = lenient(&mem, &calls, g::__NR_sendmsg);
    let args = [fd(&near), mem.start + 4096, 0, 0, 0, 0];
    let ret = call(&mem, g::__NR_sendmsg as u64, &args, &mut |nr, args| {
        if nr == g::__NR_sendmsg as u64 && evictions > 0 {
            evictions -= 1;
            return -EFAULT;
        }
        real(nr, args)
    });
    assert_eq!(ret, content.len() as i64);
    let mut back = vec![0; 2 * content.len()];
    assert_eq!((&far).read(&mut back).unwrap(), content.len());
    assert_eq!(back[..content.len()], content);
}

#[test]
fn memory_devices_and_randomness_fill_large_buffers() {
    let mem = Pages::new(8 << 20, 512 << 10);
    mem.slice(0, 4 * MIB).fill(0xff);
    let zero = std::fs::File::open("/dev/zero").unwrap();
    assert_eq!(run(&mem, g::__NR_read, [fd(&zero), mem.start, 4 << 20, 0, 0, 0]), 4 << 20);
    assert!(mem.slice(0, 4 * MIB).iter().all(|&b| b == 0));
    assert_eq!(run(&mem, g::__NR_getrandom, [mem.start, 2 << 20, 0, 0, 0, 0]), 2 << 20);
    assert!(mem.slice(0, 2 * MIB).chunks(4096).all(|page| page.iter().any(|&b| b != 0)));
}

#[test]
fn a_directory_is_read_with_what_fits() {
    let mem = Pages::new(8 << 20, 512 << 10);
    let dir = std::fs::File::open("/").unwrap();
    assert!(run(&mem, g::__NR_getdents64, [fd(&dir), mem.start, 4 << 20, 0, 0, 0]) > 0);
}

#[test]
fn an_address_the_kernel_refuses_is_left_to_the_kernel() {
    let mem = Pages::new(8 << 20, 512 << 10);
    let file = file_with(&pattern(MIB));
    let args = [fd(&file), mem.start, u64::MAX >> 1, 0, 0, 0];
    assert_eq!(call(&mem, g::__NR_read as u64, &args, &mut refusing_kernel), -EFAULT);
    mem.put_word(0, mem.start + 4096);
    mem.put_word(8, u64::MAX);
    let args = [fd(&file), mem.start, 1, 0, 0, 0];
    assert_eq!(call(&mem, g::__NR_readv as u64, &args, &mut refusing_kernel), -(libc::EINVAL as i64));
}

#[test]
fn an_unknown_ioctl_is_tried_again_until_what_it_needs_is_there() {
    let mem = Pages::new(1 << 20, 256 << 10);
    // A structure near the end of a page that leads to a page far away.
    let at = mem.start + 4096 - 16;
    mem.put_word(4096 - 16, mem.start + (512 << 10));
    let mut calls = 0;
    let ret = call(&mem, g::__NR_ioctl as u64, &[3, 0x1234, at, 0, 0, 0], &mut |_, _| {
        calls += 1;
        let needs = [at, mem.start + 4096, mem.start + (512 << 10)];
        if needs.iter().all(|&page| mem.all_resident(page, 1) && mem.all_pinned(page, 1)) { 5 } else { -EFAULT }
    });
    assert_eq!(ret, 5);
    assert!(calls > 1);
    assert_eq!(mem.begun.get(), 0);
}

#[test]
fn an_ioctl_that_always_fails_is_given_up() {
    let mem = Pages::new(1 << 20, 256 << 10);
    let mut calls = 0;
    let args = [3, 0x1234, mem.start, 0, 0, 0];
    assert_eq!(
        call(&mem, g::__NR_ioctl as u64, &args, &mut |_, _| {
            calls += 1;
            -EFAULT
        }),
        -EFAULT
    );
    assert_eq!(calls, super::TRIES_MAX);
}

#[test]
fn an_address_that_is_not_managed_is_not_tried_again() {
    let mem = Pages::new(1 << 20, 256 << 10);
    let mut calls = 0;
    let args = [3, ioctl::TCGETS as u64, 0x10, 0, 0, 0];
    assert_eq!(
        call(&mem, g::__NR_ioctl as u64, &args, &mut |_, _| {
            calls += 1;
            -EFAULT
        }),
        -EFAULT
    );
    assert_eq!(calls, 1);
}

#[test]
fn a_transfer_with_effects_is_never_tried_again() {
    let mem = Pages::new(1 << 20, 256 << 10);
    for nr in (0..471).filter(|&nr| table::row(nr).split != Split::No) {
        let mut calls = 0;
        let args = [0, mem.start, 100, 0, 0, 0];
        call(&mem, nr, &args, &mut |_, _| {
            calls += 1;
            -EFAULT
        });
        assert_eq!(calls, 1, "{nr}");
    }
}

/// Cuts `len` bytes at `at` into entries of a vector at `list`: their number.
fn cut(mem: &Pages, list: usize, at: usize, len: usize, lens: &[usize]) -> u64 {
    let (mut n, mut done) = (0, 0);
    while done < len {
        let part = if n + 1 == 1000 { len - done } else { lens[n % lens.len()].min(len - done) };
        mem.put_word(list + n * 16, mem.start + (at + done) as u64);
        mem.put_word(list + n * 16 + 8, part as u64);
        done += part;
        n += 1;
    }
    n as u64
}

#[test]
fn what_a_process_copies_to_itself_is_copied_whole() {
    let pid = u64::from(std::process::id());
    for (pin_max, lens_of) in
        [(128 << 10, &[3 * MIB, 1][..]), (128 << 10, &[5000, 0, 1, 70_000, 4096]), (4 * MIB as u64, &[10])]
    {
        for nr in [g::__NR_process_vm_readv, g::__NR_process_vm_writev] {
            let mem = Pages::new(16 << 20, pin_max);
            let content = pattern(3 * MIB);
            let (from, to) = (MIB + 77, 8 * MIB + 4095);
            mem.slice(from, 3 * MIB).copy_from_slice(&content);
            let local = if nr == g::__NR_process_vm_readv { to } else { from };
            let n = cut(&mem, 0, local, 3 * MIB, &[9000, 100_000, 1]);
            let n_of = cut(&mem, 32 << 10, from + to - local, 3 * MIB, lens_of);
            let args = [pid, mem.start, n, mem.start + (32 << 10), n_of, 0];
            assert_eq!(run(&mem, nr, args), 3 * MIB as i64, "{pin_max} {lens_of:?}");
            assert_eq!(mem.slice(to, 3 * MIB), content);
        }
    }
}

#[test]
fn a_vector_that_its_own_transfer_overwrites_comes_to_an_end() {
    let mem = Pages::new(4 << 20, 128 << 10);
    let pid = u64::from(std::process::id());
    // The vector is in the first page that is written to, with zeros.
    for nr in [g::__NR_process_vm_readv, g::__NR_readv] {
        let n = cut(&mem, 0, 0, 900_000, &[600_000]);
        mem.put_word(2 << 20, mem.start + (2 << 20) + 16);
        mem.put_word((2 << 20) + 8, 900_000);
        let zeros = std::fs::File::open("/dev/zero").unwrap();
        let args = match nr {
            g::__NR_readv => [fd(&zeros), mem.start, n, 0, 0, 0],
            _ => [pid, mem.start, n, mem.start + (2 << 20), 1, 0],
        };
        let done = run(&mem, nr, args);
        assert!((1..900_000).contains(&done), "{done}");
    }
}

#[test]
fn a_copy_between_processes_ends_where_memory_does() {
    let mem = Pages::new(4 << 20, 128 << 10);
    let pid = u64::from(std::process::id());
    let content = pattern(MIB);
    mem.slice(MIB, MIB).copy_from_slice(&content);
    cut(&mem, 0, 2 * MIB, MIB, &[MIB]);
    // The second entry of the other side is nowhere.
    cut(&mem, 64, MIB, MIB, &[600_000]);
    mem.put_word(64 + 16, 8 << 12);
    let args = [pid, mem.start, 1, mem.start + 64, 2, 0];
    assert_eq!(run(&mem, g::__NR_process_vm_readv, args), 600_000);
    assert_eq!(mem.slice(2 * MIB, 600_000), &content[..600_000]);
    // More entries than there may be, and flags that do not exist.
    let many = [pid, mem.start, 1025, mem.start + 64, 1, 0];
    let refused = |nr: u32, args| call(&mem, nr as u64, &args, &mut refusing_kernel);
    assert_eq!(refused(g::__NR_process_vm_readv, many), -i64::from(libc::EINVAL));
    let flags = [pid, mem.start, 1, mem.start + 64, 1, 1];
    assert_eq!(refused(g::__NR_process_vm_writev, flags), -i64::from(libc::EINVAL));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_vector_cut_into_pieces_transfers_what_the_whole_would(
        lens in prop::collection::vec(prop_oneof![Just(0usize), 1..50usize, 1..300_000usize], 1..150),
        offset in 0u64..5000,
        positioned in any::<bool>(),
    ) {
        let total: usize = lens.iter().sum();
        let mem = Pages::new(64 << 20, 128 << 10);
        let content = pattern(total.saturating_sub(3) + offset as usize);
        let file = file_with(&content);
        let mut at = 1 << 16;
        let mut places = Vec::new();
        for (i, &len) in lens.iter().enumerate() {
            mem.put_word(i * 16, mem.start + at as u64);
            mem.put_word(i * 16 + 8, len as u64);
            places.push((at, len));
            at += len + i % 7;
        }
        let n = lens.len() as u64;
        let (nr, from) = if positioned { (g::__NR_preadv, offset as usize) } else { (g::__NR_readv, 0) };
        let want = content.len().saturating_sub(from).min(total);
        prop_assert_eq!(run(&mem, nr, [fd(&file), mem.start, n, offset, 0, 0]), want as i64);
        let got: Vec<u8> = places.iter().flat_map(|&(at, len)| mem.slice(at, len).to_vec()).collect();
        prop_assert!(got[..want] == content[from..from + want]);

        let mut out = file_with(b"");
        let nr = if positioned { g::__NR_pwritev2 } else { g::__NR_writev };
        let args = [fd(&out), mem.start, n, if positioned { u64::MAX } else { 0 }, 0, 0];
        prop_assert_eq!(run(&mem, nr, args), total as i64);
        let mut back = Vec::new();
        out.rewind().unwrap();
        out.read_to_end(&mut back).unwrap();
        prop_assert!(back == got);
    }
}
