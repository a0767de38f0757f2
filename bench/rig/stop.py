"""Signals that end a run: they become an exception, so that everything is undone on the way out, but never between a
change and its note in the journal.
"""

import contextlib
import signal

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(BaseException):
    """A signal asked the run to end."""

    def __init__(self, number):
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.number = number


class _State:
    depth = 0
    pending = None


def _on_signal(number, _frame):
    if _State.depth:
        _State.pending = number
    else:
        raise Stopped(number)


def install():
    for number in SIGNALS:
        signal.signal(number, _on_signal)


def ignore():
    """From here on everything is undone; nothing may interrupt that."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@contextlib.contextmanager
def together():
    """What is within happens as a whole, or not at all."""
    _State.depth += 1
    try:
        yield
    finally:
        _State.depth -= 1
        if not _State.depth and _State.pending is not None:
            number, _State.pending = _State.pending, None
            raise Stopped(number)
