"""Where the drivers of the tests find the command."""

import os
import shutil

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def find_ebb():
    """EBB names it; else the one built in this repository, or the one on the path."""
    named = os.environ.get("EBB")
    if named:
        return os.path.abspath(shutil.which(named) or named)
    built = os.path.join(ROOT, "target/release/ebb")
    return built if os.path.exists(built) else shutil.which("ebb")
