"""What the rounds of a measurement come to: medians, spread, and how sure a ratio is."""

import random
import statistics

RESAMPLES = 2000
# The interval holds this part of the resampled medians.
SURE = 0.95


class Figure:
    """A measure over the rounds."""

    def __init__(self, values):
        self.values = list(values)

    @property
    def median(self):
        return statistics.median(self.values)

    @property
    def low(self):
        return min(self.values)

    @property
    def high(self):
        return max(self.values)


def interval(values):
    """Bootstrap interval of the median of `values`: what other runs of as many rounds would be likely to find. None for
    fewer than three, which say nothing of their spread."""
    if len(values) < 3:
        return None
    source = random.Random(1)
    medians = sorted(statistics.median(source.choices(values, k=len(values))) for _ in range(RESAMPLES))
    cut = int(RESAMPLES * (1 - SURE) / 2)
    return medians[cut], medians[-1 - cut]


def gains(ours, theirs, more_is_better):
    """How many times better `ours` is than `theirs`, round by round, in the rounds that both have: {round: value} each."""
    rounds = sorted(ours.keys() & theirs.keys())
    pairs = [(ours[nr], theirs[nr]) for nr in rounds if ours[nr] > 0 and theirs[nr] > 0]
    return [a / b if more_is_better else b / a for a, b in pairs]
