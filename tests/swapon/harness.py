"""A program under `ebb run`, its lines, and what `ebb swapon --show` and /proc tell of it."""
import os
import pty
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
MIB = 1 << 20
# How long anything may take: many times what it takes on a machine that does nothing else.
PATIENCE_S = 120


class Failure(Exception):
    pass


def need(condition, why):
    if not condition:
        raise Failure(why)


class Row:
    """A line of `ebb swapon --show`."""

    def __init__(self, line):
        words = line.split()
        need(len(words) == 11, f"--show says {line!r}")
        self.name, self.kind = words[0], words[1]
        self.size, self.used, self.prio = map(int, words[2:5])
        self.medium, self.read_us = words[5], 0 if words[6] == "-" else int(words[6])
        self.hits, self.misses, self.written = map(int, words[7:10])
        self.writes = words[10]
        need(self.kind in ("file", "held", "stuck") and self.medium in ("ssd", "hdd", "ram"), f"--show says {line!r}")
        need(0 <= self.used <= self.size, f"--show says {line!r}")


class Program:
    """A program and the `ebb run` around it; all of it ends with the `with` block."""

    def __init__(self, context, command, ram, devices=(), prefix=(), environment=None):
        self.context = context
        swap = [word for device in devices for word in ("--swap", device)]
        self.errors = tempfile.TemporaryFile()
        head = list(prefix) + [context.ebb, "run", "-q", "--ram", ram] + swap + ["--"]
        self.process = subprocess.Popen(head + command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors,
                                        start_new_session=True, env=environment or context.environment)
        os.set_blocking(self.process.stdout.fileno(), False)
        self.lines, self.rest = [], b""
        self.pids = {}
        self.rounds = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        # Its whole session was started here, and `ebb` takes what is under it along.
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        for file in (self.process.stdin, self.process.stdout, self.errors):
            file.close()

    def said(self):
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace")[-600:]

    def read(self, timeout):
        """Takes in what the program says within a time. False at its end."""
        if not select.select([self.process.stdout], [], [], timeout)[0]:
            return True
        data = self.process.stdout.read()
        if data == b"":
            return False
        *lines, self.rest = (self.rest + (data or b"")).split(b"\n")
        for line in map(bytes.decode, lines):
            words = line.split()
            need(not line.startswith("WRONG"), f"{line}: {self.said()}")
            if words[0] == "ready":
                self.pids[words[1]] = int(words[2])
            if words[0] == "round":
                self.rounds[words[1]] = self.rounds.get(words[1], 0) + 1
            else:
                self.lines.append(line)
        return True

    def wait_for(self, condition, what):
        end = time.monotonic() + PATIENCE_S
        while not condition():
            alive = self.read(0.5)
            need(alive or condition(), f"the program ended with {self.process.poll()} before {what}: {self.said()}")
            need(time.monotonic() < end, f"no {what} within {PATIENCE_S} s")

    def ready(self, *names):
        self.wait_for(lambda: all(name in self.pids for name in names), "ready")
        return [self.pids[name] for name in names]

    def more_rounds(self, count=1, names=("parent",)):
        """Waits until the program has checked all its memory since."""
        while self.read(0) and select.select([self.process.stdout], [], [], 0)[0]:
            pass
        # The check that is under way began before.
        goal = {name: self.rounds.get(name, 0) + count + 1 for name in names}
        self.wait_for(lambda: all(self.rounds.get(name, 0) >= goal[name] for name in names), "more rounds")

    def end(self, status=0):
        """Waits for the end; the program must end well and say nothing on the way."""
        end = time.monotonic() + PATIENCE_S
        while self.read(0.5):
            need(time.monotonic() < end, "the program does not end")
        got = self.process.wait(PATIENCE_S)
        need(got == status, f"the program ended with {got}: {self.said()}")
        need("ebb:" not in self.said(), f"it said {self.said()}")


