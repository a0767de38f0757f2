//! The environment variables by which `ebb run` tells the agent what to do (`docs/contract.md`).

use core::ffi::CStr;
use ebb::stats::Writes;
use ebb::uapi::fd::Identity;
use ebb::{DEVICES_MAX, Discard, Force, Kind, ReclaimTo, SwapSpec};

/// Longest path of a directory, with its NUL.
pub const PATH_BYTES_MAX: usize = ebb::NAME_BYTES_MAX;
/// Directory of the spill file when nobody names one.
const SPILL_DIR_DEFAULT: &CStr = c"/var/tmp";
/// Largest spill file when nobody says: more than any directory is likely to hold.
const SPILL_BYTES_DEFAULT: u64 = 1 << 40;

/// The part of the environment that must be known at once, before the settings are read.
#[derive(Clone, Copy)]
pub struct Early<'a> {
    pub ram_bytes: u64,
    pub stats_fd: Option<i32>,
    pub life_ends: Option<Ends>,
    /// Standard error of `ebb`; none when `ebb` had none, or nobody says.
    pub stderr: Option<Identity>,
    /// The sites to patch in libc, as text; empty when there are none.
    pub sites: &'a [u8],
    /// The size of RAM that the program is shown; none for the truth.
    pub show_ram_bytes: Option<u64>,
    /// The process is managed from its start.
    pub no_dormant: bool,
    /// The process becomes managed when it has grown only a little.
    pub is_early: bool,
}

impl<'a> Early<'a> {
    /// Reads the variables of the contract. None without a budget. The error is the name of a variable that makes no sense.
    pub fn of(vars: impl Iterator<Item = &'a [u8]>) -> Result<Option<Self>, &'static str> {
        let mut this = Self {
            ram_bytes: 0,
            stats_fd: None,
            life_ends: None,
            stderr: None,
            sites: &[],
            show_ram_bytes: None,
            no_dormant: false,
            is_early: false,
        };
        let mut has_ram = false;
        for var in vars {
            let Some(equals) = var.iter().position(|&c| c == b'=') else { continue };
            let (name, value) = (&var[..equals], &var[equals + 1..]);
            match name {
                b"EBB_RAM" => (this.ram_bytes, has_ram) = (number(value).ok_or("EBB_RAM")?, true),
                b"EBB_STATS_FD" => {
                    let fd = number(value).and_then(|fd| i32::try_from(fd).ok());
                    this.stats_fd = Some(fd.ok_or("EBB_STATS_FD")?);
                }
                b"EBB_LIFE_FDS" => this.life_ends = Some(Ends::parse(value).ok_or("EBB_LIFE_FDS")?),
                b"EBB_STDERR" => this.stderr = identity(value),
                b"EBB_SITES" => this.sites = value,
                b"EBB_SHOW_RAM" => {
                    this.show_ram_bytes = Some(number(value).ok_or("EBB_SHOW_RAM")?).filter(|bytes| *bytes > 0);
                    // A small process makes most of its calls unseen.
                    this.no_dormant |= this.show_ram_bytes.is_some();
                }
                b"EBB_FORCE" => {
                    for word in value.split(|&c| c == b',') {
                        this.no_dormant |= word == b"no-dormant";
                        this.is_early |= word == b"early";
                    }
                }
                _ => {}
            }
        }
        Ok(has_ram.then_some(this))
    }
}

/// Parses `DEVICE,INODE`; none for anything else, as for a standard error that is closed.
fn identity(text: &[u8]) -> Option<Identity> {
    let comma = text.iter().position(|&c| c == b',')?;
    Some(Identity(number(&text[..comma])?, number(&text[comma + 1..])?))
}

/// A variable that makes no sense, with the entry that does not if it is a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Misread<'a> {
    pub name: &'static str,
    pub entry: &'a [u8],
}

impl From<&'static str> for Misread<'_> {
    fn from(name: &'static str) -> Self {
        Self { name, entry: b"" }
    }
}

/// What the environment says, for a process that becomes managed.
pub struct Settings {
    pub ram_bytes: Option<u64>,
    pub stats_fd: Option<i32>,
    pub force: Force,
    /// Whether hot calls are answered where the program calls libc.
    pub interposes: bool,
    devices: [Device; DEVICES_MAX],
    nr_devices: usize,
    default_dir: Path,
}

