//! `ebb reclaim`: programs give up memory on demand, and lose nothing.

use crate::common::{HOLD, House, Tree, code, err, kill, out, pid, program_of, signal, wait_until};
use std::fs;
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
/// An ordinary user.
const NOBODY: u32 = 65534;

fn held(tree: &Tree) -> u64 {
    tree.shown()["held_bytes"].as_u64().unwrap()
}

/// A tree in which each process holds so many MiB, with options of `ebb run`.
fn holding_with(options: &[&str], user: u32, mib: u32, children: u32) -> Tree {
    let house = House::with_agent();
    house.compile("hold", HOLD, &[]);
    let ready = 1 + children as usize;
    Tree::start_with(options, house, user, "256M", &format!("exec @hold {mib} {children}"), ready)
}

fn holding(mib: u32, children: u32) -> Tree {
    holding_with(&[], 0, mib, children)
}

/// A child of the program. The program itself must not stop, because its `ebb run` stops with it.
fn child(tree: &Tree) -> i32 {
    let pids = tree.processes("hold").into_iter().map(|process| process["pid"].as_i64().unwrap() as i32);
    let program = program_of(&tree.ebb);
    pids.into_iter().find(|pid| *pid != program).unwrap()
}

/// Asks for memory, which the tree must give up. Checks the line that says so.
fn takes(tree: &Tree, mib: u64, options: &[&str]) {
    let before = held(tree);
    let size = format!("{mib}M");
    let output = tree.ask(&[&["reclaim", &tree.name, &size], options].concat());
    let line = out(&output);
    assert_eq!((code(&output), err(&output)), (Some(0), String::new()), "{line}");
    assert!(line.starts_with(&format!("{}: ", tree.name)), "{line}");
    assert!(line.contains(&format!(" given up of {mib}.0 MiB asked for, in ")), "{line}");
    assert!(line.contains(" of processor time); the tree holds "), "{line}");
    assert!(line.ends_with(" of 256.0 MiB\n") && line.lines().count() == 1, "{line}");
    let after = held(tree);
    assert!(after <= before - mib * MIB + MIB, "{before} before, {after} after");
    assert_eq!(tree.shown()["budget_bytes"], 256 * MIB);
}

fn takes_and_loses_nothing(user: u32) {
    let mut tree = holding_with(&[], user, 60, 0);
    takes(&tree, 20, &[]);
    takes(&tree, 10, &["--to", "pool"]);
    takes(&tree, 10, &["--to", "cold"]);
    let tiers = &tree.shown()["processes"][0]["tiers"];
    let [pages, content, bytes] = ["pages", "content_bytes", "bytes"].map(|key| tiers["cold"][key].as_u64().unwrap());
    assert!(pages > 0 && content == pages * 4096 && bytes < content, "{tiers}");
    takes(&tree, 10, &["--to", "device"]);
    assert!(tree.shown()["processes"][0]["tiers"]["device"]["pages"].as_u64().unwrap() > 0);
    let output = tree.ask(&["ps", "--validate", &tree.name]);
    assert_eq!(code(&output), Some(0), "{}{}", out(&output), err(&output));
    // It takes the memory again as it touches it.
    tree.check();
    assert!(held(&tree) > 50 * MIB);
    tree.finish();
}

#[test]
fn a_program_gives_up_what_is_asked_for_and_loses_nothing() {
    takes_and_loses_nothing(0);
}

#[test]
fn so_does_that_of_an_ordinary_user() {
    if !crate::common::is_root() {
        eprintln!("only root can be another user: not tested");
        return;
    }
    takes_and_loses_nothing(NOBODY);
}

#[test]
fn a_percentage_is_of_what_the_tree_holds() {
    let mut tree = holding(60, 0);
    let before = held(&tree);
    let output = tree.ask(&["reclaim", &pid(&tree.ebb).to_string(), "50%"]);
    assert_eq!((code(&output), err(&output)), (Some(0), String::new()));
    assert!(held(&tree) <= before / 2 + MIB, "{before}");
    tree.check();
    tree.finish();
}

