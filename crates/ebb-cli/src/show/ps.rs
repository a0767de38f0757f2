//! `ebb ps`: the trees that run under Ebb, and what each of their processes holds.
//!
//! Each process publishes what it holds, so a figure may be as old as the process's last work. Memory is what a process
//! was charged, in pages: resident pages and metadata, staged pages, and the pool.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use ebb::stats::Shared;
use ebb::tree::{Kind, Member, MemberId, now_ms, said};
use serde_json::{Value, json};

use crate::base::failure::Failure;
use crate::base::name::Target;
use crate::base::size::short_bytes;
use crate::base::table;
use crate::base::text::printable;
use crate::running::counters::PAGE_BYTES;
use crate::running::outside::Table;
use crate::running::process;
use crate::running::trees::{self, Access, Holder, RunningTree};
use crate::show::validate;

/// Time between the two looks from which faults a second are computed.
const BETWEEN: Duration = Duration::from_millis(200);
/// Shown where there is no figure.
const NONE: &str = "-";

/// What to show, and in which form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ps {
    /// The trees to show; all if empty.
    pub targets: Vec<Target>,
    pub json: bool,
    /// Show sizes in bytes.
    pub bytes: bool,
    pub headings: bool,
    /// Show what each tier holds, and what left because nobody used it.
    pub verbose: bool,
    /// Check the figures instead of showing them.
    pub validate: bool,
}

/// What a place for pages that left memory holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tier {
    name: &'static str,
    pages: u64,
    bytes: u64,
}

/// Figures that one member published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Figures {
    wanted: u64,
    charged: u64,
    /// Charged pages that another process also holds since a fork, and that count there.
    shared: u64,
    staged: u64,
    pool: u64,
    faults: u64,
    age_ms: Option<u64>,
    tiers: [Tier; 3],
}

impl Figures {
    fn of(member: &Member, shared: u64) -> Self {
        // Read `charged` once: it may change meanwhile, and what is shared must not exceed it.
        let charged = said(&member.charged);
        Self {
            wanted: said(&member.wanted),
            charged,
            shared: shared.min(charged),
            staged: said(&member.staged),
            pool: said(&member.pool),
            faults: member.faults.load(Relaxed),
            age_ms: member.coldest_ms(now_ms()),
            tiers: [
                Tier { name: "hot", pages: said(&member.hot_pages), bytes: said_bytes(&member.hot_bytes) },
                Tier { name: "cold", pages: said(&member.cold_pages), bytes: said_bytes(&member.cold_bytes) },
                Tier { name: "device", pages: said(&member.on_device), bytes: said_bytes(&member.device_bytes) },
            ],
        }
    }

    /// Pages in page tables, and Ebb's metadata.
    fn resident(&self) -> u64 {
        self.charged.saturating_sub(self.staged + self.pool)
    }

    /// Pages whose content is neither resident nor staged: it is in the pool, in a file, or same-filled. Too few by
    /// Ebb's metadata, which counts as resident.
    fn swapped(&self) -> u64 {
        self.wanted.saturating_sub(self.resident() + self.staged)
    }
}

/// Bytes that a member published. Any process of the tree may have written any value.
fn said_bytes(word: &AtomicU64) -> u64 {
    word.load(Relaxed).min(1 << 50)
}

/// A process of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Row {
    /// None for a process in another pid namespace.
    pid: Option<i32>,
    command: String,
    what: What,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum What {
    Managed {
        figures: Figures,
        faults_per_s: u64,
    },
    /// Pages that it holds, as measured from outside.
    Outside {
        pages: u64,
    },
    /// Likewise for processes without places of their own, which count in the place of `ebb run`.
    Others {
        pages: u64,
    },
}

/// A tree and its processes.
struct Shown {
    label: String,
    name: Option<String>,
    supervisor: i32,
    budget_bytes: u64,
    held_bytes: u64,
    peak_bytes: u64,
    idle: Idle,
    rows: Vec<Row>,
}

/// What has left memory because nobody used it.
struct Idle {
    /// The idle period; 0 while there is none.
    period_ms: u64,
    out_bytes: u64,
    /// What of that went on from the pool to a device.
    written_bytes: u64,
}

