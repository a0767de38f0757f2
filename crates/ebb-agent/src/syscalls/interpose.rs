//! The hot calls of libc, answered here so that they need not trap.
//!
//! A system call that Syscall User Dispatch catches costs a microsecond more than one that is made from the agent's
//! own code. So the agent exports the calls that programs make most by the names under which programs call libc: the
//! guard pins their buffers, and the call is made right here. What libc calls within itself does not come here and
//! traps, as does everything while interposition is off.
//!
//! These functions behave as glibc 2.36's:
//!
//! * they set `errno` through `__errno_location`, and return -1;
//! * those that POSIX calls cancellation points are cancellation points. With more than one thread, the cancellation
//!   type is asynchronous for the length of the system call, as in `__libc_enable_asynccancel`: a request that is
//!   pending acts before the call, one that comes while the call waits acts at once, and one that comes after the call
//!   acts before the type is set back. In a process of one thread, only that thread can have asked, and only before the
//!   call. So the request is looked for once, as in `pthread_testcancel`;
//! * the `_chk` variants of `_FORTIFY_SOURCE` end the program when the buffer is too small.
//!
//! A thread that is cancelled here leaves by unwinding through these frames. They hold nothing that must be dropped:
//! the pins of a call that never returned end when the thread ends or makes a call higher up. Signals are blocked only
//! inside the engine, so the request never finds a thread there.

use crate::base::{calls, outside, zerocopy};
use crate::guard::{self, Memory, SpaceMemory, device};
use crate::kept::marks;
use crate::signals::masks;
use crate::table::visit::ReadMemory;
use crate::threads::thread;
use core::arch::asm;
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, Ordering};
use linux_raw_sys::general as g;

unsafe extern "C" {
    fn __errno_location() -> *mut c_int;
    fn __chk_fail() -> !;
    fn pthread_setcanceltype(kind: c_int, old: *mut c_int) -> c_int;
    fn pthread_testcancel();
    /// Not zero while the process has a single thread. This is the program's copy, where it has one.
    static __libc_single_threaded: u8;
}

const PTHREAD_CANCEL_ASYNCHRONOUS: c_int = 1;

/// Whether calls are made here and do not trap.
static ENABLED: AtomicBool = AtomicBool::new(false);

/// Says whether calls are made here. If not, as before the process is managed, they are made where they trap once
/// dispatch is armed. Then a call is still caught if a signal interrupts it, the signal's handler makes the process
/// grow, and the kernel restarts the call.
pub fn set_enabled(yes: bool) {
    ENABLED.store(yes, Ordering::Release);
}

/// Where a system call is made.
#[derive(Clone, Copy)]
enum Way {
    /// In the agent's code, which may call the kernel.
    Here,
    /// Where the kernel catches it, once the process is managed.
    Outside,
}

/// Makes the call itself. Returns the kernel's answer.
#[inline(always)]
fn raw(way: Way, nr: u64, args: &[u64; 6]) -> i64 {
    // SAFETY: the program's own call, with the arguments it gave.
    unsafe {
        match way {
            Way::Here => calls::raw_syscall(nr, args),
            Way::Outside => outside::call_outside(nr, args),
        }
    }
}

/// Makes the call as a cancellation point. Returns the kernel's answer.
#[inline(always)]
fn cancellable(way: Way, nr: u64, args: &[u64; 6]) -> i64 {
    // SAFETY: a byte of libc's that is always there. It changes only in this thread while there is no other.
    if unsafe { (&raw const __libc_single_threaded).read_volatile() } != 0 {
        // SAFETY: acts on a pending request by ending the thread, else does nothing.
        unsafe { pthread_testcancel() };
        return raw(way, nr, args);
    }
    let mut old = 0;
    // SAFETY: from here on the thread may be ended at any instruction; nothing here needs to be undone then.
    unsafe { pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &raw mut old) };
    let ret = raw(way, nr, args);
    // SAFETY: sets back what was.
    unsafe { pthread_setcanceltype(old, core::ptr::null_mut()) };
    ret
}

