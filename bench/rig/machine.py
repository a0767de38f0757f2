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


def available_mib():
    """RAM that programs could still have."""
    lines = dict(line.split(":", 1) for line in (read("/proc/meminfo") or "").splitlines())
    return int(lines.get("MemAvailable", "0").split()[0]) // 1024


def load_average():
    return round(os.getloadavg()[0], 1)


def load_text(load, here):
    """A line about the load of the machine `here`, before and after a run; warns when other work ran as it began."""
    busy = " The machine was busy with other work: trust ratios, not times." if load[0] > here["processors"] / 2 else ""
    return f"Load average before and after: {load[0]:.1f}, {load[1]:.1f}.{busy}"


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
