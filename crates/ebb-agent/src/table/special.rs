//! Calls whose arguments change their meaning with an option among them, or lead through structures of their own.
//!
//! Layouts are those of the kernel's user headers, named at each. Offsets are in bytes. If an option is unknown here,
//! each argument that may point to managed memory is probed.

use super::Dir::{In, InOut, Out};
use super::visit::{BLOCKS_MAX, Buffer, Kind, PAGE_BYTES, RW_BYTES_MAX, ReadMemory, Visit};
use super::{Special, ioctl, scan};
use linux_raw_sys::general as g;
use linux_raw_sys::prctl as p;

/// Bytes of the longest socket filter: `BPF_MAXINSNS` instructions of eight bytes each.
const FILTER_BYTES_MAX: u64 = 4096 * 8;
/// The most futexes of one `futex_waitv` (`FUTEX_WAITV_MAX`).
const FUTEXES_MAX: u64 = 128;
/// Bytes of the largest set of semaphores on common systems (`SEMMSL`), two each.
const SEM_VALUES_BYTES: u64 = 32_000 * 2;

/// Emits what the special part of a call touches.
pub(super) fn visit<M, F>(v: &mut Visit<'_, M, F>, special: Special, nr: u64, a: &[u64; 6])
where
    M: ReadMemory + ?Sized,
    F: FnMut(Buffer),
{
    match special {
        Special::None => {}
        Special::Bpf => bpf(v, a),
        Special::Clone => clone(v, a[0], a[2], a[3]),
        Special::Clone3 => clone3(v, a[0]),
        Special::Fcntl => fcntl(v, a[1] as u32, a[2]),
        Special::FileHandle => {
            // struct file_handle: size, type, then as many bytes as the size says, at most MAX_HANDLE_SZ.
            let at = if nr == g::__NR_name_to_handle_at as u64 { a[2] } else { a[1] };
            let size = v.word32(at).unwrap_or(0).min(128) as u64;
            v.pin(at, 8 + size, InOut);
        }
        Special::Fsconfig => match a[1] as u32 {
            1 => v.string(a[3], 256),
            2 => v.pin(a[3], (a[4] as u32 as u64).min(1 << 20), In),
            3 | 4 => v.string(a[3], PAGE_BYTES),
            _ => {}
        },
        Special::Futex => futex(v, a),
        Special::FutexRequeue => waiters(v, a[0], 2),
        Special::FutexWait => v.pin(a[0], 8, InOut),
        Special::FutexWaitv => waiters(v, a[0], (a[1] as u32 as u64).min(FUTEXES_MAX)),
        Special::Getsockopt => {
            // struct tcp_zerocopy_receive: at byte 24, a buffer for what cannot be mapped, and its length.
            const TCP_ZEROCOPY_RECEIVE: (u32, u32) = (6, 35);
            if (a[1] as u32, a[2] as u32) == TCP_ZEROCOPY_RECEIVE
                && let Some([buffer, len]) = v.words(a[3].wrapping_add(24))
            {
                v.pin(buffer, (len as u32 as i32).max(0) as u64, Out);
            }
        }
        Special::Ioctl => ioctl::visit(v, a[0], a[1] as u32, a[2]),
        Special::IoSubmit => io_submit(v, a[0], a[1], a[2]),
        Special::IoUringEnter => {
            const IORING_ENTER_EXT_ARG: u64 = 8;
            v.pin(a[4], a[5].min(PAGE_BYTES), In);
            if a[3] & IORING_ENTER_EXT_ARG != 0 {
                // struct io_uring_getevents_arg: sigmask, its size and a wait time, timespec.
                if let Some([sigmask, sizes, time]) = v.words(a[4]) {
                    v.pin(sigmask, (sizes & 0xffff_ffff).min(PAGE_BYTES), In);
                    v.pin(time, 16, In);
                }
            }
        }
        Special::IoUringRegister => io_uring_register(v, a[1] as u32, a[2], a[3] as u32 as u64),
        Special::Kcmp => {
            // struct kcmp_epoll_slot: three 32-bit numbers. For other kinds the argument is a descriptor.
            const KCMP_EPOLL_TFD: u32 = 7;
            if a[2] as u32 == KCMP_EPOLL_TFD {
                v.pin(a[4], 12, In);
            }
        }
        Special::Keyctl => keyctl(v, a),
        // The larger of the two rules: an object and an access mask, or a port and an access mask.
        Special::Landlock => v.pin(a[2], 16, In),
        Special::Mincore => v.pin(a[2], a[1].div_ceil(PAGE_BYTES), Out),
        // The kernel copies a page of options. What it cannot read it takes for zeroes, without an EFAULT.
        Special::Mount => v.emit(a[4], PAGE_BYTES, In, Kind::Probe),
        Special::MqNotify => {
            // struct sigevent: value, signal and kind of notice. A notice by thread comes with a cookie of 32 bytes.
            const SIGEV_THREAD: u64 = 2;
            if let Some([value, kinds]) = v.words(a[1])
                && kinds >> 32 == SIGEV_THREAD
            {
                v.pin(value, 32, In);
            }
        }
        Special::Msgctl => match ipc_command(a[1]) {
            // IPC_SET, IPC_STAT, MSG_STAT, MSG_STAT_ANY: msqid64_ds.
            1 | 2 | 11 | 13 => v.pin(a[2], 120, InOut),
            // IPC_INFO, MSG_INFO: msginfo.
            3 | 12 => v.pin(a[2], 32, Out),
            _ => {}
        },
        // The message's type precedes it.
        Special::Msgsnd => v.pin(a[1], a[2].saturating_add(8), In),
        Special::Msgrcv => v.pin(a[1], a[2].saturating_add(8), Out),
        Special::Prctl => prctl(v, a),
        Special::ProcessVm => {
            v.pin(a[3], a[4].min(super::visit::IOV_MAX) * 16, In);
            if v.mem.is_self(a[0] as i32) {
                // The other side is our own memory, too.
                let dir = if nr == g::__NR_process_vm_readv as u64 { In } else { Out };
                v.iovec(a[3], a[4], dir, Kind::Pin);
            }
        }
        Special::Ptrace => ptrace(v, a),
        Special::Quotactl | Special::QuotactlFd => {
            const Q_QUOTAON: u32 = 0x80_0002;
            let command = if special == Special::Quotactl { a[0] } else { a[1] } as u32 >> 8;
            if command == Q_QUOTAON { v.string(a[3], PAGE_BYTES) } else { v.probe(a[3]) }
        }
        Special::Seccomp => match a[0] as u32 {
            1 => filter(v, a[2]),
            2 => v.pin(a[2], 4, In),
            3 => v.pin(a[2], 6, Out),
            _ => v.probe(a[2]),
        },
        Special::Semctl => match ipc_command(a[2]) {
            // IPC_SET, IPC_STAT, SEM_STAT, SEM_STAT_ANY: semid64_ds.
            1 | 2 | 18 | 20 => v.pin(a[3], 104, InOut),
            // IPC_INFO, SEM_INFO: seminfo.
            3 | 19 => v.pin(a[3], 40, Out),
            // GETALL, SETALL: as many values as the set has, which only the kernel knows.
            13 | 17 => v.emit(a[3], SEM_VALUES_BYTES, InOut, Kind::Probe),
            _ => {}
        },
        Special::Setsockopt => {
            const SOL_SOCKET: u32 = 1;
            const SO_ATTACH_FILTER: u32 = 26;
            const SO_ATTACH_REUSEPORT_CBPF: u32 = 51;
            const SOL_PACKET: u32 = 263;
            const PACKET_FANOUT_DATA: u32 = 22;
            if matches!(
                (a[1] as u32, a[2] as u32),
                (SOL_SOCKET, SO_ATTACH_FILTER | SO_ATTACH_REUSEPORT_CBPF) | (SOL_PACKET, PACKET_FANOUT_DATA)
            ) {
                filter(v, a[3]);
            }
            registered(v, a[1] as u32, a[2] as u32, a[3]);
        }
        Special::Shmctl => match ipc_command(a[1]) {
            // IPC_SET, IPC_STAT, SHM_STAT, SHM_STAT_ANY: shmid64_ds.
            1 | 2 | 13 | 15 => v.pin(a[2], 112, InOut),
            // IPC_INFO: shminfo64.
            3 => v.pin(a[2], 72, Out),
            // SHM_INFO: shm_info.
            14 => v.pin(a[2], 48, Out),
            _ => {}
        },
        // The pages themselves go into the pipe.
        Special::Vmsplice => v.iovec(a[1], a[2] as u32 as u64, InOut, Kind::Exclude),
        Special::Write => {
            /// The most bytes of a command.
            const COMMAND_BYTES_MAX: u64 = 16 << 10;
            if a[2] <= COMMAND_BYTES_MAX && v.mem.takes_commands(a[0] as i32) {
                scan::command(v, a[1], a[2]);
                // struct sg_io_hdr. When somebody reads the answer, the kernel writes it to where this says.
                const SCSI: u64 = b'S' as u64;
                if let Some([id, sizes, data, _, sense]) = v.words(a[1])
                    && id & 0xffff_ffff == SCSI
                {
                    v.emit(data, sizes >> 32, InOut, Kind::Exclude);
                    v.emit(sense, sizes >> 8 & 0xff, Out, Kind::Exclude);
                }
            }
        }
        Special::XattrIn | Special::XattrOut => {
            // struct xattr_args: value, size and flags.
            if let Some([value, size]) = v.words(a[4]) {
                let dir = if special == Special::XattrIn { In } else { Out };
                v.pin(value, size & 0xffff_ffff, dir);
            }
        }
        Special::Unknown => a.iter().for_each(|&arg| v.probe(arg)),
    }
}

/// A System V command without the bit that once asked for the 64-bit layout.
fn ipc_command(command: u64) -> u32 {
    const IPC_64: u32 = 0x100;
    command as u32 & !IPC_64
}

fn futex<M, F>(v: &mut Visit<'_, M, F>, a: &[u64; 6])
where
    M: ReadMemory + ?Sized,
    F: FnMut(Buffer),
{
    let op = a[1] as u32;
    let command = op & !(g::FUTEX_PRIVATE_FLAG | g::FUTEX_CLOCK_REALTIME);
    let private = op & g::FUTEX_PRIVATE_FLAG != 0;
    // A private wake only hashes the address.
    if private && matches!(command, g::FUTEX_WAKE | g::FUTEX_WAKE_BITSET) {
        return;
    }
    v.pin(a[0], 4, InOut);
    match command {
        g::FUTEX_WAIT | g::FUTEX_WAIT_BITSET | g::FUTEX_LOCK_PI | g::FUTEX_LOCK_PI2 => v.pin(a[3], 16, In),
        g::FUTEX_WAIT_REQUEUE_PI => {
            v.pin(a[3], 16, In);
            v.pin(a[4], 4, InOut);
        }
        g::FUTEX_REQUEUE | g::FUTEX_CMP_REQUEUE | g::FUTEX_CMP_REQUEUE_PI | g::FUTEX_WAKE_OP => v.pin(a[4], 4, InOut),
        _ => {}
    }
}

/// An array of `struct futex_waitv`: value, address, flags.
fn waiters<M, F>(v: &mut Visit<'_, M, F>, addr: u64, count: u64)
where
    M: ReadMemory + ?Sized,
    F: FnMut(Buffer),
{
    v.pin(addr, count * 24, In);
    for i in 0..count {
        let Some([_, futex]) = v.words(addr.wrapping_add(i * 24)) else { return };
        // One word, or two if a node number follows it.
        v.pin(futex, 8, InOut);
    }
}

fn fcntl<M, F>(v: &mut Visit<'_, M, F>, command: u32, arg: u64)
where
    M: ReadMemory + ?Sized,
    F: FnMut(Buffer),
{
    const F_GETDELEG: u32 = 1024 + 15;
    const F_SETDELEG: u32 = 1024 + 16;
    const F_SET_FILE_RW_HINT: u32 = 1024 + 14;
    match command {
        g::F_GETLK | g::F_SETLK | g::F_SETLKW | g::F_OFD_GETLK | g::F_OFD_SETLK | g::F_OFD_SETLKW => {
            v.pin(arg, size_of::<g::flock>() as u64, InOut);
        }
        g::F_SETOWN_EX | g::F_GETOWN_EX | g::F_GETOWNER_UIDS => v.pin(arg, 8, InOut),
        g::F_GET_RW_HINT..=F_SET_FILE_RW_HINT => v.pin(arg, 8, InOut),
        F_GETDELEG | F_SETDELEG => v.pin(arg, 16, InOut),
        // All other commands take a number.
        _ => {}
    }
}

fn prctl<M, F>(v: &mut Visit<'_, M, F>, a: &[u64; 6])
where
    M: ReadMemory + ?Sized,
    F: FnMut(Buffer),
{
    match a[0] as u32 {
        p::PR_SET_NAME => v.string(a[1], 16),
        p::PR_GET_NAME => v.pin(a[1], 16, Out),
        p::PR_GET_PDEATHSIG
        | p::PR_GET_UNALIGN
        | p::PR_GET_FPEMU
        | p::PR_GET_FPEXC
        | p::PR_GET_ENDIAN
        | p::PR_GET_TSC
        | p::PR_GET_CHILD_SUBREAPER => v.pin(a[1], 4, Out),
        p::PR_GET_TID_ADDRESS => v.pin(a[1], 8, Out),
        p::PR_SET_SECCOMP => filter(v, a[2]),
        p::PR_GET_AUXV => v.pin(a[1], a[2].min(PAGE_BYTES), Out),
        p::PR_SET_MM => match a[1] as u32 {
            p::PR_SET_MM_MAP | p::PR_SET_MM_AUXV => {
                v.pin(a[2], a[3].min(PAGE_BYTES), In);
                if a[1] as u32 == p::PR_SET_MM_MAP {
                    // struct prctl_mm_map: eleven words, the auxiliary vector, its size.
                    if let Some([auxv, size]) = v.words(a[2].wrapping_add(11 * 8)) {
                        v.pin(auxv, (size & 0xffff_ffff).min(PAGE_BYTES), In);
                    }
                }
            }
            p::PR_SET_MM_MAP_SIZE => v.pin(a[2], 4, Out),
            _ => {}
        },
        p::PR_SET_VMA => v.string(a[4], 80),
        p::PR_SCHED_CORE => v.pin(a[4], 8, Out),
        // The kernel reads the selector at every system call from now on.
        p::PR_SET_SYSCALL_USER_DISPATCH => v.emit(a[4], 1, In, Kind::Exclude),
        // An option of a newer kernel. Known options that take only numbers cost nothing here: small numbers are not
        // managed addresses.
        _ => a[1..].iter().for_each(|&arg| v.probe(arg)),
    }
}

/// A `struct sock_fprog`: number of instructions, pointer to them.
fn filter<M, F>(v: &mut Visit<'_, M, F>, addr: u64)
where
    M: ReadMemory + ?Sized,
    F: FnMut(Buffer),
{
    v.pin(addr, 16, In);
    if let Some([len, instructions]) = v.words(addr) {
        v.pin(instructions, ((len & 0xffff) * 8).min(FILTER_BYTES_MAX), In);
    }
}

/// Emits memory that a socket option gives to the network for good.
fn registered<M, F>(v: &mut Visit<'_, M, F>, level: u32, option: u32, addr: u64)
where
    M: ReadMemory + ?Sized,
    F: FnMut(Buffer),
{
    const SOL_XDP: u32 = 283;
    const XDP_UMEM_REG: u32 = 4;
    const SOL_RDS: u32 = 276;
    const RDS_GET_MR: u32 = 2;
    const RDS_GET_MR_FOR_DEST: u32 = 7;
    /// Bytes of the socket's address before the rest.
    const DEST_BYTES: u64 = 128;
    let at = match (level, option) {
        (SOL_XDP, XDP_UMEM_REG) | (SOL_RDS, RDS_GET_MR) => addr,
        (SOL_RDS, RDS_GET_MR_FOR_DEST) => addr.wrapping_add(DEST_BYTES),
        _ => return,
    };
    // All begin with an address and a length. For RDS, the place for a cookie follows.
    if let Some([start, len, cookie]) = v.words(at) {
        v.emit(start, len, InOut, Kind::Register);
        if level == SOL_RDS {
            v.pin(cookie, 8, Out);
        }
    }
}

fn clone<M, F>(v: &mut Visit<'_, M, F>, flags: u64, parent_tid: u64, child_tid: u64)
where
    M: ReadMemory + ?Sized,
    F: FnMut(Buffer),
{
    let flags = flags as u32;
    if flags & (g::CLONE_PARENT_SETTID | g::CLONE_PIDFD) != 0 {
        v.pin(parent_tid, 4, Out);
    }
    // The kernel writes it when the child starts and when it ends, long after the call.
    if flags & (g::CLONE_CHILD_SETTID | g::CLONE_CHILD_CLEARTID) != 0 {
        v.emit(child_tid, 4, Out, Kind::Exclude);
    }
}

fn clone3<M, F>(v: &mut Visit<'_, M, F>, addr: u64)
where
    M: ReadMemory + ?Sized,
    F: FnMut(Buffer),
{
    // struct clone_args: flags, pidfd, child_tid, parent_tid, ..., set_tid and its size at 64 and 72.
    let Some([flags, pidfd, child_tid, parent_tid]) = v.words(addr) else { return };
    if flags & g::CLONE_PIDFD as u64 != 0 {
        v.pin(pidfd, 4, Out);
    }
    clone(v, flags & !(g::CLONE_PIDFD as u64), parent_tid, child_tid);
    if let Some([set_tid, count]) = v.words(addr.wrapping_add(64)) {
        /// The most nested process namespaces (`MAX_PID_NS_LEVEL`).
        const LEVELS_MAX: u64 = 32;
        v.pin(set_tid, count.min(LEVELS_MAX) * 4, In);
    }
}

fn io_submit<M, F>(v: &mut Visit<'_, M, F>, context: u64, count: u64, iocbs: u64)
where
    M: ReadMemory + ?Sized,
    F: FnMut(Buffer),
{
    const PREAD: u64 = 0;
    const PWRITE: u64 = 1;
    const PREADV: u64 = 7;
    const PWRITEV: u64 = 8;
    // The kernel refuses a negative count.
    let count = (count as i64).clamp(0, BLOCKS_MAX as i64) as u64;
    v.pin(iocbs, count * 8, In);
    for i in 0..count {
        let Some([iocb]) = v.words(iocbs.wrapping_add(i * 8)) else { return };
        v.pin(iocb, 64, InOut);
        // struct iocb: opcode in the low 16 bits of the third word, then buffer and number of bytes or vectors.
        let Some([_, _, kinds, buffer, number]) = v.words(iocb) else { return };
        let kind = Kind::Request { context, block: iocb };
        match kinds & 0xffff {
            PREAD => v.emit(buffer, number.min(RW_BYTES_MAX), Out, kind),
            PWRITE => v.emit(buffer, number.min(RW_BYTES_MAX), In, kind),
            PREADV => v.iovec(buffer, number, Out, kind),
            PWRITEV => v.iovec(buffer, number, In, kind),
            _ => {}
        }
    }
}

fn io_uring_register<M, F>(v: &mut Visit<'_, M, F>, opcode: u32, arg: u64, count: u64)
where
    M: ReadMemory + ?Sized,
    F: FnMut(Buffer),
{
    const REGISTER_BUFFERS: u32 = 0;
    const REGISTER_BUFFERS2: u32 = 15;
    const REGISTER_BUFFERS_UPDATE: u32 = 16;
    const REGISTER_PBUF_RING: u32 = 22;
    match opcode {
        REGISTER_BUFFERS => v.iovec(arg, count, InOut, Kind::Exclude),
        REGISTER_BUFFERS2 => {
            // struct io_uring_rsrc_register: number and flags, reserved, vectors, tags.
            v.pin(arg, 32, In);
            if let Some([number, _, vectors, tags]) = v.words(arg) {
                let number = number & 0xffff_ffff;
                v.iovec(vectors, number, InOut, Kind::Exclude);
                v.pin(tags, number * 8, In);
            }
        }
        REGISTER_BUFFERS_UPDATE => {
            // struct io_uring_rsrc_update2: offset, vectors, tags, number.
            v.pin(arg, 32, In);
            if let Some([_, vectors, tags, number]) = v.words(arg) {
                let number = number & 0xffff_ffff;
                v.iovec(vectors, number, InOut, Kind::Exclude);
                v.pin(tags, number * 8, In);
            }
        }
        REGISTER_PBUF_RING => {
            // struct io_uring_buf_reg: the ring, its number of 16-byte entries.
            v.pin(arg, 40, In);
            if let Some([ring, entries]) = v.words(arg) {
                v.emit(ring, (entries & 0xffff_ffff) * 16, InOut, Kind::Exclude);
            }
        }
        _ => v.probe_len(arg, (count * 8).min(PAGE_BYTES)),
    }
}

fn keyctl<M, F>(v: &mut Visit<'_, M, F>, a: &[u64; 6])
where
    M: ReadMemory + ?Sized,
    F: FnMut(Buffer),
{
    match a[0] as u32 {
        // JOIN_SESSION_KEYRING
        1 => v.string(a[1], PAGE_BYTES),
        // UPDATE, INSTANTIATE
        2 | 12 => v.pin(a[2], a[3], In),
        // DESCRIBE, READ, GET_SECURITY
        6 | 11 | 17 => v.pin(a[2], a[3], Out),
        // SEARCH, RESTRICT_KEYRING
        10 | 29 => {
            v.string(a[2], PAGE_BYTES);
            v.string(a[3], PAGE_BYTES);
        }
        // INSTANTIATE_IOV
        20 => v.iovec(a[2], a[3] as u32 as u64, In, Kind::Pin),
        // DH_COMPUTE: three key numbers, result, and how to derive the key (hash name, other data, its length).
        23 => {
            v.pin(a[1], 12, In);
            v.pin(a[2], a[3], Out);
            v.pin(a[4], 56, In);
            if let Some([hash, other, len]) = v.words(a[4]) {
                v.string(hash, 128);
                v.pin(other, len & 0xffff_ffff, In);
            }
        }
        // PKEY_QUERY
        24 => {
            v.string(a[3], PAGE_BYTES);
            v.pin(a[4], 56, Out);
        }
        // PKEY_ENCRYPT, _DECRYPT, _SIGN, _VERIFY: key number, length in, length out.
        operation @ 25..=28 => {
            v.pin(a[1], 40, In);
            v.string(a[2], PAGE_BYTES);
            if let Some([lens, out]) = v.words(a[1]) {
                v.pin(a[3], lens >> 32, In);
                v.pin(a[4], out & 0xffff_ffff, if operation == 28 { In } else { Out });
            }
        }
        // CAPABILITIES
        31 => v.pin(a[1], a[2], Out),
        // Operations on key numbers only.
        0 | 3..=5 | 7..=9 | 13..=16 | 18 | 19 | 21 | 22 | 30 | 32 => {}
        _ => a[1..].iter().for_each(|&arg| v.probe(arg)),
    }
}

fn ptrace<M, F>(v: &mut Visit<'_, M, F>, a: &[u64; 6])
where
    M: ReadMemory + ?Sized,
    F: FnMut(Buffer),
{
    let (addr, data) = (a[2], a[3]);
    match a[0] as u32 {
        // PEEKTEXT, PEEKDATA, PEEKUSR: the raw call stores the word.
        1..=3 => v.pin(data, 8, Out),
        // GETREGS, SETREGS
        12 | 13 => v.pin(data, 27 * 8, InOut),
        // GETFPREGS, SETFPREGS and their x versions
        14 | 15 | 18 | 19 => v.pin(data, 512, InOut),
        // GET_THREAD_AREA, SET_THREAD_AREA
        25 | 26 => v.pin(data, size_of::<g::user_desc>() as u64, InOut),
        // ARCH_PRCTL: here `addr` is where the data is.
        30 => v.pin(addr, 8, InOut),
        // GETEVENTMSG
        0x4201 => v.pin(data, 8, Out),
        // GETSIGINFO, SETSIGINFO
        0x4202 | 0x4203 => v.pin(data, size_of::<g::siginfo>() as u64, InOut),
        // GETREGSET, SETREGSET: one vector.
        0x4204 | 0x4205 => {
            v.pin(data, 16, InOut);
            if let Some([base, len]) = v.words(data) {
                v.pin(base, len, InOut);
            }
        }
        // PEEKSIGINFO: offset, flags and number; an array with that number of entries.
        0x4209 => {
            v.pin(addr, 16, In);
            if let Some([_, numbers]) = v.words(addr) {
                let number = ((numbers >> 32) as i32).clamp(0, 1 << 16) as u64;
                v.pin(data, number * size_of::<g::siginfo>() as u64, Out);
            }
        }
        // GETSIGMASK, SETSIGMASK, SECCOMP_GET_METADATA, GET_SYSCALL_INFO, GET_RSEQ_CONFIGURATION, the dispatch
        // configuration, SET_SYSCALL_INFO: `addr` is the size.
        0x420a | 0x420b | 0x420d..=0x4212 => v.pin(data, addr.min(PAGE_BYTES), InOut),
        // SECCOMP_GET_FILTER: as many instructions as the filter has.
        0x420c => v.emit(data, FILTER_BYTES_MAX, Out, Kind::Probe),
        // Requests that take numbers only.
        0 | 4..=9 | 16 | 17 | 21 | 24 | 31..=33 | 0x4200 | 0x4206..=0x4208 => {}
        _ => {
            v.probe(addr);
            v.probe(data);
        }
    }
}

fn bpf<M, F>(v: &mut Visit<'_, M, F>, a: &[u64; 6])
where
    M: ReadMemory + ?Sized,
    F: FnMut(Buffer),
{
    // union bpf_attr, as long as the caller says. The kernel takes what is missing for zero.
    let mut attr = [0u64; 18];
    let len = (a[2] as u32 as usize / 8).min(attr.len());
    for (i, word) in attr[..len].iter_mut().enumerate() {
        let Some([value]) = v.words(a[1].wrapping_add(i as u64 * 8)) else { return };
        *word = value;
    }
    let (low, high) = (|i: usize| attr[i] & 0xffff_ffff, |i: usize| attr[i] >> 32);
    match a[0] as u32 {
        // PROG_LOAD
        5 => {
            v.pin(attr[1], high(0) * 8, In);
            v.string(attr[2], 128);
            v.pin(attr[4], high(3), Out);
            v.pin(attr[10], high(9).saturating_mul(low(11)), In);
            v.pin(attr[12], high(11).saturating_mul(low(13)), In);
            v.pin(attr[16], high(14).saturating_mul(low(17)), In);
            v.probe(attr[15]);
        }
        // OBJ_PIN, OBJ_GET
        6 | 7 => v.string(attr[0], PAGE_BYTES),
        // PROG_TEST_RUN
        10 => {
            v.pin(attr[2], low(1), In);
            v.pin(attr[3], high(1), Out);
            v.pin(attr[6], low(5), In);
            v.pin(attr[7], high(5), Out);
        }
        // OBJ_GET_INFO_BY_FD: the structure of the answer may itself point to arrays.
        15 => {
            v.pin(attr[1], high(0), InOut);
            for i in 0..(high(0) / 8).min(32) {
                let Some([word]) = v.words(attr[1].wrapping_add(i * 8)) else { return };
                v.probe(word);
            }
        }
        // BTF_LOAD
        18 => {
            v.pin(attr[0], low(2), In);
            v.pin(attr[1], high(2), Out);
        }
        // The other commands hold pointers to things whose size the map or the program knows.
        _ => attr[..len].iter().for_each(|&word| v.probe(word)),
    }
}

// Layouts that are read by offset.
const _: () = {
    assert!(core::mem::offset_of!(g::clone_args, set_tid) == 64);
    assert!(core::mem::offset_of!(g::clone_args, child_tid) == 16);
    assert!(size_of::<g::futex_waitv>() == 24);
    assert!(size_of::<g::user_desc>() == 16);
};
