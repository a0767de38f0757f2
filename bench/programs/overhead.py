#!/usr/bin/env python3
"""What `ebb run` costs a program that has all the RAM it wants: real programs alone and under Ebb with a budget larger
than their need, by turns. Prints medians and ratios; needs no privilege.

The first group computes, the second one makes system calls most of the time.
"""

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
EBB = os.path.join(os.environ.get("CARGO_TARGET_DIR") or os.path.join(ROOT, "target"), "release/ebb")
PROGRAMS = os.path.join(ROOT, "tests/programs/workloads")
PYTHON = "/usr/bin/python3"


def workload(name, *arguments):
    return [PYTHON, os.path.join(PROGRAMS, name + ".py"), *arguments]


STAT_LOOP = "import os\nfor _ in range(300000): os.stat('/usr')"
PIPE_LOOP = (
    "import os\nr, w = os.pipe()\nb = bytes(4096)\n"
    "for _ in range(200000):\n    os.write(w, b)\n    os.read(r, 4096)"
)


def cases(scratch):
    """(name, command) by group."""
    lines, source, data = (os.path.join(scratch, name) for name in ("lines", "large.c", "data"))
    with open(lines, "wb") as file:
        block = b"".join(b"%016x some text %d\n" % (i * 0x9E3779B97F4A7C15 % (1 << 64), i % 977) for i in range(200000))
        for _ in range(4):
            file.write(block)
    with open(source, "w", encoding="utf-8") as file:
        subprocess.run(workload("generate_c", "120"), stdout=file, check=True)
    with open(data, "wb") as file:
        for i in range(200):
            file.write(os.urandom(8192) + b"some text %d " % i * 4096)
    computing = {
        "python records": workload("records", "120"),
        "numpy sort": workload("numpy_sort", "160"),
        "numpy threads": workload("numpy_threads", "160"),
        "sqlite in memory": workload("sqlite_memory", "60"),
        "sort": ["sort", "-S", "1G", "--parallel=2", "-o", os.path.join(scratch, "sorted"), lines],
        "gcc -O2": ["gcc", "-O2", "-w", "-c", source, "-o", os.path.join(scratch, "large.o")],
        "xz -6": ["xz", "-6", "-k", "-f", data],
    }
    calling = {
        "stat 300,000 times": [PYTHON, "-c", STAT_LOOP],
        "pipe 200,000 times": [PYTHON, "-c", PIPE_LOOP],
        "dd 4 KiB blocks": ["dd", "if=/dev/zero", "of=/dev/null", "bs=4k", "count=1000000", "status=none"],
        "tar of /usr/include": ["tar", "-cf", os.path.join(scratch, "tar"), "/usr/include"],
        "find /usr": ["find", "/usr", "-newer", "/etc/passwd"],
        "sh, 200 commands": ["sh", "-c", "for i in $(seq 200); do /bin/true; done"],
    }
    return {"computing": computing, "calling the kernel": calling}


def timed(command):
    """(seconds, processor seconds)"""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.monotonic()
    quiet = subprocess.DEVNULL
    done = subprocess.run(command, stdin=quiet, stdout=quiet, stderr=subprocess.PIPE, check=False)
    wall = time.monotonic() - start
    if done.returncode != 0:
        sys.exit(f"overhead.py: {command[:4]} ended with {done.returncode}: {done.stderr[-300:]!r}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=5, help="runs of each (5)")
    parser.add_argument("--ram", default="4G", help="budget (4G)")
    parser.add_argument("--only", metavar="TEXT", default="", help="only programs with TEXT in their name")
    parser.add_argument("--ebb", default=EBB, help="the command to measure")
    chosen = parser.parse_args()
    scratch = tempfile.mkdtemp(prefix="ebb-overhead-")
    try:
        print(f"{'':24} {'alone s':>8} {'ebb s':>8} {'wall':>6} {'cpu':>6}   wall, round by round")
        for group, commands in cases(scratch).items():
            ratios = []
            for name, command in commands.items():
                if chosen.only not in name:
                    continue
                alone, under = [], []
                for nr in range(chosen.rounds + 1):
                    pair = timed(command), timed([chosen.ebb, "run", "-q", "--ram", chosen.ram, "--", *command])
                    # The first round warms caches.
                    if nr > 0:
                        alone.append(pair[0])
                        under.append(pair[1])
                wall = [u[0] / a[0] for a, u in zip(alone, under)]
                cpu = statistics.median(u[1] / a[1] for a, u in zip(alone, under))
                times = (statistics.median(run[0] for run in runs) for runs in (alone, under))
                spread = f"{min(wall):.2f}..{max(wall):.2f}"
                ratios.append(statistics.median(wall))
                print("{:24} {:8.2f} {:8.2f} {:6.2f} {:6.2f}   {}".format(name, *times, ratios[-1], cpu, spread), flush=True)
            if ratios:
                print(f"{group}: {statistics.geometric_mean(ratios):.3f} of the time alone (geometric mean)\n")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


main()
