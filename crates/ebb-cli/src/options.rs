//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::base::failure::Failure;
use crate::base::http::Address;
use crate::base::name::{self, Target};
use crate::base::size::parse_amount;
use crate::base::text::printable;
use crate::change::reclaim::{Demand, To};
use crate::change::set::Change;
use crate::help::{
    DOCTOR_HELP, HELP, LOCKS_HELP, METRICS_HELP, PS_HELP, RECLAIM_HELP, RUN_HELP, SET_HELP, SWAPOFF_HELP, SWAPON_HELP,
};
use crate::host::budget::{self, Ram};
use crate::host::idle;
use crate::host::profile::Profile;
use crate::host::spill::{Device, parse_device};
use crate::host::thp;
use crate::run::request::{Run, Verbosity};
use crate::show::devices::Show;
use crate::show::metrics::{Destination, Metrics};
use crate::show::ps::Ps;
use crate::sources::{self, Source};

/// What the command line asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    Print(String),
    /// Nothing was asked for.
    Usage,
    Run(Run),
    Doctor {
        json: bool,
    },
    Locks {
        target: Target,
    },
    SwapOn {
        target: Target,
        device: Device,
    },
    SwapOff {
        target: Target,
        device: PathBuf,
    },
    Show(Show),
    Ps(Ps),
    Metrics(Metrics),
    Reclaim(Demand),
    Set(Change),
}

/// The failure for a command that was not told which program to look at.
const NO_TARGET: &str = "no NAME or PID of a running program given";

fn syntax(what: impl ToString, why: impl ToString, help: &str) -> Failure {
    Failure::ebb(what, why, format!("see `{help}`"))
}

/// The name of a file. What looks like an option is none: then the name was forgotten.
fn parse_file(option: &str, value: OsString) -> Result<PathBuf, Failure> {
    if value.as_encoded_bytes().starts_with(b"-") {
        let value = value.to_string_lossy();
        let remedy = format!("give the file's name after {option}, or `./{value}` if that is its name");
        return Err(Failure::ebb(option, format!("`{value}` is not the name of a file"), remedy));
    }
    Ok(value.into())
}

/// The failure for a complaint of the parser, such as an option without its value.
fn parser_failure(error: lexopt::Error, help: &str) -> Failure {
    match error {
        lexopt::Error::MissingValue { option: Some(option) } => syntax(option, "this option needs a value", help),
        lexopt::Error::UnexpectedOption(option) => syntax(option, "unknown option", help),
        lexopt::Error::UnexpectedArgument(argument) => syntax(argument.to_string_lossy(), "unexpected argument", help),
        lexopt::Error::UnexpectedValue { option, .. } => syntax(option, "this option takes no value", help),
        other => syntax("command line", other, help),
    }
}

/// Parses the command line. `args` begins with the program's name.
pub fn parse(args: impl Iterator<Item = OsString>) -> Result<Command, Failure> {
    parse_with(args, sources::here)
}

fn parse_with(
    args: impl Iterator<Item = OsString>,
    sources: impl FnOnce() -> Result<Vec<Source>, Failure>,
) -> Result<Command, Failure> {
    use lexopt::prelude::*;
    const SEE: &str = "ebb --help";
    let mut parser = lexopt::Parser::from_iter(args);
    match parser.next().map_err(|error| parser_failure(error, SEE))? {
        None => Ok(Command::Usage),
        Some(Short('h') | Long("help")) => Ok(Command::Print(HELP.to_owned())),
        Some(Short('V') | Long("version")) => Ok(Command::Print(version())),
        Some(Value(command)) => match command.to_str() {
            Some("run") => parse_run(&mut parser, sources),
            Some("ps") => parse_ps(&mut parser),
            Some("set") => parse_set(&mut parser),
            Some("reclaim") => parse_reclaim(&mut parser),
            Some("metrics") => parse_metrics(&mut parser),
            Some("doctor") => parse_doctor(&mut parser),
            Some("locks") => parse_locks(&mut parser),
            Some("swapon") => parse_swapon(&mut parser),
            Some("swapoff") => parse_swapoff(&mut parser),
            Some("help") => Ok(Command::Print(HELP.to_owned())),
            _ => Err(syntax(
                command.to_string_lossy(),
                "unknown command",
                "ebb --help`, or run a program with `ebb run -- PROGRAM",
            )),
        },
        Some(other) => Err(parser_failure(other.unexpected(), SEE)),
    }
}

/// The text and the failure for a command line without a command.
pub fn usage() -> (&'static str, Failure) {
    (HELP, Failure::ebb("command line", "no command given", "run a program with `ebb run -- PROGRAM`"))
}

fn version() -> String {
    format!("ebb {}\n", env!("CARGO_PKG_VERSION"))
}

