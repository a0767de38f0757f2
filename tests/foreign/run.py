#!/usr/bin/python3
"""The tests of others under Ebb: the Linux Test Project's families for system calls and memory, and the kernel's selftests for
memory, x86, pidfd, ptrace and seccomp. Each is run without Ebb, and then under it, beside a hog in the same tree, so that its
pages go out: as users get it (`dormant`), and managed from its start (`managed`). What comes out must be what comes out
without Ebb on this machine. What is known to differ is in expected.toml, with its line of docs/compatibility.md.

One line a test; the closing line counts. The exit status is 1 if a difference is not expected. Needs root: every test runs in
namespaces of its own for processes, mounts and System V IPC, which end with it. Settings of the machine that a test changed
and did not put back are put back.

EBB names the command (default: target/release/ebb of this repository, then `ebb` on the path).
"""
import argparse
import concurrent.futures
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib

import settings
from suites import Ltp, Result, Selftests, copy_beside, family_of, needed

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))

from command import ROOT, find_ebb  # noqa: E402

HOW_TO_GET = """run.py: --ltp names no checkout of the Linux Test Project. To get one:
  git clone --depth 1 https://github.com/linux-test-project/ltp DIR
and then `make foreign LTP=DIR`; or leave the option out to run the kernel's selftests alone."""
# EBB_FORCE of each way to run a test under Ebb.
VARIANTS = {"dormant": "", "managed": "no-dormant"}
# A test that hangs alone can not be compared; under Ebb, beside a hog, it may take this many times longer than without.
SLOWER = 10
OUTPUT_MAX = 200_000


class Runner:
    """Runs a test in namespaces of its own, with or without Ebb."""

    def __init__(self, args, ebb, beside, scratch):
        self.args, self.ebb, self.beside, self.scratch = args, ebb, beside, scratch
        self.alive, self.lock = set(), threading.Lock()
        self.settings = settings.read_all()

    def run(self, test, read, variant, limit_s):
        here = tempfile.mkdtemp(prefix="test-", dir=self.scratch)
        spill = os.path.join(here, "spill")
        os.mkdir(spill)
        for path in (here, spill):
            os.chmod(path, 0o777)
        environment = {k: v for k, v in os.environ.items() if not k.startswith("EBB_") and k != "LD_PRELOAD"}
        environment |= test.environment | {"TMPDIR": here}
        command = list(test.command)
        if variant:
            environment |= {"EBB_TMPDIR": spill, "EBB_FORCE": VARIANTS[variant]}
            command = [self.ebb, "run", "-q", "--ram", self.args.ram, "--", self.beside, str(self.args.hog), *command]
        # The first process takes away orphans; with it all others end, and what they left in /dev/shm.
        command = ["unshare", "--fork", "--pid", "--kill-child", "--mount", "--mount-proc", "--ipc", "--uts", "--", "sh", "-c",
                   'mount -t tmpfs -o mode=1777 none /dev/shm && exec "$@"', "sh", self.beside, "0", *command]
        began = time.monotonic()
        with open(os.path.join(here, "output"), "w+b") as output:
            process = subprocess.Popen(command, cwd=here, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                                       start_new_session=True)
            with self.lock:
                self.alive.add(process)
            try:
                status = str(process.wait(limit_s))
            except subprocess.TimeoutExpired:
                status = "hangs"
                process.kill()
                process.wait()
                self.put_back()
            finally:
                with self.lock:
                    self.alive.discard(process)
            output.seek(0)
            text = output.read(OUTPUT_MAX).decode(errors="replace")
        shutil.rmtree(here, ignore_errors=True)
        return Result(status, read(text), text, time.monotonic() - began)

    def put_back(self):
        for path in settings.put_back(self.settings):
            print(f"put back {path}, which a test had changed", flush=True)

    def end(self):
        with self.lock:
            for process in self.alive:
                process.kill()


