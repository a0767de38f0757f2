#!/usr/bin/python3
"""Programs that somebody traces, steps, probes, interrupts or kills while Ebb works in their place: they do what they do
alone, and nothing waits for ever. One line a case, with the seed that repeats it; the closing line counts.

EBB names the command (default: target/release/ebb of this repository, then `ebb` on the path).
"""
import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))

from command import find_ebb  # noqa: E402

# What a parent says that cannot go on after a child was killed at work on its memory, and its status.
OUTLIVED = b"was killed while Ebb worked on that memory"
STATUS_KILLED = 137
FORCES = ["no-dormant", "", "no-dormant,no-move", "early"]


class Failure(Exception):
    pass


class Skipped(Exception):
    """The machine lacks what the case needs."""


class Place:
    def __init__(self, ebb, scratch, seconds, force):
        self.ebb, self.scratch, self.seconds, self.force = ebb, scratch, seconds, force
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("EBB_") and k != "LD_PRELOAD"}
        self.environment |= {"EBB_TMPDIR": scratch, "EBB_FORCE": force}

    def program(self, name):
        return os.path.join(self.scratch, name)

    def managed(self, command, ram="16M"):
        return [self.ebb, "run", "-q", "--ram", ram, "--", *command]

    def run(self, command):
        """Status and output of a command that must end."""
        process = subprocess.Popen(command, cwd=self.scratch, env=self.environment, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            output, _ = process.communicate(timeout=60 + 30 * self.seconds)
        except subprocess.TimeoutExpired:
            end_session(process.pid)
            process.communicate()
            raise Failure(f"{' '.join(command)}: it does not end") from None
        return process.returncode, output

    def expect(self, command, line):
        status, output = self.run(command)
        if status != 0 or line not in output.splitlines():
            raise Failure(f"{' '.join(command)}: status {status}: {output[-600:].decode(errors='replace')}")

    def works(self, seed, *options, tracer=()):
        worker = [self.program("worker"), str(seed), str(self.seconds), *options]
        self.expect([*tracer, *self.managed(worker)], f"whole {seed}".encode())


def end_session(leader):
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/stat") as file:
                if int(file.read().rsplit(")", 1)[1].split()[3]) == leader:
                    os.kill(int(entry), signal.SIGKILL)
        except (OSError, IndexError):
            pass


def profiled(place, seed):
    """SIGPROF as often as the kernel can send it."""
    place.works(seed, "profile")
    return ""


def keys(place, seed):
    """A register of protection keys that each thread changes all the time."""
    place.works(seed, "keys", "profile")
    return ""


def strace(place, seed):
    """All system calls and signals shown."""
    if not shutil.which("strace"):
        raise Skipped("there is no strace")
    place.works(seed, tracer=["strace", "-f", "-qq", "-o", "/dev/null"])
    return ""


def stepped(place, seed):
    """gdb attaches while the program works, steps and goes, again and again."""
    if not shutil.which("gdb"):
        raise Skipped("there is no gdb")
    worker = [place.program("worker"), str(seed), str(place.seconds + 4)]
    process = subprocess.Popen(place.managed(worker), cwd=place.scratch, env=place.environment, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        choice = random.Random(seed)
        until = time.monotonic() + place.seconds
        while time.monotonic() < until and process.poll() is None:
            for pid in children(process.pid)[:1]:
                steps = ["-ex", "handle SIGBUS SIGSYS SIGSEGV nostop noprint pass", "-ex", f"stepi {choice.randrange(1, 60)}"]
                subprocess.run(["gdb", "-nx", "-q", "-batch", "-p", str(pid), *steps, "-ex", "detach"], timeout=60,
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(0.2)
        output, _ = process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        raise Failure("it does not end after gdb has stepped through it") from None
    finally:
        end_session(process.pid)
    if process.returncode != 0 or f"whole {seed}".encode() not in output.splitlines():
        raise Failure(f"status {process.returncode}: {output[-600:].decode(errors='replace')}")
    return ""


def children(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return []


def sampled(place, seed):
    """perf looks at the stack a thousand times a second."""
    if not shutil.which("perf"):
        raise Skipped("there is no perf")
    tracer = ["perf", "record", "-q", "-F", "999", "-g", "-e", "cpu-clock", "-o", os.path.join(place.scratch, "perf.data"), "--"]
    place.works(seed, tracer=tracer)
    return ""


def deaths(place, seed, kind):
    program = [place.program("vfork_deaths"), str(seed), str(place.seconds), kind]
    status, output = place.run(place.managed(program))
    lines = output.splitlines()
    if status == 0 and lines and lines[-1].startswith(b"whole "):
        return f"{lines[-1].decode()} rounds"
    # A child was killed at work, in whose place nobody can finish: said in one line, and no page is wrong.
    if status in (STATUS_KILLED, -signal.SIGKILL) and OUTLIVED in output:
        return "ended with the reason"
    raise Failure(f"status {status}: {output[-600:].decode(errors='replace')}")


def deaths_vfork(place, seed):
    """Children between vfork and exec are killed at every step of the engine."""
    return deaths(place, seed, "vfork")


def deaths_beside(place, seed):
    """The same for processes that share the memory and run beside their parent."""
    return deaths(place, seed, "beside")


CASES = {function.__name__.replace("_", "-"): function
         for function in (profiled, keys, strace, stepped, sampled, deaths_vfork, deaths_beside)}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", default=[], choices=CASES, help="one case; may be repeated")
    parser.add_argument("--seed", type=int, help="of the first round; each round adds 1")
    parser.add_argument("--seconds", type=float, default=1.5, help="for one case (1.5)")
    parser.add_argument("--minutes", type=float, default=0, help="round after round for so long")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    ebb = find_ebb()
    if not (ebb and os.path.exists(ebb)):
        sys.exit("run.py: there is no ebb: build it, or set EBB")
    seed = args.seed if args.seed is not None else random.SystemRandom().randrange(1 << 32)
    scratch = tempfile.mkdtemp(prefix="ebb-tracing-")
    failed, skipped, done = 0, 0, 0
    until = time.monotonic() + 60 * args.minutes
    try:
        for name in ("worker", "vfork_deaths"):
            subprocess.run(["gcc", "-O1", "-g", "-Wall", "-Wextra", "-Wno-clobbered", "-pthread", "-o", os.path.join(scratch, name),
                            os.path.join(HERE, name + ".c")], check=True)
        while not done or time.monotonic() < until:
            for name, case in CASES.items():
                if args.only and name not in args.only:
                    continue
                place = Place(ebb, scratch, args.seconds, FORCES[seed % len(FORCES)])
                begin, result, told = time.monotonic(), "ok  ", ""
                try:
                    told = case(place, seed)
                except Failure as error:
                    failed, result, told = failed + 1, "FAIL", str(error)
                except Skipped as why:
                    skipped, result, told = skipped + 1, "skip", str(why)
                done += 1
                took = time.monotonic() - begin
                print(f"{result} {name:14} seed {seed} force {place.force or '-':18} {took:5.1f} s  {told}", flush=True)
            seed += 1
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    print(f"{done - failed - skipped} passed, {failed} failed, {skipped} skipped")
    sys.exit(1 if failed else 0)


main()
