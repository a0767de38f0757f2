#!/usr/bin/env python3
"""A build by `make -j4` in little RAM: alone, under the kernel's swap on zram with lz4, and under Ebb, by turns, at equal
total RAM. The cgroup's limit is found so that limit and zram's peak together come close to RAM; in each round Ebb gets for
the whole tree what the kernel's side took just before. Prints a Markdown table. What is built must be the same each time.

Builds Debian's kernel (linux-source-6.1, tinyconfig); with --project a generated program of many files. Needs root, a
memory cgroup controller and zram. Everything changed on the system is undone at the end, or by the next run of any
benchmark here.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]

import program  # noqa: E402
from rig import session  # noqa: E402
from rig.errors import MIB, Failed, Missing  # noqa: E402
from rig.machine import load_average, load_text, machine  # noqa: E402
from rig.page import put, told  # noqa: E402
from rig.process import Process  # noqa: E402
from rig.swap import Zram  # noqa: E402
from rig.text import nr_rounds, table  # noqa: E402

TREES = os.path.join(program.ROOT, "tests/trees")
sys.path.insert(0, TREES)

import build_cases  # noqa: E402

MARKS = ("<!-- what bench/micro/build.py printed -->", "<!-- end of what it printed for builds -->")
SYSTEMS = ("alone", "kernel", "ebb")
FILES = 60


def options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--ram", type=program.size, action="append", help="RAM in all, may be repeated (128M and 64M)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each (3)")
    parser.add_argument("--project", type=int, nargs="?", const=FILES, metavar="FILES", help=f"not the kernel: a program of {FILES} files")
    parser.add_argument("--timeout", type=int, default=3600, help="seconds for one build (3600)")
    parser.add_argument("--ebb", default=program.EBB, help="the command to measure")
    parser.add_argument("--json", metavar="FILE", help="write every figure there")
    parser.add_argument("--doc", metavar="FILE", help="put the report into FILE, between its two marks")
    parsed = parser.parse_args()
    parsed.ram = parsed.ram or [128 * MIB, 64 * MIB]
    return parsed


def say(text):
    print(f"bench-build: {text}", file=sys.stderr, flush=True)


class Build:
    """A source tree, and the command that builds it from nothing."""

    def __init__(self, chosen, directory):
        if chosen.project:
            self.tree, self.image = os.path.join(directory, "project"), "project"
            self.title = f"a program of {chosen.project} files"
            os.mkdir(self.tree)
            script = os.path.join(TREES, "workloads/project.py")
            subprocess.run([sys.executable, script, self.tree, str(chosen.project)], check=True)
        else:
            try:
                self.tree, self.image = build_cases.unpack_kernel(directory), "vmlinux"
            except build_cases.Failure as failure:
                raise Missing(str(failure)) from None
            self.title = "Linux 6.1, tinyconfig"
        os.environ.update(build_cases.KERNEL_IDENTITY)
        self.command = ["make", "-s", "-j4", "-C", self.tree, self.image]
        self.expected = None

    def clean(self, journal):
        process = Process(journal, ["make", "-s", "-C", self.tree, "clean"], stdout=subprocess.DEVNULL)
        process.wait(120)

    def check(self):
        found = build_cases.sha256(os.path.join(self.tree, self.image))
        self.expected = self.expected or found
        if found != self.expected:
            raise Failed(f"{self.image} is another one than before")


class Plan:
    """One amount of RAM; has the names that `program` looks for."""

    def __init__(self, chosen, ram, build):
        self.ebb, self.timeout, self.command = chosen.ebb, chosen.timeout, build.command
        # What was asked for, and what the kernel's side took last.
        self.wanted = self.ram = ram
        self.limit, self.failed = None, []
        # The limits with which the kernel killed the build before one was found; where that took more than RAM, Ebb
        # also runs with what was asked for.
        self.died, self.systems = [], SYSTEMS
        # By system, by round.
        self.runs = {system: {} for system in (*SYSTEMS, "asked")}


def one(system, plan, build, journal, zram, scratch):
    """One build from nothing."""
    build.clean(journal)
    if system == "alone":
        run = program.timed(plan.command, journal, plan.timeout)
    elif system == "kernel":
        run = program.under_kernel(plan.limit, plan.command, journal, zram, plan.timeout)
    else:
        ram = plan.wanted if system == "asked" else plan.ram
        run = program.under_ebb(plan, ram, plan.command, journal, scratch)._replace(held=ram)
    build.check()
    say(f"{plan.wanted // MIB} MiB, {system}: {run.wall:.1f} s, {run.cpu:.1f} s of processors, {run.system:.1f} s in the kernel")
    return run


def measure(chosen, build, journal, zram, scratch):
    plans = [Plan(chosen, ram, build) for ram in chosen.ram]
    # What is read for the first time comes from the disk: that is nobody's turn.
    build.clean(journal)
    program.timed(build.command, journal, chosen.timeout)
    for plan in plans:
        found = program.find_limit(plan, journal, zram, before=lambda: build.clean(journal))
        plan.limit, plan.died = found.limit, sorted(found.died)
        if found.total > plan.wanted * (1 + program.CLOSE):
            plan.systems = (*SYSTEMS, "asked")
    for nr in range(chosen.rounds):
        for plan in plans:
            for system in plan.systems:
                try:
                    run = plan.runs[system][nr] = one(system, plan, build, journal, zram, scratch)
                except Failed as failed:
                    say(f"{system}: failed: {failed}")
                    why = str(failed).replace(build.tree, os.path.basename(build.tree))
                    plan.failed.append(f"- {system}, round {nr + 1}: {why}")
                    continue
                if system == "kernel":
                    plan.ram = run.held
    return plans


def cells(plan, system):
    def figure(take):
        values = sorted(map(take, plan.runs[system].values()))
        return f"{statistics.median(values):.1f} ({values[0]:.1f}..{values[-1]:.1f})"

    def ratio(take):
        if system != "ebb":
            return ""
        both = plan.runs["ebb"].keys() & plan.runs["kernel"].keys()
        values = sorted(take(plan.runs["ebb"][nr]) / take(plan.runs["kernel"][nr]) for nr in both)
        return f"{statistics.median(values):.2f} ({values[0]:.2f}..{values[-1]:.2f})" if values else "-"

    title = {"alone": "all in RAM", "kernel": f"kernel, limit {plan.limit // MIB} MiB", "ebb": "Ebb", "asked": "Ebb, as asked for"}[system]
    held = statistics.median(run.held for run in plan.runs[system].values()) / MIB
    return [title, "" if system == "alone" else f"{held:.0f}", figure(lambda run: run.wall), figure(lambda run: run.cpu),
            figure(lambda run: run.system), ratio(lambda run: run.wall), ratio(lambda run: run.cpu)]


def report(chosen, build, plans, load):
    here = machine()
    lines = [
        f"{here['processor']}, {here['processors']} processors, {here['memory_mib']} MiB, Linux"
        f" {here['kernel']}, {here['date']}.",
        f"Command: `{' '.join(['bench/micro/build.py', *told(sys.argv[1:])])}`. {nr_rounds(chosen.rounds)}: median (least..most); ratios round by"
        " round.",
        load_text(load, here),
        "",
        f"`make -j4` of {build.title}. {build.image} is the same file in every run. The kernel's limit also holds page cache, which"
        " Ebb leaves to the system.",
    ]
    head = ["", "RAM in all, MiB", "wall, s", "processors, s", "in the kernel, s", "wall, Ebb/kernel", "processors, Ebb/kernel"]
    for plan in plans:
        lines += ["", f"With about {plan.wanted // MIB} MiB for all of it:", ""]
        lines.append(table(head, [cells(plan, system) for system in plan.systems if plan.runs[system]]))
        if plan.died:
            limits = ", ".join(str(limit // MIB) for limit in plan.died)
            lines += ["", f"During the search for the limit, the kernel's out-of-memory killer ended the build at limits of {limits} MiB."
                      f" The comparison uses {plan.limit // MIB} MiB: with this limit the build completed in the search, and came closest"
                      " to the RAM asked for."]
        lines += ["", "Failed:", "", *plan.failed] if plan.failed else []
    return "\n".join(lines)


def main():
    chosen = options()

    def work(journal, scratch):
        load = [load_average()]
        zram = Zram(journal)
        build = Build(chosen, scratch)
        plans = measure(chosen, build, journal, zram, scratch)
        return build, plans, [*load, load_average()]

    done = session.whole("bench-build", work)
    if isinstance(done, int):
        return done
    build, plans, load = done
    text = report(chosen, build, plans, load)
    print(text)
    if chosen.doc:
        put(chosen.doc, text, MARKS)
    if chosen.json:
        found = [{"ram": plan.wanted, "limit": plan.limit, "failed": plan.failed,
                  "runs": {name: [run._asdict() | {"round": nr} for nr, run in runs.items()] for name, runs in plan.runs.items()}}
                 for plan in plans]
        with open(chosen.json, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1)
            file.write("\n")
    return 1 if any(plan.failed for plan in plans) else 0


if __name__ == "__main__":
    sys.exit(main())
