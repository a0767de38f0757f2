#!/bin/sh
# One of many jobs side by side: job.sh DIRECTORY NUMBER. Leaves a sum of its results in DIRECTORY/sum.NUMBER.
set -e
cd "$1"
case $(($2 % 3)) in
0) sort -S 256M --parallel=1 lines -k "$(($2 / 3 + 1)),$(($2 / 3 + 1))" -k 1 | sha256sum ;;
1) xz -1 -T1 -c data | xz -dc | sha256sum ;;
2) /usr/bin/python3 -c '
import collections, hashlib, sys
index = collections.defaultdict(list)
for number, line in zip(range(20000), open("lines")):
    for word in line.split():
        index[word].append(number)
print(hashlib.sha256(repr(sorted(index.items())).encode()).hexdigest())' ;;
esac > "sum.$2"
