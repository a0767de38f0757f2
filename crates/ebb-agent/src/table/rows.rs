//! The table itself: one line for each system call, in the order of `arch/x86/entry/syscalls/syscall_64.tbl`.

use super::Dir::{In, InOut, Out};
use super::{Arg, Flags, Row, Shape, Special, Split, UNKNOWN};
use linux_raw_sys::general as g;

/// The largest number in this table, plus one.
const NR_ROWS: usize = 471;

/// Numbers newer than the constants of `linux-raw-sys`.
const NR_UPROBE: u32 = 336;
const NR_LISTNS: u32 = 470;

/// The row of system call `nr`; [`UNKNOWN`] if the number has none.
#[inline]
pub fn row(nr: u64) -> &'static Row {
    // Compares all 64 bits of the program's rax. The kernel answers ENOSYS to large numbers, so UNKNOWN costs nothing
    // there.
    if nr < NR_ROWS as u64 { &ROWS[nr as usize] } else { &UNKNOWN }
}

static ROWS: [Row; NR_ROWS] = build();

const fn build() -> [Row; NR_ROWS] {
    let mut table = [UNKNOWN; NR_ROWS];
    let mut i = 0;
    while i < DEFS.len() {
        let (nr, row) = DEFS[i];
        assert!(!table[nr as usize].defined, "a system call has two rows");
        table[nr as usize] = row;
        i += 1;
    }
    table
}

// ---- What arguments can be ----

const V: Arg = Arg::VALUE;
const STR: Arg = Arg::new(In, Shape::Str);
const STRS: Arg = Arg::new(In, Shape::StrArray);

const fn fixed(dir: super::Dir, bytes: usize) -> Arg {
    assert!(bytes < 512);
    Arg::new(dir, Shape::Fixed(bytes as u16))
}
/// A structure that the kernel reads.
const fn rd<T>() -> Arg {
    fixed(In, size_of::<T>())
}
/// A structure that the kernel writes.
const fn wr<T>() -> Arg {
    fixed(Out, size_of::<T>())
}
/// An array in direction `dir`, of elements of `element` bytes, counted by a full-width argument.
const fn arr(dir: super::Dir, count: u8, element: u8) -> Arg {
    Arg::new(dir, Shape::Array { count, element, narrow: false })
}
/// As [`arr`], counted by an `int` or `unsigned int`: the upper half of the register is ignored.
const fn arr32(dir: super::Dir, count: u8, element: u8) -> Arg {
    Arg::new(dir, Shape::Array { count, element, narrow: true })
}
/// Bytes counted by a `size_t` argument.
const fn bytes(dir: super::Dir, len: u8) -> Arg {
    arr(dir, len, 1)
}
/// Bytes counted by an `int` argument.
const fn bytes32(dir: super::Dir, len: u8) -> Arg {
    arr32(dir, len, 1)
}
/// Bytes counted by the word that argument `len_ptr` points to.
const fn by_ptr(dir: super::Dir, len_ptr: u8) -> Arg {
    Arg::new(dir, Shape::LenPtr { len_ptr })
}
const fn iov(dir: super::Dir, count: u8) -> Arg {
    Arg::new(dir, Shape::Iovec { count })
}
const fn bits(dir: super::Dir, bits: u8) -> Arg {
    Arg::new(dir, Shape::Bits { bits })
}
const fn self_sized(dir: super::Dir, at: u8, least: u8) -> Arg {
    Arg::new(dir, Shape::SelfSized { at, least })
}
const fn probe(dir: super::Dir) -> Arg {
    Arg::new(dir, Shape::Probe)
}
const FDS: Arg = Arg::new(InOut, Shape::FdSet { nfds: 0 });
const SIGARG: Arg = Arg::new(In, Shape::SigsetArg);

type Timespec = g::__kernel_timespec;
type Timeval = g::timeval;
/// A kernel `struct utsname`: six names of 65 bytes.
const UTSNAME: Arg = fixed(Out, 6 * 65);
/// A kernel `struct timex`.
const TIMEX: Arg = fixed(InOut, 208);
/// A kernel `siginfo_t`.
type Siginfo = g::siginfo;

// ---- How a line is written ----

type Def = (u32, Row);

/// A call with `args`; the other arguments are numbers.
const fn sys<const N: usize>(nr: u32, args: [Arg; N]) -> Def {
    let mut all = [V; 6];
    let mut pointers = false;
    let mut unsized_ = false;
    let mut i = 0;
    while i < N {
        all[i] = args[i];
        match args[i].shape() {
            Shape::Value => {}
            Shape::Probe => {
                pointers = true;
                unsized_ = true;
            }
            _ => pointers = true,
        }
        i += 1;
    }
    let mut flags = if pointers { Flags::NONE } else { Flags::NO_POINTERS };
    if unsized_ {
        flags = flags.with(Flags::UNSIZED);
    }
    (nr, Row { args: all, flags, split: Split::No, special: Special::None, defined: true })
}

