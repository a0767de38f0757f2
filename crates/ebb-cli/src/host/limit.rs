//! How much memory a process may use: limits of its cgroups, and of the machine.
//!
//! All files are read below a root directory, which is `/` except in tests.

use std::fs;
use std::path::{Path, PathBuf};

use crate::base::size::human_bytes;

/// One memory limit of a cgroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CgroupLimit {
    /// The file that holds the limit.
    pub file: PathBuf,
    pub limit_bytes: u64,
    /// Memory charged to the group, without the inactive file pages, which reclaim can simply drop.
    pub used_bytes: u64,
}

impl CgroupLimit {
    fn room_bytes(&self) -> u64 {
        self.limit_bytes.saturating_sub(self.used_bytes)
    }
}

/// What bounds the memory of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bounds {
    /// Limits of the process's cgroups and their visible ancestors, tightest first.
    pub cgroups: Vec<CgroupLimit>,
    pub total_bytes: u64,
    pub available_bytes: u64,
}

/// A number of bytes, and a text that says where it comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sourced {
    pub bytes: u64,
    pub source: String,
}

/// From this value on, a version 1 limit means unlimited: the kernel then reports its largest page-aligned number.
const UNLIMITED_BYTES: u64 = 1 << 60;

/// Least and most memory that `auto` leaves for what Ebb does not manage: stacks, program files, kernel memory.
const HEADROOM_BYTES: std::ops::RangeInclusive<u64> = (16 << 20)..=(1 << 30);

/// The tightest limit of a process's cgroups and of the machine. `process` is its number, or `self`. Reads less than
/// [`Bounds::read_of`]: nothing of what is in use, which the kernel has to add up.
pub fn tightest(root: &Path, process: &str) -> Option<Sourced> {
    let (total_bytes, _) = meminfo(root)?;
    let mut tightest = Sourced { bytes: total_bytes, source: "MemTotal".to_owned() };
    each_group(root, process, |dir, version| {
        for (file, bytes) in limits_of(dir, version) {
            if bytes < tightest.bytes {
                tightest = Sourced { bytes, source: file.display().to_string() };
            }
        }
    });
    Some(tightest)
}

impl Bounds {
    /// Reads the bounds of the calling process.
    pub fn read(root: &Path) -> Option<Self> {
        Self::read_of(root, "self")
    }

    /// Reads the bounds of a process. `process` is its number, or `self`.
    pub fn read_of(root: &Path, process: &str) -> Option<Self> {
        let (total_bytes, available_bytes) = meminfo(root)?;
        let mut cgroups = cgroup_limits(root, process);
        cgroups.sort_by_key(|cgroup| cgroup.limit_bytes);
        Some(Self { cgroups, total_bytes, available_bytes })
    }

    /// The tightest limit, which percentages refer to.
    pub fn limit(&self) -> Sourced {
        let machine = Sourced { bytes: self.total_bytes, source: "MemTotal".to_owned() };
        match self.cgroups.first() {
            Some(cgroup) if cgroup.limit_bytes < self.total_bytes => {
                Sourced { bytes: cgroup.limit_bytes, source: cgroup.file.display().to_string() }
            }
            _ => machine,
        }
    }

    /// The memory that can still be used before a limit is reached.
    pub fn room(&self) -> Sourced {
        let machine = Sourced { bytes: self.available_bytes, source: "MemAvailable".to_owned() };
        let tightest = self.cgroups.iter().min_by_key(|cgroup| cgroup.room_bytes());
        match tightest {
            Some(cgroup) if cgroup.room_bytes() < self.available_bytes => Sourced {
                bytes: cgroup.room_bytes(),
                source: format!(
                    "{} of {} less {} in use",
                    human_bytes(cgroup.limit_bytes),
                    cgroup.file.display(),
                    human_bytes(cgroup.used_bytes)
                ),
            },
            _ => machine,
        }
    }

    /// The budget that `--ram auto` means: the room less headroom. The headroom is an eighth of the room, but at least
    /// 16 MiB and at most 1 GiB, and never more than half of the room.
    pub fn auto(&self) -> Sourced {
        self.auto_with(0)
    }

    /// Likewise for processes that already hold `held_bytes` of the memory in use. Those bytes count as room.
    pub fn auto_with(&self, held_bytes: u64) -> Sourced {
        let mut room = self.room();
        if held_bytes > 0 {
            room.bytes += held_bytes;
            room.source = format!("{}, plus {} already held", room.source, human_bytes(held_bytes));
        }
        let headroom = (room.bytes / 8).clamp(*HEADROOM_BYTES.start(), *HEADROOM_BYTES.end()).min(room.bytes / 2);
        let bytes = (room.bytes - headroom) & !0xfff;
        Sourced { bytes, source: format!("{}, {} left as headroom", room.source, human_bytes(headroom)) }
    }
}

