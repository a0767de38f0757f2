"""A pool of processes, forked or spawned, that reads what it inherits and returns large results."""
import hashlib
import multiprocessing
import os
import random
import sys

method, megabytes = sys.argv[1], int(sys.argv[2])
data = None


def prepare(n):
    global data
    source = random.Random(3)
    data = [source.randbytes(1000) for _ in range(n)]


def work(part):
    start, stop = part
    inherited = hashlib.sha256(b"".join(data[start:stop])).hexdigest()
    own = {i: (str(i) * 20, [i] * 10) for i in range(start, stop)}
    back = [own[i][0][:5] for i in range(start, stop)]
    return inherited, sum(len(value[0]) for value in own.values()), back


if __name__ == "__main__":
    multiprocessing.set_start_method(method)
    count = megabytes * 1024
    prepare(count)
    parts = [(i * count // 12, (i + 1) * count // 12) for i in range(12)]
    initializer = {"initializer": prepare, "initargs": (count,)} if method == "spawn" else {}
    with multiprocessing.Pool(3, **initializer) as pool:
        workers = multiprocessing.active_children()
        results = pool.map_async(work, parts, chunksize=1)
        # A pool one of whose workers died waits for ever.
        while not results.ready():
            results.wait(0.5)
            dead = [worker for worker in workers if worker.exitcode is not None]
            if dead and not results.ready():
                print(*(f"worker {worker.pid} ended with {worker.exitcode}" for worker in dead), sep="\n", file=sys.stderr)
                os._exit(1)
        for result in results.get():
            print(result[0], result[1], hashlib.sha256("".join(result[2]).encode()).hexdigest())
    print("parent", hashlib.sha256(b"".join(data)).hexdigest())