impl Idle {
    fn of(stats: &Shared) -> Self {
        let bytes = |pages: &AtomicU64| pages.load(Relaxed).saturating_mul(PAGE_BYTES);
        Self {
            period_ms: stats.idle_ms.load(Relaxed),
            out_bytes: bytes(&stats.idle_out_pages),
            written_bytes: bytes(&stats.idle_writeback_pages),
        }
    }
}

impl Shown {
    /// Bytes that are left; 0 if the tree holds too much.
    fn free_bytes(&self) -> u64 {
        self.budget_bytes.saturating_sub(self.held_bytes)
    }
}

/// Fault counts of every member at one time.
struct Faults {
    at: Instant,
    of: Vec<(MemberId, u64)>,
}

impl Faults {
    fn look(tree: &RunningTree) -> Self {
        let all = tree.counters.tree().members();
        let of = all
            .map(|(index, member)| (MemberId { index, generation: member.generation() }, member.faults.load(Relaxed)));
        Self { at: Instant::now(), of: of.collect() }
    }

    /// Faults a second since then, of a member that has had `now` faults by now.
    fn per_s(&self, id: MemberId, now: u64) -> u64 {
        let before = self.of.iter().find(|(other, _)| *other == id).map_or(0, |(_, faults)| *faults);
        let ms = self.at.elapsed().as_millis().max(1) as u64;
        now.saturating_sub(before).saturating_mul(1000) / ms
    }
}

/// Pages of each member that count for another member.
fn shared(tree: &RunningTree) -> HashMap<MemberId, u64> {
    let mut all = HashMap::new();
    ebb::tree::recount(tree.counters.tree(), tree.counters.fd(), |_, _, holders| {
        holders.iter().for_each(|(id, pages)| *all.entry(*id).or_default() += pages);
    });
    all
}

fn rows(tree: &RunningTree, before: &Faults) -> Vec<Row> {
    let table = Table(Path::new(process::PROC));
    let own = tree.own();
    let supervisor = tree.supervisor();
    // Take back what dead processes held: it belongs to nobody.
    ebb::tree::reap(tree.counters.tree(), tree.counters.fd(), &own);
    let shared = shared(tree);
    let row = |(index, member): (u32, &Member)| {
        let kind = member.kind();
        let pid = match (kind, tree.holder(index, &own)) {
            (Kind::Free | Kind::Reserved, _) | (_, Holder::Nobody) => return None,
            (_, Holder::Process(pid)) => Some(pid),
            (_, Holder::Unseen) => None,
        };
        let id = MemberId { index, generation: member.generation() };
        let pages = tree.counters.tree().held_by(member).max(0) as u64;
        let command = pid.and_then(|pid| table.command(pid)).map_or_else(|| NONE.to_owned(), |name| printable(&name));
        Some(match kind {
            Kind::Outside if pid == Some(supervisor) => {
                Row { pid: None, command: "(others)".to_owned(), what: What::Others { pages } }
            }
            Kind::Outside => Row { pid, command, what: What::Outside { pages } },
            _ => {
                let figures = Figures::of(member, shared.get(&id).copied().unwrap_or(0));
                Row { pid, command, what: What::Managed { figures, faults_per_s: before.per_s(id, figures.faults) } }
            }
        })
    };
    let mut rows: Vec<Row> = tree.counters.tree().members().filter_map(row).collect();
    // Processes without a number come last.
    rows.sort_by_key(|row| row.pid.unwrap_or(i32::MAX));
    rows
}

fn shown(tree: &RunningTree, before: &Faults) -> Shown {
    let rows = rows(tree, before);
    let sum = tree.counters.tree().sum();
    Shown {
        label: tree.label(),
        name: tree.counters.name(),
        supervisor: tree.supervisor(),
        budget_bytes: sum.limit.max(0) as u64 * PAGE_BYTES,
        held_bytes: sum.held.max(0) as u64 * PAGE_BYTES,
        peak_bytes: tree.counters.page().peak_held_bytes.load(Relaxed),
        idle: Idle::of(tree.counters.page()),
        rows,
    }
}

/// `250ms`, `1.5s`, `3m`, `2h`.
fn short_age(ms: u64) -> String {
    match ms {
        0..1_000 => format!("{ms}ms"),
        1_000..60_000 => format!("{}.{}s", ms / 1000, ms % 1000 / 100),
        60_000..3_600_000 => format!("{}m", ms / 60_000),
        _ => format!("{}h", ms / 3_600_000),
    }
}

