//! Starts the program: its environment, and what happens between fork and exec.
//!
//! The program inherits from `ebb` everything that it would have inherited without `ebb`: signal mask and dispositions,
//! descriptors, process group, terminal. Before the fork, `ebb` changes two of these, and the child puts both back.
//! SIGCHLD is no longer ignored, because otherwise `ebb` could not wait for the program. And all signals that `ebb`
//! takes in the program's place are blocked, because the program may stop, or signal its group, before `ebb` runs
//! again.

use std::ffi::{CStr, CString, OsStr};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

use crate::base::sys::{self, check};

unsafe extern "C" {
    static environ: *const *const libc::c_char;
}

/// The environment of the program: this process's own, entry by entry unchanged, except for variables set over it.
pub struct Environment(Vec<CString>);

impl Environment {
    /// Copies the environment of this process.
    pub fn inherited() -> Self {
        let mut entries = Vec::new();
        // SAFETY: `environ` is a null-terminated array of C strings, and no other thread changes it: there is none.
        unsafe {
            let mut at = environ;
            while !at.is_null() && !(*at).is_null() {
                entries.push(CStr::from_ptr(*at).to_owned());
                at = at.add(1);
            }
        }
        Self(entries)
    }

    fn value_of<'a>(entry: &'a CStr, name: &str) -> Option<&'a [u8]> {
        entry.to_bytes().strip_prefix(name.as_bytes())?.strip_prefix(b"=")
    }

    /// The value that the program will see.
    pub fn get(&self, name: &str) -> Option<&OsStr> {
        self.0.iter().find_map(|entry| Self::value_of(entry, name)).map(OsStr::from_bytes)
    }

    /// Removes a variable.
    pub fn remove(&mut self, name: &str) {
        self.0.retain(|entry| Self::value_of(entry, name).is_none());
    }

    /// Sets a variable. `value` contains no NUL.
    pub fn set(&mut self, name: &str, value: &[u8]) {
        self.remove(name);
        let entry = [name.as_bytes(), b"=", value].concat();
        // An environment cannot carry a NUL. Values come from paths and numbers, which contain none.
        self.0.extend(CString::new(entry).ok());
    }

    /// Puts the agent last in `LD_PRELOAD`, and removes any other copy of the agent. Other libraries there wrap
    /// functions of libc. With the agent last, the program finds their wrappers, and the wrappers find the agent's
    /// functions, which make the call.
    pub fn preload(&mut self, agent: &Path) {
        let before = self.get("LD_PRELOAD").map(|old| old.as_bytes().to_vec()).unwrap_or_default();
        fn path(library: &[u8]) -> &Path {
            Path::new(OsStr::from_bytes(library))
        }
        let is_this = |library: &&[u8]| path(library) == agent;
        let mut libraries: Vec<&[u8]> = before.split(|byte| *byte == b':' || *byte == b' ').collect();
        libraries.retain(|library| !library.is_empty());
        libraries.retain(|library| is_this(library) || path(library).file_name() != agent.file_name());
        if !libraries.iter().any(is_this) {
            libraries.push(agent.as_os_str().as_bytes());
        }
        self.set("LD_PRELOAD", &libraries.join(&b':'));
    }
}

/// Variables by which systemd says what is meant for the process that it starts: sockets, and a watchdog. Others have to leave
/// them alone, so they name that process, which is `ebb`. They are meant for the program.
const ADDRESSED: [&str; 2] = ["LISTEN_PID", "WATCHDOG_PID"];
/// The digits of the largest PID, and a NUL.
const NUMBER_BYTES: usize = 11;

/// An entry of the environment that names `ebb`, with room for the number of the program.
struct Addressed {
    /// Its place in the environment.
    index: usize,
    entry: Vec<u8>,
    /// Where the number begins.
    digits: usize,
}

impl Environment {
    /// The entries that are addressed to process `pid`.
    fn addressed_to(&self, pid: libc::pid_t) -> Vec<Addressed> {
        let number = pid.to_string();
        let of = |(index, entry): (usize, &CString)| {
            let name = ADDRESSED.into_iter().find(|name| Self::value_of(entry, name) == Some(number.as_bytes()))?;
            let entry = [name.as_bytes(), b"=", &[0; NUMBER_BYTES]].concat();
            Some(Addressed { index, entry, digits: name.len() + 1 })
        };
        self.0.iter().enumerate().filter_map(of).collect()
    }
}

