//! What `--help` prints.

pub const HELP: &str = "\
ebb: run a program in less memory than it wants.

Usage:
  ebb run [OPTIONS] -- PROGRAM [ARGS...]   run PROGRAM within a memory budget (ebb run --help)
  ebb ps [NAME|PID...]                     show the programs under Ebb, and the memory they hold
  ebb set NAME|PID --ram SIZE              change the budget of a running program (ebb set --help)
  ebb reclaim NAME|PID SIZE                take memory from a running program now (ebb reclaim --help)
  ebb metrics [--listen ADDRESS]           export metrics for Prometheus (ebb metrics --help)
  ebb doctor                               say whether this host allows Ebb, and what to change
  ebb locks NAME|PID                       show where the threads of a running program wait in Ebb
  ebb swapon NAME|PID SPEC                 add a swap device to a running process
  ebb swapoff NAME|PID DEVICE              remove a swap device from a running process
  ebb swapon --show [NAME|PID]             show the swap devices of running processes
  ebb --help | --version

Ebb compresses cold pages of PROGRAM in RAM, then spills them to disk. It needs no root, no kernel
swap, no kernel module and no daemon, and it does not change PROGRAM.
";

pub const RUN_HELP: &str = "\
Usage: ebb run [OPTIONS] -- PROGRAM [ARGS...]

Runs PROGRAM within a budget: the most private memory that it may keep in RAM. PROGRAM and all the
processes it starts share the budget. A process that runs short takes memory from the process whose
memory has been cold for longest.

Options:
  --ram SIZE|PERCENT|auto  the budget of all processes together:
                           64M, 1G, 1.5G or 1GiB (powers of 1024), at least 4M;
                           50% of the tightest cgroup limit, or of the machine's memory;
                           auto (the default): what is left below the tightest cgroup limit or
                           available on the machine, less an eighth as headroom (16 MiB to 1 GiB,
                           and never more than half)
  --swap SPEC              where to put pages that do not fit into RAM in compressed form:
                           file[:DIR][,OPTION]...  an unlinked, encrypted file in DIR
                           none                    nowhere: use compressed RAM only
                           The path of DIR, without symbolic links, has no comma: mount a directory
                           with a comma in its name elsewhere with `mount --bind`
                           Default: file in $EBB_TMPDIR or /var/tmp. Repeat --swap for up to 8
                           directories. OPTION is one of:
                           size=SIZE      limits the file of each process, to at least 1M; sizes for
                                          the same directory add up
                           prio=N         the highest (0 to 32767) is filled first, directories of
                                          equal priority in turn; directories without a priority
                                          come last, in the order given
                           kind=ssd|hdd|ram
                                          hdd for a disk that turns: it is written in order, and read
                                          by what lies together; ram for one in memory: nothing is
                                          read ahead because a read takes long. Default: as the kernel
                                          says in /sys/dev/block, and ssd where it does not know
                           discard=pages|once|none
                                          pages (the default): space that is no longer used goes back
                                          to the file system; once, none: the file keeps it until it
                                          is closed
                           writes=SIZE/PERIOD
                                          how much all processes may write to DIR, in a second, minute,
                                          hour, day or week: 20G/day. When it is spent, other devices
                                          take the rest, and if there is none, programs wait
  --thp POLICY             which memory gets huge pages (2 MiB): never; advise: what the program asks
                           for (madvise); always: all, where the budget has room; host (the default):
                           as the host has it in /sys/kernel/mm/transparent_hugepage/enabled. If that
                           says never, there are none in any case
  --idle TIME|off          move memory that nobody used for this long out of RAM although there is
                           room: into compressed RAM, and after the same time again to a device.
                           1s to 24h: 30s, 10m, 1.5h. Default: off
  --name NAME              name for `ebb ps` and `ebb set`: at most 63 letters, digits, `.`, `_` and
                           `-`, not digits alone. No two running trees can have the same name
  --stats FILE             write all counters to FILE as JSON when PROGRAM ends
  --allow-unmanaged        if Ebb cannot manage PROGRAM (statically linked, set-user-ID, 32-bit,
                           musl), run it without Ebb instead of refusing
  -q, --quiet              print no summary and no warnings
  -v, --verbose            print more
  -h, --help               print this

Options can also be in /etc/ebb.conf, in ~/.config/ebb/config and in the variable EBB_OPTIONS, as here
and with # for comments. Later places win over earlier ones, and the command line over all. If one of
them has --swap, it replaces what places before it have. Only the command line can have
--name and --stats.

