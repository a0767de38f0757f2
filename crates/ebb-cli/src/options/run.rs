//! The options of `ebb run` and `ebb advise`, from the command line and from the places where users keep them.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::ArgMatches;
use clap::error::ErrorKind;

use crate::base::failure::Failure;
use crate::base::text::printable;
use crate::host::budget::Ram;
use crate::host::idle;
use crate::host::shown;
use crate::host::spill::{Device, parse_device};
use crate::host::thp;
use crate::options::sources::Source;
use crate::options::{
    Command, commands, parse_file, parse_name, parse_ram, parse_target, parser_failure, syntax, value, values,
};
use crate::run::request::{Run, Verbosity};
use crate::running::advice::{self, Wish};
use crate::show::advise::Watching;

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
    report: Option<PathBuf>,
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
            report: value(given, "report").map(|value| parse_file("--report", value)).transpose()?,
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
            Self { report: Some(_), .. } => only("--report", format!("{WHERE}, because all runs would write one file")),
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
        run.report = self.report.or(run.report.take());
        for (given, level) in [(self.quiet, Verbosity::Quiet), (self.verbose, Verbosity::Verbose)] {
            match given {
                Some(true) => run.verbosity = level,
                Some(false) if run.verbosity == level => run.verbosity = Verbosity::Normal,
                _ => {}
            }
        }
    }
}

pub(super) fn parse_advise(
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
pub(super) fn parse_run(
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
        report: None,
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
