//! System calls whose buffers lie in memory under test.
//!
//! Most operations take a run whose content is known, send it through the kernel, and receive it in another run, whose
//! model then is the first one's: the content names its stamp, not its address.

use crate::content::PAGE;
use crate::model::{Page, check_in_place};
use crate::ops::memory::{copy_models, two_runs};
use crate::report::{COUNTS, add, fail};
use crate::sys::{self, RW, must};
use crate::worker::{Run, SCRATCH_PAGES, Worker};
use std::ffi::{CStr, c_void};
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A file without a name, in the directory for temporary files.
pub fn unlinked_file() -> File {
    let dir = std::env::temp_dir();
    let mut options = File::options();
    use std::os::unix::fs::OpenOptionsExt;
    let made = options.read(true).write(true).custom_flags(libc::O_TMPFILE).mode(0o600).open(&dir);
    made.unwrap_or_else(|error| fail(format_args!("a temporary file in {}: {error}", dir.display())))
}

fn pair(what: &str, make: impl Fn(*mut i32) -> i32) -> (OwnedFd, OwnedFd) {
    let mut ends = [0; 2];
    must(what, || make(ends.as_mut_ptr()) as isize);
    // SAFETY: just opened, owned by nobody else.
    unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) }
}

fn pipe_pair() -> (OwnedFd, OwnedFd) {
    // SAFETY: room for two descriptors.
    pair("pipe2", |ends| unsafe { libc::pipe2(ends, libc::O_CLOEXEC) })
}

/// Moves all bytes with a call that may move fewer at a time.
fn all(what: &str, bytes: usize, mut step: impl FnMut(usize) -> isize) {
    let mut done = 0;
    while done < bytes {
        let n = must(what, || step(done));
        if n == 0 {
            fail(format_args!("{what} ended after {done} of {bytes} bytes"));
        }
        done += n;
    }
    add(&COUNTS.io_bytes, bytes);
}

/// Cuts a range into pieces of odd sizes.
fn pieces(worker: &mut Worker, addr: usize, bytes: usize) -> Vec<libc::iovec> {
    let mut list = Vec::new();
    let mut at = 0;
    while at < bytes {
        let len = if list.len() == 60 { bytes - at } else { worker.rng.between(1, 9000).min(bytes - at) };
        list.push(libc::iovec { iov_base: (addr + at) as *mut c_void, iov_len: len });
        at += len;
    }
    list
}

/// The rest of a list of pieces after so many bytes.
fn rest(list: &[libc::iovec], mut done: usize) -> Vec<libc::iovec> {
    let mut out = Vec::new();
    for piece in list {
        let skip = done.min(piece.iov_len);
        done -= skip;
        if skip < piece.iov_len {
            let base = (piece.iov_base as usize + skip) as *mut c_void;
            out.push(libc::iovec { iov_base: base, iov_len: piece.iov_len - skip });
        }
    }
    out
}

fn verify(worker: &mut Worker, from: Run, to: Run) {
    copy_models(worker, from, to);
    if worker.rng.one_in(2) {
        (to.start..to.start + to.len).for_each(|page| worker.areas[to.area].check(page));
    }
}

/// Through a file: plain, at odd offsets, or in pieces.
pub fn file(worker: &mut Worker) {
    let max = worker.length();
    let Some((from, to)) = two_runs(worker, max) else { return };
    let (source, dest, bytes) = (worker.addr(from), worker.addr(to), from.len * PAGE);
    let fd = worker.file.as_raw_fd();
    let offset = worker.rng.below(10_000) as i64;
    let out = pieces(worker, source, bytes);
    let back = pieces(worker, dest, bytes);
    // SAFETY: all pieces lie in runs of this worker; the kernel reads the source and writes the destination.
    unsafe {
        if worker.rng.one_in(2) {
            all("pwrite", bytes, |n| libc::pwrite(fd, (source + n) as *const c_void, bytes - n, offset + n as i64));
        } else {
            all("pwritev", bytes, |n| {
                let list = rest(&out, n);
                libc::pwritev(fd, list.as_ptr(), list.len() as i32, offset + n as i64)
            });
        }
        if worker.rng.one_in(2) {
            all("pread", bytes, |n| libc::pread(fd, (dest + n) as *mut c_void, bytes - n, offset + n as i64));
        } else {
            all("preadv", bytes, |n| {
                let list = rest(&back, n);
                libc::preadv(fd, list.as_ptr(), list.len() as i32, offset + n as i64)
            });
        }
    }
    verify(worker, from, to);
}

