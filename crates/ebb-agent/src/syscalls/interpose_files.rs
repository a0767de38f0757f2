//! The hot calls of libc that are about files and their names, answered as in `interpose`.
//!
//! They touch a path and a structure. Both are small and in use, and the kernel looks at them before the call has any
//! effect. So nothing is pinned beforehand.

use crate::guard::device;
use crate::kept::{fds, marks, shown};
use crate::process::tasks;
use crate::syscalls::interpose::{self, Ptr, Touches, int, libc_functions, make};
use crate::syscalls::proc_files::{self, ram};
use core::ffi::{CStr, c_int};
use ebb::uapi;
use linux_raw_sys::general as g;

const AT_FDCWD: u64 = g::AT_FDCWD as i64 as u64;

/// The kind of owner that is a process group.
const F_OWNER_PGRP: i32 = 2;

/// The descriptor for the kernel. One of Ebb's looks closed.
#[inline(always)]
fn visible(fd: c_int) -> u64 {
    let hidden = match crate::base::here::space() {
        Some(space) => fds::is_protected(space, int(fd)),
        None => fds::is_inherited(fd),
    };
    if hidden { int(-1) } else { int(fd) }
}

/// Remembers that a file with this path was opened, if it may be one that tells of the process itself, or a device that
/// takes commands.
#[inline(always)]
fn opened(path: Ptr, fd: c_int) -> c_int {
    if fd < 0 {
        return fd;
    }
    // SAFETY: the kernel has just read the string.
    let name = unsafe { CStr::from_ptr(path.cast()) }.to_bytes();
    if proc_files::has_such_name(name) {
        marks::mark(fd as i64);
    }
    device::note_opened(name);
    if shown::is_on() {
        ram::note(fd as i64);
    }
    fd
}

/// newfstatat. The agent performs a call that would count the tasks of the process.
#[inline(always)]
fn look(args: [u64; 6]) -> c_int {
    let counts = |space| tasks::would_be_counted(space) && proc_files::counts_tasks(g::__NR_newfstatat, &args);
    if crate::base::here::space().is_some_and(counts) {
        return interpose::caught(g::__NR_newfstatat, args) as c_int;
    }
    make::<false>(g::__NR_newfstatat, args, Touches::Pure) as c_int
}

/// dup2 and dup3. A small process gives up a number that it keeps for Ebb, if the program wants that number.
fn onto(old: c_int, new: c_int, nr: u32, flags: c_int) -> c_int {
    // A call that fails takes no number.
    let is_open = || interpose::caught(g::__NR_fcntl, [visible(old), g::F_GETFD as u64, 0, 0, 0, 0]) >= 0;
    let is_taken = || uapi::fd::is_below_limit(new) && is_open();
    if crate::base::here::space().is_none()
        && old != new
        && fds::is_inherited(new)
        && !fds::is_inherited(old)
        && is_taken()
    {
        fds::give_up(new);
    }
    interpose::caught(nr, [visible(old), int(new), int(flags), 0, 0, 0]) as c_int
}

