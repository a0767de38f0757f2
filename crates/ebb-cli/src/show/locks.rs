//! `ebb locks`: where the threads of a running program wait for each other inside Ebb.

use std::fmt::Write;
use std::path::Path;

use ebb::stats::Contention;
use serde_json::{Value, json};

use crate::base::failure::Failure;
use crate::base::name::Target;
use crate::base::size::{human_count, human_ns};
use crate::base::text::printable;
use crate::running::counters::Counters;
use crate::running::process::{self, Process};
use crate::running::trees::{self, Access};

/// The contended locks, longest total wait first.
fn sorted(counters: &Counters) -> Vec<Contention> {
    let mut all: Vec<Contention> = counters.page().locks.all().filter(|lock| lock.contended > 0).collect();
    all.sort_by_key(|lock| std::cmp::Reverse((lock.total_ns, lock.contended)));
    all
}

/// The table, with the columns of `perf lock contention`. Says so where there was no wait.
pub fn table(counters: &Counters) -> String {
    let (sorted, lost) = (sorted(counters), counters.page().locks.lost());
    if sorted.is_empty() && lost == 0 {
        return "no thread has had to wait inside Ebb so far\n".to_owned();
    }
    let mut out = String::new();
    let _ = writeln!(
        out,
        "{:>12} {:>12} {:>12} {:>12}   {:<20} caller",
        "contended", "total wait", "max wait", "avg wait", "class"
    );
    for lock in sorted {
        let _ = writeln!(
            out,
            "{:>12} {:>12} {:>12} {:>12}   {:<20} {}",
            human_count(lock.contended),
            human_ns(lock.total_ns),
            human_ns(lock.max_ns),
            human_ns(lock.average_ns()),
            printable(lock.class()),
            printable(lock.place()),
        );
    }
    if lost > 0 {
        let _ = writeln!(out, "{:>12} waits at other places, not listed separately", human_count(lost));
    }
    out
}

/// Likewise for `--stats`.
pub fn json(counters: &Counters) -> Value {
    let locks = sorted(counters).into_iter().map(|lock| {
        json!({
            "class": lock.class(),
            "caller": lock.place(),
            "contended": lock.contended,
            "total_ns": lock.total_ns,
            "max_ns": lock.max_ns,
            "average_ns": lock.average_ns(),
        })
    });
    locks.collect()
}

/// The table of the tree that `target` means.
pub fn report(target: &Target) -> Result<String, Failure> {
    match target {
        Target::Of(pid) => Process::find(Path::new(process::PROC), *pid)?.counters().map(|counters| table(&counters)),
        Target::Named(_) => trees::find_for(target, Access::Look).map(|tree| table(&tree.counters)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::Location;

    fn contended() -> Counters {
        let counters = Counters::create().unwrap();
        for _ in 0..2 {
            counters.page().locks.record("swap device", Location::caller(), 1_500);
        }
        counters.page().locks.record("page", Location::caller(), 40_000);
        counters
    }

    #[test]
    fn the_longest_wait_comes_first() {
        let text = table(&contended());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        let columns: Vec<&str> = lines[0].split_whitespace().collect();
        assert_eq!(columns, ["contended", "total", "wait", "max", "wait", "avg", "wait", "class", "caller"]);
        assert!(lines[1].contains("page") && lines[1].contains("40.0 µs"), "{text}");
        assert!(lines[2].contains("swap device") && lines[2].contains("ebb-cli/src/show/locks.rs:"), "{text}");
    }

    #[test]
    fn where_nobody_waited_one_line_says_so() {
        assert_eq!(table(&Counters::create().unwrap()), "no thread has had to wait inside Ebb so far\n");
    }

    #[test]
    fn the_json_has_every_column() {
        let value = json(&contended());
        assert_eq!(value[1]["class"], "swap device");
        assert_eq!((&value[1]["contended"], &value[1]["average_ns"]), (&json!(2), &json!(1500)));
        assert_eq!(value.as_array().map(Vec::len), Some(2));
    }
}