#[test]
fn all_processes_give_their_part() {
    let mut tree = holding(40, 2);
    takes(&tree, 90, &[]);
    for process in tree.processes("hold") {
        assert!(process["held_bytes"].as_u64().unwrap() < 30 * MIB, "{process}");
    }
    tree.check();
    tree.finish();
}

#[test]
fn what_processes_share_since_a_fork_is_taken_from_all_of_them() {
    let house = House::with_agent();
    house.compile("hold", HOLD, &[]);
    let mut tree = Tree::start(house, 0, "256M", "exec @hold 60 3 share", 4);
    takes(&tree, 30, &[]);
    tree.check();
    tree.finish();
}

#[test]
fn a_demand_for_a_device_goes_to_the_device() {
    let tree = holding(60, 0);
    takes(&tree, 40, &["--to=device"]);
    let process = &tree.processes("hold")[0];
    assert_eq!(process["pool_bytes"], 0);
    assert!(process["swapped_bytes"].as_u64().unwrap() >= 38 * MIB, "{process}");
    tree.finish();
}

#[test]
fn a_tree_without_a_device_says_so_and_gives_to_its_pool() {
    // The last `--swap none` does not undo the device of the house, so the program starts without it.
    let house = House::with_agent();
    house.compile("hold", HOLD, &[]);
    let script = "exec env EBB_SWAP=none @hold 60 0";
    let mut tree = Tree::start(house, 0, "256M", script, 1);
    let output = tree.ask(&["reclaim", &tree.name, "20M", "--to", "device"]);
    let line = format!(
        "ebb: reclaim {} 20M --to device: no process of the tree has a device with room; \
         add one with `ebb swapon PID file:DIR`, or leave --to device out\n",
        tree.name
    );
    assert_eq!((code(&output), err(&output), out(&output)), (Some(125), line, String::new()));
    takes(&tree, 20, &[]);
    tree.check();
    tree.finish();
}

#[test]
fn what_cannot_be_had_is_told_with_how_much_was() {
    let tree = holding(60, 0);
    let output = tree.ask(&["reclaim", &tree.name, "100%"]);
    let line = err(&output);
    assert_eq!((code(&output), out(&output)), (Some(1), String::new()), "{line}");
    assert!(line.starts_with(&format!("ebb: reclaim {} ", tree.name)) && line.contains(": only "), "{line}");
    assert!(line.contains(" given up of ") && line.contains("and the tree holds ") && line.contains("; ask for less"));
    assert_eq!(line.lines().count(), 1, "{line}");
    assert!(held(&tree) < 16 * MIB, "{}", tree.shown());
    tree.finish();
}

#[test]
fn what_makes_no_sense_is_refused_and_nothing_is_taken() {
    let tree = holding(60, 0);
    let before = held(&tree);
    let refused = |words: &[&str], why: &str| {
        let output = tree.ask(&[&["reclaim"], words].concat());
        let line = err(&output);
        assert_eq!((code(&output), out(&output)), (Some(125), String::new()), "{line}");
        assert!(line.starts_with("ebb: ") && line.contains(why) && line.lines().count() == 1, "{line}");
    };
    let name = tree.name.as_str();
    refused(&[name, "0"], ": it is zero; ");
    refused(&[name, "much"], ": it does not begin with a number; ");
    refused(&[name, "1T"], ": the tree holds only ");
    refused(&["no-such-tree", "1M"], ": no running tree of this user has this name; ");
    refused(&[&std::process::id().to_string(), "1M"], ": it does not run under Ebb, or belongs to another user; ");
    refused(&[name, "1M", "--to", "tape"], ": memory cannot go there; ");
    assert_eq!(held(&tree), before);
    tree.finish();
}

#[test]
fn a_tree_that_ebb_does_not_manage_has_nothing_to_give() {
    let house = House::with_agent();
    house.compile("still", HOLD, &["-static"]);
    let tree = Tree::start(house, 0, "256M", "@still 40 0; exit $?", 1);
    wait_until("it is counted", || tree.held_mib("still") >= 40);
    let output = tree.ask(&["reclaim", &tree.name, "20M"]);
    let line = err(&output);
    assert_eq!(code(&output), Some(125), "{line}");
    assert!(line.contains(": none of its processes is managed and holds enough to give any up; "), "{line}");
    tree.finish();
}

