"""The kernel's own swap: a zram device with lz4 as swap, and memory cgroups (v1 or v2) with a limit."""

import os
import shutil
import stat
import subprocess
import time

from .stop import together
from .undo import read, write

ZRAM_BYTES = 4 << 30
PRIORITY = 32767
MIB = 1 << 20


class Missing(Exception):
    """The kernel's side cannot be measured here; says why."""


def memory_hierarchy():
    """(version, directory) of the memory controller's cgroups."""
    for line in (read("/proc/mounts") or "").splitlines():
        _, where, kind, options = line.split()[:4]
        if kind == "cgroup" and "memory" in options.split(","):
            return 1, where
        if kind == "cgroup2" and "memory" in (read(f"{where}/cgroup.controllers") or "").split():
            return 2, where
    raise Missing("no memory cgroup controller is mounted")


class Group:
    """A memory cgroup for one process and what it starts."""

    made = 0

    def __init__(self, journal, limit_bytes=None):
        self.version, root = memory_hierarchy()
        Group.made += 1
        self.path = f"{root}/ebb-bench-micro-{os.getpid()}-{Group.made}"
        self.journal = journal
        if self.version == 2 and "memory" not in (read(f"{root}/cgroup.subtree_control") or "").split():
            try:
                journal.add("controller", f"{root}/cgroup.subtree_control", "memory")
                write(f"{root}/cgroup.subtree_control", "+memory")
            except OSError as error:
                raise Missing(f"{root}/cgroup.subtree_control: {error.strerror}") from error
        self.entry = journal.add("cgroup", self.path)
        try:
            os.mkdir(self.path)
            if limit_bytes:
                name = "memory.limit_in_bytes" if self.version == 1 else "memory.max"
                write(f"{self.path}/{name}", str(limit_bytes))
        except OSError as error:
            raise Missing(f"{self.path}: {error.strerror}") from error

    def wrap(self, command):
        """The command line that runs `command` in this cgroup."""
        return ["/bin/sh", "-c", 'echo $$ > "$0" && exec "$@"', f"{self.path}/cgroup.procs", *command]

    def anonymous_bytes(self):
        """Anonymous memory of all its processes now."""
        name = "total_rss" if self.version == 1 else "anon"
        for line in (read(f"{self.path}/memory.stat") or "").splitlines():
            key, value = line.split()
            if key == name:
                return int(value)
        return 0

    def peak_bytes(self):
        name = "memory.max_usage_in_bytes" if self.version == 1 else "memory.peak"
        return int(read(f"{self.path}/{name}") or 0)

    def close(self):
        self.journal.undo_one(self.entry)


class Zram:
    """A zram device of our own that the kernel swaps to."""

    def __init__(self, journal):
        if os.geteuid() != 0:
            raise Missing("not root")
        for tool in ("mkswap", "swapon", "swapoff"):
            if shutil.which(tool) is None:
                raise Missing(f"{tool} is not installed")
        if not os.path.exists("/sys/class/zram-control") and shutil.which("modprobe"):
            journal.add("module", "zram")
            subprocess.run(["modprobe", "zram"], check=False, stderr=subprocess.DEVNULL, timeout=30)
        with together():
            number = read("/sys/class/zram-control/hot_add")
            if number is None:
                raise Missing("the kernel has no zram")
            journal.add("zram", int(number))
        self.sys = f"/sys/block/zram{number}"
        self.device = f"/dev/zram{number}"
        try:
            write(f"{self.sys}/comp_algorithm", "lz4")
            write(f"{self.sys}/disksize", str(ZRAM_BYTES))
            self._node(journal)
            subprocess.run(["mkswap", self.device], check=True, stdout=subprocess.DEVNULL, timeout=30)
            # zswap would stand between the kernel and zram; zram is read one page at a time as is usual for it.
            for path, ours in (("/proc/sys/vm/page-cluster", "0"), ("/sys/module/zswap/parameters/enabled", "N")):
                before = read(path)
                if before is not None and before != ours:
                    journal.add("value", path, ours, before)
                    write(path, ours)
            journal.add("swap", self.device)
            subprocess.run(["swapon", "-p", str(PRIORITY), self.device], check=True, timeout=30)
        except (OSError, subprocess.SubprocessError) as error:
            raise Missing(f"zram with lz4 as swap: {error}") from error

    def _node(self, journal):
        end = time.monotonic() + 1
        while not os.path.exists(self.device) and time.monotonic() < end:
            time.sleep(0.02)
        if not os.path.exists(self.device):
            major, minor = map(int, read(f"{self.sys}/dev").split(":"))
            journal.add("node", self.device)
            os.mknod(self.device, 0o600 | stat.S_IFBLK, os.makedev(major, minor))

    def reset_peak(self):
        write(f"{self.sys}/mem_used_max", "0")

    def memory(self):
        """What it holds now: content, compressed, RAM used, and the most RAM used since `reset_peak`."""
        fields = [int(field) for field in read(f"{self.sys}/mm_stat").split()]
        return {"content_bytes": fields[0], "compressed_bytes": fields[1], "ram_bytes": fields[2], "peak_bytes": fields[4]}


def settings():
    """What the kernel is set to and bears on swap."""
    names = {
        "page-cluster": "/proc/sys/vm/page-cluster",
        "swappiness": "/proc/sys/vm/swappiness",
        "transparent huge pages": "/sys/kernel/mm/transparent_hugepage/enabled",
        "zswap": "/sys/module/zswap/parameters/enabled",
    }
    found = {name: read(path) for name, path in names.items()}
    found["cgroup"] = f"v{memory_hierarchy()[0]}"
    return found