/// `MemTotal` and `MemAvailable`, in bytes.
fn meminfo(root: &Path) -> Option<(u64, u64)> {
    let text = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    };
    Some((field("MemTotal")?, field("MemAvailable")?))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

/// The path of a process in the hierarchy of `version`. `text` is its `/proc/PID/cgroup`.
fn cgroup_path(text: &str, version: Version) -> Option<&str> {
    text.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (hierarchy, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let ours = match version {
            Version::V1 => controllers.split(',').any(|controller| controller == "memory"),
            Version::V2 => hierarchy == "0" && controllers.is_empty(),
        };
        ours.then_some(path)
    })
}

/// Undoes the octal escapes of `/proc/self/mountinfo`.
fn unescape(field: &str) -> String {
    let mut out = String::with_capacity(field.len());
    let mut rest = field;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        match rest.get(at + 1..at + 4).and_then(|octal| u8::from_str_radix(octal, 8).ok()) {
            Some(byte) => {
                out.push(byte as char);
                rest = &rest[at + 4..];
            }
            None => {
                out.push('\\');
                rest = &rest[at + 1..];
            }
        }
    }
    out.push_str(rest);
    out
}

/// Where the hierarchy of `version` is mounted. Returns the path of the mount's root in the hierarchy, and the mount
/// point.
fn cgroup_mount(text: &str, version: Version) -> Option<(String, String)> {
    text.lines().find_map(|line| {
        let (mount, filesystem) = line.split_once(" - ")?;
        let mut filesystem = filesystem.split(' ');
        let (kind, _device, options) = (filesystem.next()?, filesystem.next()?, filesystem.next()?);
        let ours = match version {
            Version::V1 => kind == "cgroup" && options.split(',').any(|option| option == "memory"),
            Version::V2 => kind == "cgroup2",
        };
        let mut fields = mount.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        ours.then(|| (unescape(root), unescape(point)))
    })
}