/// Writes a number and a NUL, without what is not safe between fork and exec.
fn write_number(to: &mut [u8; NUMBER_BYTES], number: u32) {
    let digits = number.checked_ilog10().unwrap_or(0) as usize + 1;
    let mut rest = number;
    for digit in to[..digits].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    to[digits] = 0;
}

/// A program ready to be started.
pub struct Launch {
    pub file: CString,
    pub arguments: Vec<CString>,
    pub environment: Environment,
    /// Descriptors that stay open in the program.
    pub kept: Vec<RawFd>,
    /// Whether SIGCHLD was ignored when `ebb` started.
    pub ignored_children: bool,
}

/// Why nothing was started.
#[derive(Debug)]
pub enum LaunchError {
    /// There is no child, or no pipe to it.
    Fork(io::Error),
    /// execve(2) refused.
    Exec(io::Error),
}

fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings.iter().map(|text| text.as_ptr()).chain(std::iter::once(ptr::null())).collect()
}

/// Makes a pipe. Returns the read end and the write end, both close-on-exec.
pub fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: `ends` has room for both descriptors.
    check(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) })?;
    // SAFETY: descriptors just made, which nobody else knows.
    Ok(unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) })
}

impl Launch {
    /// Starts the program, and returns its process number once execve(2) has succeeded. From then on, the signals in
    /// `taken` are blocked in this process.
    pub fn start(&self, taken: &libc::sigset_t) -> Result<libc::pid_t, LaunchError> {
        let arguments = pointers(&self.arguments);
        let mut environment = pointers(&self.environment.0);
        // Like execvp(3), hand a file of unknown format to the shell.
        let shell = c"/bin/sh";
        let by_shell: Vec<*const libc::c_char> =
            [shell.as_ptr(), self.file.as_ptr()].into_iter().chain(arguments.iter().skip(1).copied()).collect();
        let (errors, report) = pipe().map_err(LaunchError::Fork)?;
        // SAFETY: this process has one thread, and the child calls only what is safe between fork and exec.
        let parent = unsafe { libc::getpid() };
        let mut addressed = self.environment.addressed_to(parent);
        let mask = sys::change_mask(libc::SIG_BLOCK, taken);
        // SAFETY: as above.
        let child = check(unsafe { libc::fork() }).map_err(LaunchError::Fork)?;
        if child == 0 {
            for Addressed { index, entry, digits } in &mut addressed {
                let room = entry[*digits..].first_chunk_mut().expect("it was made with this room");
                write_number(room, std::process::id());
                environment[*index] = entry.as_ptr().cast();
            }
            let plan = ChildPlan {
                file: &self.file,
                arguments: &arguments,
                environment: &environment,
                shell,
                by_shell: &by_shell,
                kept: &self.kept,
                parent,
                ignored_children: self.ignored_children,
                mask,
                report: report.as_raw_fd(),
            };
            plan.execute();
        }
        drop(report);
        let mut errno = [0; 4];
        match std::fs::File::from(errors).read_exact(&mut errno) {
            // End of file: the pipe closed on exec.
            Err(_) => Ok(child),
            Ok(()) => {
                // SAFETY: reaps the child, which ends right after its report.
                unsafe { libc::waitpid(child, ptr::null_mut(), 0) };
                Err(LaunchError::Exec(io::Error::from_raw_os_error(i32::from_ne_bytes(errno))))
            }
        }
    }
}

/// What the child needs, prepared before the fork because the child must not allocate.
struct ChildPlan<'a> {
    file: &'a CStr,
    arguments: &'a [*const libc::c_char],
    environment: &'a [*const libc::c_char],
    shell: &'a CStr,
    by_shell: &'a [*const libc::c_char],
    kept: &'a [RawFd],
    parent: libc::pid_t,
    ignored_children: bool,
    mask: libc::sigset_t,
    report: RawFd,
}

