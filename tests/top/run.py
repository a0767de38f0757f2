#!/usr/bin/python3
"""`ebb top` on a real terminal, seen through a terminal emulator (pyte): what is on the screen, what keys do, and that the terminal is left
as it was, however it ends. One line a case; the closing line counts.

EBB names the command (default: target/release/ebb of this repository, then `ebb` on the path).
"""
import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time

import pyte

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))

from cases import Failure, Skip, need, run_cases  # noqa: E402
from command import find_ebb  # noqa: E402

# Grows to three times its budget, says so, and goes on using it until its input ends.
PROGRAM = """
import hashlib, random, select, sys
blocks = [bytearray(hashlib.shake_128(str(i).encode()).digest(1 << 17) * 4) for i in range(96)]
print("grown", flush=True)
while not select.select([sys.stdin], [], [], 0.01)[0]:
    for block in random.sample(blocks, 8):
        block[random.randrange(len(block))] ^= 1
"""
# Swaps all the time. With an argument, another process of its tree, and another thread of it, compute meanwhile.
STALLER = """
import hashlib, random, subprocess, sys, threading
def compute():
    while True:
        hashlib.pbkdf2_hmac("sha256", b"", b"", 1 << 20)
if sys.argv[1:]:
    threading.Thread(target=compute, daemon=True).start()
    beside = subprocess.Popen([sys.executable, "-c", "while True: pass"])
blocks = [bytearray(hashlib.shake_128(str(i).encode()).digest(1 << 17) * 4) for i in range(96)]
print("grown", flush=True)
ends = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), ends.set()), daemon=True).start()
while not ends.is_set():
    for block in random.sample(blocks, 8):
        block[random.randrange(len(block))] ^= 1
if sys.argv[1:]:
    beside.kill()
"""
LIMIT_S = 20
NAME, OTHER = "top-test", "top-other"
NOBODY = 65534
BARS = "▁▂▃▄▅▆▇█"


@contextlib.contextmanager
def tree(ebb, name, user=None, program=(PROGRAM,)):
    """A program under Ebb that swaps. It is what `with` gives."""
    command = [ebb, "run", "-q", "--ram", "16M", "--name", name, "--", "/usr/bin/python3", "-c", *program]
    program = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, user=user, group=user,
                               extra_groups=[] if user else None, env=environment(), cwd="/")
    try:
        need(program.stdout.readline() == "grown\n", "the program did not grow")
        yield program
    finally:
        program.stdin.close()
        try:
            need(program.wait(LIMIT_S) == 0, f"the program ended with {program.returncode}")
        finally:
            program.kill()
            program.wait()


def environment(**more):
    kept = {name: os.environ[name] for name in ("PATH", "EBB_TMPDIR") if name in os.environ}
    return {"TERM": "xterm-256color", "LANG": "C.UTF-8", "HOME": "/nowhere", **kept, **more}


