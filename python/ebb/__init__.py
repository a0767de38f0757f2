"""Runs programs in less RAM than they want, by the command `ebb`.

>>> import ebb
>>> done = ebb.run(["python3", "job.py"], ram="512M")
>>> done.returncode, done.stats["counters"]["peak_held_bytes"]
(0, 536870912)
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from typing import Any, Iterable, Iterator, Sequence

__all__ = ["CompletedRun", "find_ebb", "run"]


class CompletedRun(subprocess.CompletedProcess[Any]):
    """A program that has ended under Ebb: a `subprocess.CompletedProcess` that also has Ebb's counters.

    `args` are the program and its arguments, as given to `run`. `returncode` is the program's exit status, or -N if signal N
    ended it. It is 125 if Ebb could not start the program, 126 if it cannot be executed, and 127 if it was not found.
    `stats` is what `ebb run --stats` wrote, or None if the program did not start.
    """

    stats: dict[str, Any] | None

    def __init__(
        self, args: Sequence[str | os.PathLike[str]], returncode: int, stdout: Any, stderr: Any, stats: dict[str, Any] | None
    ) -> None:
        super().__init__(args, returncode, stdout, stderr)
        self.stats = stats

    def __repr__(self) -> str:
        return f"CompletedRun(args={self.args!r}, returncode={self.returncode!r})"


def _places() -> Iterator[Path]:
    """Where installers put the command of this module."""
    yield Path(sysconfig.get_path("scripts"))
    yield Path(sysconfig.get_path("scripts", "posix_user"))
    # With --prefix the module is in PREFIX/lib/python3.N/site-packages/ebb.
    above = Path(__file__).resolve().parents
    if len(above) > 4:
        yield above[4] / "bin"


def find_ebb() -> str:
    """The path of the command `ebb`: the one that was installed with this module, or else the one on the PATH.

    Raises FileNotFoundError if there is none.
    """
    for place in _places():
        if os.access(place / "ebb", os.X_OK):
            return str(place / "ebb")
    found = shutil.which("ebb")
    if found is None:
        raise FileNotFoundError("the command `ebb` is neither beside the module ebb nor on the PATH: install the wheel again")
    return found


def run(
    args: Sequence[str | os.PathLike[str]],
    *,
    ram: str | int | None = "50%",
    swap: str | Iterable[str] | None = None,
    name: str | None = None,
    check: bool = False,
    quiet: bool = False,
    **options: Any,
) -> CompletedRun:
    """Runs a program under Ebb, waits for it, and returns how it went.

    args: the program and its arguments, as a list.
    ram: the budget of the program and of all processes that it starts: a size ("512M", "1.5G", or bytes as an integer),
        a share of the tightest cgroup limit or of the machine's memory ("50%"), or "auto", what is left below that. None for
        what `ebb run` takes without `--ram`: the option of a configuration file or of EBB_OPTIONS, or else "auto".
    swap: where pages go that do not fit into RAM in compressed form: a `--swap` of `ebb run` ("file:/scratch,size=20G", "none"),
        or several. By default to a file in $EBB_TMPDIR or /var/tmp.
    name: a name for `ebb ps` and `ebb set`.
    check: raise subprocess.CalledProcessError if the program's exit status is not 0.
    quiet: no summary and no warnings on standard error.

    Further options are those of `subprocess.run`: stdin, stdout, stderr, input, capture_output, text, cwd, env and so on.
    """
    if isinstance(args, (str, bytes)):
        raise TypeError("args is a list of the program and its arguments, not a string")
    command = [find_ebb(), "run"]
    if ram is not None:
        command += ["--ram", str(ram)]
    for spec in [swap] if isinstance(swap, str) else swap or ():
        command += ["--swap", spec]
    if name is not None:
        command += ["--name", name]
    if quiet:
        command.append("--quiet")
    with tempfile.TemporaryDirectory(prefix="ebb-stats-") as scratch:
        counters = Path(scratch, "stats.json")
        ran = subprocess.run([*command, "--stats", str(counters), "--", *args], check=False, **options)
        # It is empty if the program did not start.
        written = counters.read_bytes() if counters.exists() else b""
    done = CompletedRun(args, ran.returncode, ran.stdout, ran.stderr, json.loads(written) if written else None)
    if check:
        done.check_returncode()
    return done