const TREE_HEADINGS: [&str; 6] = ["TREE", "BUDGET", "HELD", "FREE", "PEAK", "PROCESSES"];
const HEADINGS: [&str; 12] = [
    "TREE", "PID", "COMMAND", "WANTED", "RESIDENT", "SHARED", "STAGED", "POOL", "SWAPPED", "FAULTS/S", "AGE", "MANAGED",
];

const IDLE_HEADINGS: [&str; 4] = ["TREE", "IDLE", "UNUSED", "TO-DEVICE"];

const TIER_HEADINGS: [&str; 6] = ["TREE", "PID", "TIER", "PAGES", "CONTENT", "BYTES"];

/// Two tables: the trees, and their processes. And two more if they are asked for: what left because nobody used it, and the
/// tiers. Empty if there are no trees.
fn text(form: &Ps, all: &[Shown]) -> String {
    if all.is_empty() {
        return String::new();
    }
    let size = |bytes: u64| if form.bytes { bytes.to_string() } else { short_bytes(bytes) };
    let heading = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let (mut trees, mut processes, mut idle) = (Vec::new(), Vec::new(), Vec::new());
    if form.headings {
        idle.push(heading(&IDLE_HEADINGS));
        trees.push(heading(&TREE_HEADINGS));
        processes.push(heading(&HEADINGS));
    }
    for shown in all {
        let sizes = [shown.budget_bytes, shown.held_bytes, shown.free_bytes(), shown.peak_bytes].map(size);
        let cells = [shown.label.clone()].into_iter().chain(sizes).chain([shown.rows.len().to_string()]);
        trees.push(cells.collect());
        let period = if shown.idle.period_ms > 0 { short_age(shown.idle.period_ms) } else { "off".to_owned() };
        idle.push(vec![shown.label.clone(), period, size(shown.idle.out_bytes), size(shown.idle.written_bytes)]);
        processes.extend(shown.rows.iter().map(|row| cells_of(&shown.label, row, &size)));
    }
    let right = |len: usize, left: &[usize]| (0..len).map(|at| !left.contains(&at)).collect::<Vec<_>>();
    let mut out = table::aligned(&trees, &right(TREE_HEADINGS.len(), &[0]));
    if processes.len() > usize::from(form.headings) {
        out.push('\n');
        out += &table::aligned(&processes, &right(HEADINGS.len(), &[0, 2, 11]));
    }
    if form.verbose {
        out.push('\n');
        out += &table::aligned(&idle, &right(IDLE_HEADINGS.len(), &[0]));
        let mut tiers = if form.headings { vec![heading(&TIER_HEADINGS)] } else { Vec::new() };
        tiers.extend(
            all.iter().flat_map(|shown| shown.rows.iter().flat_map(|row| tier_cells(&shown.label, row, &size))),
        );
        if tiers.len() > usize::from(form.headings) {
            out.push('\n');
            out += &table::aligned(&tiers, &right(TIER_HEADINGS.len(), &[0, 2]));
        }
    }
    out
}

fn cells_of(label: &str, row: &Row, size: &impl Fn(u64) -> String) -> Vec<String> {
    let pid = row.pid.map_or_else(|| NONE.to_owned(), |pid| pid.to_string());
    let pages = |pages: u64| size(pages * PAGE_BYTES);
    let figures = match &row.what {
        What::Managed { figures, faults_per_s } => [
            pages(figures.wanted),
            pages(figures.resident()),
            pages(figures.shared),
            pages(figures.staged),
            pages(figures.pool),
            pages(figures.swapped()),
            faults_per_s.to_string(),
            figures.age_ms.map_or_else(|| NONE.to_owned(), short_age),
            "yes".to_owned(),
        ],
        What::Outside { pages: held } | What::Others { pages: held } => {
            let none = || NONE.to_owned();
            [pages(*held), pages(*held), none(), none(), none(), none(), none(), none(), "no".to_owned()]
        }
    };
    [label.to_owned(), pid, row.command.clone()].into_iter().chain(figures).collect()
}

/// A line for each tier of a managed process.
fn tier_cells(label: &str, row: &Row, size: &impl Fn(u64) -> String) -> Vec<Vec<String>> {
    let What::Managed { figures, .. } = &row.what else { return Vec::new() };
    let pid = row.pid.map_or_else(|| NONE.to_owned(), |pid| pid.to_string());
    let line = |Tier { name, pages, bytes }: Tier| {
        let amounts = [pages.to_string(), size(pages * PAGE_BYTES), size(bytes)];
        [label.to_owned(), pid.clone(), name.to_owned()].into_iter().chain(amounts).collect()
    };
    figures.tiers.map(line).to_vec()
}

