//! Decides before an exec how the new program will get along with the agent.
//!
//! Somebody must count the memory of a program that Ebb cannot manage. So a dormant process takes a place in the tree
//! before it becomes such a program. `ebb run` then measures what is there from outside, and names it. A program that
//! can be managed takes a place by itself, once it has grown.
//!
//! A loader that is not glibc's for this machine does not ignore the agent in `LD_PRELOAD`: musl's ends the program,
//! and the one of 32-bit programs complains on standard error. glibc's own loader complains if it does not find the
//! agent's file, as in another root. Such a program gets an environment without the agent.
//!
//! The file tells whether a program is linked statically or with another loader, is made for another machine, or has
//! the set-user-ID or set-group-ID bit. `ebb` finds further reasons, and programs that this module missed. A script
//! counts as a program that can be managed: most are.
//!
//! The file also tells how much of it the loader will write to before anything of Ebb's runs there (RELRO, 11 MiB of
//! chromium). If that is much, it counts from the exec on, so that other processes make room before it is there.

use crate::base::{calls, user};
use crate::kept::{environment, stats};
use core::sync::atomic::AtomicPtr;
use core::sync::atomic::Ordering::Relaxed;
use ebb::stats::Shared;
use ebb::uapi;
use linux_raw_sys::{errno as e, general as g};

/// The mapped counters. They stay mapped for the next exec, because a vfork child cannot unmap them.
static COUNTERS: AtomicPtr<Shared> = AtomicPtr::new(core::ptr::null_mut());

/// Bytes of a file that are looked at: its header, and more program headers than programs have.
const HEAD_BYTES: usize = 1024;
const ELF_HEADER_BYTES: usize = 64;
const PROGRAM_HEADER_BYTES: usize = 56;
/// More bytes than a loader's path has.
const LOADER_BYTES: usize = 256;
/// Other processes need not make room if the loader writes to less than the minimum. A file that claims more than the
/// maximum is not believed.
const RELOCATED_BYTES_MIN: u64 = 1 << 20;
const RELOCATED_BYTES_MAX: u64 = 1 << 30;

/// How a program gets along with the agent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// It can be managed, or nothing is known.
    Managed,
    /// It cannot be managed, and ignores `LD_PRELOAD`.
    Heedless,
    /// It cannot be managed, and its loader would try to load the agent and fail.
    Foreign,
}

impl Kind {
    /// True if the program should find the agent in its `LD_PRELOAD`. A heedless program may start others that heed it.
    pub fn takes_agent(self) -> bool {
        self != Self::Foreign && agent_is_there()
    }
}

/// What a file tells of the program in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Program {
    pub kind: Kind,
    /// Pages that the loader writes to; 0 if they are few.
    pub relocated_pages: usize,
}

impl Program {
    /// Nothing is known.
    const UNKNOWN: Self = Self { kind: Kind::Managed, relocated_pages: 0 };
}

/// Looks at the file that the process is about to exec: `path`, in the program's memory, from the directory `dir`.
/// Takes a place in the tree if the program cannot be managed, or will use much memory before it is.
pub fn before_exec(dir: i32, path: u64) -> Kind {
    let Program { kind, relocated_pages } = program(dir, path);
    if kind != Kind::Managed || relocated_pages > 0 {
        take_place(relocated_pages);
    }
    kind
}

/// Looks at the file that `path` names from the directory `dir`. An empty path means the file `dir` itself, which
/// execveat allows.
pub fn program(dir: i32, path: u64) -> Program {
    const S_ISUID_OR_S_ISGID: u32 = 0o6000;
    const S_IFMT: u32 = 0o170_000;
    const S_IFREG: u32 = 0o100_000;
    const ANYBODY_EXECUTES: u32 = 0o111;
    const ST_MODE_AT: usize = 3;
    const ST_SIZE_AT: usize = 6;
    let flags = (g::O_RDONLY | g::O_NONBLOCK | g::O_CLOEXEC) as u64;
    // SAFETY: the kernel reads the path, and refuses one that cannot be read.
    let opened = unsafe { calls::raw_syscall(g::__NR_openat as u64, &[dir as u64, path, flags, 0, 0, 0]) };
    // openat finds no file for an empty path.
    let is_dir_itself = opened == -(e::ENOENT as i64) && dir >= 0 && user::read::<u8>(path) == Ok(0);
    let fd = if is_dir_itself { dir } else { opened as i32 };
    if fd < 0 {
        return Program::UNKNOWN;
    }
    let (mut stat, mut head) = ([0u64; 18], [0u8; HEAD_BYTES]);
    // SAFETY: the kernel writes one `struct stat`, 144 bytes.
    let found = unsafe { calls::raw_syscall(g::__NR_fstat as u64, &[fd as u64, stat.as_mut_ptr() as u64, 0, 0, 0, 0]) };
    let mode = stat[ST_MODE_AT] as u32;
    let mut program = Program::UNKNOWN;
    if found == 0 && mode & S_IFMT == S_IFREG {
        let len = read_at(fd, 0, &mut head);
        program = program_of_file(&head[..len], &mut |at, out| read_at(fd, at, out));
        if len > 0 && program.kind == Kind::Managed && mode & S_ISUID_OR_S_ISGID != 0 {
            program.kind = Kind::Heedless;
        }
        // The file may claim anything, and may not be executable.
        if program.relocated_pages as u64 > stat[ST_SIZE_AT] / ebb::PAGE as u64 || mode & ANYBODY_EXECUTES == 0 {
            program.relocated_pages = 0;
        }
    }
    if !is_dir_itself {
        uapi::close(fd);
    }
    program
}

