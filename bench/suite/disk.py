"""A disk behind memory.

disk: much more data than a limit that counts everything: anonymous memory, page cache and what the kernel has for the run. The
kernel swaps to a file, Ebb to one in the same directory, inside the same limit. fio says what the disk itself does, past the page
cache.
zswap: data like a heap's, more than fits into RAM once it is compressed. The kernel's zswap holds what 1 % of the machine's RAM
holds, the rest goes to its swap file. Ebb has as much RAM in all.
"""

import json
import os
import shutil

from case import LATENCIES, Metric
from micro_cases import ACCESS, CPU, OUT, Micro
from rig import place
from rig.errors import MIB, Failed
from rig.machine import machine

THROUGHPUT = Metric("throughput", "MiB/s", more_is_better=True, places=0)
PAGE_BYTES = 4096
# zswap that may fill 1 % of RAM, and by how much data like a heap's is smaller in it.
FULL, RATIO = "zswap-1%", 3


class Disk(Micro):
    """One workload, and what fio is to do beside it."""

    contained = on_disk = True

    def __init__(self, name, workload, metrics, mib, limit_mib, fio=None, threads=1, data="hard", more=()):
        super().__init__("disk", name, workload, metrics, mib, limit_mib, threads, data, more)
        self.fio = fio

    def places(self, wanted):
        return [*([place.DEVICE] if self.fio and shutil.which("fio") else []), "swap-file", *([place.EBB] if place.EBB in wanted else [])]

    def ram_bytes(self, kernel_total_bytes):
        return self.limit_mib * MIB * 3 // 4

    def run(self, where, context):
        return self.of_device(where, context) if where.name == place.DEVICE else super().run(where, context)

    def of_device(self, where, context):
        path = os.path.join(context.directory("fio"), "data")
        job = [
            "fio", "--name=disk", "--output-format=json", "--direct=1", "--ioengine=psync", "--thread", "--group_reporting",
            f"--filename={path}", f"--size={self.mib}m", f"--numjobs={self.threads}", *self.fio,
        ]  # fmt: skip
        found = json.loads(where.run(job, self.seconds).out)["jobs"][0]
        side = found["read"] if found["read"]["total_ios"] else found["write"]
        if not side["bw_bytes"]:
            raise Failed("fio moved nothing")
        mib_per_second = side["bw_bytes"] / MIB
        latency = {key: side["clat_ns"]["percentile"][key] / 1e3 for key in ("50.000000", "99.000000", "99.900000")}
        values = dict(zip((metric.name for metric in LATENCIES), latency.values()))
        values[THROUGHPUT.name] = values[OUT.name] = mib_per_second
        values[ACCESS.name] = self.threads * PAGE_BYTES / side["bw_bytes"] * 1e6
        return {metric.name: values[metric.name] for metric in self.metrics if metric.name in values}

    def values(self, found):
        values = super().values(found)
        return values | {ACCESS.name: found["ns_per_access"] / 1e3}


class Tiers(Disk):
    """RAM first, then the disk."""

    contained = False

    def __init__(self, name, workload, metrics, mib, limit_mib, threads, more, quick):
        super().__init__(name, workload, metrics, mib, limit_mib, threads=threads, data="mixed", more=more)
        self.table, self.quick = "zswap", quick

    def places(self, wanted):
        return [FULL, *([place.EBB] if place.EBB in wanted else [])]

    def ram_bytes(self, kernel_total_bytes):
        return kernel_total_bytes

    def missing(self):
        # The least that zswap can be told to hold.
        pool_mib = machine()["memory_mib"] // 100
        holds_mib = RATIO * pool_mib + self.limit_mib
        return f"zswap holds most of it in 1 % of RAM, {pool_mib} MiB" if holds_mib > self.mib * 3 // 4 and not self.quick else None


def cases(quick):
    """Sizes in MiB."""
    mib, limit = (160, 64) if quick else (1024, 128)
    seconds = ["--seconds", "0.3", "--warm", "0.2"] if quick else ["--seconds", "5", "--warm", "3"]
    run = ["--runtime=1" if quick else "--runtime=5", "--time_based"]
    random, sequence = ["--rw=randread", "--bs=4k", *run], ["--rw=read", "--bs=1m", *run]
    single, stream, filling = [ACCESS, *LATENCIES, CPU], [THROUGHPUT, CPU], [OUT, CPU]
    heap = {"data": "mixed", "more": seconds}
    disk = [
        Disk("random-read 1T", "random-read", single, mib, limit, random, more=seconds),
        Disk("fill 1T", "swap-out", filling, mib, limit, ["--rw=write", "--bs=1m"]),
        Disk("random-read 8T", "random-read", single, mib, limit, random, threads=8, more=seconds),
        Disk("random-write 1T", "random-write", single, mib, limit, more=seconds),
        Disk("seq-read 1T", "seq-read", stream, mib, limit, sequence, more=seconds),
        Disk("random-read 1T, like a heap", "random-read", single, mib, limit, **heap),
        Disk("seq-read 1T, like a heap", "seq-read", stream, mib, limit, **heap),
        Disk("fill 1T, like a heap", "swap-out", filling, mib, limit, data="mixed"),
    ]
    # The swap file has no room for more than the first of them.
    mib, limit = (160, 64) if quick else (4096, 384)
    tiers = [
        Tiers(f"{name} {threads}T", workload, metrics, mib, limit, threads, more, quick)
        for name, workload, metrics, more in (
            ("fill", "swap-out", filling, ()), ("random-read", "random-read", single, seconds), ("seq-read", "seq-read", stream, seconds),
        )
        for threads in (1, 2)
    ]  # fmt: skip
    return disk[:2] + tiers[:1] if quick else disk + tiers
