"""Members of a tree are killed at random while all of it works: the others stay right, and Ebb's account of the tree soon
is true again."""
import json
import os
import random
import select
import signal
import statistics
import subprocess
import time

import harness
from left_behind import marked, open_below
from tree import LEAVE_S, MIB, Failure, need, until

# Far below what the workers hold beyond the slack of each: 6 * (40 - 16) MiB.
RAM = "64M"
WORKERS, MEGABYTES = 6, 40
# Once a member is dead, so many looks of `ebb ps` tell the truth: in most cases, because others may work beside.
TRUE_AGAIN_LOOKS = 2
# And never takes longer than this, however busy the machine is.
TRUE_AGAIN_MOST_S = 100
PATIENCE_S = 120
# How long a tree that was told to rest may go on.
SETTLE_S = 60


class Account:
    """What `ebb ps` tells of a tree: an object of `held_bytes` of the whole tree and `processes`, a list of objects with
    `pid` and `held_bytes`."""

    def __init__(self, context, pid):
        self.context, self.pid = context, pid

    def ask(self, *options):
        return subprocess.run([self.context.ebb, "ps", *options, str(self.pid)], stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=PATIENCE_S, env=self.context.environment(), check=False)

    def read(self):
        """({pid: bytes}, bytes of the tree)"""
        done = self.ask("--json")
        need(done.returncode == 0, f"ebb ps --json: status {done.returncode}: {done.stderr.strip()[:200]}")
        try:
            [tree] = json.loads(done.stdout)
            return {one["pid"]: one["held_bytes"] for one in tree["processes"]}, tree["held_bytes"]
        except (ValueError, KeyError, TypeError) as error:
            raise Failure(f"ebb ps --json says {done.stdout[:200]!r}: {error!r}") from None

    def validate(self):
        done = self.ask("--validate")
        need(done.returncode == 0, f"ebb ps --validate: status {done.returncode}: {(done.stdout + done.stderr).strip()[:300]}")


class Load:
    """The program under `ebb run`, and what it says."""

    def __init__(self, context, directory):
        self.directory = directory
        os.mkdir(directory)
        self.errors = open(os.path.join(directory, "errors"), "w+b")
        command = [context.tools.c("load"), directory, str(WORKERS), str(MEGABYTES)]
        # A file of each kind in a directory of its own, filled in turn.
        self.spills = {kind: os.path.join(directory, kind) for kind in ("ssd", "hdd")}
        for path in self.spills.values():
            os.mkdir(path)
        swap = [f"--swap=file:{path},kind={kind},prio=1" for kind, path in self.spills.items()]
        self.process = subprocess.Popen(context.command(command, RAM, swap), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=self.errors, env=context.environment(), start_new_session=True)
        os.set_blocking(self.process.stdout.fileno(), False)
        self.text = b""
        self.watch = context.watch(self.process.pid, skip_root=True)
        self.watch.start()

    def said(self):
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace")[-500:]

    def read(self, timeout):
        if select.select([self.process.stdout], [], [], timeout)[0]:
            self.text += self.process.stdout.read() or b""
        wrong = [line for line in self.text.split(b"\n") if line.startswith(b"WRONG")]
        need(not wrong, f"{wrong[:3]}: {self.said()}")

    def wait_for(self, word):
        end = time.monotonic() + PATIENCE_S
        while word not in self.text:
            self.read(0.2)
            need(word in self.text or self.process.poll() is None, f"it ended with {self.process.poll()}: {self.said()}")
            need(time.monotonic() < end, f"it does not say {word.decode()} within {PATIENCE_S} s")

    def flag(self, name, is_set):
        path = os.path.join(self.directory, name)
        if is_set:
            with open(path, "w"):
                pass
        elif os.path.exists(path):
            os.unlink(path)

    def root(self):
        found = harness.children(self.process.pid)
        need(len(found) == 1, f"ebb has the children {found}")
        return found[0]

    def members(self):
        """All of the tree but its root and `ebb`, living."""
        found, work = [], harness.children(self.root())
        while work:
            pid = work.pop()
            found.append(pid)
            work += harness.children(pid)
        return [pid for pid in found if is_alive(pid)]


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


class Tally:
    """Kills, and what the account said of them. The first complaint is kept, so that the survivors are seen to the end."""

    def __init__(self):
        self.kills, self.restless, self.validated, self.seconds, self.looks, self.complaint = 0, 0, 0, [], [], None

    def look(self, account, victim, held_before, is_quiet, is_lonely):
        """Waits until the account has forgotten a victim. Where nobody else does anything all figures fit together then, and
        the sum has fallen, but for a victim with children: what they shared with it is theirs from then on."""
        if self.complaint:
            return
        need(until(lambda: not is_alive(victim), PATIENCE_S, 0.001), f"{victim} was killed and does not die")
        begin = asked = time.monotonic()
        last, looks = "nothing", 0

        def is_true():
            nonlocal asked, last, looks
            asked, looks = time.monotonic(), looks + 1
            processes, total = account.read()
            last = f"{total} bytes in {sorted(processes)}"
            if victim in processes:
                return False
            if not (is_quiet and is_lonely):
                return True
            own, total_before = held_before[0].get(victim, 0), held_before[1]
            # Pages that it shared with others stay theirs.
            return total <= total_before and (own < 2 * MIB or total < total_before)

        try:
            came = until(is_true, TRUE_AGAIN_MOST_S, 0.01)
            self.seconds.append(asked - begin)
            self.looks.append(looks)
            if not came:
                said = [account.ask(option).stdout for option in ("--json", "--validate")]
                raise Failure(f"{TRUE_AGAIN_MOST_S} s after the kill of {victim}, which held {held_before[0].get(victim)} of"
                              f" {held_before[1]} bytes, `ebb ps --json` still says {last}; before: {held_before};"
                              f" now: {said[0][:6000]} {said[1]}")
            if is_quiet:
                account.validate()
                self.validated += 1
        except (Failure, subprocess.TimeoutExpired) as failure:
            self.complaint = str(failure)


