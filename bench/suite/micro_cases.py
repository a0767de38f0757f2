"""Cases made of ebb-bench-micro, which checks every page that it reads.

usemem: after vm-scalability's swap-w-seq, swap-w-rand, anon-w-rand, swapin and anon-cow, by threads and processes; and what it
takes to unmap memory that is swapped out, which usemem prints as its free latency.
pageout: memory of one kind is filled, swapped out as a whole by MADV_PAGEOUT, and read again in order; RAM is not short.
copies: after fio's mmap engine: whole pages copied in and out at random, by Zipf's law and uniformly. fio maps a file on
tmpfs, which several of its processes share; this is private memory of one process.
access: single accesses, at random with and without favourites and in order, and what a miss costs.
swapping: memory of one kind is filled beyond RAM, and read again in order for the first time.
curve: the time of an access by how much fits.
"""

import json
import math

from case import LATENCIES, Case, Metric
from rig import place
from rig.errors import MIB, Failed
from rig.machine import available_mib

THROUGHPUT = Metric("throughput", "MiB/s", more_is_better=True, places=0)
OUT = Metric("out", "MiB/s", more_is_better=True, places=0)
IN = Metric("in", "MiB/s", more_is_better=True, places=0)
CPU = Metric("processor", "us/page", places=2)
ACCESS = Metric("access", "us", places=2)
MISS = Metric("miss", "us", places=2)
MISS_CPU = Metric("miss, processor", "us", places=2)
MISSED = Metric("missed", "%")
# Of an access without a fault it is nanoseconds.
FINE = [Metric(latency.name, latency.unit, places=2) for latency in LATENCIES]
PAGE_OUT, PAGE_OUT_CPU = Metric("out", "us/page", places=2), Metric("out, processor", "us/page", places=2)
PAGE_IN, PAGE_IN_CPU = Metric("in", "us/page", places=2), Metric("in, processor", "us/page", places=2)
PAGES_PER_MIB = 256


class Micro(Case):
    """One workload of ebb-bench-micro."""

    def __init__(self, table, name, workload, metrics, mib, limit_mib, threads=1, data="mixed", more=(), processes=1):
        super().__init__(name, metrics, limit_mib)
        self.table, self.workload, self.mib = table, workload, mib
        self.threads, self.processes, self.data, self.more = threads, processes, data, list(more)

    def ram_bytes(self, kernel_total_bytes):
        # Where RAM is not short for the kernel it is not for Ebb: pages and their copies, both at once.
        return kernel_total_bytes if self.limit_mib else (2 * self.mib + 64) << 20

    def resident_mib(self, where):
        """How much of the filling is not beyond RAM."""
        return self.limit_mib or self.mib

    def command(self, where, context):
        return [
            context.micro, self.workload, "--mib", str(self.mib), "--threads", str(self.threads),
            "--processes", str(self.processes), "--data", self.data,
            "--resident", str(min(self.resident_mib(where), self.mib)), *self.more,
        ]  # fmt: skip

    def run(self, where, context):
        found = json.loads(where.run(self.command(where, context), self.seconds).out)
        if where.ram_bytes and found["ebb"] is None:
            raise Failed("it ran without Ebb: the agent did not start")
        return self.values(found)

    def values(self, found):
        values = {THROUGHPUT.name: found["accesses_per_second"] / PAGES_PER_MIB, CPU.name: found["cpu_ns_per_access"] / 1e3}
        for metric, key in zip(LATENCIES, ("p50", "p99", "p999")):
            values[metric.name] = found["latency_ns"][key] / 1e3
        beyond = found["fill_beyond"]
        if beyond["wall_ns"]:
            values[OUT.name] = beyond["pages"] * 1e9 / beyond["wall_ns"] / PAGES_PER_MIB
            values[IN.name] = values[THROUGHPUT.name]
        return values