/// Turns the kernel's answer into libc's.
#[inline(always)]
fn finish(ret: i64) -> i64 {
    if (-4095..0).contains(&ret) {
        // SAFETY: the calling thread's errno.
        unsafe { *__errno_location() = -ret as c_int };
        return -1;
    }
    ret
}

/// What a call touches.
#[derive(Clone, Copy)]
pub enum Touches {
    /// One buffer, by address and length.
    Buffer(u64, u64),
    /// Memory that is most often resident, in a call that has no effect when it ends with EFAULT, as the table says.
    /// The call is made at once, and its memory is pinned only when the kernel meets a page that is out. A page that is
    /// evicted meanwhile is pinned in the same way.
    Pure,
    /// What the table says.
    Table,
}

/// Makes the program's call `nr` with its memory pinned, as a cancellation point if `CANCELS`.
#[inline(always)]
pub fn make<const CANCELS: bool>(nr: u32, args: [u64; 6], touches: Touches) -> i64 {
    if zerocopy::is_one(nr, &args) {
        zerocopy::note();
    }
    let nr = nr as u64;
    let once = |way, nr: u64, args: &[u64; 6]| if CANCELS { cancellable(way, nr, args) } else { raw(way, nr, args) };
    let here = if ENABLED.load(Ordering::Acquire) { crate::base::here::space().zip(thread::current()) } else { None };
    let Some((space, block)) = here else { return finish(once(Way::Outside, nr, &args)) };
    // The pins of the thread's last trapped call end now. Later they would be taken for pins of this call.
    masks::end_pins(block);
    let mem = SpaceMemory::of_block(space, block, stack_pointer());
    let leads_on = nr == g::__NR_write as u64 && device::may_take_commands();
    if let Touches::Buffer(addr, len) = touches
        && !leads_on
    {
        if !mem.may_be_managed(addr, len) {
            return finish(once(Way::Here, nr, &args));
        }
        if mem.pin_fast(addr, len) {
            let ret = once(Way::Here, nr, &args);
            mem.pin_end();
            return finish(ret);
        }
    }
    if let Touches::Pure = touches {
        let ret = once(Way::Here, nr, &args);
        if ret != -(linux_raw_sys::errno::EFAULT as i64) {
            return finish(ret);
        }
    }
    finish(slow(&mem, nr, &args, &mut |nr, args| once(Way::Here, nr, args)))
}

/// Makes a call where the kernel catches it once the process is managed, so that the agent performs it.
pub fn caught(nr: u32, args: [u64; 6]) -> i64 {
    finish(raw(Way::Outside, nr as u64, &args))
}

/// As [`caught`], and a cancellation point: whatever the descriptor is, the call may wait.
fn caught_cancellable(nr: u32, args: [u64; 6]) -> i64 {
    finish(cancellable(Way::Outside, nr as u64, &args))
}

#[cold]
#[inline(never)]
fn slow(mem: &SpaceMemory<'_>, nr: u64, args: &[u64; 6], do_call: &mut dyn FnMut(u64, &[u64; 6]) -> i64) -> i64 {
    guard::call(mem, nr, args, do_call)
}

#[inline(always)]
fn stack_pointer() -> u64 {
    let sp: u64;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, rsp", out(reg) sp, options(nomem, nostack, preserves_flags)) };
    sp
}

/// Defines libc functions under their own names. In tests they have names of this crate only: a test must not replace
/// its own libc.
macro_rules! libc_functions {
    ($($(#[$doc:meta])* $(@$alias:ident)* fn $name:ident($($arg:ident: $kind:ty),*) -> $ret:ty $body:block)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// As the function of libc with this name.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C" fn $name($($arg: $kind),*) -> $ret $body

            libc_functions!(@aliases $($alias)*; $name($($arg: $kind),*) -> $ret);
        )*
    };
    (@aliases $($alias:ident)*; $name:ident $args:tt -> $ret:ty) => {
        $(libc_functions!(@alias $alias; $name $args -> $ret);)*
    };
    (@alias $alias:ident; $name:ident($($arg:ident: $kind:ty),*) -> $ret:ty) => {
        /// The same function under another name.
        ///
        /// # Safety
        /// As the function of libc with this name.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $alias($($arg: $kind),*) -> $ret {
            // SAFETY: forwarded contract.
            unsafe { $name($($arg),*) }
        }
    };
}
pub(crate) use libc_functions;

