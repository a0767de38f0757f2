//! Programs of a tree that Ebb cannot manage: they count, and others make room for them.

use crate::common::{HOLD, House, Tree, is_root, json, kill, pid, program_of, wait_until};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// `hold`, and `still`, the same linked statically.
fn house() -> House {
    let house = House::with_agent();
    house.compile("hold", HOLD, &[]);
    house.compile("still", HOLD, &["-static"]);
    house
}

/// The users to test as.
fn users() -> Vec<u32> {
    if is_root() { vec![0, 65534] } else { vec![0] }
}

#[test]
fn a_managed_program_makes_room_for_one_that_is_not() {
    for user in users() {
        let script = "exec 3<&0; @still 40 0 <&3 & @hold 40 0 && wait $!";
        let tree = Tree::start(house(), user, "64M", script, 2);
        wait_until("both fit into the budget", || {
            let shown = tree.shown();
            tree.held_mib("still") >= 40 && shown["held_bytes"].as_u64() <= shown["budget_bytes"].as_u64()
        });
        assert!(tree.held_mib("hold") < 24, "{}", tree.shown());
        let still = &tree.processes("still")[0];
        assert_eq!(still["managed"], false);
        let summary = tree.finish();
        assert!(summary.contains("ebb: not managed and not limited: still (up to 40."), "{summary}");
        assert!(summary.contains(" MiB, counted in the budget)"), "{summary}");
    }
}

#[test]
fn a_program_that_stays_small_is_not_taken_for_one_without_ebb() {
    let house = house();
    // By itself, behind another program, and after an exec.
    for script in ["", "/bin/true; :", "exec /bin/true"] {
        let command = if script.is_empty() { vec!["/bin/true"] } else { vec!["/bin/sh", "-c", script] };
        let output = house.run(["run", "--ram", "256M", "--"].into_iter().chain(command.iter().copied()));
        let name = command[0].rsplit('/').next().unwrap();
        let line = "no process needed more than 8.0 MiB of its own, so Ebb swapped nothing";
        assert_eq!(crate::common::err(&output), format!("ebb: {name}: {line}\n"));
    }
}

#[test]
fn the_json_names_what_was_not_managed() {
    // The house is gone when the program has ended.
    let elsewhere = tempfile::tempdir().unwrap();
    let file = elsewhere.path().join("s.json");
    let options = ["--stats", file.to_str().unwrap()];
    let tree = Tree::start_with(&options, house(), 0, "64M", "@still 1 0 </dev/null; @still 10 0; :", 2);
    wait_until("the second is counted", || tree.held_mib("still") >= 10);
    tree.finish();
    let value = json(&file);
    assert_eq!(value["unmanaged"]["names"], serde_json::json!(["still"]));
    assert_eq!(value["counters"]["unmanaged_programs"], 1);
    assert!((10 * MIB..12 * MIB).contains(&value["unmanaged"]["peak_bytes"].as_u64().unwrap()), "{value}");
}

#[test]
fn children_of_a_program_that_is_not_managed_count_with_it() {
    let tree = Tree::start(house(), 0, "64M", "@still 10 2; exit $?", 3);
    wait_until("all three are counted", || tree.held_mib("still") >= 30);
    assert_eq!(tree.processes("still").len(), 1, "{}", tree.shown());
    tree.finish();
}

#[test]
fn a_program_that_closes_every_descriptor_still_counts() {
    let tree = Tree::start(house(), 0, "64M", "@still 20 0 close; exit $?", 1);
    wait_until("it is counted", || tree.held_mib("(others)") >= 20);
    tree.finish();
}

#[test]
fn a_program_whose_parent_died_still_counts() {
    let tree = Tree::start(house(), 0, "64M", "@still 10 1; cat; :", 2);
    wait_until("both are counted", || tree.held_mib("still") >= 20);
    let parent = tree.processes("still")[0]["pid"].as_i64().unwrap();
    kill(parent as i32, libc::SIGKILL);
    wait_until("the child counts elsewhere", || tree.processes("still").is_empty() && tree.held_mib("(others)") >= 10);
    tree.finish();
}

