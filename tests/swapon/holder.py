"""Holds memory, changes some of it and checks all of it, round after round, until it is told to end.

holder.py MEGABYTES RANDOM_PERCENT CONTROL [CHILDREN]

CONTROL is a directory. A file `stop` in it ends everything after one more check, `fork` has one more child forked, and
`exec` has this program started anew in its own process. It says `ready NAME PID`, `round NAME N` and `done NAME`.
"""
import os
import random
import sys
import zlib

BLOCK = 1 << 18


def say(text):
    os.write(1, text.encode() + b"\n")


def fill(rng, is_random):
    if is_random:
        return bytearray(rng.randbytes(BLOCK))
    return bytearray(rng.randbytes(64) * (BLOCK // 64))


class Holder:
    def __init__(self, name, megabytes, percent):
        self.name = name
        self.rng = random.Random(name)
        count = megabytes * (1 << 20) // BLOCK
        self.blocks = [fill(self.rng, at * 61 % 100 < percent) for at in range(count)]
        self.sums = [zlib.crc32(block) for block in self.blocks]

    def check(self):
        for at, block in enumerate(self.blocks):
            if zlib.crc32(block) != self.sums[at]:
                say(f"WRONG {self.name} block {at}")
                os._exit(3)
            if at % 16 == self.rng.randrange(16):
                at_byte = self.rng.randrange(BLOCK)
                block[at_byte] ^= 0x55
                self.sums[at] = zlib.crc32(block)


def take(path):
    """Whether there was such a file: it is gone then."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True


def main():
    megabytes, percent, control = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    children = int(sys.argv[4]) if len(sys.argv) > 4 else 0
    holder = Holder("parent", megabytes, percent)
    pids = []

    def fork(name):
        pid = os.fork()
        if pid == 0:
            holder.name = name
            holder.rng = random.Random(name)
            pids.clear()
        else:
            pids.append(pid)
        return pid == 0

    is_child = any(fork(f"child{at}") for at in range(children))
    say(f"ready {holder.name} {os.getpid()}")
    rounds = 0
    while not os.path.exists(os.path.join(control, "stop")):
        holder.check()
        rounds += 1
        say(f"round {holder.name} {rounds}")
        if not is_child and take(os.path.join(control, "fork")):
            is_child = fork("late")
            if is_child:
                say(f"ready {holder.name} {os.getpid()}")
        if not is_child and take(os.path.join(control, "exec")):
            os.execv(sys.executable, [sys.executable] + sys.argv)
    holder.check()
    say(f"done {holder.name}")
    bad = 0
    for pid in pids:
        bad |= os.waitpid(pid, 0)[1]
    os._exit(4 if bad else 0)


main()
