#!/usr/bin/python3
"""Trees of processes under one budget: their output must be that of an unlimited run, and all of them together may hold no
more anonymous memory than the budget and a little for each process. One line a case; the closing line counts.

EBB names the command (default: target/release/ebb of this repository, then `ebb` on the path).
"""
import argparse
import os
import shutil
import signal
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))

from command import find_ebb  # noqa: E402
from tree import Context, Failure, Tools  # noqa: E402

import build_cases  # noqa: E402
import fair_cases  # noqa: E402
import kill_cases  # noqa: E402
import mixed_case  # noqa: E402
import redis_cases  # noqa: E402
import server_cases  # noqa: E402
import worker_cases  # noqa: E402

# In the order in which they run: (function, seconds it may take in the short form, in the long form). These are for what
# hangs: many times what it takes on a machine that does nothing else.
CASES = {
    "make": (build_cases.make, 1500, 1800),
    "kernel-build": (build_cases.kernel_build, 1500, 10800),
    "pool": (worker_cases.pool, 1500, 1800),
    "xargs": (worker_cases.xargs, 1500, 1800),
    "fork-bomb": (worker_cases.fork_bomb, 1500, 3600),
    "nginx": (server_cases.nginx, 1500, 1800),
    "postgres": (server_cases.postgres, 1500, 3600),
    "bgsave": (redis_cases.bgsave, 1500, 3600),
    "kills": (kill_cases.kills, 1500, 3600),
    "equals": (fair_cases.equals, 300, 600),
    "idlers": (fair_cases.idlers, 300, 600),
    "mixed": (mixed_case.mixed, 1500, 1800),
}


def ended(*_):
    """Ended from outside, this leaves nothing behind either: a second signal does not cut the cleaning short."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    sys.exit(143)


def overdue(*_):
    raise Failure("it takes too long")


def result_text(ram, found, seconds):
    return f"{'alone' if ram is None else ram}: {found}, {seconds:.1f} s"


def run_case(name, args, ebb, tools):
    function, short_s, long_s = CASES[name]
    scratch = tempfile.mkdtemp(prefix=f"ebb-trees-{name}-")
    for path in (scratch, os.path.join(scratch, "spill")):
        os.makedirs(path, exist_ok=True)
        os.chmod(path, 0o777)
    context = Context(ebb, scratch, args.long, args.verbose, tools)
    begin = time.monotonic()
    why = ""
    signal.signal(signal.SIGALRM, overdue)
    signal.alarm(long_s if args.long else short_s)
    try:
        function(context)
        context.nothing_left()
    except Exception as error:  # a case that cannot run has failed
        why = ": " + ("" if isinstance(error, Failure) else f"{type(error).__name__}: ") + str(error)
    finally:
        signal.alarm(0)
        context.close()
        if not args.keep:
            shutil.rmtree(scratch, ignore_errors=True)
    told = "; ".join([result_text(*result) for result in context.results] + context.notes)
    return not why, f"{'FAIL' if why else 'ok  '} {name:12} {time.monotonic() - begin:6.1f} s  {told}{why}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="one case; may be repeated")
    parser.add_argument("--long", action="store_true", help="full sizes, and a real kernel")
    parser.add_argument("--list", action="store_true", help="name the cases")
    parser.add_argument("--keep", action="store_true", help="keep the scratch directories")
    parser.add_argument("--verbose", action="store_true", help="print the commands")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, ended)
    # Where Debian has its servers, and ordinary users do not look.
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    if args.list:
        print("\n".join(CASES))
        return 0
    unknown = set(args.only) - set(CASES)
    if unknown:
        sys.exit(f"run.py: no case {', '.join(sorted(unknown))}; --list names them")
    ebb = find_ebb()
    if not (ebb and os.path.exists(ebb)):
        sys.exit("run.py: there is no ebb: build it, or set EBB")
    chosen = [name for name in CASES if not args.only or name in args.only]
    passed = 0
    tools = tempfile.mkdtemp(prefix="ebb-trees-tools-")
    os.chmod(tools, 0o755)
    try:
        built = Tools(tools)
        for name in chosen:
            good, line = run_case(name, args, ebb, built)
            passed += good
            print(line, flush=True)
    finally:
        shutil.rmtree(tools, ignore_errors=True)
    print(f"{passed} of {len(chosen)} cases passed")
    return 0 if passed == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
