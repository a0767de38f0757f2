//! Checks the table against independent lists of calls.

use crate::table::{Arg, Dir, Flags, Shape, Split, row};
use linux_raw_sys::general as g;
use std::collections::BTreeSet;

#[test]
fn every_system_call_has_a_row_and_every_row_is_a_system_call() {
    let mut known: BTreeSet<u64> = (0..1000).filter(|&nr| syscalls::Sysno::new(nr as usize).is_some()).collect();
    // Newer than the list.
    known.extend([336, 470]);
    let rows: BTreeSet<u64> = (0..1000).filter(|&nr| row(nr).defined).collect();
    assert_eq!(rows, known);
}

#[test]
fn a_number_without_a_row_is_probed_and_may_be_tried_again() {
    for nr in [337, 423, 471, 1 << 31, u64::MAX] {
        let row = row(nr);
        assert!(!row.defined);
        assert!(row.flags.has(Flags::SIDE_EFFECT_FREE_ON_EFAULT) && row.flags.has(Flags::UNSIZED));
        assert!(!row.flags.has(Flags::NO_POINTERS));
    }
}

#[test]
fn rows_without_pointers_are_exactly_those_the_visitor_has_nothing_to_do_for() {
    for nr in 0..471 {
        let row = row(nr);
        let is_bare = row.args().iter().all(|a| a.shape() == Shape::Value) && !row.has_special() && row.defined;
        assert_eq!(row.flags.has(Flags::NO_POINTERS), is_bare, "{nr}");
    }
}

#[test]
fn lengths_name_arguments_that_are_numbers_and_length_pointers_ones_that_point() {
    for nr in 0..471 {
        let row = row(nr);
        for arg in row.args() {
            match arg.shape() {
                Shape::Array { count, .. }
                | Shape::Bits { bits: count }
                | Shape::Iovec { count }
                | Shape::Mmsghdr { count }
                | Shape::FdSet { nfds: count }
                | Shape::ExcludeLen { len: count } => {
                    assert_eq!(row.args()[count as usize].shape(), Shape::Value, "{nr}");
                }
                Shape::LenPtr { len_ptr } => {
                    assert_eq!(row.args()[len_ptr as usize].shape(), Shape::Fixed(4), "{nr}");
                }
                _ => {}
            }
        }
    }
}

#[test]
fn calls_that_give_something_away_with_their_answer_are_not_tried_again() {
    let once = [
        g::__NR_read,
        g::__NR_write,
        g::__NR_recvmsg,
        g::__NR_accept,
        g::__NR_accept4,
        g::__NR_pipe2,
        g::__NR_socketpair,
        g::__NR_wait4,
        g::__NR_waitid,
        g::__NR_timer_create,
        g::__NR_sendfile,
        g::__NR_splice,
        g::__NR_mq_timedreceive,
        g::__NR_msgrcv,
        g::__NR_io_submit,
        g::__NR_clone3,
        g::__NR_futex,
    ];
    for nr in once {
        assert!(!row(nr as u64).flags.has(Flags::SIDE_EFFECT_FREE_ON_EFAULT), "{nr}");
    }
}

#[test]
fn calls_that_only_look_or_name_are_tried_again() {
    let again = [
        g::__NR_open,
        g::__NR_openat,
        g::__NR_newfstatat,
        g::__NR_statx,
        g::__NR_ioctl,
        g::__NR_fcntl,
        g::__NR_prctl,
        g::__NR_mount,
        g::__NR_bpf,
        g::__NR_setsockopt,
        g::__NR_execve,
    ];
    for nr in again {
        assert!(row(nr as u64).flags.has(Flags::SIDE_EFFECT_FREE_ON_EFAULT), "{nr}");
    }
}

#[test]
fn calls_that_wait_are_marked_also_when_an_option_decides() {
    for nr in [g::__NR_futex, g::__NR_ioctl, g::__NR_read, g::__NR_epoll_wait, g::__NR_msgrcv, g::__NR_fcntl] {
        assert!(row(nr as u64).flags.has(Flags::MAY_BLOCK), "{nr}");
    }
}

#[test]
fn the_agents_own_calls_are_marked() {
    let handled = [
        g::__NR_mmap,
        g::__NR_munmap,
        g::__NR_mremap,
        g::__NR_mprotect,
        g::__NR_pkey_mprotect,
        g::__NR_madvise,
        g::__NR_brk,
        g::__NR_mlock,
        g::__NR_mlock2,
        g::__NR_munlock,
        g::__NR_mlockall,
        g::__NR_munlockall,
        g::__NR_shmat,
        g::__NR_shmdt,
        g::__NR_remap_file_pages,
        g::__NR_process_madvise,
        g::__NR_clone,
        g::__NR_clone3,
        g::__NR_fork,
        g::__NR_vfork,
        g::__NR_execve,
        g::__NR_execveat,
        g::__NR_exit,
        g::__NR_exit_group,
        g::__NR_rt_sigaction,
        g::__NR_rt_sigprocmask,
        g::__NR_rt_sigreturn,
        g::__NR_rt_sigsuspend,
        g::__NR_sigaltstack,
        g::__NR_rt_sigtimedwait,
        g::__NR_ppoll,
        g::__NR_pselect6,
        g::__NR_epoll_pwait,
        g::__NR_epoll_pwait2,
        g::__NR_signalfd,
        g::__NR_signalfd4,
        g::__NR_close,
        g::__NR_close_range,
        g::__NR_dup2,
        g::__NR_dup3,
        g::__NR_fcntl,
        g::__NR_prctl,
        g::__NR_seccomp,
        g::__NR_setrlimit,
        g::__NR_prlimit64,
        g::__NR_arch_prctl,
        g::__NR_unshare,
        g::__NR_setns,
        g::__NR_io_uring_setup,
        g::__NR_userfaultfd,
    ];
    for nr in handled {
        assert!(row(nr as u64).flags.has(Flags::HANDLED), "{nr}");
    }
}

