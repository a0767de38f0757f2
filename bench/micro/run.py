#!/usr/bin/env python3
"""Measures Ebb beside the kernel's own swap on zram with lz4, in one interleaved run, with the total RAM equal: Ebb's
--ram is the cgroup's limit plus the most RAM that zram took for it. Prints a report, and every figure as JSON.

Needs root, a memory cgroup controller and zram; says so and leaves where one is missing. Everything that it changes on
the system is undone at its end, or by the next run if it was killed.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]

import cells  # noqa: E402
import tables  # noqa: E402
from rig import redis, session  # noqa: E402
from rig.machine import load_average, load_text, machine, settings  # noqa: E402
from rig.swap import Zram  # noqa: E402
from rig.page import put, told  # noqa: E402
from rig.text import nr_rounds  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MARKS = ("<!-- what bench/micro/run.py printed -->", "<!-- end of what it printed -->")
TARGET = os.path.join(os.environ.get("CARGO_TARGET_DIR") or os.path.join(ROOT, "target"), "release")


def options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="one short round, and an eighth of redis's data")
    parser.add_argument("--rounds", type=int, help="rounds (5; 1 with --quick)")
    parser.add_argument("--redis-rounds", type=int, help="rounds of redis (1; 0 leaves it out)")
    parser.add_argument("--json", metavar="FILE", help="write every figure there")
    parser.add_argument("--doc", metavar="FILE", help="put the report into FILE, between its two marks")
    parser.add_argument("--mib", type=int, help="data of each workload but redis (256; 128 with --quick)")
    parser.add_argument("--only", metavar="TEXT", help="only the lines with TEXT in their name, such as 'random-read'")
    parser.add_argument(
        "--systems", default="none,kernel,ebb", help="which to measure; engine is Ebb without the agent (none,kernel,ebb)"
    )
    parser.add_argument("--ebb", default=os.path.join(TARGET, "ebb"), help="the command to measure")
    parser.add_argument("--no-build", action="store_true", help="take ebb-bench-micro as it was built")
    parsed = parser.parse_args()
    parsed.systems = tuple(parsed.systems.split(","))
    if not set(parsed.systems) <= set(cells.SYSTEMS):
        parser.error(f"--systems: choose from {', '.join(cells.SYSTEMS)}")
    if parsed.rounds is None:
        parsed.rounds = 1 if parsed.quick else 5
    if parsed.mib is None:
        parsed.mib = 128 if parsed.quick else 256
    if parsed.redis_rounds is None:
        parsed.redis_rounds = 1
    return parsed


def say(text):
    print(f"bench-micro: {text}", file=sys.stderr, flush=True)


def build(chosen):
    bench = os.path.join(TARGET, "ebb-bench-micro")
    if not chosen.no_build and shutil.which("cargo"):
        subprocess.run(["cargo", "build", "--release", "-q", "-p", "ebb-bench-micro"], cwd=ROOT, check=True)
    if not os.path.exists(bench):
        sys.exit(f"bench-micro: {bench} is missing; build it with `cargo build --release -p ebb-bench-micro`")
    return bench


def make_plan(chosen, scratch, bench):
    systems = chosen.systems
    agent = os.path.join(os.path.dirname(chosen.ebb), "libebb_agent.so")
    if "ebb" in systems and not (os.path.exists(chosen.ebb) and os.path.exists(agent)):
        say(f"{chosen.ebb} or libebb_agent.so beside it is missing: Ebb is not measured; `make build` makes them")
        systems = tuple(system for system in systems if system != "ebb")
    seconds, warm = (0.25, 0.2) if chosen.quick else (0.4, 0.3)
    return cells.Plan(
        mib=chosen.mib,
        access_limit_mib=chosen.mib * 2 // 5,
        swap_limit_mib=chosen.mib // 4,
        seconds=seconds,
        warm=warm,
        ebb=chosen.ebb,
        bench=bench,
        scratch=scratch,
        systems=systems,
    )


def measure(chosen, plan, journal, zram):
    """All rounds; (results of cells, results of redis, sizes of redis)."""
    results, redis_results = {}, {}
    chosen_cells = [cell for cell in cells.ACCESS + cells.SWAP if not chosen.only or chosen.only in cell.name]
    sizes = (60_000, 36, 90_000) if chosen.quick else (500_000, 300, 300_000)
    with_redis = chosen.redis_rounds > 0 and (not chosen.only or chosen.only in "redis")
    why = redis.missing() if with_redis else None
    if why:
        say(f"redis is left out: {why}")
        with_redis = False
    for nr in range(max(chosen.rounds, chosen.redis_rounds)):
        start = time.monotonic()
        if nr < chosen.rounds:
            cells.run_round(plan, chosen_cells, journal, zram, nr, results, say)
        if with_redis and nr < chosen.redis_rounds:
            redis.run_round(plan, journal, zram, nr, sizes, redis_results, say)
        say(f"round {nr + 1} of {chosen.rounds}: {time.monotonic() - start:.0f} s")
    return results, redis_results, sizes


def report(chosen, plan, found, digest, results, redis_results, sizes):
    machine, kernel = found["machine"], found["settings"]
    command = " ".join(["bench/micro/run.py", *told(found["arguments"])])
    lines = [
        f"{machine['processor']}, {machine['processors']} processors, {machine['memory_mib']} MiB, Linux"
        f" {machine['kernel']}, {machine['date']}.",
        f"Command: `{command}`. {nr_rounds(chosen.rounds)}, redis {nr_rounds(chosen.redis_rounds)}: median"
        " (least..most); ratios round by round.",
        f"Kernel: zram lz4, {', '.join(f'{name} {value}' for name, value in kernel.items())}.",
        load_text(found["load"], machine),
        "",
        *tables.aim(digest, plan),
    ]
    if any(cell in results for cell in cells.ACCESS):
        lines += tables.access_report(digest, results, plan)
    if any(cell in results for cell in cells.SWAP):
        lines += tables.swap_report(digest, results, plan)
    if redis_results:
        lines += tables.redis_report(redis_results, sizes, plan)
    lines += tables.failures(results, redis_results)
    return "\n".join(lines)


def main():
    chosen = options()

    def work(journal, scratch):
        plan = make_plan(chosen, scratch, build(chosen))
        load = load_average()
        zram = Zram(journal)
        found = {"arguments": sys.argv[1:], "machine": machine(), "settings": settings()}
        results, redis_results, sizes = measure(chosen, plan, journal, zram)
        found["load"] = [load, load_average()]
        return found, plan, results, redis_results, sizes

    done = session.whole("bench-micro", work)
    if isinstance(done, int):
        return done
    found, plan, results, redis_results, sizes = done
    digest = cells.digest(results)
    text = report(chosen, plan, found, digest, results, redis_results, sizes)
    print(text)
    if chosen.doc:
        put(chosen.doc, text, MARKS)
    if chosen.json:
        found["redis"] = redis_results
        found["cells"] = [
            {"workload": cell.workload, "data": cell.data, "threads": cell.threads, "runs": of_cell}
            for cell, of_cell in results.items()
        ]
        with open(chosen.json, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1)
            file.write("\n")
    bad = tables.failures(results, redis_results)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
