"""A container without swap: what happens there today, and with Ebb inside it. Both have the same limit; Ebb's budget is three
quarters of it, because the limit also holds page cache, page tables and what is not managed."""

import os
import subprocess
import sys

from case import SECONDS, Case
from rig import place
from rig.errors import MIB, Failed

# Objects of many sizes, used again in another order.
RECORDS = """
import random, sys
count = int(sys.argv[1])
rows = {i: {"id": i, "name": f"name-{i * 7919 % count}", "tags": [i % 7, i % 11], "text": "x" * (i % 200)} for i in range(count)}
total = 0
order = random.Random(1)
for _ in range(count // 4):
    row = rows[order.randrange(count)]
    total += len(row["name"]) + sum(row["tags"]) + len(row["text"])
print(total)
"""
SORT = "import random\nr = random.Random(3)\nfor _ in range({lines}): print(f'{{r.random():.12f}} {{r.randrange(10**9)}} line')"


class NoSwap(Case):
    """The program, its output compared with what it is with all the RAM it wants."""

    table = "noswap"
    contained = True

    def __init__(self, name, limit_mib):
        super().__init__(name, [SECONDS], limit_mib)

    def places(self, wanted):
        return [place.ALONE, place.NO_SWAP, *([place.EBB] if place.EBB in wanted else [])]

    def ram_bytes(self, kernel_total_bytes):
        return self.limit_mib * MIB * 3 // 4

    def command(self, context):
        raise NotImplementedError

    def run(self, where, context):
        done = where.run(self.command(context), self.seconds)
        if context.data.setdefault(self.name, done.out) != done.out:
            raise Failed("it printed something else than with all the RAM it wants")
        return {SECONDS.name: done.wall}


class Records(NoSwap):
    def __init__(self, count, limit_mib):
        super().__init__(f"python, {count:,} records", limit_mib)
        self.count = count

    def command(self, context):
        return [sys.executable, "-c", RECORDS, str(self.count)]


class Sort(NoSwap):
    """sort would use files by itself; it is told that it has the memory."""

    def __init__(self, lines, limit_mib):
        super().__init__(f"sort -S 1G, {lines:,} lines", limit_mib)
        self.lines = lines

    def prepare(self, context):
        path = os.path.join(context.scratch, "lines")
        if not os.path.exists(path):
            with open(path, "w", encoding="ascii") as file:
                subprocess.run([sys.executable, "-c", SORT.format(lines=self.lines)], stdout=file, check=True)

    def command(self, context):
        return ["/bin/sh", "-c", 'sort -S 1G --parallel=1 "$0" | sha256sum', os.path.join(context.scratch, "lines")]


def cases(quick):
    if quick:
        return [Records(60_000, 48)]
    return [Records(800_000, 256), Sort(4_000_000, 256)]
