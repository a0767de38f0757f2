#!/bin/sh
# One of many jobs side by side: job.sh DIRECTORY NUMBER. Leaves a sum of its results in DIRECTORY/sum.NUMBER.
set -e
cd "$1"
case $(($2 % 3)) in
0) sort -S 256M --parallel=1 lines -k "$(($2 / 3 + 1)),$(($2 / 3 + 1))" -k 1 | sha256sum ;;
1) xz -1 -T1 -c data | xz -dc | sha256sum ;;
2) /usr/bin/python3 -c '
import hashlib
blocks = [hashlib.sha512(b"%d" % number).digest() * 64 for number in range(9000)]
total = hashlib.sha256()
for _ in range(3):
    for block in blocks:
        total.update(block)
print(total.hexdigest())' ;;
esac > "sum.$2"
