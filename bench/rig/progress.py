"""How far a long measurement is, and how long it may still take."""

import sys
import time

WIDTH = 24


def span(seconds):
    """Seconds as `1 h 05 min`, `5 min` or `40 s`."""
    minutes = round(seconds / 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes} min" if seconds >= 90 else f"{seconds:.0f} s"


class Progress:
    """A bar on a terminal, a line for each step elsewhere. Steps differ: what is left is guessed from what each case took
    so far, and from the mean of all where a case has not run yet."""

    def __init__(self, steps, stream=None):
        self.left = list(steps)
        self.total = len(self.left)
        self.took = {}
        self.stream = stream or sys.stderr
        self.began = None

    def begin(self, step):
        self.began = (step, time.monotonic())
        if self.stream.isatty():
            self._bar(step)

    def end(self, text=""):
        step, start = self.began
        self.left.remove(step)
        self.took.setdefault(step, []).append(time.monotonic() - start)
        if self.stream.isatty():
            self._bar(step)
        else:
            done = self.total - len(self.left)
            self.say(f"{done}/{self.total} {' '.join(step)}: {text or 'done'}; {span(self.seconds_left())} left")

    def seconds_left(self):
        known = [seconds for took in self.took.values() for seconds in took]
        mean = sum(known) / len(known) if known else 0.0
        guess = {step: sum(took) / len(took) for step, took in self.took.items()}
        return sum(guess.get(step, mean) for step in self.left)

    def _bar(self, step):
        done = self.total - len(self.left)
        filled = WIDTH * done // max(self.total, 1)
        bar = "#" * filled + "." * (WIDTH - filled)
        self.stream.write(f"\r\033[K[{bar}] {done}/{self.total}, {span(self.seconds_left())} left: {' '.join(step)}")
        self.stream.flush()

    def say(self, text):
        """A line that stays."""
        clear = "\r\033[K" if self.stream.isatty() else ""
        print(f"{clear}bench: {text}", file=self.stream, flush=True)

    def close(self):
        if self.stream.isatty():
            self.stream.write("\r\033[K")
            self.stream.flush()
