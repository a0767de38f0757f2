//! Programs of a tree that Ebb could not manage: found by their files, and reported at the end.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::base::size::human_bytes;
use crate::base::text::printable;
use crate::host::image::{self, Identity, Obstacle};
use crate::running::counters::PAGE_BYTES;
use crate::running::outside::{Process, Table};

/// The most programs to name.
const NAMES_MAX: usize = 8;
/// The most programs to tell apart.
const FILES_MAX: usize = 1024;

/// Unmanaged programs found so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Unmanaged {
    /// File names, in the order in which they were found.
    pub names: Vec<String>,
    /// The most memory that all of them held together, in bytes.
    pub peak_bytes: u64,
    /// The distinct files.
    files: BTreeSet<PathBuf>,
}

impl Unmanaged {
    /// Adds a program. Returns true if it was not known.
    pub fn add(&mut self, file: &Path) -> bool {
        if self.files.len() >= FILES_MAX || !self.files.insert(file.to_owned()) {
            return false;
        }
        let name = printable(&file.file_name().unwrap_or(file.as_os_str()).to_string_lossy());
        if self.names.len() < NAMES_MAX && !self.names.contains(&name) {
            self.names.push(name);
        }
        true
    }

    /// Notes how many pages all of them hold now.
    pub fn hold(&mut self, pages: u64) {
        self.peak_bytes = self.peak_bytes.max(pages * PAGE_BYTES);
    }

    /// The line for the summary; none if there is nothing to report.
    pub fn line(&self) -> Option<String> {
        if self.names.is_empty() {
            return None;
        }
        let more = if self.files.len() > NAMES_MAX { ", ..." } else { "" };
        Some(format!(
            "ebb: not managed and not limited: {}{more} (up to {}, counted in the budget)",
            self.names.join(", "),
            human_bytes(self.peak_bytes)
        ))
    }

    /// Likewise for `--stats`.
    pub fn json(&self) -> Value {
        json!({ "names": self.names, "peak_bytes": self.peak_bytes })
    }
}

/// What is known about the program that a process runs.
#[derive(Debug)]
struct Program {
    /// None if this user may not see it.
    file: Option<PathBuf>,
    /// Decided at the second look, none until then. Short-lived processes do not matter, and a program that can be
    /// managed may not be managed yet.
    obstacle: Option<Option<Obstacle>>,
    /// The last look that saw the process.
    look: u64,
}

/// Decides which processes run programs that cannot be managed, once for each program.
#[derive(Debug, Default)]
pub struct Judge {
    programs: HashMap<Process, Program>,
    look: u64,
}

/// The value of a line of `/proc/PID/status`, split into words.
fn status<'a>(text: &'a str, key: &str) -> Vec<&'a str> {
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    line.unwrap_or_default().split_ascii_whitespace().collect()
}

/// Why a program whose file is hidden cannot be managed: the process has rights that this user lacks.
fn by_rights(status_text: &str, identity: Identity) -> Option<Obstacle> {
    let number = |key: &str, at: usize| status(status_text, key).get(at)?.parse::<u32>().ok();
    // The values are real, effective, saved and file system ID. The effective one counts.
    let (user, group) = (number("Uid", 1)?, number("Gid", 1)?);
    let has_capabilities =
        status(status_text, "CapPrm").first().is_some_and(|bits| bits.bytes().any(|bit| bit != b'0'));
    if user != identity.user {
        Some(Obstacle::SetUser { owner: user })
    } else if group != identity.group {
        Some(Obstacle::SetGroup { group })
    } else {
        (has_capabilities && user != 0).then_some(Obstacle::Capabilities)
    }
}

fn look_at(proc: &Path, pid: i32, file: Option<&Path>) -> Option<Obstacle> {
    let dir = proc.join(pid.to_string());
    match file {
        Some(_) => image::obstacle(&dir.join("exe"), Identity::current()),
        None => by_rights(&std::fs::read_to_string(dir.join("status")).ok()?, Identity::current()),
    }
}

