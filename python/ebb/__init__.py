"""Runs programs in less RAM than they want, by the command `ebb`; and what a program that runs under Ebb can ask of it.

>>> import ebb
>>> done = ebb.run(["python3", "job.py"], ram="512M")
>>> done.returncode, done.stats["counters"]["peak_held_bytes"]
(0, 536870912)

At the top of a script, which then runs in 4 GiB:

>>> ebb.reexec(ram="4G")
>>> ebb.stats().held_bytes
18874368
"""

from __future__ import annotations

from typing import Any

from ._command import find_ebb, include_dir
from ._inside import EbbError, NotUnderEbb, Stats, active, reclaim, set_ram, stats
from ._reexec import KernelRestarts, reexec
from ._run import CompletedRun, run

__all__ = [
    "CompletedRun",
    "EbbError",
    "KernelRestarts",
    "NotUnderEbb",
    "Stats",
    "active",
    "find_ebb",
    "include_dir",
    "reclaim",
    "reexec",
    "run",
    "set_ram",
    "stats",
]


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext ebb` in IPython and Jupyter: adds the magic `%ebb`."""
    from . import _magic

    _magic.register(shell)
