//! What the descriptions of commands are made of: options, flags and words that several of them have.

use std::ffi::OsString;

use clap::builder::{OsStringValueParser, PossibleValue, TypedValueParser};
use clap::{Arg, ArgAction, Command, ValueHint};

pub(super) fn help() -> Arg {
    Arg::new("help")
        .short('h')
        .long("help")
        .action(ArgAction::Help)
        .help("Print help, and end: -h is a summary, --help says everything")
}

pub(super) fn option(name: &'static str, value: &'static str) -> Arg {
    // What begins with a dash is a value as well, and a wrong one is told as such.
    Arg::new(name).long(name).value_name(value).value_parser(OsStringValueParser::new()).allow_hyphen_values(true)
}

pub(super) fn flag(name: &'static str) -> Arg {
    Arg::new(name).long(name).action(ArgAction::SetTrue)
}

pub(super) fn positional(name: &'static str, value: &'static str) -> Arg {
    Arg::new(name).value_name(value).value_parser(OsStringValueParser::new()).value_hint(ValueHint::Other)
}

pub(super) fn target() -> Arg {
    positional("target", "NAME|PID").help("The name given to `ebb run --name`, or the PID of any process of the tree")
}

/// Takes any value. What makes sense is named for completions only: `host` and `change` say what is wrong with the others.
#[derive(Debug, Clone)]
pub(super) struct OneOf(pub(super) &'static [&'static str]);

impl TypedValueParser for OneOf {
    type Value = OsString;

    fn parse_ref(
        &self,
        command: &Command,
        argument: Option<&Arg>,
        value: &std::ffi::OsStr,
    ) -> Result<OsString, clap::Error> {
        OsStringValueParser::new().parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.0.iter().map(PossibleValue::new)))
    }
}

pub(super) fn choice(name: &'static str, value: &'static str, values: &'static [&'static str]) -> Arg {
    option(name, value).value_parser(OneOf(values)).hide_possible_values(true)
}

pub(super) const THP: &[&str] = &["never", "advise", "always", "host"];
