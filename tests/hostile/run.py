#!/usr/bin/python3
"""A tree with a member that stores, truncates, punches and locks at random in the area which all of its processes share, as
another user where the test is root. `ebb run`, `ps`, `set`, `locks` and `swapon --show` must survive that, answer, and
hand on nothing that moves a terminal's cursor; a process of the tree may be refused memory, but never finds other bytes
than its own. One line a round, with the seed that repeats it.

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

# For what hangs: many times what it takes.
ANSWER_S = 120
# `ebb` ended its program, and that its processes.
KILLED = (-signal.SIGTERM, -signal.SIGKILL, 128 + signal.SIGTERM, 128 + signal.SIGKILL)


def build(scratch):
    for name, options in (("member", ["-static"]), ("victim", [])):
        source = os.path.join(HERE, name + ".c")
        subprocess.run(["cc", "-O1", "-Wall", *options, "-o", os.path.join(scratch, name), source], check=True)


def is_clean(text):
    return all(byte >= 32 or byte in b"\t\n" for byte in text)


def ask(ebb, arguments):
    """One question about the tree; what is wrong with the answer."""
    command = " ".join(arguments)
    try:
        done = subprocess.run([ebb, *arguments], stdin=subprocess.DEVNULL, capture_output=True, timeout=ANSWER_S)
    except subprocess.TimeoutExpired:
        return [f"ebb {command}: no answer"]
    said = done.stdout + done.stderr
    wrong = []
    if done.returncode not in (0, 1, 125):
        wrong.append(f"ebb {command}: status {done.returncode}: {said[-300:]!r}")
    if not is_clean(said):
        wrong.append(f"ebb {command}: it prints {said[:300]!r}")
    return wrong


def ended_by(ebb, statuses):
    """What is wrong with the ends of processes that were told on a line each."""
    allowed = {"victim": (0, 128 + signal.SIGKILL), "member": (0,)}
    wrong = []
    for line in statuses.splitlines():
        name, status = line.split()
        if int(status) not in allowed[name]:
            wrong.append(f"{name} ended with status {status}")
    return wrong


def one_round(ebb, scratch, seed, seconds):
    """One tree; what went wrong, and how many questions were answered."""
    choice = random.Random(seed)
    statuses = os.path.join(scratch, "statuses")
    open(statuses, "w").close()
    victims = "".join(f'(./victim {megabytes} {seconds}; echo "victim $?" >> statuses) & '
                      for megabytes in choice.choice([[48], [24, 40]]))
    script = f'{victims} sleep 0.5; ./member {seed} {seconds}; echo "member $?" >> statuses; wait'
    command = [ebb, "run", "--ram", "32M", "--swap", f"file:{scratch}", "--", "/bin/sh", "-c", script]
    run = subprocess.Popen(command, cwd=scratch, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    pid = str(run.pid)
    wrong, asked = [], 0
    end = time.monotonic() + seconds + 0.5
    try:
        while time.monotonic() < end and run.poll() is None and not wrong:
            arguments = choice.choice([
                ["ps"], ["ps", pid], ["ps", "--json"], ["ps", "--bytes", pid], ["ps", "--validate"], ["locks", pid],
                ["set", pid, "--ram", choice.choice(["24M", "32M", "64M"])], ["swapon", "--show"],
            ])
            wrong += ask(ebb, arguments)
            asked += 1
        # What there is no memory for any more would wait for it.
        run.send_signal(signal.SIGTERM)
        said, _ = run.communicate(timeout=ANSWER_S)
        if run.returncode not in KILLED + (0,):
            wrong.append(f"ebb run: status {run.returncode}: {said[-300:]!r}")
        if not is_clean(said):
            wrong.append(f"ebb run: it prints {said[-300:]!r}")
    except subprocess.TimeoutExpired:
        wrong.append("ebb run: it does not end when it is told to")
    finally:
        run.kill()
        run.communicate()
    with open(statuses, encoding="ascii") as file:
        wrong += ended_by(ebb, file.read())
    return wrong, asked


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=3, help="of one round")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seed", type=int, help="of the first round; the next ones count on")
    args = parser.parse_args()
    ebb = find_ebb()
    seed = args.seed if args.seed is not None else random.SystemRandom().randrange(1, 1 << 31)
    scratch = tempfile.mkdtemp(prefix="ebb-hostile-", dir="/var/tmp")
    failed = 0
    try:
        os.chmod(scratch, 0o777)
        build(scratch)
        for number in range(args.rounds):
            wrong, asked = one_round(ebb, scratch, seed + number, args.seconds)
            failed += bool(wrong)
            print(f"{'FAILS' if wrong else 'ok'}    hostile --seed {seed + number} --seconds {args.seconds}: "
                  f"{'; '.join(wrong) or f'{asked} questions answered'}", flush=True)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    print(f"{args.rounds} rounds, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
