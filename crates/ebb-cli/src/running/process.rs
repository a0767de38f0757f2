//! A process that runs under Ebb, as `/proc` shows it.
//!
//! Nothing here changes the process. The process keeps running, so each look shows its own moment only.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::base::failure::Failure;
use crate::host::agent;
use crate::running::counters::Counters;

/// Where the kernel shows processes.
pub const PROC: &str = "/proc";

/// Target of the counters' descriptor, in every process of the tree and in its `ebb run`.
const COUNTERS: &[u8] = b"/memfd:ebb-stats";
/// The beginning of a control socket's file name.
const CONTROL: &[u8] = b".ebb-control-";
/// Target of a userfaultfd's descriptor. Unlike the counters' descriptor, it never survives execve(2).
const USERFAULTFD: &[u8] = b"anon_inode:[userfaultfd]";
/// The name of Ebb's own thread in a process.
const BACKGROUND: &[u8] = b"ebb-reclaim";
/// What the kernel appends to the path of an unlinked file.
const DELETED: &[u8] = b" (deleted)";

/// What a user can do about a process that does not run under Ebb.
const REMEDY: &str = "name a process that runs under `ebb run`, by its PID in `ps`";

/// A process of a tree that runs under Ebb: one of its programs, or the `ebb run` that started it.
#[derive(Debug)]
pub struct Process {
    pub pid: i32,
    dir: PathBuf,
    counters: PathBuf,
}

/// Names process `pid`, as the first part of a failure.
pub fn what(pid: i32) -> String {
    format!("process {pid}")
}

/// The failure for a process that `ebb` could not inspect or ask.
pub fn unreadable(pid: i32, error: &io::Error) -> Failure {
    let remedy = if error.kind() == io::ErrorKind::PermissionDenied {
        "it belongs to another user: run `ebb` as that user or as root"
    } else {
        REMEDY
    };
    Failure::ebb(what(pid), error, remedy)
}

/// Descriptors of the process or thread at `dir`, and their targets. Leaves out descriptors that are closed meanwhile.
fn descriptors(dir: &Path) -> io::Result<Vec<(PathBuf, PathBuf)>> {
    let entries = std::fs::read_dir(dir.join("fd"))?;
    let pairs = entries.flatten().filter_map(|entry| {
        let path = entry.path();
        let target = std::fs::read_link(&path).ok()?;
        Some((path, target))
    });
    Ok(pairs.collect())
}

/// Descriptors of shared files in the process at `dir`. There are several if one `ebb run` started another.
pub fn areas(dir: &Path) -> Vec<PathBuf> {
    let is_area = |target: &Path| target.as_os_str().as_bytes().starts_with(COUNTERS);
    let look = |dir: &Path| {
        let all = descriptors(dir)?;
        Ok(all.into_iter().filter(|(_, target)| is_area(target)).map(|(path, _)| path).collect::<Vec<_>>())
    };
    look_into(dir, look).unwrap_or_default()
}

/// The threads of the process at `dir`.
fn threads(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir.join("task")).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

/// What `look` finds in the process at `dir`. If the first thread has ended, the process shows nothing, at least not to
/// its user. Its other threads do.
fn look_into<T>(dir: &Path, look: impl Fn(&Path) -> io::Result<Vec<T>>) -> io::Result<Vec<T>> {
    let of_process = look(dir);
    match &of_process {
        Ok(found) if !found.is_empty() => return of_process,
        Err(error) if error.kind() != io::ErrorKind::PermissionDenied => return of_process,
        _ => {}
    }
    let of_threads = threads(dir).into_iter().filter_map(|thread| look(&thread).ok());
    of_threads.into_iter().find(|found| !found.is_empty()).map_or(of_process, Ok)
}

/// The file name in a descriptor's target.
fn file_name(target: &Path) -> &[u8] {
    let bytes = target.as_os_str().as_bytes();
    let start = bytes.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    &bytes[start..]
}

impl Process {
    /// Finds process `pid` below `proc`. Fails if it does not belong to a tree under Ebb.
    pub fn find(proc: &Path, pid: i32) -> Result<Self, Failure> {
        let dir = proc.join(pid.to_string());
        let all = look_into(&dir, descriptors).map_err(|error| unreadable(pid, &error))?;
        match all.into_iter().find(|(_, target)| target.as_os_str().as_bytes().starts_with(COUNTERS)) {
            Some((counters, _)) => Ok(Self { pid, dir, counters }),
            None => Err(Failure::ebb(what(pid), "it does not run under Ebb", "name a process started by `ebb run`")),
        }
    }