/// Any pointer.
pub type Ptr = *mut c_void;

/// An `int` in a register.
#[inline(always)]
pub fn int(value: c_int) -> u64 {
    value as i64 as u64
}

libc_functions! {
    /// read(2)
    fn read(fd: c_int, buf: Ptr, n: usize) -> isize {
        let args = [int(fd), buf as u64, n as u64, 0, 0, 0];
        if marks::is_marked(args[0]) {
            return caught_cancellable(g::__NR_read, args) as isize;
        }
        make::<true>(g::__NR_read, args, Touches::Buffer(args[1], args[2])) as isize
    }

    /// write(2)
    fn write(fd: c_int, buf: Ptr, n: usize) -> isize {
        let args = [int(fd), buf as u64, n as u64, 0, 0, 0];
        if marks::is_marked(args[0]) {
            return caught_cancellable(g::__NR_write, args) as isize;
        }
        make::<true>(g::__NR_write, args, Touches::Buffer(args[1], args[2])) as isize
    }

    /// pread(2)
    @pread64
    fn pread(fd: c_int, buf: Ptr, n: usize, offset: i64) -> isize {
        let args = [int(fd), buf as u64, n as u64, offset as u64, 0, 0];
        if marks::is_marked(args[0]) {
            return caught_cancellable(g::__NR_pread64, args) as isize;
        }
        make::<true>(g::__NR_pread64, args, Touches::Buffer(args[1], args[2])) as isize
    }

    /// pwrite(2)
    @pwrite64
    fn pwrite(fd: c_int, buf: Ptr, n: usize, offset: i64) -> isize {
        let args = [int(fd), buf as u64, n as u64, offset as u64, 0, 0];
        if marks::is_marked(args[0]) {
            return caught_cancellable(g::__NR_pwrite64, args) as isize;
        }
        make::<true>(g::__NR_pwrite64, args, Touches::Buffer(args[1], args[2])) as isize
    }

    /// readv(2)
    fn readv(fd: c_int, iov: Ptr, n: c_int) -> isize {
        let args = [int(fd), iov as u64, int(n), 0, 0, 0];
        if marks::is_marked(args[0]) {
            return caught_cancellable(g::__NR_readv, args) as isize;
        }
        make::<true>(g::__NR_readv, args, Touches::Table) as isize
    }

    /// writev(2)
    fn writev(fd: c_int, iov: Ptr, n: c_int) -> isize {
        let args = [int(fd), iov as u64, int(n), 0, 0, 0];
        if marks::is_marked(args[0]) {
            return caught_cancellable(g::__NR_writev, args) as isize;
        }
        make::<true>(g::__NR_writev, args, Touches::Table) as isize
    }

    /// preadv(2)
    @preadv64
    fn preadv(fd: c_int, iov: Ptr, n: c_int, offset: i64) -> isize {
        let args = [int(fd), iov as u64, int(n), offset as u64, 0, 0];
        if marks::is_marked(args[0]) {
            return caught_cancellable(g::__NR_preadv, args) as isize;
        }
        make::<true>(g::__NR_preadv, args, Touches::Table) as isize
    }

    /// pwritev(2)
    @pwritev64
    fn pwritev(fd: c_int, iov: Ptr, n: c_int, offset: i64) -> isize {
        let args = [int(fd), iov as u64, int(n), offset as u64, 0, 0];
        if marks::is_marked(args[0]) {
            return caught_cancellable(g::__NR_pwritev, args) as isize;
        }
        make::<true>(g::__NR_pwritev, args, Touches::Table) as isize
    }

    /// recv(2)
    fn recv(fd: c_int, buf: Ptr, n: usize, flags: c_int) -> isize {
        let args = [int(fd), buf as u64, n as u64, int(flags), 0, 0];
        make::<true>(g::__NR_recvfrom, args, Touches::Buffer(args[1], args[2])) as isize
    }

    /// recvfrom(2)
    fn recvfrom(fd: c_int, buf: Ptr, n: usize, flags: c_int, addr: Ptr, addr_len: Ptr) -> isize {
        let args = [int(fd), buf as u64, n as u64, int(flags), addr as u64, addr_len as u64];
        let touches = if addr.is_null() && addr_len.is_null() {
            Touches::Buffer(args[1], args[2])
        } else {
            Touches::Table
        };
        make::<true>(g::__NR_recvfrom, args, touches) as isize
    }

    /// recvmsg(2)
    fn recvmsg(fd: c_int, message: Ptr, flags: c_int) -> isize {
        make::<true>(g::__NR_recvmsg, [int(fd), message as u64, int(flags), 0, 0, 0], Touches::Table) as isize
    }

    /// send(2)
    fn send(fd: c_int, buf: Ptr, n: usize, flags: c_int) -> isize {
        let args = [int(fd), buf as u64, n as u64, int(flags), 0, 0];
        make::<true>(g::__NR_sendto, args, Touches::Buffer(args[1], args[2])) as isize
    }

    /// sendto(2)
    fn sendto(fd: c_int, buf: Ptr, n: usize, flags: c_int, addr: Ptr, addr_len: u32) -> isize {
        let args = [int(fd), buf as u64, n as u64, int(flags), addr as u64, addr_len as u64];
        let touches = if addr.is_null() { Touches::Buffer(args[1], args[2]) } else { Touches::Table };
        make::<true>(g::__NR_sendto, args, touches) as isize
    }

    /// sendmsg(2)
    fn sendmsg(fd: c_int, message: Ptr, flags: c_int) -> isize {
        make::<true>(g::__NR_sendmsg, [int(fd), message as u64, int(flags), 0, 0, 0], Touches::Table) as isize
    }

    /// sendmmsg(2)
    fn sendmmsg(fd: c_int, messages: Ptr, n: u32, flags: c_int) -> c_int {
        make::<true>(g::__NR_sendmmsg, [int(fd), messages as u64, n as u64, int(flags), 0, 0], Touches::Table) as c_int
    }

    /// epoll_wait(2)
    fn epoll_wait(fd: c_int, events: Ptr, max: c_int, timeout: c_int) -> c_int {
        let bytes = max.max(0) as u64 * size_of::<g::epoll_event>() as u64;
        let args = [int(fd), events as u64, int(max), int(timeout), 0, 0];
        make::<true>(g::__NR_epoll_wait, args, Touches::Buffer(args[1], bytes)) as c_int
    }

    /// epoll_ctl(2); no cancellation point.
    fn epoll_ctl(fd: c_int, op: c_int, target: c_int, event: Ptr) -> c_int {
        let bytes = if event.is_null() { 0 } else { size_of::<g::epoll_event>() as u64 };
        let args = [int(fd), int(op), int(target), event as u64, 0, 0];
        make::<false>(g::__NR_epoll_ctl, args, Touches::Buffer(args[3], bytes)) as c_int
    }

    /// poll(2)
    fn poll(fds: Ptr, n: u64, timeout: c_int) -> c_int {
        // The kernel looks at 32 bits of the count.
        let bytes = n as u32 as u64 * size_of::<g::pollfd>() as u64;
        let args = [fds as u64, n, int(timeout), 0, 0, 0];
        make::<true>(g::__NR_poll, args, Touches::Buffer(args[0], bytes)) as c_int
    }

    /// lseek(2); no cancellation point.
    @lseek64
    fn lseek(fd: c_int, offset: i64, whence: c_int) -> i64 {
        make::<false>(g::__NR_lseek, [int(fd), offset as u64, int(whence), 0, 0, 0], Touches::Buffer(0, 0))
    }

    /// read(2), fortified.
    fn __read_chk(fd: c_int, buf: Ptr, n: usize, room: usize) -> isize {
        check_room(n, room);
        // SAFETY: forwarded contract.
        unsafe { read(fd, buf, n) }
    }

    /// pread(2), fortified.
    @__pread64_chk
    fn __pread_chk(fd: c_int, buf: Ptr, n: usize, offset: i64, room: usize) -> isize {
        check_room(n, room);
        // SAFETY: forwarded contract.
        unsafe { pread(fd, buf, n, offset) }
    }

    /// recv(2), fortified.
    fn __recv_chk(fd: c_int, buf: Ptr, n: usize, room: usize, flags: c_int) -> isize {
        check_room(n, room);
        // SAFETY: forwarded contract.
        unsafe { recv(fd, buf, n, flags) }
    }

    /// recvfrom(2), fortified.
    fn __recvfrom_chk(
        fd: c_int,
        buf: Ptr,
        n: usize,
        room: usize,
        flags: c_int,
        addr: Ptr,
        addr_len: Ptr
    ) -> isize {
        check_room(n, room);
        // SAFETY: forwarded contract.
        unsafe { recvfrom(fd, buf, n, flags, addr, addr_len) }
    }

    /// poll(2), fortified.
    fn __poll_chk(fds: Ptr, n: u64, timeout: c_int, room: usize) -> c_int {
        check_room(n as usize, room / size_of::<g::pollfd>());
        // SAFETY: forwarded contract.
        unsafe { poll(fds, n, timeout) }
    }
}

