#!/usr/bin/python3
"""Devices that come and go while programs run: what `ebb swapon`, `ebb swapoff` and `ebb swapon --show` do to a program,
and what they must never do. One line a case; the closing line counts.

EBB names the command (default: target/release/ebb of this repository, then `ebb` on the path).
"""
import argparse
import os
import re
import signal
import subprocess
import sys
import time

from harness import (HERE, MIB, NOBODY, PATIENCE_S, Context, Failure, Program, answer_to, control_files, descriptors,
                     has_background, need, spill_files)

sys.path.insert(0, os.path.dirname(HERE))

from command import find_ebb  # noqa: E402

CASES = {}
HEADING = ["NAME", "TYPE", "SIZE", "USED", "PRIO", "KIND", "READ-US", "AHEAD-HIT", "AHEAD-MISS",
           "WRITTEN", "WRITES"]
# Much like others: in the long form, or when named.
LONG_ONLY = {"terminate", "closed-terminal", "children-busy"}


def case(function):
    CASES[function.__name__.replace("_", "-")] = function
    return function


def need_devices(context, pid, *directories):
    """--show and the descriptors agree that a process has these devices and no other in the case's directory."""
    rows = context.show(pid)
    need(set(rows) == set(directories), f"--show names {sorted(rows)}, not {sorted(directories)}")
    for directory in filter(os.path.isdir, map(context.path, sorted(os.listdir(context.root)))):
        files = spill_files(pid, directory)
        need(all(target.endswith(" (deleted)") for target in files), f"files with names: {files}")
        need((directory in directories) == bool(files), f"{directory} has {files}, --show {sorted(rows)}")
        need(not os.listdir(directory) or directory.startswith(context.path("control")), f"{directory} is not empty")
    return rows


@case
def move(context):
    a, b = context.directory("a"), context.directory("b")
    with context.holder(200, 50, "64M", [f"file:{a}"]) as program:
        pid, = program.ready("parent")
        program.more_rounds()
        here, there = a, b
        for _ in range(context.pick(2, 12)):
            used = need_devices(context, pid, here)[here].used
            need(used > 32 * MIB, f"only {used} bytes are swapped out")
            context.good("swapon", pid, f"file:{there}")
            rows = need_devices(context, pid, here, there)
            need(rows[here].prio > rows[there].prio, "one without priority does not come last")
            context.good("swapoff", pid, here)
            rows = need_devices(context, pid, there)
            need(rows[there].used > 32 * MIB, f"{rows[there].used} bytes moved, of {used}")
            left = descriptors(pid, here)
            need(not left, f"it still holds {left} open")
            program.more_rounds()
            here, there = there, here
        heading = context.good("swapon", "--show", pid).split("\n")[0].split()
        need(heading == HEADING, f"the heading is {heading}")
        everyone = context.good("swapon", "--show", "--noheadings")
        need(re.search(rf"^ *{pid} {re.escape(here)} +file ", everyone, re.M), f"--show without PID says {everyone!r}")
        line = context.refused(1, "swapoff", pid, there)
        need("no such device" in line, line)
        line = context.refused(1, "swapon", pid, f"file:{here}")
        need("already in use" in line, line)
        context.stop(program)


@case
def unmount(context):
    """A file system can be unmounted when its device was taken away."""
    if os.geteuid() != 0:
        context.notes.append("not root: not tried")
        return
    b = context.directory("b")
    mount = context.directory("mount")
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=777", "ebb-test", mount], stderr=subprocess.DEVNULL).returncode:
        context.notes.append("cannot mount: not tried")
        return
    try:
        with context.holder(60, 50, "24M", [f"file:{mount}"]) as program:
            pid, = program.ready("parent")
            context.good("swapon", pid, f"file:{b}")
            context.good("swapoff", pid, mount)
            done = subprocess.run(["umount", mount], stderr=subprocess.PIPE, text=True)
            need(done.returncode == 0, f"{done.stderr.strip()}: {descriptors(pid, mount)}")
            need_devices(context, pid, b)
            context.stop(program)
    finally:
        subprocess.run(["umount", "-l", mount], stderr=subprocess.DEVNULL)


