#!/usr/bin/python3
"""Real programs under a budget far below their need: their output must be that of an unlimited run, and no process of
theirs may hold more private memory than its budget and a little. One line each; the closing line counts.

EBB names the command (default: target/release/ebb of this repository, then `ebb` on the path).
"""
import argparse
import concurrent.futures
import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree

import redis_case
from harness import MIB, Context, Failure, Outcome

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))

from command import find_ebb  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(HERE))
PYTHON = "/usr/bin/python3"
CASES = {}


def case(function):
    CASES[function.__name__.replace("_", "-")] = function
    return function


def workload(name):
    return os.path.join(HERE, "workloads", name + ".py")


def digest(*paths):
    def of_files():
        total = hashlib.sha256()
        for path in paths:
            with open(path, "rb") as file:
                while block := file.read(1 << 20):
                    total.update(block)
        return total.hexdigest()
    return of_files


@case
def python_records(context):
    return context.compare([PYTHON, workload("records"), str(context.pick(60, 400))], context.pick("36M", "64M"))


@case
def python_records_cold(context):
    """Likewise, while everything that is compressed becomes cold at once."""
    ram = context.pick("36M", "64M")
    return context.compare([PYTHON, workload("records"), str(context.pick(60, 400))], ram, env={"EBB_FORCE": "always-cold"})


@case
def numpy_sort(context):
    return context.compare([PYTHON, workload("numpy_sort"), str(context.pick(128, 512))], context.pick("64M", "128M"))


@case
def numpy_threads(context):
    return context.compare([PYTHON, workload("numpy_threads"), str(context.pick(128, 512))], context.pick("48M", "128M"))


@case
def processes_fork(context):
    return context.compare([PYTHON, workload("processes"), "fork", str(context.pick(60, 200))], context.pick("64M", "64M"))


@case
def processes_spawn(context):
    return context.compare([PYTHON, workload("processes"), "spawn", str(context.pick(60, 200))], context.pick("24M", "64M"))


@case
def redis(context):
    return redis_case.case(context)


@case
def redis_crash(context):
    return redis_case.crash(context)


@case
def sqlite(context):
    return context.compare([PYTHON, workload("sqlite_memory"), str(context.pick(100, 300))], context.pick("64M", "96M"))


@case
def sort(context):
    source, sorted_file = context.path("lines"), context.path("sorted")
    rng, left = random.Random(29), context.pick(30, 500) * MIB
    with open(source, "wb") as file:
        while left > 0:
            block = b"".join(b"%016x some text %d\n" % (rng.getrandbits(64), rng.getrandbits(20)) for _ in range(20000))
            file.write(block)
            left -= len(block)
    try:
        return context.compare(["sort", "-S", "1G", "--parallel=2", "-o", sorted_file, source], context.pick("40M", "128M"),
                               same=digest(sorted_file))
    finally:
        os.unlink(source)
        os.unlink(sorted_file)


@case
def gcc(context):
    source, output = context.path("large.c"), context.path("large.o")
    with open(source, "w") as file:
        subprocess.run([PYTHON, workload("generate_c"), str(context.pick(300, 2500))], stdout=file, check=True)
    command = ["gcc", "-O2", "-w", "-c", source, "-o", output]
    plain = context.run(command, None)
    if plain.status != 0:
        raise Failure(f"gcc alone: {plain.output[-300:]!r}")
    expected = digest(output)()
    if context.ebb is None:
        return plain, None
    ram = f"{plain.peak // 3 // MIB}M"
    os.unlink(output)
    bounded = context.run(command, ram)
    if bounded.status != 0 or digest(output)() != expected:
        raise Failure(f"status {bounded.status}, or another object: {bounded.output[-300:]!r}")
    context.bound(bounded, ram)
    context.notes.append(f"ram {ram}")
    return plain, bounded


