//! Where little is left to begin with: `ebb run` under another, and under a limit on address space.

use crate::common::{HOLD, House, code, err, out};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// `ebb run` with `args`, of a program that holds 40 MiB, as its child does, and checks them.
fn hold(house: &House, args: &[&str]) -> Command {
    let program = house.compile("hold", HOLD, &[]);
    let mut command = house.ebb(["run", "--swap", "none"]);
    command.args(args).arg("--").arg(program).args(["40", "1"]);
    command
}

/// The same below a limit on address space.
fn limited(mut command: Command, bytes: u64) -> Command {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    // SAFETY: setrlimit may be called between fork and exec.
    unsafe {
        command.pre_exec(move || match libc::setrlimit(libc::RLIMIT_AS, &limit) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
    command
}

#[test]
fn an_ebb_under_another_runs_its_program_in_a_share_of_the_budget() {
    let house = House::with_agent();
    let inner = hold(&house, &["-v", "--ram", "1G"]);
    let mut outer = house.ebb(["run", "-q", "--ram", "64M", "--"]);
    let output = outer.arg(inner.get_program()).args(inner.get_args()).output().unwrap();
    assert_eq!((code(&output), out(&output).as_str()), (Some(0), "ready\nready\n"), "{}", err(&output));
    let told = err(&output);
    assert!(told.contains("budget 64.0 MiB (from the outer `ebb run`)"), "{told}");
    assert!(!told.contains("too small"), "{told}");
}

#[test]
fn a_limit_on_address_space_that_has_room_for_ebb_is_enough() {
    let house = House::with_agent();
    // Two processes that hold 40 MiB each.
    let output = limited(hold(&house, &["-q", "--ram", "48M"]), 2 << 30).output().unwrap();
    assert_eq!((code(&output), out(&output).as_str()), (Some(0), "ready\nready\n"), "{}", err(&output));
}

#[test]
fn a_limit_raised_to_what_the_refusal_says_is_enough() {
    let house = House::with_agent();
    for ram in ["48M", "256M", "1G", "2G"] {
        let output = limited(hold(&house, &["-q", "--ram", ram]), 300 << 20).output().unwrap();
        let told = err(&output);
        let mib = told.split("from 300 MiB to ").nth(1).and_then(|rest| rest.split(' ').next()?.parse::<u64>().ok());
        let mib = mib.unwrap_or_else(|| panic!("{told}"));
        // The program holds 40 MiB, and so does its child.
        let output = limited(hold(&house, &["-q", "--ram", ram]), (mib + 128) << 20).output().unwrap();
        assert_eq!((code(&output), out(&output).as_str()), (Some(0), "ready\nready\n"), "{ram}: {}", err(&output));
    }
}

#[test]
fn a_limit_that_is_too_small_is_refused_at_the_start_in_one_line() {
    let house = House::with_agent();
    let output = limited(hold(&house, &["--ram", "16M"]), 300 << 20).output().unwrap();
    assert_eq!((code(&output), out(&output).as_str()), (Some(125), ""));
    let told = err(&output);
    assert!(told.starts_with("ebb: no address space for Ebb's tables (errno 12); raise the limit"), "{told}");
    assert_eq!(told.lines().count(), 1, "{told}");
}
