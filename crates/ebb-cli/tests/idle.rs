//! `ebb run --idle`: a program that nobody uses gives its memory up, and has it again at once.
//! A program of its own, because one of them measures how long it takes: nothing else is to run beside them.

#[allow(dead_code, reason = "it uses a part")]
#[path = "command/common/mod.rs"]
mod common;

use common::{HOLD, House, Tree, code, err, is_root, out, wait_until};
use std::time::{Duration, Instant};

/// A service wakes within this. A busy machine may take its time, but does not do so three times in a row.
const WAKES: Duration = Duration::from_secs(1);

fn idle(options: &[&str], user: u32, ram: &str, script: &str, ready: usize) -> Tree {
    let house = House::with_agent();
    house.compile("hold", HOLD, &[]);
    let options = [&["--idle", "1s"], options].concat();
    Tree::start_with(&options, house, user, ram, script, ready)
}

fn held(tree: &Tree) -> u64 {
    tree.shown()["held_bytes"].as_u64().unwrap()
}

/// Waits until the tree holds no more than a tenth of `mib`.
fn falls_asleep(tree: &Tree, mib: u64) {
    wait_until("it holds a tenth", || held(tree) * 10 <= mib << 20);
}

/// Has the program check all of its memory; how long that took.
fn wake(tree: &mut Tree) -> Duration {
    let begun = Instant::now();
    tree.check();
    begun.elapsed()
}

#[test]
fn an_idle_program_holds_a_tenth_and_wakes_within_a_second() {
    for user in if is_root() { vec![0, 65534] } else { vec![0] } {
        let mut tree = idle(&["--stats", "/dev/null"], user, "256M", "exec @hold 80 0", 1);
        assert!(held(&tree) > 80 << 20);
        let mut took = WAKES;
        for _ in 0..3 {
            falls_asleep(&tree, 80);
            took = took.min(wake(&mut tree));
        }
        assert!(took < WAKES, "{took:?}");
        let shown = tree.shown();
        assert!(shown["idle_to_device_bytes"].as_u64().unwrap() > 70 << 20, "{shown}");
        let text = out(&tree.ask(&["ps", "-v", &tree.name]));
        assert!(text.contains("TO-DEVICE") && text.contains(" 1.0s "), "{text}");
        tree.finish();
    }
}

#[test]
fn without_a_device_it_is_compressed() {
    let house = House::with_agent();
    house.compile("hold", HOLD, &[]);
    let mut tree = Tree::start(house, 0, "256M", "exec @hold 80 0", 1);
    let pid = tree.processes("hold")[0]["pid"].to_string();
    for words in [vec!["swapoff", &pid, std::env::temp_dir().to_str().unwrap()], vec!["set", &pid, "--idle", "1s"]] {
        let output = tree.ask(&words);
        assert_eq!((code(&output), err(&output)), (Some(0), String::new()));
    }
    wait_until("it holds half", || held(&tree) * 2 <= 80 << 20);
    wake(&mut tree);
    let summary = tree.finish();
    assert!(summary.contains(" 0 B to a file"), "{summary}");
}

#[test]
fn every_process_of_a_tree_obeys() {
    let mut tree = idle(&[], 0, "256M", "exec @hold 30 2", 3);
    falls_asleep(&tree, 90);
    wake(&mut tree);
    falls_asleep(&tree, 90);
    tree.finish();
}

#[test]
fn a_family_gives_up_what_it_shares() {
    let mut tree = idle(&[], 0, "256M", "exec @hold 60 3 share", 4);
    falls_asleep(&tree, 60);
    wake(&mut tree);
    tree.finish();
}

#[test]
fn in_less_memory_than_it_wants_it_does_so_too() {
    let mut tree = idle(&[], 0, "24M", "exec @hold 60 0", 1);
    falls_asleep(&tree, 60);
    for _ in 0..2 {
        wake(&mut tree);
        falls_asleep(&tree, 60);
    }
    tree.finish();
}

#[test]
fn the_period_can_be_set_and_taken_back_while_it_runs() {
    let house = House::with_agent();
    house.compile("hold", HOLD, &[]);
    let mut tree = Tree::start(house, 0, "256M", "exec @hold 40 0", 1);
    std::thread::sleep(Duration::from_secs(3));
    assert!(held(&tree) > 40 << 20);
    let set = |tree: &Tree, value: &str| tree.ask(&["set", &tree.name, "--idle", value]);
    let output = set(&tree, "1s");
    assert_eq!((code(&output), err(&output)), (Some(0), String::new()));
    falls_asleep(&tree, 40);
    let output = set(&tree, "off");
    assert_eq!((code(&output), err(&output)), (Some(0), String::new()));
    wake(&mut tree);
    std::thread::sleep(Duration::from_secs(4));
    assert!(held(&tree) > 40 << 20);
    let refused = set(&tree, "10");
    let line = "ebb: --idle 10: the unit is missing; write a time from 1s to 24h, such as 30s, 10m or 1.5h, or off\n";
    assert_eq!((code(&refused), err(&refused).as_str()), (Some(125), line));
    tree.finish();
}
