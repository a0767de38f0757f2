//! Where pages go that do not fit in the compressed pool: the devices of `--swap`, and the directory of spill files.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use ebb::stats::{BATCH_BYTES, Period, Writes};

use crate::base::failure::Failure;
use crate::base::size::{human_bytes, is_unitless, parse_size, short_bytes};
use crate::base::sys;
use crate::base::text::printable;
use crate::host::kind::{self, Kind};

/// The environment variable that names the directory when `--swap` does not.
pub const DIRECTORY_VARIABLE: &str = "EBB_TMPDIR";
/// The directory when nobody names one. Unlike `/tmp`, it is on disk on nearly every system.
pub const DIRECTORY_DEFAULT: &str = "/var/tmp";

/// The most directories that a process takes.
const DIRECTORIES_MAX: usize = 8;
/// Highest priority, as for swapon(8).
const PRIO_MAX: u16 = 32767;

/// The least size that a user can give a file: room for a few writes. A smaller one is a unit that somebody forgot.
const SIZE_BYTES_MIN: u64 = 4 * BATCH_BYTES;

const FORMS: &str = "use file, file:DIR or none; to a file, add any of \
                     ,size=SIZE ,prio=N ,kind=ssd|hdd|ram ,discard=pages|once|none ,writes=SIZE/PERIOD";

/// One `--swap` option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Device {
    None,
    File { dir: Option<PathBuf>, options: Options },
}

/// What a device can be told beside its directory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Options {
    /// None means as much as there is room for.
    pub size_bytes: Option<u64>,
    pub prio: Option<u16>,
    /// None means as the kernel says.
    pub kind: Option<Kind>,
    pub discard: Option<Discard>,
    pub writes: Option<Writes>,
}

/// What the file system is told of what nobody uses any more, in the agent's words.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Discard {
    #[default]
    Pages,
    Once,
    None,
}

impl Discard {
    fn of_name(name: &[u8]) -> Option<Self> {
        [Self::Pages, Self::Once, Self::None].into_iter().find(|discard| discard.name().as_bytes() == name)
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Pages => "pages",
            Self::Once => "once",
            Self::None => "none",
        }
    }
}

/// Parses a device: `file[:DIR][,size=SIZE][,prio=N][,kind=KIND][,discard=POLICY][,writes=SIZE/PERIOD]` or `none`. `option`,
/// such as `--swap`, is what stands before it.
pub fn parse_device(option: &str, spec: &OsStr) -> Result<Device, Failure> {
    let what = format!("{option} {}", spec.to_string_lossy());
    if spec == "none" {
        return Ok(Device::None);
    }
    let Some(mut place) = spec.as_bytes().strip_prefix(b"file") else {
        return Err(no_kind(option, spec));
    };
    let mut options = Options::default();
    // Look for options from the right, so that a directory may contain commas.
    while let Some(comma) = place.iter().rposition(|byte| *byte == b',') {
        let text = &place[comma + 1..];
        let is_second = if let Some(size) = text.strip_prefix(b"size=") {
            options.size_bytes.replace(option_size(size, &what)?).is_some()
        } else if let Some(number) = text.strip_prefix(b"prio=") {
            options.prio.replace(option_prio(number, &what)?).is_some()
        } else if let Some(name) = text.strip_prefix(b"kind=") {
            options.kind.replace(option_kind(name, &what)?).is_some()
        } else if let Some(name) = text.strip_prefix(b"discard=") {
            options.discard.replace(option_discard(name, &what)?).is_some()
        } else if let Some(budget) = text.strip_prefix(b"writes=") {
            options.writes.replace(option_writes(budget, &what)?).is_some()
        } else {
            break;
        };
        if is_second {
            let name = text.split_inclusive(|byte| *byte == b'=').next().unwrap_or(text);
            let why = format!("the option `{}` is given twice", String::from_utf8_lossy(name));
            return Err(Failure::ebb(what, why, "remove one of them"));
        }
        place = &place[..comma];
    }
    let dir = match place {
        [] => None,
        [b':', dir @ ..] if !dir.is_empty() => Some(PathBuf::from(OsStr::from_bytes(dir))),
        _ => {
            let why = unknown_option(place).unwrap_or("`file` is not followed by `:DIR` or an option".to_owned());
            return Err(Failure::ebb(what, why, FORMS));
        }
    };
    match dir.as_ref().and_then(|dir| unknown_option(dir.as_os_str().as_bytes()).filter(|_| !dir.exists())) {
        Some(why) => Err(Failure::ebb(what, why, FORMS)),
        None => Ok(Device::File { dir, options }),
    }
}

