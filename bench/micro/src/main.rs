//! One process, one workload: how long each access to more memory than fits takes.
//!
//! Started plainly it measures whatever is below it: enough RAM, the kernel's swap in a limited cgroup, or Ebb under
//! `ebb run`. With `--in-process` it makes a space of Ebb's engine itself, without the agent, which is the form for a
//! profiler. It checks what it reads and prints one line of JSON.

mod content;
mod counters;
mod histogram;
mod in_process;
mod memory;
mod options;
mod pattern;
mod random;
mod report;
mod team;
mod workload;

use options::Options;

fn main() {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(Some(options)) => options,
        Ok(None) => {
            print!("{}", options::HELP);
            return;
        }
        Err(why) => {
            eprintln!("ebb-bench-micro: {why}; see `ebb-bench-micro --help`");
            std::process::exit(2);
        }
    };
    println!("{}", report::line(&options, &workload::run(&options)));
}
