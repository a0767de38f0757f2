#!/usr/bin/python3
"""Kills a squeezed program, its children, or `ebb` itself at random moments by SIGKILL. Who is not to die goes on, and uses no
processor once it rests. Afterwards nothing may be left: no process, no file in EBB_TMPDIR or in the directory of a device, no socket,
no cgroup, no shared memory. One line for each program; the closing line counts programs and kills.

EBB names the command (default: target/release/ebb of this repository, then `ebb` on the path).
"""
import argparse
import concurrent.futures
import itertools
import os
import random
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
from left_behind import marked  # noqa: E402

NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
# Ebb dies with what it runs, and what it runs with it; this is how long that may take on a busy machine, and a tree of
# processes that was told to end may take to give its memory back.
LEAVE_S = 100
# Processes at rest use less than so much of a processor together: at some moment, because what is under way may take a while.
REST_SHARE, REST_LOOK_S, REST_S = 0.02, 0.5, 60
# The slowest program should have gone round once by then.
READY_S = 180


def cgroups():
    found = set()
    for top, directories, _ in os.walk("/sys/fs/cgroup"):
        found.update(os.path.join(top, directory) for directory in directories)
        if top.count("/") > 8:
            directories.clear()
    return found


def listing(path):
    try:
        return {os.path.join(path, name) for name in os.listdir(path)}
    except OSError:
        return set()


def unix_sockets():
    """Names of sockets; those without a name vanish with their process."""
    with open("/proc/net/unix") as file:
        return {fields[7] for fields in (line.split() for line in file) if len(fields) > 7}


def shared_segments():
    with open("/proc/sysvipc/shm") as file:
        return {line.split()[1] for line in file.read().split("\n")[1:] if line}


def surroundings(temporary):
    inside = {os.path.join(top, name) for top, directories, files in os.walk(temporary) for name in directories + files}
    return {"control groups": cgroups(), "shared memory files": listing("/dev/shm"), "sockets": unix_sockets(),
            "shared memory segments": shared_segments(), "temporary files": listing("/var/tmp") | inside}


def devices(rng, temporary):
    """Options for the command: one file, or one of each kind, in directories of their own. Equal priorities: all are in use."""
    kinds = rng.choice([[], ["ssd", "hdd"], ["hdd"]])
    for kind in kinds:
        os.mkdir(os.path.join(temporary, kind))
        os.chmod(os.path.join(temporary, kind), 0o777)
    return [f"--swap=file:{temporary}/{kind},kind={kind},prio=1" for kind in kinds]


def spill_in_use(pids):
    """Bytes of unlinked files that the processes hold open."""
    total, seen = 0, set()
    for pid in pids:
        for fd in listing(f"/proc/{pid}/fd"):
            try:
                if os.readlink(fd).endswith(" (deleted)"):
                    status = os.stat(fd)
                    if (status.st_dev, status.st_ino) not in seen:
                        seen.add((status.st_dev, status.st_ino))
                        total += status.st_blocks * 512
            except OSError:
                pass
    return total


def left_behind(before, temporary):
    """What is there that was not before, and stays: other programs may have something for a moment."""
    end = time.monotonic() + LEAVE_S
    while True:
        after = surroundings(temporary)
        found = {kind: sorted(after[kind] - known)[:5] for kind, known in before.items() if after[kind] - known}
        if not found or time.monotonic() > end:
            return ", ".join(f"{kind} are left: {names}" for kind, names in found.items())
        time.sleep(0.1)


def wait_gone(mark, limit):
    begin = time.monotonic()
    while (left := marked(mark)) and time.monotonic() - begin < limit:
        time.sleep(0.02)
    return left


def ended_too(mark, others):
    """Processes that should have gone on and are gone a moment later."""
    time.sleep(0.3)
    return set(others) - set(marked(mark))


def processor_ns(pids):
    """Processor time of processes so far, by thread."""
    used = {}
    for pid in pids:
        for task in listing(f"/proc/{pid}/task"):
            try:
                with open(f"{task}/schedstat") as file:
                    used[task] = int(file.read().split()[0])
            except (OSError, ValueError):
                pass
    return used


