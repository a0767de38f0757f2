//! The commands of `ebb` and their options, as clap reads them: the one source of the parser, of `--help`, of the manual
//! pages and of the completions of shells (`tests/pages`).
//!
//! Texts are wrapped by hand, at 100 columns, and at 90 in what belongs to an option: so nothing has to be asked or
//! computed when `ebb` starts. The manual pages need to know what a line is. At the margin it is of a paragraph. After two
//! spaces there is a term, and after two more, or on the next line, its definition. After four spaces it is an example.
//! What follows the options is sections: a line of one or two words and a colon is a heading.

use std::ffi::OsString;

use clap::builder::{OsStringValueParser, PossibleValue, TypedValueParser};
use clap::{Arg, ArgAction, Command, ValueHint};

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
            named("run", "Run a program within a memory budget").defer(run_arguments),
            named("ps", "Show the programs under Ebb, and the memory they hold").defer(ps),
            named("top", "Show them live, with the last minutes").defer(top),
            named("set", "Change the budget of a running program").defer(set),
            named("reclaim", "Take memory from a running program now").defer(reclaim),
            named("advise", "Say how much RAM a program needs, and what less would cost").defer(advise),
            named("metrics", "Export metrics for Prometheus").defer(metrics),
            named("doctor", "Say whether this host allows Ebb, and what to change").defer(doctor),
            named("locks", "Show where the threads of a running program wait in Ebb").defer(locks),
            named("swapon", "Add a swap device to a running process, or show its devices").defer(swapon),
            named("swapoff", "Remove a swap device from a running process").defer(swapoff),
            named("help", "Print what `ebb COMMAND --help` prints").defer(help_command),
        ])
}

/// The options of `ebb run` alone, for the places where users keep them.
pub fn run_elsewhere() -> Command {
    run_arguments(named("run", "")).no_binary_name(true).mut_arg("program", |program| program.required(false))
}

fn named(name: &'static str, about: &'static str) -> Command {
    Command::new(name).about(about).disable_help_flag(true).args_override_self(true)
}

fn help() -> Arg {
    Arg::new("help")
        .short('h')
        .long("help")
        .action(ArgAction::Help)
        .help("Print help, and end: -h is a summary, --help says everything")
}

fn option(name: &'static str, value: &'static str) -> Arg {
    // What begins with a dash is a value as well, and a wrong one is told as such.
    Arg::new(name).long(name).value_name(value).value_parser(OsStringValueParser::new()).allow_hyphen_values(true)
}

fn flag(name: &'static str) -> Arg {
    Arg::new(name).long(name).action(ArgAction::SetTrue)
}

fn positional(name: &'static str, value: &'static str) -> Arg {
    Arg::new(name).value_name(value).value_parser(OsStringValueParser::new()).value_hint(ValueHint::Other)
}

fn target() -> Arg {
    positional("target", "NAME|PID").help("The name given to `ebb run --name`, or the PID of any process of the tree")
}

/// Takes any value. What makes sense is named for completions only: `host` and `change` say what is wrong with the others.
#[derive(Debug, Clone)]
struct OneOf(&'static [&'static str]);

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