@case
def no_room(context):
    a, b = context.directory("a"), context.directory("b")
    with context.holder(160, 100, "48M", [f"file:{a},prio=5"]) as program:
        pid, = program.ready("parent")
        before = context.show(pid)[a]
        line = context.refused(1, "swapoff", pid, a)
        need(f"swapoff {a} in process {pid}" in line and "add another with `ebb swapon`" in line, line)
        after = need_devices(context, pid, a)[a]
        need(after.prio == before.prio == 5 and after.size == before.size, "it came back as another one")
        need(after.used > 64 * MIB, f"{after.used} bytes are left")
        program.more_rounds()
        context.good("swapon", pid, f"file:{b}")
        context.good("swapoff", pid, a)
        need_devices(context, pid, b)
        program.more_rounds()
        context.stop(program)


def cut_short(context, act, check):
    """Has `act` end a swapoff halfway: the device stays, the program is right, and a later swapoff works."""
    a, b = context.directory("a"), context.directory("b")
    for megabytes in context.pick((200, 600), (600, 1200)):
        with context.holder(megabytes, 100, "64M", [f"file:{a},prio=7", f"file:{b}"]) as program:
            pid, = program.ready("parent")
            held = context.show(pid)[a].used
            for _ in range(context.pick(1, 5)):
                status, said, acted = context.swapoff_until(pid, a, act)
                if status == 0 or not acted:
                    break
                check(status, said)
                # It is served when the swapoff was given up.
                rows = need_devices(context, pid, a, b)
                need(rows[a].prio == 7, f"priority {rows[a].prio}")
                need(rows[a].used > 8 * MIB, f"{rows[a].used} bytes are left: not halfway")
                need(rows[b].used > 0, "nothing has moved")
                context.notes.append(f"cut at {(held - rows[a].used) >> 20} of {held >> 20} MiB")
                program.more_rounds()
                held = context.show(pid)[a].used
            else:
                context.good("swapoff", pid, a)
                need_devices(context, pid, b)
                program.more_rounds()
                context.stop(program)
                return
    raise Failure(f"swapoff of {held >> 20} MiB was done before it could be cut short")


@case
def interrupt(context):
    signals = []

    def act(process):
        signals.append([signal.SIGINT, signal.SIGTERM][len(signals) % 2])
        process.send_signal(signals[-1])

    def check(status, said):
        need(status == -signals[-1], f"it ended with {status} after signal {signals[-1]}: {said!r}")
        need("interrupted, and the device stays in use" in said, f"it said {said!r}")
    cut_short(context, act, check)


@case
def terminate(context):
    def check(status, said):
        need(status == -signal.SIGTERM and "interrupted" in said, f"it ended with {status}: {said!r}")
    cut_short(context, lambda process: process.terminate(), check)


@case
def kill(context):
    cut_short(context, lambda process: process.kill(),
              lambda status, said: need(status == -signal.SIGKILL, f"it ended with {status}: {said!r}"))


@case
def closed_terminal(context):
    """The terminal goes away in the midst of it: SIGHUP ends the client."""
    cut_short(context, lambda process: process.send_signal(signal.SIGHUP),
              lambda status, said: need(status == -signal.SIGHUP, f"it ended with {status}: {said!r}"))


