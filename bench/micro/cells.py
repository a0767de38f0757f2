"""What is measured: cells of workload, data and threads, each under several systems in turn."""

import json
import math
import os
import statistics
from dataclasses import dataclass, field

from rig.errors import MIB, Failed
from rig.figures import Figure
from rig.group import Group
from rig.process import json_of

TIMEOUT_S = 120
SYSTEMS = ("none", "kernel", "ebb", "engine")


@dataclass(frozen=True)
class Cell:
    """One line of the table."""

    workload: str
    data: str
    threads: int

    @property
    def is_swap(self):
        return self.workload == "swap-in"

    @property
    def name(self):
        return f"{self.workload} {self.data} {self.threads}T"


ACCESS = [
    Cell(workload, "mixed", threads)
    for workload, nr_threads in (
        ("random-read", (1, 2)),
        ("random-write", (1, 2)),
        ("zipf-read", (1, 2)),
        ("seq-read", (1, 2)),
        ("seq-write", (1, 2)),
    )
    for threads in nr_threads
]
SWAP = [Cell("swap-in", data, threads) for data in ("zero", "mixed", "hard") for threads in (1, 2)]


@dataclass
class Plan:
    """How large and how long."""

    mib: int
    access_limit_mib: int
    swap_limit_mib: int
    seconds: float
    warm: float
    ebb: str
    bench: str
    scratch: str
    systems: tuple
    stats: dict = field(default_factory=dict)

    def limit_mib(self, cell):
        return self.swap_limit_mib if cell.is_swap else self.access_limit_mib


def budget_bytes(plan, cell, zram_peak_bytes):
    """Ebb's --ram: all the RAM that the kernel had. Random data is as large in zram as outside, so with as much Ebb
    would never swap; there it gets the cgroup's limit alone, and its file takes the rest."""
    limit = plan.limit_mib(cell) * MIB
    return limit if cell.data == "hard" else limit + zram_peak_bytes


def command(plan, cell, resident_mib):
    return [
        plan.bench, cell.workload, "--data", cell.data, "--threads", str(cell.threads), "--mib", str(plan.mib),
        "--seconds", str(plan.seconds), "--warm", str(plan.warm), "--resident", str(resident_mib),
    ]  # fmt: skip


def run_none(plan, cell, journal):
    return json_of(journal, command(plan, cell, plan.limit_mib(cell)), TIMEOUT_S)


def run_kernel(plan, cell, journal, zram):
    limit = plan.limit_mib(cell)
    zram.reset_peak()
    group = Group(journal, limit * MIB)
    try:
        found = json_of(journal, group.wrap(command(plan, cell, limit)), TIMEOUT_S)
        found["zram_peak_bytes"] = zram.memory()["peak_bytes"]
        found["total_bytes"] = limit * MIB + found["zram_peak_bytes"]
        found["cgroup_peak_bytes"] = group.peak_bytes()
    finally:
        group.close()
    return found


def run_ebb(plan, cell, journal, ram_bytes, system):
    resident = command(plan, cell, math.ceil(ram_bytes / MIB))
    if system == "engine":
        found = json_of(journal, [*resident, "--in-process", str(ram_bytes)], TIMEOUT_S)
    else:
        stats = os.path.join(plan.scratch, "stats.json")
        run = [plan.ebb, "run", "--ram", str(ram_bytes), "--stats", stats, "-q", "--", *resident]
        found = json_of(journal, run, TIMEOUT_S)
        if found["ebb"] is None:
            raise Failed("it ran without Ebb: the agent did not start")
        with open(stats, encoding="utf-8") as file:
            whole = json.load(file)
        found["max_rss_bytes"] = whole["usage"]["max_rss_bytes"]
        found["held_bytes"] = whole["counters"]["peak_held_bytes"]
        if whole["error"]:
            raise Failed(whole["error"])
    found["total_bytes"] = ram_bytes
    return found


def run_round(plan, cells, journal, zram, nr, results, say):
    """One round: every cell under every system, one system right after the other."""
    for cell in cells:
        of_cell = results.setdefault(cell, {})
        ram_bytes = None
        for system in plan.systems:
            if system == "none" and (cell.is_swap or nr % 2 == 1):
                continue
            try:
                if system == "none":
                    found = run_none(plan, cell, journal)
                elif system == "kernel":
                    found = run_kernel(plan, cell, journal, zram)
                    ram_bytes = budget_bytes(plan, cell, found["zram_peak_bytes"])
                elif ram_bytes is None:
                    continue
                else:
                    found = run_ebb(plan, cell, journal, ram_bytes, system)
            except Failed as failure:
                say(f"{cell.name}, {system}: failed: {failure}")
                found = {"failed": str(failure)}
            found["round"] = nr
            of_cell.setdefault(system, []).append(found)


def measures(cell, found, hit):
    """What one run comes to, times in nanoseconds. `hit` is an access where everything fits: time, processor time."""
    if "failed" in found:
        return {}
    if cell.is_swap:
        beyond = found["fill_beyond"]
        made = {}
        if beyond["pages"]:
            made["out"] = beyond["wall_ns"] / beyond["pages"]
            made["out cpu"] = beyond["cpu_ns"] / beyond["pages"]
        if found["pages_in"]:
            made["in"] = found["wall_ns"] / found["pages_in"]
            made["in cpu"] = found["cpu_ns_per_access"] * found["accesses"] / found["pages_in"]
        return made
    made = {
        "access": found["ns_per_access"],
        "access cpu": found["cpu_ns_per_access"],
        "per second": found["accesses_per_second"],
        "missing": found["pages_in_per_access"],
        **{name: found["latency_ns"][name] for name in ("p50", "p99", "p999")},
    }
    # Few misses make their cost a quotient of two small differences.
    if found["pages_in_per_access"] > 0.01 and hit:
        made["miss"] = (found["ns_per_access"] - hit[0]) / found["pages_in_per_access"]
        made["miss cpu"] = (found["cpu_ns_per_access"] - hit[1]) / found["pages_in_per_access"]
    return made


def digest(results):
    """{cell: {system: {measure: Figure}}}, with the ratios to the kernel round by round as measures `/NAME`."""
    digested = {}
    for cell, of_cell in results.items():
        whole = [run for run in of_cell.get("none", []) if "failed" not in run]
        hit = None
        if whole:
            hit = [statistics.median(run[name] for run in whole) for name in ("ns_per_access", "cpu_ns_per_access")]
        kernel = {run["round"]: measures(cell, run, hit) for run in of_cell.get("kernel", [])}
        figures = digested.setdefault(cell, {})
        for system, runs in of_cell.items():
            values = {}
            for run in runs:
                for name, value in measures(cell, run, hit).items():
                    values.setdefault(name, []).append(value)
                    against = kernel.get(run["round"], {}).get(name)
                    if system != "kernel" and against:
                        values.setdefault("/" + name, []).append(value / against)
            figures[system] = {name: Figure(list_of) for name, list_of in values.items()}
    return digested