    /// Every process below `proc` that Ebb manages and that this user may inspect, by number.
    pub fn managed(proc: &Path) -> io::Result<Vec<Self>> {
        let entries = std::fs::read_dir(proc)?.flatten();
        let mut pids: Vec<i32> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        pids.sort_unstable();
        Ok(pids.into_iter().filter_map(|pid| Self::find(proc, pid).ok()).filter(Self::is_managed).collect())
    }

    /// Opens the counters of its tree. Fails if they are of another version.
    pub fn counters(&self) -> Result<Counters, Failure> {
        Counters::open(&self.counters).map_err(|error| self.foreign(&error))
    }

    /// Likewise, for writing too.
    pub fn writable_counters(&self) -> Result<Counters, Failure> {
        Counters::open_writable(&self.counters).map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => unreadable(self.pid, &error),
            _ => self.foreign(&error),
        })
    }

    fn foreign(&self, error: &io::Error) -> Failure {
        Failure::ebb(what(self.pid), error, "use the same version of `ebb` that started it")
    }

    /// Whether the agent manages the process. In `ebb run` itself, and in a program that cannot be managed, only the
    /// descriptor of the counters is inherited.
    pub fn is_managed(&self) -> bool {
        let has_userfaultfd = look_into(&self.dir, descriptors)
            .is_ok_and(|all| all.iter().any(|(_, target)| target.as_os_str().as_bytes() == USERFAULTFD));
        has_userfaultfd && self.has_agent()
    }

    /// Whether the agent is loaded and waits for the process to grow.
    pub fn is_dormant(&self) -> bool {
        !self.is_managed() && self.has_agent()
    }

    fn has_agent(&self) -> bool {
        let Ok(maps) = look_into(&self.dir, |dir| std::fs::read(dir.join("maps"))) else { return false };
        maps.split(|byte| *byte == b'\n').any(|line| {
            let path = line.strip_suffix(DELETED).unwrap_or(line);
            file_name(Path::new(OsStr::from_bytes(path))) == agent::FILE_NAME.as_bytes()
        })
    }

    /// Ebb's own thread in the process, if it runs.
    fn background(&self) -> Option<PathBuf> {
        let is_background = |thread: &PathBuf| {
            std::fs::read(thread.join("comm")).is_ok_and(|name| name.strip_suffix(b"\n") == Some(BACKGROUND))
        };
        threads(&self.dir).into_iter().find(is_background)
    }

    /// Whether Ebb's own thread runs in the process. Without it, the process is too small for anything to be swapped,
    /// and nobody answers requests.
    pub fn has_background(&self) -> bool {
        self.background().is_some()
    }

    /// Control sockets of the process, own or inherited.
    pub fn control_sockets(&self) -> Vec<PathBuf> {
        // Look at Ebb's own thread: other threads may have other descriptors.
        let all = self.background().and_then(|thread| descriptors(&thread).ok());
        let Some(all) = all.or_else(|| look_into(&self.dir, descriptors).ok()) else { return Vec::new() };
        all.into_iter().filter(|(_, target)| file_name(target).starts_with(CONTROL)).map(|(path, _)| path).collect()
    }

    /// Whether a signal or a debugger has stopped the process.
    pub fn is_stopped(&self) -> bool {
        threads(&self.dir)
            .iter()
            .any(|thread| status(thread, "State").is_some_and(|state| state.starts_with(['T', 't'])))
    }
}