fn choice(name: &'static str, value: &'static str, values: &'static [&'static str]) -> Arg {
    option(name, value).value_parser(OneOf(values)).hide_possible_values(true)
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
const THP: &[&str] = &["never", "advise", "always", "host"];

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

fn run_arguments(command: Command) -> Command {
    command
        .long_about(RUN)
        .override_usage("ebb run [OPTIONS] -- PROGRAM [ARGS...]")
        .after_long_help(RUN_AFTER)
        .arg(option("ram", "SIZE|PERCENT|auto").help("The budget of all processes together").long_help(RUN_RAM))
        .arg(
            option("swap", "SPEC")
                .action(ArgAction::Append)
                .help("Where to put pages that do not fit into RAM: file:DIR, or none")
                .long_help(RUN_SWAP),
        )
        .arg(
            choice("thp", "POLICY", THP)
                .help("Which memory gets huge pages: never, advise, always or host")
                .long_help(RUN_THP),
        )
        .arg(
            option("idle", "TIME|off").help("Move memory that was unused for this long out of RAM").long_help(RUN_IDLE),
        )
        .arg(
            option("show-ram", "SIZE|PERCENT|auto|off")
                .help("How much RAM the programs take the machine to have")
                .long_help(RUN_SHOW_RAM),
        )
        .arg(
            option("name", "NAME")
                .value_hint(ValueHint::Other)
                .help("Name for `ebb ps` and other commands")
                .long_help(RUN_NAME),
        )
        .arg(
            option("stats", "FILE")
                .value_hint(ValueHint::FilePath)
                .help("Write all counters to FILE as JSON when PROGRAM ends"),
        )
        .arg(
            option("report", "FILE")
                .value_hint(ValueHint::FilePath)
                .help("Write a page about the run to FILE, for a browser")
                .long_help(RUN_REPORT),
        )
        .args(reversible(
            flag("allow-unmanaged")
                .help("Run PROGRAM without Ebb if Ebb cannot manage it")
                .long_help(RUN_ALLOW_UNMANAGED),
            flag("no-allow-unmanaged"),
        ))
        .args(reversible(
            flag("quiet")
                .short('q')
                .overrides_with("verbose")
                .help("Print no summary and no warnings")
                .long_help("Print no summary and no warnings. --no-quiet takes it back"),
            flag("no-quiet"),
        ))
        .args(reversible(
            flag("verbose")
                .short('v')
                .overrides_with("quiet")
                .help("Print more")
                .long_help("Print more. --no-verbose takes it back"),
            flag("no-verbose"),
        ))
        .arg(
            flag("no-config")
                .help("Ignore the options in files and in EBB_OPTIONS")
                .long_help("Ignore the options in /etc/ebb.conf, in ~/.config/ebb/config and in EBB_OPTIONS"),
        )
        .arg(help())
        .arg(
            positional("program", "PROGRAM")
                .num_args(1..)
                .trailing_var_arg(true)
                .required(true)
                .value_hint(ValueHint::CommandWithArguments)
                .help("The program and its arguments: what follows its name belongs to it"),
        )
}

/// A flag, and the one that takes it back: the last one given wins.
fn reversible(flag: Arg, back: Arg) -> [Arg; 2] {
    let (on, off) = (flag.get_id().clone(), back.get_id().clone());
    [flag.overrides_with(off), back.overrides_with(on).hide(true)]
}

const RUN: &str = "\
Runs PROGRAM within a budget: the most private memory that it may keep in RAM. PROGRAM and all the
processes it starts share the budget. A process that runs short takes memory from the process whose
memory has been cold for longest.";

const RUN_RAM: &str = "\
The budget of all processes together:
  SIZE     64M, 1G, 1.5G or 1GiB (powers of 1024), at least 4M
  PERCENT  50% of the tightest cgroup limit, or of the machine's memory
  auto     the default: what is left below the tightest cgroup limit or available on the
           machine, less an eighth as headroom (16 MiB to 1 GiB, and never more than half)";

const RUN_SWAP: &str = "\
Where to put pages that do not fit into RAM in compressed form:
  file[:DIR][,OPTION]...  an unlinked, encrypted file in DIR
  none                    nowhere: use compressed RAM only

Default: file in $EBB_TMPDIR or /var/tmp. Repeat --swap for up to 8 directories. OPTION is
one of:
  size=SIZE      limits the file of each process, to at least 1M; sizes for the same
                 directory add up
  prio=N         the highest (0 to 32767) is filled first, directories of equal priority
                 in turn; directories without a priority come last, in the order given
  kind=ssd|hdd|ram
                 hdd for a disk that turns: it is written in order, and read by what lies
                 together; ram for one in memory: nothing is read ahead because a read
                 takes long. Default: as the kernel says in /sys/dev/block, and ssd where
                 it does not know
  discard=pages|once|none
                 pages (the default): space that is no longer used goes back to the file
                 system; once, none: the file keeps it until it is closed
  writes=SIZE/PERIOD
                 how much all processes may write to DIR, in a second, minute, hour, day
                 or week: 20G/day. When it is spent, other devices take the rest, and if
                 there is none, programs wait

The path of DIR, without symbolic links, has no comma: mount a directory with a comma in
its name elsewhere with `mount --bind`";

const RUN_THP: &str = "\
Which memory gets huge pages (2 MiB):
  never   none
  advise  what the program asks for (madvise)
  always  all, where the budget has room
  host    the default: as the host has it in /sys/kernel/mm/transparent_hugepage/enabled

If the host says never, there are none in any case";

const RUN_IDLE: &str = "\
Move memory that nobody used for this long out of RAM although there is room: into
compressed RAM, and after the same time again to a device. 1s to 24h: 30s, 10m, 1.5h.
Default: off";

const RUN_SHOW_RAM: &str = "\
What the programs take for the size of RAM, in /proc/meminfo, sysinfo(2) and the memory
files of their cgroups:
  SIZE     a size, such as 2G
  PERCENT  of the budget, such as 300%
  auto     the budget and what the swap files may hold, but two to three times the budget
  off      the default: the true size

Every process is then managed from its start";

const RUN_NAME: &str = "\
Name for `ebb ps` and other commands: at most 63 letters, digits, `.`, `_` and `-`, not
digits alone. No two running trees can have the same name";

const RUN_REPORT: &str = "\
When PROGRAM ends, write a page about the run to FILE, for a browser: memory, faults and
waits over time, what swap cost, and what other budgets would do. The page is one HTML
file that loads nothing";

const RUN_ALLOW_UNMANAGED: &str = "\
If Ebb cannot manage PROGRAM (statically linked, set-user-ID, 32-bit, musl), run it
without Ebb instead of refusing. --no-allow-unmanaged takes it back";

const RUN_AFTER: &str = "\
Exit status:
PROGRAM's own. If PROGRAM died of a signal, ebb dies of the same signal. Ebb ends PROGRAM by SIGKILL
when it runs out of room, and says so.

  125  ebb could not start PROGRAM, or PROGRAM could not go on under Ebb
  126  PROGRAM cannot be executed
  127  PROGRAM was not found

Environment:
  EBB_OPTIONS  more options, as on the command line, with quotes as in a shell
  EBB_TMPDIR   the directory of the swap file, if --swap names none

Files:
  /etc/ebb.conf         options for all users
  ~/.config/ebb/config  options of one user, who has to own the file. If XDG_CONFIG_HOME is set, it
                        takes the place of ~/.config

Options in these places are written as on the command line, on one line or several, and # begins a
comment. EBB_OPTIONS wins over the user's file, that over /etc/ebb.conf, and the command line over
all. A place with --swap replaces the devices of the places before it. Only the command line can
have --name, --stats, --report and --no-config.

What a place switches on, the command line switches off: --no-allow-unmanaged, --no-quiet and
--no-verbose do so for flags, --ram auto, --swap file, --thp host, --idle off and --show-ram off for
the others, and --no-config for all.

Examples:
One budget for all processes of a build:

    ebb run --ram 512M -- make -j2

Half of what the cgroup or the machine has, with a name for `ebb ps`:

    ebb run --ram 50% --name web -- ./server

A fast disk that is not to wear out, and another one for the rest:

    ebb run --swap file:/nvme,writes=20G/day --swap file:/disk -- ./job";

fn ps(command: Command) -> Command {
    command
        .long_about(PS)
        .override_usage(
            "ebb ps [--json] [-v] [--bytes] [--noheadings] [-o COLUMNS] [NAME|PID...]\n       \
             ebb ps --validate [NAME|PID...]",
        )
        .after_long_help(PS_AFTER)
        .arg(flag("json").help("Print the same as JSON, sizes in bytes"))
        .arg(flag("bytes").help("Show sizes in bytes"))
        .arg(flag("noheadings").alias("no-headers").help("Show no headings"))
        .arg(
            option("columns", "COLUMNS")
                .short('o')
                .action(ArgAction::Append)
                .help("Show these columns; `-o help` lists them")
                .long_help(PS_COLUMNS),
        )
        .arg(
            flag("verbose")
                .short('v')
                .help("Also show what each tier holds, and what left because nobody used it")
                .long_help(PS_VERBOSE),
        )
        .arg(flag("validate").help("Only check whether all figures agree; print those that do not"))
        .arg(help())
        .arg(target().num_args(0..).action(ArgAction::Append))
}

const PS: &str = "\
Shows the trees of processes under `ebb run` that this user may see, then the processes of each
tree. NAME is the name given to `ebb run --name`. PID is any process of a tree, or its `ebb run`.
`ebb ps` first takes back the memory that processes held when they ended.";

const PS_COLUMNS: &str = "\
Show these columns: a comma list of names in the order in which they are to stand; with
NAME=HEADING another heading, with NAME= none. `-o help` lists the names. There is a line
for each tree, or for each process if a column is one of processes only (pid, command,
age, managed) or -v is given. Repeat -o for more columns";

const PS_VERBOSE: &str = "\
Also show what each tier holds, in pages (PAGES), the memory that they would take
(CONTENT) and what they take (BYTES):
  hot     pages that are compressed by fast codecs
  cold    those that a slower codec has made smaller since
  device  those that were written to a device

And the idle period of each tree (`ebb run --idle`): UNUSED is how much left memory
because nobody used it, and TO-DEVICE how much of that went on to a device. SHOWN-RAM is
the size of RAM that the programs are shown (`ebb run --show-ram`)";

const PS_AFTER: &str = "\
Columns:
  TREE      the tree's name, or the PID of its `ebb run`
  BUDGET    what all processes of the tree may hold together
  HELD      what the processes hold or have been granted. Memory that processes share since a fork
            counts for one of them
  FREE      what is left of the budget
  PEAK      the largest HELD so far
  SHARED    memory shared since a fork that counts for another process. The process itself holds
            RESIDENT + STAGED + POOL - SHARED
  WANTED    memory with content, wherever the content is
  RESIDENT  memory that the program reaches without a fault, and Ebb's own tables
  STAGED    memory that is unmapped but not compressed yet
  POOL      memory that compressed pages take
  SWAPPED   memory whose content is compressed or in a file
  FAULTS/S  faults per second, measured over a fifth of a second
  AGE       how long, at least, the coldest memory has not been used
  MANAGED   no: Ebb cannot manage the process, or the process is still too small. Its own memory
            counts against the budget, and is not swapped. (others): such processes that have no
            line of their own

Exit status:
  0    success
  1    --validate found something
  125  there is no such tree

Examples:
    ebb ps
    ebb ps --json web";

fn top(command: Command) -> Command {
    command
        .long_about(TOP)
        .override_usage(
            "ebb top [-d SECONDS] [-n N] [--no-color] [--ascii] [NAME|PID...]\n       \
             ebb top --batch [-d SECONDS] [-n N] [NAME|PID...]",
        )
        .after_long_help(TOP_AFTER)
        .arg(option("delay", "SECONDS").short('d').help("Time between two looks, 0.1 to 3600. Default: 2"))
        .arg(option("iterations", "N").short('n').help("End after N frames"))
        .arg(flag("batch").short('b').help("Print frames as plain text, without a terminal"))
        .arg(flag("no-color").help("Show no colors, as if the variable NO_COLOR were set"))
        .arg(flag("ascii").help("Draw with ASCII alone"))
        .arg(help())
        .arg(target().num_args(0..).action(ArgAction::Append))
}

const TOP: &str = "\
Shows the trees of processes under `ebb run` that this user may see, and their processes, until you
quit. It changes nothing. NAME is the name given to `ebb run --name`. PID is any process of a tree,
or its `ebb run`. At the top are figures and graphs of the tree that has the selected line. `h`
lists the keys, and says what the columns mean.";

const TOP_AFTER: &str = "\
Figures:
  held      what the tree holds of its budget; the largest amount so far; what it would hold without
            Ebb
  stalled   as the kernel's PSI, over the last 10 s: the share of the time in which at least one
            thread of the tree waited in a fault (some), and in which no other could have run
            either (full; an estimate). And how many threads waited at a time, on average since the
            last look: the sum of their waits by the time that passed, which can be more than 1
  faults/s  faults by what they found: a page in the pool, on a device, staged (not compressed yet),
            or new. refault counts pages that came back soon after they had left: more RAM would
            have kept them. ahead counts pages that were read ahead from devices and then used
  swapped   memory whose content is compressed or in a file, and what it takes in the pool and on
            devices

Exit status:
  0    success
  125  there is no such tree, or no terminal

If a signal ends ebb, it dies of that signal. For programs there are `ebb ps --json` and `ebb
metrics`.

Examples:
    ebb top
    ebb top -d 0.5 web
    ebb top -b -n 1";

fn advise(command: Command) -> Command {
    // What `ebb run --help` says is not said again.
    run_arguments(command)
        .mut_args(|arg| arg.hide(true))
        .mut_arg("help", |help| help.hide(false))
        .mut_arg("program", |program| program.required(false).trailing_var_arg(false).last(true).index(2).hide(false))
        .long_about(ADVISE)
        .override_usage(
            "ebb advise [--goal TIMES] [--json FILE] [OPTIONS OF ebb run] -- PROGRAM [ARGS...]\n       \
             ebb advise [--goal TIMES] [--json FILE] [--for TIME] NAME|PID",
        )
        .after_long_help(ADVISE_AFTER)
        .arg(option("goal", "TIMES").help("Also say which is the smallest budget for this").long_help(ADVISE_GOAL))
        .arg(option("json", "FILE").value_hint(ValueHint::FilePath).help("Also write the advice to FILE as JSON"))
        .arg(option("for", "TIME").help("How long to watch a running program. Default: 30s"))
        .arg(target().index(1))
}

const ADVISE: &str = "\
Runs PROGRAM, or watches a running tree, and says how long it would take with other budgets.

For PROGRAM the budget goes down and up while it runs: down until PROGRAM spends three quarters of
its time waiting for memory. So the run takes two or three times as long as usual, and each size is
seen only if it takes some seconds. --ram is the most that PROGRAM may have; the other options are
those of `ebb run`. The advice goes to standard error after PROGRAM has ended.

A running tree keeps its budget. What a larger one would do is told by how much larger memory would
have had to be to keep each page that comes back; nothing is said about smaller ones. The advice
goes to standard output.";

const ADVISE_GOAL: &str = "\
Also say which is the smallest budget with which the program takes no more than so many
times as long as with RAM for everything: 1.2x, or 20%";

const ADVISE_AFTER: &str = "\
Columns:
  --ram      the budget
  OF WANTED  the same as a part of what the program wanted at most
  TIME       how many times as long the program would take as with RAM for everything. `>`: at
             least so many, because memory in RAM was never that small while it was watched. `too
             small`: what is in use and the compressed rest would not fit
  RESIDENT   how much of it would be memory of the program that is in RAM as it is
  POOL       how much of it would be compressed memory
  DEVICE     how much content would be on a device

Exit status:
  as for `ebb run`; for a running tree 0, and 125 if there is none

Examples:
    ebb advise -- python3 job.py
    ebb advise --goal 1.2x --json advice.json -- make -j2
    ebb advise --for 1m web";

fn set(command: Command) -> Command {
    command
        .long_about(SET)
        .override_usage("ebb set NAME|PID [--ram SIZE|PERCENT|auto] [--thp POLICY] [--idle TIME|off]")
        .after_long_help(SET_AFTER)
        .arg(option("ram", "SIZE|PERCENT|auto").help("The new budget, as for `ebb run`").long_help(SET_RAM))
        .arg(choice("thp", "POLICY", THP).help("Which memory gets huge pages from now on, as for `ebb run`"))
        .arg(option("idle", "TIME|off").help("How long memory stays in RAM unused from now on, as for `ebb run`"))
        .arg(help())
        .arg(target().required(true))
}

const SET: &str = "\
Changes the budget of a tree of processes under `ebb run`. NAME is the name given to `ebb run
--name`. PID is any process of the tree, or its `ebb run`. A larger budget takes effect at once. If
the tree holds more than a smaller budget allows, `ebb` asks its processes for memory, the coldest
first, and waits until they hold no more than the budget. On a terminal it shows how much they hold
above the budget. If `ebb` is interrupted (SIGINT, SIGTERM), the new budget stays.";

const SET_RAM: &str = "\
The new budget: a size of at least 4M; a percentage of the tree's tightest cgroup limit,
or of the machine's memory; or auto, which counts what the tree holds as available";

const SET_AFTER: &str = "\
Exit status:
  0    the tree holds no more than the budget
  1    it still holds more
  125  the budget could not be set

If ebb was interrupted, it dies of that signal.

Examples:
    ebb set web --ram 1G
    ebb set web --idle 10m";

fn reclaim(command: Command) -> Command {
    command
        .long_about(RECLAIM)
        .override_usage("ebb reclaim NAME|PID SIZE|PERCENT [--to pool|cold|device]")
        .after_long_help(RECLAIM_AFTER)
        .arg(
            choice("to", "pool|cold|device", &["pool", "cold", "device"])
                .help("Where the memory goes, if not where it would go by itself")
                .long_help(RECLAIM_TO),
        )
        .arg(help())
        .arg(target().required(true))
        .arg(
            positional("amount", "SIZE|PERCENT")
                .required(true)
                .help("How much to take: a size such as 100M, or a percentage of what the tree holds"),
        )
}

const RECLAIM: &str = "\
Takes memory from a tree of processes under `ebb run` now, as the kernel's memory.reclaim takes it
from a cgroup. NAME is the name given to `ebb run --name`. PID is any process of the tree, or its
`ebb run`. SIZE is how much RAM the tree is to give up: 100M, 1G, 1.5G or 1GiB (powers of 1024), or
a percentage of what it holds now, such as 25%. The processes that hold the coldest memory give
first. The budget stays as it is, and a program that touches its memory again gets it back at once.

`ebb` waits until the memory is given up, and then prints one line: how much was asked for and given
up, the time and the processor time that it took, and what the tree holds now. On a terminal it
shows how much is left. A process that is stopped is passed over. So is one that, within 5 s, gives
up less than 4 MiB (or less than a 64th of SIZE, if that is smaller); after three such processes
`ebb` gives up. If `ebb` is interrupted (SIGINT, SIGTERM), what was given up stays so.";

const RECLAIM_TO: &str = "\
Where the memory goes:
  pool    only compress: nothing is written to a device
  cold    only compress, with a slower codec that makes less of it: first what is
          compressed already
  device  only write to devices. What is compressed already goes first, the oldest before
          the rest

Default: where it would go by itself, to the pool first";

const RECLAIM_AFTER: &str = "\
Exit status:
  0    all of it was given up
  1    only a part or nothing could be
  125  the tree could not be asked

If ebb was interrupted, it dies of that signal.

Examples:
    ebb reclaim web 500M
    ebb reclaim web 25% --to device";

fn metrics(command: Command) -> Command {
    command
        .args_override_self(false)
        .long_about(METRICS)
        .override_usage("ebb metrics [--listen ADDRESS | --textfile DIR] [NAME|PID...]")
        .after_long_help(METRICS_AFTER)
        .arg(
            option("listen", "ADDRESS")
                .action(ArgAction::Append)
                .value_hint(ValueHint::Other)
                .help("Answer HTTP at ADDRESS (127.0.0.1:9841, unix:PATH) until you stop it")
                .long_help(METRICS_LISTEN),
        )
        .arg(
            option("textfile", "DIR")
                .action(ArgAction::Append)
                .value_hint(ValueHint::DirPath)
                .help("Write DIR/ebb.prom, for the textfile collector of node_exporter")
                .long_help("Write DIR/ebb.prom in one step, for the textfile collector of node_exporter"),
        )
        .arg(help())
        .arg(target().num_args(0..).action(ArgAction::Append))
}

const METRICS: &str = "\
Prints what `ebb ps` shows, and the counters of each tree, in OpenMetrics' text format, for
Prometheus and others that read it. NAME is the name given to `ebb run --name`. PID is any process
of a tree, or its `ebb run`. docs/usage.md lists names and labels.";

const METRICS_LISTEN: &str = "\
Answer HTTP at ADDRESS until you stop it: the metrics are at /metrics. ADDRESS is an IP
address and a port (127.0.0.1:9841, [::1]:9841), or unix:PATH. There is no authentication:
anyone who can connect can read the metrics";

const METRICS_AFTER: &str = "\
Exit status:
  0    success
  125  there is no such tree, or ebb cannot listen or write there

Examples:
    ebb metrics
    ebb metrics --listen 127.0.0.1:9841";

fn doctor(command: Command) -> Command {
    command
        .long_about(DOCTOR)
        .override_usage(
            "ebb doctor [--json]\n       \
             ebb doctor --seccomp-profile docker|podman|k8s",
        )
        .after_long_help(DOCTOR_AFTER)
        .arg(flag("json").help("Print the same as JSON"))
        .arg(
            choice("seccomp-profile", "ENGINE", &["docker", "podman", "k8s"])
                .help("Print a seccomp profile for containers of docker, podman or k8s")
                .long_help(DOCTOR_PROFILE),
        )
        .arg(help())
}

const DOCTOR: &str = "\
Tries everything that Ebb needs on this host. For each need, it says ok, limited or blocked, what
Ebb would use, and how to fix a problem.";

const DOCTOR_PROFILE: &str = "\
Instead, print a seccomp profile for a container in which Ebb works: the default profile
of that engine (docker, podman or k8s), and two system calls that Ebb makes (userfaultfd
for faults in user mode, and process_madvise)";

const DOCTOR_AFTER: &str = "\
Exit status:
  0  `ebb run` works here
  1  it does not

Examples:
    ebb doctor
    ebb doctor --seccomp-profile docker > ebb.json";

fn locks(command: Command) -> Command {
    command
        .long_about(LOCKS)
        .override_usage("ebb locks NAME|PID")
        .after_long_help(LOCKS_AFTER)
        .arg(help())
        .arg(target().required(true))
}

const LOCKS: &str = "\
Shows where threads waited for each other inside Ebb, in the whole tree and since the tree began:
how often, how long in total, at most and on average, the kind of lock, and the place in Ebb's
source that asked for it. NAME is the name given to `ebb run --name`. PID is any process of the
tree, or its `ebb run`. A lock that was free when a thread asked for it is not counted.";

const LOCKS_AFTER: &str = "\
Exit status:
  0    success
  125  there is no such tree

Examples:
    ebb locks web";

fn swapon(command: Command) -> Command {
    command
        .long_about(SWAPON)
        .override_usage(
            "ebb swapon NAME|PID SPEC\n       \
             ebb swapon --show [NAME|PID] [--bytes] [--noheadings]",
        )
        .after_long_help(SWAPON_AFTER)
        .arg(flag("show").help("Show the swap devices of one process or of all").long_help(SWAPON_SHOW))
        .arg(flag("bytes").help("Show sizes in bytes"))
        .arg(flag("noheadings").help("Show no headings"))
        .arg(help())
        .arg(target())
        .arg(positional("spec", "SPEC").help("The device: file:DIR, with options as for `ebb run --swap`"))
}

const SWAPON: &str = "\
Adds a swap device to process PID, which runs under `ebb run`, or shows the devices that it has.
NAME, given to `ebb run --name`, means the only managed process of that tree. If the tree has
several, ebb lists their PIDs; --show shows the devices of all of them.

SPEC is file[:DIR][,OPTION]... with the options of `ebb run --swap`: an unlinked, encrypted file in
DIR, by default in $EBB_TMPDIR or /var/tmp. Ebb fills a device without a priority after those that
PID already has. file:DIR,writes=SIZE/PERIOD for a device that PID has already changes its write
budget, for all processes of the tree.";

const SWAPON_SHOW: &str = "\
Show name, type, maximum size, use, priority and kind of each device of PID, the average
time of its last reads in microseconds, and how many pages were read ahead from it and
then used (AHEAD-HIT) or not (AHEAD-MISS); and for its directory how much the whole tree
has written there (WRITTEN) and may write (WRITES). The type is `held` while that is
spent. Without NAME or PID, show the devices of every process under Ebb that is large
enough to be swapped and that this user may ask";

const SWAPON_AFTER: &str = "\
Exit status:
  0    success
  1    the process refused
  125  ebb could not ask the process

Examples:
    ebb swapon web file:/more,prio=5
    ebb swapon --show";

fn swapoff(command: Command) -> Command {
    command
        .long_about(SWAPOFF)
        .override_usage("ebb swapoff NAME|PID DEVICE")
        .after_long_help(SWAPOFF_AFTER)
        .arg(help())
        .arg(target().required(true))
        .arg(
            positional("device", "DEVICE")
                .required(true)
                .value_hint(ValueHint::DirPath)
                .help("The device's directory, as `ebb swapon --show` prints it"),
        )
}

const SWAPOFF: &str = "\
Removes a swap device from process PID, which runs under `ebb run`. NAME, given to `ebb run --name`,
means the only managed process of that tree. DEVICE is the device's directory, as `ebb swapon --show
PID` prints it. Everything on the device moves to where there is room. `ebb` waits for that, and
shows on a terminal how much is left. If `ebb` is interrupted (SIGINT, SIGTERM), it waits until the
process has stopped moving content; the process keeps the device. A second interrupt ends `ebb` at
once.";

const SWAPOFF_AFTER: &str = "\
Exit status:
  0    success
  1    the process refused
  125  ebb could not ask the process

If ebb was interrupted, it dies of that signal.

Examples:
    ebb swapoff web /scratch";