@case
def children(context):
    a, b, c = (context.directory(name) for name in "abc")
    names = [f"child{at}" for at in range(3)]
    everyone = ["parent"] + names
    with context.holder(56, 60, "24M", [f"file:{a}"], children=3) as program:
        pids = dict(zip(everyone, program.ready(*everyone)))
        program.more_rounds(1, everyone)
        context.good("swapon", pids["parent"], f"file:{b},prio=9,kind=hdd")
        for name in names:
            need_devices(context, pids[name], a)
        need_devices(context, pids["parent"], a, b)
        context.good("swapoff", pids["parent"], a)
        need_devices(context, pids["parent"], b)
        program.more_rounds(1, everyone)
        # The parent's file has gone for the parent alone; each child still has its own devices.
        for at, name in enumerate(names):
            need_devices(context, pids[name], a)
            context.good("swapon", pids[name], f"file:{c}")
            context.good("swapoff", pids[name], a)
            rows = need_devices(context, pids[name], c)
            need(rows[c].used > 8 * MIB, f"{rows[c].used} bytes of {name} moved")
            for other in names[at + 1:]:
                need_devices(context, pids[other], a)
        program.more_rounds(1, everyone)
        # One that is forked now has what its parent has now, and nothing else.
        context.tell(program, "fork")
        late, = program.ready("late")
        everyone.append("late")
        rows = need_devices(context, late, b)
        need(rows[b].prio == 9, f"priority {rows[b].prio}")
        need(rows[b].medium == "hdd", f"a child's file is on {rows[b].medium}")
        context.good("swapon", late, f"file:{c}")
        context.good("swapoff", late, b)
        need_devices(context, late, c)
        need_devices(context, pids["parent"], b)
        program.more_rounds(1, everyone)
        context.stop(program)
        done = sorted(line.split()[1] for line in program.lines if line.startswith("done"))
        need(done == sorted(everyone), f"done are {done}")


