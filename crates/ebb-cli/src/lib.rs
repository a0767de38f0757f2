//! The `ebb` command: `ebb run` runs an unmodified program under Ebb and waits for it. `ebb doctor` says what this host
//! allows. `ebb ps` shows what runs under Ebb and what it holds, `ebb top` shows that live, `ebb set` changes its budget, `ebb reclaim` takes
//! memory from it, and `ebb locks` shows where a running program waits. `ebb swapon` and `ebb swapoff` change where it swaps to.
//!
//! A failure before the program starts is one line, `ebb: WHAT: WHY; REMEDY`, and exit status 125. Exit statuses 126
//! and 127 mean what they mean for env(1). `docs/contract.md` is the contract with the preloaded agent.

mod base;
mod change;
mod host;
pub mod options;
mod run;
mod running;
mod show;

use std::ffi::OsString;
use std::io::Write;

use base::failure::Failure;
use base::sys;
use change::{reclaim, set, swapon};
use host::doctor;
use options::Command;
use run::start;
use show::{advise, devices, locks, metrics, ps, top};

/// Runs the command that `args` asks for and returns the exit status. `args` begins with the program's name.
pub fn main(args: impl Iterator<Item = OsString>) -> i32 {
    sys::hold_standard_descriptors();
    // A process that ignores SIGCHLD cannot wait for its children.
    let ignored_children = sys::default_action(libc::SIGCHLD);
    let outcome = match options::parse(args) {
        Ok(Command::Print(text)) => print(&text),
        Ok(Command::Usage) => {
            let (text, failure) = options::usage();
            sys::complain(&text);
            Err(failure)
        }
        Ok(Command::Run(run)) => start::run(&run, ignored_children),
        Ok(Command::Doctor { json }) => {
            let (text, works) = doctor::report(json);
            print(&text).map(|_| if works { 0 } else { 1 })
        }
        Ok(Command::Locks { target }) => locks::report(&target).and_then(|text| print(&text)),
        Ok(Command::SwapOn { target, device }) => swapon::on(&target, &device),
        Ok(Command::SwapOff { target, device }) => swapon::off(&target, &device),
        Ok(Command::Ps(form)) => ps::report(&form).and_then(|(text, status)| print(&text).map(|_| status)),
        Ok(Command::Advise(watching)) => advise::watch(&watching).and_then(|text| print(&text)),
        Ok(Command::Top(form)) => top::report(&form),
        Ok(Command::Metrics(form)) => metrics::report(&form).and_then(|text| print(&text)),
        Ok(Command::Set(change)) => set::set(&change),
        Ok(Command::Reclaim(demand)) => {
            reclaim::reclaim(&demand).and_then(|(text, status)| print(&text).map(|_| status))
        }
        Ok(Command::Show(form)) => devices::report(&form).and_then(|text| print(&text)),
        Err(failure) => Err(failure),
    };
    match outcome {
        Ok(status) => status,
        Err(failure) => {
            sys::complain(&format!("{failure}"));
            failure.status
        }
    }
}

fn print(text: &str) -> Result<i32, Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(0),
        Err(error) => Err(Failure::ebb("standard output", error, "redirect it to a place that can be written")),
    }
}
