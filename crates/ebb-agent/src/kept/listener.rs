//! The control socket's thread and its descriptors. `process::control` answers requests.

use crate::base::calls;
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use ebb::life::Life;
use ebb::uapi;
use linux_raw_sys::general as g;

/// The process that the socket and its thread belong to; 0 for none yet.
pub(crate) static OWNER: AtomicU32 = AtomicU32::new(0);
/// Life of the socket's thread. The thread ends before the process changes what its tasks may do; see `tasks`. The
/// socket ends with it, and is made anew when `ebb` asks for it.
pub(crate) static LIFE: Life = Life::new();
pub(crate) static LISTENER: AtomicI32 = AtomicI32::new(-1);
/// The socket's file.
pub(crate) static FILE: AtomicI32 = AtomicI32::new(-1);
pub(crate) static CLIENT: AtomicI32 = AtomicI32::new(-1);

pub(crate) fn call(nr: u32, a: [u64; 6]) -> i64 {
    // SAFETY: calls on descriptors of Ebb's own; buffers are named where they are passed, and outlive the call.
    unsafe { calls::raw_syscall(nr as u64, &a) }
}

/// The descriptors that are kept from the program; -1 where there is none.
pub fn fds() -> [i32; 3] {
    [&LISTENER, &FILE, &CLIENT].map(|fd| fd.load(Ordering::Relaxed))
}

/// Ends the thread, whatever it is doing, and keeps another from beginning until [`release`]. The background thread,
/// which would make one, must have ended.
pub fn hold() {
    let wait = |turns: u32| {
        let step_ns = if turns == 0 { 20_000 } else { 500_000 };
        uapi::futex_wait(&AtomicU32::new(0), 0, Some(step_ns));
    };
    LIFE.hold(hang_up, uapi::is_thread_gone, wait, || {});
}

/// True if the thread may exist.
pub fn has_thread() -> bool {
    LIFE.may_be_there()
}

/// True if `tid` is the thread's number.
pub fn is_thread(tid: u64) -> bool {
    LIFE.is(tid)
}

/// Ends what [`hold`] began.
pub fn release() {
    LIFE.release();
}

/// Shuts the sockets down, so that the thread no longer waits there.
fn hang_up() {
    const SHUT_RDWR: u64 = 2;
    for socket in [&LISTENER, &CLIENT] {
        let fd = socket.load(Ordering::Relaxed);
        if fd >= 0 && is_control(fd) {
            call(g::__NR_shutdown, [fd as u64, SHUT_RDWR, 0, 0, 0, 0]);
        }
    }
}

/// True if the descriptor is the control socket or a connection to it.
fn is_control(fd: i32) -> bool {
    let mut address = [0u8; SUN_PATH_BYTES + 2];
    let mut len = address.len() as u32;
    let args = [fd as u64, address.as_mut_ptr() as u64, &raw mut len as u64, 0, 0, 0];
    call(g::__NR_getsockname, args) == 0 && address.windows(NAME.len()).any(|bytes| bytes == NAME)
}

/// Closes the descriptor in one of the places above. It is kept from the program until it is closed.
pub(crate) fn close_one(place: &AtomicI32) {
    let fd = place.load(Ordering::Relaxed);
    if fd >= 0 {
        uapi::close(fd);
        place.store(-1, Ordering::Relaxed);
    }
}

pub(crate) fn close_all() {
    [&LISTENER, &FILE, &CLIENT].into_iter().for_each(close_one);
}

/// Runs in the child of a fork: the socket and the thread belong to the parent.
pub fn in_child() {
    LIFE.reset();
    if OWNER.swap(0, Ordering::Relaxed) != 0 {
        close_all();
    }
}

/// True if the other end belongs to the user of this process, or to root.
pub(crate) fn is_owner(fd: i32) -> bool {
    let mut peer = [0u32; 3];
    let mut len = size_of_val(&peer) as u32;
    let fd = fd as u64;
    let found =
        call(g::__NR_getsockopt, [fd, SOL_SOCKET, SO_PEERCRED, peer.as_mut_ptr() as u64, &raw mut len as u64, 0]);
    let user = call(g::__NR_geteuid, [0; 6]) as u32;
    found == 0 && (peer[1] == user || peer[1] == 0)
}

pub(crate) const SOL_SOCKET: u64 = 1;
pub(crate) const SO_PEERCRED: u64 = 17;
/// Bytes of the path in an address of this family.
pub(crate) const SUN_PATH_BYTES: usize = 108;

pub(crate) const NAME: &[u8] = b"/.ebb-control-";
