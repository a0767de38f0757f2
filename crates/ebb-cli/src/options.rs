//! The command line.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use clap::ArgMatches;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::base::failure::Failure;
use crate::base::http::Address;
use crate::base::name::{self, Target};
use crate::base::size::parse_amount;
use crate::base::text::printable;
use crate::change::reclaim::{Demand, To};
use crate::change::set::Change;
use crate::commands;
use crate::host::budget::{self, Ram};
use crate::host::idle;
use crate::host::profile::Profile;
use crate::host::shown;
use crate::host::spill::{Device, parse_device};
use crate::host::thp;
use crate::run::request::{Run, Verbosity};
use crate::running::advice::{self, Wish};
use crate::show::advise::Watching;
use crate::show::columns::{self, Wish as Columns};
use crate::show::devices::Show;
use crate::show::metrics::{Destination, Metrics};
use crate::show::ps::Ps;
use crate::show::top::{self, Top};
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
    Top(Top),
    Metrics(Metrics),
    Reclaim(Demand),
    Advise(Watching),
    Set(Change),
}

/// The failure for a command that was not told which program to look at.
const NO_TARGET: &str = "no NAME or PID of a running program given";

fn syntax(what: impl ToString, why: impl ToString, help: &str) -> Failure {
    Failure::ebb(what, why, format!("see `{help}`"))
}

/// What the parser says about one argument: the option's name without its value's, or the word as it was written.
fn told(error: &clap::Error, kind: ContextKind) -> Option<&str> {
    match error.get(kind)? {
        ContextValue::String(text) => Some(text),
        ContextValue::Strings(texts) => texts.first().map(String::as_str),
        _ => None,
    }
}

/// What is missing in a command line without one of its arguments.
fn missing(command: &str, argument: &str, help: &str) -> Failure {
    match argument {
        "<NAME|PID>" => syntax(command, NO_TARGET, help),
        "<SIZE|PERCENT>" => syntax(command, "no size given", help),
        "<DEVICE>" => Failure::ebb(
            command,
            "nothing says which swap file to remove",
            "name its directory, as `ebb swapon --show` prints it, after the program's NAME or PID",
        ),
        _ => syntax(command, "no program given", help),
    }
}

/// The failure for a complaint of the parser, such as an option without its value. `command` is what was asked for, as
/// `ebb run`.
fn parser_failure(error: &clap::Error, command: &str) -> Failure {
    let help = &format!("{command} --help");
    let argument = told(error, ContextKind::InvalidArg).unwrap_or("command line");
    let option = argument.split(' ').next().unwrap_or(argument);
    match error.kind() {
        ErrorKind::UnknownArgument if argument.starts_with('-') => syntax(printable(argument), "unknown option", help),
        ErrorKind::UnknownArgument => syntax(printable(argument), "unexpected argument", help),
        ErrorKind::InvalidValue | ErrorKind::WrongNumberOfValues | ErrorKind::TooFewValues => {
            syntax(option, "this option needs a value", help)
        }
        ErrorKind::TooManyValues => syntax(option, "this option takes no value", help),
        ErrorKind::MissingRequiredArgument => missing(command, argument, help),
        ErrorKind::InvalidSubcommand => syntax(
            printable(told(error, ContextKind::InvalidSubcommand).unwrap_or("command line")),
            "unknown command",
            "ebb --help`, or run a program with `ebb run -- PROGRAM",
        ),
        _ => syntax(option, error.kind(), help),
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
    let mut args = args.peekable();
    // Messages name the command, whatever its file is called, or if it was started without a name.
    args.next();
    let first = args.peek().cloned();
    let ebb = commands::ebb().no_binary_name(true);
    let named = first.filter(|word| ebb.get_subcommands().any(|command| word == command.get_name()));
    let matches = match ebb.try_get_matches_from(args) {
        Ok(matches) => matches,
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            return Ok(Command::Print(printed(&error.to_string())));
        }
        Err(error) => {
            let words = named.as_deref().map(|name| format!("{} {}", commands::NAME, name.to_string_lossy()));
            return Err(parser_failure(&error, words.as_deref().unwrap_or(commands::NAME)));
        }
    };
    match matches.subcommand() {
        None => Ok(Command::Usage),
        Some(("run", given)) => parse_run(given, None, sources),
        Some(("advise", given)) => parse_advise(given, sources),
        Some(("ps", given)) => parse_ps(given),
        Some(("top", given)) => parse_top(given),
        Some(("set", given)) => parse_set(given),
        Some(("reclaim", given)) => parse_reclaim(given),
        Some(("metrics", given)) => parse_metrics(given),
        Some(("doctor", given)) => parse_doctor(given),
        Some(("locks", given)) => {
            Ok(Command::Locks { target: parse_target(required(given, "target"), "ebb locks --help")? })
        }
        Some(("swapon", given)) => parse_swapon(given),
        Some(("swapoff", given)) => parse_swapoff(given),
        Some(("help", given)) => {
            // The same words as for `ebb COMMAND --help`, also where there is no such command.
            let words = [Some(commands::NAME.into()), value(given, "command").cloned(), Some("--help".into())];
            parse_with(words.into_iter().flatten(), sources)
        }
        Some((other, _)) => unreachable!("{other} is described and not known"),
    }
}

