//! The control socket: where `ebb` asks a running process about its devices, has it add or remove one, or give up memory
//! (`docs/contract.md`, "Control socket").
//!
//! Unused, it costs nothing: there is no socket and no thread until `ebb` raises a word in the counters' page, which
//! Ebb's background thread watches while it sleeps. No signal is used, because the program could notice it. The
//! socket's file has mode 0600 and no name. `ebb` reaches it through `/proc/PID/fd`, which the kernel opens to the
//! owner alone, and each client is asked for its user again. A thread of its own answers, one request after the other.
//! It is no thread of the program's and never touches managed memory.

use crate::base::contract::{Demand, DeviceText, PATH_BYTES_MAX};
use crate::base::text::Line;
use crate::kept::listener::{self, CLIENT, FILE, LIFE, LISTENER, OWNER, close_all};
use crate::kept::listener::{NAME, SOL_SOCKET, SUN_PATH_BYTES};
use crate::kept::refused;
use crate::threads::thread as blocks;
use core::ffi::CStr;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};
use ebb::uapi::fd::{change, identity_of, lowest as lowest_fd, place};
use ebb::uapi::{self, Errno, thread};
use ebb::{NoDevice, PAGE, Reclaim, ReclaimTo, Space, SwapOffError, SwapOnError, SwapSpec, SwapState, ThreadCtx};
use linux_raw_sys::{errno as e, general as g};

const AF_UNIX: u64 = 1;
const SOCK_SEQPACKET: u64 = 5;
const SOCK_CLOEXEC: u64 = 0o2_000_000;
const SOCK_NONBLOCK: u64 = 0o4000;
const SO_RCVTIMEO: u64 = 20;
const SO_SNDTIMEO: u64 = 21;
const MSG_PEEK: u64 = 2;
const MSG_DONTWAIT: u64 = 0x40;
const MSG_NOSIGNAL: u64 = 0x4000;
/// Seconds that a client may take to send its request and to take the answer, and how often it is told how far its request is.
const CLIENT_SECONDS: u64 = 5;
const PROGRESS_NS: u64 = 100_000_000;
/// Longest request, in bytes: a word, and a device with its options.
const REQUEST_BYTES_MAX: usize = PATH_BYTES_MAX + 128;

/// How long to wait before a retry of what the process had no room for. Each try holds up calls that close descriptors.
const RETRY_NS: u64 = 200_000_000;
/// Where the socket's file may be made. Only after these come the directories of the devices: the file would keep their
/// file systems from being unmounted when the device is gone.
const DIRECTORIES: [&[u8]; 3] = [b"/dev/shm", b"/tmp", b"/var/tmp"];
/// The thread's stack, once there is one.
static STACK: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());

/// How long to wait for a process that shares the memory between vfork and exec, in steps of a millisecond.
const VFORK_STEPS: u32 = 2000;

const STUCK: &str = "a device of the process has not answered for 2 seconds, and the whole process would have to wait for \
                     it; try again when `ebb swapon --show` does not call it stuck any more";

const SPENT: &str = "the write budget of its devices is spent; try again when `ebb swapon --show` does not call them held any \
                     more, or raise it with `ebb swapon PID file:DIR,writes=SIZE/PERIOD`";

/// Whether everybody who uses this memory has the descriptors that this thread opened. Waits for processes that will
/// soon be gone.
fn shares_descriptors(space: &Space) -> bool {
    for _ in 0..VFORK_STEPS {
        if space.tree().has_own_tables() || LIFE.is_held() {
            return false;
        }
        if !blocks::has_foreign() {
            return true;
        }
        uapi::futex_wait(&AtomicU32::new(0), 0, Some(1_000_000));
    }
    false
}