def compressible(path, megabytes):
    rng = random.Random(31)
    words = [rng.randbytes(rng.randrange(3, 12)).hex().encode() for _ in range(20000)]
    with open(path, "wb") as file:
        for _ in range(megabytes):
            block = b" ".join(rng.choice(words) for _ in range(80000))[:MIB * 3 // 4] + rng.randbytes(MIB // 4)
            file.write(block)


def round_trip(context, megabytes, ram, compress, expand, suffix):
    source = context.path("data")
    packed, back = source + suffix, context.path("back")
    compressible(source, megabytes)
    try:
        first = context.compare(["sh", "-c", f"{compress} <data >data{suffix}"], ram, same=digest(packed))
        second = context.compare(["sh", "-c", f"{expand} <data{suffix} >back"], ram, same=digest(back))
        if digest(back)() != digest(source)():
            raise Failure("what was expanded is not what was compressed")
        context.notes.clear()
        return first if context.ebb else (first[0], None) if second else first
    finally:
        for path in (source, packed, back):
            if os.path.exists(path):
                os.unlink(path)


@case
def xz(context):
    return round_trip(context, context.pick(6, 48), context.pick("32M", "200M"), "xz -9 -T1", "xz -d", ".xz")


@case
def zstd(context):
    return round_trip(context, context.pick(6, 64), context.pick("128M", "200M"), "zstd -q --ultra -22", "zstd -q -d --long=31",
                      ".zst")


@case
def git_gc(context):
    repository = context.path("repository")
    rng = random.Random(37)
    subprocess.run(["git", "init", "-q", "--bare", repository], check=True, env=context.environment())
    importer = subprocess.Popen(["git", "-C", repository, "fast-import", "--quiet", "--depth=1"], stdin=subprocess.PIPE,
                                env=context.environment())
    files = {f"d{i % 8}/f{i}": [b"%x" % rng.getrandbits(200) for _ in range(3000)] for i in range(24)}
    for commit in range(context.pick(250, 1200)):
        changed = rng.sample(sorted(files), 2)
        importer.stdin.write(b"commit refs/heads/main\ncommitter A <a@b> %d +0000\ndata 2\nc\n" % (1_600_000_000 + commit))
        for name in changed:
            for _ in range(40):
                files[name][rng.randrange(3000)] = b"%x" % rng.getrandbits(200)
            content = b"\n".join(files[name])
            importer.stdin.write(b"M 100644 inline %s\ndata %d\n%s\n" % (name.encode(), len(content), content))
    importer.stdin.close()
    if importer.wait() != 0:
        raise Failure("git fast-import failed")
    ram = context.pick("24M", "64M")
    outcomes = []
    for budget in [None] + ([ram] if context.ebb else []):
        copy = context.path("copy")
        shutil.copytree(repository, copy)
        if context.as_user:
            subprocess.run(["chown", "-R", "65534:65534", copy], check=True)
        git = ["git", "-c", "safe.directory=*", "-c", "pack.threads=2", "-c", "gc.aggressiveWindow=120", "-C", copy]
        outcome = context.run(git + ["gc", "-q", "--aggressive", "--prune=now"], budget)
        if outcome.status != 0:
            raise Failure(f"git gc with budget {budget}: {outcome.output[-300:]!r}")
        if budget:
            context.bound(outcome, budget)
        state = [context.run(git + ["fsck", "--full", "--strict"], None), context.run(git + ["rev-list", "--all", "--objects"], None)]
        if state[0].status != 0:
            raise Failure(f"git fsck: {state[0].output[-300:]!r}")
        outcomes.append((outcome, hashlib.sha256(b"\n".join(sorted(state[1].output.split(b"\n")))).hexdigest()))
        shutil.rmtree(copy)
    shutil.rmtree(repository)
    if len({objects for _, objects in outcomes}) != 1:
        raise Failure("the repository holds other objects than before")
    context.notes.append(f"alone {outcomes[0][0].peak / MIB:.0f} MiB")
    return outcomes[0][0], outcomes[1][0] if context.ebb else None


def stress(context, ram, *options, bounded=True):
    # Without the right to lock memory beyond its limit: what is locked cannot be moved out.
    command = ["setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock"] if os.geteuid() == 0 and not context.as_user else []
    command += ["stress-ng", "--verify", "--no-rand-seed", "--temp-path", context.scratch, "--timeout",
               context.pick("3s", "60s"), *options]
    outcomes = []
    for budget in [None] + ([ram] if context.ebb else []):
        outcome = context.run(command, budget, timeout=600)
        text = outcome.output.decode(errors="replace")
        if outcome.status != 0 or "fail:" in text:
            lines = [line for line in text.split("\n") if "fail" in line or "error" in line]
            raise Failure(f"budget {budget}: status {outcome.status}: " + " | ".join(lines[:4] or text.split("\n")[-4:]))
        if budget and bounded:
            context.bound(outcome, budget)
        outcomes.append(outcome)
    return outcomes[0], outcomes[1] if context.ebb else None


@case
def stress_vm(context):
    return stress(context, "96M", "--vm", "2", "--vm-bytes", "512M", "--vm-method", "all")


@case
def stress_mmap(context):
    # It maps some of its memory with MAP_STACK, MAP_GROWSDOWN and the like, which is left alone: no bound holds for it.
    return stress(context, "48M", "--mmap", "2", "--mmap-bytes", "128M", bounded=False)


@case
def stress_mremap(context):
    return stress(context, "24M", "--mremap", "2", "--mremap-bytes", "128M")


@case
def stress_heap(context):
    return stress(context, "24M", "--malloc", "2", "--malloc-bytes", "4M", "--malloc-max", "256", "--malloc-touch", "--brk", "1",
                  "--brk-ops", "30000")


@case
def stress_processes(context):
    return stress(context, "48M", "--fork", "2", "--sigsegv", "2", "--vm", "1", "--vm-bytes", "128M")


@case
def torture(context):
    """The torture program checks itself; here it only is given less than it uses."""
    program = os.environ.get("TORTURE", os.path.join(ROOT, "target/release/torture"))
    if not os.path.exists(program):
        raise Failure(f"{program} is not built: cargo build --release -p torture (or set TORTURE)")
    shutil.copy(program, context.path("torture"))
    command = [context.path("torture"), "--seed", str(int(time.time())), "--seconds", str(context.pick(10, 300)), "--threads", "4",
               "--megabytes", context.pick("64", "256")]
    environment = {"TMPDIR": context.scratch}
    plain = context.run(command, None, env=environment)
    bounded = context.run(command, context.pick("16M", "64M"), env=environment) if context.ebb else plain
    for outcome in (plain, bounded):
        if outcome.status != 0:
            raise Failure(f"status {outcome.status}: {outcome.output[:1500].decode(errors='replace')}")
    return plain, bounded if context.ebb else None


SUITES_SHORT = "mmap fork1 gc array signal bytes threading subprocess".split()
SUITES_LONG = ("mmap subprocess threading fork1 signal socket io os gc bytes array hashlib multiprocessing_fork "
               "faulthandler").split()


# In a virtual machine whose host does not answer, these wait for ever, without Ebb too.
IGNORED = {"socket": ["*VSOCK*"]}


def suite_results(context, suite, ram):
    """Every test of a module of CPython's own tests, with what became of it."""
    report = context.path(f"report-{suite}.xml")
    if os.path.exists(report):
        os.unlink(report)
    command = [PYTHON, "-m", "test", "--junit-xml", report, "--timeout", "900"]
    command += [word for pattern in IGNORED.get(suite, []) for word in ("--ignore", pattern)] + [f"test_{suite}"]
    outcome = context.run(command, ram, timeout=3600, cwd=context.path("tests"), env={"TMPDIR": context.path("tests")})
    results = {}
    if not os.path.exists(report):
        raise Failure(f"test_{suite}, budget {ram}: status {outcome.status}, no report: {outcome.output[-500:]!r}")
    for test in xml.etree.ElementTree.parse(report).iter("testcase"):
        kinds = [child.tag for child in test if child.tag in ("skipped", "failure", "error")]
        results[test.get("name")] = kinds[0] if kinds else test.get("result", "completed")
    return outcome, results


def cpython_suite(context, suite):
    ram = context.suite_ram
    plain, expected = suite_results(context, suite, None)
    if context.ebb is None:
        return plain, None
    for attempt in range(2):
        bounded, found = suite_results(context, suite, ram)
        differing = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
        if not differing:
            context.bound(bounded, ram)
            return plain, bounded
        said = ", ".join(f"{name}: {expected.get(name)} became {found.get(name)}" for name in differing[:6])
        # Some of these tests depend on time. A difference counts when it is there again, and not in a plain run.
        context.notes.append(f"once {said}")
        if attempt == 0:
            plain, again = suite_results(context, suite, None)
            expected = {name: again.get(name) if again.get(name) != kind and name in differing else kind
                        for name, kind in expected.items()}
    raise Failure(f"{len(differing)} tests of test_{suite} differ: {said}")


for name in sorted(set(SUITES_SHORT + SUITES_LONG)):
    CASES["cpython-" + name] = lambda context, name=name: cpython_suite(context, name)


def chosen(args):
    if args.only:
        names = [name for name in CASES if any(name == only or name.startswith(only + "-") for only in args.only)]
        if not names:
            sys.exit(f"run.py: no case is called {args.only}; they are {' '.join(CASES)}")
        return names
    suites = SUITES_LONG if args.long else SUITES_SHORT
    return [name for name in CASES if not name.startswith("cpython-") or name[8:] in suites]


def run_case(name, args, ebb):
    scratch = tempfile.mkdtemp(prefix=f"ebb-programs-{name}-")
    for path in (scratch, os.path.join(scratch, "spill"), os.path.join(scratch, "tests")):
        os.makedirs(path, exist_ok=True)
        os.chmod(path, 0o777)
    context = Context(ebb, scratch, args.long, args.as_user, args.verbose)
    context.suite_ram = args.suite_ram
    begin = time.monotonic()
    try:
        plain, bounded = CASES[name](context)
        left = os.listdir(context.path("spill"))
        if left:
            raise Failure(f"left {left} in EBB_TMPDIR")
        line = f"ok   {name:28} plain {plain.seconds:7.2f} s {plain.peak / MIB:7.1f} MiB"
        if isinstance(bounded, Outcome):
            line += f"   ebb {bounded.seconds:7.2f} s {bounded.peak / MIB:7.1f} MiB   x{bounded.seconds / plain.seconds:.2f}"
        if context.notes:
            line += "   (" + "; ".join(context.notes) + ")"
        return True, line
    except Exception as error:  # a case that cannot run has failed
        kind = "" if isinstance(error, Failure) else f"{type(error).__name__}: "
        return False, f"FAIL {name:28} after {time.monotonic() - begin:.1f} s: {kind}{error}"
    finally:
        if not args.keep:
            shutil.rmtree(scratch, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--short", action="store_true", help="small sizes (the default)")
    size.add_argument("--long", action="store_true", help="the full sizes")
    parser.add_argument("--plain", action="store_true", help="only without ebb: proves the cases themselves")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="only this case, or all that begin with NAME-")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="programs at once (1); their times say little then")
    parser.add_argument("--suite-ram", default="48M", metavar="SIZE", help="budget of CPython's own tests (48M)")
    parser.add_argument("--as-user", action="store_true", help="run everything as nobody")
    parser.add_argument("--list", action="store_true", help="name the cases")
    parser.add_argument("--keep", action="store_true", help="keep the scratch directories")
    parser.add_argument("--verbose", action="store_true", help="print the commands")
    args = parser.parse_args()
    # Ended from outside, this leaves nothing behind either.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if args.list:
        print("\n".join(CASES))
        return 0
    ebb = None if args.plain else find_ebb()
    if not args.plain and not (ebb and os.path.exists(ebb)):
        sys.exit("run.py: there is no ebb: build it, or set EBB; or give --plain")
    passed = failed = 0
    pool = concurrent.futures.ThreadPoolExecutor(args.jobs)
    try:
        for good, line in pool.map(lambda name: run_case(name, args, ebb), chosen(args)):
            passed += good
            failed += not good
            print(line, flush=True)
    finally:
        # Those that run now end first, and leave nothing behind.
        pool.shutdown(cancel_futures=True)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
