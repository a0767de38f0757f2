"""Runs a command, alone or under `ebb run`, and watches from outside how much anonymous memory the whole tree of its
processes holds."""
import json
import os
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(os.path.dirname(HERE), "programs"), os.path.dirname(HERE)]

import harness  # noqa: E402
from harness import MIB, NOBODY, Failure, parse_size  # noqa: E402
from left_behind import marked, open_below, sockets_of_ebb  # noqa: E402

PYTHON = "/usr/bin/python3"
SAMPLE_MS = 50
# What a process may hold beyond its share of the budget, as in tests/programs.
SLACK = harness.SLACK
# Marks what a case starts, orphans too.
MARK = "TREES_CASE"
# Ends of processes that were told to end, and of what they leave.
LEAVE_S = 100


def need(condition, why):
    if not condition:
        raise Failure(why)


def workload(name):
    return os.path.join(HERE, "workloads", name)


class Found:
    """What the sampler saw of a tree; bytes."""

    def __init__(self, text):
        for name, value in json.loads(text).items():
            setattr(self, name, value)

    def __str__(self):
        text = f"{self.peak / MIB:.0f} MiB in {self.peak_processes} processes"
        return text + (f" and {self.shared_peak / MIB:.0f} MiB shared" if self.shared_peak >= MIB else "")

    def members_text(self):
        return ", ".join(f"{name} {pid}: {held / MIB:.1f}" for name, pid, held in self.members)


class TreeWatch:
    """The sampler, as a program of its own: it must not wait for the interpreter that drives the test."""

    def __init__(self, binary, root, skip_root, slack):
        self.command = [binary, str(root), str(int(skip_root)), str(slack), str(SAMPLE_MS)]
        self.process = self.found = None

    def start(self):
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def stop(self):
        if self.found is None:
            output, _ = self.process.communicate(timeout=60)
            self.found = Found(output)

    def kill(self):
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.communicate()

    def peak(self):
        self.stop()
        return self.found.peak, "the tree"


def until(condition, limit_s, pause_s=0.02):
    """Waits for a condition; whether it came."""
    end = time.monotonic() + limit_s
    while not (met := condition()) and time.monotonic() < end:
        time.sleep(pause_s)
    return met or condition()


class Context(harness.Context):
    """How to run things, for one case."""

    def __init__(self, ebb, scratch, long, verbose, tools):
        super().__init__(ebb, scratch, long, as_user=False, verbose=verbose)
        self.tools = tools
        self.slack = SLACK
        self.watches = []
        self.mark = f"{MARK}={os.path.basename(scratch)}"
        self.sockets_before = sockets_of_ebb()
        # Shown in the line of the case: (budget or None, what the sampler found, seconds).
        self.results = []

    def environment(self, extra=None):
        name, value = self.mark.split("=")
        return super().environment({name: value, "PYTHONDONTWRITEBYTECODE": "1", **(extra or {})})

    def watch(self, root, skip_root):
        self.watches.append(TreeWatch(self.tools.sampler, root, skip_root, self.slack))
        return self.watches[-1]

    def run(self, command, ram, timeout=1800, **options):
        outcome = super().run(command, ram, timeout, **options)
        outcome.found = self.watches[-1].found
        self.results.append((ram, outcome.found, outcome.seconds))
        return outcome

    def good(self, command, ram, **options):
        """A run that must end with status 0."""
        outcome = self.run(command, ram, **options)
        need(outcome.status == 0, f"{'without a budget' if ram is None else f'under --ram {ram}'}: status {outcome.status}: "
             f"{outcome.output[-600:].decode(errors='replace')}")
        return outcome

    def bound_tree(self, found, ram, plain=None):
        """The tree held no more than the budget, and the slack for each process. Alone it must hold more than that, or
        the bound would prove nothing."""
        budget = parse_size(ram)
        if plain is not None:
            need(plain.excess > budget, f"this case proves nothing: alone the tree held {plain.peak / MIB:.0f} MiB in"
                 f" {plain.peak_processes} processes, {plain.excess / MIB:.0f} MiB beyond the slack of"
                 f" {self.slack // MIB} MiB each, and the budget is {budget / MIB:.0f} MiB")
        need(found.samples > 0, "it ended before it was looked at")
        need(found.excess <= budget, f"the tree held {found.excess_total / MIB:.1f} MiB in {found.excess_processes} processes,"
             f" {found.excess / MIB:.1f} MiB beyond the slack of {self.slack // MIB} MiB each, under --ram"
             f" {budget / MIB:.0f}M (MiB: {found.members_text()})")

    def third(self, found):
        """A third of what the tree needed, as an argument of --ram."""
        return f"{found.peak // 3 // MIB}M"

    def squeeze(self, command, ram=None, result=None, **options):
        """Alone, then under a budget (a third of the need, unless given): status and output must agree, and the budget hold."""
        plain = self.good(command, None, **options)
        expected = result() if result else plain.output
        ram = ram or self.third(plain.found)
        bounded = self.good(command, ram, **options)
        found = result() if result else bounded.output
        need(found == expected, f"the output differs: {harness.describe(expected)} became {harness.describe(found)}")
        self.bound_tree(bounded.found, ram, plain.found)

    def nothing_left(self):
        """No process of the case, no file in EBB_TMPDIR, nobody who holds one, no socket of Ebb's."""
        until(lambda: not marked(self.mark), LEAVE_S)
        left = marked(self.mark)
        need(not left, f"processes are left: {left}")
        spill = self.path("spill")
        need(not os.listdir(spill), f"files are left in EBB_TMPDIR: {os.listdir(spill)[:5]}")
        held = open_below(spill)
        need(not held, f"files of EBB_TMPDIR are held open: {held}")
        # Another run may be at work beside this one, and have one for a moment.
        until(lambda: not sockets_of_ebb() - self.sockets_before, 3, 0.2)
        need(not sockets_of_ebb() - self.sockets_before, f"sockets are left: {sockets_of_ebb() - self.sockets_before}")

    def close(self):
        """Ends whatever the case started."""
        for watch in self.watches:
            watch.kill()
        for _ in range(100):
            left = marked(self.mark)
            if not left:
                return
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except OSError:
                    pass
            time.sleep(0.1)


class Tools:
    """C programs of these tests, built once a run."""

    def __init__(self, directory):
        self.directory = directory
        self.sampler = self.build("sampler", os.path.join(HERE, "sampler.c"))

    def build(self, name, source, *options):
        binary = os.path.join(self.directory, name)
        if not os.path.exists(binary):
            done = subprocess.run(["gcc", "-O2", "-Wall", "-Wextra", *options, "-o", binary, source], stderr=subprocess.PIPE,
                                  text=True, check=False)
            need(done.returncode == 0, f"gcc {os.path.basename(source)}: {done.stderr.strip()[-300:]}")
        return binary

    def c(self, name, *options):
        return self.build(name, workload(name + ".c"), *options)


def as_nobody(command):
    """For programs that refuse to be root."""
    return NOBODY + command if os.geteuid() == 0 else command
