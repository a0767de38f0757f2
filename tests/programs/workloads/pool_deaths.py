"""The pool of processes.py, which tells of each worker that ended before its time: a pool whose worker died waits for ever."""
import multiprocessing.pool
import os
import sys

joined = multiprocessing.pool.Pool._join_exited_workers


def join_and_tell(pool):
    for worker in pool:
        if worker.exitcode is not None:
            print(f"worker {worker.pid} ended with {worker.exitcode}", file=sys.stderr, flush=True)
            os._exit(1)
    return joined(pool)


multiprocessing.pool.Pool._join_exited_workers = staticmethod(join_and_tell)
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
with open(os.path.join(sys.path[0], "processes.py"), encoding="utf-8") as file:
    exec(compile(file.read(), file.name, "exec"))