fn parse_name(value: &OsString) -> Result<String, Failure> {
    let text = value.to_string_lossy();
    name::check(&text).map_err(|error| Failure::ebb(format!("--name {}", printable(&text)), error, name::REMEDY))?;
    Ok(text.into_owned())
}

fn parse_target(value: &OsString, help: &str) -> Result<Target, Failure> {
    let text = value.to_string_lossy();
    Target::parse(&text)
        .map_err(|_| syntax(printable(&text), "this is neither a name given to `ebb run --name` nor a PID", help))
}

fn parse_ps(parser: &mut lexopt::Parser) -> Result<Command, Failure> {
    use lexopt::prelude::*;
    const SEE: &str = "ebb ps --help";
    let mut ps = Ps { targets: Vec::new(), json: false, bytes: false, headings: true, verbose: false, validate: false };
    while let Some(argument) = parser.next().map_err(|error| parser_failure(error, SEE))? {
        match argument {
            Long("json") => ps.json = true,
            Long("bytes") => ps.bytes = true,
            Long("noheadings") => ps.headings = false,
            Short('v') | Long("verbose") => ps.verbose = true,
            Long("validate") => ps.validate = true,
            Short('h') | Long("help") => return Ok(Command::Print(PS_HELP.to_owned())),
            Value(value) => ps.targets.push(parse_target(&value, SEE)?),
            other => return Err(parser_failure(other.unexpected(), SEE)),
        }
    }
    if ps.validate && (ps.json || ps.bytes || ps.verbose || !ps.headings) {
        return Err(syntax("ebb ps", "--json, --bytes, --noheadings and -v cannot be used with --validate", SEE));
    }
    Ok(Command::Ps(ps))
}

fn parse_set(parser: &mut lexopt::Parser) -> Result<Command, Failure> {
    use lexopt::prelude::*;
    const SEE: &str = "ebb set --help";
    let failed = |error| parser_failure(error, SEE);
    let (mut target, mut ram, mut choice, mut idle_ms) = (None, None, None, None);
    while let Some(argument) = parser.next().map_err(failed)? {
        match argument {
            Long("ram") => ram = Some(budget::parse(&parser.value().map_err(failed)?.to_string_lossy())?),
            Long("thp") => choice = Some(thp::parse(&parser.value().map_err(failed)?)?),
            Long("idle") => idle_ms = Some(idle::parse(&parser.value().map_err(failed)?)?),
            Short('h') | Long("help") => return Ok(Command::Print(SET_HELP.to_owned())),
            Value(value) if target.is_none() => target = Some(parse_target(&value, SEE)?),
            other => return Err(parser_failure(other.unexpected(), SEE)),
        }
    }
    let target = target.ok_or_else(|| syntax("ebb set", NO_TARGET, SEE))?;
    if ram.is_none() && choice.is_none() && idle_ms.is_none() {
        return Err(syntax("ebb set", "nothing to change: none of --ram, --thp and --idle is given", SEE));
    }
    Ok(Command::Set(Change { target, ram, thp: choice, idle_ms }))
}

fn parse_reclaim(parser: &mut lexopt::Parser) -> Result<Command, Failure> {
    use lexopt::prelude::*;
    const SEE: &str = "ebb reclaim --help";
    const WHAT: &str = "ebb reclaim";
    let (mut target, mut amount, mut to) = (None, None, None);
    while let Some(argument) = parser.next().map_err(|error| parser_failure(error, SEE))? {
        match argument {
            Long("to") => to = Some(parse_to(&parser.value().map_err(|error| parser_failure(error, SEE))?)?),
            Short('h') | Long("help") => return Ok(Command::Print(RECLAIM_HELP.to_owned())),
            Value(value) if target.is_none() => target = Some(parse_target(&value, SEE)?),
            Value(value) if amount.is_none() => {
                let text = value.to_string_lossy();
                amount = Some(parse_amount(&text).map_err(|error| {
                    let remedy = "write how much to take as a size such as 100M, 1.5G or 1GiB, or as a percentage such \
                                  as 25%";
                    Failure::ebb(format!("{WHAT} {}", printable(&text)), error, remedy)
                })?);
            }
            other => return Err(parser_failure(other.unexpected(), SEE)),
        }
    }
    let target = target.ok_or_else(|| syntax(WHAT, NO_TARGET, SEE))?;
    let amount = amount.ok_or_else(|| syntax(WHAT, "no size given", SEE))?;
    Ok(Command::Reclaim(Demand { target, amount, to }))
}

fn parse_to(value: &OsString) -> Result<To, Failure> {
    match value.to_str() {
        Some("pool") => Ok(To::Pool),
        Some("cold") => Ok(To::Cold),
        Some("device") => Ok(To::Device),
        _ => Err(Failure::ebb(
            format!("--to {}", printable(&value.to_string_lossy())),
            "memory cannot go there",
            "write pool, cold or device, or leave --to out",
        )),
    }
}

