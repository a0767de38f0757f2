//! `ebb set`: another budget while programs run.

use crate::common::{HOLD, House, Tree, code, err, kill, out, pid, signal, wait_until};
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

const MIB: u64 = 1 << 20;

fn held(tree: &Tree) -> u64 {
    tree.shown()["held_bytes"].as_u64().unwrap()
}

fn holding(ram: &str, mib: u32, children: u32) -> Tree {
    let house = House::with_agent();
    house.compile("hold", HOLD, &[]);
    Tree::start(house, 0, ram, &format!("exec @hold {mib} {children}"), 1 + children as usize)
}

#[test]
fn a_smaller_budget_takes_what_a_program_holds_and_loses_nothing() {
    let mut tree = holding("64M", 40, 0);
    assert!(held(&tree) > 40 * MIB);
    let output = tree.ask(&["set", &tree.name, "--ram", "12M"]);
    assert_eq!((code(&output), out(&output), err(&output)), (Some(0), String::new(), String::new()));
    assert_eq!(tree.shown()["budget_bytes"], 12 * MIB);
    // Who gives memory up may need a little for that.
    wait_until("it holds no more", || held(&tree) <= 12 * MIB);
    tree.check();
    wait_until("it holds no more after it was used", || held(&tree) <= 12 * MIB);
    let summary = tree.finish();
    assert!(summary.contains(", budget 12.0 MiB; "), "{summary}");
}

#[test]
fn every_process_gives_its_part() {
    let mut tree = holding("96M", 24, 2);
    let output = tree.ask(&["set", &pid(&tree.ebb).to_string(), "--ram", "16M"]);
    assert_eq!((code(&output), err(&output)), (Some(0), String::new()));
    // Who gives memory up may need a little for that.
    wait_until("they hold no more", || held(&tree) <= 16 * MIB);
    for process in tree.processes("hold") {
        assert!(process["held_bytes"].as_u64().unwrap() < 16 * MIB, "{process}");
    }
    tree.check();
    tree.finish();
}

#[test]
fn what_processes_share_since_a_fork_is_taken_from_all_of_them() {
    let house = House::with_agent();
    house.compile("hold", HOLD, &[]);
    let mut tree = Tree::start(house, 0, "64M", "exec @hold 40 3 share", 4);
    assert!(held(&tree) > 40 * MIB);
    let output = tree.ask(&["set", &tree.name, "--ram", "16M"]);
    assert_eq!((code(&output), err(&output)), (Some(0), String::new()));
    wait_until("they hold no more", || held(&tree) <= 16 * MIB);
    tree.check();
    tree.finish();
}

#[test]
fn a_larger_budget_is_there_at_once() {
    let mut tree = holding("16M", 40, 0);
    assert!(held(&tree) <= 16 * MIB);
    let output = tree.ask(&["set", &tree.name, "--ram", "64M"]);
    assert_eq!((code(&output), err(&output)), (Some(0), String::new()));
    tree.check();
    assert!(held(&tree) > 30 * MIB, "{}", tree.shown());
    let summary = tree.finish();
    assert!(summary.contains(" of 64.0 MiB; "), "{summary}");
}

#[test]
fn a_budget_that_cannot_be_is_refused() {
    let tree = holding("64M", 4, 0);
    let output = tree.ask(&["set", &tree.name, "--ram", "2M"]);
    let line = "ebb: --ram 2M: a budget is at least 4M; give at least --ram 4M\n";
    assert_eq!((code(&output), err(&output).as_str()), (Some(125), line));
    let output = tree.ask(&["set", &std::process::id().to_string(), "--ram", "64M"]);
    assert_eq!(code(&output), Some(125));
    assert!(err(&output).contains("it does not run under Ebb, or belongs to another user; "), "{}", err(&output));
    assert_eq!(tree.shown()["budget_bytes"], 64 * MIB);
    tree.finish();
}

/// A statically linked program that holds 40 MiB, which nobody can take from it.
fn immovable() -> Tree {
    let house = House::with_agent();
    house.compile("still", HOLD, &["-static"]);
    let tree = Tree::start(house, 0, "64M", "@still 40 0; exit $?", 1);
    wait_until("it is counted", || tree.held_mib("still") >= 40);
    tree
}

