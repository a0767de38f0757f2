"""Memory cgroups (v1 or v2), each with a limit for the processes of one run."""

import os

from .errors import Missing
from .undo import read, write


def memory_hierarchy():
    """(version, directory) of the memory controller's cgroups."""
    for line in (read("/proc/mounts") or "").splitlines():
        _, where, kind, options = line.split()[:4]
        if kind == "cgroup" and "memory" in options.split(","):
            return 1, where
        if kind == "cgroup2" and "memory" in (read(f"{where}/cgroup.controllers") or "").split():
            return 2, where
    raise Missing("no memory cgroup controller is mounted")


def kills(events):
    """The count of out-of-memory kills in a group's `memory.oom_control` (v1) or `memory.events` (v2)."""
    return sum(int(value) for key, value in map(str.split, events.splitlines()) if key == "oom_kill")


def stat(text):
    """What a group's `memory.stat` says, by name."""
    return {key: int(value) for key, value in map(str.split, text.splitlines())}


# What a group holds beside anonymous memory: the names in `memory.stat` of page cache and of kernel memory, by version. Of shared
# memory, which is both, it is page cache. Version 1 counts kernel memory elsewhere, and Linux before 5.18 only in parts.
CACHE = {1: "total_cache", 2: "file"}
KERNEL_PARTS = ("kernel_stack", "pagetables", "percpu", "sock", "vmalloc", "slab")


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
        return self.stat().get("total_rss" if self.version == 1 else "anon", 0)

    def stat(self):
        return stat(read(f"{self.path}/memory.stat") or "")

    def page_cache_bytes(self):
        """Page cache that its processes were the first to use."""
        return self.stat().get(CACHE[self.version], 0)

    def kernel_bytes(self):
        """What the kernel itself has for its processes: page tables, stacks, structures."""
        if self.version == 1:
            return int(read(f"{self.path}/memory.kmem.usage_in_bytes") or 0)
        found = self.stat()
        return found.get("kernel", sum(found.get(part, 0) for part in KERNEL_PARTS))

    def peak_bytes(self):
        name = "memory.max_usage_in_bytes" if self.version == 1 else "memory.peak"
        return int(read(f"{self.path}/{name}") or 0)

    def oom_kills(self):
        """How many of its processes the out-of-memory killer has ended."""
        name = "memory.oom_control" if self.version == 1 else "memory.events"
        return kills(read(f"{self.path}/{name}") or "")

    def close(self):
        self.journal.undo_one(self.entry)