Exit status: PROGRAM's own. If PROGRAM died of a signal, ebb dies of the same signal; Ebb ends PROGRAM
by SIGKILL when it runs out of room, and says so. 125: ebb could not start PROGRAM, or PROGRAM could
not go on under Ebb. 126: PROGRAM cannot be executed. 127: PROGRAM was not found.
";

pub const DOCTOR_HELP: &str = "\
Usage: ebb doctor [--json]
       ebb doctor --seccomp-profile docker|podman|k8s

Tries everything that Ebb needs on this host. For each need, it says ok, limited or blocked, what Ebb
would use, and how to fix a problem. Exit status: 0 if `ebb run` works here, 1 if it does not.

Options:
  --json                 print the same as JSON
  --seccomp-profile ENGINE
                         instead, print a seccomp profile for a container in which Ebb works: the default
                         profile of that engine, and two system calls that Ebb makes (userfaultfd for
                         faults in user mode, and process_madvise)
  -h, --help             print this
";

pub const PS_HELP: &str = "\
Usage: ebb ps [--json] [-v] [--bytes] [--noheadings] [NAME|PID...]
       ebb ps --validate [NAME|PID...]

Shows the trees of processes under `ebb run` that this user may see, then the processes of each tree.
NAME is the name given to `ebb run --name`. PID is any process of a tree, or its `ebb run`. `ebb ps`
first takes back the memory that processes held when they ended.

  TREE      the tree's name, or the PID of its `ebb run`
  BUDGET    what all processes of the tree may hold together
  HELD      what the processes hold or have been granted. FREE is what is left of the budget, PEAK
            the largest HELD so far. Memory that processes share since a fork counts for one of them
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

Options:
  --json        print the same as JSON, sizes in bytes
  --bytes       show sizes in bytes
  --noheadings  show no headings
  -v, --verbose also show what each tier holds: hot, pages that are compressed by fast codecs; cold, those
                that a slower codec has made smaller since; device, those that were written to a device.
                PAGES is their number, CONTENT the memory that they would take, and BYTES what they take.
                Also the idle period of each tree (`ebb run --idle`): UNUSED is how much left memory because
                nobody used it, and TO-DEVICE how much of that went on to a device
  --validate    instead, check whether all figures agree, and print a line for each that does not
  -h, --help    print this

Exit status: 0 on success, 1 if --validate found something, 125 if there is no such tree.
";

pub const METRICS_HELP: &str = "\
Usage: ebb metrics [--listen ADDRESS | --textfile DIR] [NAME|PID...]

Prints what `ebb ps` shows, and the counters of each tree, in OpenMetrics' text format, for Prometheus and
others that read it. NAME is the name given to `ebb run --name`. PID is any process of a tree, or its
`ebb run`. docs/usage.md lists names and labels.

Options:
  --listen ADDRESS  answer HTTP at ADDRESS until you stop it: the metrics are at /metrics. ADDRESS is an
                    IP address and a port (127.0.0.1:9841, [::1]:9841), or unix:PATH. There is no
                    authentication: anyone who can connect can read the metrics
  --textfile DIR    write DIR/ebb.prom in one step, for the textfile collector of node_exporter
  -h, --help        print this

Exit status: 0 on success, 125 if there is no such tree, or it cannot listen or write there.
";

pub const SET_HELP: &str = "\
Usage: ebb set NAME|PID [--ram SIZE|PERCENT|auto] [--thp POLICY] [--idle TIME|off]

Changes the budget of a tree of processes under `ebb run`. NAME is the name given to
`ebb run --name`. PID is any process of the tree, or its `ebb run`. A larger budget takes effect at
once. If the tree holds more than a smaller budget allows, `ebb` asks its processes for memory, the
coldest first, and waits until they hold no more than the budget. On a terminal it shows how much they
hold above the budget. If `ebb` is interrupted (SIGINT, SIGTERM), the new budget stays.

Write the budget as for `ebb run`: a size of at least 4M; a percentage of the tree's tightest cgroup
limit, or of the machine's memory; or auto, which counts what the tree holds as available.

Options:
  --ram SIZE|PERCENT|auto  the new budget
  --thp never|advise|always|host
                           which memory gets huge pages from now on, as for `ebb run`
  --idle TIME|off          after how long without use memory leaves RAM from now on, as for `ebb run`
  -h, --help               print this