def usemem(quick):
    """Half of what is used fits; swap-w-seq and swap-w-rand go on filling when a quarter is filled."""
    mib = 64 if quick else 512
    seconds = ["--seconds", "0.2", "--warm", "0.1"] if quick else ["--seconds", "1", "--warm", "0.5"]
    metrics = [THROUGHPUT, *LATENCIES, CPU]
    # Threads and processes.
    teams = [(1, 1)] if quick else [(1, 1), (2, 1), (1, 2)]
    cases = []
    for title, workload, share in (
        ("swap-w-seq", "swap-out", 4), ("swap-w-rand", "swap-out-random", 4), ("anon-w-rand", "random-write", 2),
        ("swapin", "swap-in", 4), ("anon-cow", "cow", 2),
    ):  # fmt: skip
        for threads, processes in teams:
            # fork takes one thread along.
            if workload == "cow" and threads > 1:
                continue
            name = f"{title} {threads}T" if processes == 1 else f"{title} {processes}P"
            cases.append(
                Micro("usemem", name, workload, metrics, mib, mib // share, threads, more=seconds, processes=processes)
            )
    kinds, threads = (("mixed",), (2,)) if quick else (("mixed", "same", "zero", "hard"), (1, 2))
    return cases + [Free(data, n, mib) for data in kinds for n in threads]


class Free(Micro):
    """Unmapping what is swapped out."""

    def __init__(self, data, threads, mib):
        metrics = [Metric("free", "ns/page"), Metric("free, processor", "ns/page")]
        super().__init__("usemem", f"free {data} {threads}T", "free", metrics, mib, mib // 4, threads, data)

    def places(self, wanted):
        # With all in RAM nothing is swapped, and what the kernel takes to free memory is another question.
        return [name for name in super().places(wanted) if name != place.ALONE]

    def ram_bytes(self, kernel_total_bytes):
        return self.limit_mib * MIB if self.data == "hard" else kernel_total_bytes

    def values(self, found):
        return dict(zip((metric.name for metric in self.metrics), (found["ns_per_access"], found["cpu_ns_per_access"])))


class PageOut(Micro):
    """All of it is in RAM first, and then again as what it compresses to."""

    def __init__(self, kind, data, gib, quick):
        mib = 16 * gib if quick else gib << 10
        size = f"{mib} MiB" if quick else f"{gib} GiB"
        super().__init__("pageout", f"{kind}, {size}", "page-out", [OUT, IN, *LATENCIES[1:]], mib, None, data=data)

    def missing(self):
        # Content like a heap's takes half as much again once it is compressed.
        need_mib, has_mib = self.mib * 8 // 5 + 1024, available_mib()
        return f"it takes {need_mib} MiB of RAM, and {has_mib} are free" if has_mib < need_mib else None


def pageout(quick):
    kinds = [("zeros", "zero", 4), ("zeros", "zero", 10), ("one word a page", "same", 4), ("like a heap", "mixed", 4)]
    return [PageOut(kind, data, gib, quick) for kind, data, gib in kinds]


def copies(quick):
    mib = 64 if quick else 512
    seconds = ["--seconds", "0.2", "--warm", "0.1"] if quick else ["--seconds", "2", "--warm", "1"]
    cases = []
    for name, exponent in (("zipf 1.2", "1.2"), ("zipf 0.5", "0.5"), ("uniform", "0")):
        more = [*seconds, "--zipf", exponent]
        cases.append(Micro("copies", name, "random-rw", [THROUGHPUT, *LATENCIES], mib, mib // 2, threads=2, more=more))
    return cases


class Cell(Micro):
    """Single accesses or pages, measured in more detail; the engine alone can be asked for, too."""

    def places(self, wanted):
        return super().places(wanted) + [name for name in wanted if name == place.ENGINE]


class Access(Cell):
    """Steady use of more than fits. What a miss costs is what an access costs beyond one with all in RAM, by the share that missed."""

    def __init__(self, workload, threads, mib, more):
        first = [ACCESS, CPU] if workload.startswith("seq") else [MISS, MISS_CPU, ACCESS]
        super().__init__("access", f"{workload} {threads}T", workload, [*first, MISSED, *FINE], mib, mib * 2 // 5, threads=threads, more=more)
        self.aim = 4 if workload.startswith("seq") else 2

    def values(self, found):
        values = super().values(found)
        return values | {ACCESS.name: found["ns_per_access"] / 1e3, MISSED.name: found["pages_in_per_access"] * 100}

    def derived(self, values, alone):
        # Few misses make their cost a quotient of two small differences.
        if values[MISSED.name] <= 1 or not alone:
            return {}
        share = values[MISSED.name] / 100
        pairs = ((MISS, ACCESS), (MISS_CPU, CPU))
        return {miss.name: (values[of.name] - alone[of.name]) / share for miss, of in pairs}


def accesses(quick):
    mib = 128 if quick else 256
    seconds = ["--seconds", "0.25", "--warm", "0.2"] if quick else ["--seconds", "0.4", "--warm", "0.3"]
    workloads = ("random-read", "random-write", "zipf-read", "seq-read", "seq-write")
    return [Access(workload, threads, mib, seconds) for workload in workloads for threads in ((2,) if quick else (1, 2))]


class Swapping(Cell):
    """Filling beyond RAM, and the first reading of it, each by itself."""

    def __init__(self, data, threads, mib):
        metrics = [PAGE_OUT, PAGE_OUT_CPU, PAGE_IN, PAGE_IN_CPU]
        super().__init__("swapping", f"{data} {threads}T", "swap-in", metrics, mib, mib // 4, threads=threads, data=data)

    def places(self, wanted):
        # With all in RAM nothing is swapped.
        return [name for name in super().places(wanted) if name != place.ALONE]

    def ram_bytes(self, kernel_total_bytes):
        # Random data is as large in zram as outside: with as much RAM in all Ebb would swap nothing.
        return self.limit_mib * MIB if self.data == "hard" else kernel_total_bytes

    def resident_mib(self, where):
        return math.ceil(where.ram_bytes / MIB) if where.ram_bytes else self.limit_mib

    def values(self, found):
        values, beyond = {}, found["fill_beyond"]
        if beyond["pages"]:
            values[PAGE_OUT.name] = beyond["wall_ns"] / beyond["pages"] / 1e3
            values[PAGE_OUT_CPU.name] = beyond["cpu_ns"] / beyond["pages"] / 1e3
        if found["pages_in"]:
            values[PAGE_IN.name] = found["wall_ns"] / found["pages_in"] / 1e3
            values[PAGE_IN_CPU.name] = found["cpu_ns_per_access"] * found["accesses"] / found["pages_in"] / 1e3
        return values


def swapping(quick):
    mib = 128 if quick else 256
    return [Swapping(data, threads, mib) for data in ("zero", "mixed", "hard") for threads in ((2,) if quick else (1, 2))]


class Curve(Micro):
    """A workload at one amount of RAM: a part of what it uses."""

    table = "curve"

    def __init__(self, workload, share, mib, more):
        super().__init__("curve", f"{workload} {share} %", workload, [ACCESS], mib, mib * share // 100, more=more)
        self.curve, self.share = workload, share

    def places(self, wanted):
        # All in RAM is the same at each point.
        return [name for name in super().places(wanted) if name != "none" or self.share == 100]

    def values(self, found):
        return {ACCESS.name: found["ns_per_access"] / 1e3}


def curves(quick):
    mib = 64 if quick else 256
    seconds = ["--seconds", "0.2", "--warm", "0.1"] if quick else ["--seconds", "1", "--warm", "0.5"]
    shares = (100, 40) if quick else (100, 75, 50, 33, 25, 15, 10)
    workloads = ("zipf-read",) if quick else ("zipf-read", "random-read", "random-write", "seq-read")
    return [Curve(workload, share, mib, seconds) for workload in workloads for share in shares]