def read_before(account, tally):
    if tally.complaint:
        return {}, 0
    try:
        return account.read()
    except Failure as failure:
        tally.complaint = str(failure)
        return {}, 0


def is_at_work(pid):
    """Whether a thread of the process runs, or would if it had a processor."""
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/stat") as file:
                if file.read().rsplit(")", 1)[1].split()[0] in "RD":
                    return True
    except OSError:
        pass
    return False


def settle(account, tally, load):
    """Waits until the account stands still, and everybody sleeps: whoever works ends with what it is in the midst of. False
    when it does not."""
    end = time.monotonic() + SETTLE_S
    before = None
    while time.monotonic() < end and not tally.complaint:
        time.sleep(0.1)
        now = read_before(account, tally)
        if now == before and not any(is_at_work(pid) for pid in [load.root(), *load.members()]):
            return True
        before = now
    tally.restless += 1
    return False


def has_children(pid):
    try:
        return any(open(f"/proc/{pid}/task/{task}/children").read() for task in os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return True


def one_round(context, number, kills, rng, tally):
    """A tree, some of whose members are killed one after the other; at the end it is told to end, or its root is killed."""
    load = Load(context, context.path(f"round{number}"))
    begin = time.monotonic()
    account = Account(context, load.process.pid)
    load.wait_for(b"ready")
    for kill in range(kills):
        load.read(0)
        time.sleep(rng.random() ** 2 * 0.6)
        is_quiet = kill % 2 == 0
        if is_quiet:
            load.flag("pause", True)
            is_quiet = settle(account, tally, load)
        held = read_before(account, tally)
        members = load.members()
        need(members, f"no member is alive: {load.said()}")
        victim = rng.choice(members)
        is_lonely = not has_children(victim)
        os.kill(victim, signal.SIGKILL)
        tally.kills += 1
        tally.look(account, victim, held, is_quiet, is_lonely)
        load.flag("pause", False)
        need(load.process.poll() is None, f"the death of a member ended all with {load.process.poll()}: {load.said()}")
    is_root_killed = number % 2 == 1
    if is_root_killed:
        root, others = load.root(), load.members()
        os.kill(root, signal.SIGKILL)
        tally.kills += 1
    else:
        load.flag("stop", True)
    try:
        status = load.process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        raise Failure(f"the command does not end: {load.said()}") from None
    load.read(0)
    if is_root_killed:
        need(status == -signal.SIGKILL, f"its root was killed, and the command ended with {status}: {load.said()}")
        need(others, "its root had nobody left")
        # Its workers see that it is gone, and end.
    else:
        need(status == 0 and b"done" in load.text, f"it ended with {status}: {load.said()}")
    need(until(lambda: not marked(context.mark), LEAVE_S), f"processes are left: {marked(context.mark)}")
    load.read(0)
    load.watch.stop()
    for spill in load.spills.values():
        need(not os.listdir(spill) and not open_below(spill), f"files are left: {os.listdir(spill)[:5]} {open_below(spill)}")
    context.results.append((RAM, load.watch.found, time.monotonic() - begin))
    return load.watch.found


def kills(context):
    rng = random.Random(int(time.time()))
    rounds, each = context.pick((1, 12), (10, 50))
    tally = Tally()
    found = [one_round(context, number, each, rng, tally) for number in range(rounds)]
    context.notes.append(f"{tally.kills} kills")
    if tally.seconds:
        slow = sum(looks > TRUE_AGAIN_LOOKS for looks in tally.looks)
        context.notes.append(f"counters true after {statistics.median(tally.seconds) * 1000:.0f} ms (most"
                             f" {max(tally.seconds) * 1000:.0f} ms, {slow} of {len(tally.looks)} after more than"
                             f" {TRUE_AGAIN_LOOKS} looks)")
    need(not tally.complaint, str(tally.complaint))
    need(tally.validated >= tally.kills // 8, f"all figures were looked at after {tally.validated} kills only")
    need(tally.restless < tally.kills // 4, f"the tree came to no rest before {tally.restless} kills")
    median = statistics.median(tally.looks)
    need(median <= TRUE_AGAIN_LOOKS, f"the counters are true again after {median} looks, as a median")
    for one in found:
        context.bound_tree(one, RAM)
