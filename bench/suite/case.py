"""What is measured: cases, each one row of a table, run in several places by turns."""

import os
from dataclasses import dataclass, field

from rig import place
from rig.errors import MIB


@dataclass(frozen=True)
class Metric:
    """A figure of a run."""

    name: str
    unit: str
    more_is_better: bool = False
    # Decimal places in a table.
    places: int = 1


SECONDS = Metric("time", "s", places=2)
LATENCIES = [Metric(name, "us") for name in ("p50", "p99", "p99.9")]


@dataclass
class Context:
    """What cases need to know of this run."""

    journal: object
    scratch: str
    ebb: str
    micro: str
    quick: bool
    data: dict = field(default_factory=dict)

    def directory(self, name):
        path = os.path.join(self.scratch, name)
        os.makedirs(path, exist_ok=True)
        return path


class Case:
    """A row. A run in a place gives a value for each of its metrics, the first of which is the one that counts."""

    # Which table it belongs to.
    table = ""
    # The longest that a run may take.
    seconds = 300
    # The most rounds, for what takes minutes.
    rounds_max = 100
    # How many times better than the kernel Ebb aims to be by the first metric, if it is said.
    aim = None

    def __init__(self, name, metrics, limit_mib):
        self.name = name
        self.metrics = metrics
        # The kernel's limit, none for what is not about RAM.
        self.limit_mib = limit_mib

    # Ebb runs inside the kernel's limit.
    contained = False
    # It is about the disk: all swap to the same directory.
    on_disk = False

    def limit_of(self, context):
        """The limit of the kernel's places in bytes, none for no limit."""
        return None if self.limit_mib is None else self.limit_mib * MIB

    def places(self, wanted):
        """In which places, of those that are wanted, it runs, in order: the kernel's first says how much RAM Ebb gets."""
        return [name for name in wanted if name not in (place.NO_SWAP, place.DEVICE, place.ENGINE)]

    def ram_bytes(self, kernel_total_bytes):
        """Ebb's budget: all that the kernel's side had."""
        return kernel_total_bytes

    def derived(self, values, alone):
        """Further values of a run, by what it costs with all in RAM: `alone` has the median of each value there, if there is any."""
        return {}

    def missing(self):
        """Why it cannot run on this machine, or None."""
        return None

    def prepare(self, context):
        """What must be there before the first run."""

    def run(self, where, context):
        """Runs in a place; {name of metric: value}. Raises Failed where the result is not what it must be."""
        raise NotImplementedError
