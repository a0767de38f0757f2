#!/usr/bin/python3
"""What a short command costs under Ebb: rounds of a shell that runs many, plain and under Ebb by turns.

Prints, for each way, the time of one command in microseconds: smallest, median and quartiles over the rounds, and the
processor time; then what `ebb run` itself costs. The smallest is the figure to compare on a machine that does other
things too.

  plain     without Ebb
  preload   with the agent loaded, but inert: what loading any library costs
  ebb       under `ebb run`, as users get it
  managed   under `ebb run`, every process managed from its start (EBB_FORCE=no-dormant)
"""
import argparse
import os
import resource
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))


def spent():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def timed(command, environment):
    """Wall and processor time of a command, seconds."""
    before, start = spent(), time.perf_counter()
    subprocess.run(command, env=environment, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start, spent() - before


def line(name, rounds, each):
    wall = sorted(1e6 * w / each for w, _ in rounds)
    busy = sorted(1e6 * b / each for _, b in rounds)
    low, middle, high = statistics.quantiles(wall, n=4)
    print(f"{name:10} {wall[0]:9.1f} {low:9.1f} {middle:9.1f} {high:9.1f} {busy[0]:14.1f} {statistics.median(busy):9.1f}")
    return wall[0], busy[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ebb", default=os.path.join(HERE, "../../target/release/ebb"))
    parser.add_argument("--commands", type=int, default=300, help="commands of a round (300)")
    parser.add_argument("--rounds", type=int, default=21, help="rounds of each way (21)")
    parser.add_argument("--program", default="/bin/true", help="the command (/bin/true)")
    args = parser.parse_args()
    ebb = os.path.abspath(args.ebb)
    agent = os.path.join(os.path.dirname(ebb), "libebb_agent.so")
    if not os.path.exists(ebb) or not os.path.exists(agent):
        sys.exit(f"startup.py: no {ebb} with its agent beside it: build it, or give --ebb")
    base = {k: v for k, v in os.environ.items() if not k.startswith("EBB_") and k != "LD_PRELOAD"}
    script = f"i=0; while [ $i -lt {args.commands} ]; do {args.program}; i=$((i+1)); done"
    shell = ["/bin/sh", "-c", script]
    under = [ebb, "run", "-q", "--ram", "1G", "--"]
    forced = dict(base, EBB_FORCE="no-dormant")
    ways = {
        "plain": (shell, base),
        "preload": (shell, dict(base, LD_PRELOAD=agent)),
        "ebb": (under + shell, base),
        "managed": (under + shell, forced),
    }
    single = {"plain": ([args.program], base), "ebb run": (under + [args.program], base)}
    rounds = {name: [] for name in ways}
    starts = {name: [] for name in single}
    for _ in range(args.rounds):
        for name, (command, environment) in ways.items():
            rounds[name].append(timed(command, environment))
        for _ in range(5):
            for name, (command, environment) in single.items():
                starts[name].append(timed(command, environment))
    print(f"{args.program} by a shell, {args.rounds} rounds of {args.commands}; microseconds a command")
    print(f"{'way':10} {'least':>9} {'quarter':>9} {'median':>9} {'3 quart.':>9} {'processor least':>14} {'median':>8}")
    least = {name: line(name, rounds[name], args.commands) for name in ways}
    for name in ("preload", "ebb", "managed"):
        more = [100 * (least[name][i] / least["plain"][i] - 1) for i in (0, 1)]
        print(f"{name}: {more[0]:+.1f} % of the least time, {more[1]:+.1f} % of the least processor time")
    print("one start; microseconds")
    least = {name: line(name, starts[name], 1) for name in single}
    print(f"ebb run: {least['ebb run'][0] - least['plain'][0]:+.0f} us of the least time")


main()