fn tiers_json(tiers: &[Tier]) -> Value {
    let tier = |tier: &Tier| {
        let content = tier.pages * PAGE_BYTES;
        (tier.name.to_owned(), json!({ "pages": tier.pages, "content_bytes": content, "bytes": tier.bytes }))
    };
    Value::Object(tiers.iter().map(tier).collect())
}

fn json_of(row: &Row) -> Value {
    let bytes = |pages: u64| pages * PAGE_BYTES;
    match &row.what {
        What::Managed { figures, faults_per_s } => json!({
            "pid": row.pid,
            "command": row.command,
            "managed": true,
            "wanted_bytes": bytes(figures.wanted),
            "held_bytes": bytes(figures.charged.saturating_sub(figures.shared)),
            "shared_bytes": bytes(figures.shared),
            "resident_bytes": bytes(figures.resident()),
            "staged_bytes": bytes(figures.staged),
            "pool_bytes": bytes(figures.pool),
            "swapped_bytes": bytes(figures.swapped()),
            "faults": figures.faults,
            "faults_per_s": faults_per_s,
            "age_ms": figures.age_ms,
            "tiers": tiers_json(&figures.tiers),
        }),
        What::Outside { pages } | What::Others { pages } => json!({
            "pid": row.pid,
            "command": row.command,
            "managed": false,
            "held_bytes": bytes(*pages),
        }),
    }
}

fn json(all: &[Shown]) -> String {
    let trees = all.iter().map(|shown| {
        json!({
            "tree": shown.label,
            "name": shown.name,
            "supervisor": shown.supervisor,
            "budget_bytes": shown.budget_bytes,
            "held_bytes": shown.held_bytes,
            "free_bytes": shown.free_bytes(),
            "peak_held_bytes": shown.peak_bytes,
            "idle_ms": shown.idle.period_ms,
            "idle_out_bytes": shown.idle.out_bytes,
            "idle_to_device_bytes": shown.idle.written_bytes,
            "processes": shown.rows.iter().map(json_of).collect::<Vec<_>>(),
        })
    });
    format!("{:#}\n", trees.collect::<Value>())
}