/// Reads from the file at offset `at`. Returns how many bytes there were.
fn read_at(fd: i32, at: u64, out: &mut [u8]) -> usize {
    let args = [fd as u64, out.as_mut_ptr() as u64, out.len() as u64, at, 0, 0];
    // SAFETY: the kernel writes at most the given length.
    let len = unsafe { calls::raw_syscall(g::__NR_pread64 as u64, &args) };
    usize::try_from(len).unwrap_or(0)
}

/// Looks at the file that begins with `head`. `read_at` reads elsewhere in it.
fn program_of_file(head: &[u8], read_at: &mut dyn FnMut(u64, &mut [u8]) -> usize) -> Program {
    const CLASS_AT: usize = 4;
    const CLASS_64: u8 = 2;
    const TYPE_AT: usize = 16;
    const TYPE_DYN: u16 = 3;
    const MACHINE_AT: usize = 18;
    const MACHINE_X86_64: u16 = 62;
    const HEADERS_AT: usize = 32;
    const NR_HEADERS_AT: usize = 56;
    const PT_INTERP: u32 = 3;
    const PT_GNU_RELRO: u32 = 0x6474_e552;
    const OFFSET_AT: usize = 8;
    const FILE_BYTES_AT: usize = 32;
    if !head.starts_with(b"\x7fELF") || head.len() < ELF_HEADER_BYTES {
        return Program::UNKNOWN;
    }
    let half = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
    let only = |kind| Program { kind, ..Program::UNKNOWN };
    if head[CLASS_AT] != CLASS_64 || half(MACHINE_AT) != MACHINE_X86_64 {
        return only(Kind::Foreign);
    }
    // The program headers are elsewhere in the file: nothing is known.
    if head[HEADERS_AT..HEADERS_AT + 8] != (ELF_HEADER_BYTES as u64).to_le_bytes() {
        return Program::UNKNOWN;
    }
    let headers = head[ELF_HEADER_BYTES..].chunks_exact(PROGRAM_HEADER_BYTES);
    let nr_headers = half(NR_HEADERS_AT) as usize;
    let are_all_seen = nr_headers <= headers.len();
    let header_of = |kind: u32| headers.clone().take(nr_headers).find(|header| header[..4] == kind.to_le_bytes());
    let word = |header: &[u8], at: usize| header[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
    // Nearly all of it is pointers. If the program may lie anywhere, the loader writes each of them.
    let relocated = header_of(PT_GNU_RELRO).filter(|_| half(TYPE_AT) == TYPE_DYN);
    let relocated = relocated.map_or(0, |header| word(header, FILE_BYTES_AT));
    let relocated_pages = if (RELOCATED_BYTES_MIN..=RELOCATED_BYTES_MAX).contains(&relocated) {
        relocated as usize / ebb::PAGE
    } else {
        0
    };
    let Some(loader) = header_of(PT_INTERP) else {
        return Program { kind: if are_all_seen { Kind::Heedless } else { Kind::Managed }, relocated_pages };
    };
    let mut path = [0; LOADER_BYTES];
    let len = read_at(word(loader, OFFSET_AT), &mut path);
    let kind = match path[..len].iter().position(|&byte| byte == 0) {
        Some(end) if !is_glibc_loader(&path[..end]) => Kind::Foreign,
        _ => Kind::Managed,
    };
    Program { kind, relocated_pages }
}

/// The same rule as in `ebb`.
fn is_glibc_loader(path: &[u8]) -> bool {
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
    name.starts_with(b"ld-linux") || (name.starts_with(b"ld-2.") && name.ends_with(b".so"))
}

/// False if a loader that looks for the agent would not find it (another root), or could not read it (another user).
/// True if the kernel does not say.
fn agent_is_there() -> bool {
    const R_OK: u64 = 4;
    let args = [g::AT_FDCWD as u64, environment::kept_agent().as_ptr() as u64, R_OK, g::AT_EACCESS as u64, 0, 0];
    // SAFETY: the kernel reads the path, which a NUL follows.
    let ret = unsafe { calls::raw_syscall(g::__NR_faccessat2 as u64, &args) };
    ![e::ENOENT, e::ENOTDIR, e::EACCES].iter().any(|&errno| ret == -(errno as i64))
}

/// Takes a place in the tree for this process. It counts for `pages` pages until somebody has measured it. If there is
/// no free place, `ebb` counts the process among those that have none.
pub fn take_place(pages: usize) {
    let Some(fd) = environment::kept_stats_fd() else { return };
    let mut counters = COUNTERS.load(Relaxed);
    if counters.is_null() {
        let Some(mapped) = stats::map_stats(fd) else { return };
        counters = core::ptr::from_ref(mapped).cast_mut();
        COUNTERS.store(counters, Relaxed);
    }
    // SAFETY: mapped by `map_stats`, and never unmapped; all fields are atomics.
    let counters = unsafe { &*counters };
    ebb::tree::leave_outside(&counters.tree, fd, pages as i64);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(class: u8, machine: u16, kinds: &[u32]) -> Vec<u8> {
        let mut head = vec![0; ELF_HEADER_BYTES];
        head[..4].copy_from_slice(b"\x7fELF");
        head[4] = class;
        head[18..20].copy_from_slice(&machine.to_le_bytes());
        head[32..40].copy_from_slice(&(ELF_HEADER_BYTES as u64).to_le_bytes());
        head[56..58].copy_from_slice(&(kinds.len() as u16).to_le_bytes());
        for kind in kinds {
            head.extend(kind.to_le_bytes());
            head.extend([0; PROGRAM_HEADER_BYTES - 4]);
        }
        head
    }

    /// Looks at a file whose loader, if it names one, is `loader`.
    fn program_with(head: &[u8], loader: &[u8]) -> Program {
        program_of_file(head, &mut |_, out| {
            out[..loader.len()].copy_from_slice(loader);
            loader.len()
        })
    }

    fn kind_with(head: &[u8], loader: &[u8]) -> Kind {
        program_with(head, loader).kind
    }

    /// A program of which the loader writes to `bytes` bytes.
    fn relocated(file_type: u8, bytes: u64) -> Vec<u8> {
        const RELRO: u32 = 0x6474_e552;
        let mut head = program(2, 62, &[3, RELRO]);
        head[16] = file_type;
        let at = ELF_HEADER_BYTES + PROGRAM_HEADER_BYTES + 32;
        head[at..at + 8].copy_from_slice(&bytes.to_le_bytes());
        head
    }

    #[test]
    fn a_file_is_not_believed_more_than_it_has_or_when_it_does_not_run() {
        use std::os::unix::fs::PermissionsExt;
        let path = std::env::temp_dir().join(format!("ebb-leaving-{}", std::process::id()));
        let pages = |bytes: usize, mode: u32| {
            let mut file = relocated(3, 2 << 20);
            file.resize(bytes, 0);
            std::fs::write(&path, file).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
            super::program(g::AT_FDCWD, path.as_ptr() as u64).relocated_pages
        };
        assert_eq!([pages(3 << 20, 0o755), pages(3 << 20, 0o644), pages(4096, 0o755)], [512, 0, 0]);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn what_the_loader_writes_to_is_told_where_it_is_much() {
        let pages = |file_type, bytes| program_with(&relocated(file_type, bytes), GLIBC).relocated_pages;
        assert_eq!(pages(3, 11 << 20), 11 << 8);
        assert_eq!([pages(3, (1 << 20) - 1), pages(3, u64::MAX), pages(2, 11 << 20)], [0; 3]);
    }

    const GLIBC: &[u8] = b"/lib64/ld-linux-x86-64.so.2\0";
    const MUSL: &[u8] = b"/lib/ld-musl-x86_64.so.1\0/ld-linux";

    #[test]
    fn programs_with_a_loader_are_told_from_those_without() {
        assert_eq!(kind_with(&program(2, 62, &[6, 3, 1]), GLIBC), Kind::Managed);
        assert_eq!(kind_with(&program(2, 62, &[1, 1, 4]), GLIBC), Kind::Heedless);
        assert_eq!(kind_with(&program(1, 3, &[3]), GLIBC), Kind::Foreign);
        assert_eq!(kind_with(b"#!/bin/sh\n", GLIBC), Kind::Managed);
        assert_eq!(kind_with(b"", GLIBC), Kind::Managed);
    }

    #[test]
    fn a_loader_that_is_not_glibcs_is_told_by_its_name() {
        let head = program(2, 62, &[6, 3, 1]);
        assert_eq!(kind_with(&head, MUSL), Kind::Foreign);
        assert_eq!(kind_with(&head, b"/lib/x86_64-linux-gnu/ld-2.31.so\0"), Kind::Managed);
        assert_eq!(kind_with(&head, b"/system/bin/linker64\0"), Kind::Foreign);
        // The path cannot be read, or does not end where it should.
        assert_eq!(kind_with(&head, b""), Kind::Managed);
        assert_eq!(kind_with(&head, b"/lib/ld-musl"), Kind::Managed);
    }

    #[test]
    fn a_file_of_which_not_all_headers_are_seen_is_left_alone() {
        let mut head = program(2, 62, &[1; 17]);
        head[56] = 200;
        assert_eq!(kind_with(&head, GLIBC), Kind::Managed);
    }

    #[test]
    fn this_test_has_a_loader_and_a_directory_is_no_program() {
        let at = g::AT_FDCWD;
        assert_eq!(super::program(at, c"/proc/self/exe".as_ptr() as u64).kind, Kind::Managed);
        assert_eq!(super::program(at, c"/proc".as_ptr() as u64), Program::UNKNOWN);
        assert_eq!(super::program(at, 8), Program::UNKNOWN);
    }
}
