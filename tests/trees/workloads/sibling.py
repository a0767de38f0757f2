"""Works on memory of its own until DIRECTORY/release exists: sibling.py MIB DIRECTORY. Its lines tell of nothing but right or
wrong."""
import os
import sys
import time

megabytes, directory = int(sys.argv[1]), sys.argv[2]


def record(i, version):
    return b"%d:%d:" % (i, version) * 40


held = [record(i, 0) for i in range(megabytes * 2300)]
versions = bytearray(len(held))
turn = 0
while not os.path.exists(os.path.join(directory, "release")):
    turn += 1
    for i in range(turn % 50, len(held), 50):
        if held[i] != record(i, versions[i]):
            sys.exit(f"record {i} is wrong")
        versions[i] = turn % 256
        held[i] = record(i, versions[i])
    time.sleep(0.01)
for i, one in enumerate(held):
    if one != record(i, versions[i]):
        sys.exit(f"record {i} is wrong")
with open(os.path.join(directory, "sibling"), "w") as file:
    file.write("right\n")