def difference(alone, under):
    """What is otherwise under Ebb, or an empty list."""
    found = []
    if alone.status != under.status:
        found.append(f"status {alone.status} became {under.status}")
    found += [f"-{line}" for line in alone.lines if line not in under.lines]
    found += [f"+{line}" for line in under.lines if line not in alone.lines]
    return found


def compare(runner, test, read, variants, args):
    """Without Ebb and with it. A test that does not always give the same is run again, in both ways: what ever came out alone
    is right. {"alone": ..., "variants": {name: [difference]}}"""
    alones = [runner.run(test, read, None, args.timeout)]
    if alones[0].status == "hangs":
        return {"alone": "hangs", "seconds": alones[0].seconds, "variants": {}}
    told = {"alone": alones[0].status, "seconds": round(alones[0].seconds, 2), "variants": {}}
    for variant in variants:
        limit_s = args.timeout + SLOWER * alones[0].seconds
        for attempt in range(args.attempts):
            if attempt > 0:
                alones.append(runner.run(test, read, None, args.timeout))
            under = runner.run(test, read, variant, limit_s)
            found = min((difference(alone, under) for alone in alones), key=len)
            if not found:
                break
        told["variants"][variant] = {"difference": found, "seconds": round(under.seconds, 2),
                                     "output": under.output[-3000:] if found else ""}
    return told


class Expected:
    """What is known to differ, and why."""

    def __init__(self, path, doc):
        with open(path, "rb") as file:
            self.entries = tomllib.load(file).get("difference", [])
        with open(doc, encoding="utf-8") as file:
            limits = re.findall(r"^\| *([^|]+?) *\|", file.read(), re.M)
        self.seen = set()
        for entry in self.entries:
            if entry["limit"] not in limits:
                sys.exit(f"run.py: {os.path.basename(path)}: {entry['test']}: docs/compatibility.md has no line that begins with"
                         f" {entry['limit']!r}")

    def limit(self, name, variant):
        for at, entry in enumerate(self.entries):
            if re.fullmatch(entry["test"], name) and variant in entry.get("variants", VARIANTS):
                self.seen.add(at)
                return entry["limit"]
        return None


