"""Starting processes so that they are ended whatever happens to this one."""

import os
import signal
import subprocess

from .errors import Failed
from .stop import together
from .undo import start_of


class Process:
    """A process in a session of its own, noted in the journal until it has ended."""

    def __init__(self, journal, command, **options):
        self.journal = journal
        with together():
            self.child = subprocess.Popen(
                command, start_new_session=True, stdin=subprocess.DEVNULL, text=True, **options
            )
            self.entry = journal.add("process", self.child.pid, start_of(self.child.pid))

    def wait(self, seconds):
        """Standard output and error of the process, which has ended then."""
        try:
            out, err = self.child.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.end()
            raise Failed(f"not done after {seconds:.0f} s") from None
        self.journal.forget(self.entry)
        return out, err

    def end(self):
        """Ends it and everything in its session's process group."""
        if self.child.poll() is None:
            os.killpg(self.child.pid, signal.SIGKILL)
        self.child.wait()
        self.journal.forget(self.entry)
