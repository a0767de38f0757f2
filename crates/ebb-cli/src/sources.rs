//! Options of `ebb run` that are kept elsewhere than on its command line: in files, and in the environment.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
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
    /// Whose home that is. It need not be this user's: `setpriv` and others change the user alone. So a file that must not be read is
    /// none of this user's.
    Home,
}

/// A file's options. None if there is no such file.
fn of_file(path: &Path, whose: Whose) -> Result<Option<Source>, Failure> {
    let name = path.display().to_string();
    match std::fs::read(path) {
        Ok(text) => Ok(Some(Source { words: split(&name, &text)?, name })),
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
    fn what_cannot_be_read_or_split_is_said() {
        let root = tempfile::tempdir().expect("a directory");
        let open = |name: &str| (name == VARIABLE).then(|| "--swap 'file".into());
        let failure = find(root.path(), open).expect_err("it has no end").to_string();
        assert!(failure.starts_with("ebb: EBB_OPTIONS: a quote or a backslash is left open; "), "{failure}");
        std::fs::create_dir_all(root.path().join(SYSTEM_FILE)).expect("a directory");
        let failure = find(root.path(), |_| None).expect_err("it is a directory").to_string();
        assert!(failure.contains("etc/ebb.conf: Is a directory"), "{failure}");
    }
}