/// Makes the socket and starts the thread behind it, if that is not done yet. Called by the background thread.
pub fn start(space: &'static Space) {
    let pid = uapi::getpid() as u32;
    if !refused::may_answer() {
        return;
    }
    if OWNER.compare_exchange(0, pid, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        && (change(|| listen(space)).is_none() || start_thread(space).is_none())
    {
        change(close_all);
        OWNER.store(0, Ordering::Release);
    }
}

fn start_thread(space: &'static Space) -> Option<()> {
    let mut stack = STACK.load(Ordering::Relaxed);
    if stack.is_null() {
        stack = uapi::reserve(thread::STACK_BYTES).ok()?;
        STACK.store(stack, Ordering::Relaxed);
    }
    // Not before the previous thread is known to have left the stack, nor while no thread may begin. When it is asked
    // again, the process tries again.
    if !LIFE.try_begin() {
        return None;
    }
    // SAFETY: the stack belongs to the new thread alone, because there is one at a time, and stays. The background
    // thread, which calls this, has every signal blocked. The entry never returns.
    let started = unsafe { thread::spawn(stack, control_main, core::ptr::from_ref(space) as usize) };
    match started {
        Ok(tid) => LIFE.begun(tid),
        Err(_) => LIFE.failed(),
    }
    started.ok().map(drop)
}

/// Moves a new descriptor to a number for Ebb's files, and stores it in `at`. Called inside [`change`].
fn keep(fd: i64, at: &AtomicI32) -> Option<i32> {
    let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0)?;
    let identity = identity_of(fd).ok()?;
    place(fd, lowest_fd(), |fd| at.store(fd, Ordering::Relaxed), |fd| identity_of(fd) == Ok(identity)).ok()
}

/// Makes the socket in the first directory that can be written to.
fn listen(space: &Space) -> Option<()> {
    let mut done = DIRECTORIES.into_iter().find_map(listen_in);
    space.devices(|device| {
        if done.is_none() {
            done = listen_in(device.dir.to_bytes());
        }
    });
    done
}

fn listen_in(dir: &[u8]) -> Option<()> {
    let mut random = [0u8; 8];
    uapi::getrandom(&mut random).ok()?;
    let mut address = Line::new();
    address.bytes(&(AF_UNIX as u16).to_le_bytes()).bytes(dir).bytes(NAME).hex(u64::from_le_bytes(random)).bytes(b"\0");
    let address = address.as_bytes();
    if address.len() > SUN_PATH_BYTES + 2 {
        return None;
    }
    let path = address[2..].as_ptr() as u64;
    let fd = listener::call(g::__NR_socket, [AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, 0, 0, 0]);
    let socket = keep(fd, &LISTENER)? as u64;
    // The file gets the mode that the socket has.
    let bound = listener::call(g::__NR_fchmod, [socket, 0o600, 0, 0, 0, 0]) == 0
        && listener::call(g::__NR_bind, [socket, address.as_ptr() as u64, address.len() as u64, 0, 0, 0]) == 0;
    if !bound {
        listener::close_all();
        return None;
    }
    let listens = listener::call(g::__NR_listen, [socket, 4, 0, 0, 0, 0]) == 0;
    let flags = (g::O_PATH | g::O_NOFOLLOW | g::O_CLOEXEC) as u64;
    let cwd = g::AT_FDCWD as i64 as u64;
    let file = listener::call(g::__NR_openat, [cwd, path, flags, 0, 0, 0]);
    listener::call(g::__NR_unlinkat, [cwd, path, 0, 0, 0, 0]);
    let is_there = listens && keep(file, &FILE).is_some();
    if !is_there {
        listener::close_all();
    }
    is_there.then_some(())
}

extern "C" fn control_main(space: usize) -> ! {
    // SAFETY: the space that started this thread lives as long as the process.
    let space = unsafe { &*(space as *const Space) };
    thread::set_name(c"ebb-control");
    // This fails when there are as many threads as there can be. When it is asked again, the process tries again.
    if let Some(ctx) = space.attach_thread() {
        answer(space, ctx);
        space.detach_thread(ctx);
    }
    change(close_all);
    OWNER.store(0, Ordering::Release);
    thread::exit();
}

