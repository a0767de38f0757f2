//! Frames of `ebb top --batch`: plain text, for files and for terminals that cannot move the cursor.

use crate::base::size::{fixed_bytes, fixed_count};
use crate::base::table;
use crate::show::columns::{Column, Form, Line, Of, Value, named};
use crate::show::top::watch::{Picture, Rates};

const OF_TREES: [&str; 12] =
    ["tree", "budget", "held", "peak", "wanted", "resident", "pool", "cold", "ratio", "device", "swapped", "stall"];
const OF_PROCESSES: [&str; 14] = [
    "tree", "pid", "command", "held", "wanted", "resident", "shared", "staged", "pool", "cold", "device", "swapped",
    "age", "faults/s",
];
type Rate = fn(&Rates) -> f64;
/// Of each tree, a second.
const RATES: [(&str, Rate); 6] = [
    ("POOL/S", |rates| rates.pool),
    ("DEVICE/S", |rates| rates.device),
    ("STAGED/S", |rates| rates.staged),
    ("NEW/S", |rates| rates.first_touch),
    ("REFAULT/S", |rates| rates.refaults),
    ("AHEAD/S", |rates| rates.ahead_hits),
];

fn columns(names: &[&str]) -> Vec<&'static Column> {
    names.iter().filter_map(|name| named(name)).collect()
}

/// One frame.
pub fn text(picture: &Picture) -> String {
    let mut out = format!(
        "ebb top {}: {} trees, {} processes, held {}, wanted {}\n",
        picture.clock,
        picture.trees.len(),
        picture.processes(),
        fixed_bytes(picture.held_bytes()),
        fixed_bytes(picture.wanted_bytes()),
    );
    if picture.trees.is_empty() {
        return out;
    }
    let (of_trees, of_processes) = (columns(&OF_TREES), columns(&OF_PROCESSES));
    let headings = |columns: &[&'static Column]| columns.iter().map(|column| column.heading()).collect::<Vec<_>>();
    let (mut trees, mut processes) = (vec![headings(&of_trees)], vec![headings(&of_processes)]);
    trees[0].extend(["FULL", "WAITING"].map(str::to_owned));
    trees[0].extend(RATES.map(|(name, _)| name.to_owned()));
    for tree in &picture.trees {
        let line = Line { shown: &tree.shown, row: None, totals: tree.totals };
        let cells = of_trees.iter().map(|column| (column.value)(&line).text(Form::Fixed));
        let rates = RATES.iter().map(|(_, of)| fixed_count(of(&tree.rates).round() as u64));
        let full = tree.shown.stalled_full.map_or_else(|| "-".to_owned(), |full| Value::Share(full).text(Form::Fixed));
        trees.push(cells.chain([full, format!("{:.2}", tree.rates.waiting)]).chain(rates).collect());
        processes.extend(tree.shown.rows.iter().map(|row| {
            let line = Line::of_process(&tree.shown, row);
            of_processes.iter().map(|column| (column.value)(&line).text(Form::Fixed)).collect::<Vec<_>>()
        }));
    }
    let right = |columns: &[&'static Column]| columns.iter().map(|column| !column.is_text).collect::<Vec<_>>();
    debug_assert!(of_trees.iter().all(|column| column.of != Of::Process));
    let mut trees_right = right(&of_trees);
    trees_right.resize(trees[0].len(), true);
    out += &table::aligned(&trees, &trees_right);
    if processes.len() > 1 {
        out.push('\n');
        out += &table::aligned(&processes, &right(&of_processes));
    }
    out
}
