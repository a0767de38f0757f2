//! Options of `ebb run` that are kept elsewhere than on its command line: in files, and in the environment.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::base::failure::Failure;

/// The variable that has options.
const VARIABLE: &str = "EBB_OPTIONS";
/// The file for all users.
const SYSTEM_FILE: &str = "etc/ebb.conf";
/// The file of one user, below the directory for such files.
const USER_FILE: &str = "ebb/config";

/// A place that has options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// What messages call it.
    pub name: String,
    pub words: Vec<OsString>,
}

/// The words of a text, as a shell splits it: by blanks and lines, with quotes, and without what follows a `#`.
fn split(name: &str, text: &[u8]) -> Result<Vec<OsString>, Failure> {
    let words = shlex::bytes::split(text).ok_or_else(|| {
        Failure::ebb(name, "a quote or a backslash is left open", "write options as on the command line of `ebb run`")
    })?;
    Ok(words.into_iter().map(OsString::from_vec).collect())
}

/// Whose file it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whose {
    System,
    /// A home need not be this user's: sudo and setpriv may change the user alone. So a file there counts only if this user owns it;
    /// root, for one, must not obey anybody else's.
    Home,
}

/// The longest file.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// Reads a file. None if it is not this user's.
fn read(path: &Path, whose: Whose) -> io::Result<Option<Vec<u8>>> {
    // What waits to be written to, or is a terminal, must not hold up or take over anything.
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = std::fs::File::options().read(true).custom_flags(flags).open(path)?;
    let meta = file.metadata()?;
    // SAFETY: asks only.
    if whose == Whose::Home && (meta.uid() != unsafe { libc::geteuid() } || !meta.is_file()) {
        return Ok(None);
    }
    if !meta.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut text = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut text)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(io::Error::other("it is longer than 64 KiB"));
    }
    Ok(Some(text))
}

/// A file's options. None if there is no such file.
fn of_file(path: &Path, whose: Whose) -> Result<Option<Source>, Failure> {
    let name = path.display().to_string();
    match read(path, whose) {
        Ok(text) => text.map(|text| Ok(Source { words: split(&name, &text)?, name })).transpose(),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied && whose == Whose::Home => Ok(None),
        Err(error) => Err(Failure::ebb(name, error, "make it a file that you may read, or remove it")),
    }
}

/// Where the user's own file is: as the XDG Base Directory Specification says.
fn user_file(env: &impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let absolute = |name: &str| env(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let directory = absolute("XDG_CONFIG_HOME").or_else(|| absolute("HOME").map(|home| home.join(".config")))?;
    Some(directory.join(USER_FILE))
}

/// All places that have options, the one that yields to the others first.
fn find(root: &Path, env: impl Fn(&str) -> Option<OsString>) -> Result<Vec<Source>, Failure> {
    let mut all = Vec::new();
    all.extend(of_file(&root.join(SYSTEM_FILE), Whose::System)?);
    if let Some(path) = user_file(&env) {
        all.extend(of_file(&path, Whose::Home)?);
    }
    if let Some(text) = env(VARIABLE) {
        all.push(Source { name: VARIABLE.to_owned(), words: split(VARIABLE, OsStr::as_bytes(&text))? });
    }
    all.retain(|source| !source.words.is_empty());
    Ok(all)
}

/// The places on this host and of this process.
pub fn here() -> Result<Vec<Source>, Failure> {
    find(Path::new("/"), |name| std::env::var_os(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(source: &Source) -> Vec<&str> {
        source.words.iter().map(|word| word.to_str().expect("text")).collect()
    }

    #[test]
    fn the_system_yields_to_the_user_and_files_to_the_environment() {
        let root = tempfile::tempdir().expect("a directory");
        let home = root.path().join("home");
        std::fs::create_dir_all(root.path().join("etc")).expect("a directory");
        std::fs::create_dir_all(home.join(".config/ebb")).expect("a directory");
        std::fs::write(root.path().join(SYSTEM_FILE), "# for all\n--ram 75% # of the limit\n\n--swap 'file:/a b'\n")
            .expect("a file");
        std::fs::write(home.join(".config/ebb/config"), "-q\n").expect("a file");
        let env = |name: &str| match name {
            "HOME" => Some(home.clone().into_os_string()),
            VARIABLE => Some("--idle=10m\t-v".into()),
            _ => None,
        };
        let all = find(root.path(), env).expect("options");
        assert_eq!(
            all.iter().map(words).collect::<Vec<_>>(),
            [vec!["--ram", "75%", "--swap", "file:/a b"], vec!["-q"], vec!["--idle=10m", "-v"]]
        );
        assert_eq!((all[2].name.as_str(), all[1].name.ends_with("/.config/ebb/config")), (VARIABLE, true));
        // The specification's own variable comes before HOME.
        let other = |name: &str| if name == "XDG_CONFIG_HOME" { Some("/none".into()) } else { env(name) };
        assert_eq!(find(root.path(), other).expect("options").len(), 2);
    }

    #[test]
    fn nothing_is_no_place() {
        let root = tempfile::tempdir().expect("a directory");
        let env = |name: &str| (name == VARIABLE).then(|| " ".into());
        assert_eq!(find(root.path(), env), Ok(Vec::new()));
        assert_eq!(find(root.path(), |name| (name == "HOME").then(|| "relative".into())), Ok(Vec::new()));
    }

    #[test]
    fn a_file_of_somebody_else_or_of_another_kind_is_no_users_file() {
        let root = tempfile::tempdir().expect("a directory");
        let path = root.path().join("ebb/config");
        let env = |name: &str| (name == "XDG_CONFIG_HOME").then(|| root.path().as_os_str().to_owned());
        std::fs::create_dir(root.path().join("ebb")).expect("a directory");
        std::fs::write(&path, "-q").expect("a file");
        assert_eq!(find(root.path(), env).expect("options").len(), 1);
        // Only root can give a file away.
        if std::os::unix::fs::chown(&path, Some(65534), None).is_ok() {
            assert_eq!(find(root.path(), env), Ok(Vec::new()));
        }
        std::fs::remove_file(&path).expect("it is there");
        let name = std::ffi::CString::new(path.as_os_str().as_bytes()).expect("a name");
        // SAFETY: makes a file.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        assert_eq!(find(root.path(), env), Ok(Vec::new()));
    }

    #[test]
    fn what_cannot_be_read_or_split_is_said() {
        let root = tempfile::tempdir().expect("a directory");
        let open = |name: &str| (name == VARIABLE).then(|| "--swap 'file".into());
        let failure = find(root.path(), open).expect_err("it has no end").to_string();
        assert!(failure.starts_with("ebb: EBB_OPTIONS: a quote or a backslash is left open; "), "{failure}");
        std::fs::create_dir_all(root.path().join(SYSTEM_FILE)).expect("a directory");
        let failure = find(root.path(), |_| None).expect_err("it is a directory").to_string();
        assert!(failure.contains("etc/ebb.conf: it is not a regular file"), "{failure}");
    }
}