@case
def children_busy(context):
    """The same where others want every processor: nobody may wait by asking again and again for its turn."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * os.cpu_count())]
    try:
        children(context)
    finally:
        for other in others:
            other.kill()
            other.wait()


@case
def exec_(context):
    a, b = context.directory("a"), context.directory("b")
    with context.holder(60, 50, "32M", [f"file:{a},size=512M,prio=4,kind=hdd"]) as program:
        pid, = program.ready("parent")
        context.good("swapon", pid, f"file:{b}")
        context.good("swapoff", pid, a)
        need_devices(context, pid, b)
        for _ in range(2):
            before = set(control_files(pid).values())
            need(len(before) == 1, f"control sockets: {before}")
            program.pids.clear()
            context.tell(program, "exec")
            again, = program.ready("parent")
            need(again == pid, "another process")
            need(not before & set(control_files(pid).values()), "its control socket outlived exec")
            rows = need_devices(context, pid, a)
            need((rows[a].size, rows[a].prio) == (512 * MIB, 4), f"size {rows[a].size}, priority {rows[a].prio}")
            need(rows[a].medium == "hdd", f"a program that another began is on {rows[a].medium}")
        program.more_rounds()
        context.stop(program)
    # A program that executes itself all the time is never hurt by a question.
    with context.threads("exec", 24, "16M", [f"file:{a}"]) as program:
        pid, = program.ready("exec")
        begin = time.monotonic()
        answered = asked = 0
        # One answer, however long a busy machine takes for it.
        while time.monotonic() - begin < (context.pick(2, 20) if answered else PATIENCE_S):
            asked += 1
            done = context.command("swapon", "--show", pid)
            answered += done.returncode == 0
            need(program.process.poll() is None, f"the question ended it: {program.process.poll()}, {program.said()}")
        execs = context.stop_threads(program)
        context.notes.append(f"{answered} of {asked} questions answered during {execs} execs")
        need(answered, "no question was answered")


CALLS = ["read", "recv", "recv_timed", "epoll", "epoll_timed", "poll", "poll_timed", "ppoll_timed", "select", "select_timed",
         "nanosleep_timed", "nanosleep_rem_timed", "clock_timed", "sleep_timed", "sem_timed", "sem_wait", "futex", "futex_timed",
         "cond", "pause", "msgrcv", "semop", "wait", "spin"]
MODES = ["handler", "blocked", "ignored", "everything"]
LIMIT_MS = 5000
# So long a call waits before its program is asked; one that began anew then would come back so much later. Most of that
# is left to a busy machine.
ASKED_MS = 3500
LATE_MS = 3000
EAGAIN, EBUSY, EINTR, ETIMEDOUT = 11, 16, 4, 110
# What the call gives when it was not disturbed: -1 with an errno, or a value.
TIMED_OUT = {"recv_timed": (-1, EAGAIN), "futex_timed": (-1, ETIMEDOUT), "sem_timed": (-1, ETIMEDOUT),
             "sigwait_timed": (-1, EAGAIN)}
LET_GO = {"read": (1, 0), "recv": (1, 0), "epoll": (1, 0), "poll": (1, 0), "select": (1, 0), "pause": (-1, EINTR),
          "sigwait": (10, 0), "signalfd": (10, 0), "msgrcv": (8, 0)}


def blocked_in(context, work):
    """Asks programs that wait in a call, and changes their devices: no call may come back early, late, or differently."""
    a, b = context.directory("a"), context.directory("b")
    binary = context.compile("blocked")
    wrong = []

    def one(call, mode, program, why):
        if not call.endswith("_timed"):
            program.process.stdin.write(b"go\n")
            program.process.stdin.flush()
        program.wait_for(lambda: any(line.startswith("result") for line in program.lines), "result")
        result = next(line for line in program.lines if line.startswith("result"))
        ret, error, released, ms, handled, pending = [int(word) for word in re.findall(r"-?\d+", result)]
        if call.endswith("_timed"):
            good = (ret, error) == TIMED_OUT.get(call, (0, 0)) and not released
            good = good and LIMIT_MS - 2 <= ms <= LIMIT_MS + LATE_MS
            program.process.stdin.write(b"go\n")
            program.process.stdin.flush()
        else:
            good = (ret, error) == LET_GO.get(call, (0, 0)) and released
        if not good or handled or pending:
            why.append(result)
        program.end()
        own = [line for line in program.lines if line.startswith("own")]
        need(own == (["own 2"] if mode == "handler" else []), f"its own signals: {own}")

    # Those with a limit first: the questions are to come before it.
    work = sorted(work, key=lambda one: (one[0] == "spin", not one[0].endswith("_timed")))
    for at in range(0, len(work), 12):
        programs = [(call, mode, Program(context, [binary, call, mode], "64M", [f"file:{a}"]), [])
                    for call, mode in work[at:at + 12]]
        try:
            for call, mode, program, why in programs:
                program.ready(call)
            time.sleep(ASKED_MS / 1000)
            for call, mode, program, why in programs:
                pid = program.pids[call]
                try:
                    need_devices(context, pid, a)
                    context.good("swapon", pid, f"file:{b}")
                    context.good("swapoff", pid, a)
                    need_devices(context, pid, b)
                except Failure as error:
                    why.append(str(error))
            # An early return would show itself now.
            time.sleep(0.2)
            for call, mode, program, why in programs:
                one(call, mode, program, why)
                wrong += [f"{call} with SIGBUS {mode}: {'; '.join(why)}"] if why else []
        finally:
            for _, _, program, _ in programs:
                program.__exit__()
    need(not wrong, "\n     ".join(wrong))


@case
def blocked(context):
    blocked_in(context, [(call, "plain") for call in CALLS] + [(call, mode) for mode in MODES for call in ("read", "poll_timed")])


@case
def signal_waits(context):
    """A program that waits for all signals gets none that it did not send."""
    blocked_in(context, [(call, "plain") for call in ("sigwait", "signalfd", "sigwait_timed", "signalfd_timed")])


@case
def small(context):
    """A program of which nothing is swapped yet has no devices to tell of."""
    a, b = context.directory("a"), context.directory("b")
    with context.threads("small", 40, "16M", [f"file:{a}"]) as program:
        pid, = program.ready("small")
        for command in (["swapon", "--show", pid], ["swapon", pid, f"file:{b}"], ["swapoff", pid, a]):
            line = context.refused(125, *command)
            need(line == f"ebb: process {pid}: it has never held the 8 MiB at which Ebb starts to manage a process, so "
                         "none of its memory is swapped; try again when it has grown\n", line)
        everyone = context.command("swapon", "--show", "--noheadings")
        need(everyone.returncode == 0 and str(pid) not in everyone.stdout + everyone.stderr, f"--show says {everyone}")
        program.process.stdin.write(b"grow\n")
        program.process.stdin.flush()
        program.more_rounds(1, ["small"])
        need_devices(context, pid, a)
        context.good("swapon", pid, f"file:{b}")
        context.good("swapoff", pid, a)
        need_devices(context, pid, b)
        context.stop_threads(program)


@case
def first_thread_ended(context):
    """What /proc tells of a process whose first thread has ended it tells of the other threads."""
    a, b = context.directory("a"), context.directory("b")
    for prefix in [(), NOBODY] if os.geteuid() == 0 else [()]:
        with context.threads("exited", 40, "16M", [f"file:{a}"], prefix=prefix) as program:
            pid, = program.ready("exited")
            program.more_rounds(1, ["exited"])
            with open(f"/proc/{pid}/stat") as stat:
                need(stat.read().rsplit(")", 1)[1].split()[0] == "Z", "its first thread runs")
            need(set(context.show(pid, prefix=prefix)) == {a}, "it has another device")
            everyone = context.good("swapon", "--show", "--noheadings", prefix=prefix)
            need(re.search(rf"^ *{pid} {re.escape(a)} +file ", everyone, re.M), f"--show without PID says {everyone!r}")
            context.good("locks", pid, prefix=prefix)
            context.good("swapon", pid, f"file:{b}", prefix=prefix)
            context.good("swapoff", pid, a, prefix=prefix)
            need(set(context.show(pid, prefix=prefix)) == {b}, "it has another device")
            program.more_rounds(1, ["exited"])
            context.stop_threads(program)


@case
def descriptors_apart(context):
    """A thread with descriptors of its own would not have a new device's file: there is none while it runs."""
    a, b = context.directory("a"), context.directory("b")
    for mode in ("unshare", "close_range"):
        with context.threads(mode, 40, "16M", [f"file:{a}"]) as program:
            pid, = program.ready(mode)
            need_devices(context, pid, a)
            line = context.refused(1, "swapon", pid, f"file:{b}")
            context.notes.append(line.strip().split(": ", 2)[2])
            answer = answer_to(pid, f"swapon file:{b}")
            need(answer.startswith(f"error {EBUSY} "), f"it answers {answer!r}")
            need_devices(context, pid, a)
            program.more_rounds(1, [mode])
            context.stop_threads(program)


