"""A benchmark's run as a whole: from the first change on the system to the last one undone."""

import os
import sys
import tempfile

from . import stop
from .errors import Failed, Missing
from .undo import Journal


def whole(name, work, directory="/var/tmp", skipped=0, journal=None):
    """What `work(journal, scratch)` finds, everything undone on the way out; or a status to end with, when the run cannot take
    place (`skipped`), fails (1) or is ended by a signal, and has said why."""

    def skip(why):
        print(f"{name}: skipped: {why}")
        return skipped

    if os.geteuid() != 0:
        return skip("not root, and the kernel's swap beside Ebb needs it")
    stop.install()
    journal = journal or Journal()
    if not journal.begin():
        return skip("another run is at work")
    try:
        scratch = tempfile.mkdtemp(prefix=f"ebb-{name}-", dir=directory)
        journal.add("tree", scratch)
        return work(journal, scratch)
    except Missing as missing:
        return skip(missing)
    except Failed as failed:
        print(f"{name}: failed: {failed}", file=sys.stderr)
        return 1
    except stop.Stopped as stopped:
        print(f"{name}: {stopped}; undoing", file=sys.stderr)
        return 128 + stopped.number
    finally:
        stop.ignore()
        journal.end()