/// Through a pipe: write or vmsplice, then read in pieces.
pub fn pipe(worker: &mut Worker) {
    let Some((from, to)) = two_runs(worker, 15) else { return };
    let (source, dest, bytes) = (worker.addr(from), worker.addr(to), from.len * PAGE);
    let (reader, writer) = pipe_pair();
    let (reader, writer) = (reader.as_raw_fd(), writer.as_raw_fd());
    let back = pieces(worker, dest, bytes);
    // SAFETY: as in `file`. The pipe holds 16 pages, so nothing blocks.
    unsafe {
        match worker.rng.below(3) {
            0 => all("vmsplice", bytes, |n| {
                let piece = libc::iovec { iov_base: (source + n) as *mut c_void, iov_len: bytes - n };
                libc::vmsplice(writer, &piece, 1, 0)
            }),
            _ => all("write to a pipe", bytes, |n| libc::write(writer, (source + n) as *const c_void, bytes - n)),
        }
        if worker.rng.one_in(2) {
            all("read from a pipe", bytes, |n| libc::read(reader, (dest + n) as *mut c_void, bytes - n));
        } else {
            all("readv from a pipe", bytes, |n| {
                let list = rest(&back, n);
                libc::readv(reader, list.as_ptr(), list.len() as i32)
            });
        }
    }
    verify(worker, from, to);
}

/// Through a pair of sockets: a stream, or messages with boundaries.
pub fn socket(worker: &mut Worker) {
    let Some((from, to)) = two_runs(worker, 12) else { return };
    let (source, dest, bytes) = (worker.addr(from), worker.addr(to), from.len * PAGE);
    let messages = worker.rng.one_in(2);
    let kind = if messages { libc::SOCK_SEQPACKET } else { libc::SOCK_STREAM } | libc::SOCK_CLOEXEC;
    // SAFETY: room for two descriptors.
    let (one, two) = pair("socketpair", |ends| unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends) });
    let (one, two) = (one.as_raw_fd(), two.as_raw_fd());
    let out = pieces(worker, source, bytes);
    let back = pieces(worker, dest, bytes);
    let message = |list: &[libc::iovec]| {
        // SAFETY: zero is a valid message header.
        let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
        message.msg_iov = list.as_ptr().cast_mut();
        message.msg_iovlen = list.len();
        message
    };
    // SAFETY: as in `file`. Both fit a socket's buffer.
    unsafe {
        all("sendmsg", bytes, |n| {
            let list = rest(&out, n);
            libc::sendmsg(one, &message(&list), libc::MSG_NOSIGNAL)
        });
        if messages {
            let n = must("recvmsg", || libc::recvmsg(two, &mut message(&back), 0));
            if n != bytes {
                fail(format_args!("a message of {bytes} bytes arrived with {n}"));
            }
        } else {
            all("recv", bytes, |n| libc::recv(two, (dest + n) as *mut c_void, bytes - n, 0));
        }
    }
    verify(worker, from, to);
}

/// By process_vm_readv or process_vm_writev from this process to itself.
pub fn self_copy(worker: &mut Worker) {
    let Some((from, to)) = two_runs(worker, 64) else { return };
    let bytes = from.len * PAGE;
    let source = libc::iovec { iov_base: worker.addr(from) as *mut c_void, iov_len: bytes };
    let dest = libc::iovec { iov_base: worker.addr(to) as *mut c_void, iov_len: bytes };
    let write = worker.rng.one_in(2);
    // SAFETY: as in `file`.
    let moved = sys::attempt(|| unsafe {
        let pid = libc::getpid();
        if write {
            libc::process_vm_writev(pid, &source, 1, &dest, 1, 0)
        } else {
            libc::process_vm_readv(pid, &dest, 1, &source, 1, 0)
        }
    });
    match moved {
        Ok(n) if n == bytes => verify(worker, from, to),
        Err(libc::EPERM | libc::ENOSYS) => {}
        other => fail(format_args!("process_vm of {bytes} bytes at {:p}: {other:?}", source.iov_base)),
    }
}

/// One call that moves as much as this worker has: more than the budget, when that is small.
pub fn large(worker: &mut Worker) {
    let pages = worker.target / 2 + 1;
    let source = sys::map(pages, RW, 0);
    let area = worker.adopt(source, vec![Page::zero(RW); pages]);
    let from = Run { area, start: 0, len: pages };
    worker.write_run(from);
    let dest = sys::map(pages, RW, 0);
    let bytes = pages * PAGE;
    // SAFETY: both mappings are this function's; the helper is joined before they go.
    unsafe {
        if worker.rng.one_in(2) {
            let fd = worker.file.as_raw_fd();
            all("a large pwrite", bytes, |n| libc::pwrite(fd, (source + n) as *const c_void, bytes - n, n as i64));
            all("a large pread", bytes, |n| libc::pread(fd, (dest + n) as *mut c_void, bytes - n, n as i64));
        } else {
            let (reader, writer) = pipe_pair();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let fd = writer.as_raw_fd();
                    all("a large write", bytes, |n| libc::write(fd, (source + n) as *const c_void, bytes - n));
                });
                let fd = reader.as_raw_fd();
                all("a large read", bytes, |n| libc::read(fd, (dest + n) as *mut c_void, bytes - n));
            });
        }
    }
    for page in 0..pages {
        check_in_place("a page after large I/O", dest + page * PAGE, worker.areas[area].page(page).expect());
    }
    sys::unmap(dest, pages);
    worker.areas[area].unmap_all();
    worker.tidy(area);
}