@case
def spawn(context):
    """Children that have their parent's memory, but descriptors of their own, come and go all the time."""
    a, b = context.directory("a"), context.directory("b")
    with context.threads("spawn", 48, "24M", [f"file:{a}"]) as program:
        pid, = program.ready("spawn")
        begin = time.monotonic()
        done, refused = 0, []
        # Ten changes, however long a busy machine takes for them.
        while time.monotonic() - begin < (context.pick(10, 60) if done >= 10 else PATIENCE_S):
            rows = context.show(pid)
            if len(rows) == 1:
                command = ["swapon", pid, f"file:{b if a in rows else a}"]
            else:
                command = ["swapoff", pid, min(rows.values(), key=lambda row: -row.prio).name]
            result = context.command(*command)
            need(result.returncode in (0, 1), f"{command}: {result.stderr!r}")
            done += result.returncode == 0
            if result.returncode:
                refused.append(result.stderr.strip())
            need(program.process.poll() is None and program.read(0), f"it ended with {program.process.poll()}: {program.said()}")
        program.more_rounds(1, ["spawn"])
        children = context.stop_threads(program)
        context.notes.append(f"{done} changes, {len(refused)} refused, during {children} children")
        need(done > len(refused) and done >= 10, f"{done} changes in {PATIENCE_S} s, refused: {sorted(set(refused))[:3]}")


