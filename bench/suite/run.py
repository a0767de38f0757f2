#!/usr/bin/env python3
"""Runs the workloads by which swap is judged, with all the RAM they want, under the kernel's swap and under Ebb, by turns in
one run, with the total RAM equal: Ebb's --ram is the kernel's cgroup limit plus the most RAM that its swap took just before.
Prints one table for each kind of workload, and keeps every figure as JSON.

Needs root, a memory cgroup controller and zram. What is missing for one workload is said, and the others run. Everything
that it changes on the system is undone at its end, or by the next run if it was killed.
"""

import argparse
import importlib.util
import json
import os
import shutil
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]

import allocators  # noqa: E402
import analytics  # noqa: E402
import builds  # noqa: E402
import disk  # noqa: E402
import micro_cases  # noqa: E402
import noswap  # noqa: E402
import programs_cases  # noqa: E402
import redis_cases  # noqa: E402
import report  # noqa: E402
import sysbench_cases  # noqa: E402
from case import Context  # noqa: E402
from rig import page, place, session, swap  # noqa: E402
from rig.errors import Failed, Killed, Missing  # noqa: E402
from rig.machine import load_average, machine, settings  # noqa: E402
from rig.progress import Progress  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(HERE))
TARGET = os.path.join(os.environ.get("CARGO_TARGET_DIR") or os.path.join(ROOT, "target"), "release")
HUGE_PAGES = "/sys/kernel/mm/transparent_hugepage/enabled"
DEFAULT = (place.ALONE, "zram-lz4", place.EBB)
# Rounds unless told: the more, the shorter.
ROUNDS, ROUNDS_QUICK = 5, 1


def all_cases(quick):
    return [
        *micro_cases.usemem(quick), *micro_cases.pageout(quick), *redis_cases.cases(quick), *sysbench_cases.cases(quick),
        *builds.cases(quick), *micro_cases.copies(quick), *micro_cases.accesses(quick), *micro_cases.swapping(quick),
        *allocators.cases(quick), *analytics.cases(quick), *noswap.cases(quick), *disk.cases(quick), *programs_cases.cases(quick), *micro_cases.curves(quick),
    ]  # fmt: skip


