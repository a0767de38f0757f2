//! The commands that change how much RAM a running tree holds: `ebb set` and `ebb reclaim`.

use clap::Command;

use super::parts::{THP, choice, help, option, positional, target};

pub(super) fn set(command: Command) -> Command {
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

pub(super) fn reclaim(command: Command) -> Command {
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
