//! The commands that tell of running programs: `ebb ps`, `top`, `advise`, `metrics` and `locks`.

use clap::{ArgAction, Command, ValueHint};

use super::parts::{flag, help, option, target};
use super::run::run;

pub(super) fn ps(command: Command) -> Command {
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

pub(super) fn top(command: Command) -> Command {
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

pub(super) fn advise(command: Command) -> Command {
    // What `ebb run --help` says is not said again.
    run(command)
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

For PROGRAM the budget goes down by steps while it runs, until PROGRAM spends three quarters of its
time waiting for memory, and up again, time after time. So the run takes two to six times as long as
usual, and each size is seen only if PROGRAM works for ten seconds or more. --ram is the most that
PROGRAM may have; the other options are those of `ebb run`. The advice goes to standard error after
PROGRAM has ended.

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
  TIME       how many times as long the program would take as with RAM for everything. `>`:
             probably more, because memory in RAM was never that small while it was watched, or
             nearly all of the time went to swap. `too small`: what is in use and the compressed
             rest would not fit
  RESIDENT   how much of it would be memory of the program that is in RAM as it is
  POOL       how much of it would be compressed memory
  DEVICE     how much content would be on a device

Exit status:
  as for `ebb run`; for a running tree 0, and 125 if there is none

  124  PROGRAM ended with 0, but its run was too short, or it is too small, to forecast from

Examples:
    ebb advise -- python3 job.py
    ebb advise --goal 1.2x --json advice.json -- make -j2
    ebb advise --for 1m web";

pub(super) fn metrics(command: Command) -> Command {
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

pub(super) fn locks(command: Command) -> Command {
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