/// Calls that take and give structures and strings, placed across page boundaries of memory that is often moved out.
pub fn calls(worker: &mut Worker) {
    let page = worker.rng.between(1, SCRATCH_PAGES - 1);
    // 8-aligned, and across the boundary between two pages.
    let at = worker.scratch + page * PAGE - 8 * worker.rng.between(1, 3);
    // SAFETY: each call gets room for what it writes: more than half a page behind `at`, except on the last page,
    // where the mapping ends a page behind it.
    unsafe {
        match worker.rng.below(9) {
            0 => {
                let path = b"/proc/self/status\0";
                core::ptr::copy_nonoverlapping(path.as_ptr(), at as *mut u8, path.len());
                let fd = must("open", || libc::open(at as *const i8, libc::O_RDONLY | libc::O_CLOEXEC) as isize) as i32;
                let n = must("read", || libc::read(fd, at as *mut c_void, 2000));
                let text = core::slice::from_raw_parts(at as *const u8, n);
                if !text.starts_with(b"Name:\t") {
                    fail(format_args!("/proc/self/status begins with {:?}", &text[..8.min(n)]));
                }
                libc::close(fd);
            }
            1 => {
                must("stat", || libc::stat(c"/".as_ptr(), at as *mut libc::stat) as isize);
                if (*(at as *const libc::stat)).st_mode & libc::S_IFMT != libc::S_IFDIR {
                    fail(format_args!("stat says / is no directory"));
                }
            }
            2 => {
                must("getcwd", || libc::syscall(libc::SYS_getcwd, at, 1000) as isize);
                let mut link = [0u8; 1000];
                let n = must("readlink", || {
                    libc::readlink(c"/proc/self/cwd".as_ptr(), link.as_mut_ptr().cast(), link.len())
                });
                if CStr::from_ptr(at as *const i8).to_bytes() != &link[..n] {
                    fail(format_args!("getcwd and /proc/self/cwd disagree"));
                }
            }
            3 => {
                let n = must("readlink", || libc::readlink(c"/proc/self/exe".as_ptr(), at as *mut i8, 1000));
                if n == 0 || *(at as *const u8) != b'/' {
                    fail(format_args!("readlink of /proc/self/exe gave {n} bytes"));
                }
            }
            4 => {
                let fd = must("open", || libc::open(c"/proc/self/task".as_ptr(), libc::O_CLOEXEC) as isize) as i32;
                let n = must("getdents64", || libc::syscall(libc::SYS_getdents64, fd, at, 2000) as isize);
                // A signal may end the call after the first entry.
                if n < 24 || *((at + 19) as *const u8) != b'.' {
                    fail(format_args!("getdents64 gave {n} bytes"));
                }
                libc::close(fd);
            }
            5 => {
                let (reader, writer) = pipe_pair();
                must("write", || libc::write(writer.as_raw_fd(), c"x".as_ptr().cast(), 1));
                let poll = at as *mut libc::pollfd;
                poll.write(libc::pollfd { fd: reader.as_raw_fd(), events: libc::POLLIN, revents: 0 });
                if must("poll", || libc::poll(poll, 1, 1000) as isize) != 1 || (*poll).revents != libc::POLLIN {
                    fail(format_args!("poll does not see a byte in a pipe"));
                }
            }
            6 => {
                must("clock_gettime", || libc::syscall(libc::SYS_clock_gettime, libc::CLOCK_MONOTONIC, at) as isize);
                let mut time: libc::timespec = core::mem::zeroed();
                libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time);
                if time.tv_sec - (*(at as *const libc::timespec)).tv_sec > 60 {
                    fail(format_args!("clock_gettime gave {}, not {}", *(at as *const i64), time.tv_sec));
                }
            }
            7 => {
                // The mask that is read back is the one set; nothing else changes this thread's mask.
                let set = at as *mut u64;
                set.write(1 << (libc::SIGUSR2 - 1));
                let change = |how: i32, new: *const u64, old: *mut u64| {
                    must("rt_sigprocmask", || libc::syscall(libc::SYS_rt_sigprocmask, how, new, old, 8) as isize);
                };
                let old = set.add(2);
                change(libc::SIG_BLOCK, set, old);
                change(libc::SIG_SETMASK, old, set);
                if set.read() & 1 << (libc::SIGUSR2 - 1) == 0 {
                    fail(format_args!("a blocked signal is not in the mask {:#x}", set.read()));
                }
            }
            _ => {
                core::ptr::write_bytes(at as *mut u8, 0, 64);
                let n = must("getrandom", || libc::getrandom(at as *mut c_void, 64, 0));
                if n != 64 || core::slice::from_raw_parts(at as *const u64, 8).contains(&0) {
                    fail(format_args!("getrandom filled {n} bytes, some with zeroes"));
                }
            }
        }
    }
}