/// Why the last of several parts at commas is no option, where one of them is written like an option. Elsewhere the commas
/// may be those of a directory's name.
fn unknown_option(place: &[u8]) -> Option<String> {
    let is_like_one = |part: &[u8]| {
        let name = part.iter().take_while(|byte| byte.is_ascii_lowercase()).count();
        name > 0 && part.get(name) == Some(&b'=')
    };
    let parts = || place.split(|byte| *byte == b',').skip(1);
    let last = parts().last()?;
    let has_one = parts().any(is_like_one);
    has_one.then(|| format!("`{}` is not an option of a swap file", printable(&String::from_utf8_lossy(last))))
}

/// The failure for what begins with no kind of device. A directory or a size alone is a frequent one.
fn no_kind(option: &str, spec: &OsStr) -> Failure {
    let text = spec.to_string_lossy();
    let what = format!("{option} {text}");
    if text.starts_with(['/', '.', '~']) {
        let remedy = format!("write {option} file:{text}");
        return Failure::ebb(what, "a directory needs `file:` before it", remedy);
    }
    if parse_size(&text).is_ok() {
        let remedy = format!("write {option} file,size={text}");
        return Failure::ebb(what, "a size needs `file,size=` before it", remedy);
    }
    Failure::ebb(what, "Ebb can swap only to files", FORMS)
}

fn option_kind(name: &[u8], what: &str) -> Result<Kind, Failure> {
    let remedy = "write kind=ssd, kind=hdd or kind=ram, or leave it out: then Ebb asks the kernel";
    Kind::of_name(name)
        .ok_or_else(|| Failure::ebb(what, format!("`{}` is not a kind of disk", String::from_utf8_lossy(name)), remedy))
}

fn option_discard(name: &[u8], what: &str) -> Result<Discard, Failure> {
    let remedy = "write discard=pages, discard=once or discard=none";
    Discard::of_name(name).ok_or_else(|| {
        Failure::ebb(what, format!("`{}` is not a discard policy", String::from_utf8_lossy(name)), remedy)
    })
}

fn option_writes(text: &[u8], what: &str) -> Result<Writes, Failure> {
    let form = "write a size and a period, such as writes=20G/day; a period is a second, minute, hour, day or week";
    let text = String::from_utf8_lossy(text);
    let Some((size, period)) = text.split_once('/') else {
        return Err(Failure::ebb(what, "the write budget has no period", form));
    };
    let bytes = parse_size(size).map_err(|error| Failure::ebb(what, error, form))?;
    let period = Period::of_name(period.as_bytes())
        .ok_or_else(|| Failure::ebb(what, format!("`{period}` is not a period of a write budget"), form))?;
    Writes::new(bytes, period).ok_or_else(|| {
        let least = short_bytes(BATCH_BYTES);
        Failure::ebb(
            what,
            format!("a write budget of {} is less than one write, which has up to {least}", short_bytes(bytes)),
            format!("allow at least {least}, in a longer period"),
        )
    })
}

fn option_size(text: &[u8], what: &str) -> Result<u64, Failure> {
    let text = String::from_utf8_lossy(text);
    let bytes =
        parse_size(&text).map_err(|error| Failure::ebb(what, error, "write a size such as 512M, 4G or 1.5GiB"))?;
    if bytes >= SIZE_BYTES_MIN {
        return Ok(bytes);
    }
    let least = short_bytes(SIZE_BYTES_MIN);
    let unitless = if is_unitless(&text) { "a number without a unit counts bytes, and " } else { "" };
    Err(Failure::ebb(
        what,
        format!("{unitless}a swap file holds at least {least}"),
        format!("give at least size={least}, or leave size= out to use what the disk has"),
    ))
}

fn option_prio(text: &[u8], what: &str) -> Result<u16, Failure> {
    let digits = text.iter().all(u8::is_ascii_digit).then(|| String::from_utf8_lossy(text));
    let prio = digits.and_then(|digits| digits.parse().ok()).filter(|prio| *prio <= PRIO_MAX);
    prio.ok_or_else(|| {
        let remedy = format!("write a number from 0 to {PRIO_MAX}; the highest is filled first");
        Failure::ebb(what, "this is not a valid priority", remedy)
    })
}

