//! Finds the trees of processes that run under Ebb, as `process` finds a process: by the shared file among its
//! descriptors.
//!
//! Each shared file is one tree. It is opened once, and then stays open (`counters::Counters`).

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};

use ebb::tree;

use crate::base::failure::Failure;
use crate::base::name::Target;
use crate::running::control;
use crate::running::counters::Counters;
use crate::running::process::{self, Process};

/// How many processes of a tree are listed where one has to be named.
const NAMED_MAX: usize = 16;

/// Identifies the shared file of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Inode {
    device: u64,
    number: u64,
}

impl Inode {
    fn of(meta: &std::fs::Metadata) -> Self {
        Self { device: meta.dev(), number: meta.ino() }
    }

    /// The shared file that this process has open as `counters`.
    pub fn of_counters(counters: &Counters) -> io::Result<Self> {
        Ok(Self::of(&counters.file().metadata()?))
    }
}

/// The processes that have one shared file open, and where to open it.
#[derive(Debug, Default)]
struct Found {
    pids: Vec<i32>,
    /// One path for each process, because the first process may end before its path is opened.
    paths: Vec<PathBuf>,
}

impl Found {
    fn open(&self, access: Access) -> io::Result<Counters> {
        let mut last = io::Error::from_raw_os_error(libc::ESRCH);
        for path in &self.paths {
            let opened = match access {
                Access::Look => Counters::open(path),
                Access::Change => Counters::open_writable(path),
            };
            match opened {
                Ok(counters) => return Ok(counters),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

/// Every shared file that a process below `proc` has open and that this user may see.
fn areas(proc: &Path) -> io::Result<BTreeMap<Inode, Found>> {
    let mut found = BTreeMap::<Inode, Found>::new();
    let mut pids: Vec<i32> =
        std::fs::read_dir(proc)?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    for pid in pids {
        for path in process::areas(&proc.join(pid.to_string())) {
            let Ok(meta) = std::fs::metadata(&path) else { continue };
            let area = found.entry(Inode::of(&meta)).or_default();
            // A process may have several descriptors of the file.
            if area.pids.last() != Some(&pid) {
                area.pids.push(pid);
                area.paths.push(path);
            }
        }
    }
    Ok(found)
}

/// Whether this process has the file among its descriptors, as every process of the tree has.
fn has_it(inode: Inode) -> bool {
    let paths = process::areas(Path::new("/proc/self"));
    paths.iter().filter_map(|path| std::fs::metadata(path).ok()).any(|meta| Inode::of(&meta) == inode)
}

/// Opens the shared file of this process's own tree. What was opened so stays open, and is what the next look gets, too.
fn open_once(inode: Inode, found: &Found, access: Access) -> io::Result<Counters> {
    static OPENED: Mutex<Vec<(Inode, Access, Counters)>> = Mutex::new(Vec::new());
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((.., counters)) = opened.iter().find(|(of, by, _)| (*of, *by) == (inode, access)) {
        return Ok(counters.alias());
    }
    let counters = found.open(access)?;
    opened.push((inode, access, counters.alias()));
    Ok(counters)
}

/// A running tree.
pub struct RunningTree {
    pub counters: Counters,
    /// Processes that have its shared file open, managed or not, by number.
    pub pids: Vec<i32>,
    /// True if this process had the file open before it looked.
    is_ours: bool,
}

/// The holder of a place in the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holder {
    /// Nobody: the process has ended.
    Nobody,
    /// A process of another pid namespace.
    Unseen,
    Process(i32),
}

impl Drop for RunningTree {
    /// Closes the shared file, unless this process had it before: then it is one of the tree's.
    fn drop(&mut self) {
        if !self.is_ours {
            self.counters.close();
        }
    }
}

impl RunningTree {
    /// The number of its `ebb run`. If that has ended or has no number here, the number of the first process that has a
    /// place. None if the tree has ended. An open file proves nothing: a process that only looks at the tree has it
    /// open, too.
    fn first(&self) -> Option<i32> {
        let seen = |pid: &i32| *pid > 0;
        tree::supervisor(self.counters.fd()).filter(seen).or_else(|| {
            let own = self.own();
            let places = self.counters.tree().members();
            let used = places.filter(|(_, member)| member.kind() != tree::Kind::Free);
            used.map(|(index, _)| self.holder(index, &own)).find_map(|holder| match holder {
                Holder::Process(pid) => Some(pid),
                Holder::Unseen | Holder::Nobody => None,
            })
        })
    }

    /// The number of its `ebb run`. If that has ended or has no number here, the number of another of its processes.
    pub fn supervisor(&self) -> i32 {
        self.first().or(self.pids.first().copied()).unwrap_or(0)
    }

    /// False if all of its processes have ended, or have no number here.
    pub fn is_running(&self) -> bool {
        self.first().is_some()
    }

    /// False for the shared file of an `ebb run` that limits nothing.
    fn has_budget(&self) -> bool {
        self.counters.tree().limit() > 0
    }

    /// What to call the tree: its name, or the number of its `ebb run`.
    pub fn label(&self) -> String {
        self.counters.name().unwrap_or_else(|| self.supervisor().to_string())
    }

    /// Places that may be this process's own. The kernel does not report a process's own locks. So a place is among
    /// them if it has this process's number and seems to have no holder. It may be that of a dead process that had the
    /// number before.
    pub fn own(&self) -> Vec<u32> {
        let pid = std::process::id();
        let is_own =
            |(_, member): &(u32, &tree::Member)| member.kind() != tree::Kind::Free && member.pid.load(Relaxed) == pid;
        let places = self.counters.tree().members().filter(is_own).map(|(index, _)| index);
        places.filter(|&index| self.is_ours && tree::holder(self.counters.fd(), index).is_none()).collect()
    }

    /// The process that has a place. `own` are the places that may be this process's.
    pub fn holder(&self, index: u32, own: &[u32]) -> Holder {
        if own.contains(&index) {
            return Holder::Process(std::process::id() as i32);
        }
        match tree::holder(self.counters.fd(), index) {
            None => Holder::Nobody,
            Some(pid) if pid > 0 => Holder::Process(pid),
            Some(_) => Holder::Unseen,
        }
    }

    /// Whether `target` means this tree.
    fn is(&self, target: &Target) -> bool {
        match target {
            Target::Named(name) => self.counters.name().as_ref() == Some(name),
            Target::Of(pid) => self.pids.contains(pid),
        }
    }

    /// Its processes that are managed and large enough to be asked.
    fn asked(&self) -> Vec<i32> {
        let proc = Path::new(process::PROC);
        let is_asked = |pid: &i32| {
            let is_able =
                Process::find(proc, *pid).is_ok_and(|process| process.is_managed() && process.has_background());
            // Of a process with the files of several trees the members say whose it is.
            is_able && (process::areas(&proc.join(pid.to_string())).len() == 1 || self.manages(*pid))
        };
        self.pids.iter().copied().filter(is_asked).collect()
    }

    /// Whether a process is a managed member of this tree. A process may have the files of two trees, but is managed in
    /// one only.
    fn manages(&self, pid: i32) -> bool {
        let own = self.own();
        let managed = self.counters.tree().members().filter(|(_, member)| member.kind() == tree::Kind::Managed);
        managed.map(|(index, _)| self.holder(index, &own)).any(|holder| holder == Holder::Process(pid))
    }
}

/// How an area is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Look,
    Change,
}

/// Every running tree that this user may see, by the number of its `ebb run`. Leaves out trees of another version of
/// Ebb, but fails if `targets` names a process of one.
pub fn running(proc: &Path, access: Access, targets: &[Target]) -> Result<Vec<RunningTree>, Failure> {
    let found = areas(proc).map_err(|error| Failure::ebb(process::PROC, error, "mount it"))?;
    let (mut trees, mut refused) = (Vec::new(), Vec::new());
    for (inode, found) in found {
        let is_ours = has_it(inode);
        match if is_ours { open_once(inode, &found, access) } else { found.open(access) } {
            Ok(counters) => trees.push(RunningTree { counters, pids: found.pids, is_ours }),
            Err(error) => {
                let is_named = |target: &&Target| matches!(target, Target::Of(pid) if found.pids.contains(pid));
                if let Some(target) = targets.iter().find(is_named) {
                    const REMEDY: &str = "use the same version of `ebb` that started it, as its user or as root";
                    refused.push((target, Failure::ebb(target, error, REMEDY)));
                }
            }
        }
    }
    trees.retain(|tree: &RunningTree| tree.is_running() && tree.has_budget());
    trees.sort_by_key(RunningTree::supervisor);
    // The process may belong to a tree of this version, and only look at the tree of another version.
    match refused.into_iter().find(|(target, _)| !trees.iter().any(|tree| tree.is(target))) {
        Some((_, failure)) => Err(failure),
        None => Ok(trees),
    }
}

/// Those of `trees` that `targets` name; all if `targets` is empty.
pub fn select(mut trees: Vec<RunningTree>, targets: &[Target]) -> Result<Vec<RunningTree>, Failure> {
    if targets.is_empty() {
        return Ok(trees);
    }
    let mut wanted = HashSet::new();
    for target in targets {
        let all: Vec<usize> = (0..trees.len()).filter(|&at| trees[at].is(target)).collect();
        let best = match (target, all.as_slice()) {
            (Target::Of(pid), [_, _, ..]) => {
                let by_supervisor = all.iter().find(|&&at| trees[at].supervisor() == *pid);
                by_supervisor.or_else(|| all.iter().find(|&&at| trees[at].manages(*pid))).or(all.first())
            }
            _ => all.first(),
        };
        wanted.insert(*best.ok_or_else(|| not_there(target))?);
    }
    let mut at = 0;
    trees.retain(|_| {
        at += 1;
        wanted.contains(&(at - 1))
    });
    Ok(trees)
}

/// Those of `trees` that `targets` name, without a word about targets that name none.
pub fn those(mut trees: Vec<RunningTree>, targets: &[Target]) -> Vec<RunningTree> {
    trees.retain(|tree| targets.is_empty() || targets.iter().any(|target| tree.is(target)));
    trees
}

fn not_there(target: &Target) -> Failure {
    let why = match target {
        Target::Named(_) => "no running tree of this user has this name",
        Target::Of(_) => "it does not run under Ebb, or belongs to another user",
    };
    Failure::ebb(target, why, "list the running trees with `ebb ps`")
}

/// Finds the tree that `target` means, and opens it to be changed.
pub fn find(target: &Target) -> Result<RunningTree, Failure> {
    find_for(target, Access::Change)
}

/// Finds the tree that `target` means.
pub fn find_for(target: &Target, access: Access) -> Result<RunningTree, Failure> {
    let targets = std::slice::from_ref(target);
    let found = select(running(Path::new(process::PROC), access, targets)?, targets)?;
    found.into_iter().next().ok_or_else(|| not_there(target))
}

/// The processes that `target` means to a command that asks processes: that one, or all of a tree that can be asked, at
/// least one.
pub fn processes(target: &Target) -> Result<Vec<i32>, Failure> {
    let Target::Of(pid) = target else {
        let pids = find_for(target, Access::Look)?.asked();
        return if pids.is_empty() {
            Err(control::too_small(target, "none of its processes has ever"))
        } else {
            Ok(pids)
        };
    };
    Ok(vec![*pid])
}

/// The only process that `target` means. A tree with several is not enough to know which.
pub fn one_process(target: &Target) -> Result<i32, Failure> {
    match processes(target)?.as_slice() {
        [pid] => Ok(*pid),
        pids => Err(several(target, pids)),
    }
}

fn several(target: &Target, pids: &[i32]) -> Failure {
    let named = pids.iter().take(NAMED_MAX).map(i32::to_string).collect::<Vec<_>>().join(", ");
    let more = pids.len().saturating_sub(NAMED_MAX);
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    Failure::ebb(
        target,
        format!("it has {} managed processes: {named}{rest}", pids.len()),
        "name one of them by its PID",
    )
}

/// Fails if another running tree has the name that `counters` already have. So if two trees with one name begin at the
/// same time, at most one goes on.
pub fn check_unique(name: &str, counters: &Counters) -> Result<(), Failure> {
    let what = || format!("--name {name}");
    let own =
        Inode::of_counters(counters).map_err(|error| Failure::ebb(what(), error, "report this as a bug in Ebb"))?;
    let found = areas(Path::new(process::PROC)).map_err(|error| Failure::ebb(process::PROC, error, "mount it"))?;
    for (inode, area) in found.iter().filter(|(inode, _)| **inode != own) {
        let is_ours = has_it(*inode);
        let Ok(counters) = area.open(Access::Look) else { continue };
        // This process lives on. With the file open, it would seem to be a process of that tree; so `other` closes it.
        let other = RunningTree { counters, pids: Vec::new(), is_ours };
        let is_same = other.counters.name().as_deref() == Some(name);
        let holder = if is_same { other.first() } else { None };
        drop(other);
        if let Some(pid) = holder {
            return Err(Failure::ebb(
                what(),
                format!("a running tree already has this name (process {pid})"),
                "use another name, or wait until that tree has ended",
            ));
        }
    }
    Ok(())
}