fn parse_metrics(parser: &mut lexopt::Parser) -> Result<Command, Failure> {
    use lexopt::prelude::*;
    const SEE: &str = "ebb metrics --help";
    let (mut targets, mut to) = (Vec::new(), Destination::Output);
    while let Some(argument) = parser.next().map_err(|error| parser_failure(error, SEE))? {
        let is_named = to != Destination::Output;
        let next = match argument {
            Long("listen") => {
                Destination::Listen(parse_address(&parser.value().map_err(|error| parser_failure(error, SEE))?)?)
            }
            Long("textfile") => {
                let value = parser.value().map_err(|error| parser_failure(error, SEE))?;
                Destination::Directory(parse_file("--textfile", value)?)
            }
            Short('h') | Long("help") => return Ok(Command::Print(METRICS_HELP.to_owned())),
            Value(value) => {
                targets.push(parse_target(&value, SEE)?);
                continue;
            }
            other => return Err(parser_failure(other.unexpected(), SEE)),
        };
        if is_named {
            return Err(syntax("ebb metrics", "more than one of --listen and --textfile given", SEE));
        }
        to = next;
    }
    Ok(Command::Metrics(Metrics { targets, to }))
}

fn parse_address(value: &OsString) -> Result<Address, Failure> {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    if let Some(path) = value.as_bytes().strip_prefix(b"unix:").filter(|path| !path.is_empty()) {
        return Ok(Address::Unix(OsString::from_vec(path.to_vec()).into()));
    }
    let text = value.to_string_lossy();
    text.parse().map(Address::Inet).map_err(|_| {
        Failure::ebb(
            format!("--listen {}", printable(&text)),
            "this is no address",
            "write an IP address and a port such as 127.0.0.1:9841, or unix:PATH",
        )
    })
}

fn parse_doctor(parser: &mut lexopt::Parser) -> Result<Command, Failure> {
    use lexopt::prelude::*;
    const SEE: &str = "ebb doctor --help";
    let (mut json, mut profile) = (false, None);
    while let Some(argument) = parser.next().map_err(|error| parser_failure(error, SEE))? {
        match argument {
            Long("json") => json = true,
            Long("seccomp-profile") => {
                profile = Some(parse_profile(&parser.value().map_err(|error| parser_failure(error, SEE))?)?);
            }
            Short('h') | Long("help") => return Ok(Command::Print(DOCTOR_HELP.to_owned())),
            other => return Err(parser_failure(other.unexpected(), SEE)),
        }
    }
    match profile {
        Some(_) if json => Err(syntax("--json", "this option cannot be used with --seccomp-profile", SEE)),
        Some(profile) => Ok(Command::Print(profile.json().to_owned())),
        None => Ok(Command::Doctor { json }),
    }
}

fn parse_profile(value: &OsString) -> Result<Profile, Failure> {
    let text = value.to_string_lossy();
    Profile::named(&text).ok_or_else(|| {
        Failure::ebb(
            format!("--seccomp-profile {}", printable(&text)),
            "there is no profile for this engine",
            "write docker, podman or k8s; what reads the OCI format, as containerd does, takes that of k8s",
        )
    })
}

fn parse_locks(parser: &mut lexopt::Parser) -> Result<Command, Failure> {
    use lexopt::prelude::*;
    const SEE: &str = "ebb locks --help";
    let mut target = None;
    while let Some(argument) = parser.next().map_err(|error| parser_failure(error, SEE))? {
        match argument {
            Short('h') | Long("help") => return Ok(Command::Print(LOCKS_HELP.to_owned())),
            Value(value) if target.is_none() => target = Some(parse_target(&value, SEE)?),
            other => return Err(parser_failure(other.unexpected(), SEE)),
        }
    }
    target.map(|target| Command::Locks { target }).ok_or_else(|| syntax("ebb locks", NO_TARGET, SEE))
}

fn parse_swapon(parser: &mut lexopt::Parser) -> Result<Command, Failure> {
    use lexopt::prelude::*;
    const SEE: &str = "ebb swapon --help";
    const WHAT: &str = "ebb swapon";
    let mut show = Show { target: None, bytes: false, headings: true };
    let (mut shows, mut spec) = (false, None);
    while let Some(argument) = parser.next().map_err(|error| parser_failure(error, SEE))? {
        match argument {
            Long("show") => shows = true,
            Long("bytes") => show.bytes = true,
            Long("noheadings") => show.headings = false,
            Short('h') | Long("help") => return Ok(Command::Print(SWAPON_HELP.to_owned())),
            Value(value) if show.target.is_none() => show.target = Some(parse_target(&value, SEE)?),
            Value(value) if spec.is_none() => spec = Some(value),
            other => return Err(parser_failure(other.unexpected(), SEE)),
        }
    }
    match (shows, show.target.clone(), spec) {
        (true, _, None) => Ok(Command::Show(show)),
        (true, _, Some(spec)) => Err(syntax(spec.to_string_lossy(), "this argument cannot be used with --show", SEE)),
        (false, _, _) if show.bytes || !show.headings => {
            Err(syntax(WHAT, "--bytes and --noheadings can only be used with --show", SEE))
        }
        (false, None, _) => Err(syntax(WHAT, NO_TARGET, SEE)),
        (false, Some(_), None) => Err(Failure::ebb(
            WHAT,
            "nothing says where to put a swap file",
            "name a directory, such as file:/var/tmp, after the program's NAME or PID",
        )),
        (false, Some(target), Some(spec)) => match parse_device(WHAT, &spec)? {
            Device::None => Err(Failure::ebb(
                format!("{WHAT} none"),
                "`none` adds nothing to swap to",
                "name a directory, such as file:/var/tmp",
            )),
            device => Ok(Command::SwapOn { target, device }),
        },
    }
}