/// A write budget, as the user writes it.
pub fn short_writes(writes: Writes) -> String {
    format!("{}/{}", short_bytes(writes.bytes()), writes.period().name())
}

/// The directory of devices that name none.
pub fn default_directory() -> PathBuf {
    std::env::var_os(DIRECTORY_VARIABLE)
        .filter(|dir| !dir.is_empty())
        .map_or_else(|| DIRECTORY_DEFAULT.into(), PathBuf::from)
}

/// What is known about a directory for spill files.
#[derive(Debug)]
pub struct Directory {
    /// Absolute, and free of symbolic links.
    pub path: PathBuf,
    pub free_bytes: u64,
    /// The file system keeps its files in memory.
    pub in_memory: bool,
}

/// Longest path that the agent accepts.
const PATH_BYTES_MAX: usize = 511;

/// Checks that files can be created in `dir`.
pub fn examine(dir: &Path) -> Result<Directory, Failure> {
    let what = format!("spill directory {}", dir.display());
    let remedy = "name a writable directory with --swap file:DIR or EBB_TMPDIR=DIR, or use --swap none";
    let path = std::fs::canonicalize(dir).map_err(|error| Failure::ebb(&what, error, remedy))?;
    if !path.is_dir() {
        return Err(Failure::ebb(&what, "it is not a directory", remedy));
    }
    // The contract separates devices by semicolons and options by commas.
    if path.as_os_str().as_bytes().iter().any(|byte| matches!(byte, b';' | b',' | b'\n')) {
        let remedy = "mount it at a plain path with `mount --bind`, and name that, or name another directory";
        return Err(Failure::ebb(&what, "its path contains a semicolon, a comma or a line break", remedy));
    }
    if path.as_os_str().len() > PATH_BYTES_MAX {
        return Err(Failure::ebb(&what, format!("its path is longer than {PATH_BYTES_MAX} bytes"), remedy));
    }
    try_file(&path).map_err(|error| Failure::ebb(&what, format!("no file can be created in it: {error}"), remedy))?;
    let file_system = sys::file_system(&path).map_err(|error| Failure::ebb(&what, error, remedy))?;
    Ok(Directory { path, free_bytes: file_system.free_bytes, in_memory: file_system.is_in_memory() })
}

/// Creates a nameless file. Where the file system has none, creates a named file and unlinks it at once.
fn try_file(dir: &Path) -> std::io::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    let Err(error) = options.clone().custom_flags(libc::O_TMPFILE).open(dir) else { return Ok(()) };
    if !matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR | libc::ENOENT)) {
        return Err(error);
    }
    let name = dir.join(format!(".ebb-probe-{}", std::process::id()));
    let opened = options.create_new(true).open(&name);
    if opened.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::AlreadyExists) {
        return opened.map(drop);
    }
    // Remove the file even if opening it failed: landlock may allow creating a file but not writing to it.
    let removed = std::fs::remove_file(&name);
    opened.and(removed)
}

/// The devices of a run in the form that the agent reads, and warnings for the user.
#[derive(Debug)]
pub struct Plan {
    /// The value of `EBB_SWAP`.
    pub devices: Vec<u8>,
    /// What the files may hold, as far as there is room for them now.
    pub room_bytes: u64,
    pub warnings: Vec<String>,
}

/// All devices of one directory, merged.
struct Place {
    directory: Directory,
    options: Options,
}

impl Place {
    /// Adds another device in the same directory.
    fn add(&mut self, other: Options) -> Result<(), Failure> {
        let one = self.options;
        let text = |prio: u16| prio.to_string();
        self.options = Options {
            size_bytes: one.size_bytes.zip(other.size_bytes).map(|(one, other)| one.saturating_add(other)),
            prio: self.same("priorities", "priority", [one.prio, other.prio], text)?,
            kind: self.same("kinds", "kind", [one.kind, other.kind], |kind| kind.name().to_owned())?,
            discard: self.same("ways to discard", "way", [one.discard, other.discard], |way| way.name().to_owned())?,
            writes: self.same("write budgets", "budget", [one.writes, other.writes], short_writes)?,
        };
        Ok(())
    }

