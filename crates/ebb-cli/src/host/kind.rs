//! What the medium under a directory is, as far as the kernel tells.
//!
//! A file system is on a block device, which may be a part of another or made of several (device-mapper, md), or on several (btrfs).
//! One that turns below is enough: a read may have to wait for it. Of what is not on a block device (NFS, overlayfs) nothing is
//! known, and it counts as solid state. So does a disk that says that it turns, but is one of a kind that has no such disks, or
//! only says so for want of a better word, as those of virtual machines do.

use std::fs;
use std::os::fd::AsRawFd;
use std::os::linux::fs::MetadataExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use crate::base::sys;

/// The medium of a device, in the agent's words.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Kind {
    #[default]
    Ssd,
    Hdd,
    Ram,
}

impl Kind {
    /// The kind with this name.
    pub fn of_name(name: &[u8]) -> Option<Self> {
        [Self::Ssd, Self::Hdd, Self::Ram].into_iter().find(|kind| kind.name().as_bytes() == name)
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ssd => "ssd",
            Self::Hdd => "hdd",
            Self::Ram => "ram",
        }
    }

    /// The kind of what is made of both: as slow as the slower.
    fn with(self, other: Self) -> Self {
        match (self, other) {
            (Self::Hdd, _) | (_, Self::Hdd) => Self::Hdd,
            (Self::Ram, Self::Ram) => Self::Ram,
            _ => Self::Ssd,
        }
    }
}

/// How deep devices may be made of others.
const DEPTH_MAX: usize = 16;

/// A device's numbers, major and minor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Numbers(u32, u32);

impl Numbers {
    fn of(device: u64) -> Self {
        Self(libc::major(device), libc::minor(device))
    }
}

/// Where sysfs is.
struct Sysfs<'a>(&'a Path);

impl Sysfs<'_> {
    /// The directory of a block device.
    fn device(&self, Numbers(major, minor): Numbers) -> Option<PathBuf> {
        fs::canonicalize(self.0.join(format!("dev/block/{major}:{minor}"))).ok()
    }

    /// The kind of the block device in `directory`, by the devices that it is made of, if it is.
    fn kind(&self, directory: &Path, depth: usize) -> Option<Kind> {
        let below = depth.checked_sub(1)?;
        if directory.join("partition").exists() {
            return self.kind(directory.parent()?, below);
        }
        let slaves = entries(&directory.join("slaves")).into_iter().filter_map(|slave| self.kind(&slave, below));
        slaves.reduce(Kind::with).or_else(|| own_kind(directory))
    }

    /// The kind of a btrfs of which the device in `directory` is one; of only that one if it is of none.
    fn kind_of_btrfs(&self, directory: &Path) -> Option<Kind> {
        let file_systems = entries(&self.0.join("fs/btrfs")).into_iter().map(|one| entries(&one.join("devices")));
        let found = file_systems.into_iter().find(|devices| devices.iter().any(|device| device == directory));
        let devices = found.unwrap_or_else(|| vec![directory.to_owned()]);
        devices.iter().filter_map(|device| self.kind(device, DEPTH_MAX)).reduce(Kind::with)
    }
}

/// Buses of disks that do not turn, or do not know whether they do: sysfs says 1 of many of these.
const NEVER_TURN: [&str; 3] = ["virtio", "xen", "nvme"];

/// The kind of a block device that is not made of others.
fn own_kind(directory: &Path) -> Option<Kind> {
    let says_one = |file: &str| fs::read_to_string(directory.join(file)).ok().map(|text| text.trim() != "0");
    let name = directory.file_name().unwrap_or_default().to_string_lossy();
    let is_ram_disk = name.strip_prefix("ram").is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()));
    if is_ram_disk || name.starts_with("zram") || name.starts_with("pmem") || says_one("queue/dax") == Some(true) {
        return Some(Kind::Ram);
    }
    let bus = fs::canonicalize(directory.join("device/subsystem")).unwrap_or_default();
    let never_turns = NEVER_TURN.iter().any(|never| bus.file_name().is_some_and(|name| name == *never));
    says_one("queue/rotational").map(|turns| if turns && !never_turns { Kind::Hdd } else { Kind::Ssd })
}

/// What the entries of a directory stand for, without symbolic links; nothing if it cannot be read.
fn entries(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| fs::canonicalize(entry.path()).ok()).collect()
}

/// The source of a mount, by its number in a `mountinfo`.
fn source_of(mountinfo: &str, mount: &str) -> Option<PathBuf> {
    let line = mountinfo.lines().find(|line| line.split(' ').next() == Some(mount))?;
    let mut fields = line.split_once(" - ")?.1.split(' ');
    fields.nth(1).filter(|source| source.starts_with('/')).map(PathBuf::from)
}

/// The number of the mount that an open file is on, from its `fdinfo`.
fn mount_of(fdinfo: &str) -> Option<&str> {
    fdinfo.lines().find_map(|line| line.strip_prefix("mnt_id:")).map(str::trim)
}

