//! The command line.

pub mod commands;
mod run;
mod sources;

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::ArgMatches;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::base::failure::Failure;
use crate::base::http::Address;
use crate::base::name::{self, Target};
use crate::base::size::parse_amount;
use crate::base::text::printable;
use crate::change::reclaim::{Demand, To};
use crate::change::set::Change;
use crate::host::budget::{self, Ram};
use crate::host::idle;
use crate::host::profile::Profile;
use crate::host::spill::{Device, parse_device};
use crate::host::thp;
use crate::options::run::{parse_advise, parse_run};
use crate::options::sources::Source;
use crate::run::request::Run;
use crate::show::advise::Watching;
use crate::show::columns::{self, Wish as Columns};
use crate::show::devices::Show;
use crate::show::metrics::{Destination, Metrics};
use crate::show::ps::Ps;
use crate::show::top::{self, Top};

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

#[cfg(test)]
mod tests;