/// A text as it is printed: the parser leaves blanks where lines are empty, and the last one open.
fn printed(text: &str) -> String {
    text.lines().flat_map(|line| [line.trim_end(), "\n"]).collect()
}

/// The text and the failure for a command line without a command.
pub fn usage() -> (String, Failure) {
    let text = printed(&commands::ebb().render_help().to_string());
    (text, Failure::ebb("command line", "no command given", "run a program with `ebb run -- PROGRAM`"))
}

fn value<'a>(given: &'a ArgMatches, name: &str) -> Option<&'a OsString> {
    given.get_one(name)
}

/// The value of an argument without which the parser refuses the command.
fn required<'a>(given: &'a ArgMatches, name: &str) -> &'a OsString {
    value(given, name).expect("the parser has seen to it")
}

fn values<'a>(given: &'a ArgMatches, name: &str) -> impl Iterator<Item = &'a OsString> {
    given.get_many(name).into_iter().flatten()
}

/// The name of a file. What looks like an option is none: then the name was forgotten.
fn parse_file(option: &str, value: &OsStr) -> Result<PathBuf, Failure> {
    if value.as_encoded_bytes().starts_with(b"-") {
        let value = value.to_string_lossy();
        let remedy = format!("give the file's name after {option}, or `./{value}` if that is its name");
        return Err(Failure::ebb(option, format!("`{value}` is not the name of a file"), remedy));
    }
    Ok(value.into())
}

fn parse_name(value: &OsStr) -> Result<String, Failure> {
    let text = value.to_string_lossy();
    name::check(&text).map_err(|error| Failure::ebb(format!("--name {}", printable(&text)), error, name::REMEDY))?;
    Ok(text.into_owned())
}

fn parse_ram(value: &OsString) -> Result<Ram, Failure> {
    budget::parse(&value.to_string_lossy())
}

fn parse_target(value: &OsString, help: &str) -> Result<Target, Failure> {
    let text = value.to_string_lossy();
    Target::parse(&text)
        .map_err(|_| syntax(printable(&text), "this is neither a name given to `ebb run --name` nor a PID", help))
}

fn parse_ps(given: &ArgMatches) -> Result<Command, Failure> {
    const SEE: &str = "ebb ps --help";
    let mut columns = Vec::new();
    for value in values(given, "columns") {
        match columns::parse(&value.to_string_lossy())? {
            Columns::Help => return Ok(Command::Print(columns::help())),
            Columns::Columns(more) => columns.extend(more),
        }
    }
    let ps = Ps {
        columns,
        targets: values(given, "target").map(|value| parse_target(value, SEE)).collect::<Result<_, _>>()?,
        json: given.get_flag("json"),
        bytes: given.get_flag("bytes"),
        headings: !given.get_flag("noheadings"),
        verbose: given.get_flag("verbose"),
        validate: given.get_flag("validate"),
    };
    if ps.validate && (ps.json || ps.bytes || ps.verbose || !ps.headings || !ps.columns.is_empty()) {
        return Err(syntax("ebb ps", "--json, --bytes, --noheadings, -o and -v cannot be used with --validate", SEE));
    }
    if ps.json && !ps.columns.is_empty() {
        return Err(syntax("-o", "this option cannot be used with --json, which tells all there is", SEE));
    }
    Ok(Command::Ps(ps))
}

