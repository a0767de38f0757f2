"""A pool of forked workers that all hold data of their own and read what they inherited: pool.py WORKERS MIB ROUNDS.

The data of a worker follows from its number; its results are printed in the order of the numbers.
"""
import hashlib
import multiprocessing
import random
import sys

workers, megabytes, rounds = map(int, sys.argv[1:])
inherited = None
own = None
number = None


def record(rng, i):
    return {"id": i, "name": f"name-{rng.randrange(1 << 20):x}", "tags": [rng.randrange(50) for _ in range(6)], "text": "x" * 200}


def begin(numbers, barrier):
    global own, number
    number = numbers.get()
    rng = random.Random(number)
    # About a kilobyte each.
    own = [record(rng, i) for i in range(megabytes * 1000)]
    # Nobody works before all hold what they hold.
    barrier.wait()


def work(turn):
    # Each looks at a part of what the parent made and at all of its own, and changes some.
    part = hashlib.sha256(b"".join(inherited[turn % 7::7])).hexdigest()
    total = hashlib.sha256()
    for i, one in enumerate(own):
        total.update(one["name"].encode())
        if i % 5 == turn % 5:
            one["tags"][turn % 6] += 1
            one["text"] = str(turn) * 50
    return number, turn, part, total.hexdigest(), sum(sum(one["tags"]) for one in own) - expected_change(turn)


done = 0


def expected_change(turn):
    """How much this worker's changes added up to: which turns it got is chance, what is left is not."""
    global done
    done += len(range(turn % 5, len(own), 5))
    return done


def main():
    global inherited
    rng = random.Random(99)
    inherited = [rng.randbytes(500) + b"." * 500 for _ in range(megabytes * 1000)]
    context = multiprocessing.get_context("fork")
    numbers, barrier = context.SimpleQueue(), context.Barrier(workers)
    for i in range(workers):
        numbers.put(i)
    found = {}
    with context.Pool(workers, begin, (numbers, barrier)) as pool:
        for who, turn, part, total, rest in pool.imap_unordered(work, range(rounds), chunksize=1):
            found.setdefault(who, set()).add((total, rest))
            found.setdefault("turns", {})[turn] = part
    print(sorted(found.pop("turns").items()))
    for who, values in sorted(found.items()):
        # The names never change, and the tags only by what was added.
        if len(values) != 1:
            sys.exit(f"worker {who} had {len(values)} different contents")
    # Which worker gets a turn is chance: those with none have said nothing.
    reference = {who: next(iter(values)) for who, values in found.items()}
    for who in range(workers):
        rng = random.Random(who)
        rows = [record(rng, i) for i in range(megabytes * 1000)]
        total = hashlib.sha256(b"".join(one["name"].encode() for one in rows)).hexdigest()
        expected = (total, sum(sum(one["tags"]) for one in rows))
        if reference.get(who, expected) != expected:
            sys.exit(f"worker {who} holds something else than its number makes")
        print(who, *expected)


main()
