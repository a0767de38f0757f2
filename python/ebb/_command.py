"""Where the command `ebb` is."""

from __future__ import annotations

import os
import shutil
import sysconfig
from pathlib import Path
from typing import Iterable, Iterator


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


def include_dir() -> str:
    """The directory of `ebb.h`, for a compiler's -I. Raises FileNotFoundError if there is none."""
    here = Path(__file__).resolve()
    # In a wheel, in a checkout of the sources, and beside a command that `make install` put there.
    places = [here.parent / "include", here.parents[2] / "include"]
    try:
        places.append(Path(find_ebb()).resolve().parents[1] / "include")
    except FileNotFoundError:
        pass
    for place in places:
        if (place / "ebb.h").is_file():
            return str(place)
    raise FileNotFoundError("ebb.h is neither in the module ebb nor beside the command: install the wheel again")


def options_of(ram: str | int | None, swap: str | Iterable[str] | None, name: str | None, quiet: bool) -> list[str]:
    """The options of `ebb run` for what callers in Python give."""
    options = []
    if ram is not None:
        options += ["--ram", str(ram)]
    for spec in [swap] if isinstance(swap, str) else swap or ():
        options += ["--swap", spec]
    if name is not None:
        options += ["--name", name]
    if quiet:
        options.append("--quiet")
    return options
