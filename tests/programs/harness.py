"""Runs a command, alone or under `ebb run`, and watches from outside how much private memory each process of it holds."""
import os
import signal
import subprocess
import threading
import time

NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
POLL_S = 0.02
MIB = 1 << 20
# What a process may hold beyond its budget: code that was written to, stacks, the C library, Ebb's own tables.
SLACK = 16 * MIB


class Failure(Exception):
    pass


def session_members(leader):
    """The processes of a session, wherever they are in the tree."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as file:
                    fields = file.read().rsplit(")", 1)[1].split()
                if int(fields[3]) == leader:
                    found.append(int(entry))
            except (OSError, IndexError):
                pass
    return found


def children(pid):
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    found = []
    for task in tasks:
        try:
            with open(f"/proc/{pid}/task/{task}/children") as file:
                found += map(int, file.read().split())
        except OSError:
            pass
    return found


class Watch(threading.Thread):
    """Polls RssAnon of a process and all its descendants; keeps the peak of each."""

    def __init__(self, root, skip_root):
        super().__init__(daemon=True)
        self.root = root
        self.skip_root = skip_root
        self.peaks = {}
        self.polls = 0
        self.ended = threading.Event()

    def run(self):
        others, turn = [], 0
        while not self.ended.is_set():
            seen, work = set(), [self.root] + others
            while work:
                pid = work.pop()
                if pid not in seen:
                    seen.add(pid)
                    work += children(pid)
            # A process whose parent has ended is still of the session: looked for less often, it is dearer.
            if turn % 25 == 24:
                others = [pid for pid in session_members(self.root) if pid not in seen]
            turn += 1
            for pid in seen:
                if not (self.skip_root and pid == self.root):
                    self.look(pid)
            self.polls += 1
            self.ended.wait(POLL_S)

    def look(self, pid):
        try:
            with open(f"/proc/{pid}/status") as file:
                text = file.read()
        except OSError:
            return
        at = text.find("RssAnon:")
        if at >= 0:
            held = int(text[at + 8:text.index("kB", at)]) * 1024
            name = text[6:text.index("\n")]
            if held > self.peaks.get(pid, (0, ""))[0]:
                self.peaks[pid] = (held, name)

    def stop(self):
        self.ended.set()
        self.join()

    def peak(self):
        return max(self.peaks.values(), default=(0, "nothing"))


class Outcome:
    """What a run gave: status, output, seconds, peak of any one process in bytes."""

    def __init__(self, status, output, seconds, peak, peak_name):
        self.status, self.output, self.seconds, self.peak, self.peak_name = status, output, seconds, peak, peak_name


class Context:
    """How to run things: which ebb, which user, which scratch directory, how large."""

    def __init__(self, ebb, scratch, long, as_user, verbose):
        self.ebb, self.scratch, self.long, self.as_user, self.verbose = ebb, scratch, long, as_user, verbose
        self.notes = []

    def watch(self, root, skip_root):
        return Watch(root, skip_root)

    def pick(self, short, long):
        return long if self.long else short

    def path(self, name):
        return os.path.join(self.scratch, name)

    def command(self, command, ram, options=()):
        full = list(command)
        if ram is not None:
            full = [self.ebb, "run", "-q", "--ram", str(ram), *options, "--"] + full
        if self.as_user and os.geteuid() == 0:
            full = NOBODY + full
        return full

    def environment(self, extra=None):
        kept = {k: v for k, v in os.environ.items() if not k.startswith("EBB_") and k not in ("LD_PRELOAD", "PYTHONPATH")}
        kept.update({"LC_ALL": "C", "HOME": self.scratch, "PYTHONHASHSEED": "0", "EBB_TMPDIR": self.path("spill")})
        for name in ("EBB_FORCE", "EBB_VERBOSE"):
            if name in os.environ:
                kept[name] = os.environ[name]
        kept.update(extra or {})
        return kept

    def start(self, command, ram, cwd=None, env=None, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL):
        """Starts a command in a session of its own, with a watch on it."""
        if self.verbose:
            print("   ", " ".join(map(str, self.command(command, ram)))[:200], flush=True)
        process = subprocess.Popen(self.command(command, ram), cwd=cwd or self.scratch, env=self.environment(env),
                                   stdin=stdin, stdout=stdout, stderr=subprocess.STDOUT if stdout == subprocess.PIPE else
                                   subprocess.DEVNULL, start_new_session=True)
        # setpriv replaces itself; ebb stays as the parent of what it runs.
        watch = self.watch(process.pid, skip_root=ram is not None)
        watch.start()
        return process, watch

    def end(self, process):
        """Ends what is left of a session this driver started."""
        for pid in session_members(process.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass

    def run(self, command, ram, timeout=1800, **options):
        begin = time.monotonic()
        process, watch = self.start(command, ram, **options)
        try:
            output, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.end(process)
            process.communicate()
            watch.stop()
            raise Failure(f"did not end within {timeout} s: {' '.join(map(str, command))[:80]}") from None
        except BaseException:
            self.end(process)
            raise
        seconds = time.monotonic() - begin
        watch.stop()
        peak, name = watch.peak()
        return Outcome(process.returncode, output or b"", seconds, peak, name)

    def bound(self, outcome, ram):
        """Fails when a process held more than its budget and the slack."""
        limit = parse_size(ram) + SLACK
        if outcome.peak > limit:
            raise Failure(f"{outcome.peak_name} held {outcome.peak / MIB:.1f} MiB, more than {limit / MIB:.0f}")

    def compare(self, command, ram, same=None, timeout=1800, **options):
        """Runs a command alone and under the budget: status and output must agree, and the budget hold."""
        plain = self.run(command, None, timeout, **options)
        expected = same() if same else plain.output
        if plain.status != 0:
            raise Failure(f"without a budget: status {plain.status}: {plain.output[-300:].decode(errors='replace')}")
        if ram is None or self.ebb is None:
            return plain, None
        bounded = self.run(command, ram, timeout, **options)
        if bounded.status != 0:
            raise Failure(f"status {bounded.status}: {bounded.output[-600:].decode(errors='replace')}")
        found = same() if same else bounded.output
        if found != expected:
            raise Failure(f"the output differs: {describe(expected)} became {describe(found)}")
        self.bound(bounded, ram)
        if plain.peak < parse_size(ram) * 1.2:
            self.notes.append(f"alone it held only {plain.peak / MIB:.0f} MiB")
        return plain, bounded


def describe(output):
    return repr(output[-200:]) if isinstance(output, (bytes, str)) else repr(output)[:300]


def parse_size(text):
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(text[:-1]) * units[text[-1]] if text[-1] in units else int(text)