/// Ends the program when the compiler knows that a buffer has less room than the call may fill.
#[inline(always)]
fn check_room(n: usize, room: usize) {
    if n > room {
        // SAFETY: ends the program with libc's message.
        unsafe { __chk_fail() };
    }
}

#[cfg(test)]
mod tests {
    //! Without a space the functions must do what libc's do.

    use super::*;
    use core::ptr::null_mut;
    use std::os::fd::AsRawFd;

    fn errno_of(answer: i64) -> i32 {
        assert_eq!(answer, -1);
        std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
    }

    fn ptr<T: ?Sized>(of: &mut T) -> Ptr {
        core::ptr::from_mut(of).cast()
    }

    #[test]
    fn files_are_read_and_written_at_positions() {
        // SAFETY: buffers and descriptors of the test's own.
        unsafe {
            let fd = libc::memfd_create(c"interpose".as_ptr(), 0);
            let mut text = *b"0123456789";
            assert_eq!(write(fd, ptr(&mut text), 10), 10);
            assert_eq!((lseek(fd, 2, libc::SEEK_SET), lseek64(fd, 0, libc::SEEK_CUR)), (2, 2));
            let mut out = [0u8; 10];
            assert_eq!(read(fd, ptr(&mut out), 3), 3);
            assert_eq!(__read_chk(fd, ptr(&mut out[3..]), 2, 7), 2);
            assert_eq!(&out[..5], b"23456");
            assert_eq!(pread(fd, ptr(&mut out), 2, 8), 2);
            assert_eq!(pread64(fd, ptr(&mut out[2..]), 1, 0), 1);
            assert_eq!(__pread_chk(fd, ptr(&mut out[3..]), 1, 1, 1), 1);
            assert_eq!(__pread64_chk(fd, ptr(&mut out[4..]), 1, 2, 1), 1);
            assert_eq!(&out[..5], b"89012");
            assert_eq!((pwrite(fd, ptr(&mut text), 1, 9), pwrite64(fd, ptr(&mut text), 1, 10)), (1, 1));
            libc::close(fd);
        }
    }

