//! `ebb ps`: trees and their processes, and what becomes of those that are killed.

use crate::common::{
    HOLD, House, Tree, children, code, err, has_ended, is_root, kill, out, pid, program_of, wait_until,
};

const MIB: u64 = 1 << 20;
/// What work that frees memory may take beyond the budget: in each process two threads a few blocks of the pool.
const FORCED_BYTES: u64 = MIB;

fn house() -> House {
    let house = House::with_agent();
    house.compile("hold", HOLD, &[]);
    house
}

/// A parent and two children in less memory than they want.
fn family(user: u32) -> Tree {
    Tree::start(house(), user, "48M", "exec @hold 24 2", 3)
}

/// The users to test as.
fn users() -> Vec<u32> {
    if is_root() { vec![0, 65534] } else { vec![0] }
}

#[test]
fn each_process_of_a_tree_is_shown_with_what_it_holds() {
    for user in users() {
        let tree = family(user);
        let program = program_of(&tree.ebb);
        let mut expected = children(program);
        expected.push(program);
        expected.sort_unstable();
        let shown = tree.shown();
        assert_eq!((&shown["name"], &shown["supervisor"]), (&tree.name.as_str().into(), &pid(&tree.ebb).into()));
        assert_eq!(shown["budget_bytes"], 48 * MIB);
        let processes = shown["processes"].as_array().unwrap();
        let pids: Vec<i64> = processes.iter().map(|process| process["pid"].as_i64().unwrap()).collect();
        assert_eq!(pids, expected.iter().map(|pid| i64::from(*pid)).collect::<Vec<_>>());
        for process in processes {
            let bytes = |key: &str| process[key].as_u64().unwrap();
            assert_eq!((&process["command"], &process["managed"]), (&"hold".into(), &true.into()));
            assert!((24 * MIB..26 * MIB).contains(&bytes("wanted_bytes")), "{process}");
            let parts = bytes("resident_bytes") + bytes("staged_bytes") + bytes("pool_bytes");
            assert_eq!(parts, bytes("held_bytes") + bytes("shared_bytes"), "{process}");
        }
        let held: u64 = processes.iter().map(|process| process["held_bytes"].as_u64().unwrap()).sum();
        let swapped: u64 = processes.iter().map(|process| process["swapped_bytes"].as_u64().unwrap()).sum();
        // What was published may be a little late.
        assert!(held < 50 * MIB && swapped > 20 * MIB, "{shown}");
        assert!(shown["peak_held_bytes"].as_u64().unwrap() <= 48 * MIB + FORCED_BYTES, "{shown}");
        tree.finish();
    }
}

#[test]
fn the_tables_are_for_people_and_for_programs() {
    let tree = family(0);
    let text = out(&tree.ask(&["ps", &tree.name]));
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines.len(), 7, "{text}");
    assert_eq!(lines[0], ["TREE", "BUDGET", "HELD", "FREE", "PEAK", "PROCESSES"]);
    assert_eq!((lines[1][0], lines[1][1], lines[1][5]), (tree.name.as_str(), "48M", "3"));
    assert_eq!(lines[3][..4], ["TREE", "PID", "COMMAND", "WANTED"]);
    let tiers = out(&tree.ask(&["ps", "-v", &tree.name]));
    let lines: Vec<Vec<&str>> = tiers.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines.len(), 7 + 3 + 1 + 1 + 3 * 3, "{tiers}");
    assert_eq!(lines[8], ["TREE", "IDLE", "UNUSED", "TO-DEVICE", "SHOWN-RAM"]);
    assert_eq!(lines[11], ["TREE", "PID", "TIER", "PAGES", "CONTENT", "BYTES"]);
    assert_eq!([lines[12][2], lines[13][2], lines[14][2]], ["hot", "cold", "device"]);
    let plain = out(&tree.ask(&["ps", "--bytes", "--noheadings", &tree.name]));
    assert!(plain.starts_with(&format!("{} {} ", tree.name, 48 * MIB)), "{plain}");
    assert_eq!(plain.lines().count(), 5, "{plain}");
}

#[test]
fn a_tree_is_found_by_its_name_and_by_each_of_its_processes() {
    let tree = family(0);
    let program = program_of(&tree.ebb);
    for who in [pid(&tree.ebb), program, children(program)[0]] {
        let output = tree.ask(&["ps", "--noheadings", &who.to_string()]);
        assert!(out(&output).starts_with(&format!("{} ", tree.name)), "{}{}", out(&output), err(&output));
    }
    let name = tree.name.clone();
    let second = tree.ask(&["run", "--name", &name, "--", "/bin/true"]);
    assert_eq!(code(&second), Some(125));
    let why = format!("ebb: --name {name}: a running tree already has this name (process {}); ", pid(&tree.ebb));
    assert!(err(&second).starts_with(&why), "{}", err(&second));
    let house = house();
    tree.finish();
    let gone = house.run(["ps", &name]);
    assert_eq!(
        (code(&gone), err(&gone)),
        (
            Some(125),
            format!(
                "ebb: tree {name}: no running tree of this user has this name; list the running trees with `ebb ps`\n"
            )
        )
    );
}

#[test]
fn a_tree_of_another_user_is_not_shown() {
    if !is_root() {
        return;
    }
    let tree = family(65534);
    let name = &tree.name;
    let other = "import os, sys; os.setgid(65533); os.setuid(65533); os.execv(sys.argv[1], sys.argv[1:])";
    let ebb = tree.house.path("bin/ebb");
    let args = ["-c", other, ebb.to_str().unwrap(), "ps", name];
    let output = std::process::Command::new("python3").args(args).output().unwrap();
    assert_eq!(code(&output), Some(125), "{}", out(&output));
    // Root sees it.
    assert_eq!(code(&tree.house.run(["ps", name])), Some(0));
}

#[test]
fn what_killed_processes_held_is_free_at_once() {
    for user in users() {
        let tree = family(user);
        let valid = |members: usize| {
            let output = tree.ask(&["ps", "--validate", &tree.name]);
            let text = out(&output);
            assert_eq!((code(&output), err(&output)), (Some(0), String::new()), "{text}");
            text.contains(&format!("ok: {members} of "))
        };
        wait_until("there are three members", || valid(3));
        let held = tree.shown()["held_bytes"].as_u64().unwrap();
        let both = children(program_of(&tree.ebb));
        for (at, child) in both.iter().enumerate() {
            kill(*child, libc::SIGKILL);
            wait_until("it is dead", || has_ended(*child));
            // The first that asks finds that out.
            assert!(valid(2 - at));
        }
        let shown = tree.shown();
        assert_eq!(shown["processes"].as_array().unwrap().len(), 1, "{shown}");
        assert!(shown["held_bytes"].as_u64().unwrap() < held, "{shown}");
        // Their parent finds its memory whole.
        tree.finish();
    }
}
