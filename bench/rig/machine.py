"""What figures were made on."""

import datetime
import os
import platform

from .group import memory_hierarchy
from .undo import read


def machine():
    """What the figures were made on."""
    model = next(
        (line.split(":", 1)[1].strip() for line in (read("/proc/cpuinfo") or "").splitlines() if "model name" in line),
        platform.machine(),
    )
    memory_kib = int((read("/proc/meminfo") or "MemTotal: 0").split()[1])
    return {
        "processor": model,
        "processors": len(os.sched_getaffinity(0)),
        "memory_mib": memory_kib // 1024,
        "kernel": platform.release(),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
    }


def settings():
    """What the kernel is set to and bears on swap."""
    names = {
        "page-cluster": "/proc/sys/vm/page-cluster",
        "swappiness": "/proc/sys/vm/swappiness",
        "transparent huge pages": "/sys/kernel/mm/transparent_hugepage/enabled",
        "zswap": "/sys/module/zswap/parameters/enabled",
        "zswap's compressor": "/sys/module/zswap/parameters/compressor",
    }
    found = {name: read(path) for name, path in names.items()}
    found["cgroup"] = f"v{memory_hierarchy()[0]}"
    return found