    #[test]
    fn vectors_are_read_and_written() {
        // SAFETY: as above.
        unsafe {
            let fd = libc::memfd_create(c"interpose".as_ptr(), 0);
            let (mut a, mut b) = (*b"abc", *b"de");
            let mut iov =
                [libc::iovec { iov_base: ptr(&mut a), iov_len: 3 }, libc::iovec { iov_base: ptr(&mut b), iov_len: 2 }];
            assert_eq!((writev(fd, ptr(&mut iov), 2), pwritev(fd, ptr(&mut iov), 2, 5)), (5, 5));
            assert_eq!(pwritev64(fd, ptr(&mut iov), 1, 10), 3);
            lseek(fd, 3, libc::SEEK_SET);
            assert_eq!((readv(fd, ptr(&mut iov), 2), a, b), (5, *b"dea", *b"bc"));
            assert_eq!((preadv(fd, ptr(&mut iov), 2, 0), a, b), (5, *b"abc", *b"de"));
            assert_eq!((preadv64(fd, ptr(&mut iov), 1, 1), a), (3, *b"bcd"));
            libc::close(fd);
        }
    }

    #[test]
    fn sockets_send_and_receive() {
        let (a, b) = std::os::unix::net::UnixStream::pair().expect("a pair of sockets");
        let (a, b) = (a.as_raw_fd(), b.as_raw_fd());
        // SAFETY: as above.
        unsafe {
            let mut text = *b"x";
            let mut iov = libc::iovec { iov_base: ptr(&mut text), iov_len: 1 };
            let mut message: libc::msghdr = core::mem::zeroed();
            (message.msg_iov, message.msg_iovlen) = (&mut iov, 1);
            assert_eq!(send(a, ptr(&mut text), 1, 0), 1);
            assert_eq!(sendto(a, ptr(&mut text), 1, 0, null_mut(), 0), 1);
            assert_eq!(sendmsg(a, ptr(&mut message), 0), 1);
            assert_eq!(send(a, ptr(&mut text), 1, 0), 1);
            let mut messages = libc::mmsghdr { msg_hdr: message, msg_len: 0 };
            assert_eq!((sendmmsg(a, ptr(&mut messages), 1, 0), messages.msg_len), (1, 1));
            assert_eq!(recv(b, ptr(&mut text), 1, 0), 1);
            let (mut address, mut len) = ([0u8; 110], 110u32);
            assert_eq!(recvfrom(b, ptr(&mut text), 1, 0, ptr(&mut address), ptr(&mut len)), 1);
            assert_eq!(recvmsg(b, ptr(&mut message), 0), 1);
            assert_eq!(__recv_chk(b, ptr(&mut text), 1, 1, 0), 1);
            assert_eq!(__recvfrom_chk(b, ptr(&mut text), 1, 1, 0, null_mut(), null_mut()), 1);
            let empty = recv(b, ptr(&mut text), 1, libc::MSG_DONTWAIT);
            assert_eq!(errno_of(empty as i64), libc::EAGAIN);
        }
    }