#[test]
fn packing_an_argument_loses_nothing() {
    let shapes = [
        Shape::Value,
        Shape::Fixed(511),
        Shape::Array { count: 5, element: 63, narrow: false },
        Shape::Array { count: 0, element: 1, narrow: true },
        Shape::LenPtr { len_ptr: 5 },
        Shape::Bits { bits: 4 },
        Shape::Str,
        Shape::StrArray,
        Shape::Iovec { count: 2 },
        Shape::Msghdr,
        Shape::Mmsghdr { count: 2 },
        Shape::FdSet { nfds: 0 },
        Shape::SelfSized { at: 4, least: 64 },
        Shape::SigsetArg,
        Shape::Probe,
        Shape::Exclude(24),
        Shape::ExcludeLen { len: 1 },
    ];
    for shape in shapes {
        for dir in [Dir::In, Dir::Out, Dir::InOut] {
            let arg = Arg::new(dir, shape);
            assert_eq!((arg.dir(), arg.shape()), (dir, shape));
        }
    }
}

#[test]
fn fixed_sizes_are_those_of_libc() {
    let expected: &[(u32, usize, usize)] = &[
        (g::__NR_fstat, 1, size_of::<libc::stat>()),
        (g::__NR_fstatfs, 1, size_of::<libc::statfs>()),
        (g::__NR_statx, 4, size_of::<libc::statx>()),
        (g::__NR_uname, 0, size_of::<libc::utsname>()),
        (g::__NR_sysinfo, 0, size_of::<libc::sysinfo>()),
        (g::__NR_times, 0, size_of::<libc::tms>()),
        (g::__NR_getrusage, 1, size_of::<libc::rusage>()),
        (g::__NR_prlimit64, 3, size_of::<libc::rlimit64>()),
        (g::__NR_setitimer, 1, size_of::<libc::itimerval>()),
        (g::__NR_timerfd_settime, 2, size_of::<libc::itimerspec>()),
        (g::__NR_nanosleep, 0, size_of::<libc::timespec>()),
        (g::__NR_gettimeofday, 0, size_of::<libc::timeval>()),
        (g::__NR_adjtimex, 0, size_of::<libc::timex>()),
        (g::__NR_epoll_ctl, 3, size_of::<libc::epoll_event>()),
        (g::__NR_waitid, 2, size_of::<libc::siginfo_t>()),
        (g::__NR_sigaltstack, 0, size_of::<libc::stack_t>()),
        (g::__NR_timer_create, 1, size_of::<libc::sigevent>()),
        (g::__NR_mq_getsetattr, 1, size_of::<libc::mq_attr>()),
        (g::__NR_utime, 1, size_of::<libc::utimbuf>()),
        (g::__NR_select, 4, size_of::<libc::timeval>()),
        (g::__NR_cachestat, 1, size_of::<g::cachestat_range>()),
        (g::__NR_sched_setparam, 1, size_of::<libc::sched_param>()),
    ];
    for &(nr, at, bytes) in expected {
        assert_eq!(row(nr as u64).args()[at].shape(), Shape::Fixed(bytes as u16), "call {nr}, argument {at}");
    }
}

#[test]
fn element_sizes_are_those_of_libc() {
    let expected: &[(u32, usize, usize)] = &[
        (g::__NR_poll, 0, size_of::<libc::pollfd>()),
        (g::__NR_epoll_wait, 1, size_of::<libc::epoll_event>()),
        (g::__NR_semop, 1, size_of::<libc::sembuf>()),
        (g::__NR_getgroups, 1, size_of::<libc::gid_t>()),
        (g::__NR_process_madvise, 1, size_of::<libc::iovec>()),
    ];
    for &(nr, at, bytes) in expected {
        let Shape::Array { element, .. } = row(nr as u64).args()[at].shape() else { panic!("{nr}") };
        assert_eq!(element as usize, bytes);
    }
}

#[test]
fn layouts_read_by_offset_are_those_of_libc() {
    use core::mem::offset_of;
    assert_eq!(crate::table::visit::MSGHDR_BYTES as usize, size_of::<libc::msghdr>());
    assert_eq!(offset_of!(libc::msghdr, msg_iov), 16);
    assert_eq!(offset_of!(libc::msghdr, msg_controllen), 40);
    assert_eq!(size_of::<libc::mmsghdr>(), 64);
    assert_eq!(size_of::<libc::flock>(), size_of::<g::flock>());
    assert_eq!(size_of::<libc::shmid_ds>(), 112);
    assert_eq!(size_of::<libc::semid_ds>(), 104);
    assert_eq!(size_of::<libc::msqid_ds>(), 120);
    assert_eq!(size_of::<libc::user_regs_struct>(), 27 * 8);
    assert_eq!(size_of::<libc::user_fpregs_struct>(), 512);
    assert_eq!(size_of::<libc::sock_fprog>(), 16);
    assert_eq!(size_of::<libc::ifreq>(), 40);
}

#[test]
fn calls_that_can_be_split_are_those_that_transfer_bytes() {
    let count = (0..471).filter(|&nr| row(nr).split != Split::No).count();
    assert_eq!(count, 20);
}
