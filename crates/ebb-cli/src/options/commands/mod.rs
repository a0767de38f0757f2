//! The commands of `ebb` and their options, as clap reads them: the one source of the parser, of `--help`, of the manual
//! pages and of the completions of shells (`tests/pages`). A file beside this one describes those that belong together,
//! with their texts.
//!
//! Texts are wrapped by hand, at 100 columns, and at 90 in what belongs to an option: so nothing has to be asked or
//! computed when `ebb` starts. The manual pages need to know what a line is. At the margin it is of a paragraph. After two
//! spaces there is a term, and after two more, or on the next line, its definition. After four spaces it is an example.
//! What follows the options is sections: a line of one or two words and a colon is a heading.

mod change;
mod devices;
mod doctor;
mod parts;
mod run;
mod show;

use clap::{Arg, ArgAction, Command};

use parts::{OneOf, help, positional};

/// The command's name, in messages as on the command line.
pub const NAME: &str = "ebb";

/// The command line of `ebb`. What belongs to one command is only built when that is given.
pub fn ebb() -> Command {
    Command::new(NAME)
        .version(env!("CARGO_PKG_VERSION"))
        .about("Run a program in less memory than it wants")
        .long_about(EBB)
        .override_usage(
            "ebb run [OPTIONS] -- PROGRAM [ARGS...]\n       \
             ebb COMMAND [OPTIONS] [ARGS...]",
        )
        .after_long_help(EBB_AFTER)
        .disable_help_flag(true)
        .disable_version_flag(true)
        .disable_help_subcommand(true)
        .arg(help())
        .arg(
            Arg::new("version")
                .short('V')
                .long("version")
                .action(ArgAction::Version)
                .help("Print the version of Ebb, and end"),
        )
        .subcommand_help_heading("Commands")
        .subcommand_value_name("COMMAND")
        .subcommands([
            named("run", "Run a program within a memory budget").defer(run::run),
            named("ps", "Show the programs under Ebb, and the memory they hold").defer(show::ps),
            named("top", "Show them live, with the last minutes").defer(show::top),
            named("set", "Change the budget of a running program").defer(change::set),
            named("reclaim", "Take memory from a running program now").defer(change::reclaim),
            named("advise", "Say how much RAM a program needs, and what less would cost").defer(show::advise),
            named("metrics", "Export metrics for Prometheus").defer(show::metrics),
            named("doctor", "Say whether this host allows Ebb, and what to change").defer(doctor::doctor),
            named("locks", "Show where the threads of a running program wait in Ebb").defer(show::locks),
            named("swapon", "Add a swap device to a running process, or show its devices").defer(devices::swapon),
            named("swapoff", "Remove a swap device from a running process").defer(devices::swapoff),
            named("help", "Print what `ebb COMMAND --help` prints").defer(help_command),
        ])
}

/// The options of `ebb run` alone, for the places where users keep them.
pub fn run_elsewhere() -> Command {
    run::run(named("run", "")).no_binary_name(true).mut_arg("program", |program| program.required(false))
}

fn named(name: &'static str, about: &'static str) -> Command {
    Command::new(name).about(about).disable_help_flag(true).args_override_self(true)
}

fn help_command(command: Command) -> Command {
    command
        .override_usage("ebb help [COMMAND]")
        .arg(help())
        .arg(positional("command", "COMMAND").value_parser(OneOf(NAMES)).hide_possible_values(true).help("The command"))
}

/// The commands that have help.
const NAMES: &[&str] =
    &["run", "ps", "top", "set", "reclaim", "advise", "metrics", "doctor", "locks", "swapon", "swapoff"];

const EBB: &str = "\
Ebb runs a program, and all the processes that it starts, within a budget of RAM. It compresses cold
pages of the program in RAM, then spills them to disk. It needs no root, no kernel swap, no kernel
module and no daemon, and it does not change the program.";

const EBB_AFTER: &str = "\
Exit status:
  125  Ebb could not do what was asked. One line on standard error says what, why, and what to do.
       `ebb COMMAND --help` has the others.

Environment:
  EBB_OPTIONS  options of `ebb run`
  EBB_TMPDIR   the directory of swap files, where none is named

Files:
  /etc/ebb.conf         options of `ebb run` for all users
  ~/.config/ebb/config  options of `ebb run` for one user

Examples:
    ebb run --ram 512M -- make -j2
    ebb ps
    ebb doctor";