/// One device. Without a directory of its own it is in the default one.
#[derive(Clone, Copy)]
struct Device {
    dir: Path,
    bytes: u64,
    priority: Option<i16>,
    kind: Kind,
    discard: Discard,
    writes: Option<Writes>,
}

impl Device {
    /// A device in the default directory, as everything is where nobody says otherwise.
    const DEFAULT: Self = Self {
        dir: Path::EMPTY,
        bytes: SPILL_BYTES_DEFAULT,
        priority: None,
        kind: SwapSpec::DEFAULT.kind,
        discard: SwapSpec::DEFAULT.discard,
        writes: SwapSpec::DEFAULT.writes,
    };
}

/// One device as text: `file[:DIR][,size=BYTES][,prio=N][,kind=KIND][,discard=POLICY][,writes=BYTES/PERIOD]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceText<'a> {
    /// Empty for the default directory.
    pub dir: &'a [u8],
    pub bytes: Option<u64>,
    pub priority: Option<i16>,
    pub kind: Kind,
    pub discard: Discard,
    pub writes: Option<Writes>,
}

impl<'a> DeviceText<'a> {
    /// Parses a device; none when the text makes no sense.
    pub fn parse(text: &'a [u8]) -> Option<Self> {
        let mut parts = text.strip_prefix(b"file")?.split(|&c| c == b',');
        let dir = match parts.next()? {
            [] => &[][..],
            [b':', dir @ ..] if !dir.is_empty() && dir.len() < PATH_BYTES_MAX => dir,
            _ => return None,
        };
        let (kind, discard) = (Kind::default(), Discard::default());
        let mut this = Self { dir, bytes: None, priority: None, kind, discard, writes: None };
        for option in parts {
            if let Some(bytes) = option.strip_prefix(b"size=") {
                this.bytes = Some(number(bytes)?);
            } else if let Some(kind) = option.strip_prefix(b"kind=") {
                this.kind = Kind::of_name(kind)?;
            } else if let Some(discard) = option.strip_prefix(b"discard=") {
                this.discard = Discard::of_name(discard)?;
            } else if let Some(writes) = option.strip_prefix(b"writes=") {
                this.writes = Some(Writes::parse(writes)?);
            } else {
                let priority = number(option.strip_prefix(b"prio=")?)?;
                this.priority = Some(i16::try_from(priority).ok()?);
            }
        }
        Some(this)
    }

    /// Largest size of the file, in bytes.
    pub fn bytes_max(&self) -> u64 {
        self.bytes.unwrap_or(SPILL_BYTES_DEFAULT)
    }
}

/// A demand for memory as text: `BYTES[ pool| device][ shared]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Demand {
    pub bytes: u64,
    pub to: ReclaimTo,
    /// Memory that other processes hold too, since a fork, is given up as well.
    pub shared: bool,
}

impl Demand {
    /// Parses a demand; none when the text makes no sense.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let mut words = text.split(|&c| c == b' ');
        let mut this = Self { bytes: number(words.next()?)?, to: ReclaimTo::Usual, shared: false };
        for word in words {
            match word {
                b"pool" => this.to = ReclaimTo::Pool,
                b"cold" => this.to = ReclaimTo::Cold,
                b"device" => this.to = ReclaimTo::Device,
                b"shared" => this.shared = true,
                _ => return None,
            }
        }
        Some(this)
    }
}

#[derive(Clone, Copy)]
struct Path {
    bytes: [u8; PATH_BYTES_MAX],
    len: usize,
}

impl Path {
    const EMPTY: Self = Self { bytes: [0; PATH_BYTES_MAX], len: 0 };

    fn set(&mut self, path: &[u8]) -> Option<()> {
        // One byte stays for the NUL.
        self.bytes[..PATH_BYTES_MAX - 1].get_mut(..path.len())?.copy_from_slice(path);
        self.bytes[path.len()] = 0;
        self.len = path.len();
        Some(())
    }

    fn get(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or_default()
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            ram_bytes: None,
            stats_fd: None,
            force: Force::default(),
            interposes: true,
            devices: [Device::DEFAULT; DEVICES_MAX],
            nr_devices: 1,
            default_dir: Path::EMPTY,
        }
    }
}

