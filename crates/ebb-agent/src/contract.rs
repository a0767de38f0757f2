//! The environment variables by which `ebb run` tells the agent what to do (`docs/contract.md`).

use core::ffi::CStr;
use ebb::Force;

/// Longest path of a directory, with its NUL.
pub const PATH_BYTES_MAX: usize = 512;
/// Directory of the spill file when nobody names one.
const SPILL_DIR_DEFAULT: &[u8] = b"/var/tmp";
/// Largest spill file when nobody says: more than any directory is likely to hold.
const SPILL_BYTES_DEFAULT: u64 = 1 << 40;

/// What the environment says.
pub struct Settings {
    pub ram_bytes: Option<u64>,
    pub spill_bytes: u64,
    pub stats_fd: Option<i32>,
    pub life_ends: Option<Ends>,
    pub force: Force,
    /// Hot calls are answered where the program calls libc.
    pub interposes: bool,
    spills: bool,
    named_dir: Path,
    default_dir: Path,
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
        self.len = path.len();
        Some(())
    }

    fn get(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            ram_bytes: None,
            spill_bytes: SPILL_BYTES_DEFAULT,
            stats_fd: None,
            life_ends: None,
            force: Force::default(),
            interposes: true,
            spills: true,
            named_dir: Path::EMPTY,
            default_dir: Path::EMPTY,
        }
    }
}

impl Settings {
    /// Looks at one variable; the name of one that makes no sense.
    pub fn offer(&mut self, var: &[u8]) -> Result<(), &'static str> {
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
            b"EBB_LIFE_FDS" => self.life_ends = Some(Ends::parse(value).ok_or("EBB_LIFE_FDS")?),
            b"EBB_FORCE" => self.force(value).ok_or("EBB_FORCE")?,
            _ => {}
        }
        Ok(())
    }

    /// `;`-separated devices: `file[:DIR][,size=BYTES]` or `none`. Files in further directories add their size.
    fn swap(&mut self, value: &[u8]) -> Option<()> {
        self.spills = false;
        let mut bytes = Some(0u64);
        for device in value.split(|&c| c == b';').filter(|device| !device.is_empty()) {
            if device == b"none" {
                continue;
            }
            let rest = device.strip_prefix(b"file")?;
            let comma = rest.iter().position(|&c| c == b',').unwrap_or(rest.len());
            let (place, options) = rest.split_at(comma);
            if let Some(dir) = place.strip_prefix(b":") {
                if self.named_dir.len == 0 {
                    self.named_dir.set(dir)?;
                }
            } else if !place.is_empty() {
                return None;
            }
            let size = match options {
                [] => None,
                _ => Some(number(options.strip_prefix(b",size=")?)?),
            };
            // One device without a size makes the sum unlimited.
            bytes = bytes.zip(size).map(|(sum, size)| sum.saturating_add(size));
            self.spills = true;
        }
        self.spill_bytes = bytes.unwrap_or(SPILL_BYTES_DEFAULT);
        Some(())
    }

    fn force(&mut self, value: &[u8]) -> Option<()> {
        for word in value.split(|&c| c == b',').filter(|word| !word.is_empty()) {
            match word {
                b"no-move" => self.force.no_move = true,
                b"shared" => self.force.shared = true,
                b"no-process-madvise" => self.force.no_process_madvise = true,
                b"no-background" => self.force.no_background = true,
                b"strict" => self.force.strict = true,
                b"no-interpose" => self.interposes = false,
                // Managed memory never has huge pages.
                b"no-huge" => {}
                _ => return None,
            }
        }
        Some(())
    }

    /// Directory of the spill file, put into `out`; none when there is to be no file.
    pub fn spill_dir<'a>(&self, out: &'a mut [u8; PATH_BYTES_MAX]) -> Option<&'a CStr> {
        if !self.spills {
            return None;
        }
        let dir = match (self.named_dir.get(), self.default_dir.get()) {
            ([], []) => SPILL_DIR_DEFAULT,
            ([], dir) | (dir, _) => dir,
        };
        out[..dir.len()].copy_from_slice(dir);
        out[dir.len()] = 0;
        CStr::from_bytes_until_nul(out).ok()
    }
}