fn parse_top(given: &ArgMatches) -> Result<Command, Failure> {
    const SEE: &str = "ebb top --help";
    let text = |name| value(given, name).map(|value| value.to_string_lossy());
    let all = Top::new();
    Ok(Command::Top(Top {
        targets: values(given, "target").map(|value| parse_target(value, SEE)).collect::<Result<_, _>>()?,
        interval: text("delay").map_or(Ok(all.interval), |text| top::parse_interval(&text))?,
        frames: text("iterations").map(|text| top::parse_frames(&text)).transpose()?,
        is_batch: given.get_flag("batch"),
        has_color: all.has_color && !given.get_flag("no-color"),
        is_ascii: all.is_ascii || given.get_flag("ascii"),
    }))
}

fn parse_set(given: &ArgMatches) -> Result<Command, Failure> {
    const SEE: &str = "ebb set --help";
    let change = Change {
        target: parse_target(required(given, "target"), SEE)?,
        ram: value(given, "ram").map(parse_ram).transpose()?,
        thp: value(given, "thp").map(|value| thp::parse(value)).transpose()?,
        idle_ms: value(given, "idle").map(|value| idle::parse(value)).transpose()?,
    };
    if change.ram.is_none() && change.thp.is_none() && change.idle_ms.is_none() {
        return Err(syntax("ebb set", "nothing to change: none of --ram, --thp and --idle is given", SEE));
    }
    Ok(Command::Set(change))
}

