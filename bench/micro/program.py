#!/usr/bin/env python3
"""Runs any program by itself, under the kernel's swap on zram with lz4, and under Ebb, by turns, and compares time at
equal total RAM: the cgroup's limit is found so that limit and zram's peak together come to RAM, Ebb gets RAM.

    sudo bench/micro/program.py --ram 64M -- sort -S 1G -o /tmp/out /tmp/lines

The kernel's limit holds page cache too, which Ebb leaves to the system. Needs root, a memory cgroup controller and
zram. Everything changed on the system is undone at the end, or by the next run of any benchmark here.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from typing import NamedTuple

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]

from rig import session  # noqa: E402
from rig.errors import MIB, Failed, Killed  # noqa: E402
from rig.group import Group  # noqa: E402
from rig.process import Process  # noqa: E402
from rig.swap import Zram  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
EBB = os.path.join(os.environ.get("CARGO_TARGET_DIR") or os.path.join(ROOT, "target"), "release/ebb")
# Runs that look for the kernel's limit.
SEARCH_MAX = 6
# How many eighths of RAM are added to the limit of a program that the kernel kills within RAM.
GROW_MAX = 16
# How close limit and zram together must come to RAM.
CLOSE = 0.05


def size(text):
    units = {"K": 10, "M": 20, "G": 30}
    return int(float(text[:-1]) * (1 << units[text[-1]])) if text[-1] in units else int(text)


class Run(NamedTuple):
    """What one run took: seconds, seconds of processors, of these in the kernel, bytes held."""

    wall: float
    cpu: float
    system: float
    held: int


def timed(command, journal, timeout, shown=None):
    """A run of the command with its children, which must end well; `shown`: the command as messages have it."""
    shown = " ".join(shown or command)[:200]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.monotonic()
    process = Process(journal, command, stdout=subprocess.DEVNULL)
    try:
        process.wait(timeout)
    except Failed as failed:
        raise Failed(f"{shown}: {failed}") from None
    wall = time.monotonic() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if process.child.returncode != 0:
        raise Failed(f"{shown} ended with status {process.child.returncode}")
    system = after.ru_stime - before.ru_stime
    return Run(wall, after.ru_utime - before.ru_utime + system, system, 0)


def under_kernel(limit, command, journal, zram, timeout):
    zram.reset_peak()
    group = Group(journal, limit)
    try:
        run = timed(group.wrap(command), journal, timeout, shown=command)
        return run._replace(held=min(limit, group.peak_bytes()) + zram.memory()["peak_bytes"])
    except Failed as failed:
        kills = group.oom_kills()
        if kills:
            raise Killed(f"out-of-memory kills: {kills}; {failed}") from None
        raise
    finally:
        group.close()


def under_ebb(chosen, ram, command, journal, scratch):
    stats = os.path.join(scratch, "stats.json")
    run = timed(
        [chosen.ebb, "run", "-q", "--ram", str(ram), "--stats", stats, "--", *command], journal, chosen.timeout
    )
    with open(stats, encoding="utf-8") as file:
        return run._replace(held=json.load(file)["counters"]["peak_held_bytes"])


class Limit(NamedTuple):
    """A limit of the kernel's side: with it, and with zram's peak, RAM in all; and the limits with which it was killed."""

    limit: int
    total: int
    died: list


def search(ram, attempt):
    """The limit with which `attempt` comes to RAM: it says the total, or None where the program was killed. Where it is
    killed even with all of RAM as its limit, the least limit, in steps of an eighth of RAM, with which it is not."""
    died, good = [], []

    def tried(limit):
        total = attempt(limit)
        if total is None:
            died.append(limit)
        else:
            good.append(Limit(limit, total, died))
        return total

    low, high, limit = 0, ram, ram * 2 // 3
    for _ in range(SEARCH_MAX):
        total = tried(limit)
        if total is None:
            # Killed: all of RAM as the limit says at once whether there is anything to find.
            low, limit = limit, (limit + high) // 2 if good else ram
        elif abs(total - ram) < CLOSE * ram:
            break
        else:
            low, high = (low, limit) if total > ram else (limit, high)
            limit = min(max(limit + (ram - total), low + MIB), high - MIB)
        if not low < limit <= high:
            break
    step = 1
    while not good:
        if step > GROW_MAX:
            raise Failed(f"under the kernel's swap it does not end well with any limit up to {max(died) >> 20} MiB")
        tried(ram + step * ram // 8)
        step += 1
    return min(good, key=lambda one: abs(one.total - ram))


def find_limit(chosen, journal, zram, before=lambda: None):
    """`search` by runs of the command; calls `before` ahead of each."""

    def attempt(limit):
        before()
        try:
            total = under_kernel(limit, chosen.command, journal, zram, chosen.timeout).held
        except Killed as killed:
            print(f"program.py: limit {limit >> 20} MiB: {killed}", file=sys.stderr, flush=True)
            return None
        print(f"program.py: limit {limit >> 20} MiB: {total >> 20} MiB in all", file=sys.stderr, flush=True)
        return total

    return search(chosen.ram, attempt)


def report(rounds):
    print(f"{'':8} {'wall s':>8} {'cpu s':>8} {'held MiB':>9} {'wall/kernel':>12} {'cpu/kernel':>11}")
    medians = {name: Run(*map(statistics.median, zip(*runs))) for name, runs in rounds.items()}
    for name, (wall, cpu, _, held) in medians.items():
        kernel = medians["kernel"]
        ratios = f"{wall / kernel.wall:12.2f} {cpu / kernel.cpu:11.2f}" if name != "alone" else ""
        walls = [run.wall for run in rounds[name]]
        print(f"{name:8} {wall:8.2f} {cpu:8.2f} {held / MIB:9.0f} {ratios}   wall {min(walls):.2f}-{max(walls):.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--ram", type=size, required=True, help="RAM in all, such as 64M")
    parser.add_argument("--limit", type=size, help="the kernel's limit (found by trying)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each (3)")
    parser.add_argument("--timeout", type=int, default=600, help="seconds for one run (600)")
    parser.add_argument("--ebb", default=EBB, help="the command to measure")
    parser.add_argument("command", nargs="+", metavar="-- PROGRAM ARGS")
    chosen = parser.parse_args()

    def work(journal, scratch):
        rounds = {"alone": [], "kernel": [], "ebb": []}
        zram = Zram(journal)
        limit = chosen.limit
        if not limit:
            found = find_limit(chosen, journal, zram)
            limit = found.limit
            if found.total > chosen.ram * (1 + CLOSE):
                print(f"program.py: the kernel kills it at {', '.join(f'{one >> 20}' for one in sorted(found.died))} MiB:"
                      f" compared with {found.total >> 20} MiB for the kernel, {chosen.ram >> 20} MiB for Ebb", file=sys.stderr)
        for _ in range(chosen.rounds):
            rounds["alone"].append(timed(chosen.command, journal, chosen.timeout))
            rounds["kernel"].append(under_kernel(limit, chosen.command, journal, zram, chosen.timeout))
            rounds["ebb"].append(under_ebb(chosen, chosen.ram, chosen.command, journal, scratch))
        return rounds

    # Who names a program wants it run: to skip it is a failure.
    rounds = session.whole("bench-program", work, skipped=1)
    if isinstance(rounds, int):
        return rounds
    report(rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
