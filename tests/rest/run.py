#!/usr/bin/python3
"""Trees at rest, and trees that hold more than they may: what they hold is what the kernel counts, they use no processor
time, and what Ebb has ended leaves nobody behind. One line a case; the closing line counts.

EBB names the command (default: target/release/ebb of this repository, then `ebb` on the path).
"""
import argparse
import contextlib
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))

from command import find_ebb  # noqa: E402

MIB = 1 << 20
MEMORY_CGROUP = "/sys/fs/cgroup/memory"
# How far apart what Ebb counts and what the kernel counts may be.
COUNTED_PART = 0.02
# What Ebb does not manage is charged beyond so much in a tree.
NOT_CHARGED = 8 * MIB
# Processor time of all processes of a tree at rest, a second: less than one look at anything each.
REST_PART = 0.01
# What waits for other things than time: many times what it takes.
PATIENCE_S = 120


class Failure(Exception):
    """What is wrong."""


def need(condition, why):
    if not condition:
        raise Failure(why)


def until(condition, why):
    """Waits for what must come."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        need(time.monotonic() < end, why)
        time.sleep(0.05)


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def used_ns(pids):
    """Processor time of all threads of the processes."""
    total = 0
    for pid in pids:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/schedstat", encoding="ascii") as file:
                total += int(file.read().split()[0])
    return total


def unmanaged(pid):
    """Bytes that a process has for itself where Ebb manages nothing: on its stack, and in the data of the files that it has
    loaded."""
    total, is_unmanaged = 0, False
    with open(f"/proc/{pid}/smaps", encoding="utf-8", errors="replace") as file:
        for line in file:
            mapping = re.match(r"[0-9a-f]+-[0-9a-f]+ \S+p \S+ \S+ \d+ *(.*)$", line)
            if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
                is_unmanaged = bool(mapping) and (mapping[1].startswith("/") or mapping[1] == "[stack]")
            elif is_unmanaged and line.startswith("Private_Dirty:"):
                total += int(line.split()[1]) * 1024
    return total


class Group:
    """A memory cgroup of its own, where root and version 1 allow it."""

    def __init__(self):
        self.path = None
        if os.geteuid() == 0 and os.path.exists(f"{MEMORY_CGROUP}/memory.stat"):
            self.path = tempfile.mkdtemp(prefix="ebb-rest-", dir=MEMORY_CGROUP)

    def enter(self):
        """The words of a shell by which it enters."""
        return f"echo $$ > {self.path}/cgroup.procs; " if self.path else ""

    def anonymous(self, pids):
        """Bytes of anonymous memory, each page once."""
        if self.path:
            with open(f"{self.path}/memory.stat", encoding="ascii") as file:
                return int(re.search(r"^rss (\d+)$", file.read(), re.M)[1])
        total = 0
        for pid in pids:
            with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
                total += int(re.search(r"^Pss_Anon: +(\d+) kB$", file.read(), re.M)[1]) * 1024
        return total

    def remove(self):
        """The kernel keeps it until the last process in it is gone."""
        def is_gone():
            with contextlib.suppress(OSError):
                os.rmdir(self.path)
            return not os.path.exists(self.path)
        if self.path:
            until(is_gone, f"{self.path}: processes are left in it")


class Tree:
    """A program under `ebb run` that says when it is ready, and all of its processes."""

    def __init__(self, ebb, scratch, ram, command, swap=None, stdin=subprocess.DEVNULL):
        self.ebb = ebb
        self.group = Group()
        self.pids = []
        words = f"{self.group.enter()}exec {' '.join(command)}"
        options = ["--swap", swap or f"file:{scratch}"]
        self.run = subprocess.Popen([ebb, "run", "--ram", ram, *options, "--", "/bin/sh", "-c", words], cwd=scratch,
                                    stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def begin(self):
        """Waits until it says that it is ready."""
        can_read, _, _ = select.select([self.run.stdout], [], [], PATIENCE_S)
        need(can_read and self.run.stdout.readline() == "ready\n", f"it does not begin: {self.run.poll()}")

    def ready(self, processes):
        self.begin()
        until(lambda: len(self.told()["processes"]) >= processes, "it has too few processes")
        self.pids = [process["pid"] for process in self.told()["processes"]]

    def told(self):
        output = subprocess.run([self.ebb, "ps", "--json", str(self.run.pid)], capture_output=True, text=True,
                                check=True, timeout=PATIENCE_S).stdout
        return json.loads(output)[0]

    def settle(self):
        """Waits until it holds the same for a while."""
        last = [None, 0]

        def is_settled():
            held = self.told()["held_bytes"]
            last[:] = [held, last[1] + 1 if last[0] == held else 0]
            return last[1] >= 8
        until(is_settled, "what it holds changes and changes")

    def processor_part(self, pids, seconds=2):
        """Part of a processor that the processes use."""
        before, began = used_ns(pids), time.monotonic()
        time.sleep(seconds)
        return (used_ns(pids) - before) / 1e9 / (time.monotonic() - began)

    def end(self):
        # First of all `ebb`: the others end with it.
        for pid in [self.run.pid] * (self.run.poll() is None) + [pid for pid in self.pids if alive(pid)]:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        self.run.communicate()
        with contextlib.suppress(Failure):
            until(lambda: not any(alive(pid) for pid in self.pids), "")
        self.group.remove()


@contextlib.contextmanager
def tree(*arguments, **options):
    made = Tree(*arguments, **options)
    try:
        yield made
    finally:
        made.end()


def counted(ebb, scratch, megabytes, ram, children):
    """Children that share everything with their parent are counted as the kernel counts them, and rest."""
    with tree(ebb, scratch, ram, ["./forks", str(megabytes), str(children)]) as made:
        made.ready(children + 1)
        made.settle()
        until(lambda: made.processor_part([made.run.pid, *made.pids]) < REST_PART, "it works and works")
        held, found, beside = made.told()["held_bytes"], made.group.anonymous(made.pids), sum(map(unmanaged, made.pids))
        beside = min(beside, NOT_CHARGED)
        text = f"{held / MIB:.1f} MiB held, {beside / MIB:.1f} not charged, {found / MIB:.1f} in memory"
        need(abs(held + beside - found) <= COUNTED_PART * found, text)
        need(all(map(alive, made.pids)), "a process has ended")
        return text


def idle_forks(ebb, scratch):
    return counted(ebb, scratch, 120, "256M", 30)


def many_idle_forks(ebb, scratch):
    """More than have their bits in the masks."""
    # What is held is what is granted. A child that has charged a page more than its fork reserved has a batch of grants in hand
    # (`Budget::grow`), which is 1 MiB with this budget, until its background thread has seen that it is at rest.
    return counted(ebb, scratch, 400, "576M", 70)


def idle_forks_short(ebb, scratch):
    return counted(ebb, scratch, 240, "96M", 20)


def relocated(ebb, scratch):
    """What the loader writes before anything of Ebb's runs counts from the exec on, without anybody who looks."""
    with tree(ebb, scratch, "64M", ["sh -c 'read line; exec ./relocated'"], stdin=subprocess.PIPE) as made:
        until(lambda: made.told()["processes"], "it does not begin")
        os.kill(made.run.pid, signal.SIGSTOP)
        made.run.stdin.write("\n")
        made.run.stdin.flush()
        made.begin()
        held = made.told()["held_bytes"]
        os.kill(made.run.pid, signal.SIGCONT)
        need(held >= 8 * MIB, f"{held / MIB:.1f} MiB held")
        return f"{held / MIB:.1f} MiB held"


