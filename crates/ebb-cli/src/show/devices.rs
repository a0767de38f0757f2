//! `ebb swapon --show`: the devices of running processes, shown like util-linux's `swapon --show`.

use std::path::Path;
use std::time::Duration;

use ebb::stats::Writes;

use crate::base::failure::Failure;
use crate::base::name::Target;
use crate::base::size::short_bytes;
use crate::base::sys;
use crate::base::table;
use crate::base::text::printable;
use crate::running::control::{Answer, Control, Row, attempt};
use crate::running::process::{self, Process};
use crate::running::trees;

/// How long a process may take to list its devices.
const PATIENCE: Duration = Duration::from_secs(5);
/// How many processes are asked at once.
const AT_ONCE: usize = 32;

/// What to show, and in which form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Show {
    /// One process, or all of a tree; none for all that this user may ask.
    pub target: Option<Target>,
    /// Show sizes in bytes.
    pub bytes: bool,
    pub headings: bool,
}

impl Show {
    /// Whether all that is shown belongs to one process that the user has named.
    fn is_of_one(&self) -> bool {
        matches!(self.target, Some(Target::Of(_)))
    }
}

/// The devices of one process.
struct Devices {
    pid: i32,
    rows: Vec<Row>,
}

/// Asks one process for its devices.
fn devices(pid: i32) -> Result<Devices, Failure> {
    attempt(|_| {
        let control = Control::open(pid)?;
        control.set_patience(PATIENCE)?;
        control.ask(b"show")?;
        let mut rows = Vec::new();
        loop {
            match control.answer()? {
                Answer::Row(row) => rows.push(row),
                Answer::Done => return Ok(Devices { pid, rows }),
                Answer::Refused(refusal) => return Err(refusal.of(process::what(pid))),
                Answer::Left(_) | Answer::Given(_) => return Err(control.misunderstood()),
            }
        }
    })
}

/// Every managed process in which Ebb's own thread runs.
fn all_processes() -> Result<Vec<i32>, Failure> {
    let processes = Process::managed(Path::new(process::PROC));
    let processes = processes.map_err(|error| Failure::ebb(process::PROC, error, "mount it"))?;
    Ok(processes.iter().filter(|process| process.has_background()).map(|process| process.pid).collect())
}

/// Asks several processes. Complains about a process that cannot be asked, unless it has ended or begun another program
/// meanwhile.
fn all_devices(pids: &[i32]) -> Vec<Devices> {
    let proc = Path::new(process::PROC);
    let mut found = Vec::new();
    for some in pids.chunks(AT_ONCE) {
        let asked: Vec<_> = some.iter().map(|&pid| (pid, std::thread::spawn(move || devices(pid)))).collect();
        for (pid, thread) in asked {
            match thread.join() {
                Ok(Ok(devices)) => found.push(devices),
                Ok(Err(failure)) if Process::find(proc, pid).is_ok_and(|process| process.has_background()) => {
                    sys::complain(&failure.to_string());
                }
                _ => {}
            }
        }
    }
    found
}

/// A column of the table.
struct Column {
    heading: &'static str,
    right: bool,
    cell: fn(&Show, i32, &Row) -> String,
}

fn size(form: &Show, bytes: u64) -> String {
    if form.bytes { bytes.to_string() } else { short_bytes(bytes) }
}

/// The time of a read; `-` before the first.
fn microseconds(ns: u64) -> String {
    if ns == 0 { "-".to_owned() } else { ns.div_ceil(1000).to_string() }
}

/// How much may be written; `-` for as much as there is.
fn budget(form: &Show, writes: Option<Writes>) -> String {
    writes.map_or("-".to_owned(), |writes| format!("{}/{}", size(form, writes.bytes()), writes.period().name()))
}

const PID: Column = Column { heading: "PID", right: true, cell: |_, pid, _| pid.to_string() };
const COLUMNS: [Column; 11] = [
    Column { heading: "NAME", right: false, cell: |_, _, row| printable(&row.name.to_string_lossy()) },
    Column { heading: "TYPE", right: false, cell: |_, _, row| printable(&row.kind) },
    Column { heading: "SIZE", right: true, cell: |form, _, row| size(form, row.size_bytes) },
    Column { heading: "USED", right: true, cell: |form, _, row| size(form, row.used_bytes) },
    Column { heading: "PRIO", right: true, cell: |_, _, row| row.prio.to_string() },
    Column { heading: "KIND", right: false, cell: |_, _, row| printable(&row.medium) },
    Column { heading: "READ-US", right: true, cell: |_, _, row| microseconds(row.read_ns) },
    Column { heading: "AHEAD-HIT", right: true, cell: |_, _, row| row.hits.to_string() },
    Column { heading: "AHEAD-MISS", right: true, cell: |_, _, row| row.misses.to_string() },
    Column { heading: "WRITTEN", right: true, cell: |form, _, row| size(form, row.written_bytes) },
    Column { heading: "WRITES", right: true, cell: |form, _, row| budget(form, row.writes) },
];