def options(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--only", action="append", default=[], metavar="TEXT", help="only tables or rows with TEXT in their names; may be repeated")
    parser.add_argument("--rounds", type=int, help=f"rounds ({ROUNDS}; {ROUNDS_QUICK} with --quick; fewer for rows that take minutes)")
    parser.add_argument("--quick", action="store_true", help="little data, to see that everything works: its times say nothing")
    # A percent sign begins a value in argparse's own text.
    kinds, default = (", ".join(names).replace("%", "%%") for names in (swap.KINDS, DEFAULT))
    parser.add_argument("--places", default=",".join(DEFAULT), help=f"where to run: none, {kinds}, ebb, engine ({default}); engine is Ebb without the agent, where a row can; Ebb gets the RAM of the first kernel place")
    parser.add_argument("--thp", choices=("never", "madvise", "always"), help="which memory gets huge pages in all places: sets the host's switch meanwhile, which Ebb follows (as the host has it)")
    parser.add_argument("--json", metavar="FILE", help="write every figure there")
    parser.add_argument("--from", dest="source", metavar="FILE", help="measure nothing; report what a run has written there with --json")
    parser.add_argument("--join", metavar="FILE", help="report also the tables that an earlier run wrote there with --json, and this one has not")
    parser.add_argument("--doc", metavar="FILE", help="put the report into FILE, between its two marks")
    parser.add_argument("--plots", metavar="DIR", help="draw the plots there")
    parser.add_argument("--list", action="store_true", help="name the rows, and say which cannot run here")
    parser.add_argument("--ebb", default=os.path.join(TARGET, "ebb"), help="the command to measure")
    parser.add_argument("--micro", default=os.path.join(TARGET, "ebb-bench-micro"), help="the program that uses memory")
    parsed = parser.parse_args(arguments)
    parsed.places = parsed.places.split(",")
    unknown = set(parsed.places) - {place.ALONE, *place.OURS, *swap.KINDS}
    if unknown:
        parser.error(f"--places: there is no {', '.join(sorted(unknown))}")
    if set(place.OURS) & set(parsed.places) and not any(name in swap.KINDS for name in parsed.places):
        parser.error("--places: Ebb needs a kernel place beside it, which says how much RAM it gets")
    if parsed.rounds is None:
        parsed.rounds = ROUNDS_QUICK if parsed.quick else ROUNDS
    if parsed.rounds < 1:
        parser.error("--rounds: at least one")
    return parsed


def chosen_cases(chosen):
    cases = all_cases(chosen.quick)
    return [case for case in cases if not chosen.only or any(text in case.table or text in case.name for text in chosen.only)]


def in_order(case, wanted):
    """The kernel before Ebb, which gets as much RAM as it had."""
    found = case.places(wanted)
    return sorted(found, key=lambda name: name in place.OURS)


def first_kernel(case, wanted):
    """The kernel's place that says how much RAM Ebb gets, if a case runs in one."""
    return next((name for name in case.places(wanted) if name in swap.KINDS), None)


def run_one(case, name, context, ram_bytes):
    """One run of a case in a place: what it found, with the RAM it had."""
    where = place.make(name, context.journal, case.limit_of(context), ram_bytes, context.ebb, context.scratch, case.contained, case.on_disk)
    try:
        try:
            with place.blamed(where):
                found = case.run(where, context)
            where.check()
        except Killed as killed:
            # What was too little for the kernel's swap is what Ebb gets.
            return {"killed": str(killed), "total_bytes": where.total_bytes()}
        return {"values": found, "total_bytes": where.total_bytes(), **where.beside(), "account": where.account()}
    finally:
        where.close()


def outcome(case, name, context, ram_bytes):
    try:
        return run_one(case, name, context, ram_bytes)
    except (Missing, Failed, OSError) as failed:
        return {"failed": str(failed)}


def prepared(cases, context, progress, skipped):
    """The cases that can run here; why the others cannot goes into `skipped`."""
    ready = []
    for case in cases:
        why = case.missing()
        if not why:
            try:
                case.prepare(context)
            except (Missing, Failed, OSError) as error:
                why = str(error)
        if why:
            progress.say(f"{case.table}, {case.name}: left out: {why}")
            skipped.append({"table": case.table, "case": case.name, "why": why})
        else:
            ready.append(case)
    return ready


def measure(chosen, cases, context, skipped):
    """All rounds: a list of {table, case, place, round, ...}."""
    progress = Progress([])
    cases = prepared(cases, context, progress, skipped)
    turns = [
        (case, name, nr)
        for nr in range(chosen.rounds)
        for case in cases
        if nr < case.rounds_max
        for name in in_order(case, chosen.places)
    ]
    progress = Progress([(case.table, case.name, name) for case, name, _ in turns])
    results, had = [], {}
    for case, name, nr in turns:
        progress.begin((case.table, case.name, name))
        key = (case.table, case.name)
        kernel_bytes = had.get(key)
        if name in place.OURS and kernel_bytes is None and not case.contained:
            found = {"failed": "the kernel's run failed, so that nothing says how much RAM to give"}
        else:
            found = outcome(case, name, context, case.ram_bytes(kernel_bytes) if name in place.OURS else None)
        if name == first_kernel(case, chosen.places):
            had[key] = found.get("total_bytes")
        results.append({"table": case.table, "case": case.name, "place": name, "round": nr, **found})
        bad = found.get("failed") or found.get("killed")
        if bad:
            progress.say(f"{case.table}, {case.name}, {name}: {bad}")
        # What counts may be known at the end only.
        first = next((metric for metric in case.metrics if metric.name in found.get("values", {})), None)
        progress.end(f"{found['values'][first.name]:.{first.places}f} {first.unit}" if first else "")
    progress.close()
    return results


def measured(chosen):
    """The whole run: what it found, or a status to end with."""
    agent = os.path.join(os.path.dirname(os.path.abspath(chosen.ebb)), "libebb_agent.so")
    for path in (chosen.ebb, agent, chosen.micro):
        if not os.path.exists(path):
            print(f"bench: {path} is missing; build all that it needs with `make bench`, which goes on to run it", file=sys.stderr)
            return 1

    def work(journal, scratch):
        context = Context(journal, scratch, os.path.abspath(chosen.ebb), os.path.abspath(chosen.micro), chosen.quick)
        if chosen.thp:
            swap.set_to(journal, HUGE_PAGES, chosen.thp)
        # Says at once what is missing for all of it.
        for kind in chosen.places:
            if kind in swap.KINDS:
                swap.KINDS[kind](journal, scratch).close()
        found = {"arguments": page.told(sys.argv[1:]), "machine": machine(), "settings": settings(), "load": [load_average()]}
        found["places"], found["rounds"], found["quick"], found["skipped"] = chosen.places, chosen.rounds, chosen.quick, []
        found["runs"] = measure(chosen, chosen_cases(chosen), context, found["skipped"])
        found["load"].append(load_average())
        return found

    return session.whole("bench", work)


def main():
    chosen = options()
    if chosen.list:
        for case in chosen_cases(chosen):
            why = case.missing()
            print(f"{case.table:10} {case.name}{'   left out: ' + why if why else ''}")
        return 0
    if chosen.source:
        with open(chosen.source, encoding="utf-8") as file:
            found = json.load(file)
    else:
        found = measured(chosen)
        if isinstance(found, int):
            return found
    if chosen.join:
        with open(chosen.join, encoding="utf-8") as file:
            earlier = json.load(file)
        try:
            found = report.joined(found, earlier)
        except Failed as failed:
            print(f"bench: --join {chosen.join}: {failed}", file=sys.stderr)
            return 1
    if chosen.json:
        with open(chosen.json + ".new", "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1)
            file.write("\n")
        shutil.move(chosen.json + ".new", chosen.json)
    cases = {(case.table, case.name): case for case in all_cases(found["quick"])}
    text = report.text(found, cases)
    print(text)
    if chosen.doc:
        page.put(chosen.doc, text, report.MARKS)
    if chosen.plots and importlib.util.find_spec("matplotlib"):
        import plots

        for path in plots.draw(found, cases, chosen.plots):
            print(f"bench: drew {path}", file=sys.stderr)
    elif chosen.plots:
        print("bench: no plots: matplotlib is not installed: apt-get install python3-matplotlib", file=sys.stderr)
    return 1 if any("failed" in run for run in found["runs"]) else 0


if __name__ == "__main__":
    sys.exit(main())
