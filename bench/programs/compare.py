#!/usr/bin/env python3
"""Runs any program by itself, under the kernel's swap on zram with lz4, and under Ebb, by turns, and compares time at
equal total RAM: the cgroup's limit is found so that limit and zram's peak together come to RAM, Ebb gets RAM.

    sudo bench/programs/compare.py --ram 64M -- sort -S 1G -o /tmp/out /tmp/lines

The kernel's limit holds page cache too, which Ebb leaves to the system. Needs root, a memory cgroup controller and
zram. Everything changed on the system is undone at the end, or by the next run of any benchmark here.
"""

import argparse
import os
import statistics
import subprocess
import sys
from typing import NamedTuple

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "bench"))

from rig import place, session  # noqa: E402
from rig.errors import MIB, Failed, Killed  # noqa: E402

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
    """What one run took: seconds, seconds of processors, bytes held."""

    wall: float
    cpu: float
    held: int


def run_in(where, chosen):
    """A run of the command with its children in a place, which must end well."""
    try:
        with place.blamed(where):
            done = where.run(chosen.command, chosen.timeout, stdout=subprocess.DEVNULL, stderr=None)
        where.check()
        held = where.account()["counters"]["peak_held_bytes"] if where.ram_bytes else where.total_bytes()
        return Run(done.wall, done.cpu, held)
    finally:
        where.close()


def under_kernel(limit, chosen, journal, scratch):
    return run_in(place.make("zram-lz4", journal, limit, None, chosen.ebb, scratch), chosen)


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


def find_limit(chosen, journal, scratch):
    """`search` by runs of the command."""

    def attempt(limit):
        try:
            total = under_kernel(limit, chosen, journal, scratch).held
        except Killed as killed:
            print(f"compare.py: limit {limit >> 20} MiB: {killed}", file=sys.stderr, flush=True)
            return None
        print(f"compare.py: limit {limit >> 20} MiB: {total >> 20} MiB in all", file=sys.stderr, flush=True)
        return total

    return search(chosen.ram, attempt)


def measured(chosen, limit, journal, scratch):
    """All rounds; those without a run of the kernel's in which it killed the program. {place: runs}."""
    rounds = {"alone": [], "kernel": [], "ebb": []}
    for _ in range(chosen.rounds):
        rounds["alone"].append(run_in(place.make(place.ALONE, journal, None, None, chosen.ebb, scratch), chosen))
        try:
            rounds["kernel"].append(under_kernel(limit, chosen, journal, scratch))
        except Killed as killed:
            print(f"compare.py: limit {limit >> 20} MiB: {killed}", file=sys.stderr, flush=True)
        rounds["ebb"].append(run_in(place.make(place.EBB, journal, None, chosen.ram, chosen.ebb, scratch), chosen))
    return rounds


def report(rounds):
    print(f"{'':8} {'wall s':>8} {'cpu s':>8} {'held MiB':>9} {'wall/kernel':>12} {'cpu/kernel':>11}")
    medians = {name: Run(*map(statistics.median, zip(*runs))) for name, runs in rounds.items() if runs}
    for name, (wall, cpu, held) in medians.items():
        kernel = medians.get("kernel")
        ratios = f"{wall / kernel.wall:12.2f} {cpu / kernel.cpu:11.2f}" if kernel and name != "alone" else ""
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
        limit = chosen.limit
        if not limit:
            found = find_limit(chosen, journal, scratch)
            limit = found.limit
            if found.total > chosen.ram * (1 + CLOSE):
                print(f"compare.py: the kernel kills it at {', '.join(f'{one >> 20}' for one in sorted(found.died))} MiB:"
                      f" compared with {found.total >> 20} MiB for the kernel, {chosen.ram >> 20} MiB for Ebb", file=sys.stderr)
        return measured(chosen, limit, journal, scratch)

    # Who names a program wants it run: to skip it is a failure.
    rounds = session.whole("bench-compare", work, skipped=1)
    if isinstance(rounds, int):
        return rounds
    report(rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