fn parse_swapoff(parser: &mut lexopt::Parser) -> Result<Command, Failure> {
    use lexopt::prelude::*;
    const SEE: &str = "ebb swapoff --help";
    let (mut target, mut device) = (None, None);
    while let Some(argument) = parser.next().map_err(|error| parser_failure(error, SEE))? {
        match argument {
            Short('h') | Long("help") => return Ok(Command::Print(SWAPOFF_HELP.to_owned())),
            Value(value) if target.is_none() => target = Some(parse_target(&value, SEE)?),
            Value(value) if device.is_none() && !value.is_empty() => device = Some(PathBuf::from(value)),
            other => return Err(parser_failure(other.unexpected(), SEE)),
        }
    }
    let target = target.ok_or_else(|| syntax("ebb swapoff", NO_TARGET, SEE))?;
    let device = device.ok_or_else(|| {
        let remedy = "name its directory, as `ebb swapon --show` prints it, after the program's NAME or PID";
        Failure::ebb("ebb swapoff", "nothing says which swap file to remove", remedy)
    })?;
    Ok(Command::SwapOff { target, device })
}

/// What `sources` has yields to the command line.
fn parse_run(
    parser: &mut lexopt::Parser,
    sources: impl FnOnce() -> Result<Vec<Source>, Failure>,
) -> Result<Command, Failure> {
    const SEE: &str = "ebb run --help";
    let failed = |error| parser_failure(error, SEE);
    let mut run = Run {
        ram: Ram::Auto,
        thp: thp::Choice::Host,
        idle_ms: 0,
        name: None,
        swap: Vec::new(),
        stats: None,
        allow_unmanaged: false,
        verbosity: Verbosity::Normal,
        program: OsString::new(),
        args: Vec::new(),
    };
    // Help must not depend on what is elsewhere.
    if let Taken::Help = take_options(&mut parser.clone(), &mut run.clone(), SEE)? {
        return Ok(Command::Print(RUN_HELP.to_owned()));
    }
    for source in sources()? {
        take_source(&source, &mut run)?;
    }
    match take_options(parser, &mut run, SEE)? {
        Taken::Help => Ok(Command::Print(RUN_HELP.to_owned())),
        Taken::Program(program) => {
            run.program = program;
            run.args = parser.raw_args().map_err(failed)?.collect();
            Ok(Command::Run(run))
        }
        Taken::All => Err(syntax("ebb run", "no program given", SEE)),
    }
}

/// Where the options of one place end.
enum Taken {
    All,
    Help,
    Program(OsString),
}

/// Takes the options of another place than the command line.
fn take_source(source: &Source, run: &mut Run) -> Result<(), Failure> {
    const SEE: &str = "ebb run --help";
    let within = |failure: Failure| Failure { what: format!("{}: {}", source.name, failure.what), ..failure };
    let mut parser = lexopt::Parser::from_args(source.words.iter().cloned());
    let taken = take_options(&mut parser, run, SEE).map_err(within)?;
    let only = |what, why| Err(within(syntax(what, why, SEE)));
    match taken {
        // Without the word: it may be of a file that was never meant to be read here.
        Taken::Program(_) => only("a word".to_owned(), "only options can be given there, and this is none"),
        Taken::Help => only("--help".to_owned(), "this can only be given on the command line"),
        Taken::All if run.name.is_some() => only(
            "--name".to_owned(),
            "this can only be given on the command line, because no two trees can share a name",
        ),
        Taken::All if run.stats.is_some() => only(
            "--stats".to_owned(),
            "this can only be given on the command line, because all runs would write one file",
        ),
        Taken::All => Ok(()),
    }
}