#[test]
fn what_cannot_be_taken_is_told_with_who_holds_it() {
    let tree = immovable();
    let output = tree.ask(&["set", &tree.name, "--ram", "16M"]);
    assert_eq!(code(&output), Some(1));
    let line = err(&output);
    let name = &tree.name;
    assert!(line.starts_with(&format!("ebb: set {name} --ram 16M: the budget is set, but the tree still holds 40.")));
    assert!(line.contains(" (still) 40.") && line.contains(", not managed"), "{line}");
    assert!(
        line.ends_with(&format!("continue or end these processes (see `ebb ps {name}`), or set a larger budget\n")),
        "{line}"
    );
    assert_eq!(line.lines().count(), 1);
    assert_eq!(tree.shown()["budget_bytes"], 16 * MIB);
    assert_eq!(tree.shown()["free_bytes"], 0);
    tree.finish();
}

#[test]
fn an_interrupt_ends_the_wait_and_leaves_the_budget_as_it_was_set() {
    let tree = immovable();
    let child = tree.house.ebb(["set", &tree.name, "--ram", "16M"]).spawn().unwrap();
    wait_until("the budget is set", || tree.shown()["budget_bytes"] == 16 * MIB);
    kill(pid(&child), libc::SIGTERM);
    let output = child.wait_with_output().unwrap();
    assert_eq!(signal(&output), Some(libc::SIGTERM), "{}", err(&output));
    assert!(err(&output).contains(": interrupted; the budget is set, "), "{}", err(&output));
    assert_eq!(tree.shown()["budget_bytes"], 16 * MIB);
    tree.finish();
}

/// For each byte that it reads, maps and touches 8 MiB and says how many KiB of huge pages the process has.
const HUGE: &str = r#"
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
int main(void)
{
    char byte, line[256];
    while (read(0, &byte, 1) == 1) {
        unsigned long kib = 0;
        char *m = mmap(NULL, 8 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        memset(m, 1, 8 << 20);
        FILE *f = fopen("/proc/self/smaps_rollup", "r");
        while (fgets(line, sizeof line, f) && sscanf(line, "AnonHugePages: %lu kB", &kib) != 1)
            ;
        fclose(f);
        dprintf(1, "%lu\n", kib);
    }
}
"#;

#[test]
fn huge_pages_are_given_and_no_longer_given() {
    let enabled = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    let has_any = enabled.contains('[') && !enabled.contains("[never]");
    let house = House::with_agent();
    house.compile("huge", HUGE, &[]);
    let name = format!("huge-{}", std::process::id());
    let program = house.path("huge");
    let words = ["run", "--ram", "256M", "--thp", "never", "--name", &name, "--", program.to_str().unwrap()];
    let mut ebb = house.ebb(words).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut stdin, stdout) = (ebb.stdin.take().unwrap(), ebb.stdout.take().unwrap());
    let mut lines = BufReader::new(stdout).lines();
    let mut kib_after_a_touch = || {
        stdin.write_all(b"x").unwrap();
        lines.next().unwrap().unwrap().parse::<u64>().unwrap()
    };
    assert_eq!(kib_after_a_touch(), 0);
    let set = |policy: &str| house.ebb(["set", &name, "--thp", policy]).output().unwrap();
    let output = set("always");
    assert_eq!(code(&output), Some(0), "{}", err(&output));
    let says = "ebb: --thp: ";
    assert!(if has_any { err(&output).is_empty() } else { err(&output).starts_with(says) }, "{}", err(&output));
    let kib = kib_after_a_touch();
    assert!(if has_any { kib >= 6 << 10 } else { kib == 0 }, "{kib} KiB");
    assert_eq!(code(&set("never")), Some(0));
    assert_eq!(kib_after_a_touch(), kib);
    let output = set("sometimes");
    assert_eq!(code(&output), Some(125));
    assert_eq!(err(&output), "ebb: --thp sometimes: there is no such policy; write never, advise, always or host\n");
    drop(stdin);
    assert!(ebb.wait().unwrap().success());
}
