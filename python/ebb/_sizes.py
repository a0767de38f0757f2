"""Sizes as the command `ebb` reads and writes them."""

from __future__ import annotations

import re

_SIZE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(?:b|([kmgt])(?:ib)?)?", re.IGNORECASE)


def parse(size: str | int) -> int:
    """The bytes of a size: "512M", "1.5G", "2 GiB", or bytes as an integer. Raises ValueError for anything else."""
    if isinstance(size, bool) or not isinstance(size, (str, int)):
        raise TypeError(f"a size is text such as '512M', or bytes as an integer, not {size!r}")
    if isinstance(size, int):
        value = size
    else:
        found = _SIZE.fullmatch(size.strip())
        if found is None:
            raise ValueError(f"{size!r} is no size: write 512M, 1.5G or 2GiB, or bytes as an integer")
        number, unit = found.groups()
        value = int(float(number) * 1024 ** (" kmgt".index(unit.lower()) if unit else 0))
    if not 0 < value < 1 << 63:
        raise ValueError(f"{size!r} is no size: it must be more than 0, and less than 8 EiB")
    return value


def short(size: int) -> str:
    """`1.5 GiB`: one digit after the point, and none for bytes."""
    value, unit = float(size), 0
    while value >= 1024 and unit < 4:
        value, unit = value / 1024, unit + 1
    return f"{size} B" if unit == 0 else f"{value:.1f} {('', 'KiB', 'MiB', 'GiB', 'TiB')[unit]}"
