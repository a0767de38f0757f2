//! Whole programs with a write budget: the budget holds, and nothing is lost or ended.

use crate::common::{House, code, err, json, kill, out, pid, wait_until};
use std::fs::{File, create_dir};
use std::process::Stdio;
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// Fills memory with noise, checks it, and says how that went; with a child, that does so too.
const FILL: &str = "\
import os, sys, zlib
def fill(mib):
    blocks = [bytearray(os.urandom(1 << 16)) for _ in range(16 * mib)]
    sums = [zlib.crc32(block) for block in blocks]
    return all(zlib.crc32(block) == was for block, was in zip(blocks, sums))
child = os.fork() if len(sys.argv) > 2 else None
whole = fill(int(sys.argv[1]))
if child == 0: os._exit(0 if whole else 1)
whole = whole and (child is None or os.waitpid(child, 0)[1] == 0)
print('whole' if whole else 'lost')
";

/// Waits until the program that has a device in `dir` is held there; its number.
fn held_in(house: &House, dir: &str) -> String {
    let mut row = Vec::new();
    wait_until("held", || {
        let all = out(&house.run(["swapon", "--show", "--noheadings"]));
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        row = all.lines().map(words).find(|row| row[1] == dir && row[2] == "held").unwrap_or_default();
        !row.is_empty()
    });
    row.swap_remove(0)
}

#[test]
fn what_a_budget_does_not_allow_goes_to_the_next_device() {
    let house = House::with_agent();
    ["a", "b"].into_iter().for_each(|name| create_dir(house.path(name)).unwrap());
    let [a, b] = ["a", "b"].map(|name| house.path(name).canonicalize().unwrap().display().to_string());
    let script = house.file("fill.py", FILL, 0o644);
    let stats = house.path("stats.json");
    let devices = [format!("file:{a},size=1G,writes=8M/hour"), format!("file:{b}")];
    let words = ["run", "-q", "--ram", "32M", "--swap", &devices[0], "--swap", &devices[1], "--stats"];
    let program = ["--", "python3", script.to_str().unwrap(), "48", "child"];
    let output = house.run([&words[..], &[stats.to_str().unwrap()], &program].concat());
    assert_eq!((code(&output), out(&output)), (Some(0), "whole\n".into()), "{}", err(&output));
    // Once for both processes.
    let said = err(&output);
    assert!(said.starts_with(&format!("ebb: {a}: the write budget of 8M/hour is spent; ")), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    let devices = json(&stats)["devices"].clone();
    let of = |dir: &str| devices.as_array().unwrap().iter().find(|device| device["directory"] == dir).unwrap().clone();
    let (first, second) = (of(&a), of(&b));
    let written = first["written_bytes"].as_u64().unwrap();
    // What has come back meanwhile is a part of an hour's.
    assert!((7 * MIB..9 * MIB).contains(&written), "{devices}");
    assert_eq!((&first["writes"], &second["writes"]), (&"8388608/hour".into(), &serde_json::Value::Null));
    assert!(second["written_bytes"].as_u64().unwrap() > 32 * MIB, "{devices}");
}

#[test]
fn a_program_waits_for_its_budget_and_goes_on_with_a_greater_one() {
    let house = House::with_agent();
    create_dir(house.path("a")).unwrap();
    let dir = house.path("a").canonicalize().unwrap().display().to_string();
    let script = house.file("fill.py", FILL, 0o644);
    let (said, answer) = (house.path("said"), house.path("answer"));
    let device = format!("file:{dir},size=1G,writes=4M/hour");
    let mut ebb = house
        .ebb(["run", "-q", "--ram", "32M", "--swap", &device, "--", "python3", script.to_str().unwrap(), "96"])
        .stdin(Stdio::null())
        .stdout(File::create(&answer).unwrap())
        .stderr(File::create(&said).unwrap())
        .spawn()
        .unwrap();
    let program = held_in(&house, &dir);
    let rows = |options: &[&str]| out(&house.run([&["swapon", "--show", &program], options].concat()));
    let table = rows(&[]);
    let (heading, row) = table.split_once('\n').unwrap();
    assert!(heading.ends_with(" WRITTEN  WRITES") && row.ends_with(" 4M/hour\n"), "{table}");
    let row: Vec<String> = rows(&["--bytes", "--noheadings"]).split_whitespace().map(str::to_owned).collect();
    let written: u64 = row[9].parse().unwrap();
    assert!(
        row[1] == "held" && row[10] == "4194304/hour" && (3 * MIB..=4 * MIB + MIB / 4).contains(&written),
        "{row:?}"
    );
    std::thread::sleep(Duration::from_millis(500));
    assert!(ebb.try_wait().unwrap().is_none(), "{}", std::fs::read_to_string(&said).unwrap());
    // Nothing can be moved to a device whose budget is spent.
    let more = house.run(["reclaim", &pid(&ebb).to_string(), "1M", "--to", "device"]);
    assert!(
        code(&more) == Some(125) && err(&more).contains("the write budget of its devices is spent"),
        "{}",
        err(&more)
    );
    let other = house.run(["swapon", &program, &format!("file:{dir},writes=1T/hour,prio=3")]);
    assert!(code(&other) == Some(1) && err(&other).contains("already in use"), "{}", err(&other));
    let greater = house.run(["swapon", &program, &format!("file:{dir},writes=1T/hour")]);
    assert_eq!((code(&greater), err(&greater)), (Some(0), String::new()));
    let mut status = None;
    wait_until("the end", || {
        status = ebb.try_wait().unwrap();
        status.is_some()
    });
    let said = std::fs::read_to_string(&said).unwrap();
    assert!(status.is_some_and(|status| status.success()), "{said}");
    assert_eq!(std::fs::read_to_string(&answer).unwrap(), "whole\n");
    assert!(said.lines().count() == 1 && said.contains("the write budget of 4M/hour is spent"), "{said}");
}

#[test]
fn a_program_that_waits_for_its_budget_can_be_ended() {
    let house = House::with_agent();
    create_dir(house.path("a")).unwrap();
    let dir = house.path("a").canonicalize().unwrap().display().to_string();
    let script = house.file("fill.py", FILL, 0o644);
    let device = format!("file:{dir},writes=256K/week");
    let mut ebb = house
        .ebb(["run", "-q", "--ram", "32M", "--swap", &device, "--", "python3", script.to_str().unwrap(), "96"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    kill(held_in(&house, &dir).parse().unwrap(), libc::SIGKILL);
    wait_until("the end", || ebb.try_wait().unwrap().is_some());
}
