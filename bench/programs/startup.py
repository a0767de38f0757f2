#!/usr/bin/python3
"""What a short command costs under Ebb: shells that run a few commands when they are told to, one for each way, by turns
in random order. Machines that do other things as well make any one time worthless; the difference to the plain way in
the same round is not. Prints, for each way, the median time of one command, and the median and the quartiles of these
differences, in microseconds; then what `ebb run` itself costs.

  plain     without Ebb
  empty     with a library loaded that has nothing in it: what preloading any library costs
  inert     with the agent loaded, but nothing that it should do
  ebb       under `ebb run`, as users get it
  before    under `ebb run` of another build (--before)
  managed   under `ebb run`, every process managed from its start (EBB_FORCE=no-dormant)
"""
import argparse
import os
import random
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
# A library without code since glibc 2.34.
EMPTY = "/lib/x86_64-linux-gnu/libdl.so.2"
SCRIPT = 'while read count; do while [ $count -gt 0 ]; do "$0"; count=$((count-1)); done; echo; done'
UNDER = ["run", "-q", "--ram", "1G", "--"]


class Shell:
    """A shell that runs the command as often as it is told."""

    def __init__(self, prefix, environment, program):
        command = [*prefix, "/bin/sh", "-c", SCRIPT, program]
        self.commands = 0
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def time(self, count):
        """Seconds for `count` commands."""
        self.commands += count
        start = time.perf_counter()
        self.process.stdin.write(b"%d\n" % count)
        self.process.stdin.flush()
        if self.process.stdout.readline() != b"\n":
            sys.exit("startup.py: a shell ended, or its command printed something: give a command that prints nothing")
        return time.perf_counter() - start

    def close(self):
        """Ends the shell. Returns the page faults of a command, the shell's own for it among them."""
        self.process.stdin.close()
        _, status, usage = os.wait4(self.process.pid, 0)
        self.process.returncode = os.waitstatus_to_exitcode(status)
        if self.process.returncode != 0:
            sys.exit(f"startup.py: a shell ended with status {self.process.returncode}")
        return usage.ru_minflt / self.commands


def started(command, environment):
    """Seconds for a run of the command."""
    start = time.perf_counter()
    subprocess.run(command, env=environment, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def measure(rounds, ways):
    """Calls each of `ways` once a round, in random order: a list of microseconds for each."""
    times = {name: [] for name in ways}
    for _ in range(rounds):
        for name in random.sample(list(ways), len(ways)):
            times[name].append(1e6 * ways[name]())
    return times


def report(times, references=("plain",)):
    """Prints the median of each way, and for each way in `references` the median and the quartiles of the differences to it
    in the same round."""
    print(f"{'way':10} {'median':>8}" + "".join(f" {'more than ' + name:>17} {'quartiles':>18} {'':>8}" for name in references))
    for name, found in times.items():
        line = f"{name:10} {statistics.median(found):8.1f}"
        for reference in references:
            if name != reference and list(times).index(name) > list(times).index(reference):
                low, middle, high = statistics.quantiles([a - b for a, b in zip(found, times[reference])], n=4)
                share = 100 * middle / statistics.median(times[reference])
                line += f" {middle:17.1f} {low:9.1f}..{high:<7.1f} {share:+7.1f} %"
        print(line)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--ebb", default=os.path.join(HERE, "../../target/release/ebb"))
    parser.add_argument("--commands", type=int, default=10, help="commands of a round (10)")
    parser.add_argument("--rounds", type=int, default=300, help="rounds of each way (300)")
    parser.add_argument("--program", default="/bin/true", help="the command (/bin/true)")
    parser.add_argument("--before", help="the `ebb` of another build, beside its agent: a way more, to compare with")
    args = parser.parse_args()
    ebb = os.path.abspath(args.ebb)
    agent = os.path.join(os.path.dirname(ebb), "libebb_agent.so")
    if not os.path.exists(ebb) or not os.path.exists(agent):
        sys.exit(f"startup.py: no {ebb} with its agent beside it: build it, or give --ebb")
    base = {k: v for k, v in os.environ.items() if not k.startswith("EBB_") and k != "LD_PRELOAD"}
    ways = {"plain": ([], base)}
    if os.path.exists(EMPTY):
        ways["empty"] = ([], dict(base, LD_PRELOAD=EMPTY))
    ways["inert"] = ([], dict(base, LD_PRELOAD=agent))
    ways["ebb"] = ([ebb, *UNDER], base)
    if args.before:
        ways["before"] = ([os.path.abspath(args.before), *UNDER], base)
    ways["managed"] = ([ebb, *UNDER], dict(base, EBB_FORCE="no-dormant"))
    shells = {name: Shell(*way, args.program) for name, way in ways.items()}
    for shell in shells.values():
        shell.time(args.commands)
    each = {name: lambda shell=shell: shell.time(args.commands) / args.commands for name, shell in shells.items()}
    times = measure(args.rounds, each)
    faults = {name: shell.close() for name, shell in shells.items()}
    print(f"{args.program} by a shell, {args.rounds} rounds of {args.commands}; microseconds a command")
    report(times, [name for name in ("plain", "empty") if name in ways])
    print("page faults of a command: " + ", ".join(f"{name} {mean:.1f}" for name, mean in faults.items()))
    single = {"plain": [args.program], "ebb run": [ebb, *UNDER, args.program]}
    print("one start; microseconds")
    report(measure(args.rounds, {name: lambda command=command: started(command, base) for name, command in single.items()}))


main()