/// Answers clients until the thread must end.
fn answer(space: &Space, ctx: &ThreadCtx) {
    while !LIFE.is_held() {
        if !wait_for_client() {
            if LIFE.is_held() {
                return;
            }
            // The descriptor is no listening socket of Ebb's any more, whatever has happened to that. Make another
            // socket, and do not close the number, which may be the program's.
            LISTENER.store(-1, Ordering::Relaxed);
            change(close_all);
            while change(|| listen(space)).is_none() && !LIFE.is_held() {
                uapi::futex_wait(&AtomicU32::new(0), 0, Some(RETRY_NS));
            }
            continue;
        }
        let accepted = change(|| {
            let listener = LISTENER.load(Ordering::Relaxed) as u64;
            keep(listener::call(g::__NR_accept4, [listener, 0, 0, SOCK_CLOEXEC, 0, 0]), &CLIENT)
        });
        match accepted {
            Some(fd) if listener::is_owner(fd) => serve(space, ctx),
            Some(_) => {}
            // Perhaps no descriptor is free; the client waits.
            None => uapi::futex_wait(&AtomicU32::new(0), 0, Some(RETRY_NS)),
        }
        change(|| listener::close_one(&CLIENT));
    }
}

/// Waits until a client connects. False when there is no listening socket (any more).
fn wait_for_client() -> bool {
    const POLLIN: u64 = 1;
    const ERRORS: u64 = 0x38;
    loop {
        let fd = LISTENER.load(Ordering::Relaxed);
        // `struct pollfd`: descriptor, events, results.
        let mut poll = u64::from(fd as u32) | POLLIN << 32;
        let n = listener::call(g::__NR_ppoll, [&raw mut poll as u64, 1, 0, 0, 0, 0]);
        let found = poll >> 48;
        if fd < 0 || found & ERRORS != 0 || (n < 0 && n != -i64::from(e::EINTR)) {
            return false;
        }
        if found & POLLIN != 0 {
            return listens(fd);
        }
    }
}

/// Whether a descriptor is a listening socket.
fn listens(fd: i32) -> bool {
    const SO_ACCEPTCONN: u64 = 30;
    let (mut value, mut len) = (0u32, size_of::<u32>() as u32);
    let args = [fd as u64, SOL_SOCKET, SO_ACCEPTCONN, &raw mut value as u64, &raw mut len as u64, 0];
    listener::call(g::__NR_getsockopt, args) == 0 && value != 0
}

/// Reads a request and answers it.
fn serve(space: &Space, ctx: &ThreadCtx) {
    let limit = [CLIENT_SECONDS, 0u64];
    let client = || CLIENT.load(Ordering::Relaxed) as u64;
    let bytes = size_of_val(&limit) as u64;
    for option in [SO_RCVTIMEO, SO_SNDTIMEO] {
        listener::call(g::__NR_setsockopt, [client(), SOL_SOCKET, option, limit.as_ptr() as u64, bytes, 0]);
    }
    let mut request = [0u8; REQUEST_BYTES_MAX];
    let n = listener::call(g::__NR_recvfrom, [client(), request.as_mut_ptr() as u64, request.len() as u64, 0, 0, 0]);
    let Some(request) = usize::try_from(n).ok().and_then(|n| request.get(..n)) else { return };
    let (verb, rest) = match request.iter().position(|&c| c == b' ') {
        Some(at) => (&request[..at], &request[at + 1..]),
        None => (request, &[][..]),
    };
    match verb {
        b"show" => show(space),
        b"swapon" => swapon(space, ctx, rest),
        b"swapoff" => swapoff(space, ctx, rest),
        b"reclaim" => reclaim(space, ctx, rest),
        _ => refuse(e::EINVAL, "the process does not know this request; use the same version of `ebb` that started it"),
    }
}

/// Sends one message. It is lost if the client does not take it.
fn send(message: &Line, flags: u64) {
    let client = CLIENT.load(Ordering::Relaxed) as u64;
    let bytes = message.as_bytes();
    listener::call(g::__NR_sendto, [client, bytes.as_ptr() as u64, bytes.len() as u64, MSG_NOSIGNAL | flags, 0, 0]);
}

fn agree() {
    send(Line::new().str("ok"), 0);
}

fn refuse(errno: u32, text: &str) {
    send(Line::new().str("error ").num(u64::from(errno)).str(" ").str(text), 0);
}

