"""Where a workload runs: with all the RAM it wants, in a cgroup with a limit and the kernel's swap, in one without swap,
under Ebb, or on Ebb's engine alone. A place is made for one run and closed after it."""

import contextlib
import json
import os
import resource
import subprocess
import threading
import time
from typing import NamedTuple

from .errors import Failed, Killed
from .group import Group
from .process import Process
from .swap import KINDS

ALONE, NO_SWAP, DEVICE, EBB, ENGINE = "none", "noswap", "device", "ebb", "engine"
# Those that have a budget.
OURS = (EBB, ENGINE)
TITLES = {ALONE: "all in RAM", NO_SWAP: "limit, no swap", DEVICE: "the disk itself", EBB: "Ebb", ENGINE: "engine"}


def title(name):
    return TITLES.get(name, f"kernel, {name.replace('-', ' ', 1)}")


class Done(NamedTuple):
    """A command that ended well: what it printed, and seconds."""

    out: str
    wall: float
    cpu: float
    system: float


class Place:
    """All in RAM; what the others add, they override."""

    # The budget, where there is one.
    ram_bytes = None
    # Which place it is.
    name = None

    def __init__(self, journal, limit_bytes=None):
        self.journal = journal
        self.group = Group(journal, limit_bytes)
        # The most that there was at a time, each by itself.
        self.anonymous_bytes = self.page_cache_bytes = self.kernel_bytes = 0
        self.done = threading.Event()
        self.sampler = threading.Thread(target=self._sample, daemon=True)
        self.sampler.start()

    def _sample(self):
        while not self.done.wait(0.05):
            self.sample()

    def sample(self):
        self.anonymous_bytes = max(self.anonymous_bytes, self.group.anonymous_bytes())
        self.page_cache_bytes = max(self.page_cache_bytes, self.group.page_cache_bytes())
        self.kernel_bytes = max(self.kernel_bytes, self.group.kernel_bytes())

    def command(self, command):
        """The command line that runs `command` here."""
        return self.group.wrap(command)

    def start(self, command, **options):
        """A process that runs here, for the caller to end."""
        return Process(self.journal, self.command(command), **options)

    def run(self, command, seconds, **options):
        """Runs a command to its end, which must be a good one."""
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        process = self.start(command, **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options)
        out, err = process.wait(seconds)
        wall, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
        if process.child.returncode != 0:
            said = (err or out or "").strip().splitlines()
            raise Failed(f"{os.path.basename(command[0])}: status {process.child.returncode}{': ' + said[-1] if said else ''}")
        system = after.ru_stime - before.ru_stime
        return Done(out, wall, after.ru_utime - before.ru_utime + system, system)

    def check(self):
        """Raises what went wrong here that the command did not say."""
        kills = self.group.oom_kills()
        if kills:
            raise Killed(f"the out-of-memory killer ended {kills} of its processes")

    def total_bytes(self):
        """RAM that the run had in all, or took."""
        return self.anonymous_bytes

    def beside(self):
        """What the run held beside anonymous memory, and in all, as its cgroup counts it."""
        return {"page_cache_bytes": self.page_cache_bytes, "kernel_bytes": self.kernel_bytes, "held_bytes": self.group.peak_bytes()}

    def account(self):
        """What else is known of the run."""
        return {}

    def close(self):
        self.done.set()
        self.sampler.join()
        self.group.close()


class Kernel(Place):
    """A limit and the kernel's swap of one kind; or none."""

    def __init__(self, journal, kind, limit_bytes, directory):
        self.swap = None if kind == NO_SWAP else KINDS[kind](journal, directory)
        self.limit_bytes = limit_bytes
        try:
            super().__init__(journal, limit_bytes)
        except BaseException:
            self._close_swap()
            raise
        if self.swap:
            self.swap.reset_peak()

    def _close_swap(self):
        if self.swap:
            self.swap.close()

    def total_bytes(self):
        held = self.group.peak_bytes() if self.limit_bytes is None else min(self.limit_bytes, self.group.peak_bytes())
        return held + (self.swap.peak_bytes() if self.swap else 0)

    def account(self):
        return {"swap_bytes": self.swap.peak_bytes()} if self.swap else {}

    def close(self):
        super().close()
        self._close_swap()


class Ebb(Place):
    """Under `ebb run` with a budget for the whole tree."""

    def __init__(self, journal, ebb, ram_bytes, scratch, limit_bytes=None, spill=None):
        super().__init__(journal, limit_bytes)
        self.ebb, self.ram_bytes, self.spill, self.stats = ebb, ram_bytes, spill, os.path.join(scratch, "stats.json")
        if os.path.exists(self.stats):
            os.unlink(self.stats)

    def command(self, command):
        spill = ["--swap", f"file:{self.spill}"] if self.spill else []
        run = [self.ebb, "run", "-q", "--ram", str(self.ram_bytes), *spill, "--stats", self.stats, "--", *command]
        return super().command(run)

    def account(self):
        if not os.path.exists(self.stats):
            raise Failed("Ebb wrote no account of its run")
        with open(self.stats, encoding="utf-8") as file:
            return json.load(file)

    def check(self):
        whole = self.account()
        if whole["error"]:
            raise Failed(whole["error"])
        if not whole["counters"].get("peak_held_bytes"):
            raise Failed("it ran without Ebb: nothing was managed")

    def total_bytes(self):
        return self.ram_bytes


class Engine(Place):
    """Ebb's engine in the workload itself, without the agent; the command is one of ebb-bench-micro."""

    def __init__(self, journal, ram_bytes):
        super().__init__(journal)
        self.ram_bytes = ram_bytes

    def command(self, command):
        return super().command([*command, "--in-process", str(self.ram_bytes)])

    def total_bytes(self):
        return self.ram_bytes


@contextlib.contextmanager
def blamed(where):
    """Why it failed is not what it says, if the out-of-memory killer ended one of its processes."""
    try:
        yield
    except Failed as failed:
        if where.group.oom_kills():
            raise Killed(f"killed: out of memory; {failed}") from None
        raise


def make(name, journal, limit_bytes, ram_bytes, ebb, scratch, contained=False, on_disk=False):
    """The place of that name: `limit_bytes` for the kernel's, none for no limit, `ram_bytes` for Ebb, which also is inside the
    limit when `contained`, and spills where the kernel's swap file is when `on_disk`."""
    found = _make(name, journal, limit_bytes, ram_bytes, ebb, scratch, contained, on_disk)
    found.name = name
    return found


def _make(name, journal, limit_bytes, ram_bytes, ebb, scratch, contained, on_disk):
    if name in (ALONE, DEVICE):
        return Place(journal)
    if name == EBB:
        return Ebb(journal, ebb, ram_bytes, scratch, limit_bytes if contained else None, scratch if on_disk else None)
    if name == ENGINE:
        return Engine(journal, ram_bytes)
    return Kernel(journal, name, limit_bytes, scratch)
