//! The options of `ebb run`.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::host::budget::Ram;
use crate::host::shown::Show;
use crate::host::spill::Device;
use crate::host::thp::Choice;
use crate::running::advice::Wish;

/// How much `ebb run` prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verbosity {
    Quiet,
    Normal,
    Verbose,
}

/// What the command line of `ebb run` asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    pub ram: Ram,
    pub thp: Choice,
    /// The idle period in milliseconds; 0 for none.
    pub idle_ms: u64,
    /// The size of RAM that the programs are shown; none where nobody says.
    pub show_ram: Option<Show>,
    /// Name of the tree.
    pub name: Option<String>,
    pub swap: Vec<Device>,
    pub stats: Option<PathBuf>,
    /// Where to write the run as a page for a browser.
    pub report: Option<PathBuf>,
    pub allow_unmanaged: bool,
    pub verbosity: Verbosity,
    /// Set for `ebb advise`: the budget changes while the program runs, and in the end there is advice.
    pub advice: Option<Wish>,
    pub program: OsString,
    pub args: Vec<OsString>,
}
