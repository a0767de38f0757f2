//! Where pages go that find no room in the compressed pool: the devices of `--swap`, and the directory of spill files.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::size::{human_bytes, parse_size};
use crate::sys;

/// Names the directory when `--swap` does not.
pub const DIRECTORY_VARIABLE: &str = "EBB_TMPDIR";
/// The directory when nobody names one: on disk on nearly every system, unlike `/tmp`.
pub const DIRECTORY_DEFAULT: &str = "/var/tmp";

const FORMS: &str = "use file, file:DIR, file:DIR,size=SIZE or none";

/// One `--swap`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Device {
    None,
    File { dir: Option<PathBuf>, size_bytes: Option<u64> },
}

/// Reads a `--swap SPEC`: `file[:DIR][,size=SIZE]` or `none`.
pub fn parse_device(spec: &OsStr) -> Result<Device, Failure> {
    let what = format!("--swap {}", spec.to_string_lossy());
    let bytes = spec.as_bytes();
    if bytes == b"none" {
        return Ok(Device::None);
    }
    let Some(rest) = bytes.strip_prefix(b"file") else {
        return Err(Failure::ebb(what, "this is no kind of swap device", FORMS));
    };
    // The size is looked for from the right, so that a directory may contain commas.
    let comma = rest.windows(6).rposition(|window| window == b",size=");
    let (place, size) = comma.map_or((rest, None), |at| (&rest[..at], Some(&rest[at + 6..])));
    let dir = match place {
        [] => None,
        [b':', dir @ ..] if !dir.is_empty() => Some(PathBuf::from(OsStr::from_bytes(dir))),
        _ => return Err(Failure::ebb(what, "after `file` comes `:DIR` or `,size=SIZE`", FORMS)),
    };
    let size_bytes = match size {
        None => None,
        Some(size) => {
            let size = String::from_utf8_lossy(size);
            Some(
                parse_size(&size)
                    .map_err(|error| Failure::ebb(&what, error, "write a size such as 512M, 4G or 1.5GiB"))?,
            )
        }
    };
    Ok(Device::File { dir, size_bytes })
}

/// The directory for devices that name none.
pub fn default_directory() -> PathBuf {
    std::env::var_os(DIRECTORY_VARIABLE)
        .filter(|dir| !dir.is_empty())
        .map_or_else(|| DIRECTORY_DEFAULT.into(), PathBuf::from)
}

/// What is known of a directory for spill files.
#[derive(Debug)]
pub struct Directory {
    /// Absolute, without symbolic links.
    pub path: PathBuf,
    pub free_bytes: u64,
    /// Files there are memory themselves.
    pub in_memory: bool,
}

/// Longest path that the agent takes.
const PATH_BYTES_MAX: usize = 511;

const TMPFS_MAGIC: i64 = 0x0102_1994;
const RAMFS_MAGIC: i64 = 0x8584_58f6;

/// Checks that files can be made in `dir`.
pub fn examine(dir: &Path) -> Result<Directory, Failure> {
    let what = format!("spill directory {}", dir.display());
    let remedy = "name one that can be written with --swap file:DIR or EBB_TMPDIR=DIR, or use --swap none";
    let path = std::fs::canonicalize(dir).map_err(|error| Failure::ebb(&what, error, remedy))?;
    if !path.is_dir() {
        return Err(Failure::ebb(&what, "it is not a directory", remedy));
    }
    // The contract separates devices by semicolons and options by commas.
    if path.as_os_str().as_bytes().iter().any(|byte| matches!(byte, b';' | b',' | b'\n')) {
        return Err(Failure::ebb(&what, "its path contains a semicolon, a comma or a line break", remedy));
    }
    if path.as_os_str().len() > PATH_BYTES_MAX {
        return Err(Failure::ebb(&what, format!("its path is longer than {PATH_BYTES_MAX} bytes"), remedy));
    }
    try_file(&path).map_err(|error| Failure::ebb(&what, format!("no file can be made in it: {error}"), remedy))?;
    let file_system = sys::file_system(&path).map_err(|error| Failure::ebb(&what, error, remedy))?;
    Ok(Directory {
        path,
        free_bytes: file_system.free_bytes,
        in_memory: matches!(file_system.magic, TMPFS_MAGIC | RAMFS_MAGIC),
    })
}

/// Makes a nameless file, or a named one that is unlinked at once where the file system knows no nameless ones.
fn try_file(dir: &Path) -> std::io::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    let Err(error) = options.clone().custom_flags(libc::O_TMPFILE).open(dir) else { return Ok(()) };
    if !matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR | libc::ENOENT)) {
        return Err(error);
    }
    let name = dir.join(format!(".ebb-probe-{}", std::process::id()));
    options.create_new(true).open(&name)?;
    std::fs::remove_file(&name)
}

/// The devices of a run as the agent is told them, and what the user should know of them.
#[derive(Debug)]
pub struct Plan {
    /// `EBB_SWAP`.
    pub devices: Vec<u8>,
    pub warnings: Vec<String>,
    /// For the verbose account.
    pub directories: Vec<PathBuf>,
}