libc_functions! {
    /// open(2); the mode matters only where the flags say so.
    @open64
    fn open(path: Ptr, flags: c_int, mode: u32) -> c_int {
        let args = [AT_FDCWD, path as u64, int(flags), mode as u64, 0, 0];
        opened(path, make::<true>(g::__NR_openat, args, Touches::Pure) as c_int)
    }

    /// openat(2)
    @openat64
    fn openat(dir: c_int, path: Ptr, flags: c_int, mode: u32) -> c_int {
        let args = [int(dir), path as u64, int(flags), mode as u64, 0, 0];
        opened(path, make::<true>(g::__NR_openat, args, Touches::Pure) as c_int)
    }

    /// close(2)
    fn close(fd: c_int) -> c_int {
        ebb::uapi::fd::wait_unchanged();
        make::<true>(g::__NR_close, [visible(fd), 0, 0, 0, 0, 0], Touches::Buffer(0, 0)) as c_int
    }

    /// dup2(2)
    fn dup2(old: c_int, new: c_int) -> c_int {
        onto(old, new, g::__NR_dup2, 0)
    }

    /// dup3(2)
    fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
        onto(old, new, g::__NR_dup3, flags)
    }

    /// close_range(2)
    fn close_range(first: u32, last: u32, flags: c_int) -> c_int {
        if crate::base::here::space().is_some() || first > last {
            let args = [first as u64, last as u64, int(flags), 0, 0, 0];
            return interpose::caught(g::__NR_close_range, args) as c_int;
        }
        let mut ret = 0;
        fds::for_each_inherited_gap(first, last, |from, to| {
            let args = [from as u64, to as u64, int(flags), 0, 0, 0];
            if ret == 0 {
                ret = interpose::caught(g::__NR_close_range, args) as c_int;
            }
        });
        ret
    }

    /// closefrom(3)
    fn closefrom(first: c_int) -> () {
        // SAFETY: closes what the program gives up.
        unsafe { close_range(first.max(0) as u32, u32::MAX, 0) };
    }

    /// fcntl(2); a cancellation point when it waits for a lock.
    @fcntl64
    fn fcntl(fd: c_int, command: c_int, argument: u64) -> c_int {
        let args = [visible(fd), int(command), argument, 0, 0, 0];
        let ret = match command as u32 {
            g::F_DUPFD | g::F_DUPFD_CLOEXEC | g::F_GETFD | g::F_SETFD | g::F_GETFL | g::F_SETFL => {
                let ret = make::<false>(g::__NR_fcntl, args, Touches::Buffer(0, 0));
                if matches!(command as u32, g::F_DUPFD | g::F_DUPFD_CLOEXEC) {
                    marks::mark_like(int(fd), ret);
                }
                ret
            }
            g::F_SETLKW | g::F_OFD_SETLKW => make::<true>(g::__NR_fcntl, args, Touches::Table),
            g::F_GETOWN => {
                // Do as libc does: the plain call cannot tell a small process group from an error.
                let mut owner = [0i32; 2];
                let args = [args[0], g::F_GETOWN_EX as u64, owner.as_mut_ptr() as u64, 0, 0, 0];
                match make::<false>(g::__NR_fcntl, args, Touches::Table) {
                    0 if owner[0] == F_OWNER_PGRP => -owner[1] as i64,
                    0 => owner[1] as i64,
                    error => error,
                }
            }
            _ => make::<false>(g::__NR_fcntl, args, Touches::Table),
        };
        ret as c_int
    }

    /// stat(2); no cancellation point, like the rest.
    @stat64
    fn stat(path: Ptr, out: Ptr) -> c_int {
        look([AT_FDCWD, path as u64, out as u64, 0, 0, 0])
    }

    /// lstat(2)
    @lstat64
    fn lstat(path: Ptr, out: Ptr) -> c_int {
        let flags = g::AT_SYMLINK_NOFOLLOW as u64;
        look([AT_FDCWD, path as u64, out as u64, flags, 0, 0])
    }

    /// fstatat(2)
    @fstatat64
    fn fstatat(dir: c_int, path: Ptr, out: Ptr, flags: c_int) -> c_int {
        look([visible(dir), path as u64, out as u64, int(flags), 0, 0])
    }

    /// fstat(2)
    @fstat64
    fn fstat(fd: c_int, out: Ptr) -> c_int {
        let args = [visible(fd), out as u64, 0, 0, 0, 0];
        if marks::is_marked(args[0]) && crate::base::here::space().is_some_and(tasks::would_be_counted) {
            return interpose::caught(g::__NR_fstat, args) as c_int;
        }
        make::<false>(g::__NR_fstat, args, Touches::Pure) as c_int
    }

    /// access(2)
    fn access(path: Ptr, mode: c_int) -> c_int {
        make::<false>(g::__NR_access, [path as u64, int(mode), 0, 0, 0, 0], Touches::Pure) as c_int
    }

    /// readlink(2)
    fn readlink(path: Ptr, buf: Ptr, n: usize) -> isize {
        let args = [path as u64, buf as u64, n as u64, 0, 0, 0];
        make::<false>(g::__NR_readlink, args, Touches::Pure) as isize
    }

    /// readlinkat(2)
    fn readlinkat(dir: c_int, path: Ptr, buf: Ptr, n: usize) -> isize {
        let args = [visible(dir), path as u64, buf as u64, n as u64, 0, 0];
        make::<false>(g::__NR_readlinkat, args, Touches::Pure) as isize
    }
}

#[cfg(test)]
mod tests {
    //! Without a space the functions must do what libc's do.

