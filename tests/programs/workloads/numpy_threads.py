"""Several threads compute on parts of shared arrays at once; prints digests."""
import hashlib
import sys
import threading

import numpy

megabytes, threads = int(sys.argv[1]), 4
count = megabytes * 1024 * 1024 // 8 // 2 // threads * threads
a = numpy.arange(count, dtype=numpy.float64)
b = numpy.random.default_rng(5).random(count)
results = [None] * threads


def work(n):
    part = slice(n * (count // threads), (n + 1) * (count // threads))
    for _ in range(2):
        numpy.sqrt(a[part], out=a[part])
        numpy.multiply(a[part], b[part], out=b[part])
        numpy.add(a[part], n, out=a[part])
    own = numpy.sort(b[part])
    results[n] = (repr(own.sum()), hashlib.sha256(own.tobytes()).hexdigest())


workers = [threading.Thread(target=work, args=(n,)) for n in range(threads)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
for n, result in enumerate(results):
    print(n, *result)
print("a", hashlib.sha256(a).hexdigest())
print("b", hashlib.sha256(b).hexdigest())
