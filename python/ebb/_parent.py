"""A kernel of Jupyter whose parent is `ebb run`."""

from __future__ import annotations

import os


def settle() -> None:
    """Makes this process a kernel whose parent is `ebb run`, if a server started that."""
    if "JPY_PARENT_PID" in os.environ:
        os.environ["JPY_PARENT_PID"] = str(os.getppid())
        if os.getpgid(0) != os.getpid():
            os.setpgid(0, 0)
