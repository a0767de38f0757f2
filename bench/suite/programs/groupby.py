"""Sums by key over more rows than fit, in one of several ways: groupby.py WAY ROWS [DIRECTORY]. Prints the sums' checksum,
which is the same in every way: values are whole numbers, so their order does not matter."""

import os
import sys

import numpy as np

GROUPS = 1000
PASSES = 3
BLOCK = 1 << 18


def rows(first, count):
    """Keys and values of some rows, such as sales have them."""
    number = np.arange(first, first + count, dtype=np.int64)
    key = (number * 2654435761 >> 7) % GROUPS
    return key.astype(np.int32), ((number * 7919 % 10007) * (key % 7 + 1)).astype(np.float64)


def blocks(count):
    return ((first, min(BLOCK, count - first)) for first in range(0, count, BLOCK))


def fill(keys, values, count):
    for first, n in blocks(count):
        keys[first : first + n], values[first : first + n] = rows(first, n)


def sums(keys, values, count):
    """Several passes in blocks, as memory that is larger than RAM wants it."""
    total = np.zeros(GROUPS)
    for _ in range(PASSES):
        for first, n in blocks(count):
            total += np.bincount(keys[first : first + n], values[first : first + n], GROUPS)
    return total


def by_numpy(count, _directory):
    keys, values = np.empty(count, np.int32), np.empty(count)
    fill(keys, values, count)
    return sums(keys, values, count)


def by_memmap(count, directory):
    keys = np.memmap(os.path.join(directory, "keys"), np.int32, "w+", shape=(count,))
    values = np.memmap(os.path.join(directory, "values"), np.float64, "w+", shape=(count,))
    fill(keys, values, count)
    return sums(keys, values, count)


def by_blosc2(count, _directory):
    import blosc2

    def array(dtype):
        return blosc2.empty((count,), dtype=dtype, chunks=(BLOCK,), cparams={"codec": blosc2.Codec.LZ4, "clevel": 1})

    keys, values = array(np.int32), array(np.float64)
    fill(keys, values, count)
    return sums(keys, values, count)


def by_pandas(count, _directory):
    import pandas

    keys, values = np.empty(count, np.int32), np.empty(count)
    fill(keys, values, count)
    frame = pandas.DataFrame({"key": keys, "value": values}, copy=False)
    total = np.zeros(GROUPS)
    for _ in range(PASSES):
        found = frame.groupby("key", sort=True)["value"].sum()
        total[found.index.to_numpy()] += found.to_numpy()
    return total


def by_duckdb(count, directory):
    import duckdb

    database = duckdb.connect(":memory:", config={"threads": 2, "memory_limit": "64GB", "temp_directory": directory})
    database.execute(
        "create table sales as select key, (i * 7919 % 10007) * (key % 7 + 1) as value from"
        f" (select i, cast((i * 2654435761 >> 7) % {GROUPS} as integer) as key from range({count}) t(i))"
    )
    total = np.zeros(GROUPS)
    for _ in range(PASSES):
        for key, value in database.execute("select key, sum(value) from sales group by key").fetchall():
            total[key] += float(value)
    return total


def main():
    way, count = sys.argv[1], int(sys.argv[2])
    total = globals()[f"by_{way}"](count, sys.argv[3] if len(sys.argv) > 3 else ".")
    print(f"{int((total * (np.arange(GROUPS) + 1)).sum())}")


main()