@case
def forks(context):
    """Children that are forked in the midst of a swapoff have all data, and a device."""
    a, b = context.directory("a"), context.directory("b")
    control = context.directory("control")
    binary = context.compile("forks")
    asked = {}

    def serve(program):
        """Asks the children that have checked their data, and lets them go on."""
        alive = program.read(0.01)
        for name in [name for name in program.pids if name != "parent" and name not in asked]:
            rows = context.show(program.pids[name])
            need(rows, f"{name} has no device")
            asked[name] = sorted(rows)
            with open(os.path.join(control, f"go{name[5:]}"), "w"):
                pass
        return alive

    def swapoff(program, limit_s=PATIENCE_S):
        """Takes `a` away, and interrupts that after a time. The exit status, and how many children were served."""
        before, begin = len(asked), time.monotonic()
        process = subprocess.Popen([context.ebb, "swapoff", str(program.pids["parent"]), a], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=context.environment)
        try:
            is_interrupted = False
            while process.poll() is None:
                now = time.monotonic() - begin
                need(now < PATIENCE_S, "swapoff does not end")
                if now > limit_s and not is_interrupted:
                    process.send_signal(signal.SIGINT)
                    is_interrupted = True
                serve(program)
        finally:
            process.kill()
            said = process.communicate()[1]
        return process.returncode, len(asked) - before, said

    megabytes = context.pick(96, 256)
    with Program(context, [binary, control, str(megabytes)], "40M", [f"file:{a},prio=5"]) as program:
        pid, = program.ready("parent")
        # Without room for all of it; then interrupted; then to its end; and again.
        end = time.monotonic() + context.pick(4, 60)
        served = cut = ended = 0
        while time.monotonic() < end or served == 0:
            status, more, said = swapoff(program)
            need(status == 1 and "neither RAM nor another device" in said, f"{status}: {said}")
            need(set(context.show(pid)) == {a}, "the device is gone")
            served += more
            context.good("swapon", pid, f"file:{b}")
            for limit_s in (0.05, 0.2, PATIENCE_S):
                status, more, said = swapoff(program, limit_s)
                served += more
                if status == 0:
                    break
                need(status == -signal.SIGINT and limit_s < PATIENCE_S, f"{status}: {said}")
                need(set(context.show(pid)) == {a, b}, "a device is gone")
                cut += 1
            need(set(context.show(pid)) == {b}, "the device is still there")
            ended += 1
            context.good("swapon", pid, f"file:{a},prio=5")
            context.good("swapoff", pid, b)
        with open(os.path.join(control, "stop"), "w"):
            pass
        while serve(program):
            pass
        program.end()
        done = program.lines[-1].split()
        need(done[:2] == ["done", "parent"] and int(done[2]) == len(asked), f"{done}, {len(asked)} children asked")
        context.notes.append(f"{len(asked)} children, {served} of them during swapoff, {cut} interrupted, {ended} to the end")


@case
def users(context):
    if os.geteuid() != 0:
        context.notes.append("not root: not tried")
        return
    a = context.directory("a")
    with context.holder(40, 50, "16M", [f"file:{a}"]) as program:
        pid, = program.ready("parent")
        # Before and after it has a socket.
        for _ in range(2):
            for command in (["swapon", "--show", pid], ["swapoff", pid, a], ["swapon", pid, f"file:{a}"]):
                line = context.refused(125, *command, prefix=NOBODY)
                need("another user" in line, line)
            need(str(pid) not in context.good("swapon", "--show", "--noheadings", prefix=NOBODY), "nobody sees it")
            need_devices(context, pid, a)
        socket, = control_files(pid)
        # The mode of the socket's file itself: the link has one of its own.
        mode = os.stat(f"/proc/{pid}/fd/{socket}")
        need(mode.st_mode & 0o7777 == 0o600 and mode.st_uid == 0 and mode.st_nlink == 0, f"the socket's file: {mode}")
        context.stop(program)
    b = context.directory("b")
    # The temporary directory of the command may be closed to others.
    with context.holder(40, 50, "16M", [f"file:{a}"], prefix=NOBODY) as program:
        pid, = program.ready("parent")
        need(set(context.show(pid, prefix=NOBODY)) == {a}, "nobody's own process")
        socket, = control_files(pid)
        mode = os.stat(f"/proc/{pid}/fd/{socket}")
        need(mode.st_mode & 0o7777 == 0o600 and mode.st_uid == 65534, f"the socket's file: {mode}")
        need_devices(context, pid, a)
        context.good("swapon", pid, f"file:{b}")
        context.good("swapoff", pid, a, prefix=NOBODY)
        need_devices(context, pid, b)
        program.more_rounds()
        os.chmod(a, 0o700)
        os.chown(a, 0, 0)
        line = context.refused(1, "swapon", pid, f"file:{a}")
        need("cannot create a file there (errno 13)" in line, line)
        context.stop(program)