#[test]
fn a_stopped_process_is_passed_over() {
    let mut tree = holding(60, 1);
    let stopped = child(&tree);
    kill(stopped, libc::SIGSTOP);
    takes(&tree, 20, &[]);
    let began = Instant::now();
    let output = tree.ask(&["reclaim", &tree.name, "100%"]);
    let line = err(&output);
    assert_eq!(code(&output), Some(1), "{line}");
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    assert!(line.contains(&format!(": process {stopped} (hold) is stopped; ")), "{line}");
    assert!(line.contains(&format!("continue it with `kill -CONT {stopped}`")), "{line}");
    kill(stopped, libc::SIGCONT);
    takes(&tree, 20, &[]);
    tree.check();
    tree.finish();
}

#[test]
fn a_process_that_stops_or_dies_meanwhile_keeps_nobody_waiting() {
    for fate in [libc::SIGSTOP, libc::SIGKILL] {
        let tree = holding(100, 1);
        let (before, victim) = (held(&tree), child(&tree));
        let ebb = tree.house.ebb(["reclaim", &tree.name, "100%"]).spawn().unwrap();
        wait_until("it has begun", || held(&tree) < before);
        kill(victim, fate);
        let began = Instant::now();
        let output = ebb.wait_with_output().unwrap();
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
        assert_eq!(code(&output), Some(1), "{}{}", out(&output), err(&output));
    }
}

/// Keeps the control socket of a process busy, as a client that says nothing does.
fn keep_busy(tree: &Tree, pid: i32) -> OwnedFd {
    assert_eq!(code(&tree.ask(&["swapon", "--show", &pid.to_string()])), Some(0));
    let links = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().map(|entry| entry.unwrap().path());
    let is_control =
        |path: &PathBuf| fs::read_link(path).is_ok_and(|target| target.to_string_lossy().contains("/.ebb-control-"));
    let path = links.into_iter().find(is_control).unwrap();
    // SAFETY: a new socket, and an address that is whole and ends with a zero.
    unsafe {
        let fd = libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0);
        assert!(fd >= 0);
        let mut address: libc::sockaddr_un = std::mem::zeroed();
        address.sun_family = libc::AF_UNIX as libc::sa_family_t;
        for (to, from) in address.sun_path.iter_mut().zip(path.to_str().unwrap().bytes()) {
            *to = from as libc::c_char;
        }
        let len = size_of_val(&address) as libc::socklen_t;
        assert_eq!(libc::connect(fd, (&raw const address).cast(), len), 0);
        OwnedFd::from_raw_fd(fd)
    }
}

#[test]
fn an_interrupt_ends_the_wait() {
    let mut tree = holding(60, 0);
    let before = held(&tree);
    let _busy = keep_busy(&tree, program_of(&tree.ebb));
    let mut child = tree.house.ebb(["reclaim", &tree.name, "20M"]).spawn().unwrap();
    // By then it holds the signal back, and waits for the process to turn to it. SIGINT it holds back only if that is not
    // ignored, as it is in what a shell runs in the background.
    wait_until("it holds the signal back", || {
        assert_eq!(child.try_wait().unwrap(), None, "it did not wait");
        let status = fs::read_to_string(format!("/proc/{}/status", pid(&child))).unwrap();
        let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
        u64::from_str_radix(blocked.trim(), 16).unwrap() & 1 << (libc::SIGTERM - 1) != 0
    });
    kill(pid(&child), libc::SIGTERM);
    let output = child.wait_with_output().unwrap();
    assert_eq!(signal(&output), Some(libc::SIGTERM), "{}", err(&output));
    assert!(err(&output).contains(": interrupted; 0 B given up of 20.0 MiB asked for, in "), "{}", err(&output));
    assert_eq!(held(&tree), before);
    tree.check();
    tree.finish();
}
