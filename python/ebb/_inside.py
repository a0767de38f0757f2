"""What a program that runs under Ebb can ask of it: the functions of `ebb.h`, by way of the agent that is in the process."""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
from dataclasses import dataclass, fields
from typing import Callable

from . import _sizes
from ._command import find_ebb

# As in ebb.h.
_ACTIVE, _STATS, _RECLAIM, _SET_RAM = range(4)
_Agent = Callable[[int, int, int, int], int]


class EbbError(RuntimeError):
    """Ebb did not do what it was asked to. The message says why, and what to do."""


class NotUnderEbb(EbbError):
    """Ebb does not manage this process."""

    def __init__(self) -> None:
        super().__init__(
            "Ebb does not manage this process: start it with `ebb run --ram 4G -- python ...`, or call ebb.reexec(ram='4G') at its top"
        )


@dataclass(frozen=True)
class Stats:
    """What this process and its tree of processes hold. Sizes are bytes.

    The fields that begin with `tree_` are about all processes under the same `ebb run`. A field that the agent, being older than
    this module, does not know is 0.
    """

    #: Memory with content, wherever the content is.
    wanted_bytes: int
    #: What counts against the budget: the next three.
    held_bytes: int
    #: In page tables, with Ebb's own tables.
    resident_bytes: int
    #: Unmapped, and not compressed yet.
    staged_bytes: int
    #: The compressed pool.
    pool_bytes: int
    #: What is in the pool, before compression.
    pool_content_bytes: int
    #: Content that is neither resident nor staged.
    swapped_bytes: int
    #: Of that, content on devices, before compression.
    device_bytes: int
    #: Faults that this process has served.
    faults: int
    #: The budget.
    tree_ram_bytes: int
    #: What the processes hold of it.
    tree_held_bytes: int
    #: The most they ever held.
    tree_peak_bytes: int
    #: Faults that found a staged page: nearly free.
    tree_faults_staged: int
    #: Faults that decompressed a page.
    tree_faults_pool: int
    #: Faults that read from a device.
    tree_faults_device: int
    #: Brought in before anybody touched it.
    tree_readahead_bytes: int
    #: Everything that was ever swapped out.
    tree_swapped_out_bytes: int
    #: Everything that was ever written to devices for that.
    tree_device_write_bytes: int
    #: Time that threads lost to swap, in nanoseconds.
    tree_stall_ns: int


def _find() -> _Agent | None:
    """The agent's function, or None if there is no agent. It is there from the start of a process, or never."""
    try:
        # The GIL is released while it runs.
        function = ctypes.CDLL(None)["__ebb_call"]
    except (AttributeError, OSError):
        return None
    function.restype = ctypes.c_int64
    function.argtypes = [ctypes.c_uint32, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64]
    call: _Agent = function
    return call


_agent = _find()


def _ask(what: int, a: int = 0, b: int = 0) -> int:
    answer = -errno.ENOSYS if _agent is None else _agent(what, a, b, 0)
    if answer == -errno.ENOSYS:
        raise NotUnderEbb()
    if answer < 0:
        raise OSError(-answer, os.strerror(-answer))
    return answer


def active() -> bool:
    """Whether Ebb manages the memory of this process, or will once it has grown."""
    return _agent is not None and _agent(_ACTIVE, 0, 0, 0) == 1


def stats() -> Stats:
    """What this process and its tree hold now. Raises NotUnderEbb where Ebb does not manage this process."""
    words = (ctypes.c_uint64 * (1 + len(fields(Stats))))()
    _ask(_STATS, ctypes.addressof(words), ctypes.sizeof(words))
    return Stats(*words[1:])


def set_ram(size: str | int) -> None:
    """Sets the budget of all processes under this `ebb run`, and waits until they hold no more.

    size: "2G", or bytes as an integer; at least 4 MiB. Also "50%" of the tightest cgroup limit or of the machine's memory, and
        "auto", what is left below that: the command `ebb set` works these out.

    Raises NotUnderEbb where Ebb does not manage this process, ValueError for what is no size, and EbbError if the budget is set but
    the processes give up too little.
    """
    if isinstance(size, str) and (size.strip() == "auto" or size.strip().endswith("%")):
        if not active():
            raise NotUnderEbb()
        told = subprocess.run(
            [find_ebb(), "set", str(os.getpid()), "--ram", size.strip()], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        if told.returncode != 0:
            raise EbbError(told.stderr.strip() or f"ebb set ended with status {told.returncode}")
        return
    wanted = _sizes.parse(size)
    try:
        _ask(_SET_RAM, wanted)
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise ValueError(f"{size!r} is too little to run in: a budget is at least 4 MiB") from None
        if error.errno == errno.EAGAIN:
            raise EbbError(
                f"the budget is {_sizes.short(wanted)} now, but the processes hold {_sizes.short(stats().tree_held_bytes)} and give up "
                f"no more: see `ebb ps {os.getpid()}`, or set a larger one"
            ) from None
        raise


def reclaim(size: str | int) -> int:
    """Has this process give up RAM now, its coldest memory first: into the compressed pool, or to a device.

    size: "100M", bytes as an integer, or "25%" of what the process holds.

    Returns how many bytes it gave up, which may be fewer if there is no more, or a few more. What is used again comes back. Raises
    NotUnderEbb where Ebb does not manage this process, and ValueError for what is no size.
    """
    if isinstance(size, str) and size.strip().endswith("%"):
        try:
            share = float(size.strip()[:-1])
        except ValueError:
            share = -1
        if not 0 < share <= 100:
            raise ValueError(f"{size!r} is no share: write more than 0%, and at most 100%")
        size = max(1, int(stats().held_bytes * share / 100))
    return _ask(_RECLAIM, _sizes.parse(size))
