"""Analytics over more rows than fit: sums by key with NumPy, pandas and DuckDB, and the same job written for little RAM with
numpy.memmap and blosc2. Those two need no swap: they get, as a limit without swap, all the RAM that the others had."""

import importlib.util
import os
import sys

from case import SECONDS, Case, Metric
from rig import place
from rig.errors import MIB, Failed

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "programs/groupby.py")
PROCESSOR = Metric("processors", "s", places=2)
# Where the package of a way comes from.
PACKAGES = {
    "numpy": "apt-get install python3-numpy", "memmap": "apt-get install python3-numpy",
    "pandas": "apt-get install python3-pandas", "duckdb": "make bench-python", "blosc2": "make bench-python",
}  # fmt: skip


class GroupBy(Case):
    table = "analytics"
    seconds = 900

    def __init__(self, way, rows, limit_mib):
        super().__init__(f"sums by key, {way}", [SECONDS, PROCESSOR], limit_mib)
        self.way, self.rows = way, rows

    def missing(self):
        module = "numpy" if self.way == "memmap" else self.way
        return None if importlib.util.find_spec(module) else f"{module} is not installed: {PACKAGES[self.way]}"

    def run(self, where, context):
        directory = context.directory("groupby")
        try:
            done = where.run([sys.executable, PROGRAM, self.way, str(self.rows), directory], self.seconds)
        finally:
            for name in ("keys", "values"):
                if os.path.exists(os.path.join(directory, name)):
                    os.unlink(os.path.join(directory, name))
        if context.data.setdefault(("groupby", self.rows), done.out) != done.out:
            raise Failed(f"the sums are others than those found first: {done.out.strip()}")
        context.data[("groupby", self.way)] = where.total_bytes()
        return {SECONDS.name: done.wall, PROCESSOR.name: done.cpu}


class Peer(GroupBy):
    """A way that keeps within little RAM by itself."""

    def places(self, wanted):
        return [place.NO_SWAP]

    def limit_of(self, context):
        # What Ebb's run with NumPy had, in the same round.
        return context.data.get(("groupby", "numpy"), self.limit_mib * MIB)


def cases(quick):
    rows = 1_500_000 if quick else 30_000_000
    # Twelve bytes a row are the data; half of it fits. The interpreter and its libraries take 40 MiB.
    data_mib = rows * 12 // MIB
    limit = 40 + data_mib // 2
    ways = [GroupBy("numpy", rows, limit), GroupBy("pandas", rows, 60 + data_mib), GroupBy("duckdb", rows, 80 + data_mib // 2)]
    return ways + [Peer("memmap", rows, limit), Peer("blosc2", rows, limit)]
