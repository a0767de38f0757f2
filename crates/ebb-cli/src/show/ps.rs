//! `ebb ps`: the trees that run under Ebb, and what each of their processes holds.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::base::failure::Failure;
use crate::base::name::Target;
use crate::base::size::short_bytes;
use crate::base::table;
use crate::running::counters::PAGE_BYTES;
use crate::running::process;
use crate::running::trees::{self, Access};
use crate::show::columns::{Asked, Form, Line, NONE, Of, short_age};
use crate::show::look::{Events, Faults, Row, STALL_OVER_MS, Shown, Tier, What, shown};
use crate::show::validate;

/// Time between the two looks from which faults a second are computed.
const BETWEEN: Duration = Duration::from_millis(200);

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
    /// Show these columns, if there are any.
    pub columns: Vec<Asked>,
}

const TREE_HEADINGS: [&str; 6] = ["TREE", "BUDGET", "HELD", "FREE", "PEAK", "PROCESSES"];
const HEADINGS: [&str; 12] = [
    "TREE", "PID", "COMMAND", "WANTED", "RESIDENT", "SHARED", "STAGED", "POOL", "SWAPPED", "FAULTS/S", "AGE", "MANAGED",
];

const IDLE_HEADINGS: [&str; 5] = ["TREE", "IDLE", "UNUSED", "TO-DEVICE", "SHOWN-RAM"];

const TIER_HEADINGS: [&str; 6] = ["TREE", "PID", "TIER", "PAGES", "CONTENT", "BYTES"];

/// Two tables: the trees, and their processes. And two more if they are asked for: what left because nobody used it with the
/// size of RAM that is shown, and the tiers. Empty if there are no trees.
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
        let [out, written] = [shown.idle.out_bytes, shown.idle.written_bytes].map(size);
        let ram = shown.show_ram_bytes.map_or_else(|| NONE.to_owned(), size);
        idle.push(vec![shown.label.clone(), period, out, written, ram]);
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