impl Settings {
    /// Takes one variable into account.
    pub fn offer<'a>(&mut self, var: &'a [u8]) -> Result<(), Misread<'a>> {
        let Some(equals) = var.iter().position(|&c| c == b'=') else { return Ok(()) };
        let (name, value) = (&var[..equals], &var[equals + 1..]);
        match name {
            b"EBB_RAM" => self.ram_bytes = Some(number(value).ok_or("EBB_RAM")?),
            b"EBB_SWAP" => self.swap(value).ok_or("EBB_SWAP")?,
            b"EBB_TMPDIR" => self.default_dir.set(value).ok_or("EBB_TMPDIR")?,
            b"EBB_STATS_FD" => {
                let fd = number(value).and_then(|fd| i32::try_from(fd).ok());
                self.stats_fd = Some(fd.ok_or("EBB_STATS_FD")?);
            }
            b"EBB_FORCE" => self.force(value).map_err(|entry| Misread { name: "EBB_FORCE", entry })?,
            _ => {}
        }
        Ok(())
    }

    /// Parses `;`-separated devices, or `none`.
    fn swap(&mut self, value: &[u8]) -> Option<()> {
        self.nr_devices = 0;
        for text in value.split(|&c| c == b';').filter(|text| !text.is_empty() && *text != b"none") {
            let text = DeviceText::parse(text)?;
            let device = self.devices.get_mut(self.nr_devices)?;
            device.dir.set(text.dir)?;
            (device.bytes, device.priority) = (text.bytes_max(), text.priority);
            (device.kind, device.discard, device.writes) = (text.kind, text.discard, text.writes);
            self.nr_devices += 1;
        }
        Some(())
    }

    /// The error is the entry that there is not.
    fn force<'a>(&mut self, value: &'a [u8]) -> Result<(), &'a [u8]> {
        for word in value.split(|&c| c == b',').filter(|word| !word.is_empty()) {
            match word {
                b"no-interpose" => self.interposes = false,
                // Managed memory never has huge pages. The other two words are looked at when the process begins.
                b"no-dormant" | b"early" => {}
                word if self.force.add(word) => {}
                unknown => return Err(unknown),
            }
        }
        Ok(())
    }

    /// Writes the devices to `out`, as the engine takes them. Returns how many there are.
    pub fn devices<'a>(&'a self, out: &mut [SwapSpec<'a>; DEVICES_MAX]) -> usize {
        for (to, device) in out.iter_mut().zip(&self.devices[..self.nr_devices]) {
            let dir = match (device.dir.get(), self.default_dir.get()) {
                ([], []) => SPILL_DIR_DEFAULT,
                ([], _) => self.default_dir.c_str(),
                _ => device.dir.c_str(),
            };
            let Device { bytes, priority, kind, discard, writes, .. } = *device;
            *to = SwapSpec { dir, bytes, priority, kind, discard, writes };
        }
        self.nr_devices
    }
}

/// The lifeline's two descriptors in this process, the pipe's read end and the keeper, with their files' inode numbers;
/// then the process that holds the pipe's other end, and its descriptor there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ends {
    pub line: i32,
    pub keeper: i32,
    pub line_inode: u64,
    pub keeper_inode: u64,
    pub holder: i32,
    pub held: i32,
}

impl Ends {
    /// Parses six numbers, `,`-separated, in the order of the fields.
    fn parse(text: &[u8]) -> Option<Self> {
        let mut parts = text.split(|&c| c == b',').map(number);
        let mut next = || parts.next().flatten();
        let fd = |n: Option<u64>| n.and_then(|fd| i32::try_from(fd).ok());
        let (line, keeper) = (fd(next())?, fd(next())?);
        let (line_inode, keeper_inode) = (next()?, next()?);
        let (holder, held) = (fd(next())?, fd(next())?);
        Some(Self { line, keeper, line_inode, keeper_inode, holder, held })
    }
}