class Top:
    """`ebb top` as the only process of a session on a terminal of its own."""

    def __init__(self, ebb, size, *arguments, user=None, settles=True, **variables):
        self.master, self.slave = pty.openpty()
        self.screen = pyte.Screen(*size)
        self.stream = pyte.ByteStream(self.screen)
        self.bytes = b""
        self.resize(*size)
        self.before = termios.tcgetattr(self.slave)

        def begin():
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            os.tcsetpgrp(0, os.getpid())
            if user:
                os.fchown(0, user, user)
                os.setgroups([])
                os.setgid(user)
                os.setuid(user)

        self.process = subprocess.Popen([ebb, "top", "-d", "0.3", *arguments], stdin=self.slave, stdout=self.slave, stderr=self.slave,
                                        preexec_fn=begin, env=environment(**variables), cwd="/")
        if settles:
            self.until(lambda: "quit" in self.lines()[-1], "there is no line of keys")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)

    def resize(self, columns, lines):
        self.screen.resize(lines, columns)
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def lines(self):
        return [line.rstrip() for line in self.screen.display]

    def read(self, patience_s):
        if select.select([self.master], [], [], patience_s)[0]:
            more = os.read(self.master, 1 << 16)
            self.bytes += more
            self.stream.feed(more)

    def until(self, condition, why):
        end = time.monotonic() + LIMIT_S
        while not condition():
            if time.monotonic() > end or self.process.poll() is not None:
                self.read(0)
                raise Failure(f"{why}; status {self.process.poll()}:\n" + "\n".join(self.lines()))
            self.read(0.05)

    def press(self, keys):
        os.write(self.master, keys)

    def has(self, text):
        return any(text in line for line in self.lines())

    def row(self, begin):
        """The place of the line of the table that begins with this name."""
        return next((at for at, line in enumerate(self.lines()) if re.match(rf"[ ▾▸]*{re.escape(begin)}\b.*[0-9]", line)), None)

    def ends(self, status):
        self.wait()
        need(self.process.returncode == status, f"it ended with {self.process.returncode} and not {status}")
        need(termios.tcgetattr(self.slave) == self.before, "the modes of the terminal are not those from before")
        need(self.bytes.rfind(b"\x1b[?1049l") > self.bytes.rfind(b"\x1b[?1049h"), "the other screen is still there")
        need(self.bytes.rfind(b"\x1b[?25h") > self.bytes.rfind(b"\x1b[?25l"), "the cursor is still hidden")

    def wait(self):
        end = time.monotonic() + LIMIT_S
        while self.process.poll() is None:
            need(time.monotonic() < end, "it does not end")
            self.read(0.02)
        while select.select([self.master], [], [], 0.05)[0]:
            self.read(0)