/// One table of the columns that were asked for. It has a line for each process if a column is a process's, or all is asked for, and
/// else for each tree.
fn chosen(form: &Ps, all: &[Shown]) -> String {
    let of_processes = form.verbose || form.columns.iter().any(|asked| asked.column.of == Of::Process);
    let lines = all.iter().flat_map(|shown| {
        let processes = of_processes.then(|| shown.rows.iter().map(|row| Line::of_process(shown, row)));
        let tree = (!of_processes).then(|| Line::of_tree(shown));
        tree.into_iter().chain(processes.into_iter().flatten())
    });
    let values = if form.bytes { Form::Plain } else { Form::Short };
    let mut table: Vec<Vec<String>> =
        lines.map(|line| form.columns.iter().map(|asked| (asked.column.value)(&line).text(values)).collect()).collect();
    // As ps(1) has it: without any heading there is no line for them.
    if form.headings && !table.is_empty() && form.columns.iter().any(|asked| !asked.heading.is_empty()) {
        table.insert(0, form.columns.iter().map(|asked| asked.heading.clone()).collect());
    }
    let right: Vec<bool> = form.columns.iter().map(|asked| !asked.column.is_text).collect();
    table::aligned(&table, &right)
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
            "held_bytes": bytes(figures.held()),
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

/// How much of the time went to swap.
fn stall_json(shown: &Shown) -> Value {
    json!({
        "some_percent": shown.stalled_some.map(|millionths| millionths as f64 / 1e4),
        "over_ms": STALL_OVER_MS,
        "some_ns": shown.events.some_ns,
        "fault_ns": shown.events.fault_ns,
        "reclaim_ns": shown.events.reclaim_ns,
    })
}

/// What has happened since the tree began, by the names of `ebb metrics`.
fn events_json(events: &Events) -> Value {
    let object = |pairs: &[(&str, u64)]| {
        Value::Object(pairs.iter().map(|(name, count)| ((*name).to_owned(), json!(count))).collect())
    };
    json!({
        "faults": object(&events.faults()),
        "cold_faults": events.faults_cold,
        "refaults_near": events.refaults_near,
        "readahead_pages": { "used": events.ahead_hits, "unused": events.ahead_misses },
        "swapped_out_pages": object(&events.swapped_out()),
        "written_back_pages": events.writeback_pages,
    })
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
            "show_ram_bytes": shown.show_ram_bytes,
            "idle_ms": shown.idle.period_ms,
            "idle_out_bytes": shown.idle.out_bytes,
            "idle_to_device_bytes": shown.idle.written_bytes,
            "stall": stall_json(shown),
            "events": events_json(&shown.events),
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
    let show = if form.json {
        json(&all)
    } else if form.columns.is_empty() {
        text(form, &all)
    } else {
        chosen(form, &all)
    };
    Ok((show, 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::show::columns;
    use crate::show::look::{Figures, Idle};

    const FORM: Ps = Ps {
        targets: Vec::new(),
        json: false,
        bytes: false,
        headings: true,
        verbose: false,
        validate: false,
        columns: Vec::new(),
    };

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
            show_ram_bytes: Some(192 << 20),
            idle: Idle { period_ms: 600_000, out_bytes: 96 << 20, written_bytes: 80 << 20 },
            events: Events { faults_pool: 5, refaults_near: 2, fault_ns: 9, ..Events::default() },
            stalled_some: Some(123_400),
            stalled_full: None,
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
        assert!(
            rest.starts_with("\nTREE IDLE UNUSED TO-DEVICE SHOWN-RAM\nweb   10m    96M       80M      192M\n"),
            "{rest}"
        );
        let mut web = web();
        web.idle = Idle { period_ms: 0, out_bytes: 0, written_bytes: 0 };
        web.show_ram_bytes = None;
        assert!(text(&form, &[web]).contains("\nweb   off     0B        0B         -\n"));
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
        assert_eq!(value[0]["show_ram_bytes"], json!(192 << 20));
        assert_eq!((&value[0]["idle_ms"], &value[0]["idle_to_device_bytes"]), (&json!(600_000), &json!(80 << 20)));
        assert_eq!((&managed["swapped_bytes"], &managed["age_ms"]), (&json!(60 << 20), &json!(1500)));
        assert_eq!(
            value[0]["processes"][1],
            json!({
                "pid": 4711, "command": "sudo", "managed": false, "held_bytes": 4 << 20
            })
        );
        assert_eq!(value[0]["processes"][2]["pid"], Value::Null);
        let stall = json!({ "some_percent": 12.34, "over_ms": 10_000, "some_ns": 0, "fault_ns": 9, "reclaim_ns": 0 });
        assert_eq!(value[0]["stall"], stall);
        let events = &value[0]["events"];
        assert_eq!((&events["faults"]["pool"], &events["refaults_near"]), (&json!(5), &json!(2)));
    }

    fn of_columns(list: &str, form: Ps, trees: &[Shown]) -> String {
        let Ok(columns::Wish::Columns(columns)) = columns::parse(list) else { panic!("{list}") };
        chosen(&Ps { columns, ..form }, trees)
    }

    #[test]
    fn columns_come_in_the_order_asked_for_with_a_line_for_each_tree() {
        let expected = "TREE HELD BUDGET STALL RATIO WANTED\nweb   54M    64M 12.3% 3.75x   104M\n";
        assert_eq!(of_columns("tree,held,budget,stall,ratio,wanted", FORM, &[web()]), expected);
        let two = of_columns(
            "tree,processes,faults",
            FORM,
            &[web(), Shown { label: "db".into(), rows: Vec::new(), ..web() }],
        );
        assert_eq!(two, "TREE PROCESSES FAULTS\nweb          3      7\ndb           0      0\n");
        assert_eq!(of_columns("tree", FORM, &[]), "");
    }

    #[test]
    fn a_column_of_processes_makes_a_line_for_each_of_them() {
        let expected = " PID TREE BUDGET COMMAND   HELD COLD MANAGED\n\
                        \x20  8 web     64M python3  49.5M   2M yes\n\
                        4711 web     64M sudo        4M    - no\n\
                        \x20  - web     64M (others)    4K    - no\n";
        assert_eq!(of_columns("pid,tree,budget,command,held,cold,managed", FORM, &[web()]), expected);
        let verbose = Ps { verbose: true, ..FORM };
        assert_eq!(
            of_columns("held,device", verbose, &[web()]),
            " HELD DEVICE\n49.5M   512K\n   4M      -\n   4K      -\n"
        );
    }

    #[test]
    fn headings_go_as_they_do_for_ps() {
        assert_eq!(of_columns("tree=,held=", FORM, &[web()]), "web 54M\n");
        assert_eq!(of_columns("tree=,held=MEM", FORM, &[web()]), "    MEM\nweb 54M\n");
        let plain = Ps { bytes: true, headings: false, ..FORM };
        assert_eq!(of_columns("tree,held,idle,ratio,stall", plain, &[web()]), "web 56623104 600000 3.75 12.3\n");
    }

    #[test]
    fn the_columns_of_a_process_are_those_of_the_tables() {
        let names = HEADINGS.map(str::to_lowercase).join(",");
        let tables = text(&FORM, &[web()]);
        let (_, processes) = tables.split_once("\n\n").unwrap();
        assert_eq!(of_columns(&names, FORM, &[web()]), processes);
        let tiers = of_columns("hot,cold,device", Ps { verbose: true, ..FORM }, &[web()]);
        assert!(tiers.starts_with("HOT COLD DEVICE\n 6M   2M   512K\n"), "{tiers}");
    }
}