fn parse_reclaim(given: &ArgMatches) -> Result<Command, Failure> {
    let target = parse_target(required(given, "target"), "ebb reclaim --help")?;
    let text = required(given, "amount").to_string_lossy();
    let amount = parse_amount(&text).map_err(|error| {
        let remedy = "write how much to take as a size such as 100M, 1.5G or 1GiB, or as a percentage such as 25%";
        Failure::ebb(format!("ebb reclaim {}", printable(&text)), error, remedy)
    })?;
    let to = value(given, "to").map(parse_to).transpose()?;
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

fn parse_metrics(given: &ArgMatches) -> Result<Command, Failure> {
    const SEE: &str = "ebb metrics --help";
    let listen = values(given, "listen").map(|value| Ok(Destination::Listen(parse_address(value)?)));
    let directory = values(given, "textfile").map(|value| Ok(Destination::Directory(parse_file("--textfile", value)?)));
    let mut places = listen.chain(directory).collect::<Result<Vec<_>, Failure>>()?;
    if places.len() > 1 {
        return Err(syntax("ebb metrics", "more than one of --listen and --textfile given", SEE));
    }
    Ok(Command::Metrics(Metrics {
        targets: values(given, "target").map(|value| parse_target(value, SEE)).collect::<Result<_, _>>()?,
        to: places.pop().unwrap_or(Destination::Output),
    }))
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

fn parse_doctor(given: &ArgMatches) -> Result<Command, Failure> {
    let json = given.get_flag("json");
    match value(given, "seccomp-profile").map(parse_profile).transpose()? {
        Some(_) if json => {
            Err(syntax("--json", "this option cannot be used with --seccomp-profile", "ebb doctor --help"))
        }
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

fn parse_swapon(given: &ArgMatches) -> Result<Command, Failure> {
    const SEE: &str = "ebb swapon --help";
    const WHAT: &str = "ebb swapon";
    let show = Show {
        target: value(given, "target").map(|value| parse_target(value, SEE)).transpose()?,
        bytes: given.get_flag("bytes"),
        headings: !given.get_flag("noheadings"),
    };
    match (given.get_flag("show"), show.target.clone(), value(given, "spec")) {
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
        (false, Some(target), Some(spec)) => match parse_device(WHAT, spec)? {
            Device::None => Err(Failure::ebb(
                format!("{WHAT} none"),
                "`none` adds nothing to swap to",
                "name a directory, such as file:/var/tmp",
            )),
            device => Ok(Command::SwapOn { target, device }),
        },
    }
}

fn parse_swapoff(given: &ArgMatches) -> Result<Command, Failure> {
    const SEE: &str = "ebb swapoff --help";
    let target = parse_target(required(given, "target"), SEE)?;
    let device = required(given, "device");
    if device.is_empty() {
        return Err(missing("ebb swapoff", "<DEVICE>", SEE));
    }
    Ok(Command::SwapOff { target, device: device.into() })
}

/// What one place says about a run: the command line, a file or the environment. What it does not say is left as it is.
#[derive(Default)]
struct Given {
    ram: Option<Ram>,
    thp: Option<thp::Choice>,
    idle_ms: Option<u64>,
    show_ram: Option<shown::Show>,
    name: Option<String>,
    swap: Vec<Device>,
    stats: Option<PathBuf>,
    allow_unmanaged: Option<bool>,
    quiet: Option<bool>,
    verbose: Option<bool>,
    no_config: bool,
    program: Vec<OsString>,
}

impl Given {
    fn of(given: &ArgMatches) -> Result<Self, Failure> {
        // Of the two that contradict each other the parser has kept the last.
        let switch = |on: &str, off: &str| match (given.get_flag(on), given.get_flag(off)) {
            (false, false) => None,
            (on, _) => Some(on),
        };
        Ok(Self {
            ram: value(given, "ram").map(parse_ram).transpose()?,
            thp: value(given, "thp").map(|value| thp::parse(value)).transpose()?,
            idle_ms: value(given, "idle").map(|value| idle::parse(value)).transpose()?,
            show_ram: value(given, "show-ram").map(|value| shown::parse(&value.to_string_lossy())).transpose()?,
            name: value(given, "name").map(|value| parse_name(value)).transpose()?,
            swap: values(given, "swap").map(|value| parse_device("--swap", value)).collect::<Result<_, _>>()?,
            stats: value(given, "stats").map(|value| parse_file("--stats", value)).transpose()?,
            allow_unmanaged: switch("allow-unmanaged", "no-allow-unmanaged"),
            quiet: switch("quiet", "no-quiet"),
            verbose: switch("verbose", "no-verbose"),
            no_config: given.get_flag("no-config"),
            program: values(given, "program").cloned().collect(),
        })
    }

    /// What a place other than the command line says.
    fn elsewhere(source: &Source) -> Result<Self, Failure> {
        const SEE: &str = "ebb run --help";
        const WHERE: &str = "this can only be given on the command line";
        let within = |failure: Failure| Failure { what: format!("{}: {}", source.name, failure.what), ..failure };
        let only = |what: &str, why: String| Err(within(syntax(what, why, SEE)));
        let given = match commands::run_elsewhere().try_get_matches_from(&source.words) {
            Ok(given) => Self::of(&given).map_err(within)?,
            Err(error) if error.kind() == ErrorKind::DisplayHelp => return only("--help", WHERE.to_owned()),
            Err(error) => return Err(within(parser_failure(&error, "ebb run"))),
        };
        match given {
            // Without the word: it may be of a file that was never meant to be read here.
            Self { ref program, .. } if !program.is_empty() => {
                only("a word", "only options can be given there, and this is none".to_owned())
            }
            Self { name: Some(_), .. } => only("--name", format!("{WHERE}, because no two trees can share a name")),
            Self { stats: Some(_), .. } => only("--stats", format!("{WHERE}, because all runs would write one file")),
            Self { no_config: true, .. } => only("--no-config", WHERE.to_owned()),
            given => Ok(given),
        }
    }

    /// Wins over what was said before. A place that names devices names all of them.
    fn apply(self, run: &mut Run) {
        run.ram = self.ram.unwrap_or(run.ram);
        run.thp = self.thp.unwrap_or(run.thp);
        run.idle_ms = self.idle_ms.unwrap_or(run.idle_ms);
        run.show_ram = self.show_ram.or(run.show_ram);
        run.allow_unmanaged = self.allow_unmanaged.unwrap_or(run.allow_unmanaged);
        if !self.swap.is_empty() {
            run.swap = self.swap;
        }
        run.name = self.name.or(run.name.take());
        run.stats = self.stats.or(run.stats.take());
        for (given, level) in [(self.quiet, Verbosity::Quiet), (self.verbose, Verbosity::Verbose)] {
            match given {
                Some(true) => run.verbosity = level,
                Some(false) if run.verbosity == level => run.verbosity = Verbosity::Normal,
                _ => {}
            }
        }
    }
}

fn parse_advise(
    given: &ArgMatches,
    sources: impl FnOnce() -> Result<Vec<Source>, Failure>,
) -> Result<Command, Failure> {
    const SEE: &str = "ebb advise --help";
    let goal = value(given, "goal").map(|value| {
        let text = value.to_string_lossy();
        advice::parse_goal(&text).map_err(|why| {
            let remedy = "write how many times as long it may take, such as 1.2x, or a percentage such as 20%";
            Failure::ebb(format!("--goal {}", printable(&text)), why, remedy)
        })
    });
    let wish = Wish {
        goal: goal.transpose()?,
        json: value(given, "json").map(|value| parse_file("--json", value)).transpose()?,
    };
    let time = value(given, "for").map(|value| idle::parse_time("--for", value)).transpose()?;
    match (value(given, "target"), values(given, "program").next()) {
        (Some(target), None) => {
            let time = time.unwrap_or(DEFAULT_WATCH);
            Ok(Command::Advise(Watching { target: parse_target(target, SEE)?, wish, time }))
        }
        (None, Some(_)) if time.is_some() => {
            Err(syntax("--for", "a program is watched until it ends; this is for a running one", SEE))
        }
        (None, Some(_)) => parse_run(given, Some(wish), sources),
        (Some(target), Some(_)) => {
            Err(syntax(printable(&target.to_string_lossy()), "both a running program and one to run are given", SEE))
        }
        (None, None) => Err(Failure::ebb(
            "ebb advise",
            "no program given",
            "write `ebb advise -- PROGRAM`, or name a running tree that `ebb ps` shows",
        )),
    }
}

/// How long a running tree is watched, if nobody says otherwise.
const DEFAULT_WATCH: Duration = Duration::from_secs(30);

/// What `sources` has yields to the command line.
fn parse_run(
    given: &ArgMatches,
    advice: Option<Wish>,
    sources: impl FnOnce() -> Result<Vec<Source>, Failure>,
) -> Result<Command, Failure> {
    let mut given = Given::of(given)?;
    let mut words = std::mem::take(&mut given.program).into_iter();
    let mut run = Run {
        ram: Ram::Auto,
        thp: thp::Choice::Host,
        idle_ms: 0,
        show_ram: None,
        name: None,
        swap: Vec::new(),
        stats: None,
        allow_unmanaged: false,
        verbosity: Verbosity::Normal,
        advice,
        program: words.next().expect("the parser has seen to it"),
        args: words.collect(),
    };
    if !given.no_config {
        for source in sources()? {
            Given::elsewhere(&source)?.apply(&mut run);
        }
    }
    given.apply(&mut run);
    Ok(Command::Run(run))
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
        assert_eq!(help, Ok(Command::Print(asked(&["run", "--help"]))));
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
            "--show-ram=300%",
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
        assert_eq!(run.show_ram, Some(shown::Show::Amount(Amount::Share { millionths: 3_000_000 })));
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

    /// What a command line prints that asks for help or the version.
    fn asked(words: &[&str]) -> String {
        match of(words) {
            Ok(Command::Print(text)) => text,
            other => panic!("{words:?}: {other:?}"),
        }
    }

    #[test]
    fn help_is_printed_for_each_command() {
        assert!(asked(&["--help"]).contains("Usage: ebb run [OPTIONS] -- PROGRAM [ARGS...]\n       ebb COMMAND"));
        let ebb = commands::ebb();
        for command in ebb.get_subcommands().map(clap::Command::get_name).filter(|name| *name != "help") {
            let long = asked(&[command, "--help"]);
            assert!(long.contains(&format!("Usage: ebb {command}")) && long.contains("\nExit status:\n"), "{long}");
            assert_eq!(asked(&["help", command]), long);
            let short = asked(&[command, "-h"]);
            assert!(short.contains(&format!("Usage: ebb {command}")) && !short.contains("Exit status"), "{short}");
            for line in short.lines().chain(long.lines()) {
                assert!(line.chars().count() <= 100, "{command}: {line}");
                assert_eq!(line, line.trim_end(), "{command}");
            }
        }
        assert_eq!(asked(&["help"]), asked(&["--help"]));
        assert!(asked(&["help", "-h"]).contains("Usage: ebb help [COMMAND]"));
        assert!(line(&["help", "walk"]).starts_with("ebb: walk: unknown command; see `ebb --help`"));
        // At once, whatever comes later.
        assert_eq!(asked(&["run", "--ram", "1G", "--help", "--fast"]), asked(&["run", "--help"]));
        assert_eq!(asked(&["swapon", "12", "-h"]), asked(&["swapon", "-h"]));
        assert_eq!(asked(&["-V"]), asked(&["--version"]));
        assert_eq!(asked(&["--version"]), format!("ebb {}\n", env!("CARGO_PKG_VERSION")));
        assert_eq!(of(&["doctor", "--seccomp-profile=podman"]), Ok(Command::Print(Profile::Podman.json().to_owned())));
        assert_eq!(of(&[]), Ok(Command::Usage));
        let (text, failure) = usage();
        assert_eq!((text, failure.to_string().lines().count()), (asked(&["-h"]), 1));
    }

    #[test]
    fn the_description_is_one_that_the_parser_takes() {
        commands::ebb().debug_assert();
        commands::run_elsewhere().debug_assert();
        let mut ebb = commands::ebb();
        ebb.build();
        let helped = ebb.find_subcommand("help").and_then(|help| help.get_positionals().next()).expect("its argument");
        let helped: Vec<_> = helped.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
        let others: Vec<_> =
            ebb.get_subcommands().map(clap::Command::get_name).filter(|name| *name != "help").collect();
        assert_eq!(helped, others);
    }

    #[test]
    fn what_a_place_switches_on_the_command_line_switches_off() {
        let run = |places: &[&str], words: &[&str]| match of_all(&[("/etc/ebb.conf", places)], words) {
            Ok(Command::Run(run)) => (run.allow_unmanaged, run.verbosity),
            other => panic!("{other:?}"),
        };
        assert_eq!(run(&["--allow-unmanaged", "-q"], &["run", "x"]), (true, Verbosity::Quiet));
        let off = ["run", "--no-allow-unmanaged", "--no-quiet", "x"];
        assert_eq!(run(&["--allow-unmanaged", "-q"], &off), (false, Verbosity::Normal));
        assert_eq!(run(&["-v"], &["run", "--no-verbose", "x"]).1, Verbosity::Normal);
        assert_eq!(run(&["-v"], &["run", "--no-quiet", "x"]).1, Verbosity::Verbose);
        assert_eq!(run(&["-v"], &["run", "-q", "x"]).1, Verbosity::Quiet);
        // The last one wins within a place too.
        assert_eq!(run(&["-vq"], &["run", "x"]).1, Verbosity::Quiet);
        assert_eq!(run(&["-q", "-v"], &["run", "x"]).1, Verbosity::Verbose);
        assert!(run(&["--no-allow-unmanaged", "--allow-unmanaged"], &["run", "x"]).0);
        assert!(!run(&["--allow-unmanaged", "--no-allow-unmanaged"], &["run", "x"]).0);
        // Nobody looks at the places, not even at what is wrong there.
        assert_eq!(run(&["--fast"], &["run", "--no-config", "x"]), (false, Verbosity::Normal));
        let here = of_all(&[("EBB_OPTIONS", &["--no-config"])], &["run", "x"]).unwrap_err().to_string();
        assert!(
            here.starts_with("ebb: EBB_OPTIONS: --no-config: this can only be given on the command line"),
            "{here}"
        );
    }

    #[test]
    fn words_of_any_bytes_arrive_and_options_are_not_abbreviated() {
        use std::os::unix::ffi::OsStringExt;
        let odd = || OsString::from_vec(b"a\xffb".to_vec());
        let words = ["ebb".into(), "run".into(), odd(), "-5".into(), odd()];
        let Ok(Command::Run(run)) = parse_with(words.into_iter(), || Ok(Vec::new())) else { panic!("it is a program") };
        assert_eq!((run.program, run.args), (odd(), vec!["-5".into(), odd()]));
        let words = ["ebb".into(), odd()];
        let failure = parse_with(words.into_iter(), || Ok(Vec::new())).unwrap_err().to_string();
        assert!(failure.starts_with("ebb: a\u{fffd}b: unknown command; see `ebb --help`"), "{failure}");
        assert_eq!(line(&["run", "--qui", "x"]), "ebb: --qui: unknown option; see `ebb run --help`");
        assert_eq!(line(&["run", "-x"]), "ebb: -x: unknown option; see `ebb run --help`");
        assert_eq!(line(&["--ram", "1G", "run", "x"]), "ebb: --ram: unknown option; see `ebb --help`");
        assert!(line(&["ru", "x"]).starts_with("ebb: ru: unknown command; "));
        // What looks like an option is the value of one that needs a value; the last of several wins.
        assert!(
            line(&["run", "--ram", "-5", "x"]).starts_with("ebb: --ram -5: "),
            "{}",
            line(&["run", "--ram", "-5", "x"])
        );
        assert!(line(&["run", "--ram=", "x"]).starts_with("ebb: --ram : "), "{}", line(&["run", "--ram=", "x"]));
        assert_eq!(run_of(&["run", "--ram", "1G", "--ram=2G", "x"]).ram, Ram::Amount(Amount::Bytes(2 << 30)));
        assert_eq!(run_of(&["run", "--", "-x", "--"]).args, ["--"]);
        assert_eq!(run_of(&["run", "-"]).program, "-");
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