Exit status: 0 if the tree holds no more than the budget, 1 if it still holds more, 125 if the budget
could not be set. If ebb was interrupted, it dies of that signal.
";

pub const RECLAIM_HELP: &str = "\
Usage: ebb reclaim NAME|PID SIZE|PERCENT [--to pool|cold|device]

Takes memory from a tree of processes under `ebb run` now, as the kernel's memory.reclaim takes it from
a cgroup. NAME is the name given to `ebb run --name`. PID is any process of the tree, or its `ebb run`.
SIZE is how much RAM the tree is to give up: 100M, 1G, 1.5G or 1GiB (powers of 1024), or a percentage of
what it holds now, such as 25%. The processes that hold the coldest memory give first. The budget stays
as it is, and a program that touches its memory again gets it back at once.

`ebb` waits until the memory is given up, and then prints one line: how much was asked for and given up,
the time and the processor time that it took, and what the tree holds now. On a terminal it shows how
much is left. A process that is stopped is passed over. So is one that, within 5 s, gives up less than
4 MiB (or less than a 64th of SIZE, if that is smaller); after three such processes `ebb` gives up. If
`ebb` is interrupted (SIGINT, SIGTERM), what was given up stays so.

Options:
  --to pool      only compress: nothing is written to a device
  --to cold      only compress, with a slower codec that makes less of it: first what is compressed already
  --to device    only write to devices. What is compressed already goes first, the oldest before the rest
                 Default: where it would go by itself, to the pool first
  -h, --help     print this

Exit status: 0 if all of it was given up, 1 if only a part or nothing could be, 125 if the tree could not
be asked. If ebb was interrupted, it dies of that signal.
";

pub const LOCKS_HELP: &str = "\
Usage: ebb locks NAME|PID

Shows where threads waited for each other inside Ebb, in the whole tree and since the tree began: how
often, how long in total, at most and on average, the kind of lock, and the place in Ebb's source that
asked for it. NAME is the name given to `ebb run --name`. PID is any process of the tree, or its
`ebb run`.
A lock that was free when a thread asked for it is not counted.
";

pub const SWAPON_HELP: &str = "\
Usage: ebb swapon NAME|PID SPEC
       ebb swapon --show [NAME|PID] [--bytes] [--noheadings]

Adds a swap device to process PID, which runs under `ebb run`, or shows the devices that it has. NAME,
given to `ebb run --name`, means the only managed process of that tree. If the tree has several, ebb
lists their PIDs; --show shows the devices of all of them.

SPEC is file[:DIR][,size=SIZE][,prio=N][,kind=ssd|hdd|ram][,discard=pages|once|none]
[,writes=SIZE/PERIOD] as for `ebb run --swap`: an unlinked, encrypted file in DIR, by default in
$EBB_TMPDIR or /var/tmp. Ebb fills a device without a priority after those that PID already has.
file:DIR,writes=SIZE/PERIOD for a device that PID has already changes its write budget, for all
processes of the tree.

Options:
  --show        show name, type, maximum size, use, priority and kind of each device of PID, the
                average time of its last reads in microseconds, and how many pages were read ahead
                from it and then used (AHEAD-HIT) or not (AHEAD-MISS); and for its directory how much
                the whole tree has written there (WRITTEN) and may write (WRITES). The type is `held`
                while that is spent. Without NAME or PID, show the devices of every process under Ebb that is
                large enough to be swapped and that this user may ask
  --bytes       show sizes in bytes
  --noheadings  show no headings
  -h, --help    print this

Exit status: 0 on success, 1 if the process refused, 125 if ebb could not ask the process.
";

pub const SWAPOFF_HELP: &str = "\
Usage: ebb swapoff NAME|PID DEVICE

Removes a swap device from process PID, which runs under `ebb run`. NAME, given to `ebb run --name`,
means the only managed process of that tree. DEVICE is the device's directory, as
`ebb swapon --show PID` prints it. Everything on the device moves to where there is room. `ebb` waits
for that, and shows on a terminal how much is left. If `ebb` is interrupted (SIGINT, SIGTERM), it waits
until the process has stopped moving content; the process keeps the device. A second interrupt ends
`ebb` at once.

Exit status: 0 on success, 1 if the process refused, 125 if ebb could not ask the process. If ebb was
interrupted, it dies of that signal.
";
