"""The kernel's own swap: a zram device, or a file behind zswap."""

import contextlib
import os
import shutil
import stat
import subprocess
import threading
import time

from .errors import Missing
from .stop import together
from .undo import chosen, read, write

# More than any run swaps; it costs RAM only as it is filled.
SWAP_BYTES = 16 << 30
FILE_BYTES = 4 << 30
PRIORITY = 32767
ZSWAP = "/sys/module/zswap/parameters"
PAGE_CLUSTER = "/proc/sys/vm/page-cluster"


def need_tools():
    if os.geteuid() != 0:
        raise Missing("not root")
    for tool in ("mkswap", "swapon", "swapoff"):
        if shutil.which(tool) is None:
            raise Missing(f"{tool} is not installed")


def set_to(journal, path, value):
    """Changes a setting until the end; the entry that undoes it, if anything was changed."""
    before = chosen(read(path))
    if before is None or before == value:
        return []
    entry = journal.add("value", path, value, before)
    write(path, value)
    return [entry]


class Zram:
    """A zram device of our own that the kernel swaps to."""

    def __init__(self, journal, algorithm="lz4"):
        need_tools()
        self.journal, self.entries = journal, []
        if not os.path.exists("/sys/class/zram-control") and shutil.which("modprobe"):
            journal.add("module", "zram")
            subprocess.run(["modprobe", "zram"], check=False, stderr=subprocess.DEVNULL, timeout=30)
        with together():
            number = read("/sys/class/zram-control/hot_add")
            if number is None:
                raise Missing("the kernel has no zram")
            self.entries.append(journal.add("zram", int(number)))
        self.sys = f"/sys/block/zram{number}"
        self.device = f"/dev/zram{number}"
        try:
            if algorithm not in (read(f"{self.sys}/comp_algorithm") or "").replace("[", "").replace("]", "").split():
                raise Missing(f"this kernel's zram has no {algorithm}")
            write(f"{self.sys}/comp_algorithm", algorithm)
            write(f"{self.sys}/disksize", str(SWAP_BYTES))
            self._node()
            subprocess.run(["mkswap", self.device], check=True, stdout=subprocess.DEVNULL, timeout=30)
            # zswap would stand between the kernel and zram; zram is read one page at a time as is usual for it.
            for path, ours in ((PAGE_CLUSTER, "0"), (f"{ZSWAP}/enabled", "N")):
                self.entries += set_to(journal, path, ours)
            self.entries.append(journal.add("swap", self.device))
            subprocess.run(["swapon", "-p", str(PRIORITY), self.device], check=True, timeout=30)
        except (OSError, subprocess.SubprocessError) as error:
            raise Missing(f"zram with {algorithm} as swap: {error}") from error

    def _node(self):
        end = time.monotonic() + 1
        while not os.path.exists(self.device) and time.monotonic() < end:
            time.sleep(0.02)
        if not os.path.exists(self.device):
            major, minor = map(int, read(f"{self.sys}/dev").split(":"))
            self.entries.append(self.journal.add("node", self.device))
            os.mknod(self.device, 0o600 | stat.S_IFBLK, os.makedev(major, minor))

    def reset_peak(self):
        write(f"{self.sys}/mem_used_max", "0")

    def memory(self):
        """What it holds now: content, compressed, RAM used, and the most RAM used since `reset_peak`."""
        fields = [int(field) for field in read(f"{self.sys}/mm_stat").split()]
        return {"content_bytes": fields[0], "compressed_bytes": fields[1], "ram_bytes": fields[2], "peak_bytes": fields[4]}

    def peak_bytes(self):
        return self.memory()["peak_bytes"]

    def close(self):
        close(self.journal, self.entries)


class File:
    """A swap file that the kernel swaps to, without zswap. Its content is on the disk: it takes no RAM."""

    # Whether zswap keeps compressed pages in RAM before they go to the file.
    zswap = "N"

    def __init__(self, journal, directory):
        need_tools()
        self.journal, self.entries = journal, []
        path = os.path.join(directory, "ebb-bench-swap")
        self.entries.append(journal.add("file", path))
        try:
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, FILE_BYTES)
            finally:
                os.close(descriptor)
            subprocess.run(["mkswap", path], check=True, stdout=subprocess.DEVNULL, timeout=60)
            self.entries += set_to(journal, f"{ZSWAP}/enabled", self.zswap)
            self._set_up()
            self.entries.append(journal.add("swap", path))
            # swapon says by itself why a file system cannot hold swap.
            subprocess.run(["swapon", "-p", str(PRIORITY), path], check=True, timeout=60, stderr=subprocess.PIPE, text=True)
        except (OSError, subprocess.SubprocessError) as error:
            said = (getattr(error, "stderr", "") or "").strip()
            self.close()
            raise Missing(f"a swap file in {directory}: {said or error}") from error

    def _set_up(self):
        """What is to be set beside that."""

    def reset_peak(self):
        """Nothing that it takes changes."""

    def peak_bytes(self):
        return 0

    def close(self):
        close(self.journal, self.entries)


class Zswap(File):
    """zswap in front of a swap file, with lz4 where the kernel has it. Its RAM is sampled: the kernel keeps no peak. It is at most
    `percent` of the machine's RAM, if that is said."""

    zswap = "Y"

    def __init__(self, journal, directory, percent=None):
        if not os.path.isdir(ZSWAP):
            raise Missing("the kernel has no zswap")
        self.percent = percent
        super().__init__(journal, directory)
        self.peak, self.done = 0, threading.Event()
        self.thread = threading.Thread(target=self._sample, daemon=True)
        self.thread.start()

    def _set_up(self):
        # A kernel without lz4 for zswap keeps the compressor it has.
        with contextlib.suppress(FileNotFoundError):
            self.entries += set_to(self.journal, f"{ZSWAP}/compressor", "lz4")
        if self.percent:
            self.entries += set_to(self.journal, f"{ZSWAP}/max_pool_percent", str(self.percent))

    @staticmethod
    def used_bytes():
        for line in (read("/proc/meminfo") or "").splitlines():
            if line.startswith("Zswap:"):
                return int(line.split()[1]) << 10
        return 0

    def _sample(self):
        while not self.done.wait(0.02):
            self.peak = max(self.peak, self.used_bytes())

    def reset_peak(self):
        self.peak = self.used_bytes()

    def peak_bytes(self):
        return self.peak

    def close(self):
        if hasattr(self, "thread"):
            self.done.set()
            self.thread.join()
        super().close()


def close(journal, entries):
    """Undoes changes, the last first."""
    with together():
        while entries:
            journal.undo_one(entries.pop())


# How the suite names them.
KINDS = {
    "zram-lz4": lambda journal, directory: Zram(journal, "lz4"),
    "zram-lzo-rle": lambda journal, directory: Zram(journal, "lzo-rle"),
    "swap-file": File,
    "zswap": Zswap,
    "zswap-1%": lambda journal, directory: Zswap(journal, directory, percent=1),
}
