//! `ebb run`.

use clap::{Arg, ArgAction, Command, ValueHint};

use super::parts::{THP, choice, flag, help, option, positional};

pub(super) fn run(command: Command) -> Command {
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