def stopped(ebb, scratch):
    """Members that are stopped hold more than a new budget: who goes on does not try for ever."""
    with tree(ebb, scratch, "96M", ["./forks", "64", "4"]) as made:
        made.ready(5)
        for pid in made.pids[1:]:
            os.kill(pid, signal.SIGSTOP)
        lowered = subprocess.run([ebb, "set", str(made.run.pid), "--ram", "16M"], capture_output=True, timeout=PATIENCE_S)
        need(lowered.returncode in (0, 1), f"ebb set: {lowered.stderr}")
        until(lambda: made.processor_part([made.run.pid, *made.pids], 1) < REST_PART, "it works and works")
        held = made.told()["held_bytes"]
        for pid in made.pids[1:]:
            os.kill(pid, signal.SIGCONT)
        return f"{held / MIB:.1f} MiB held of 16"


def orphans(ebb, scratch):
    """The program ends by itself: what it leaves rests without anybody to look after it."""
    with tree(ebb, scratch, "24M", ["./forks", "40", "8", "exit"]) as made:
        made.begin()
        made.run.wait(PATIENCE_S)
        # By the area that they have in common.
        made.pids = [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and is_forks(pid, scratch)]
        need(len(made.pids) == 8, f"{len(made.pids)} are left")
        until(lambda: made.processor_part(made.pids, 1) < REST_PART, "they work and work")
        return "8 are left, at rest"


def is_forks(pid, scratch):
    try:
        return os.readlink(f"/proc/{pid}/exe") == os.path.join(scratch, "forks") and alive(pid)
    except OSError:
        return False


def ended(ebb, scratch):
    """Ebb ends a program for which there is no memory: its children end with it."""
    with tree(ebb, scratch, "24M", ["./forks", "1", "4", "more", "64"], swap="none") as made:
        made.ready(1)
        until(lambda: made.run.poll() is not None, "it does not end")
        need(made.run.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL), f"status {made.run.returncode}")
        until(lambda: not any(is_forks(pid, scratch) for pid in os.listdir("/proc") if pid.isdigit()),
              "its children are left")
        return "nobody is left"


CASES = [idle_forks, many_idle_forks, idle_forks_short, relocated, stopped, orphans, ended]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", help="cases by name")
    parser.add_argument("--rounds", type=int, default=1)
    args = parser.parse_args()
    # Ended from outside, this leaves nothing behind either.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    ebb = find_ebb()
    scratch = tempfile.mkdtemp(prefix="ebb-rest-", dir="/var/tmp")
    tried = failed = 0
    try:
        os.chmod(scratch, 0o777)
        for name in ("forks", "relocated"):
            options = ["-O1", "-Wall", "-fPIE", "-pie", "-Wl,-z,relro,-z,now"]
            subprocess.run(["cc", *options, "-o", f"{scratch}/{name}", f"{HERE}/{name}.c"], check=True)
        for _ in range(args.rounds):
            for case in CASES:
                name = case.__name__.replace("_", "-")
                if args.only and name not in args.only:
                    continue
                tried += 1
                try:
                    print(f"ok    {name}: {case(ebb, scratch)}", flush=True)
                except (Failure, OSError, subprocess.SubprocessError) as error:
                    failed += 1
                    print(f"FAILS {name}: {error}", flush=True)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    print(f"{tried} cases, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