def spinning(mark):
    """Has the victims rest, and looks whether they do, and `ebb` with them; then they go on. What uses a processor all the
    same, by thread."""
    victims = [pid for pid, name in marked(mark).items() if name == "victim"]
    for pid in victims:
        os.kill(pid, signal.SIGUSR2)
    end = time.monotonic() + REST_S
    while True:
        before, began = processor_ns(marked(mark)), time.monotonic()
        time.sleep(REST_LOOK_S)
        after, took_ns = processor_ns(marked(mark)), (time.monotonic() - began) * 1e9
        used = {task: ns - before.get(task, 0) for task, ns in after.items()}
        is_at_rest = sum(used.values()) < REST_SHARE * took_ns
        if is_at_rest or time.monotonic() > end:
            break
    for pid in victims:
        os.kill(pid, signal.SIGUSR2)
    return {} if is_at_rest else {task: f"{100 * ns / took_ns:.1f} %" for task, ns in used.items() if ns}


def end_all(mark):
    """Ends what is left of what was started here."""
    for _ in range(50):
        left = marked(mark)
        if not left:
            return
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        time.sleep(0.1)


def one(seed, args, ebb, victim):
    """Starts a program and kills: whether all was well, bytes that were spilled then, and how many were killed."""
    rng = random.Random(seed)
    mark = f"EBB_KILL_TEST=kill-{os.getpid()}-{seed}"
    temporary = tempfile.mkdtemp(prefix="ebb-kill-")
    os.chmod(temporary, 0o777)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("EBB_") and k != "LD_PRELOAD"}
    name, value = mark.split("=")
    environment.update({name: value, "EBB_TMPDIR": temporary, "TMPDIR": temporary})
    # A small budget spills at once, so that a kill often comes in the midst of it.
    command = [victim, str(rng.choice([0, 1, 2, 3])), str(args.megabytes)]
    if ebb:
        command = [ebb, "run", "-q", "--ram", args.ram, *devices(rng, temporary), "--"] + command
    if args.as_user and os.geteuid() == 0:
        command = NOBODY + command
    before = surroundings(temporary)
    errors = tempfile.TemporaryFile()
    process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors,
                               start_new_session=True)
    target = rng.choice(["ebb", "ebb", "program", "child", "session", "none"] if ebb else ["program", "child", "session"])
    when = "ready" if target == "none" else rng.choice(["start", "ready", "ready"])
    why, spilled, status, kills = "", 0, None, 0
    try:
        if when == "ready":
            said, _, _ = select.select([process.stdout], [], [], READY_S)
            line = process.stdout.readline() if said else b"nothing"
            if line != b"ready\n":
                errors.seek(0)
                raise RuntimeError(f"the program said {line!r}: {errors.read()[:600]!r}")
        time.sleep(rng.random() ** 2 * args.delay)
        alive = marked(mark)
        spilled = spill_in_use(alive)
        programs = sorted(pid for pid in alive if alive[pid] == "victim")
        if target == "child" and len(programs) < 2:
            target = "program"
        if target == "none":
            victims = []
        elif target == "ebb" or (not programs and target != "session"):
            victims = [process.pid]
        elif target == "program":
            victims = programs[:1]
        elif target == "child":
            victims = [rng.choice(programs[1:])]
        else:
            victims = list(alive)
            rng.shuffle(victims)
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
            kills += 1
        if target == "child":
            # Its death is the program's own business: all others go on, also when more of them die, and are ended here.
            others = set(programs) - set(victims)
            while len(others) > 1 and rng.random() < 0.7:
                time.sleep(rng.random() ** 2 * args.delay / 4)
                another = rng.choice(sorted(others - {programs[0]}))
                os.kill(another, signal.SIGKILL)
                others.discard(another)
                kills += 1
            if gone := ended_too(mark, others):
                why = f"the death of one child ended others: {gone}"
            elif rng.random() < args.rest and (busy := spinning(mark)):
                why = f"what should rest uses a processor: {busy}"
            elif gone := ended_too(mark, others):
                why = f"to rest and go on ended others: {gone}"
            end_all(mark)
        elif target == "none":
            # The program ends by itself: what it leaves running goes on.
            os.kill(programs[0], signal.SIGUSR1)
            status = process.wait(LEAVE_S)
            if status != 0:
                why = f"the command ended with {status}, as its program did not"
            if gone := ended_too(mark, programs[1:]):
                why = f"the end of the program ended its children: {gone}"
            end_all(mark)
        elif target == "program" and victims == programs[:1]:
            # Its children are orphans now, as they would be without Ebb; the command ends as its program did.
            status = process.wait(LEAVE_S)
            if status != -signal.SIGKILL:
                why = f"the command ended with {status}, not by SIGKILL"
            if gone := ended_too(mark, programs[1:]):
                why = f"the death of the program ended its children: {gone}"
            elif programs[1:] and rng.random() < args.rest and (busy := spinning(mark)):
                why = f"what should rest uses a processor: {busy}"
            end_all(mark)
        left = wait_gone(mark, LEAVE_S)
        if left and not why:
            why = f"processes are left: {left}"
        process.wait(LEAVE_S)
        if not why:
            why = left_behind(before, temporary)
        errors.seek(0)
        error = errors.read().decode(errors="replace")
        if not why and ("victim:" in error or "please report" in error):
            why = f"it said {error[:300]}"
    except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
        why = why or str(error)
    finally:
        end_all(mark)
        process.stdout.close()
        errors.close()
        shutil.rmtree(temporary, ignore_errors=True)
    detail = f"seed {seed}: {kills:2} kills, {target:8} at {when:6} with {spilled >> 20:3} MiB spilled"
    print(f"FAIL {detail}: {why}" if why else f"ok   {detail}", flush=True)
    return not why, spilled, kills


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=None, help="kill so often (30, or 2000)")
    parser.add_argument("--long", action="store_true", help="2000 kills, two programs at a time")
    parser.add_argument("--jobs", type=int, default=None, help="programs at a time (1, or 2)")
    parser.add_argument("--rest", type=float, default=0.5, help="share of the trees with survivors that are told to rest (0.5)")
    parser.add_argument("--plain", action="store_true", help="without ebb: proves the test itself")
    parser.add_argument("--ram", default="16M", help="budget of each process (16M)")
    parser.add_argument("--megabytes", type=int, default=12, help="memory of each thread (12)")
    parser.add_argument("--delay", type=float, default=1.5, help="most seconds before a kill (1.5)")
    parser.add_argument("--seed", type=int, default=None, help="the choices for the first program follow from it, for the next"
                                                               " one from the number after it, and so on (the time)")
    parser.add_argument("--as-user", action="store_true", help="run as nobody")
    args = parser.parse_args()
    # Ended from outside, this leaves nothing behind either.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    ebb = None if args.plain else find_ebb()
    if not args.plain and not (ebb and os.path.exists(ebb)):
        sys.exit("run.py: there is no ebb: build it, or set EBB; or give --plain")
    seeds = itertools.count(args.seed if args.seed is not None else int(time.time()))
    wanted = args.kills or (2000 if args.long else 30)
    jobs = args.jobs or (2 if args.long else 1)
    build = tempfile.mkdtemp(prefix="ebb-kill-build-")
    os.chmod(build, 0o755)
    try:
        victim = os.path.join(build, "victim")
        subprocess.run(["gcc", "-O2", "-Wall", "-Wextra", "-pthread", "-o", victim, os.path.join(HERE, "victim.c")], check=True)
        results = []

        def go_on():
            # How many are killed of one program is its own affair.
            while sum(kills for _, _, kills in results) < wanted:
                results.append(one(next(seeds), args, ebb, victim))

        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            try:
                for done in [pool.submit(go_on) for _ in range(jobs)]:
                    done.result()
            except BaseException:
                # The pool waits for who is at work; they shall begin nothing more.
                wanted = 0
                raise
        failed = sum(not good for good, _, _ in results)
        if ebb and not any(spilled for _, spilled, _ in results):
            failed += 1
            print("FAIL no kill came while anything was spilled: the test proves nothing")
    finally:
        shutil.rmtree(build, ignore_errors=True)
    print(f"{sum(kills for _, _, kills in results)} kills of {len(results)} programs, {failed} failed")
    sys.exit(1 if failed else 0)


main()