/// Parses a decimal number. Does not go through `str`, whose code lies far from the code of a dormant process: that
/// would cost each process a page fault.
pub fn number(text: &[u8]) -> Option<u64> {
    let digit = |&c: &u8| c.is_ascii_digit().then(|| u64::from(c - b'0'));
    let mut digits = text.iter().map(digit);
    let first = digits.next()??;
    digits.try_fold(first, |value, digit| value.checked_mul(10)?.checked_add(digit?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb::stats::Period;

    #[test]
    fn numbers_are_digits_and_fit() {
        for value in [0, 7, 10, 900, 1_073_741_824, u64::MAX] {
            assert_eq!(number(value.to_string().as_bytes()), Some(value));
        }
        assert_eq!(number(b"007"), Some(7));
        for text in ["", " 1", "1 ", "+1", "-1", "0x1", "1K", "18446744073709551616", "99999999999999999999"] {
            assert_eq!(number(text.as_bytes()), None, "{text:?}");
        }
    }

    fn early<'a>(vars: &[&'a str]) -> Result<Early<'a>, &'static str> {
        Early::of(vars.iter().map(|var| var.as_bytes()))?.ok_or("no budget")
    }

    fn settings(vars: &[&str]) -> Settings {
        let mut s = Settings::default();
        for var in vars {
            assert_eq!(s.offer(var.as_bytes()), Ok(()));
        }
        s
    }

    fn devices(s: &Settings) -> Vec<(String, u64, Option<i16>)> {
        let mut out = [SwapSpec { dir: c"", bytes: 0, priority: None, ..SwapSpec::DEFAULT }; DEVICES_MAX];
        let n = s.devices(&mut out);
        out[..n].iter().map(|d| (d.dir.to_string_lossy().into_owned(), d.bytes, d.priority)).collect()
    }

    fn unlimited(dir: &str) -> Vec<(String, u64, Option<i16>)> {
        vec![(dir.to_owned(), SPILL_BYTES_DEFAULT, None)]
    }

    #[test]
    fn without_a_budget_there_is_nothing_to_do() {
        assert_eq!(settings(&["PATH=/bin", "EBB_SWAP=none"]).ram_bytes, None);
    }

    #[test]
    fn a_budget_is_a_decimal_number() {
        assert_eq!(settings(&["EBB_RAM=1048576"]).ram_bytes, Some(1 << 20));
        assert_eq!(Settings::default().offer(b"EBB_RAM=1G"), Err("EBB_RAM".into()));
    }

    #[test]
    fn the_spill_file_is_in_the_default_directory_when_nobody_names_one() {
        assert_eq!(devices(&settings(&[])), unlimited("/var/tmp"));
        assert_eq!(devices(&settings(&["EBB_TMPDIR=/scratch"])), unlimited("/scratch"));
        assert_eq!(devices(&settings(&["EBB_SWAP=file", "EBB_TMPDIR=/scratch"])), unlimited("/scratch"));
    }

    #[test]
    fn devices_come_in_their_order_with_size_and_priority() {
        let s = settings(&["EBB_SWAP=file:/data,size=4096;file,prio=7;file:/x,prio=0,size=1", "EBB_TMPDIR=/scratch"]);
        let expected = [
            ("/data".to_owned(), 4096, None),
            ("/scratch".to_owned(), SPILL_BYTES_DEFAULT, Some(7)),
            ("/x".to_owned(), 1, Some(0)),
        ];
        assert_eq!(devices(&s), expected);
    }

    #[test]
    fn a_device_is_as_it_says_and_otherwise_as_most_are() {
        let s = settings(&[
            "EBB_SWAP=file:/disk,kind=hdd,discard=none;file:/x,kind=ssd,discard=pages;file;file:/m,kind=ram,discard=once",
        ]);
        let mut out = [SwapSpec::DEFAULT; DEVICES_MAX];
        let nr = s.devices(&mut out);
        let all: Vec<_> = out[..nr].iter().map(|spec| (spec.kind, spec.discard)).collect();
        let most = (Kind::Ssd, Discard::Pages);
        assert_eq!(all, [(Kind::Hdd, Discard::None), most, most, (Kind::Ram, Discard::Once)]);
    }

    #[test]
    fn a_device_has_a_write_budget_if_it_says_so() {
        let s = settings(&["EBB_SWAP=file:/disk,writes=1073741824/day;file"]);
        let mut out = [SwapSpec::DEFAULT; DEVICES_MAX];
        let nr = s.devices(&mut out);
        let all: Vec<_> = out[..nr].iter().map(|spec| spec.writes).collect();
        assert_eq!(all, [Writes::new(1 << 30, Period::Day), None]);
    }

    #[test]
    fn no_device_means_no_file() {
        assert_eq!(devices(&settings(&["EBB_SWAP=none"])), []);
    }

    #[test]
    fn as_many_devices_as_there_can_be_and_no_more() {
        let most = format!("EBB_SWAP={}", "file:/d;".repeat(DEVICES_MAX));
        assert_eq!(devices(&settings(&[&most])).len(), DEVICES_MAX);
        assert_eq!(Settings::default().offer(format!("{most}file").as_bytes()), Err("EBB_SWAP".into()));
    }

    #[test]
    fn a_lifeline_is_two_descriptors_and_their_files() {
        let ends = Ends { line: 900, keeper: 901, line_inode: 7, keeper_inode: 8, holder: 9, held: 5 };
        assert_eq!(early(&["EBB_RAM=1", "EBB_LIFE_FDS=900,901,7,8,9,5"]).map(|early| early.life_ends), Ok(Some(ends)));
        assert_eq!(early(&["EBB_LIFE_FDS=900,901,7,8"]).err(), Some("EBB_LIFE_FDS"));
    }

    #[test]
    fn what_is_forced_is_known_early() {
        let of = |force| early(&["EBB_RAM=1", force]).map(|early| (early.no_dormant, early.is_early));
        assert_eq!(of("EBB_FORCE=no-move,no-dormant"), Ok((true, false)));
        assert_eq!(of("EBB_FORCE=early"), Ok((false, true)));
        assert_eq!(early(&["EBB_FORCE=early"]).err(), Some("no budget"));
    }

    #[test]
    fn a_program_that_is_shown_another_size_of_ram_is_managed_from_its_start() {
        let of = |var| early(&["EBB_RAM=1", var]).map(|early| (early.show_ram_bytes, early.no_dormant));
        assert_eq!(of("EBB_SHOW_RAM=4096"), Ok((Some(4096), true)));
        assert_eq!(of("EBB_FORCE=early"), Ok((None, false)));
        assert_eq!((of("EBB_SHOW_RAM=0"), of("EBB_SHOW_RAM=1G")), (Ok((None, false)), Err("EBB_SHOW_RAM")));
    }

    #[test]
    fn an_unknown_device_is_refused() {
        assert_eq!(Settings::default().offer(b"EBB_SWAP=tape"), Err("EBB_SWAP".into()));
        for device in [
            "files",
            "file:",
            "file,prio=40000",
            "file,prio=-1",
            "file,size=",
            "file,colour=1",
            "file,kind=tape",
            "file,discard=twice",
            "file,writes=1073741824",
            "file,writes=1G/day",
            "file,writes=4096/day",
        ] {
            assert_eq!(
                Settings::default().offer(format!("EBB_SWAP={device}").as_bytes()),
                Err("EBB_SWAP".into()),
                "{device}"
            );
        }
    }

    #[test]
    fn an_unknown_fallback_is_refused_by_name() {
        let misread = Misread { name: "EBB_FORCE", entry: b"no-luck" };
        assert_eq!(Settings::default().offer(b"EBB_FORCE=no-move,no-luck,early"), Err(misread));
    }

    #[test]
    fn a_demand_for_memory_is_a_number_of_bytes_and_what_becomes_of_them() {
        let of = |text: &str| Demand::parse(text.as_bytes());
        let demand = |bytes, to, shared| Some(Demand { bytes, to, shared });
        assert_eq!(of("4096"), demand(4096, ReclaimTo::Usual, false));
        assert_eq!(of("1 pool"), demand(1, ReclaimTo::Pool, false));
        assert_eq!(of("5 cold"), demand(5, ReclaimTo::Cold, false));
        assert_eq!(of("8192 device shared"), demand(8192, ReclaimTo::Device, true));
        for text in ["", "much", "-1", "4096 ", "4096 tape", "4096 pool,shared", "pool 4096"] {
            assert_eq!(of(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_path_too_long_is_refused() {
        let var = ["EBB_TMPDIR=/", &"x".repeat(600)].concat();
        assert_eq!(Settings::default().offer(var.as_bytes()), Err("EBB_TMPDIR".into()));
    }
}