/// The block device that a directory's file system says it is mounted from, if it has no block device's number itself, as btrfs has not.
fn mounted_from(directory: &fs::File) -> Option<Numbers> {
    let fdinfo = fs::read_to_string(format!("/proc/self/fdinfo/{}", directory.as_raw_fd())).ok()?;
    let source = source_of(&fs::read_to_string("/proc/self/mountinfo").ok()?, mount_of(&fdinfo)?)?;
    let metadata = fs::metadata(source).ok()?;
    metadata.file_type().is_block_device().then(|| Numbers::of(metadata.st_rdev()))
}

/// The kind of medium under `directory`.
pub fn of_directory(directory: &Path) -> Kind {
    let sysfs = Sysfs(Path::new("/sys"));
    let kind = || {
        if sys::file_system(directory).is_ok_and(|found| found.is_in_memory()) {
            return Some(Kind::Ram);
        }
        let directory = fs::File::open(directory).ok()?;
        let numbers = Numbers::of(directory.metadata().ok()?.st_dev());
        match sysfs.device(numbers) {
            Some(device) => sysfs.kind(&device, DEPTH_MAX),
            None => sysfs.kind_of_btrfs(&sysfs.device(mounted_from(&directory)?)?),
        }
    };
    kind().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A sysfs of the test's own.
    struct Fake(tempfile::TempDir);

    impl Fake {
        fn new() -> Self {
            let root = tempfile::tempdir().unwrap();
            fs::create_dir_all(root.path().join("dev/block")).unwrap();
            Self(root)
        }

        fn at(&self, path: &str) -> PathBuf {
            self.0.path().canonicalize().unwrap().join(path)
        }

        /// Adds a device: its directory below `devices`, its numbers, and what `queue/rotational` says, if there is one.
        fn device(&self, path: &str, numbers: &str, rotational: Option<&str>) -> &Self {
            let directory = self.at(&format!("devices/{path}"));
            fs::create_dir_all(&directory).unwrap();
            symlink(&directory, self.at(&format!("dev/block/{numbers}"))).unwrap();
            match rotational {
                Some(text) => {
                    fs::create_dir_all(directory.join("queue")).unwrap();
                    fs::write(directory.join("queue/rotational"), format!("{text}\n")).unwrap();
                }
                None => fs::write(directory.join("partition"), "1\n").unwrap(),
            }
            self
        }

        /// Puts a device into a directory of devices.
        fn link(&self, directory: &str, path: &str) -> &Self {
            let directory = self.at(directory);
            fs::create_dir_all(&directory).unwrap();
            let device = self.at(&format!("devices/{path}"));
            symlink(&device, directory.join(device.file_name().unwrap())).unwrap();
            self
        }

        /// Says on which bus a device is.
        fn bus(&self, path: &str, bus: &str) -> &Self {
            let (device, bus) = (self.at(&format!("devices/{path}/device")), self.at(&format!("bus/{bus}")));
            [&device, &bus].into_iter().for_each(|directory| fs::create_dir_all(directory).unwrap());
            symlink(&bus, device.join("subsystem")).unwrap();
            self
        }

        fn kind(&self, major: u32, minor: u32) -> Option<Kind> {
            let root = self.at("");
            let sysfs = Sysfs(&root);
            sysfs.kind(&sysfs.device(Numbers(major, minor))?, DEPTH_MAX)
        }
    }

    #[test]
    fn a_disk_says_itself_whether_it_turns_and_a_part_asks_the_disk() {
        let fake = Fake::new();
        fake.device("sda", "8:0", Some("1")).device("sda/sda1", "8:1", None);
        fake.device("nvme0n1", "259:0", Some("0")).device("nvme0n1/nvme0n1p2", "259:2", None);
        assert_eq!((fake.kind(8, 0), fake.kind(8, 1)), (Some(Kind::Hdd), Some(Kind::Hdd)));
        assert_eq!((fake.kind(259, 0), fake.kind(259, 2)), (Some(Kind::Ssd), Some(Kind::Ssd)));
    }

    #[test]
    fn what_is_not_there_is_unknown() {
        let fake = Fake::new();
        fake.device("sda", "8:0", Some("1"));
        assert_eq!(fake.kind(0, 52), None);
        fs::remove_file(fake.at("devices/sda/queue/rotational")).unwrap();
        assert_eq!(fake.kind(8, 0), None);
    }

    #[test]
    fn one_disk_that_turns_below_is_enough() {
        let fake = Fake::new();
        fake.device("sda", "8:0", Some("1")).device("sda/sda2", "8:2", None).device("sdb", "8:16", Some("0"));
        // An array of both, and a volume on it; the upper ones say nothing of what turns below.
        fake.device("md0", "9:0", Some("0")).link("devices/md0/slaves", "sdb").link("devices/md0/slaves", "sda/sda2");
        fake.device("dm-0", "253:0", Some("0")).link("devices/dm-0/slaves", "md0");
        assert_eq!((fake.kind(9, 0), fake.kind(253, 0)), (Some(Kind::Hdd), Some(Kind::Hdd)));
        fake.device("dm-1", "253:1", Some("0")).link("devices/dm-1/slaves", "sdb");
        assert_eq!(fake.kind(253, 1), Some(Kind::Ssd));
    }

    #[test]
    fn devices_that_are_made_of_each_other_end_somewhere() {
        let fake = Fake::new();
        fake.device("dm-0", "253:0", Some("0")).device("dm-1", "253:1", Some("0"));
        fake.link("devices/dm-0/slaves", "dm-1").link("devices/dm-1/slaves", "dm-0");
        assert_eq!(fake.kind(253, 0), Some(Kind::Ssd));
    }

    #[test]
    fn a_btrfs_turns_if_any_of_its_devices_does() {
        let fake = Fake::new();
        fake.device("sda", "8:0", Some("1")).device("sdb", "8:16", Some("0")).device("sdc", "8:32", Some("0"));
        fake.link("fs/btrfs/1111-22/devices", "sda").link("fs/btrfs/1111-22/devices", "sdb");
        fake.link("fs/btrfs/3333-44/devices", "sdc");
        let root = fake.at("");
        let sysfs = Sysfs(&root);
        let of = |minor| sysfs.kind_of_btrfs(&sysfs.device(Numbers(8, minor)).unwrap());
        assert_eq!((of(0), of(16), of(32)), (Some(Kind::Hdd), Some(Kind::Hdd), Some(Kind::Ssd)));
        fake.device("sdd", "8:48", Some("1"));
        assert_eq!(of(48), Some(Kind::Hdd), "it is of no btrfs, and alone");
    }

    #[test]
    fn a_mount_is_found_by_its_number() {
        let mountinfo = "29 1 0:26 / / rw,noatime shared:1 - btrfs /dev/sda2 rw,subvol=/\n\
                         30 29 0:27 / /tmp rw - tmpfs tmpfs rw\n\
                         31 29 0:28 / /srv rw - nfs host:/srv rw\n";
        assert_eq!(mount_of("pos:\t0\nflags:\t02100000\nmnt_id:\t29\nino:\t256\n"), Some("29"));
        assert_eq!(source_of(mountinfo, "29"), Some("/dev/sda2".into()));
        assert_eq!(["2", "30", "31"].map(|mount| source_of(mountinfo, mount)), [None, None, None]);
    }

    #[test]
    fn a_disk_that_cannot_know_whether_it_turns_is_not_believed() {
        let fake = Fake::new();
        fake.device("vda", "252:0", Some("1")).bus("vda", "virtio").device("vda/vda1", "252:1", None);
        fake.device("xvda", "202:0", Some("1")).bus("xvda", "xen");
        fake.device("sda", "8:0", Some("1")).bus("sda", "scsi");
        assert_eq!(
            [(252, 1), (202, 0), (8, 0)].map(|(a, b)| fake.kind(a, b)),
            [Kind::Ssd, Kind::Ssd, Kind::Hdd].map(Some)
        );
        // What device-mapper says of its volume it has from the disk.
        fake.device("dm-0", "253:0", Some("1")).link("devices/dm-0/slaves", "vda");
        assert_eq!(fake.kind(253, 0), Some(Kind::Ssd));
    }

    #[test]
    fn disks_in_ram_and_memory_that_persists_are_memory_unless_more_is_below() {
        let fake = Fake::new();
        fake.device("ram0", "1:0", Some("0")).device("pmem0", "259:0", Some("0")).device("zram1", "251:1", Some("0"));
        fake.device("ramdisk", "9:9", Some("0")).device("sda", "8:0", Some("0")).device("dax", "9:1", Some("0"));
        fs::write(fake.at("devices/dax/queue/dax"), "1\n").unwrap();
        let kinds = [(1, 0), (259, 0), (251, 1), (9, 9), (9, 1)].map(|(a, b)| fake.kind(a, b).unwrap());
        assert_eq!(kinds, [Kind::Ram, Kind::Ram, Kind::Ram, Kind::Ssd, Kind::Ram]);
        fake.device("dm-0", "253:0", Some("0")).link("devices/dm-0/slaves", "pmem0");
        fake.device("dm-1", "253:1", Some("0")).link("devices/dm-1/slaves", "pmem0").link("devices/dm-1/slaves", "sda");
        assert_eq!((fake.kind(253, 0), fake.kind(253, 1)), (Some(Kind::Ram), Some(Kind::Ssd)));
    }

    #[test]
    fn a_directory_in_memory_is_memory_and_one_of_which_nothing_is_known_is_solid_state() {
        assert_eq!(of_directory(Path::new("/dev/shm")), Kind::Ram);
        assert_eq!(of_directory(Path::new("/proc")), Kind::Ssd);
        assert_eq!(of_directory(Path::new("/no/such/directory")), Kind::Ssd);
    }
}