/// A call without pointers.
const fn plain(nr: u32) -> Def {
    sys(nr, [V])
}

/// The call may sleep.
const fn blocks((nr, row): Def) -> Def {
    (nr, Row { flags: row.flags.with(Flags::MAY_BLOCK), ..row })
}

/// EFAULT means that the call has had no effect.
const fn again((nr, row): Def) -> Def {
    (nr, Row { flags: row.flags.with(Flags::SIDE_EFFECT_FREE_ON_EFAULT), ..row })
}

/// Another room of the agent acts on this call.
const fn handled((nr, row): Def) -> Def {
    (nr, Row { flags: row.flags.with(Flags::HANDLED), ..row })
}

/// A transfer that can be made in pieces.
const fn split((nr, row): Def, split: Split) -> Def {
    (nr, Row { split, ..row })
}

/// A call whose arguments depend on an option. Their number and size are known.
const fn special((nr, row): Def, special: Special) -> Def {
    // A call with a special part has pointers that the argument list does not show.
    let flags = row.flags.without(Flags::NO_POINTERS);
    (nr, Row { special, flags, ..row })
}

/// The kernel may touch more than the row says.
const fn unsized_((nr, row): Def) -> Def {
    (nr, Row { flags: row.flags.with(Flags::UNSIZED), ..row })
}

// ---- The calls ----