    /// The value of an option that was given for the directory once or twice. Two values must be the same. `words` name several, `word`
    /// one.
    fn same<T: Copy + PartialEq>(
        &self,
        words: &str,
        word: &str,
        [one, other]: [Option<T>; 2],
        text: impl Fn(T) -> String,
    ) -> Result<Option<T>, Failure> {
        if let (Some(one), Some(other)) = (one, other)
            && one != other
        {
            return Err(Failure::ebb(
                format!("--swap file:{}", self.directory.path.display()),
                format!("it has two {words}, {} and {}", text(one), text(other)),
                format!("give one {word}: all --swap options for a directory make one device"),
            ));
        }
        Ok(one.or(other))
    }

    fn warnings(&self) -> Vec<String> {
        let what = format!("spill directory {}", self.directory.path.display());
        let mut warnings = Vec::new();
        if self.options.size_bytes.is_some_and(|size| size > self.directory.free_bytes) {
            let free = human_bytes(self.directory.free_bytes);
            warnings.push(format!(
                "{what}: only {free} are free, less than the requested size; name another directory with file:DIR"
            ));
        }
        if self.directory.in_memory {
            warnings.push(format!(
                "{what}: it is on a file system in memory, so spilling there saves no RAM; \
                 name a directory on a disk with file:DIR"
            ));
        }
        warnings
    }

    /// Appends its entry in `EBB_SWAP`.
    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"file:");
        out.extend_from_slice(self.directory.path.as_os_str().as_bytes());
        let Options { size_bytes, prio, kind, discard, writes } = self.options;
        out.extend(size_bytes.map(|size| format!(",size={size}").into_bytes()).unwrap_or_default());
        out.extend(prio.map(|prio| format!(",prio={prio}").into_bytes()).unwrap_or_default());
        let kind = kind.unwrap_or_else(|| kind::of_directory(&self.directory.path));
        if kind != Kind::default() {
            out.extend(format!(",kind={}", kind.name()).into_bytes());
        }
        if let Some(discard) = discard.filter(|discard| *discard != Discard::default()) {
            out.extend(format!(",discard={}", discard.name()).into_bytes());
        }
        if let Some(writes) = writes {
            out.extend(format!(",writes={}/{}", writes.bytes(), writes.period().name()).into_bytes());
        }
    }
}