/// Resolves the `--swap` options. No option means one file in the default directory.
pub fn plan(devices: &[Device]) -> Result<Plan, Failure> {
    let mut plan = Plan { devices: Vec::new(), warnings: Vec::new(), directories: Vec::new() };
    if devices.contains(&Device::None) {
        if devices.len() > 1 {
            return Err(Failure::ebb(
                "--swap none",
                "it stands beside another --swap",
                "give it alone, or leave it out",
            ));
        }
        plan.devices = b"none".to_vec();
        return Ok(plan);
    }
    let default = [Device::File { dir: None, size_bytes: None }];
    for device in if devices.is_empty() { &default } else { devices } {
        let Device::File { dir, size_bytes } = device else { continue };
        let directory = examine(&dir.clone().unwrap_or_else(default_directory))?;
        if let Some(other) = plan.directories.first().filter(|other| **other != directory.path) {
            return Err(Failure::ebb(
                "--swap",
                format!("it names two directories, {} and {}", other.display(), directory.path.display()),
                "give one: a process spills into one directory",
            ));
        }
        if !plan.devices.is_empty() {
            plan.devices.push(b';');
        }
        plan.devices.extend_from_slice(b"file:");
        plan.devices.extend_from_slice(directory.path.as_os_str().as_bytes());
        if let Some(size) = size_bytes {
            plan.devices.extend_from_slice(format!(",size={size}").as_bytes());
            if *size > directory.free_bytes {
                plan.warnings.push(format!(
                    "spill directory {}: {} are free, less than the size asked for; name another with --swap file:DIR",
                    directory.path.display(),
                    human_bytes(directory.free_bytes)
                ));
            }
        }
        if directory.in_memory {
            plan.warnings.push(format!(
                "spill directory {}: it is a file system in memory, so what is spilled there saves nothing; \
                 name one on a disk with --swap file:DIR",
                directory.path.display()
            ));
        }
        plan.directories.push(directory.path);
    }
    Ok(plan)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(spec: &str) -> Result<Device, Failure> {
        parse_device(OsStr::new(spec))
    }

    fn file(dir: Option<&str>, size_bytes: Option<u64>) -> Result<Device, Failure> {
        Ok(Device::File { dir: dir.map(PathBuf::from), size_bytes })
    }

    #[test]
    fn devices_are_read_in_every_form() {
        assert_eq!(device("none"), Ok(Device::None));
        assert_eq!(device("file"), file(None, None));
        assert_eq!(device("file:/x/y"), file(Some("/x/y"), None));
        assert_eq!(device("file,size=2G"), file(None, Some(2 << 30)));
        assert_eq!(device("file:/a,b,size=64M"), file(Some("/a,b"), Some(64 << 20)));
    }

    #[test]
    fn other_forms_are_refused_with_the_forms_there_are() {
        for spec in ["", "zram", "file:", "files", "file:,size=1G", "none,size=1G"] {
            assert_eq!(device(spec).unwrap_err().remedy, FORMS, "{spec}");
        }
        assert!(device("file,size=lots").unwrap_err().remedy.starts_with("write a size"));
    }

    #[test]
    fn a_plan_names_absolute_directories_and_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap();
        let devices = [
            Device::File { dir: Some(dir.path().join(".")), size_bytes: Some(4096) },
            Device::File { dir: Some(dir.path().into()), size_bytes: None },
        ];
        let plan = plan(&devices).unwrap();
        let text = format!("file:{0},size=4096;file:{0}", real.display());
        assert_eq!(plan.devices, text.as_bytes());
    }

    #[test]
    fn two_directories_are_refused_because_only_one_would_be_used() {
        let file = |dir: &str| Device::File { dir: Some(dir.into()), size_bytes: None };
        assert_eq!(
            plan(&[file("/dev/shm"), file("/tmp")]).unwrap_err().why,
            "it names two directories, /dev/shm and /tmp"
        );
    }

    #[test]
    fn none_stands_alone() {
        assert_eq!(plan(&[Device::None]).unwrap().devices, b"none");
        let both = [Device::None, Device::File { dir: None, size_bytes: None }];
        assert_eq!(plan(&both).unwrap_err().what, "--swap none");
    }

    #[test]
    fn a_directory_that_is_not_there_is_refused() {
        let failure = examine(Path::new("/no/such/directory")).unwrap_err();
        assert_eq!(failure.what, "spill directory /no/such/directory");
        assert!(failure.remedy.contains("--swap file:DIR"));
    }

    #[test]
    fn a_size_larger_than_the_disk_is_a_warning() {
        let dir = tempfile::tempdir().unwrap();
        let plan = plan(&[Device::File { dir: Some(dir.path().into()), size_bytes: Some(1 << 46) }]).unwrap();
        assert!(plan.warnings[0].contains("less than the size asked for"));
    }

    #[test]
    fn a_directory_in_memory_is_a_warning() {
        let plan = plan(&[Device::File { dir: Some("/dev/shm".into()), size_bytes: None }]).unwrap();
        assert!(plan.warnings[0].contains("in memory"));
    }
}