class Cases:
    """Each method is a case, whose docstring says what holds. One that returns a text was skipped, for that reason."""

    def __init__(self, ebb):
        self.ebb = ebb

    def all_is_on_a_small_screen(self):
        """At 80x24: the names, the figures, both graphs; keys sort, fold, list, help, pause and quit."""
        with Top(self.ebb, (80, 24), NAME, OTHER) as top:
            lines = top.lines()
            need(re.match(r" ebb top +\d+ trees, \d+ processes +held [0-9.]+[KMG], wanted [0-9.]+[KMG] .*every 0.3 s", lines[0]), lines[0])
            need(re.match(r" held +1\d\.\dM of 16\.0M +█+░* +\d+% +peak [0-9.]+M +wanted [0-9.]+M$", lines[2]), lines[2])
            need(re.match(r" stalled +[0-9.]+% some +([0-9.]+%|-) full \(last 10 s\) +[0-9.]+ threads wait", lines[3]), lines[3])
            need(re.match(r" faults/s +[0-9.]+k? pool +[0-9.]+ device +[0-9.]+ staged │ +[0-9.]+ refault +[0-9.]+ ahead", lines[4]), lines[4])
            need(re.match(r" swapped +[0-9.]+M +pool [0-9.]+[BKM] in [0-9.]+[BKM] .*device [0-9.]+[BKM] in [0-9.]+[BKM]", lines[5]), lines[5])
            need(lines[6].startswith("╭ held ─") and "budget 16.0M ╮╭ faults/s, pool and device ─" in lines[6], lines[6])
            top.until(lambda: top.lines()[10][38] in BARS and top.lines()[10][78] in BARS, "a graph is empty")
            need(lines[12].split() == "TREE/COMMAND PID ▼HELD WANTED RESIDENT POOL COLD DEVICE FAULTS/S STALL".split(), lines[12])
            need(top.row(NAME) and top.row(OTHER), "a tree is missing")
            cells = lines[top.row(NAME)].split()
            told = json.loads(subprocess.run([self.ebb, "ps", "--json", NAME], capture_output=True, check=True).stdout)[0]
            need(cells[2] == str(told["supervisor"]), f"another PID: {cells}")
            wanted = sum(process["wanted_bytes"] for process in told["processes"]) / 2**20
            need(abs(float(cells[4].rstrip("M")) - wanted) < 1, f"wanted: {wanted} and {cells}")
            need(max(map(len, lines)) <= 80, "a line is too long")
            self.keys(top)
            top.press(b"q")
            top.ends(0)

    def keys(self, top):
        top.press(b"<<")
        top.until(lambda: "sort: name" in top.lines()[23], "it is not sorted by name")
        top.until(lambda: top.row(OTHER) < top.row(NAME), "names are out of order")
        top.press(b"r")
        top.until(lambda: top.row(NAME) < top.row(OTHER), "names are not reversed")
        top.press(b"g\x1b[D")
        top.until(lambda: top.has(f"▸ {NAME} (1)"), "the tree is not folded")
        top.press(b"\x1b[C")
        top.until(lambda: top.has(f"▾ {NAME}"), "the tree is still folded")
        top.press(b"t")
        top.until(lambda: top.row("python3") == 13 and top.row(NAME) is None, "it is no list")
        top.press(b"t")
        top.press(b"h")
        top.until(lambda: top.has("any key goes back") and top.has("STALL   "), "there is no help")
        top.press(b"x")
        top.until(lambda: top.row(NAME) and not top.has("any key goes back"), "the help stays")
        top.press(b"p")
        top.until(lambda: top.has(" PAUSED "), "it does not pause")
        top.press(b"p+")
        top.until(lambda: top.has("every 0.5 s"), "it does not go on more slowly")

    def a_wide_screen_and_other_sizes(self):
        """At 200x50 there is more; a terminal of another size is filled, a tiny one says so; Ctrl-C quits."""
        with Top(self.ebb, (200, 50), NAME) as top:
            lines = top.lines()
            need("╭ stalled, some ─" in lines[6] and lines[6].endswith(" 100% ╮"), lines[6])
            heading = next(line for line in lines if "TREE/COMMAND" in line).split()
            need({"BUDGET", "FREE", "SHARED", "RATIO", "SWAPPED", "AGE"} < set(heading), str(heading))
            need(top.row(NAME) and top.row(OTHER) is None, "another tree is shown")
            for size, begin in (((80, 24), " TREE/COMMAND"), ((100, 30), " TREE/COMMAND"), ((40, 6), "ebb top needs 60x8; this is 40x6")):
                top.resize(*size)
                top.process.send_signal(signal.SIGWINCH)
                top.until(lambda: any(line.startswith(begin) for line in top.lines()), f"{size}: no {begin}")  # pylint: disable=W0640
                need(max(map(len, top.lines())) <= size[0], f"{size}: a line is too long")
            top.press(b"\x03")
            top.ends(0)

    def colors_are_a_choice(self):
        """With colors there are some; with NO_COLOR, or --no-color, none; --ascii is nothing but ASCII."""
        color = re.compile(rb"\x1b\[(?:[0-9;]*;)?(3[1-7]|38;5;\d+|9[0-7])(?:;[0-9;]*)?m")
        for arguments, variables, has_color in (([], {}, True), ([], {"NO_COLOR": "1"}, False), (["--no-color", "--ascii"], {}, False)):
            with Top(self.ebb, (80, 24), *arguments, **variables) as top:
                top.press(b"h")
                top.until(lambda: top.has("any key goes back"), "there is no help")  # pylint: disable=W0640
                need((color.search(top.bytes) is not None) == has_color, f"{arguments} {variables}: colors")
                need("--ascii" not in arguments or top.bytes.isascii(), "it is not ASCII")
                top.press(b"q")
                top.ends(0)

    def signals_leave_the_terminal_as_it_was(self):
        """SIGTERM, SIGINT and SIGHUP end it by that signal; SIGTSTP stops it, and SIGCONT brings all back."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            with Top(self.ebb, (80, 24)) as top:
                top.process.send_signal(number)
                top.ends(-number)
        with Top(self.ebb, (80, 24)) as top:
            # A process without a parent in its session cannot be stopped from a terminal: it goes on.
            top.press(b"\x1a")
            top.until(lambda: top.bytes.count(b"\x1b[?1049h") >= 2 and "quit" in top.lines()[-1], "Ctrl-Z loses the screen")
            os.kill(top.process.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, top.process.pid, os.WSTOPPED)
            termios.tcsetattr(top.slave, termios.TCSANOW, top.before)
            os.kill(top.process.pid, signal.SIGCONT)
            top.until(lambda: top.bytes.count(b"\x1b[?1049h") >= 3, "SIGCONT brings nothing back")
            need(not termios.tcgetattr(top.slave)[3] & termios.ICANON, "the terminal is not raw again")
            top.press(b"q")
            top.ends(0)

    def a_job_stops_and_goes_on(self):
        """A shell with jobs gets its terminal back while the job is stopped, and the job its screen."""
        master, slave = pty.openpty()
        shell = subprocess.Popen(["/bin/bash", "--norc", "-i"], stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
                                 preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0), env=environment(PS1="ready$ "), cwd="/")
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        seen = b""

        def until(text, why):
            nonlocal seen
            end = time.monotonic() + LIMIT_S
            while text not in seen:
                need(time.monotonic() < end, f"{why}: {seen[-300:]}")
                if select.select([master], [], [], 0.1)[0]:
                    seen += os.read(master, 1 << 16)
            seen = seen[seen.index(text) + len(text):]

        try:
            until(b"ready$ ", "there is no prompt")
            os.write(master, f"{self.ebb} top -d 0.3\n".encode())
            until(b"pause", "there is no screen")
            os.write(master, b"\x1a")
            until(b"\x1b[?1049l", "the screen stays")
            until(b"ready$ ", "it does not stop")
            os.write(master, b"fg\n")
            until(b"\x1b[?1049h", "it does not go on")
            until(b"pause", "there is no screen again")
            os.write(master, b"q")
            until(b"ready$ ", "it does not end")
        finally:
            shell.kill()
            shell.wait()
            os.close(master)
            os.close(slave)

    def a_terminal_that_hangs_up_ends_it(self):
        """When the terminal goes away, so does `ebb top`."""
        with Top(self.ebb, (80, 24)) as top:
            os.close(top.master)
            need(top.process.wait(LIMIT_S) == -signal.SIGHUP, f"it ended with {top.process.returncode}")
            top.master = os.open("/dev/null", os.O_RDWR)

    def trees_come_and_go(self):
        """A tree that starts appears, one that ends goes, and one that is named is waited for."""
        with Top(self.ebb, (80, 24)) as top:
            with tree(self.ebb, "top-late"):
                top.until(lambda: top.row("top-late"), "the new tree is not there")
                named = Top(self.ebb, (80, 24), "top-late")
            with named:
                named.until(lambda: named.has("tree top-late: ended.") and named.has(" 0 trees, 0 processes "), "it is not said to have ended")
                top.until(lambda: top.row("top-late") is None, "the tree is still there")
                with tree(self.ebb, "top-late"):
                    named.until(lambda: named.row("top-late"), "a new one of that name is not there")
                named.press(b"q")
                named.ends(0)

    def full_is_when_nobody_else_could_run(self):
        """Of a program that does nothing but swap, `full` is `some`; beside a thread or a process that computes, it is next to nothing."""
        with tree(self.ebb, "top-alone", program=(STALLER,)), tree(self.ebb, "top-beside", program=(STALLER, "beside")):
            names = ["top-alone", "top-beside"]
            told = subprocess.run([self.ebb, "top", "-b", "-n", "2", "-d", "4", *names], capture_output=True, text=True, timeout=LIMIT_S, check=True)
        frame = told.stdout[told.stdout.rindex("ebb top "):].splitlines()
        heading = frame[1].split()
        for name in names:
            line = next(line for line in frame if line.startswith(f"{name} ") and len(line.split()) == len(heading)).split()
            some, full = (float(line[heading.index(column)].rstrip("%")) for column in ("STALL", "FULL"))
            need(some > 10, f"{name}: {some}% is no stall")
            need(full > 0.9 * some if name == "top-alone" else full < 0.2 * some, f"{name}: {some}% some, {full}% full")

    def each_user_sees_his_own(self):
        """An ordinary user sees his trees alone, root all."""
        if os.getuid() != 0:
            raise Skip("it needs root")
        with tree(self.ebb, "top-nobody", user=NOBODY):
            with Top(self.ebb, (80, 24), user=NOBODY) as top:
                top.until(lambda: top.row("top-nobody"), "his tree is not there")
                need(top.row(NAME) is None and " 1 tree, 1 process " in top.lines()[0], "he sees others")
                top.press(b"q")
                top.ends(0)
            with Top(self.ebb, (80, 24)) as top:
                top.until(lambda: top.row("top-nobody") and top.row(NAME), "root does not see all")
        return None

    def without_a_terminal(self):
        """Without a terminal, or on one that cannot move the cursor, it says what to use; --batch needs none."""
        def run(*arguments, **variables):
            return subprocess.run([self.ebb, "top", *arguments], capture_output=True, text=True, timeout=LIMIT_S, check=False,
                                  env=environment(**variables))
        told = run()
        need(told.returncode == 125 and told.stdout == "" and told.stderr.count("\n") == 1, told.stderr)
        need("no terminal" in told.stderr and "`ebb ps --json` or `ebb metrics`" in told.stderr, told.stderr)
        with Top(self.ebb, (200, 24), settles=False, TERM="dumb") as top:
            top.wait()
            need(top.process.returncode == 125 and b"ebb: TERM=dumb: " in top.bytes and b"ebb top --batch" in top.bytes, repr(top.bytes))
        need("no running tree" in run("--batch", "not-there").stderr, "a tree that is not there is no mistake")
        batch = run("-b", "-n", "2", "-d", "0.1", NAME, TERM="dumb")
        need(batch.returncode == 0 and batch.stderr == "" and batch.stdout.isascii() and "\x1b" not in batch.stdout, batch.stderr)
        need(batch.stdout.count("ebb top ") == 2 and len(re.findall(rf"^{NAME} +16\.0M ", batch.stdout, re.M)) == 2, batch.stdout)
        need(len(re.findall(rf"^{NAME} +\d+ python3 ", batch.stdout, re.M)) == 2, batch.stdout)

    def columns_of_ps(self):
        """`ebb ps -o` has the columns that were asked for, and agrees with --json."""
        def ps(*arguments):
            return subprocess.run([self.ebb, "ps", *arguments], capture_output=True, text=True, timeout=LIMIT_S, check=False)
        told = json.loads(ps("--json", NAME).stdout)[0]
        process = told["processes"][0]
        line = ps("-o", "tree=,supervisor=,budget=", "--bytes", NAME).stdout
        need(line.split() == [NAME, str(told["supervisor"]), str(told["budget_bytes"])] and line.count("\n") == 1, line)
        line = ps("-o", "pid,command,wanted,managed", "--bytes", "--no-headers", NAME).stdout
        need(line.split()[:2] == [str(process["pid"]), "python3"] and line.split()[3] == "yes", line)
        need(abs(int(line.split()[2]) - process["wanted_bytes"]) < 1 << 20, line)
        need(set(told["events"]["faults"]) == {"first_touch", "staged", "pool", "file", "protected", "spurious"}, str(told["events"]))
        need(0 < told["stall"]["some_percent"] <= 100 and told["stall"]["fault_ns"] > 0, str(told["stall"]))
        wrong = ps("-o", "pid,rss")
        need(wrong.returncode == 125 and "rss: there is no such column" in wrong.stderr and " faults/s; " in wrong.stderr, wrong.stderr)
        need("  faults/s " in ps("-o", "help").stdout, "help lists no columns")

    def all(self):
        return [self.all_is_on_a_small_screen, self.a_wide_screen_and_other_sizes, self.colors_are_a_choice,
                self.signals_leave_the_terminal_as_it_was, self.a_job_stops_and_goes_on, self.a_terminal_that_hangs_up_ends_it,
                self.trees_come_and_go, self.full_is_when_nobody_else_could_run, self.each_user_sees_his_own, self.without_a_terminal, self.columns_of_ps]


def main():
    # A shell without job control ignores SIGINT in what it starts in the background, and that would be inherited.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    ebb = find_ebb()
    with tree(ebb, NAME), tree(ebb, OTHER):
        cases = Cases(ebb).all()
        return run_cases("top", {case.__name__: case for case in cases})


if __name__ == "__main__":
    sys.exit(main())
