#!/usr/bin/python3
"""Families of processes in little memory with a small spill file: forks, execs, zombies, pid namespaces, orphans, kills at birth.
Every byte is checked, the file never overflows, and at the end the disk has back what nobody holds (without a background thread nobody
looks for that while all wait).

Each run's seed is printed; --seed repeats one. EBB names the command (default: target/release/ebb of this repository, then
`ebb` on the path). Pid namespaces need root; without it such children are ordinary ones.
"""
import argparse
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

MIB = 1 << 20
# What a spill file keeps for the next content, with the clusters in use.
KEPT_BYTES = 36 * MIB
# After so long the rest is given back at the latest.
QUIET_S = 100
# A machine on which others work is slow; a run that hangs is killed.
PATIENCE_S = 600


def disk_bytes(pid):
    """Bytes of the disk that the nameless files have which a process holds open."""
    total, seen = 0, set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{name}"
        try:
            if os.readlink(path).endswith(" (deleted)") and not os.readlink(path).startswith("/memfd:"):
                status = os.stat(path)
                if (status.st_dev, status.st_ino) not in seen:
                    seen.add((status.st_dev, status.st_ino))
                    total += status.st_blocks * 512
        except FileNotFoundError:
            pass
    return total


def end_all(mark):
    for pid in marked(mark):
        try:
            os.kill(pid, 9)
        except ProcessLookupError:
            pass


def one(program, ebb, seed, shape, force, temporary):
    """One run. What was wrong, or nothing, and what it did."""
    megabytes, ram, children, burst = shape["megabytes"], shape["ram"], shape["children"], shape["burst"]
    # Room for what this process and its children hold, each another version at worst, and for nobody who is gone.
    versions = 2 * children + 3
    size = megabytes * versions if not burst else megabytes * (versions + 1)
    mark = f"EBB_FAMILIES=families-{os.getpid()}-{seed}"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("EBB_") and k != "LD_PRELOAD"}
    environment.update([mark.split("=")])
    if force:
        environment["EBB_FORCE"] = force
    command = [ebb, "run", "-q", "--ram", f"{ram}M", "--swap", f"file:{temporary},size={size}M", "--", program, str(seed),
               str(shape["steps"]), str(megabytes), str(children)] + (["burst"] if burst else [])
    errors = tempfile.TemporaryFile()
    process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True)
    why, line = "", ""
    patience_s = PATIENCE_S * (10 if shape["steps"] > 10 else 1)
    looks_nobody = "no-background" in force
    try:
        said, _, _ = select.select([process.stdout], [], [], patience_s)
        line = process.stdout.readline() if said else ""
        if line.startswith("quiet "):
            pid, needed = (int(word) for word in line.split()[1:3])
            # Who has nothing to do looks more and more rarely who has died; without a background thread nobody looks.
            has, told_until = disk_bytes(pid), time.monotonic() + (0 if looks_nobody else QUIET_S)
            while has > needed + KEPT_BYTES and time.monotonic() < told_until:
                time.sleep(1)
                has = disk_bytes(pid)
            if has > needed + KEPT_BYTES and not looks_nobody:
                why = f"the files have {has >> 20} MiB of the disk for {needed >> 20} MiB of memory"
            line = f"{' '.join(line.split()[3:])}, {has >> 20} MiB on disk for {needed >> 20}"
        elif not said:
            why = f"no answer within {patience_s} s"
            process.kill()
        process.stdin.close()
        status = process.wait(PATIENCE_S)
        errors.seek(0)
        said = errors.read().decode(errors="replace")
        if not why and (status != 0 or said):
            why = f"status {status}: {said[-600:]}"
    except (OSError, subprocess.TimeoutExpired) as error:
        why = why or str(error)
    finally:
        end_all(mark)
        process.kill()
        process.wait()
        process.stdout.close()
        errors.close()
    return why, line


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--long", action="store_true", help="some ten minutes: all shapes, with each fallback")
    parser.add_argument("--seed", type=int, help="the first run's seed (the time)")
    parser.add_argument("--runs", type=int, help="so many runs")
    args = parser.parse_args()
    # Ended from outside, this leaves nothing behind either.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    ebb = find_ebb()
    if not ebb:
        sys.exit("families: ebb is not built: make build")
    small = {"megabytes": 112, "ram": 96, "children": 2, "steps": 10, "burst": False}
    shapes = [small]
    forces = [""]
    if args.long:
        shapes = [{**small, "steps": 60}, {**small, "megabytes": 192, "ram": 160, "children": 5, "steps": 30},
                  # Seventy that all come to life have tables of their own: 1.7 % of the memory each.
                  {"megabytes": 128, "ram": 224, "children": 3, "steps": 15, "burst": True}]
        forces = ["", "no-move", "no-background", "no-move,no-process-madvise"]
    first = args.seed if args.seed is not None else random.SystemRandom().randrange(1 << 32)
    nr_runs = args.runs or (len(shapes) * len(forces) if args.long else 2)
    bad = 0
    temporary = tempfile.mkdtemp(prefix="ebb-families-", dir="/var/tmp")
    try:
        program = os.path.join(temporary, "families")
        subprocess.run([os.environ.get("CC", "cc"), "-O2", "-o", program, os.path.join(HERE, "families.c")], check=True)
        for run in range(nr_runs):
            seed = first + run
            shape, force = shapes[seed % len(shapes)], forces[seed // len(shapes) % len(forces)]
            if "no-background" in force:
                # What those hold that wait nobody gets.
                shape = {**shape, "ram": 2 * shape["ram"]}
            why, did = one(program, ebb, seed, shape, force, temporary)
            told = f"seed {seed}, {shape['megabytes']} MiB in {shape['ram']}" + (f", {force}" if force else "")
            print(f"FAIL {told}: {why} {did}" if why else f"ok   {told}: {did}", flush=True)
            bad += bool(why)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    print(f"{nr_runs} runs, {bad} failed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
