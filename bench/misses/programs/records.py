"""Records in a dictionary: made, walked, looked up unevenly, replaced."""

import sys

n, state, total = int(sys.argv[1]), 1, 0


def dice():
    global state
    state = (state * 1103515245 + 12345) & 0x7FFFFFFF
    return (state >> 8) % n


def skewed():
    return min(dice(), dice(), dice())


of = {f"key {i}": [i, f"value of {i} " * 3, [i + 1, i + 2]] for i in range(n)}
for key in sorted(of):
    total += of[key][0]
for _ in range(n // 2):
    total += of[f"key {skewed()}"][2][1]
for _ in range(n // 4):
    i = skewed()
    of[f"key {i}"] = [i, f"new value {i} " * 3, [i, i + 2]]
print(total)