fn read_number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Reads the number of the `NAME VALUE` line with this name.
fn read_stat(path: &Path, name: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

/// The limits of the group at `dir`, and the files that hold them.
fn limits_of(dir: &Path, version: Version) -> impl Iterator<Item = (PathBuf, u64)> {
    let files: &[&str] = match version {
        // `memory.high` does not stop a group, but slows one that exceeds it to a crawl.
        Version::V2 => &["memory.max", "memory.high"],
        Version::V1 => &["memory.limit_in_bytes"],
    };
    files.iter().filter_map(move |file| {
        let file = dir.join(file);
        let limit_bytes = read_number(&file).filter(|limit| *limit < UNLIMITED_BYTES)?;
        Some((file, limit_bytes))
    })
}

/// What the group at `dir` has in use, without the inactive file pages.
fn used_bytes_of(dir: &Path, version: Version) -> u64 {
    let (usage_file, inactive) = match version {
        Version::V2 => ("memory.current", "inactive_file"),
        Version::V1 => ("memory.usage_in_bytes", "total_inactive_file"),
    };
    let usage = read_number(&dir.join(usage_file)).unwrap_or(0);
    usage.saturating_sub(read_stat(&dir.join("memory.stat"), inactive).unwrap_or(0))
}

fn cgroup_limits(root: &Path, process: &str) -> Vec<CgroupLimit> {
    let mut out = Vec::new();
    each_group(root, process, |dir, version| {
        for (file, limit_bytes) in limits_of(dir, version) {
            out.push(CgroupLimit { file, limit_bytes, used_bytes: used_bytes_of(dir, version) });
        }
    });
    out
}

/// Calls `look` for each cgroup of a process, and for each visible one above it.
fn each_group(root: &Path, process: &str, mut look: impl FnMut(&Path, Version)) {
    let (Ok(membership), Ok(mounts)) = (
        fs::read_to_string(root.join(format!("proc/{process}/cgroup"))),
        fs::read_to_string(root.join("proc/self/mountinfo")),
    ) else {
        return;
    };
    for version in [Version::V2, Version::V1] {
        let (Some(path), Some((mount_root, point))) =
            (cgroup_path(&membership, version), cgroup_mount(&mounts, version))
        else {
            continue;
        };
        let point = root.join(point.trim_start_matches('/'));
        // Inside a container the mount may show only a part of the hierarchy. For a path outside that part, the part's
        // top is used.
        let inside = Path::new(path).strip_prefix(&mount_root).unwrap_or(Path::new(""));
        let inside = if path.contains("/..") { Path::new("") } else { inside };
        for group in inside.ancestors() {
            look(&point.join(group), version);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fixture tree: files with their contents below a temporary root.
    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        root
    }

    const MEMINFO: &str = "MemTotal:       8388608 kB\nMemFree:         100 kB\nMemAvailable:   4194304 kB\n";
    const V2_MOUNT: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
    const V1_MOUNT: &str = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n";

    #[test]
    fn without_a_cgroup_limit_the_machine_decides() {
        let root = tree(&[("proc/meminfo", MEMINFO)]);
        let bounds = Bounds::read(root.path()).unwrap();
        assert_eq!(bounds.cgroups, vec![]);
        assert_eq!(bounds.limit(), Sourced { bytes: 8 << 30, source: "MemTotal".to_owned() });
        assert_eq!(tightest(root.path(), "self"), Some(bounds.limit()));
        assert_eq!(bounds.room().bytes, 4 << 30);
        assert_eq!(bounds.auto().bytes, (4 << 30) - (512 << 20));
    }

    #[test]
    fn the_tightest_version_2_ancestor_decides() {
        let root = tree(&[
            ("proc/meminfo", MEMINFO),
            ("proc/self/cgroup", "0::/a/b\n"),
            ("proc/self/mountinfo", V2_MOUNT),
            ("sys/fs/cgroup/a/memory.max", "1073741824\n"),
            ("sys/fs/cgroup/a/memory.current", "300\n"),
            ("sys/fs/cgroup/a/memory.stat", "anon 100\ninactive_file 200\n"),
            ("sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("sys/fs/cgroup/a/b/memory.high", "2147483648\n"),
        ]);
        let bounds = Bounds::read(root.path()).unwrap();
        assert_eq!(bounds.limit().bytes, 1 << 30);
        assert_eq!(bounds.cgroups.len(), 2);
        assert_eq!(bounds.cgroups[0].used_bytes, 100);
        assert_eq!(tightest(root.path(), "self"), Some(bounds.limit()));
    }

    #[test]
    fn a_group_further_up_with_less_room_decides_what_auto_means() {
        let root = tree(&[
            ("proc/meminfo", MEMINFO),
            ("proc/self/cgroup", "0::/a/b\n"),
            ("proc/self/mountinfo", V2_MOUNT),
            ("sys/fs/cgroup/a/memory.max", "1073741824\n"),
            ("sys/fs/cgroup/a/memory.current", "805306368\n"),
            ("sys/fs/cgroup/a/b/memory.max", "536870912\n"),
            ("sys/fs/cgroup/a/b/memory.current", "0\n"),
        ]);
        let bounds = Bounds::read(root.path()).unwrap();
        assert_eq!(bounds.limit().bytes, 512 << 20);
        assert_eq!(bounds.room().bytes, 256 << 20);
        assert_eq!(bounds.auto().bytes, 224 << 20);
    }

    #[test]
    fn version_1_limits_are_read_and_its_largest_number_means_none() {
        let root = tree(&[
            ("proc/meminfo", MEMINFO),
            ("proc/self/cgroup", "5:cpu:/\n4:memory:/job/1\n0::/\n"),
            ("proc/self/mountinfo", V1_MOUNT),
            ("sys/fs/cgroup/memory/job/1/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "104857600\n"),
            ("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "1048576\n"),
            ("sys/fs/cgroup/memory/job/memory.stat", "inactive_file 5\ntotal_inactive_file 1048000\n"),
        ]);
        let bounds = Bounds::read(root.path()).unwrap();
        assert_eq!(bounds.cgroups.len(), 1);
        assert_eq!(bounds.cgroups[0].limit_bytes, 100 << 20);
        assert_eq!(bounds.cgroups[0].used_bytes, 576);
    }

    #[test]
    fn a_bind_mounted_hierarchy_is_entered_below_its_root() {
        let root = tree(&[
            ("proc/meminfo", MEMINFO),
            ("proc/self/cgroup", "4:memory:/docker/abc/inner\n"),
            ("proc/self/mountinfo", "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"),
            ("sys/fs/cgroup/memory/inner/memory.limit_in_bytes", "67108864\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "134217728\n"),
        ]);
        let bounds = Bounds::read(root.path()).unwrap();
        let limits: Vec<u64> = bounds.cgroups.iter().map(|cgroup| cgroup.limit_bytes).collect();
        assert_eq!(limits, vec![64 << 20, 128 << 20]);
    }

    #[test]
    fn a_path_outside_the_mounted_part_is_seen_from_its_top() {
        let root = tree(&[
            ("proc/meminfo", MEMINFO),
            ("proc/self/cgroup", "0::/../../other\n"),
            ("proc/self/mountinfo", V2_MOUNT),
            ("sys/fs/cgroup/memory.max", "67108864\n"),
        ]);
        assert_eq!(Bounds::read(root.path()).unwrap().limit().bytes, 64 << 20);
    }

    #[test]
    fn auto_leaves_half_of_a_very_small_room() {
        let bounds = Bounds { cgroups: vec![], total_bytes: 20 << 20, available_bytes: 20 << 20 };
        assert_eq!(bounds.auto().bytes, 10 << 20);
    }

    #[test]
    fn mount_points_with_spaces_are_unescaped() {
        assert_eq!(unescape("/a\\040b\\134c"), "/a b\\c");
        assert_eq!(unescape("trailing\\"), "trailing\\");
    }
}