/// Takes options up to the program's name. A place that names devices names all of them.
fn take_options(parser: &mut lexopt::Parser, run: &mut Run, see: &str) -> Result<Taken, Failure> {
    use lexopt::prelude::*;
    let failed = |error| parser_failure(error, see);
    let mut has_swap = false;
    while let Some(argument) = parser.next().map_err(failed)? {
        match argument {
            Long("ram") => run.ram = budget::parse(&parser.value().map_err(failed)?.to_string_lossy())?,
            Long("thp") => run.thp = thp::parse(&parser.value().map_err(failed)?)?,
            Long("idle") => run.idle_ms = idle::parse(&parser.value().map_err(failed)?)?,
            Long("name") => run.name = Some(parse_name(&parser.value().map_err(failed)?)?),
            Long("swap") => {
                if !std::mem::replace(&mut has_swap, true) {
                    run.swap.clear();
                }
                run.swap.push(parse_device("--swap", &parser.value().map_err(failed)?)?);
            }
            Long("stats") => run.stats = Some(parse_file("--stats", parser.value().map_err(failed)?)?),
            Long("allow-unmanaged") => run.allow_unmanaged = true,
            Short('q') | Long("quiet") => run.verbosity = Verbosity::Quiet,
            Short('v') | Long("verbose") => run.verbosity = Verbosity::Verbose,
            Short('h') | Long("help") => return Ok(Taken::Help),
            Value(program) => return Ok(Taken::Program(program)),
            other => return Err(failed(other.unexpected())),
        }
    }
    Ok(Taken::All)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::size::Amount;
    use crate::host::spill::Options;

    fn of(words: &[&str]) -> Result<Command, Failure> {
        of_all(&[], words)
    }

    /// Likewise, with options in other places.
    fn of_all(places: &[(&str, &[&str])], words: &[&str]) -> Result<Command, Failure> {
        let source = |(name, words): &(&str, &[&str])| Source {
            name: (*name).to_owned(),
            words: words.iter().map(OsString::from).collect(),
        };
        let sources = || Ok(places.iter().map(source).collect());
        parse_with(std::iter::once("ebb").chain(words.iter().copied()).map(OsString::from), sources)
    }

    #[test]
    fn options_elsewhere_yield_to_later_ones_and_to_the_command_line() {
        let file: (&str, &[&str]) = ("/etc/ebb.conf", &["--ram=1G", "--swap", "file:/a", "--swap=file:/b", "-q"]);
        let variable: (&str, &[&str]) = ("EBB_OPTIONS", &["--ram", "50%", "-v"]);
        let run = |places: &[(&str, &[&str])], words: &[&str]| match of_all(places, words) {
            Ok(Command::Run(run)) => run,
            other => panic!("{other:?}"),
        };
        let both = run(&[file, variable], &["run", "--idle", "1m", "x"]);
        assert_eq!((both.ram, both.idle_ms), (Ram::Amount(Amount::Share { millionths: 500_000 }), 60_000));
        assert_eq!((both.swap.len(), both.verbosity), (2, Verbosity::Verbose));
        // Devices are not added to those of another place.
        assert_eq!(run(&[file], &["run", "--swap", "none", "x"]).swap, [Device::None]);
        // Other commands do not look there.
        assert!(matches!(of_all(&[("EBB_OPTIONS", &["--no"])], &["ps"]), Ok(Command::Ps(_))));
    }

    #[test]
    fn what_makes_no_sense_elsewhere_is_said_with_the_place() {
        let said = |words: &[&str]| of_all(&[("EBB_OPTIONS", words)], &["run", "x"]).unwrap_err().to_string();
        assert!(said(&["--ram", "much"]).starts_with("ebb: EBB_OPTIONS: --ram much: "), "{}", said(&["--ram", "much"]));
        assert_eq!(said(&["--fast"]), "ebb: EBB_OPTIONS: --fast: unknown option; see `ebb run --help`");
        assert_eq!(
            said(&["-q", "make"]),
            "ebb: EBB_OPTIONS: a word: only options can be given there, and this is none; see `ebb run --help`"
        );
        assert!(said(&["--name=web"]).contains("--name: this can only be given on the command line"));
        assert!(said(&["--stats", "f"]).contains("--stats: this can only be given on the command line"));
        let help = of_all(&[("EBB_OPTIONS", &["--fast"])], &["run", "--help"]);
        assert_eq!(help, Ok(Command::Print(RUN_HELP.to_owned())));
        assert!(said(&["-h"]).contains("--help: this can only be given on the command line"));
    }

    fn run_of(words: &[&str]) -> Run {
        match of(words) {
            Ok(Command::Run(run)) => run,
            other => panic!("{other:?}"),
        }
    }

    fn line(words: &[&str]) -> String {
        of(words).unwrap_err().to_string()
    }

    #[test]
    fn every_option_of_run_arrives() {
        let run = run_of(&[
            "run",
            "--ram=64M",
            "--name",
            "web",
            "--swap",
            "none",
            "--stats",
            "s.json",
            "--idle=30s",
            "--allow-unmanaged",
            "-v",
            "--",
            "prog",
            "-x",
            "--",
            "y",
        ]);
        assert_eq!(run.ram, Ram::Amount(Amount::Bytes(64 << 20)));
        assert_eq!(run.name.as_deref(), Some("web"));
        assert_eq!(run.swap, vec![Device::None]);
        assert_eq!(run.idle_ms, 30_000);
        assert_eq!(run.stats, Some(PathBuf::from("s.json")));
        assert!(run.allow_unmanaged);
        assert_eq!(run.verbosity, Verbosity::Verbose);
        assert_eq!(run.program, "prog");
        assert_eq!(run.args, ["-x", "--", "y"]);
    }

    #[test]
    fn options_of_the_program_are_its_own_without_a_separator_too() {
        let run = run_of(&["run", "-q", "prog", "--ram", "1G", "--", "-v"]);
        assert_eq!(run.ram, Ram::Auto);
        assert_eq!(run.args, ["--ram", "1G", "--", "-v"]);
    }

    #[test]
    fn help_is_printed_for_each_command() {
        assert_eq!(of(&["--help"]), Ok(Command::Print(HELP.to_owned())));
        assert_eq!(of(&["run", "--ram", "1G", "--help"]), Ok(Command::Print(RUN_HELP.to_owned())));
        assert_eq!(of(&["doctor", "--seccomp-profile=podman"]), Ok(Command::Print(Profile::Podman.json().to_owned())));
        assert_eq!(of(&["doctor", "-h"]), Ok(Command::Print(DOCTOR_HELP.to_owned())));
        assert_eq!(of(&["locks", "--help"]), Ok(Command::Print(LOCKS_HELP.to_owned())));
        assert_eq!(of(&["swapon", "12", "--help"]), Ok(Command::Print(SWAPON_HELP.to_owned())));
        assert_eq!(of(&["metrics", "-h"]), Ok(Command::Print(METRICS_HELP.to_owned())));
        assert_eq!(of(&["ps", "-h"]), Ok(Command::Print(PS_HELP.to_owned())));
        assert_eq!(of(&["set", "--help"]), Ok(Command::Print(SET_HELP.to_owned())));
        assert_eq!(of(&["reclaim", "web", "-h"]), Ok(Command::Print(RECLAIM_HELP.to_owned())));
        assert_eq!(of(&["swapoff", "-h"]), Ok(Command::Print(SWAPOFF_HELP.to_owned())));
        assert_eq!(of(&["--version"]), Ok(Command::Print(version())));
        assert_eq!(of(&[]), Ok(Command::Usage));
        let (text, failure) = usage();
        assert_eq!((text, failure.to_string().lines().count()), (HELP, 1));
    }

    #[test]
    fn a_name_that_is_none_is_refused_with_what_one_is() {
        assert_eq!(
            line(&["run", "--name", "12", "x"]),
            "ebb: --name 12: a name of digits alone could be mistaken for a PID; use at most 63 letters, digits, `.`, `_` \
             and `-`, not digits alone"
        );
        assert!(line(&["run", "--name", "a\x1bb", "x"]).starts_with("ebb: --name a\\x1bb: `\\u{1b}` is not allowed"));
    }

    #[test]
    fn ps_shows_all_or_what_is_named() {
        let all =
            Ps { targets: Vec::new(), json: false, bytes: false, headings: true, verbose: false, validate: false };
        assert_eq!(of(&["ps"]), Ok(Command::Ps(all.clone())));
        let targets = vec![Target::Named("web".into()), Target::Of(12)];
        let some = Ps { targets, json: true, bytes: true, headings: false, verbose: true, validate: false };
        assert_eq!(of(&["ps", "--json", "web", "--bytes", "12", "--noheadings", "-v"]), Ok(Command::Ps(some)));
        assert_eq!(of(&["ps", "--validate"]), Ok(Command::Ps(Ps { validate: true, ..all })));
        assert!(line(&["ps", "--validate", "--json"]).contains("cannot be used with --validate"));
        assert!(
            line(&["ps", "a/b"]).starts_with("ebb: a/b: this is neither a name given to `ebb run --name` nor a PID; ")
        );
    }

    #[test]
    fn metrics_go_to_one_place() {
        let metrics = |targets, to| Ok(Command::Metrics(Metrics { targets, to }));
        assert_eq!(of(&["metrics"]), metrics(Vec::new(), Destination::Output));
        let inet = Destination::Listen(Address::Inet("127.0.0.1:9841".parse().unwrap()));
        let web = vec![Target::Named("web".into())];
        assert_eq!(of(&["metrics", "--listen", "127.0.0.1:9841", "web"]), metrics(web, inet));
        let unix = Destination::Listen(Address::Unix("/run/ebb".into()));
        assert_eq!(of(&["metrics", "--listen=unix:/run/ebb"]), metrics(Vec::new(), unix));
        assert_eq!(of(&["metrics", "--textfile", "/d"]), metrics(Vec::new(), Destination::Directory("/d".into())));
        assert_eq!(
            line(&["metrics", "--listen", "9841"]),
            "ebb: --listen 9841: this is no address; write an IP address and a port such as 127.0.0.1:9841, or unix:PATH"
        );
        assert!(line(&["metrics", "--listen", "unix:"]).contains("this is no address"));
        assert!(line(&["metrics", "--textfile=/d", "--listen=127.0.0.1:1"]).contains("more than one of"));
    }

    #[test]
    fn set_names_a_tree_and_a_budget() {
        let change = Change {
            target: Target::Named("web".into()),
            ram: Some(Ram::Amount(Amount::Bytes(1 << 30))),
            thp: None,
            idle_ms: None,
        };
        assert_eq!(of(&["set", "web", "--ram", "1G"]), Ok(Command::Set(change.clone())));
        let change = Change { target: Target::Of(12), ram: Some(Ram::Auto), ..change };
        assert_eq!(of(&["set", "--ram=auto", "12"]), Ok(Command::Set(change.clone())));
        let change = Change { ram: None, idle_ms: Some(600_000), ..change };
        assert_eq!(of(&["set", "12", "--idle", "10m"]), Ok(Command::Set(change.clone())));
        let change = Change { idle_ms: Some(0), ..change };
        assert_eq!(of(&["set", "12", "--idle=off"]), Ok(Command::Set(change)));
        assert_eq!(
            line(&["set", "--ram", "1G"]),
            "ebb: ebb set: no NAME or PID of a running program given; see `ebb set --help`"
        );
        assert_eq!(
            line(&["set", "web"]),
            "ebb: ebb set: nothing to change: none of --ram, --thp and --idle is given; see `ebb set --help`"
        );
        assert!(line(&["set", "web", "12", "--ram", "1G"]).starts_with("ebb: 12: unexpected argument; "));
    }

    #[test]
    fn reclaim_names_a_tree_and_how_much() {
        let demand = |amount, to| Ok(Command::Reclaim(Demand { target: Target::Named("web".into()), amount, to }));
        assert_eq!(of(&["reclaim", "web", "100M"]), demand(Amount::Bytes(100 << 20), None));
        assert_eq!(of(&["reclaim", "--to=pool", "web", "1G"]), demand(Amount::Bytes(1 << 30), Some(To::Pool)));
        let quarter = Amount::Share { millionths: 250_000 };
        assert_eq!(of(&["reclaim", "web", "25%", "--to", "device"]), demand(quarter, Some(To::Device)));
        assert_eq!(of(&["reclaim", "web", "25%", "--to", "cold"]), demand(quarter, Some(To::Cold)));
        assert_eq!(
            line(&["reclaim"]),
            "ebb: ebb reclaim: no NAME or PID of a running program given; see `ebb reclaim --help`"
        );
        assert_eq!(line(&["reclaim", "web"]), "ebb: ebb reclaim: no size given; see `ebb reclaim --help`");
        let remedy = "write how much to take as a size such as 100M, 1.5G or 1GiB, or as a percentage such as 25%";
        assert_eq!(line(&["reclaim", "web", "0"]), format!("ebb: ebb reclaim 0: it is zero; {remedy}"));
        assert!(
            line(&["reclaim", "web", "much"]).starts_with("ebb: ebb reclaim much: it does not begin with a number; ")
        );
        assert!(line(&["reclaim", "web", "101%"]).contains(": a percentage must be more than 0% and at most 100%; "));
        assert!(line(&["reclaim", "web", "1M", "2M"]).starts_with("ebb: 2M: unexpected argument; "));
        assert_eq!(
            line(&["reclaim", "web", "1M", "--to", "tape"]),
            "ebb: --to tape: memory cannot go there; write pool, cold or device, or leave --to out"
        );
        assert_eq!(
            line(&["reclaim", "web", "1M", "--to"]),
            "ebb: --to: this option needs a value; see `ebb reclaim --help`"
        );
    }

    #[test]
    fn swapon_names_a_process_and_a_device() {
        let options = Options { size_bytes: Some(1 << 30), prio: Some(5), ..Options::default() };
        let device = Device::File { dir: Some("/x".into()), options };
        assert_eq!(
            of(&["swapon", "12", "file:/x,prio=5,size=1G"]),
            Ok(Command::SwapOn { target: Target::Of(12), device })
        );
        let device = Device::File { dir: None, options: Options::default() };
        let target = Target::Named("web".into());
        assert_eq!(of(&["swapon", "web", "file"]), Ok(Command::SwapOn { target, device }));
        assert_eq!(
            line(&["swapon"]),
            "ebb: ebb swapon: no NAME or PID of a running program given; see `ebb swapon --help`"
        );
        assert_eq!(
            line(&["swapon", "12"]),
            "ebb: ebb swapon: nothing says where to put a swap file; \
             name a directory, such as file:/var/tmp, after the program's NAME or PID"
        );
        assert_eq!(
            line(&["swapon", "12", "none"]),
            "ebb: ebb swapon none: `none` adds nothing to swap to; name a directory, such as file:/var/tmp"
        );
        assert!(line(&["swapon", "12", "zram"]).starts_with("ebb: ebb swapon zram: Ebb can swap only to files; "));
        assert!(
            line(&["swapon", "/x", "file"])
                .starts_with("ebb: /x: this is neither a name given to `ebb run --name` nor a PID; ")
        );
        assert!(line(&["swapon", "12", "file", "--bytes"]).contains("can only be used with --show"));
    }

    #[test]
    fn swapon_shows_one_process_or_all() {
        let all = Show { target: None, bytes: false, headings: true };
        assert_eq!(of(&["swapon", "--show"]), Ok(Command::Show(all.clone())));
        let one = Show { target: Some(Target::Of(12)), ..all.clone() };
        assert_eq!(of(&["swapon", "--show", "12"]), Ok(Command::Show(one)));
        let named = Show { target: Some(Target::Named("web".into())), ..all };
        assert_eq!(of(&["swapon", "web", "--show"]), Ok(Command::Show(named)));
        let plain = Show { target: Some(Target::Of(12)), bytes: true, headings: false };
        assert_eq!(of(&["swapon", "--noheadings", "12", "--bytes", "--show"]), Ok(Command::Show(plain)));
        assert!(line(&["swapon", "--show", "12", "file"]).contains("file: this argument cannot be used with --show"));
        assert!(line(&["swapon", "--show=NAME"]).contains("--show: this option takes no value"));
    }

    #[test]
    fn swapoff_names_a_process_and_a_device() {
        for (text, target) in [("12", Target::Of(12)), ("web", Target::Named("web".into()))] {
            assert_eq!(of(&["swapoff", text, "/x"]), Ok(Command::SwapOff { target, device: "/x".into() }));
        }
        assert_eq!(
            line(&["swapoff"]),
            "ebb: ebb swapoff: no NAME or PID of a running program given; see `ebb swapoff --help`"
        );
        assert_eq!(
            line(&["swapoff", "12"]),
            "ebb: ebb swapoff: nothing says which swap file to remove; \
             name its directory, as `ebb swapon --show` prints it, after the program's NAME or PID"
        );
        assert!(line(&["swapoff", "12", "/x", "/y"]).starts_with("ebb: /y: unexpected argument; "));
    }

    #[test]
    fn every_mistake_is_one_line_with_a_remedy() {
        assert_eq!(
            line(&["walk"]),
            "ebb: walk: unknown command; see `ebb --help`, or run a program with `ebb run -- PROGRAM`"
        );
        assert_eq!(line(&["run"]), "ebb: ebb run: no program given; see `ebb run --help`");
        assert_eq!(line(&["run", "--"]), "ebb: ebb run: no program given; see `ebb run --help`");
        assert_eq!(line(&["run", "--ram"]), "ebb: --ram: this option needs a value; see `ebb run --help`");
        assert_eq!(
            line(&["run", "--stats", "--", "x"]),
            "ebb: --stats: `--` is not the name of a file; give the file's name after --stats, or `./--` if that is its name"
        );
        assert_eq!(line(&["run", "--fast", "x"]), "ebb: --fast: unknown option; see `ebb run --help`");
        assert_eq!(line(&["run", "--quiet=1", "x"]), "ebb: --quiet: this option takes no value; see `ebb run --help`");
        assert_eq!(of(&["locks", "12"]), Ok(Command::Locks { target: Target::Of(12) }));
        assert_eq!(of(&["locks", "me"]), Ok(Command::Locks { target: Target::Named("me".into()) }));
        assert_eq!(
            line(&["locks"]),
            "ebb: ebb locks: no NAME or PID of a running program given; see `ebb locks --help`"
        );
        assert_eq!(line(&["locks", "-3"]), "ebb: -3: unknown option; see `ebb locks --help`");
        assert_eq!(
            line(&["locks", "m/e"]),
            "ebb: m/e: this is neither a name given to `ebb run --name` nor a PID; see `ebb locks --help`"
        );
        assert_eq!(
            line(&["doctor", "--seccomp-profile", "lxc"]),
            "ebb: --seccomp-profile lxc: there is no profile for this engine; \
             write docker, podman or k8s; what reads the OCI format, as containerd does, takes that of k8s"
        );
        assert!(
            line(&["doctor", "--json", "--seccomp-profile", "k8s"]).contains("cannot be used with --seccomp-profile")
        );
        assert_eq!(line(&["doctor", "now"]), "ebb: now: unexpected argument; see `ebb doctor --help`");
        assert_eq!(
            line(&["run", "--ram", "much", "x"]),
            "ebb: --ram much: it does not begin with a number; \
             write a size such as 64M, 1.5G or 1GiB, a percentage such as 50%, or auto"
        );
    }
}