/// The value of a line of `status` at `dir`.
fn status(dir: &Path, key: &str) -> Option<String> {
    let status = std::fs::read(dir.join("status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    let value = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    Some(value.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A stand-in for `/proc` with one process in it.
    struct Fake(tempfile::TempDir);

    const PID: i32 = 12;

    impl Fake {
        fn new(links: &[&str]) -> Self {
            let fake = Self(tempfile::tempdir().unwrap());
            fake.link("fd", links);
            fake
        }

        fn link(&self, dir: &str, links: &[&str]) {
            let dir = self.dir().join(dir);
            std::fs::create_dir_all(&dir).unwrap();
            for (fd, target) in links.iter().enumerate() {
                symlink(target, dir.join(fd.to_string())).unwrap();
            }
        }

        fn thread(&self, tid: i32, links: &[&str], name: &str) {
            self.link(&format!("task/{tid}/fd"), links);
            self.write(&format!("task/{tid}/comm"), &format!("{name}\n"));
        }

        fn dir(&self) -> PathBuf {
            self.0.path().join(PID.to_string())
        }

        fn write(&self, name: &str, text: &str) {
            std::fs::write(self.dir().join(name), text).unwrap();
        }

        fn process(&self) -> Process {
            Process::find(self.0.path(), PID).unwrap()
        }
    }

    const UNDER_EBB: &str = "/memfd:ebb-stats (deleted)";
    const USERFAULTFD: &str = "anon_inode:[userfaultfd]";
    const MAPS: &str = "7f00-7f01 r-xp 00000000 fe:00 12   /usr/lib/libc.so.6\n\
                        7f01-7f02 r-xp 00000000 fe:00 13   /opt/my ebb/libebb_agent.so (deleted)\n";

    #[test]
    fn a_process_without_the_counters_does_not_run_under_ebb() {
        let fake = Fake::new(&["/dev/null", "/tmp/ebb-stats"]);
        assert_eq!(
            Process::find(fake.0.path(), PID).unwrap_err().to_string(),
            "ebb: process 12: it does not run under Ebb; name a process started by `ebb run`"
        );
    }

    #[test]
    fn a_process_that_is_not_there_is_named() {
        let failure = Process::find(Path::new(PROC), i32::MAX).unwrap_err();
        assert_eq!(
            failure.to_string(),
            format!("ebb: process {}: No such file or directory (os error 2); {REMEDY}", i32::MAX)
        );
    }

    #[test]
    fn another_users_process_is_told_apart() {
        let refused = io::Error::from_raw_os_error(libc::EACCES);
        assert_eq!(
            unreadable(PID, &refused).to_string(),
            "ebb: process 12: Permission denied (os error 13); it belongs to another user: run `ebb` as that user or as root"
        );
    }

    #[test]
    fn a_managed_process_has_the_agent_and_a_userfaultfd() {
        let fake = Fake::new(&["/dev/null", UNDER_EBB, USERFAULTFD]);
        assert!(!fake.process().is_managed());
        fake.write("maps", "7f00-7f01 r-xp 00000000 fe:00 12   /opt/other-libebb_agent.so\n");
        assert!(!fake.process().is_managed());
        fake.write("maps", MAPS);
        assert!(fake.process().is_managed());
        assert_eq!(Process::managed(fake.0.path()).unwrap()[0].pid, PID);
    }

    #[test]
    fn a_process_that_only_inherited_the_counters_is_not_managed() {
        let fake = Fake::new(&[UNDER_EBB]);
        fake.write("maps", MAPS);
        assert!(!fake.process().is_managed());
        assert!(Process::managed(fake.0.path()).unwrap().is_empty());
    }

    #[test]
    fn control_sockets_are_told_by_their_file_names() {
        let fake = Fake::new(&[UNDER_EBB, "/tmp/.ebb-control-7 (deleted)", "/.ebb-control-/x", "socket:[12]"]);
        assert_eq!(fake.process().control_sockets(), [fake.dir().join("fd/1")]);
    }

    #[test]
    fn a_stop_is_read_from_the_status_of_any_thread() {
        let fake = Fake::new(&[UNDER_EBB]);
        assert!(!fake.process().is_stopped());
        fake.thread(PID, &[], "main");
        fake.write("task/12/status", "State:\tZ (zombie)\n");
        fake.thread(13, &[], "other");
        fake.write("task/13/status", "Name:\tx\nState:\tT (stopped)\nSigIgn:\t0000000000000040\n");
        assert!(fake.process().is_stopped());
        fake.write("task/13/status", "State:\tS (sleeping)\n");
        assert!(!fake.process().is_stopped());
    }

    #[test]
    fn a_process_whose_first_thread_has_ended_is_seen_through_another() {
        let fake = Fake::new(&[]);
        fake.write("maps", "");
        fake.thread(PID, &[], "main");
        fake.write("task/12/maps", "");
        assert_eq!(Process::find(fake.0.path(), PID).unwrap_err().why, "it does not run under Ebb");
        fake.thread(13, &[UNDER_EBB, USERFAULTFD, "/tmp/.ebb-control-7 (deleted)"], "other");
        fake.write("task/13/maps", MAPS);
        let process = fake.process();
        assert!(process.is_managed());
        assert_eq!(process.control_sockets(), [fake.dir().join("task/13/fd/2")]);
    }

    #[test]
    fn the_thread_of_ebb_is_known_by_its_name_and_has_the_control_socket() {
        let fake = Fake::new(&[UNDER_EBB, "/tmp/.ebb-control-6 (deleted)"]);
        fake.thread(PID, &[UNDER_EBB], "ebb-reclaimer");
        assert!(!fake.process().has_background());
        fake.thread(13, &[UNDER_EBB, "/tmp/.ebb-control-7 (deleted)"], "ebb-reclaim");
        assert!(fake.process().has_background());
        assert_eq!(fake.process().control_sockets(), [fake.dir().join("task/13/fd/1")]);
    }
}