impl Judge {
    /// Begins another look at all processes.
    pub fn begin(&mut self) {
        self.look += 1;
    }

    /// The file of `process`'s program, if this is at least the second look at it and it cannot be managed.
    pub fn unmanaged(&mut self, table: Table<'_>, process: Process) -> Option<PathBuf> {
        let file = std::fs::read_link(table.0.join(process.pid.to_string()).join("exe")).ok();
        let known = self.programs.entry(process).or_insert(Program { file: None, obstacle: None, look: 0 });
        if known.look == 0 || known.file != file {
            *known = Program { file, obstacle: None, look: self.look };
            return None;
        }
        known.look = self.look;
        let file = known.file.as_deref();
        let obstacle = known.obstacle.get_or_insert_with(|| look_at(table.0, process.pid, file));
        obstacle.as_ref()?;
        file.map(Path::to_owned).or_else(|| table.command(process.pid).map(PathBuf::from))
    }

    /// Forgets the processes that this look did not see.
    pub fn end(&mut self) {
        let look = self.look;
        self.programs.retain(|_, program| program.look == look);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOBODY: Identity = Identity { user: 65534, group: 65534, no_new_privileges: false };

    #[test]
    fn programs_are_named_once_and_at_most_eight_of_them() {
        let mut found = Unmanaged::default();
        assert_eq!(found.line(), None);
        assert!(found.add(Path::new("/x/static_prog")) && !found.add(Path::new("/x/static_prog")));
        assert!(found.add(Path::new("/usr/bin/sudo")) && found.add(Path::new("/other/sudo")));
        found.hold(10_240);
        found.hold(5);
        let line = "ebb: not managed and not limited: static_prog, sudo (up to 40.0 MiB, counted in the budget)";
        assert_eq!(found.line().as_deref(), Some(line));
        assert_eq!(found.json(), json!({ "names": ["static_prog", "sudo"], "peak_bytes": 40 << 20 }));
        for n in 0..10 {
            found.add(Path::new(&format!("/p{n}")));
        }
        assert_eq!(found.names.len(), 8);
        assert!(found.line().unwrap().contains("p5, ... (up to"), "{:?}", found.line());
    }

    #[test]
    fn a_name_does_not_reach_the_terminal_as_commands() {
        let mut found = Unmanaged::default();
        found.add(Path::new("/x/a\x1b[2J"));
        assert_eq!(found.names, ["a\\x1b[2J"]);
    }

    #[test]
    fn a_program_whose_file_is_not_shown_is_judged_by_its_rights() {
        let of =
            |uid, gid, caps| format!("Name:\tx\nUid:\t65534\t{uid}\t0\t0\nGid:\t65534\t{gid}\t0\t0\nCapPrm:\t{caps}\n");
        assert_eq!(by_rights(&of(0, 65534, "0"), NOBODY), Some(Obstacle::SetUser { owner: 0 }));
        assert_eq!(by_rights(&of(65534, 5, "0"), NOBODY), Some(Obstacle::SetGroup { group: 5 }));
        assert_eq!(by_rights(&of(65534, 65534, "0000000000003000"), NOBODY), Some(Obstacle::Capabilities));
        assert_eq!(by_rights(&of(65534, 65534, "0000000000000000"), NOBODY), None);
        assert_eq!(by_rights("", NOBODY), None);
    }

    #[test]
    fn this_process_can_be_managed() {
        let table = Table(Path::new("/proc"));
        let process = table.process(std::process::id() as i32).unwrap();
        let mut judge = Judge::default();
        for _ in 0..3 {
            judge.begin();
            assert_eq!(judge.unmanaged(table, process), None);
            judge.end();
        }
        assert_eq!(judge.programs[&process].obstacle, Some(None));
        judge.begin();
        judge.end();
        assert!(judge.programs.is_empty());
    }
}