impl ChildPlan<'_> {
    fn execute(&self) -> ! {
        // SAFETY: only async-signal-safe calls, on arrays and strings that outlive them and end in null.
        unsafe {
            // If `ebb` dies, nobody accounts for the program or passes signals on to it, so the program must die, too.
            // If the parent is gone already, this request came too late.
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong, 0, 0, 0);
            if libc::getppid() != self.parent {
                libc::_exit(crate::base::failure::STATUS_EBB);
            }
            if self.ignored_children {
                libc::signal(libc::SIGCHLD, libc::SIG_IGN);
            }
            for fd in self.kept {
                libc::fcntl(*fd, libc::F_SETFD, 0);
            }
            libc::sigprocmask(libc::SIG_SETMASK, &self.mask, ptr::null_mut());
            libc::execve(self.file.as_ptr(), self.arguments.as_ptr(), self.environment.as_ptr());
            if *libc::__errno_location() == libc::ENOEXEC {
                libc::execve(self.shell.as_ptr(), self.by_shell.as_ptr(), self.environment.as_ptr());
            }
            let errno = (*libc::__errno_location()).to_ne_bytes();
            libc::write(self.report, errno.as_ptr().cast(), errno.len());
            libc::_exit(crate::base::failure::STATUS_CANNOT_EXECUTE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(entries: &[&str]) -> Environment {
        Environment(entries.iter().map(|entry| CString::new(*entry).unwrap()).collect())
    }

    #[test]
    fn setting_replaces_every_entry_of_the_name_and_keeps_the_others_as_they_are() {
        let mut env = environment(&["A=1", "EBB_RAM=2", "odd entry", "EBB_RAM=3", "EBB_RAMP=4"]);
        env.set("EBB_RAM", b"5");
        let entries: Vec<&str> = env.0.iter().map(|entry| entry.to_str().unwrap()).collect();
        assert_eq!(entries, ["A=1", "odd entry", "EBB_RAMP=4", "EBB_RAM=5"]);
    }

    #[test]
    fn what_names_ebb_names_the_program() {
        let env = environment(&["LISTEN_PID=12", "A=12", "WATCHDOG_PID=120", "WATCHDOG_PID=12", "LISTEN_FDS=12"]);
        let mut addressed = env.addressed_to(12);
        let written = |entry: &mut Addressed| {
            write_number(entry.entry[entry.digits..].first_chunk_mut().unwrap(), 4_194_304);
            (entry.index, CStr::from_bytes_until_nul(&entry.entry).unwrap().to_str().unwrap().to_owned())
        };
        let all: Vec<_> = addressed.iter_mut().map(written).collect();
        assert_eq!(all, [(0, "LISTEN_PID=4194304".to_owned()), (3, "WATCHDOG_PID=4194304".to_owned())]);
        for number in [0, 9, 10, 99, 100, u32::MAX] {
            let mut text = [b'x'; NUMBER_BYTES];
            write_number(&mut text, number);
            assert_eq!(CStr::from_bytes_until_nul(&text).unwrap().to_str().unwrap(), number.to_string());
        }
    }

    #[test]
    fn the_agent_is_preloaded_last_and_once() {
        let mut env = environment(&["LD_PRELOAD=/x/libebb_agent.so /y/libother.so:libthird.so"]);
        env.preload(Path::new("/new/libebb_agent.so"));
        assert_eq!(env.get("LD_PRELOAD"), Some(OsStr::new("/y/libother.so:libthird.so:/new/libebb_agent.so")));
    }

    #[test]
    fn an_agent_that_is_in_the_list_stays_where_it_is() {
        let mut env = environment(&["LD_PRELOAD=/y/libother.so:/new/libebb_agent.so:libthird.so"]);
        env.preload(Path::new("/new/libebb_agent.so"));
        assert_eq!(env.get("LD_PRELOAD"), Some(OsStr::new("/y/libother.so:/new/libebb_agent.so:libthird.so")));
    }

    #[test]
    fn the_agent_is_alone_where_nothing_was_preloaded() {
        let mut env = environment(&["A=1"]);
        env.preload(Path::new("/new/libebb_agent.so"));
        assert_eq!(env.get("LD_PRELOAD"), Some(OsStr::new("/new/libebb_agent.so")));
    }
}
