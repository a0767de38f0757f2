//! The commands for swap devices of running processes: `ebb swapon` and `ebb swapoff`.

use clap::{Command, ValueHint};

use super::parts::{flag, help, positional, target};

pub(super) fn swapon(command: Command) -> Command {
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

pub(super) fn swapoff(command: Command) -> Command {
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