/// The table. Empty if there are no devices, as with `swapon --show`.
fn table(form: &Show, all: &[Devices]) -> String {
    let columns: Vec<Column> = (!form.is_of_one()).then_some(PID).into_iter().chain(COLUMNS).collect();
    let mut lines: Vec<Vec<String>> = Vec::new();
    for devices in all {
        lines.extend(
            devices.rows.iter().map(|row| columns.iter().map(|column| (column.cell)(form, devices.pid, row)).collect()),
        );
    }
    if lines.is_empty() {
        return String::new();
    }
    if form.headings {
        lines.insert(0, columns.iter().map(|column| column.heading.to_owned()).collect());
    }
    let right: Vec<bool> = columns.iter().map(|column| column.right).collect();
    table::aligned(&lines, &right)
}

/// The table of one process, of a tree, or of all.
pub fn report(form: &Show) -> Result<String, Failure> {
    let all = match &form.target {
        Some(Target::Of(pid)) => vec![devices(*pid)?],
        Some(tree) => all_devices(&trees::processes(tree)?),
        None => all_devices(&all_processes()?),
    };
    Ok(table(form, &all))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, size_bytes: u64, used_bytes: u64, prio: i32) -> Row {
        let (medium, name) = (if prio < 0 { "ssd" } else { "hdd" }.into(), name.into());
        let (read_ns, hits, misses) = if prio < 0 { (0, 0, 0) } else { (8_000_001, 12, 3) };
        let (written_bytes, writes) = if prio < 0 { (0, None) } else { (3 << 29, Writes::parse(b"21474836480/day")) };
        let kind = "file".into();
        Row { kind, size_bytes, used_bytes, prio, medium, read_ns, hits, misses, written_bytes, writes, name }
    }

    fn two() -> Vec<Devices> {
        vec![
            Devices { pid: 7, rows: vec![row("/var/tmp", 512 << 20, 0, -1), row("/mnt/fast", 3 << 29, 4096, 100)] },
            Devices { pid: 4711, rows: vec![row("/x", 1 << 40, 1 << 30, -1)] },
        ]
    }

    const FORM: Show = Show { target: Some(Target::Of(7)), bytes: false, headings: true };

    #[test]
    fn the_columns_are_as_wide_as_their_content() {
        let text = "NAME      TYPE SIZE USED PRIO KIND READ-US AHEAD-HIT AHEAD-MISS WRITTEN  WRITES\n\
                    /var/tmp  file 512M   0B   -1 ssd        -         0          0      0B       -\n\
                    /mnt/fast file 1.5G   4K  100 hdd     8001        12          3    1.5G 20G/day\n";
        assert_eq!(table(&FORM, &two()[..1]), text);
    }

    #[test]
    fn several_processes_are_told_apart_by_their_numbers() {
        let text = " PID NAME      TYPE SIZE USED PRIO KIND READ-US AHEAD-HIT AHEAD-MISS WRITTEN  WRITES\n   \
                    7 /var/tmp  file 512M   0B   -1 ssd        -         0          0      0B       -\n   \
                    7 /mnt/fast file 1.5G   4K  100 hdd     8001        12          3    1.5G 20G/day\n\
                    4711 /x        file   1T   1G   -1 ssd        -         0          0      0B       -\n";
        assert_eq!(table(&Show { target: None, ..FORM }, &two()), text);
        let named = Show { target: Some(Target::Named("web".into())), ..FORM };
        assert_eq!(table(&named, &two()), text);
    }

    #[test]
    fn bytes_and_no_headings_are_for_programs() {
        let form = Show { bytes: true, headings: false, ..FORM };
        assert_eq!(table(&form, &two()[1..]), "/x file 1099511627776 1073741824 -1 ssd - 0 0 0 -\n");
        let bytes = Show { bytes: true, ..FORM };
        assert!(table(&bytes, &two()).contains(" 1610612736 21474836480/day\n"));
    }

    #[test]
    fn no_devices_are_no_table() {
        assert_eq!(table(&FORM, &[]), "");
        assert_eq!(table(&FORM, &[Devices { pid: 7, rows: Vec::new() }]), "");
    }

    #[test]
    fn a_name_does_not_reach_the_terminal_as_commands() {
        let devices = Devices { pid: 7, rows: vec![row("/a\x1b[2J b", 4096, 0, 0)] };
        let form = Show { headings: false, ..FORM };
        assert_eq!(table(&form, &[devices]), "/a\\x1b[2J b file 4K 0B 0 hdd 8001 12 3 1.5G 20G/day\n");
    }
}