    use super::*;

    fn ptr<T: ?Sized>(of: &mut T) -> Ptr {
        core::ptr::from_mut(of).cast()
    }

    fn name(text: &core::ffi::CStr) -> Ptr {
        text.as_ptr().cast_mut().cast()
    }

    #[test]
    fn files_are_opened_and_closed() {
        // SAFETY: names are C strings, descriptors the test's own.
        unsafe {
            let dir = open(name(c"/"), libc::O_RDONLY | libc::O_DIRECTORY, 0);
            assert!(dir >= 0);
            let file = openat(dir, name(c"proc/self/stat"), libc::O_RDONLY, 0);
            assert!(file >= 0 && file != dir);
            assert_eq!((close(file), close(file)), (0, -1));
            assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EBADF));
            assert_eq!(
                (fcntl(dir, libc::F_GETFD, 0), fcntl(dir, libc::F_SETFD, 1), fcntl64(dir, libc::F_GETFD, 0)),
                (0, 0, 1)
            );
            let copy = fcntl(dir, libc::F_DUPFD, 500);
            assert_eq!((copy >= 500, close(copy), fcntl(copy, libc::F_GETFL, 0)), (true, 0, -1));
            let again = open64(name(c"/proc/self/stat"), libc::O_RDONLY, 0);
            assert_eq!((again >= 0, openat64(dir, name(c"no such file"), 0, 0)), (true, -1));
            assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::ENOENT));
            assert_eq!((close(again), close(dir)), (0, 0));
        }
    }

    #[test]
    fn numbers_are_taken_and_closed_by_range() {
        // SAFETY: as above.
        unsafe {
            let file = open(name(c"/proc/self/stat"), libc::O_RDONLY, 0);
            assert_eq!((dup2(file, 700), dup3(file, 701, libc::O_CLOEXEC), dup3(file, file, 0)), (700, 701, -1));
            assert_eq!((fcntl(700, libc::F_GETFD, 0), fcntl(701, libc::F_GETFD, 0)), (0, libc::FD_CLOEXEC));
            assert_eq!((close_range(700, 701, 0), close_range(701, 700, 0)), (0, -1));
            assert_eq!((dup2(700, file), dup2(file, file)), (-1, file));
            closefrom(1 << 20);
            assert_eq!((close(701), close(file)), (-1, 0));
        }
    }

    #[test]
    fn files_are_described() {
        // SAFETY: as above; buffers are the test's own.
        unsafe {
            let mut found: [libc::stat; 7] = core::mem::zeroed();
            let [a, b, c, d, e, f, h] = &mut found;
            let fd = open(name(c"/proc/self/exe"), libc::O_RDONLY, 0);
            let link = name(c"/proc/self/exe");
            assert_eq!(
                (stat(link, ptr(a)), stat64(link, ptr(b)), fstat(fd, ptr(c)), fstat64(fd, ptr(d))),
                (0, 0, 0, 0)
            );
            assert_eq!((fstatat(-1, link, ptr(e), 0), fstatat64(-1, link, ptr(f), 0)), (0, 0));
            assert_eq!(lstat(link, ptr(h)), 0);
            assert_eq!(
                found.map(|s| s.st_mode & libc::S_IFMT),
                [[libc::S_IFREG; 6].as_slice(), &[libc::S_IFLNK]].concat()[..]
            );
            assert!(found[..6].iter().all(|s| s.st_ino == found[0].st_ino));
            assert_eq!(lstat64(link, ptr(&mut found[0])), 0);
            assert_eq!(found[0].st_mode & libc::S_IFMT, libc::S_IFLNK);
            close(fd);
        }
    }

    #[test]
    fn links_are_read_and_access_is_checked() {
        let mut text = [0u8; 4096];
        // SAFETY: as above.
        unsafe {
            let n = readlink(name(c"/proc/self/exe"), ptr(&mut text), text.len());
            let own = std::env::current_exe().expect("a path");
            assert_eq!(&text[..n as usize], own.as_os_str().as_encoded_bytes());
            assert_eq!(readlinkat(-1, name(c"/proc/self/exe"), ptr(&mut text), 5), 5);
            assert_eq!((access(name(c"/"), libc::R_OK), access(name(c"/no such file"), libc::F_OK)), (0, -1));
        }
    }
}
