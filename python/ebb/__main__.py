"""`python -m ebb` is the command `ebb`."""

import os
import sys

from ebb import find_ebb

if __name__ == "__main__":
    found = find_ebb()
    os.execv(found, [found, *sys.argv[1:]])