/// The lifeline's pipe and keeper: descriptors, and the numbers of their files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ends {
    pub line: i32,
    pub keeper: i32,
    pub line_inode: u64,
    pub keeper_inode: u64,
}

impl Ends {
    /// Four numbers, `,`-separated, in this order.
    fn parse(text: &[u8]) -> Option<Self> {
        let mut parts = text.split(|&c| c == b',').map(number);
        let mut next = || parts.next().flatten();
        let fd = |n: Option<u64>| n.and_then(|fd| i32::try_from(fd).ok());
        let (line, keeper) = (fd(next())?, fd(next())?);
        Some(Self { line, keeper, line_inode: next()?, keeper_inode: next()? })
    }
}

/// A decimal number.
fn number(text: &[u8]) -> Option<u64> {
    core::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(vars: &[&str]) -> Settings {
        let mut s = Settings::default();
        for var in vars {
            assert_eq!(s.offer(var.as_bytes()), Ok(()));
        }
        s
    }

    fn dir(s: &Settings) -> Option<String> {
        let mut out = [0; PATH_BYTES_MAX];
        s.spill_dir(&mut out).map(|d| d.to_string_lossy().into_owned())
    }

    #[test]
    fn without_a_budget_there_is_nothing_to_do() {
        assert_eq!(settings(&["PATH=/bin", "EBB_SWAP=none"]).ram_bytes, None);
    }

    #[test]
    fn a_budget_is_a_decimal_number() {
        assert_eq!(settings(&["EBB_RAM=1048576"]).ram_bytes, Some(1 << 20));
        assert_eq!(Settings::default().offer(b"EBB_RAM=1G"), Err("EBB_RAM"));
    }

    #[test]
    fn the_spill_file_is_in_the_default_directory_when_nobody_names_one() {
        assert_eq!(dir(&settings(&[])).as_deref(), Some("/var/tmp"));
        assert_eq!(dir(&settings(&["EBB_TMPDIR=/scratch"])).as_deref(), Some("/scratch"));
    }

    #[test]
    fn a_named_directory_goes_before_the_default_one() {
        let s = settings(&["EBB_SWAP=file:/data,size=4096", "EBB_TMPDIR=/scratch"]);
        assert_eq!(dir(&s).as_deref(), Some("/data"));
        assert_eq!(s.spill_bytes, 4096);
    }

    #[test]
    fn no_device_means_no_file() {
        assert_eq!(dir(&settings(&["EBB_SWAP=none"])), None);
    }

    #[test]
    fn a_lifeline_is_two_descriptors_and_their_files() {
        let ends = Ends { line: 900, keeper: 901, line_inode: 7, keeper_inode: 8 };
        assert_eq!(settings(&["EBB_LIFE_FDS=900,901,7,8"]).life_ends, Some(ends));
        assert_eq!(Settings::default().offer(b"EBB_LIFE_FDS=900,901"), Err("EBB_LIFE_FDS"));
    }

    #[test]
    fn an_unknown_device_is_refused() {
        assert_eq!(Settings::default().offer(b"EBB_SWAP=tape"), Err("EBB_SWAP"));
        assert_eq!(Settings::default().offer(b"EBB_SWAP=files"), Err("EBB_SWAP"));
    }

    #[test]
    fn an_unknown_fallback_is_refused() {
        assert_eq!(Settings::default().offer(b"EBB_FORCE=no-move,no-luck"), Err("EBB_FORCE"));
    }

    #[test]
    fn a_path_too_long_is_refused() {
        let var = ["EBB_TMPDIR=/", &"x".repeat(600)].concat();
        assert_eq!(Settings::default().offer(var.as_bytes()), Err("EBB_TMPDIR"));
    }
}
