"""Many processes that work at once, each with memory of its own."""
import glob
import os
import random
import shutil

from tree import MIB, PYTHON, need, workload


def pool(context):
    """A pool of eight forked workers."""
    context.squeeze([PYTHON, workload("pool.py"), "8", str(context.pick(18, 100)), str(context.pick(40, 200))])


def xargs(context):
    """sort, xz and python children, eight at a time."""
    rng = random.Random(41)
    with open(context.path("lines"), "w") as file:
        for _ in range(context.pick(100_000, 700_000)):
            file.write(" ".join(f"{rng.randrange(1 << 16):x}" for _ in range(9)) + "\n")
    words = [rng.randbytes(rng.randrange(3, 12)).hex().encode() for _ in range(20000)]
    with open(context.path("data"), "wb") as file:
        for _ in range(context.pick(2, 24)):
            file.write(b" ".join(rng.choice(words) for _ in range(70000)))
    jobs = context.path("job.sh")
    shutil.copy(workload("job.sh"), jobs)

    count = context.pick(12, 24)

    def result():
        sums = sorted(glob.glob(context.path("sum.*")))
        texts = {}
        for path in sums:
            with open(path) as file:
                texts[os.path.basename(path)] = file.read()
            os.unlink(path)
        need(len(texts) == count and all(texts.values()), f"results of {count} jobs are {len(texts)}")
        return texts

    context.squeeze(["sh", "-c", f"seq {count} | xargs -P8 -n1 sh {jobs} {context.scratch}"], result=result)


def fork_bomb(context):
    """Short processes in great number. Each holds little, so the slack is little: what Ebb itself takes for a process."""
    context.slack = 3 * MIB
    bomb = context.tools.c("bomb")
    # Ebb's own books are some 0.4 MiB a process: the budget is for what they leave.
    total, width, ram = context.pick((400, 100, "64M"), (2000, 200, "128M"))
    context.squeeze([bomb, str(total), str(width)], ram)
    for ram, found, _ in context.results:
        # Starting is slow under a small budget, so fewer may be alive at a time than there could be.
        need(ram is not None or found.alive > width // 2, f"only {found.alive} processes were seen at a time")