#[rustfmt::skip]
const DEFS: &[Def] = &[
    split(blocks(sys(g::__NR_read, [V, bytes(Out, 2)])), Split::Read),
    special(split(blocks(sys(g::__NR_write, [V, bytes(In, 2)])), Split::Write), Special::Write),
    again(blocks(sys(g::__NR_open, [STR]))),
    handled(plain(g::__NR_close)),
    again(sys(g::__NR_stat, [STR, wr::<g::stat>()])),
    again(sys(g::__NR_fstat, [V, wr::<g::stat>()])),
    again(sys(g::__NR_lstat, [STR, wr::<g::stat>()])),
    blocks(sys(g::__NR_poll, [arr32(InOut, 1, size_of::<g::pollfd>() as u8)])),
    plain(g::__NR_lseek),
    handled(plain(g::__NR_mmap)),
    handled(plain(g::__NR_mprotect)),
    handled(plain(g::__NR_munmap)),
    handled(plain(g::__NR_brk)),
    handled(sys(g::__NR_rt_sigaction, [V, rd::<g::kernel_sigaction>(), wr::<g::kernel_sigaction>()])),
    handled(sys(g::__NR_rt_sigprocmask, [V, bytes(In, 3), bytes(Out, 3)])),
    handled(plain(g::__NR_rt_sigreturn)),
    unsized_(special(again(blocks(plain(g::__NR_ioctl))), Special::Ioctl)),
    split(blocks(sys(g::__NR_pread64, [V, bytes(Out, 2)])), Split::Pread),
    split(blocks(sys(g::__NR_pwrite64, [V, bytes(In, 2)])), Split::Pwrite),
    split(blocks(sys(g::__NR_readv, [V, iov(Out, 2)])), Split::Readv),
    split(blocks(sys(g::__NR_writev, [V, iov(In, 2)])), Split::Writev),
    again(sys(g::__NR_access, [STR])),
    sys(g::__NR_pipe, [fixed(Out, 8)]),
    blocks(sys(g::__NR_select, [V, FDS, FDS, FDS, fixed(InOut, size_of::<Timeval>())])),
    plain(g::__NR_sched_yield),
    handled(plain(g::__NR_mremap)),
    plain(g::__NR_msync),
    special(again(plain(g::__NR_mincore)), Special::Mincore),
    handled(plain(g::__NR_madvise)),
    plain(g::__NR_shmget),
    handled(plain(g::__NR_shmat)),
    special(again(plain(g::__NR_shmctl)), Special::Shmctl),
    plain(g::__NR_dup),
    handled(plain(g::__NR_dup2)),
    blocks(plain(g::__NR_pause)),
    blocks(sys(g::__NR_nanosleep, [rd::<Timespec>(), wr::<Timespec>()])),
    again(sys(g::__NR_getitimer, [V, wr::<g::itimerval>()])),
    sys(g::__NR_setitimer, [V, rd::<g::itimerval>(), wr::<g::itimerval>()]),
    plain(g::__NR_alarm),
    plain(g::__NR_getpid),
    blocks(sys(g::__NR_sendfile, [V, V, fixed(InOut, 8)])),
    plain(g::__NR_socket),
    blocks(sys(g::__NR_connect, [V, bytes32(In, 2)])),
    blocks(sys(g::__NR_accept, [V, by_ptr(Out, 2), fixed(InOut, 4)])),
    split(blocks(sys(g::__NR_sendto, [V, bytes(In, 2), V, V, bytes32(In, 5)])), Split::Sendto),
    split(blocks(sys(g::__NR_recvfrom, [V, bytes(Out, 2), V, V, by_ptr(Out, 5), fixed(InOut, 4)])), Split::Recvfrom),
    split(blocks(sys(g::__NR_sendmsg, [V, Arg::new(In, Shape::Msghdr)])), Split::Sendmsg),
    split(blocks(sys(g::__NR_recvmsg, [V, Arg::new(Out, Shape::Msghdr)])), Split::Recvmsg),
    plain(g::__NR_shutdown),
    again(sys(g::__NR_bind, [V, bytes32(In, 2)])),
    plain(g::__NR_listen),
    again(sys(g::__NR_getsockname, [V, by_ptr(Out, 2), fixed(InOut, 4)])),
    again(sys(g::__NR_getpeername, [V, by_ptr(Out, 2), fixed(InOut, 4)])),
    sys(g::__NR_socketpair, [V, V, V, fixed(Out, 8)]),
    unsized_(special(again(sys(g::__NR_setsockopt, [V, V, V, bytes32(In, 4)])), Special::Setsockopt)),
    unsized_(special(again(sys(g::__NR_getsockopt, [V, V, V, by_ptr(InOut, 4), fixed(InOut, 4)])), Special::Getsockopt)),
    handled(special(plain(g::__NR_clone), Special::Clone)),
    handled(plain(g::__NR_fork)),
    handled(plain(g::__NR_vfork)),
    handled(again(sys(g::__NR_execve, [STR, STRS, STRS]))),
    handled(plain(g::__NR_exit)),
    blocks(sys(g::__NR_wait4, [V, fixed(Out, 4), V, wr::<g::rusage>()])),
    plain(g::__NR_kill),
    again(sys(g::__NR_uname, [UTSNAME])),
    plain(g::__NR_semget),
    blocks(sys(g::__NR_semop, [V, arr32(In, 2, 6)])),
    unsized_(special(again(plain(g::__NR_semctl)), Special::Semctl)),
    handled(plain(g::__NR_shmdt)),
    plain(g::__NR_msgget),
    special(blocks(plain(g::__NR_msgsnd)), Special::Msgsnd),
    special(blocks(plain(g::__NR_msgrcv)), Special::Msgrcv),
    special(again(plain(g::__NR_msgctl)), Special::Msgctl),
    handled(special(again(blocks(plain(g::__NR_fcntl))), Special::Fcntl)),
    blocks(plain(g::__NR_flock)),
    blocks(plain(g::__NR_fsync)),
    blocks(plain(g::__NR_fdatasync)),
    again(sys(g::__NR_truncate, [STR])),
    plain(g::__NR_ftruncate),
    split(sys(g::__NR_getdents, [V, bytes32(Out, 2)]), Split::Getdents),
    again(sys(g::__NR_getcwd, [bytes(Out, 1)])),
    again(sys(g::__NR_chdir, [STR])),
    plain(g::__NR_fchdir),
    again(sys(g::__NR_rename, [STR, STR])),
    again(sys(g::__NR_mkdir, [STR])),
    again(sys(g::__NR_rmdir, [STR])),
    again(blocks(sys(g::__NR_creat, [STR]))),
    again(sys(g::__NR_link, [STR, STR])),
    again(sys(g::__NR_unlink, [STR])),
    again(sys(g::__NR_symlink, [STR, STR])),
    again(sys(g::__NR_readlink, [STR, bytes32(Out, 2)])),
    again(sys(g::__NR_chmod, [STR])),
    plain(g::__NR_fchmod),
    again(sys(g::__NR_chown, [STR])),
    plain(g::__NR_fchown),
    again(sys(g::__NR_lchown, [STR])),
    plain(g::__NR_umask),
    again(sys(g::__NR_gettimeofday, [wr::<Timeval>(), wr::<g::timezone>()])),
    again(sys(g::__NR_getrlimit, [V, wr::<g::rlimit64>()])),
    again(sys(g::__NR_getrusage, [V, wr::<g::rusage>()])),
    again(sys(g::__NR_sysinfo, [fixed(Out, 112)])),
    again(sys(g::__NR_times, [fixed(Out, 32)])),
    unsized_(special(again(plain(g::__NR_ptrace)), Special::Ptrace)),
    plain(g::__NR_getuid),
    blocks(sys(g::__NR_syslog, [V, bytes32(Out, 2)])),
    plain(g::__NR_getgid),
    plain(g::__NR_setuid),
    plain(g::__NR_setgid),
    plain(g::__NR_geteuid),
    plain(g::__NR_getegid),
    plain(g::__NR_setpgid),
    plain(g::__NR_getppid),
    plain(g::__NR_getpgrp),
    plain(g::__NR_setsid),
    plain(g::__NR_setreuid),
    plain(g::__NR_setregid),
    again(sys(g::__NR_getgroups, [V, arr32(Out, 0, 4)])),
    again(sys(g::__NR_setgroups, [V, arr32(In, 0, 4)])),
    plain(g::__NR_setresuid),
    again(sys(g::__NR_getresuid, [fixed(Out, 4), fixed(Out, 4), fixed(Out, 4)])),
    plain(g::__NR_setresgid),
    again(sys(g::__NR_getresgid, [fixed(Out, 4), fixed(Out, 4), fixed(Out, 4)])),
    plain(g::__NR_getpgid),
    plain(g::__NR_setfsuid),
    plain(g::__NR_setfsgid),
    plain(g::__NR_getsid),
    again(sys(g::__NR_capget, [fixed(InOut, 8), fixed(Out, 24)])),
    again(sys(g::__NR_capset, [fixed(InOut, 8), fixed(In, 24)])),
    again(sys(g::__NR_rt_sigpending, [bytes(Out, 1)])),
    handled(blocks(sys(g::__NR_rt_sigtimedwait, [bytes(In, 3), wr::<Siginfo>(), rd::<Timespec>()]))),
    again(sys(g::__NR_rt_sigqueueinfo, [V, V, rd::<Siginfo>()])),
    handled(blocks(sys(g::__NR_rt_sigsuspend, [bytes(In, 1)]))),
    handled(sys(g::__NR_sigaltstack, [rd::<g::sigaltstack>(), wr::<g::sigaltstack>()])),
    again(sys(g::__NR_utime, [STR, fixed(In, 16)])),
    again(sys(g::__NR_mknod, [STR])),
    plain(g::__NR_uselib),
    plain(g::__NR_personality),
    again(sys(g::__NR_ustat, [V, fixed(Out, 32)])),
    again(sys(g::__NR_statfs, [STR, wr::<g::statfs>()])),
    again(sys(g::__NR_fstatfs, [V, wr::<g::statfs>()])),
    again(sys(g::__NR_sysfs, [V, probe(In), probe(Out)])),
    plain(g::__NR_getpriority),
    plain(g::__NR_setpriority),
    again(sys(g::__NR_sched_setparam, [V, fixed(In, 4)])),
    again(sys(g::__NR_sched_getparam, [V, fixed(Out, 4)])),
    again(sys(g::__NR_sched_setscheduler, [V, V, fixed(In, 4)])),
    plain(g::__NR_sched_getscheduler),
    plain(g::__NR_sched_get_priority_max),
    plain(g::__NR_sched_get_priority_min),
    again(sys(g::__NR_sched_rr_get_interval, [V, wr::<Timespec>()])),
    handled(plain(g::__NR_mlock)),
    handled(plain(g::__NR_munlock)),
    handled(plain(g::__NR_mlockall)),
    handled(plain(g::__NR_munlockall)),
    plain(g::__NR_vhangup),
    again(sys(g::__NR_modify_ldt, [V, bytes(InOut, 2)])),
    again(sys(g::__NR_pivot_root, [STR, STR])),
    plain(g::__NR__sysctl),
    handled(unsized_(special(again(plain(g::__NR_prctl)), Special::Prctl))),
    // Only the "get" codes write, eight bytes. For the others, the address is a value, and pinning it does no harm.
    handled(again(sys(g::__NR_arch_prctl, [V, fixed(Out, 8)]))),
    sys(g::__NR_adjtimex, [TIMEX]),
    handled(again(sys(g::__NR_setrlimit, [V, rd::<g::rlimit64>()]))),
    again(sys(g::__NR_chroot, [STR])),
    blocks(plain(g::__NR_sync)),
    again(sys(g::__NR_acct, [STR])),
    again(sys(g::__NR_settimeofday, [rd::<Timeval>(), rd::<g::timezone>()])),
    special(again(blocks(sys(g::__NR_mount, [STR, STR, STR]))), Special::Mount),
    again(blocks(sys(g::__NR_umount2, [STR]))),
    again(blocks(sys(g::__NR_swapon, [STR]))),
    again(blocks(sys(g::__NR_swapoff, [STR]))),
    again(sys(g::__NR_reboot, [V, V, V, STR])),
    again(sys(g::__NR_sethostname, [bytes32(In, 1)])),
    again(sys(g::__NR_setdomainname, [bytes32(In, 1)])),
    plain(g::__NR_iopl),
    plain(g::__NR_ioperm),
    plain(g::__NR_create_module),
    unsized_(again(blocks(sys(g::__NR_init_module, [bytes(In, 1), V, STR])))),
    again(blocks(sys(g::__NR_delete_module, [STR]))),
    plain(g::__NR_get_kernel_syms),
    plain(g::__NR_query_module),
    special(again(blocks(sys(g::__NR_quotactl, [V, STR]))), Special::Quotactl),
    plain(g::__NR_nfsservctl),
    plain(g::__NR_getpmsg),
    plain(g::__NR_putpmsg),
    plain(g::__NR_afs_syscall),
    plain(g::__NR_tuxcall),
    plain(g::__NR_security),
    plain(g::__NR_gettid),
    plain(g::__NR_readahead),
    again(sys(g::__NR_setxattr, [STR, STR, bytes(In, 3)])),
    again(sys(g::__NR_lsetxattr, [STR, STR, bytes(In, 3)])),
    again(sys(g::__NR_fsetxattr, [V, STR, bytes(In, 3)])),
    again(sys(g::__NR_getxattr, [STR, STR, bytes(Out, 3)])),
    again(sys(g::__NR_lgetxattr, [STR, STR, bytes(Out, 3)])),
    again(sys(g::__NR_fgetxattr, [V, STR, bytes(Out, 3)])),
    again(sys(g::__NR_listxattr, [STR, bytes(Out, 2)])),
    again(sys(g::__NR_llistxattr, [STR, bytes(Out, 2)])),
    again(sys(g::__NR_flistxattr, [V, bytes(Out, 2)])),
    again(sys(g::__NR_removexattr, [STR, STR])),
    again(sys(g::__NR_lremovexattr, [STR, STR])),
    again(sys(g::__NR_fremovexattr, [V, STR])),
    plain(g::__NR_tkill),
    again(sys(g::__NR_time, [fixed(Out, 8)])),
    special(blocks(plain(g::__NR_futex)), Special::Futex),
    again(sys(g::__NR_sched_setaffinity, [V, V, bytes32(In, 1)])),
    again(sys(g::__NR_sched_getaffinity, [V, V, bytes32(Out, 1)])),
    plain(g::__NR_set_thread_area),
    sys(g::__NR_io_setup, [V, fixed(InOut, 8)]),
    blocks(plain(g::__NR_io_destroy)),
    blocks(sys(g::__NR_io_getevents, [V, V, V, arr(Out, 2, 32), rd::<Timespec>()])),
    // Never repeat it after EFAULT: its requests would be counted twice (`aio`).
    special(blocks(plain(g::__NR_io_submit)), Special::IoSubmit),
    sys(g::__NR_io_cancel, [V, fixed(InOut, 64), fixed(Out, 32)]),
    plain(g::__NR_get_thread_area),
    plain(g::__NR_lookup_dcookie),
    plain(g::__NR_epoll_create),
    plain(g::__NR_epoll_ctl_old),
    plain(g::__NR_epoll_wait_old),
    handled(plain(g::__NR_remap_file_pages)),
    split(sys(g::__NR_getdents64, [V, bytes32(Out, 2)]), Split::Getdents),
    // The kernel clears the word and wakes its waiters when the thread ends.
    handled(sys(g::__NR_set_tid_address, [Arg::new(Out, Shape::Exclude(4))])),
    blocks(plain(g::__NR_restart_syscall)),
    blocks(sys(g::__NR_semtimedop, [V, arr32(In, 2, 6), V, rd::<Timespec>()])),
    plain(g::__NR_fadvise64),
    sys(g::__NR_timer_create, [V, rd::<g::sigevent>(), fixed(Out, 4)]),
    sys(g::__NR_timer_settime, [V, V, rd::<g::itimerspec>(), wr::<g::itimerspec>()]),
    again(sys(g::__NR_timer_gettime, [V, wr::<g::itimerspec>()])),
    plain(g::__NR_timer_getoverrun),
    plain(g::__NR_timer_delete),
    again(sys(g::__NR_clock_settime, [V, rd::<Timespec>()])),
    again(sys(g::__NR_clock_gettime, [V, wr::<Timespec>()])),
    again(sys(g::__NR_clock_getres, [V, wr::<Timespec>()])),
    blocks(sys(g::__NR_clock_nanosleep, [V, V, rd::<Timespec>(), wr::<Timespec>()])),
    handled(plain(g::__NR_exit_group)),
    blocks(sys(g::__NR_epoll_wait, [V, arr32(Out, 2, 12)])),
    again(sys(g::__NR_epoll_ctl, [V, V, V, rd::<g::epoll_event>()])),
    plain(g::__NR_tgkill),
    again(sys(g::__NR_utimes, [STR, fixed(In, 32)])),
    plain(g::__NR_vserver),
    again(sys(g::__NR_mbind, [V, V, V, bits(In, 4)])),
    again(sys(g::__NR_set_mempolicy, [V, bits(In, 2)])),
    again(sys(g::__NR_get_mempolicy, [fixed(Out, 4), bits(Out, 2)])),
    again(sys(g::__NR_mq_open, [STR, V, V, fixed(In, 64)])),
    again(sys(g::__NR_mq_unlink, [STR])),
    blocks(sys(g::__NR_mq_timedsend, [V, bytes(In, 2), V, V, rd::<Timespec>()])),
    blocks(sys(g::__NR_mq_timedreceive, [V, bytes(Out, 2), V, fixed(Out, 4), rd::<Timespec>()])),
    special(again(sys(g::__NR_mq_notify, [V, rd::<g::sigevent>()])), Special::MqNotify),
    sys(g::__NR_mq_getsetattr, [V, fixed(In, 64), fixed(Out, 64)]),
    unsized_(again(blocks(sys(g::__NR_kexec_load, [V, V, arr(In, 1, 32)])))),
    blocks(sys(g::__NR_waitid, [V, V, wr::<Siginfo>(), V, wr::<g::rusage>()])),
    again(sys(g::__NR_add_key, [STR, STR, bytes(In, 3)])),
    again(blocks(sys(g::__NR_request_key, [STR, STR, STR]))),
    unsized_(special(again(blocks(plain(g::__NR_keyctl))), Special::Keyctl)),
    plain(g::__NR_ioprio_set),
    plain(g::__NR_ioprio_get),
    plain(g::__NR_inotify_init),
    again(sys(g::__NR_inotify_add_watch, [V, STR])),
    plain(g::__NR_inotify_rm_watch),
    again(sys(g::__NR_migrate_pages, [V, V, bits(In, 1), bits(In, 1)])),
    again(blocks(sys(g::__NR_openat, [V, STR]))),
    again(sys(g::__NR_mkdirat, [V, STR])),
    again(sys(g::__NR_mknodat, [V, STR])),
    again(sys(g::__NR_fchownat, [V, STR])),
    again(sys(g::__NR_futimesat, [V, STR, fixed(In, 32)])),
    again(sys(g::__NR_newfstatat, [V, STR, wr::<g::stat>()])),
    again(sys(g::__NR_unlinkat, [V, STR])),
    again(sys(g::__NR_renameat, [V, STR, V, STR])),
    again(sys(g::__NR_linkat, [V, STR, V, STR])),
    again(sys(g::__NR_symlinkat, [STR, V, STR])),
    again(sys(g::__NR_readlinkat, [V, STR, bytes32(Out, 3)])),
    again(sys(g::__NR_fchmodat, [V, STR])),
    again(sys(g::__NR_faccessat, [V, STR])),
    handled(blocks(sys(g::__NR_pselect6, [V, FDS, FDS, FDS, fixed(InOut, 16), SIGARG]))),
    handled(blocks(sys(g::__NR_ppoll, [arr32(InOut, 1, 8), V, fixed(InOut, 16), bytes(In, 4)]))),
    handled(plain(g::__NR_unshare)),
    // The kernel walks the list when the thread ends.
    sys(g::__NR_set_robust_list, [Arg::new(In, Shape::ExcludeLen { len: 1 })]),
    again(sys(g::__NR_get_robust_list, [V, fixed(Out, 8), fixed(Out, 8)])),
    blocks(sys(g::__NR_splice, [V, fixed(InOut, 8), V, fixed(InOut, 8)])),
    blocks(plain(g::__NR_tee)),
    blocks(plain(g::__NR_sync_file_range)),
    special(blocks(plain(g::__NR_vmsplice)), Special::Vmsplice),
    again(sys(g::__NR_move_pages, [V, V, arr(In, 1, 8), arr(In, 1, 4), arr(Out, 1, 4)])),
    again(sys(g::__NR_utimensat, [V, STR, fixed(In, 32)])),
    handled(blocks(sys(g::__NR_epoll_pwait, [V, arr32(Out, 2, 12), V, V, bytes(In, 5)]))),
    handled(again(sys(g::__NR_signalfd, [V, bytes(In, 2)]))),
    plain(g::__NR_timerfd_create),
    plain(g::__NR_eventfd),
    blocks(plain(g::__NR_fallocate)),
    sys(g::__NR_timerfd_settime, [V, V, rd::<g::itimerspec>(), wr::<g::itimerspec>()]),
    again(sys(g::__NR_timerfd_gettime, [V, wr::<g::itimerspec>()])),
    blocks(sys(g::__NR_accept4, [V, by_ptr(Out, 2), fixed(InOut, 4)])),
    handled(again(sys(g::__NR_signalfd4, [V, bytes(In, 2)]))),
    plain(g::__NR_eventfd2),
    plain(g::__NR_epoll_create1),
    handled(plain(g::__NR_dup3)),
    sys(g::__NR_pipe2, [fixed(Out, 8)]),
    plain(g::__NR_inotify_init1),
    split(blocks(sys(g::__NR_preadv, [V, iov(Out, 2)])), Split::Preadv),
    split(blocks(sys(g::__NR_pwritev, [V, iov(In, 2)])), Split::Pwritev),
    again(sys(g::__NR_rt_tgsigqueueinfo, [V, V, V, rd::<Siginfo>()])),
    again(sys(g::__NR_perf_event_open, [self_sized(InOut, 4, 64)])),
    split(
        blocks(sys(g::__NR_recvmmsg, [V, Arg::new(Out, Shape::Mmsghdr { count: 2 }), V, V, fixed(InOut, 16)])),
        Split::Recvmmsg,
    ),
    plain(g::__NR_fanotify_init),
    again(sys(g::__NR_fanotify_mark, [V, V, V, V, STR])),
    handled(sys(g::__NR_prlimit64, [V, V, rd::<g::rlimit64>(), wr::<g::rlimit64>()])),
    special(again(sys(g::__NR_name_to_handle_at, [V, STR, V, fixed(Out, 8)])), Special::FileHandle),
    special(again(blocks(sys(g::__NR_open_by_handle_at, [V]))), Special::FileHandle),
    sys(g::__NR_clock_adjtime, [V, TIMEX]),
    blocks(plain(g::__NR_syncfs)),
    blocks(sys(g::__NR_sendmmsg, [V, Arg::new(In, Shape::Mmsghdr { count: 2 })])),
    handled(plain(g::__NR_setns)),
    again(sys(g::__NR_getcpu, [fixed(Out, 4), fixed(Out, 4)])),
    special(split(sys(g::__NR_process_vm_readv, [V, iov(Out, 2)]), Split::ProcessVm), Special::ProcessVm),
    special(split(sys(g::__NR_process_vm_writev, [V, iov(In, 2)]), Split::ProcessVm), Special::ProcessVm),
    special(again(plain(g::__NR_kcmp)), Special::Kcmp),
    unsized_(again(blocks(sys(g::__NR_finit_module, [V, STR])))),
    again(sys(g::__NR_sched_setattr, [V, self_sized(InOut, 0, 48)])),
    again(sys(g::__NR_sched_getattr, [V, bytes32(Out, 2)])),
    again(sys(g::__NR_renameat2, [V, STR, V, STR])),
    handled(special(again(plain(g::__NR_seccomp)), Special::Seccomp)),
    split(blocks(sys(g::__NR_getrandom, [bytes(Out, 1)])), Split::Getrandom),
    again(sys(g::__NR_memfd_create, [STR])),
    again(blocks(sys(g::__NR_kexec_file_load, [V, V, V, bytes(In, 2)]))),
    unsized_(special(again(sys(g::__NR_bpf, [V, bytes32(InOut, 2)])), Special::Bpf)),
    handled(again(sys(g::__NR_execveat, [V, STR, STRS, STRS]))),
    handled(plain(g::__NR_userfaultfd)),
    blocks(plain(g::__NR_membarrier)),
    handled(plain(g::__NR_mlock2)),
    blocks(sys(g::__NR_copy_file_range, [V, fixed(InOut, 8), V, fixed(InOut, 8)])),
    split(blocks(sys(g::__NR_preadv2, [V, iov(Out, 2)])), Split::Preadv2),
    split(blocks(sys(g::__NR_pwritev2, [V, iov(In, 2)])), Split::Pwritev2),
    handled(plain(g::__NR_pkey_mprotect)),
    plain(g::__NR_pkey_alloc),
    plain(g::__NR_pkey_free),
    again(sys(g::__NR_statx, [V, STR, V, V, wr::<g::statx>()])),
    blocks(sys(g::__NR_io_pgetevents, [V, V, V, arr(Out, 2, 32), rd::<Timespec>(), SIGARG])),
    // The kernel writes the area whenever it preempts the thread.
    sys(g::__NR_rseq, [Arg::new(InOut, Shape::ExcludeLen { len: 1 })]),
    plain(g::__NR_uretprobe),
    plain(NR_UPROBE),
    again(sys(g::__NR_pidfd_send_signal, [V, V, rd::<Siginfo>()])),
    handled(sys(g::__NR_io_uring_setup, [V, fixed(InOut, 120)])),
    special(blocks(plain(g::__NR_io_uring_enter)), Special::IoUringEnter),
    unsized_(special(again(blocks(plain(g::__NR_io_uring_register))), Special::IoUringRegister)),
    again(sys(g::__NR_open_tree, [V, STR])),
    again(sys(g::__NR_move_mount, [V, STR, V, STR])),
    again(sys(g::__NR_fsopen, [STR])),
    special(again(blocks(sys(g::__NR_fsconfig, [V, V, STR]))), Special::Fsconfig),
    plain(g::__NR_fsmount),
    again(sys(g::__NR_fspick, [V, STR])),
    plain(g::__NR_pidfd_open),
    handled(special(sys(g::__NR_clone3, [bytes(In, 1)]), Special::Clone3)),
    handled(plain(g::__NR_close_range)),
    again(blocks(sys(g::__NR_openat2, [V, STR, bytes(In, 3)]))),
    plain(g::__NR_pidfd_getfd),
    again(sys(g::__NR_faccessat2, [V, STR])),
    handled(sys(g::__NR_process_madvise, [V, arr(In, 2, 16)])),
    handled(blocks(sys(g::__NR_epoll_pwait2, [V, arr32(Out, 2, 12), V, rd::<Timespec>(), bytes(In, 5)]))),
    again(sys(g::__NR_mount_setattr, [V, STR, V, bytes(In, 4)])),
    special(again(blocks(plain(g::__NR_quotactl_fd))), Special::QuotactlFd),
    again(sys(g::__NR_landlock_create_ruleset, [bytes(In, 1)])),
    special(again(plain(g::__NR_landlock_add_rule)), Special::Landlock),
    plain(g::__NR_landlock_restrict_self),
    plain(g::__NR_memfd_secret),
    blocks(plain(g::__NR_process_mrelease)),
    special(blocks(sys(g::__NR_futex_waitv, [V, V, V, rd::<Timespec>()])), Special::FutexWaitv),
    plain(g::__NR_set_mempolicy_home_node),
    again(sys(g::__NR_cachestat, [V, rd::<g::cachestat_range>(), wr::<g::cachestat>()])),
    again(sys(g::__NR_fchmodat2, [V, STR])),
    handled(plain(g::__NR_map_shadow_stack)),
    sys(g::__NR_futex_wake, [fixed(InOut, 8)]),
    special(blocks(sys(g::__NR_futex_wait, [V, V, V, V, rd::<Timespec>()])), Special::FutexWait),
    special(plain(g::__NR_futex_requeue), Special::FutexRequeue),
    again(sys(g::__NR_statmount, [self_sized(In, 0, 24), bytes(Out, 2)])),
    again(sys(g::__NR_listmount, [self_sized(In, 0, 24), arr(Out, 2, 8)])),
    again(sys(g::__NR_lsm_get_self_attr, [V, by_ptr(Out, 2), fixed(InOut, 4)])),
    again(sys(g::__NR_lsm_set_self_attr, [V, bytes32(In, 2)])),
    again(sys(g::__NR_lsm_list_modules, [by_ptr(Out, 1), fixed(InOut, 4)])),
    handled(plain(g::__NR_mseal)),
    special(again(sys(g::__NR_setxattrat, [V, STR, V, STR, bytes(In, 5)])), Special::XattrIn),
    special(again(sys(g::__NR_getxattrat, [V, STR, V, STR, bytes(In, 5)])), Special::XattrOut),
    again(sys(g::__NR_listxattrat, [V, STR, V, bytes(Out, 4)])),
    again(sys(g::__NR_removexattrat, [V, STR, V, STR])),
    again(sys(g::__NR_open_tree_attr, [V, STR, V, bytes(In, 4)])),
    again(sys(g::__NR_file_getattr, [V, STR, bytes(Out, 3)])),
    again(sys(g::__NR_file_setattr, [V, STR, bytes(In, 3)])),
    again(sys(NR_LISTNS, [self_sized(In, 0, 24), arr(Out, 2, 8)])),
];

const _: () = assert!(size_of::<Row>() == 16 || size_of::<Row>() == 18);
const _: () = assert!(size_of::<Siginfo>() == 128 && size_of::<g::stat>() == 144 && size_of::<g::statx>() == 256);