/// Turns the `--swap` options into one device for each directory, in the order in which they are first named. Without
/// any option there is one file, in the default directory.
pub fn plan(devices: &[Device]) -> Result<Plan, Failure> {
    if devices.contains(&Device::None) {
        if devices.len() > 1 {
            return Err(Failure::ebb(
                "--swap none",
                "it cannot be combined with another --swap",
                "give it alone, or leave it out",
            ));
        }
        return Ok(Plan { devices: b"none".to_vec(), room_bytes: 0, warnings: Vec::new() });
    }
    let default = [Device::File { dir: None, options: Options::default() }];
    let mut places: Vec<Place> = Vec::new();
    for device in if devices.is_empty() { &default } else { devices } {
        let Device::File { dir, options } = device else { continue };
        let directory = examine(&dir.clone().unwrap_or_else(default_directory))?;
        if let Some(place) = places.iter_mut().find(|place| place.directory.path == directory.path) {
            place.add(*options)?;
            continue;
        }
        if places.len() == DIRECTORIES_MAX {
            return Err(Failure::ebb(
                "--swap",
                format!("more than {DIRECTORIES_MAX} directories given: {} is one too many", directory.path.display()),
                format!("give at most {DIRECTORIES_MAX}"),
            ));
        }
        places.push(Place { directory, options: *options });
    }
    let mut plan = Plan { devices: Vec::new(), room_bytes: 0, warnings: Vec::new() };
    for (at, place) in places.iter().enumerate() {
        if at > 0 {
            plan.devices.push(b';');
        }
        place.write(&mut plan.devices);
        let free_bytes = place.directory.free_bytes;
        let room_bytes = place.options.size_bytes.map_or(free_bytes, |size| size.min(free_bytes));
        plan.room_bytes = plan.room_bytes.saturating_add(room_bytes);
        plan.warnings.extend(place.warnings());
    }
    Ok(plan)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(spec: &str) -> Result<Device, Failure> {
        parse_device("--swap", OsStr::new(spec))
    }

    fn file(dir: Option<&str>, size_bytes: Option<u64>, prio: Option<u16>) -> Device {
        let options = Options { size_bytes, prio, ..Options::default() };
        Device::File { dir: dir.map(PathBuf::from), options }
    }

    /// A device of a known kind, whatever the kernel says of the directory.
    fn ssd(dir: &str, size_bytes: Option<u64>, prio: Option<u16>) -> Device {
        let options = Options { size_bytes, prio, kind: Some(Kind::Ssd), discard: None, writes: None };
        Device::File { dir: Some(dir.into()), options }
    }

    #[test]
    fn devices_are_read_in_every_form() {
        assert_eq!(device("none"), Ok(Device::None));
        assert_eq!(device("file"), Ok(file(None, None, None)));
        assert_eq!(device("file:/x/y"), Ok(file(Some("/x/y"), None, None)));
        assert_eq!(device("file,size=2G"), Ok(file(None, Some(2 << 30), None)));
        assert_eq!(device("file,prio=0"), Ok(file(None, None, Some(0))));
        assert_eq!(device("file:/a,b,size=64M"), Ok(file(Some("/a,b"), Some(64 << 20), None)));
    }

    #[test]
    fn options_come_in_any_order() {
        let both = Ok(file(Some("/a,size,b"), Some(64 << 20), Some(32767)));
        assert_eq!(device("file:/a,size,b,size=64M,prio=32767"), both);
        assert_eq!(device("file:/a,size,b,prio=32767,size=64M"), both);
    }

    #[test]
    fn other_forms_are_refused_with_the_forms_there_are() {
        for spec in ["", "zram", "file:", "files", "file:,size=1G", "file,", "file,pri=1", "none,size=1G"] {
            assert_eq!(device(spec).unwrap_err().remedy, FORMS, "{spec}");
        }
        assert!(device("file,size=lots").unwrap_err().remedy.starts_with("write a size"));
        assert_eq!(device("file:/x,prio=1,prio=1").unwrap_err().why, "the option `prio=` is given twice");
    }

    #[test]
    fn what_looks_like_an_option_is_one_that_there_is_or_belongs_to_a_directory_that_there_is() {
        for (spec, option) in [
            ("file:/tmp,foo=1", "foo=1"),
            ("file:/tmp,foo=1,size=1G", "foo=1"),
            ("file:/tmp,size=1G,bar", "bar"),
            ("file:/tmp,pri=3", "pri=3"),
            ("file,pri=1", "pri=1"),
        ] {
            let failure = device(spec).unwrap_err();
            assert_eq!(
                failure.to_string(),
                format!("ebb: --swap {spec}: `{option}` is not an option of a swap file; {FORMS}")
            );
        }
        let parent = tempfile::tempdir().unwrap();
        let dir = format!("{}/a,foo=1", parent.path().display());
        std::fs::create_dir(&dir).unwrap();
        assert_eq!(device(&format!("file:{dir},prio=2")), Ok(file(Some(&dir), None, Some(2))));
        assert_eq!(device("file:/no/such,dir"), Ok(file(Some("/no/such,dir"), None, None)));
        assert_eq!(device("file:/no/such,Foo=1"), Ok(file(Some("/no/such,Foo=1"), None, None)));
    }

    #[test]
    fn a_directory_whose_name_has_a_comma_is_found_by_a_plain_link() {
        let (parent, dirs) = directories(1);
        let link = parent.path().join("a,b");
        std::os::unix::fs::symlink(&dirs[0], &link).unwrap();
        assert_eq!(planned(&[ssd(link.to_str().unwrap(), None, None)]), format!("file:{}", dirs[0]));
        let comma = format!("{},c", dirs[0]);
        std::fs::create_dir(&comma).unwrap();
        let failure = plan(&[ssd(&comma, None, None)]).unwrap_err();
        assert!(failure.remedy.starts_with("mount it at a plain path with `mount --bind`"), "{failure}");
    }

    #[test]
    fn a_file_that_holds_next_to_nothing_is_refused() {
        let remedy = "give at least size=1M, or leave size= out to use what the disk has";
        for (size, why) in [
            ("1K", "a swap file holds at least 1M"),
            ("0.9M", "a swap file holds at least 1M"),
            ("4", "a number without a unit counts bytes, and a swap file holds at least 1M"),
        ] {
            let failure = device(&format!("file:/x,size={size}")).unwrap_err();
            assert_eq!(failure.to_string(), format!("ebb: --swap file:/x,size={size}: {why}; {remedy}"));
        }
        assert_eq!(device("file:/x,size=1M"), Ok(file(Some("/x"), Some(1 << 20), None)));
    }

    #[test]
    fn a_directory_or_a_size_alone_is_told_what_belongs_before_it() {
        for (spec, why, remedy) in [
            ("/tmp", "a directory needs `file:` before it", "write --swap file:/tmp"),
            ("4G", "a size needs `file,size=` before it", "write --swap file,size=4G"),
            ("zram", "Ebb can swap only to files", FORMS),
        ] {
            assert_eq!(device(spec).unwrap_err().to_string(), format!("ebb: --swap {spec}: {why}; {remedy}"));
        }
    }

    #[test]
    fn a_priority_is_a_number_that_swapon_takes() {
        for prio in ["", "-1", "+1", "32768", "1 ", "high"] {
            let failure = device(&format!("file,prio={prio}")).unwrap_err();
            assert_eq!(failure.why, "this is not a valid priority", "{prio}");
            assert!(failure.remedy.contains("from 0 to 32767"));
        }
    }

    /// Makes directories `0`, `1`... in a directory of their own.
    fn directories(count: usize) -> (tempfile::TempDir, Vec<String>) {
        let parent = tempfile::tempdir().unwrap();
        let root = parent.path().canonicalize().unwrap();
        let paths: Vec<String> = (0..count).map(|n| root.join(n.to_string()).to_str().unwrap().to_owned()).collect();
        paths.iter().for_each(|path| std::fs::create_dir(path).unwrap());
        (parent, paths)
    }

    fn planned(devices: &[Device]) -> String {
        String::from_utf8(plan(devices).unwrap().devices).unwrap()
    }

    #[test]
    fn a_plan_names_absolute_directories_and_bytes() {
        let (_parent, dirs) = directories(1);
        let devices = [ssd(&format!("{}/../0/.", dirs[0]), Some(4096), Some(7))];
        assert_eq!(planned(&devices), format!("file:{},size=4096,prio=7", dirs[0]));
    }

    #[test]
    fn sizes_of_one_directory_add_up_unless_one_has_no_limit() {
        let (_parent, dirs) = directories(2);
        let (a, b) = (&dirs[0], &dirs[1]);
        let devices = [ssd(a, Some(4096), None), ssd(b, Some(1), None), ssd(a, Some(100), Some(3)), ssd(b, None, None)];
        assert_eq!(planned(&devices), format!("file:{},size=4196,prio=3;file:{}", dirs[0], dirs[1]));
    }

    #[test]
    fn two_priorities_of_one_directory_are_refused() {
        let (_parent, dirs) = directories(1);
        let with = |prio| ssd(&dirs[0], None, Some(prio));
        assert_eq!(plan(&[with(1), with(2)]).unwrap_err().why, "it has two priorities, 1 and 2");
        assert_eq!(planned(&[with(1), with(1)]), format!("file:{},prio=1", dirs[0]));
    }

    #[test]
    fn what_a_device_is_said_to_be_counts_and_not_what_the_kernel_says() {
        let (_parent, dirs) = directories(1);
        let of = |options: &str| planned(&[device(&format!("file:{}{options}", dirs[0])).unwrap()]);
        assert_eq!(of(",kind=hdd,discard=none"), format!("file:{},kind=hdd,discard=none", dirs[0]));
        assert_eq!(of(",discard=pages,kind=ssd"), format!("file:{}", dirs[0]));
        assert_eq!(of(",kind=ram,discard=once"), format!("file:{},kind=ram,discard=once", dirs[0]));
        let by_itself = match kind::of_directory(Path::new(&dirs[0])) {
            Kind::Ssd => String::new(),
            kind => format!(",kind={}", kind.name()),
        };
        assert_eq!(of(""), format!("file:{}{by_itself}", dirs[0]));
    }

    #[test]
    fn a_directory_has_one_kind_and_one_way_to_discard() {
        let (_parent, dirs) = directories(1);
        let plan_of =
            |options: [&str; 2]| plan(&options.map(|option| device(&format!("file:{}{option}", dirs[0])).unwrap()));
        assert_eq!(plan_of([",kind=hdd", ",kind=ssd"]).unwrap_err().why, "it has two kinds, hdd and ssd");
        let failure = plan_of([",discard=none", ",discard=pages"]).unwrap_err();
        assert_eq!(failure.why, "it has two ways to discard, none and pages");
        let both = plan_of([",kind=hdd", ",discard=none"]).unwrap().devices;
        assert_eq!(String::from_utf8(both).unwrap(), format!("file:{},kind=hdd,discard=none", dirs[0]));
    }

    #[test]
    fn a_write_budget_is_a_size_for_a_period() {
        let (_parent, dirs) = directories(1);
        let of = |options: &str| planned(&[device(&format!("file:{},kind=ssd{options}", dirs[0])).unwrap()]);
        assert_eq!(of(",writes=20G/day"), format!("file:{},writes=21474836480/day", dirs[0]));
        assert_eq!(of(",writes=256K/hour,size=4M"), format!("file:{},size=4194304,writes=262144/hour", dirs[0]));
        for period in Period::ALL {
            assert!(of(&format!(",writes=1.5M/{}", period.name())).ends_with(&format!("=1572864/{}", period.name())));
        }
        let device = |budget: &str| device(&format!("file:{},writes={budget}", dirs[0])).unwrap();
        assert_eq!(plan(&[device("1G/day"), device("1024M/day")]).unwrap().warnings.len(), 0);
        let failure = plan(&[device("1G/day"), device("1G/hour")]).unwrap_err();
        assert_eq!(failure.why, "it has two write budgets, 1G/day and 1G/hour");
    }

    #[test]
    fn a_write_budget_that_makes_no_sense_is_one_line() {
        let form = "write a size and a period, such as writes=20G/day; a period is a second, minute, hour, day or week";
        for (budget, why, remedy) in [
            ("0", "the write budget has no period", form),
            ("20G", "the write budget has no period", form),
            ("", "the write budget has no period", form),
            ("0/day", "it is zero", form),
            ("x/day", "it does not begin with a number", form),
            ("20G/year", "`year` is not a period of a write budget", form),
            ("20G/", "`` is not a period of a write budget", form),
            (
                "255K/day",
                "a write budget of 255K is less than one write, which has up to 256K",
                "allow at least 256K, in a longer period",
            ),
        ] {
            let failure = device(&format!("file:/x,writes={budget}")).unwrap_err();
            assert_eq!(failure.to_string(), format!("ebb: --swap file:/x,writes={budget}: {why}; {remedy}"));
        }
        let twice = "the option `writes=` is given twice";
        assert_eq!(device("file,writes=1G/day,writes=1G/day").unwrap_err().why, twice);
    }

    #[test]
    fn a_kind_that_does_not_exist_is_one_line() {
        assert_eq!(
            device("file:/x,kind=floppy").unwrap_err().to_string(),
            "ebb: --swap file:/x,kind=floppy: `floppy` is not a kind of disk; \
             write kind=ssd, kind=hdd or kind=ram, or leave it out: then Ebb asks the kernel"
        );
        for discard in ["twice", ""] {
            let failure = device(&format!("file,discard={discard}")).unwrap_err();
            assert_eq!(failure.remedy, "write discard=pages, discard=once or discard=none", "{discard}");
        }
        assert_eq!(device("file,kind=ssd,kind=ssd").unwrap_err().why, "the option `kind=` is given twice");
    }

    #[test]
    fn more_directories_than_a_process_takes_are_refused() {
        let (_parent, dirs) = directories(DIRECTORIES_MAX + 1);
        let mut devices: Vec<Device> = dirs.iter().map(|dir| file(Some(dir), None, None)).collect();
        let failure = plan(&devices).unwrap_err();
        assert_eq!(
            failure.to_string(),
            format!(
                "ebb: --swap: more than 8 directories given: {} is one too many; give at most 8",
                dirs[DIRECTORIES_MAX]
            )
        );
        devices[DIRECTORIES_MAX] = devices[0].clone();
        assert_eq!(planned(&devices).split(';').count(), DIRECTORIES_MAX);
    }

    #[test]
    fn none_stands_alone() {
        assert_eq!(plan(&[Device::None]).unwrap().devices, b"none");
        let both = [Device::None, file(None, None, None)];
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
        let plan = plan(&[file(dir.path().to_str(), Some(1 << 46), None)]).unwrap();
        assert!(plan.warnings[0].contains("less than the requested size"));
    }

    #[test]
    fn a_directory_in_memory_is_a_warning() {
        let plan = plan(&[file(Some("/dev/shm"), None, None)]).unwrap();
        assert!(plan.warnings[0].contains("in memory"));
    }
}
