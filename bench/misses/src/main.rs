//! Replays what a program touches against replacement policies, beside what Ebb did with the same program at the same
//! number of pages in memory. `docs/internals/misses.md` says how, and how far to trust it.

mod align;
mod events;
mod policies;
mod real;
mod report;
mod touch;
mod trace;

use std::path::Path;

const HELP: &str = "\
Usage: ebb-bench-misses compare TRACE REAL     two files of records: print a line of JSON
       ebb-bench-misses touch PATTERN MIB TOUCHES   a program with known touches: seq, random or zipf
";

fn run(args: &[String]) -> Result<(), String> {
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["compare", trace, real] => {
            println!("{}", report::compare(Path::new(trace), Path::new(real))?);
            Ok(())
        }
        ["touch", pattern, mib, touches] => {
            let number = |text: &str| text.parse().map_err(|_| format!("{text}: not a number"));
            touch::run(pattern, number(mib)?, number(touches)?)
        }
        _ => Err(HELP.to_owned()),
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let Err(why) = run(&args) {
        eprint!("{why}{}", if why.ends_with('\n') { "" } else { "\n" });
        std::process::exit(2);
    }
}