class Context:
    """A case's temporary directory and the command."""

    def __init__(self, ebb, long):
        self.ebb = ebb
        self.long = long
        self.root = tempfile.mkdtemp(prefix="ebb-swapon-", dir="/var/tmp")
        os.chmod(self.root, 0o777)
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("EBB_") and k != "LD_PRELOAD"}
        self.environment["EBB_TMPDIR"] = self.root
        self.notes = []

    def close(self):
        shutil.rmtree(self.root, ignore_errors=True)

    def pick(self, short, long):
        return long if self.long else short

    def path(self, name):
        return os.path.join(self.root, name)

    def directory(self, name):
        path = self.path(name)
        os.mkdir(path)
        os.chmod(path, 0o777)
        return path

    def holder(self, megabytes, percent, ram, devices, children=0, **more):
        control = tempfile.mkdtemp(prefix="control-", dir=self.root)
        os.chmod(control, 0o777)
        command = ["/usr/bin/python3", os.path.join(HERE, "holder.py"), str(megabytes), str(percent), control, str(children)]
        program = Program(self, command, ram, devices, **more)
        program.control = control
        return program

    def compile(self, name):
        binary = self.path(name)
        subprocess.run(["gcc", "-O2", "-Wall", "-Wextra", "-Wno-unused-result", "-pthread", "-o", binary,
                        os.path.join(HERE, name + ".c")], check=True)
        return binary

    def threads(self, mode, megabytes, ram, devices, **more):
        binary, stop = self.path("threads"), self.path(f"stop-{mode}")
        binary = binary if os.path.exists(binary) else self.compile("threads")
        program = Program(self, [binary, mode, stop, str(megabytes)], ram, devices, **more)
        program.stop_file = stop
        return program

    def stop_threads(self, program):
        with open(program.stop_file, "w"):
            pass
        program.end()
        os.unlink(program.stop_file)
        words = program.lines[-1].split()
        need(words[0] == "done", f"its last line is {program.lines[-1]!r}")
        return int(words[2])

    def tell(self, program, word):
        with open(os.path.join(program.control, word), "w"):
            pass

    def stop(self, program):
        self.tell(program, "stop")
        program.end()

    def command(self, *args, prefix=(), timeout=PATIENCE_S):
        command = list(prefix) + [self.ebb] + [str(arg) for arg in args]
        return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, timeout=timeout, env=self.environment)

    def good(self, *args, **more):
        done = self.command(*args, **more)
        need(done.returncode == 0 and done.stderr == "", f"ebb {' '.join(map(str, args))}: {done.returncode}, {done.stderr!r}")
        return done.stdout

    def refused(self, status, *args, **more):
        """A command that must fail with one line; that line."""
        done = self.command(*args, **more)
        what = f"ebb {' '.join(map(str, args))}: {done.returncode}, {done.stdout!r}, {done.stderr!r}"
        need(done.returncode == status and done.stdout == "", what)
        need(done.stderr.startswith("ebb: ") and done.stderr.count("\n") == 1 and "; " in done.stderr, what)
        return done.stderr

    def show(self, pid, **more):
        rows = [Row(line) for line in self.good("swapon", "--show", pid, "--bytes", "--noheadings", **more).splitlines()]
        need(len({row.name for row in rows}) == len(rows), "--show names a device twice")
        return {row.name: row for row in rows}

    def swapoff_until(self, pid, device, act):
        """Starts `ebb swapoff` on a terminal, calls `act` with it when it has moved something; status, what it said, and
        whether it came to that."""
        ours, theirs = pty.openpty()
        process = subprocess.Popen([self.ebb, "swapoff", str(pid), device], stdin=subprocess.DEVNULL, stdout=theirs,
                                   stderr=theirs, start_new_session=True, env=self.environment)
        os.close(theirs)
        said, acted = b"", False
        end = time.monotonic() + PATIENCE_S
        try:
            while True:
                # The first is said before anything moves.
                if not acted and said.count(b" left") >= 2:
                    act(process)
                    acted = True
                need(time.monotonic() < end, "swapoff does not end")
                if select.select([ours], [], [], 0.5)[0]:
                    try:
                        data = os.read(ours, 4096)
                    except OSError:
                        break
                    if not data:
                        break
                    said += data
            return process.wait(PATIENCE_S), said.decode(errors="replace"), acted
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            os.close(ours)


def descriptors(pid, directory):
    """Links of the descriptors of a process to files in a directory, by number."""
    found = {}
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{fd}")
        except FileNotFoundError:
            continue
        if target.startswith(directory + "/"):
            found[int(fd)] = target
    return found


def spill_files(pid, directory):
    return [target for target in descriptors(pid, directory).values() if ".ebb-control-" not in target]


def control_files(pid):
    return {fd: target for fd, target in descriptors(pid, "").items() if ".ebb-control-" in target}


def has_background(pid):
    """Whether Ebb's own thread runs in a process."""
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/comm") as comm:
                if comm.read() == "ebb-reclaim\n":
                    return True
    except FileNotFoundError:
        pass
    return False


def answer_to(pid, request):
    """What a process says first to a request over its control socket, which is open already."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC) as connection:
        connection.settimeout(PATIENCE_S)
        connection.connect(f"/proc/{pid}/fd/{next(iter(control_files(pid)))}")
        connection.send(request.encode())
        return connection.recv(4096).decode()
