"""Threads that allocate, resize and free blocks of many sizes at random, by allocator: how they grow, give memory back and meet
in the address space. Some rows run beside loops that take the processors away."""

import os
import shutil
import subprocess

from case import SECONDS, Case, Metric
from program import HEAP, Program, java
from rig.errors import Failed

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "programs/allocations.cpp")
PROCESSOR = Metric("processors", "s", places=2)
# The library that has an allocator, and its package. glibc needs none.
LIBRARIES = {
    "glibc": None, "jemalloc": ("libjemalloc.so.2", "libjemalloc2"),
    "tcmalloc": ("libtcmalloc_minimal.so.4", "libtcmalloc-minimal4"), "mimalloc": ("libmimalloc.so.2", "libmimalloc2.0"),
}  # fmt: skip


def has_library(file):
    known = subprocess.run(["/sbin/ldconfig", "-p"], stdout=subprocess.PIPE, text=True, check=False).stdout
    return f"\t{file} (" in known


class Allocations(Case):
    table = "allocators"
    seconds = 900

    def __init__(self, allocator, threads, operations, blocks, step, limit_mib, loops=0):
        beside = f", beside {loops} busy loops" if loops else ""
        super().__init__(f"{allocator}, {threads} threads{beside}", [SECONDS, PROCESSOR], limit_mib)
        self.allocator, self.arguments, self.loops = allocator, [str(n) for n in (threads, operations, blocks, step)], loops

    def missing(self):
        if not shutil.which("g++"):
            return "g++ is not installed: apt-get install g++"
        library = LIBRARIES[self.allocator]
        if library and not has_library(library[0]):
            return f"{self.allocator} is not installed: apt-get install {library[1]}"
        return None

    def program(self, context):
        return os.path.join(context.scratch, f"allocations-{self.allocator}")

    def prepare(self, context):
        program, library = self.program(context), LIBRARIES[self.allocator]
        if not os.path.exists(program):
            # Linked before the C library, so that its malloc comes first.
            link = ["-Wl,--no-as-needed", f"-l:{library[0]}"] if library else []
            subprocess.run(["g++", "-std=c++20", "-O2", "-fno-builtin-malloc", "-pthread", "-o", program, PROGRAM, *link], check=True)

    def run(self, where, context):
        loops = [subprocess.Popen(["/bin/sh", "-c", "while :; do :; done"]) for _ in range(self.loops)]
        try:
            done = where.run([self.program(context), *self.arguments], self.seconds)
        finally:
            for loop in loops:
                loop.kill()
                loop.wait()
        if context.data.setdefault(("allocations", *self.arguments), done.out) != done.out:
            raise Failed(f"the sum is another than the one found first: {done.out.strip()}")
        return {SECONDS.name: done.wall, PROCESSOR.name: done.cpu}


class Runtime(Program):
    """A language's own allocator and collector, with threads."""

    table = "allocators"


def runtimes():
    javac = ["javac", "-d", "{scratch}", "{here}/Allocations.java"]
    go = ["go", "build", "-o", "{scratch}/blocks-go", "{here}/blocks.go"]
    return [
        Runtime("java, parallel collector, 4 threads", 122, java("Parallel", 96, "4", "16000", "600000"), ["java", "javac"], javac),
        Runtime("node, 4 workers", 200, ["node", *HEAP, "{here}/workers.js", "4", "12000", "150000"], ["node"]),
        Runtime("go and C's malloc, 4 goroutines", 99, ["{scratch}/blocks-go", "4", "400000", "350"], ["go", "gcc"], go),
    ]


def cases(quick):
    if quick:
        return [Allocations("glibc", 2, 20_000, 2_000, 200, 12)]
    # Some 100 MiB, of which about half fits. The threads meet a hundred times. If they ran freely, the scheduler would decide
    # how many of them have blocks at once, and with it up to two thirds of the misses.
    four, limit = (4, 300_000, 6_000, 3_000), 48
    rows = [Allocations(name, *four, limit) for name in LIBRARIES]
    rows.insert(1, Allocations("glibc", 16, 75_000, 1_500, 750, limit))
    rows += runtimes()
    return [*rows, Allocations("glibc", *four, limit, loops=8), Allocations("jemalloc", *four, limit, loops=8)]