fn show(space: &Space) {
    space.devices(|device| {
        let mut line = Line::new();
        let kind = match device.state {
            SwapState::Good => "file ",
            SwapState::Closed => "closed ",
            SwapState::Stuck => "stuck ",
            SwapState::Held => "held ",
        };
        line.str(kind).num(device.bytes).str(" ").num(device.used_bytes).str(" ");
        // A device that only a parent wrote to is shown with the priority that no device can have.
        let priority = device.priority.unwrap_or(i16::MIN);
        line.str(if priority < 0 { "-" } else { "" }).num(u64::from(priority.unsigned_abs()));
        line.str(" ").str(device.kind.name()).str(" ").num(u64::from(device.read_ns));
        line.str(" ").num(device.readahead_hits).str(" ").num(device.readahead_misses);
        line.str(" ").num(device.written_bytes).str(" ");
        match device.writes {
            Some(writes) => line.num(writes.bytes()).str("/").str(writes.period().name()),
            None => line.str("-"),
        };
        line.str(" ").bytes(device.dir.to_bytes());
        send(&line, 0);
    });
    agree();
}

fn swapon(space: &Space, ctx: &ThreadCtx, text: &[u8]) {
    let Some(device) = DeviceText::parse(text).filter(|device| !device.dir.is_empty()) else {
        return refuse(
            e::EINVAL,
            "the process does not understand this device; use the same version of `ebb` that started it",
        );
    };
    let mut path = [0; PATH_BYTES_MAX];
    path[..device.dir.len()].copy_from_slice(device.dir);
    let Ok(dir) = CStr::from_bytes_until_nul(&path) else { return };
    let DeviceText { priority, kind, discard, writes, .. } = device;
    // Of a device that is there already, only the budget can change.
    if let (Some(writes), None, None) = (writes, device.bytes, priority)
        && space.set_writes(ctx, dir, writes)
    {
        return agree();
    }
    let spec = SwapSpec { dir, bytes: device.bytes_max(), priority, kind, discard, writes };
    match space.swapon(ctx, &spec, &mut || shares_descriptors(space)) {
        Ok(()) => agree(),
        Err(SwapOnError::Busy) if space.tree().has_own_tables() => refuse(
            e::EBUSY,
            "a thread of the process has its own descriptor table (unshare) and could not use the file; \
             name all devices in `ebb run --swap`",
        ),
        Err(SwapOnError::Busy) => refuse(
            e::EBUSY,
            "the process is busy with another swapon or swapoff, or keeps starting programs; try again",
        ),
        Err(SwapOnError::Stuck) => refuse(e::EBUSY, STUCK),
        Err(SwapOnError::Used) => refuse(e::EBUSY, "the directory is already in use; name another one"),
        Err(SwapOnError::NoPlace) => refuse(
            e::ENOSPC,
            "its processes have used 16 directories, and no write budget can be kept for another one; \
             leave out writes=, or name one of those directories",
        ),
        Err(SwapOnError::TooMany) => {
            refuse(e::EPERM, "the process has the maximum number of devices; remove one with `ebb swapoff`");
        }
        Err(SwapOnError::Create(errno)) => {
            let remedy = match errno {
                Errno::NOMEM => "the process's limit on memory or address space leaves no room; give a smaller size=",
                Errno::MFILE | Errno::NFILE => "the process has no free descriptor; raise its limit (prlimit --nofile)",
                _ => "name a directory that the process can write to",
            };
            let mut line = Line::new();
            line.str("error ")
                .num(errno.0 as u64)
                .str(" the process cannot create a file there (errno ")
                .num(errno.0 as u64);
            send(line.str("); ").str(remedy), 0);
        }
    }
}

/// Tells a client from time to time how far its request is.
#[derive(Default)]
struct Progress {
    told_ns: u64,
}