def choose(suites, args):
    """[(test, the reader of its output)], in the order in which they run."""
    chosen = []
    for suite in suites:
        tests, skipped = suite.tests()
        print(f"{type(suite).__name__}: {len(tests)} tests; left out: " + "; ".join(f"{n} ({why})" for why, n in skipped.items()))
        chosen += [(test, suite.read) for test in tests]
    if args.only:
        chosen = [one for one in chosen if any(re.fullmatch(pattern, one[0].name) for pattern in args.only)]
    if args.family:
        chosen = [one for one in chosen if family_of(one[0].name) in args.family]
    if args.seed is not None:
        random.Random(args.seed).shuffle(chosen)
    if args.part:
        index, count = (int(word) for word in args.part.split("/"))
        chosen = chosen[index - 1::count]
    return chosen


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ltp", metavar="DIR", help="a checkout of the Linux Test Project; it is built there")
    parser.add_argument("--no-selftests", action="store_true", help="only the Linux Test Project")
    parser.add_argument("--into", default=os.path.join(ROOT, "target/foreign"), metavar="DIR", help="where they are built (target/foreign)")
    parser.add_argument("--no-build", action="store_true", help="they are built already")
    parser.add_argument("--only", action="append", default=[], metavar="PATTERN", help="tests whose name fits; may be repeated")
    parser.add_argument("--family", action="append", default=[], help="tests of memory, signals, processes, futex, ptrace, io, ids, x86, other")
    parser.add_argument("--part", metavar="I/N", help="the I-th of N parts")
    parser.add_argument("--variant", action="append", default=[], choices=VARIANTS, help="only this way; may be repeated")
    parser.add_argument("--ram", default="32M", help="budget of test and hog (32M)")
    parser.add_argument("--hog", type=int, default=40, help="MiB of the hog (40)")
    parser.add_argument("--timeout", type=float, default=200, help="seconds for a test without Ebb (200)")
    parser.add_argument("--attempts", type=int, default=3, help="how often what differs is tried (3)")
    parser.add_argument("--repeat", type=int, default=1, help="runs of each test (1)")
    parser.add_argument("--seed", type=int, help="shuffle the tests")
    parser.add_argument("--jobs", type=int, default=2, help="tests at a time (2)")
    parser.add_argument("--json", metavar="FILE", help="results as JSON; differences with what the test said")
    parser.add_argument("--list", action="store_true", help="name the tests")
    args = parser.parse_args()
    # Ended from outside, this leaves nothing behind either.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if args.ltp is not None and not os.path.exists(os.path.join(args.ltp, "runtest/syscalls")):
        sys.exit(HOW_TO_GET)
    if os.geteuid() != 0:
        sys.exit("run.py: not root: the tests need it, and namespaces; run it as root")
    if missing := needed():
        sys.exit(f"run.py: {', '.join(missing)} is missing: run tools/install-packages tests/foreign/packages-long.txt")
    ebb = find_ebb()
    if not (ebb and os.path.exists(ebb)):
        sys.exit("run.py: there is no ebb: build it, or set EBB")
    suites = [] if args.no_selftests else [Selftests(os.path.join(args.into, "selftests"))]
    if args.ltp:
        suites.append(Ltp(args.ltp, os.path.join(args.into, "ltp")))
    for suite in suites:
        if not args.no_build:
            suite.build()
    beside = copy_beside(args.into, os.path.join(HERE, "beside.c"))
    expected = Expected(os.path.join(HERE, "expected.toml"), os.path.join(ROOT, "docs/compatibility.md"))
    chosen = choose(suites, args)
    if args.list:
        print("\n".join(test.name for test, _ in chosen))
        return 0
    scratch = tempfile.mkdtemp(prefix="ebb-foreign-", dir="/var/tmp")
    os.chmod(scratch, 0o777)
    runner = Runner(args, ebb, beside, scratch)
    variants = args.variant or list(VARIANTS)
    counts = {"same": 0, "expected": 0, "DIFFERS": 0, "not compared": 0}
    told = {}
    pool = concurrent.futures.ThreadPoolExecutor(args.jobs)
    try:
        work = [one for one in chosen for _ in range(args.repeat)]
        futures = {pool.submit(compare, runner, test, read, variants, args): test for test, read in work}
        for future in concurrent.futures.as_completed(futures):
            name, result = futures[future].name, future.result()
            told[name] = result
            if not result["variants"]:
                counts["not compared"] += 1
                print(f"not compared    {name}: it {result['alone']} without Ebb", flush=True)
            for variant, under in result["variants"].items():
                found = under["difference"]
                limit = expected.limit(name, variant) if found else None
                under["limit"] = limit
                kind = "same" if not found else "expected" if limit else "DIFFERS"
                counts[kind] += 1
                print(f"{kind:8} {variant:8} {name:32} {result['seconds']:6.1f} s {under['seconds']:6.1f} s  "
                      + (f"{limit}: " if limit else "") + "; ".join(found[:6]), flush=True)
            if args.json:
                with open(args.json, "w", encoding="utf-8") as file:
                    json.dump(told, file, indent=1)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        runner.end()
        pool.shutdown()
        runner.put_back()
        shutil.rmtree(scratch, ignore_errors=True)
    for at, entry in enumerate(expected.entries):
        is_chosen = any(re.fullmatch(entry["test"], test.name) for test, _ in chosen)
        if is_chosen and at not in expected.seen:
            print(f"expected.toml: {entry['test']} did not differ: {entry['limit']}")
    print(", ".join(f"{n} {kind}" for kind, n in counts.items()))
    return 1 if counts["DIFFERS"] else 0


if __name__ == "__main__":
    sys.exit(main())
