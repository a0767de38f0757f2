"""Cases made of ebb-bench-micro, which checks every page that it reads.

usemem: after vm-scalability's swap-w-seq, swap-w-rand, anon-w-rand, swapin and anon-cow, by threads and processes.
pageout: memory of one kind is filled, swapped out as a whole by MADV_PAGEOUT, and read again in order; RAM is not short.
copies: after fio's mmap engine: whole pages copied in and out at random, by Zipf's law and uniformly. fio maps a file on
tmpfs, which several of its processes share; this is private memory of one process.
"""

import json

from case import LATENCIES, Case, Metric
from rig.machine import available_mib

THROUGHPUT = Metric("throughput", "MiB/s", more_is_better=True, places=0)
OUT = Metric("out", "MiB/s", more_is_better=True, places=0)
IN = Metric("in", "MiB/s", more_is_better=True, places=0)
CPU = Metric("processor", "us/page", places=2)
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

    def command(self, context):
        return [
            context.micro, self.workload, "--mib", str(self.mib), "--threads", str(self.threads),
            "--processes", str(self.processes), "--data", self.data,
            "--resident", str(min(self.limit_mib or self.mib, self.mib)), *self.more,
        ]  # fmt: skip

    def run(self, where, context):
        return self.values(json.loads(where.run(self.command(context), self.seconds).out))

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
    return cases


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


class Curve(Micro):
    """A workload at one amount of RAM: a part of what it uses."""

    table = "curve"

    def __init__(self, workload, share, mib, more):
        metrics = [Metric("access", "us", places=2)]
        super().__init__("curve", f"{workload} {share} %", workload, metrics, mib, mib * share // 100, more=more)
        self.curve, self.share = workload, share

    def places(self, wanted):
        # All in RAM is the same at each point.
        return [name for name in super().places(wanted) if name != "none" or self.share == 100]

    def values(self, found):
        return {"access": found["ns_per_access"] / 1e3}


def curves(quick):
    mib = 64 if quick else 256
    seconds = ["--seconds", "0.2", "--warm", "0.1"] if quick else ["--seconds", "1", "--warm", "0.5"]
    shares = (100, 40) if quick else (100, 75, 50, 33, 25, 15, 10)
    workloads = ("zipf-read",) if quick else ("zipf-read", "random-read", "random-write", "seq-read")
    return [Curve(workload, share, mib, seconds) for workload in workloads for share in shares]