    #[test]
    fn descriptors_are_waited_for() {
        let (a, _b) = std::os::unix::net::UnixStream::pair().expect("a pair of sockets");
        // SAFETY: as above.
        unsafe {
            let mut fds = libc::pollfd { fd: a.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
            assert_eq!((poll(ptr(&mut fds), 1, 0), fds.revents), (1, libc::POLLOUT));
            assert_eq!(__poll_chk(ptr(&mut fds), 1, 0, 8), 1);
            assert_eq!(poll(null_mut(), 0, 0), 0);
            let epoll = libc::epoll_create1(0);
            let mut event = libc::epoll_event { events: libc::EPOLLOUT as u32, u64: 7 };
            assert_eq!(epoll_ctl(epoll, libc::EPOLL_CTL_ADD, a.as_raw_fd(), ptr(&mut event)), 0);
            event.u64 = 0;
            assert_eq!(epoll_wait(epoll, ptr(&mut event), 1, 0), 1);
            assert_eq!({ event.u64 }, 7);
            libc::close(epoll);
        }
    }

    #[test]
    fn a_failure_is_minus_one_and_an_errno() {
        let mut byte = 0u8;
        // SAFETY: the calls fail before they touch anything.
        unsafe {
            assert_eq!(errno_of(read(-1, ptr(&mut byte), 1) as i64), libc::EBADF);
            assert_eq!(errno_of(lseek(-1, 0, 0)), libc::EBADF);
            assert_eq!(errno_of(epoll_wait(-1, ptr(&mut byte), 1, 0) as i64), libc::EBADF);
        }
    }
}
