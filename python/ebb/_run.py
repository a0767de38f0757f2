"""Runs a program under Ebb, and waits for it."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Iterable, Sequence

from ._command import find_ebb, options_of


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
    command = [find_ebb(), "run", *options_of(ram, swap, name, quiet)]
    with tempfile.TemporaryDirectory(prefix="ebb-stats-") as scratch:
        counters = Path(scratch, "stats.json")
        ran = subprocess.run([*command, "--stats", str(counters), "--", *args], check=False, **options)
        # It is empty if the program did not start.
        written = counters.read_bytes() if counters.exists() else b""
    done = CompletedRun(args, ran.returncode, ran.stdout, ran.stderr, json.loads(written) if written else None)
    if check:
        done.check_returncode()
    return done