impl Progress {
    /// Sends what `say` adds to a message, if it is time. False when the client no longer waits.
    fn tell(&mut self, say: impl FnOnce(&mut Line) -> &mut Line) -> bool {
        let mut byte = 0u8;
        let client = CLIENT.load(Ordering::Relaxed) as u64;
        let flags = MSG_PEEK | MSG_DONTWAIT;
        // A waiting client sends nothing: all there can be to read is its end.
        let seen = listener::call(g::__NR_recvfrom, [client, &raw mut byte as u64, 1, flags, 0, 0]);
        let now = uapi::now_ns();
        if now.wrapping_sub(self.told_ns) >= PROGRESS_NS {
            self.told_ns = now;
            send(say(&mut Line::new()), MSG_DONTWAIT);
        }
        seen == -i64::from(e::EAGAIN)
    }
}

fn swapoff(space: &Space, ctx: &ThreadCtx, dir: &[u8]) {
    let mut path = [0; PATH_BYTES_MAX];
    if dir.len() >= path.len() {
        return refuse(e::EINVAL, "the process has no such device; list its devices with `ebb swapon --show`");
    }
    path[..dir.len()].copy_from_slice(dir);
    let Ok(dir) = CStr::from_bytes_until_nul(&path) else { return };
    let mut progress = Progress::default();
    let mut keep_going = |left: u64| progress.tell(|line| line.str("left ").num(left));
    match space.swapoff(ctx, dir, &mut keep_going) {
        Ok(()) => agree(),
        Err(SwapOffError::Busy) => {
            refuse(e::EBUSY, "another swapon or swapoff is in progress; try again when it has finished")
        }
        Err(SwapOffError::Stuck) => refuse(e::EBUSY, STUCK),
        Err(SwapOffError::NotFound) => {
            refuse(e::EINVAL, "the process has no such device; list its devices with `ebb swapon --show`")
        }
        Err(SwapOffError::Interrupted) => refuse(e::EINTR, "interrupted, and the device stays in use; try again"),
        Err(SwapOffError::NoRoom) => refuse(
            e::ENOMEM,
            "neither RAM nor another device has room for its content, so the device stays in use; \
             add another with `ebb swapon`",
        ),
        Err(SwapOffError::Held) => refuse(
            e::ENOMEM,
            "RAM has no room for its content, and the write budget of another device is spent, so the device stays in use; \
             try again when `ebb swapon --show` does not call that one held any more, raise its budget, or add another device",
        ),
        Err(SwapOffError::Unreadable(_)) => {
            refuse(
                e::EIO,
                "some of its content cannot be read, so the device stays in use with that; everything else has moved; \
                 check the disk",
            );
        }
    }
}

/// Gives up memory, and tells how much that was and what it took.
fn reclaim(space: &Space, ctx: &ThreadCtx, text: &[u8]) {
    let Some(Demand { bytes, to, shared }) = Demand::parse(text) else {
        return refuse(
            e::EINVAL,
            "the process does not understand this request; use the same version of `ebb` that started it",
        );
    };
    let pages = usize::try_from(bytes.div_ceil(PAGE as u64)).unwrap_or(usize::MAX);
    let start_ns = uapi::thread_time_ns();
    let took_ns = || uapi::thread_time_ns() - start_ns;
    let told = |line: &mut Line, freed: usize| {
        line.str("given ").num(freed as u64 * PAGE as u64).str(" ").num(took_ns());
    };
    let (mut progress, mut goes_on) = (Progress::default(), true);
    let mut keep_going = |freed: usize| {
        goes_on = progress.tell(|line| {
            told(line, freed);
            line
        });
        goes_on
    };
    let freed = space.reclaim(ctx, Reclaim { pages, to, shared }, &mut keep_going);
    match freed {
        Ok(freed) => {
            let mut line = Line::new();
            told(&mut line, freed);
            send(&line, 0);
            if !goes_on {
                refuse(e::EINTR, "interrupted; what it gave up until then is out; try again")
            } else if to == ReclaimTo::Device && freed < pages && space.is_held(ctx) {
                refuse(e::EAGAIN, SPENT)
            } else {
                agree()
            }
        }
        Err(NoDevice::Held) => refuse(e::EAGAIN, SPENT),
        Err(NoDevice::Absent) => refuse(e::ENODEV, "the process has no device with room; add one with `ebb swapon`"),
    }
}
