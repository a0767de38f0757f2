"""Sorts and sums an array of random doubles; prints digests."""
import hashlib
import sys

import numpy

count = int(sys.argv[1]) * 1024 * 1024 // 8
array = numpy.random.default_rng(11).random(count)
print("sum before", repr(array.sum()))
array.sort()
print("sum after", repr(array.sum()), "min", repr(array[0]), "max", repr(array[-1]))
print("sorted", bool((array[1:] >= array[:-1]).all()) if count < 1 << 22 else
      all(bool((array[i + 1:i + 1 + (1 << 20)] >= array[i:i + (1 << 20)][:len(array[i + 1:i + 1 + (1 << 20)])]).all())
          for i in range(0, count - 1, 1 << 20)))
total = hashlib.sha256()
for i in range(0, count, 1 << 17):
    total.update(array[i:i + (1 << 17)].tobytes())
print("digest", total.hexdigest())