#[test]
fn a_program_with_another_users_rights_counts_too() {
    if !is_root() {
        return;
    }
    // As root, what gives root up; as another user, what makes it root.
    for (user, owner) in [(0, 65534), (65534, 0)] {
        let house = house();
        let program = house.compile("rights", HOLD, &[]);
        chown(&program, Some(owner), None).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
        let tree = Tree::start(house, user, "64M", "@rights 12 0; exit $?", 1);
        wait_until("it is counted", || tree.held_mib("rights") >= 12);
        let summary = tree.finish();
        assert!(summary.contains("not limited: rights (up to 12."), "{summary}");
    }
}

/// As static launchers do that change the user (gosu), are the first process (tini), or a shell (busybox).
#[test]
fn what_a_program_that_is_not_managed_starts_is_managed_again() {
    for user in users() {
        let house = house();
        let source = "#include <unistd.h>\nint main(int n, char **words) { execv(words[n > 1], words + 1); return 1; }";
        house.compile("launch", source, &["-static"]);
        let tree = Tree::start(house, user, "64M", "@launch @hold 12 0; exit $?", 1);
        wait_until("it is managed", || tree.processes("hold").iter().any(|process| process["managed"] == true));
        tree.finish();
    }
}

/// A child that shares the descriptors of its parent, which is small, until it execs: what it locked then would be the parent's.
const SPAWN: &str = r#"
#define _GNU_SOURCE
#include <sched.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static char **words, stack[64 << 10];

static int child(void *unused) {
    execv(words[1], words);
    _exit(1);
}

int main(int n, char **all) {
    words = all;
    for (int i = 0; i < 20; i++) {
        int pid = clone(child, stack + sizeof stack, CLONE_VM | CLONE_VFORK | CLONE_FILES | SIGCHLD, NULL), status = 1;
        if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0) return 2;
    }
    execv(words[2], words + 2);
    return 3;
}
"#;

#[test]
fn what_a_child_with_its_parents_descriptors_was_takes_no_place_when_it_has_ended() {
    let house = house();
    house.compile("nothing", "int main(void) { return 0; }", &["-static"]);
    house.compile("spawn", SPAWN, &[]);
    let tree = Tree::start(house, 0, "64M", "@spawn @nothing @hold 12 0; exit $?", 1);
    wait_until("it is managed", || tree.processes("hold").iter().any(|process| process["managed"] == true));
    assert_eq!(tree.processes("hold").len(), 1, "{}", tree.shown());
    tree.finish();
}

/// How often the thread that looks from outside has waited.
fn looks(ebb: i32) -> u64 {
    let is_watch = |task: &Path| fs::read_to_string(task.join("comm")).is_ok_and(|name| name == "ebb-watch\n");
    let watch = || {
        let tasks = fs::read_dir(format!("/proc/{ebb}/task")).unwrap().flatten();
        tasks.map(|task| task.path()).find(|task| is_watch(task))
    };
    // A thread has its name a moment after it is there.
    wait_until("it looks", || watch().is_some());
    let status = fs::read_to_string(watch().unwrap().join("status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
    line.trim().parse().unwrap()
}

#[test]
fn what_is_managed_and_at_rest_is_looked_at_rarely() {
    let tree = Tree::start(house(), 0, "64M", "exec @hold 4 0", 1);
    let ebb = pid(&tree.ebb);
    assert_ne!(program_of(&tree.ebb), ebb);
    let mut before = looks(ebb);
    // What exec began may take a few looks to settle.
    wait_until("it rests", || {
        std::thread::sleep(Duration::from_millis(1500));
        // Once a second, where it waits twice; 30 times in this while anything goes on.
        let now = looks(ebb);
        now - std::mem::replace(&mut before, now) <= 6
    });
    tree.finish();
}