@case
def priorities(context):
    a, b, c = (context.directory(name) for name in "abc")
    devices = [f"file:{c},size=256M,prio=1", f"file:{a},size=64M,prio=3", f"file:{b},size=64M,prio=3"]
    for megabytes in (72, 200):
        with context.holder(megabytes, 100, "32M", devices) as program:
            pid, = program.ready("parent")
            program.more_rounds()
            rows = need_devices(context, pid, a, b, c)
            need([rows[name].prio for name in (a, b, c)] == [3, 3, 1], "priorities")
            need([rows[name].size for name in (a, b, c)] == [64 * MIB, 64 * MIB, 256 * MIB], "sizes")
            used = [rows[name].used for name in (a, b, c)]
            context.notes.append("/".join(str(number >> 20) for number in used))
            need(abs(used[0] - used[1]) <= 12 * MIB, f"{used} bytes are not even")
            if megabytes == 72:
                need(used[0] > 8 * MIB and used[2] == 0, f"{used} bytes: the lowest is used before the others are full")
            else:
                need(min(used[:2]) > 48 * MIB and used[2] > 16 * MIB, f"{used} bytes: the highest are not full")
            context.stop(program)
    # A size must hold when everything is written to it, too.
    with context.holder(80, 100, "32M", [f"file:{a},size=72M"]) as program:
        pid, = program.ready("parent")
        context.good("swapon", pid, f"file:{b},size=16M,prio=2")
        # What has no room stays where it is.
        line = context.refused(1, "swapoff", pid, a)
        need("neither RAM nor another device" in line, line)
        rows = need_devices(context, pid, a, b)
        need(rows[b].prio == 2 and rows[a].prio == -1, "priorities")
        program.more_rounds()
        context.stop(program)


def close_everything(context, changes):
    """Asks a program that closes and replaces all descriptors it can name."""
    a, b = context.directory("a"), context.directory("b")
    binary, stop = context.compile("closer"), context.path("stop")
    with Program(context, [binary, stop], "24M", [f"file:{a}"]) as program:
        pid, = program.ready("closer")
        here, there = a, b
        failed = []
        end = time.monotonic() + context.pick(2, 40)
        asked = 0
        while time.monotonic() < end:
            commands = [["swapon", "--show", pid]]
            if changes:
                commands += [["swapon", pid, f"file:{there}"], ["swapon", "--show", pid], ["swapoff", pid, here]]
            for command in commands:
                asked += 1
                done = context.command(*command)
                if done.returncode != 0:
                    failed.append(done.stderr.strip())
            need(program.process.poll() is None, f"it ended with {program.process.poll()}: {program.said()}")
            rows = context.show(pid)
            if set(rows) == {there}:
                here, there = there, here
        with open(stop, "w"):
            pass
        program.end()
        context.notes.append(f"{asked} questions, {program.lines[-1]}")
        need(not failed, f"{len(failed)} of {asked} questions failed: {sorted(set(failed))[:3]}")


@case
def descriptors_(context):
    close_everything(context, changes=False)


@case
def descriptors_and_changes(context):
    close_everything(context, changes=True)


# Fills memory with blocks, of which some do not compress, changes and checks them for some seconds, and then says so.
FAULTY = """
import os, sys, time
megabytes, percent, seconds = map(int, sys.argv[1:])
blocks = [bytearray(os.urandom(1 << 20) if at * 61 % 100 < percent else os.urandom(64) * (1 << 14)) for at in range(megabytes)]
copies = [bytes(block[:64]) for block in blocks]
end = time.monotonic() + seconds
while time.monotonic() < end:
    for at, block in enumerate(blocks):
        assert block[:64] == copies[at], at
        block[1 << 19] ^= 1
print("whole")
"""


def run_faulty(context, mode, arguments, prefix=()):
    """Runs a program whose spill files fail: its status, what it said, and the lines of Ebb."""
    directory = context.directory("-".join(["faulty", mode, "user" if prefix else "own"]))
    command = [*prefix, context.path("faulty"), mode, context.ebb, "run", "-q", "--ram", "64M", "--swap", f"file:{directory}", "--",
               "/usr/bin/python3", "-c", FAULTY, *map(str, arguments)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S,
                          env=context.environment)
    lines = [line for line in done.stderr.splitlines() if line.startswith("ebb: ")]
    return directory, done.returncode, done.stdout, lines


