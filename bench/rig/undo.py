"""The journal of what a run changed on the system, so that it can be undone: at its end, and by the next run if it
was killed. An entry is written before (or, where a name is only known afterwards, at once after) the change it undoes;
undoing is safe to repeat, and touches nothing but what the entry names.
"""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time

BUSY_WAIT_S = 5.0


def boot_id():
    return read("/proc/sys/kernel/random/boot_id") or "unknown"


def read(path):
    """Text of a file, stripped; None when it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return None


def chosen(text):
    """What a setting is, where its file names all that it could be: `always [madvise] never`."""
    return text.split("[", 1)[1].split("]", 1)[0] if text and "[" in text and "]" in text else text


def write(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def start_of(pid):
    """When a process started, in clock ticks since boot; with its number that names it for good."""
    stat = read(f"/proc/{pid}/stat")
    if stat is None or stat.rpartition(")")[2].split()[0] == "Z":
        return None
    return int(stat.rpartition(")")[2].split()[19])


def retry(step):
    """Repeats a step that the kernel refuses while something still lets go."""
    end = time.monotonic() + BUSY_WAIT_S
    while True:
        try:
            return step()
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)


class Journal:
    """Changes in the order in which they were made, on disk. One run at a time has it, by a lock that the kernel lets
    go of when the run dies."""

    def __init__(self, directory=None, name="ebb-bench-micro"):
        directory = directory or ("/run" if os.access("/run", os.W_OK) else "/tmp")
        self.path = os.path.join(directory, name + ".json")
        self.lock_path = os.path.join(directory, name + ".lock")
        self.lock = None
        self.entries = []

    def begin(self):
        """Undoes what a killed run left. False when another run is at work."""
        self.lock = open(self.lock_path, "w", encoding="utf-8")
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.lock.close()
            return False
        try:
            with open(self.path, encoding="utf-8") as file:
                left = json.load(file)
        except FileNotFoundError:
            left = None
        except (OSError, ValueError):
            print(f"bench: {self.path} is unreadable; it is replaced", file=sys.stderr)
            left = None
        # A boot undoes everything but files, and hands numbers out anew.
        if left and left["boot"] == boot_id():
            print(f"bench: undoing {len(left['entries'])} changes that a killed run left", file=sys.stderr)
            self.entries = left["entries"]
            self.undo()
        self.save()
        return True

    def save(self):
        new = self.path + ".new"
        write(new, json.dumps({"boot": boot_id(), "entries": self.entries}))
        os.replace(new, self.path)

    def add(self, kind, *arguments):
        """Notes a change; the entry, for `undo_one`."""
        entry = [kind, *arguments]
        self.entries.append(entry)
        self.save()
        return entry

    def forget(self, entry):
        if entry in self.entries:
            self.entries.remove(entry)
            self.save()

    def undo_one(self, entry):
        UNDO[entry[0]](*entry[1:])
        self.forget(entry)

    def undo(self):
        """Undoes everything, the last first. What cannot be undone is said, and stays noted for the next run."""
        stuck = []
        for entry in reversed(self.entries):
            try:
                UNDO[entry[0]](*entry[1:])
            except (OSError, subprocess.SubprocessError) as error:
                print(f"bench: could not undo {entry}: {error}", file=sys.stderr)
                stuck.insert(0, entry)
        self.entries = stuck

    def end(self):
        self.undo()
        if self.entries:
            self.save()
        elif os.path.exists(self.path):
            os.unlink(self.path)
        # The lock's file stays: to remove it would let two runs lock two files of one name.
        self.lock.close()


def undo_process(pid, start):
    """Ends a process group that a run started, if it is still that one."""
    if start is None or start_of(pid) != start:
        return
    os.killpg(pid, signal.SIGKILL)
    end = time.monotonic() + BUSY_WAIT_S
    while start_of(pid) == start and time.monotonic() < end:
        time.sleep(0.01)


def undo_swap(device):
    with open("/proc/swaps", encoding="utf-8") as file:
        if any(line.split()[0] == device for line in file):
            subprocess.run(["swapoff", device], check=True, timeout=120)


def undo_zram(number):
    if os.path.exists(f"/sys/block/zram{number}"):
        retry(lambda: write(f"/sys/block/zram{number}/reset", "1"))
        retry(lambda: write("/sys/class/zram-control/hot_remove", str(number)))


def undo_cgroup(path):
    if not os.path.isdir(path):
        return
    # All of them were started by the run: nobody else knows of the group.
    for pid in (read(os.path.join(path, "cgroup.procs")) or "").split():
        os.kill(int(pid), signal.SIGKILL)
    retry(lambda: os.rmdir(path))


def undo_value(path, ours, before):
    """Restores a setting, unless somebody has changed it since."""
    if chosen(read(path)) == ours:
        write(path, before)


def undo_controller(path, name):
    write(path, "-" + name)


def undo_tree(path):
    shutil.rmtree(path, ignore_errors=True)


def undo_module(name):
    subprocess.run(["rmmod", name], check=False, timeout=30, stderr=subprocess.DEVNULL)


def undo_file(path):
    if os.path.exists(path):
        os.unlink(path)


UNDO = {
    "file": undo_file,
    "process": undo_process,
    "swap": undo_swap,
    "zram": undo_zram,
    "node": undo_file,
    "cgroup": undo_cgroup,
    "value": undo_value,
    "controller": undo_controller,
    "tree": undo_tree,
    "module": undo_module,
}