/// The text to print, and the exit status.
pub fn report(form: &Ps) -> Result<(String, i32), Failure> {
    // Showing needs write access, too: it first takes back what dead processes held.
    let all = trees::running(Path::new(process::PROC), Access::Change, &form.targets)?;
    let all = trees::select(all, &form.targets)?;
    if form.validate {
        return Ok(validate::report(&all));
    }
    let before: Vec<Faults> = all.iter().map(Faults::look).collect();
    if !all.is_empty() {
        std::thread::sleep(BETWEEN);
    }
    let all: Vec<Shown> = all.iter().zip(&before).map(|(tree, before)| shown(tree, before)).collect();
    Ok((if form.json { json(&all) } else { text(form, &all) }, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORM: Ps =
        Ps { targets: Vec::new(), json: false, bytes: false, headings: true, verbose: false, validate: false };
    const NO_TIERS: [Tier; 3] = [Tier { name: "none", pages: 0, bytes: 0 }; 3];

    fn web() -> Shown {
        let figures = Figures {
            wanted: 25_600,
            charged: 12_800,
            shared: 128,
            staged: 256,
            pool: 2560,
            faults: 7,
            age_ms: Some(1_500),
            tiers: [
                Tier { name: "hot", pages: 5120, bytes: 6 << 20 },
                Tier { name: "cold", pages: 2560, bytes: 2 << 20 },
                Tier { name: "device", pages: 256, bytes: 512 << 10 },
            ],
        };
        let managed = What::Managed { figures, faults_per_s: 12 };
        Shown {
            label: "web".into(),
            name: Some("web".into()),
            supervisor: 7,
            budget_bytes: 64 << 20,
            held_bytes: 54 << 20,
            peak_bytes: 60 << 20,
            idle: Idle { period_ms: 600_000, out_bytes: 96 << 20, written_bytes: 80 << 20 },
            rows: vec![
                Row { pid: Some(8), command: "python3".into(), what: managed },
                Row { pid: Some(4711), command: "sudo".into(), what: What::Outside { pages: 1024 } },
                Row { pid: None, command: "(others)".into(), what: What::Others { pages: 1 } },
            ],
        }
    }

    #[test]
    fn a_tree_and_its_processes_are_two_tables() {
        let expected = "TREE BUDGET HELD FREE PEAK PROCESSES\n\
                        web     64M  54M  10M  60M         3\n\
                        \n\
                        TREE  PID COMMAND  WANTED RESIDENT SHARED STAGED POOL SWAPPED FAULTS/S  AGE MANAGED\n\
                        web     8 python3    100M      39M   512K     1M  10M     60M       12 1.5s yes\n\
                        web  4711 sudo         4M       4M      -      -    -       -        -    - no\n\
                        web     - (others)     4K       4K      -      -    -       -        -    - no\n";
        assert_eq!(text(&FORM, &[web()]), expected);
    }

    #[test]
    fn what_left_unused_is_a_third_table() {
        let form = Ps { verbose: true, ..FORM };
        let (two, three) = (text(&FORM, &[web()]), text(&form, &[web()]));
        let rest = three.strip_prefix(&two).unwrap();
        assert!(rest.starts_with("\nTREE IDLE UNUSED TO-DEVICE\nweb   10m    96M       80M\n"), "{rest}");
        let mut web = web();
        web.idle = Idle { period_ms: 0, out_bytes: 0, written_bytes: 0 };
        assert!(text(&form, &[web]).contains("\nweb   off     0B        0B\n"));
    }

    #[test]
    fn tiers_are_a_table_of_their_own_for_managed_processes() {
        let expected = "\nTREE PID TIER   PAGES CONTENT BYTES\n\
                        web    8 hot     5120     20M    6M\n\
                        web    8 cold    2560     10M    2M\n\
                        web    8 device   256      1M  512K\n";
        let shown = text(&Ps { verbose: true, ..FORM }, &[web()]);
        assert!(shown.starts_with(&text(&FORM, &[web()])) && shown.ends_with(expected), "{shown}");
        let value: Value = serde_json::from_str(&json(&[web()])).unwrap();
        let cold = json!({ "pages": 2560, "content_bytes": 10 << 20, "bytes": 2 << 20 });
        assert_eq!(value[0]["processes"][0]["tiers"]["cold"], cold);
    }

    #[test]
    fn bytes_and_no_headings_are_for_programs() {
        let mut web = web();
        web.rows.truncate(1);
        let form = Ps { bytes: true, headings: false, ..FORM };
        let expected = "web 67108864 56623104 10485760 62914560 1\n\n\
                        web 8 python3 104857600 40894464 524288 1048576 10485760 62914560 12 1.5s yes\n";
        assert_eq!(text(&form, &[web]), expected);
    }

    #[test]
    fn no_trees_are_no_table() {
        assert_eq!(text(&FORM, &[]), "");
        assert_eq!(json(&[]), "[]\n");
    }

    #[test]
    fn the_json_tells_the_same() {
        let value: Value = serde_json::from_str(&json(&[web()])).unwrap();
        assert_eq!((&value[0]["name"], &value[0]["free_bytes"]), (&json!("web"), &json!(10 << 20)));
        let managed = &value[0]["processes"][0];
        assert_eq!((&value[0]["idle_ms"], &value[0]["idle_to_device_bytes"]), (&json!(600_000), &json!(80 << 20)));
        assert_eq!((&managed["swapped_bytes"], &managed["age_ms"]), (&json!(60 << 20), &json!(1500)));
        assert_eq!(
            value[0]["processes"][1],
            json!({
                "pid": 4711, "command": "sudo", "managed": false, "held_bytes": 4 << 20
            })
        );
        assert_eq!(value[0]["processes"][2]["pid"], Value::Null);
    }

    #[test]
    fn figures_that_do_not_fit_each_other_are_no_huge_numbers() {
        let figures = Figures {
            wanted: 5,
            charged: 10,
            shared: 0,
            staged: 20,
            pool: 30,
            faults: 0,
            age_ms: None,
            tiers: NO_TIERS,
        };
        assert_eq!((figures.resident(), figures.swapped()), (0, 0));
    }

    #[test]
    fn ages_are_short() {
        assert_eq!([0, 999, 1_550, 61_000, 7_200_000].map(short_age), ["0ms", "999ms", "1.5s", "1m", "2h"]);
    }
}