@case
def faulty(context):
    context.compile("faulty")
    os.chmod(context.path("faulty"), 0o755)
    for prefix in ((), NOBODY) if os.geteuid() == 0 else ((),):
        # How often a device is written to depends on how fast the machine is, and so whether it is closed in time.
        for mode, least, why in (("writes", 0, "8 writes to the spill file failed within 10 minutes, the last with EIO"),
                                 ("read-only", 1, "its file system is read-only now (EROFS)")):
            directory, status, said, lines = run_faulty(context, mode, (160, 6, 5), prefix)
            need((status, said) == (0, "whole\n"), f"a program whose spill file takes nothing: {status}, {said!r}, {lines}")
            is_told = all(line.startswith(f"ebb: {directory}: {why}; nothing more is written there") for line in lines)
            need(least <= len(lines) <= 1 and is_told, f"it is told {lines}")
        directory, status, said, lines = run_faulty(context, "reads", (150, 100, 5), prefix)
        need((status, said) == (-signal.SIGBUS, ""), f"a program whose spill file gives nothing back: {status}, {said!r}, {lines}")
        wanted = re.compile(rf"ebb: the page at 0x[0-9a-f]+ cannot be brought back: {directory}, offset \d+ of the spill file: "
                            r"the read fails with EIO; check the disk; ")
        need(lines and all(wanted.match(line) for line in lines), f"it is told {lines}")


@case
def stress(context):
    torture = os.path.join(os.path.dirname(context.ebb), "torture")
    if not os.path.exists(torture):
        raise Failure(f"there is no {torture}: build it with cargo build --release -p torture")
    a, b, stop = context.directory("a"), context.directory("b"), context.path("stop")
    turns = context.pick(3, 30)
    # Not so many seconds but so many changes: how long one takes is the disk's and the machine's affair.
    command = ["sh", "-c", 'echo ready torture $$; exec "$0" "$@"', torture, "--seconds", "1000", "--until", stop,
               "--megabytes", "96", "--threads", "4"]
    with Program(context, command, "24M", [f"file:{a},prio=1", f"file:{b},prio=1"]) as program:
        pid, = program.ready("torture")
        program.wait_for(lambda: has_background(pid), "thread of Ebb")
        for turn in range(turns):
            here = (a, b)[turn % 2]
            try:
                context.good("swapoff", pid, here)
                context.good("swapon", pid, f"file:{here},prio=1")
            except Failure as failure:
                # Why it did says more.
                time.sleep(1)
                raise Failure(f"{failure}; the program: {program.process.poll()}, {program.said()}") from failure
            time.sleep(0.2)
            need(program.process.poll() is None, f"it ended with {program.process.poll()}: {program.said()}")
        with open(stop, "w"):
            pass
        program.end()
        context.notes.append(f"{2 * turns} changes; {program.lines[-1]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="one case; may be repeated")
    parser.add_argument("--long", action="store_true", help="more data, more rounds")
    parser.add_argument("--list", action="store_true", help="name the cases")
    args = parser.parse_args()
    # Ended from outside, this leaves nothing behind either.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    cases = {name.strip("-"): function for name, function in CASES.items()}
    if args.list:
        print("\n".join(cases))
        return
    unknown = set(args.only) - set(cases)
    if unknown:
        sys.exit(f"run.py: no case {', '.join(sorted(unknown))}; --list names them")
    ebb = find_ebb()
    if not (ebb and os.path.exists(ebb)):
        sys.exit("run.py: there is no ebb: build it, or set EBB")
    chosen = [name for name in cases if name in args.only or not args.only and (args.long or name not in LONG_ONLY)]
    passed = 0
    for name in chosen:
        context = Context(ebb, args.long)
        begin = time.monotonic()
        why = ""
        try:
            cases[name](context)
            passed += 1
        except (Failure, OSError, ValueError, subprocess.SubprocessError) as error:
            why = f": {error}"
        finally:
            context.close()
        notes = "; ".join(context.notes)
        print(f"{'FAIL' if why else 'ok  '} {name:23} {time.monotonic() - begin:5.1f} s  {notes}{why}", flush=True)
    print(f"{passed} of {len(chosen)} cases passed")
    sys.exit(0 if passed == len(chosen) else 1)


main()
