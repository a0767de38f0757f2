//! Finding PROGRAM as execvp(3) would.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::base::sys;

/// Where execvp(3) looks when PATH is unset: glibc's `confstr(_CS_PATH)`.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// Why a name leads to nothing that can be executed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResolveError {
    /// No such file: exit status 127.
    NotFound { searched: bool },
    /// There is a file, but it cannot be executed: exit status 126.
    NotExecutable { path: PathBuf, why: String },
}

enum Candidate {
    Absent,
    Refused(String),
    Good,
}

fn look_at(path: &Path) -> Candidate {
    match std::fs::metadata(path) {
        Ok(meta) if meta.is_dir() => Candidate::Refused("it is a directory".to_owned()),
        Ok(meta) if !meta.is_file() => Candidate::Refused("it is not a regular file".to_owned()),
        Ok(meta) if meta.permissions().mode() & 0o111 == 0 => {
            Candidate::Refused("it has no execute permission".to_owned())
        }
        Ok(_) => match sys::may_execute(path) {
            Ok(()) => Candidate::Good,
            Err(error) => Candidate::Refused(error.to_string()),
        },
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => Candidate::Refused(error.to_string()),
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => Candidate::Refused(error.to_string()),
        Err(_) => Candidate::Absent,
    }
}

/// Returns the file that execvp(3) would execute for `program`, with `path` as the value of PATH.
///
/// As in execvp(3), a refused candidate does not end the search. If no better one follows, it decides the error.
pub fn resolve(program: &OsStr, path: Option<&OsStr>) -> Result<PathBuf, ResolveError> {
    if program.is_empty() {
        return Err(ResolveError::NotFound { searched: false });
    }
    let searched = !program.as_bytes().contains(&b'/');
    let candidates: Vec<PathBuf> = if searched {
        let path = path.map_or_else(|| OsString::from(DEFAULT_PATH), OsStr::to_owned);
        path.as_bytes()
            .split(|byte| *byte == b':')
            .map(|dir| if dir.is_empty() { Path::new(".") } else { Path::new(OsStr::from_bytes(dir)) }.join(program))
            .collect()
    } else {
        vec![PathBuf::from(program)]
    };
    let mut refused = None;
    for candidate in candidates {
        match look_at(&candidate) {
            Candidate::Good => return Ok(candidate),
            Candidate::Refused(why) if refused.is_none() => {
                refused = Some(ResolveError::NotExecutable { path: candidate, why });
            }
            Candidate::Refused(_) | Candidate::Absent => {}
        }
    }
    Err(refused.unwrap_or(ResolveError::NotFound { searched }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn file(dir: &Path, name: &str, mode: u32) -> PathBuf {
        let path = dir.join(name);
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    fn path_of(dirs: &[&Path]) -> OsString {
        std::env::join_paths(dirs).unwrap()
    }

    #[test]
    fn the_first_executable_on_the_path_wins_over_earlier_plain_files() {
        let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        file(a.path(), "tool", 0o644);
        let good = file(b.path(), "tool", 0o755);
        assert_eq!(resolve(OsStr::new("tool"), Some(&path_of(&[a.path(), b.path()]))), Ok(good));
    }

    #[test]
    fn a_file_that_cannot_be_executed_is_reported_when_nothing_better_follows() {
        let a = tempfile::tempdir().unwrap();
        let plain = file(a.path(), "tool", 0o644);
        assert_eq!(
            resolve(OsStr::new("tool"), Some(a.path().as_os_str())),
            Err(ResolveError::NotExecutable { path: plain, why: "it has no execute permission".to_owned() })
        );
    }

    #[test]
    fn a_directory_is_not_executable() {
        let a = tempfile::tempdir().unwrap();
        assert!(matches!(resolve(a.path().as_os_str(), None), Err(ResolveError::NotExecutable { .. })));
    }

    #[test]
    fn a_name_with_a_slash_is_not_searched_for() {
        assert_eq!(
            resolve(OsStr::new("./no/such"), Some(OsStr::new("/bin"))),
            Err(ResolveError::NotFound { searched: false })
        );
    }

    #[test]
    fn an_unset_path_means_the_system_directories() {
        assert_eq!(resolve(OsStr::new("sh"), None), Ok(PathBuf::from("/bin/sh")));
    }

    #[test]
    fn a_name_that_is_nowhere_is_not_found() {
        assert_eq!(
            resolve(OsStr::new("no-such-tool"), Some(OsStr::new("/bin:/usr/bin"))),
            Err(ResolveError::NotFound { searched: true })
        );
    }
}
