"""Builds many records of dicts, lists, strings and numbers, changes some, and prints digests of all of them."""
import hashlib
import random
import sys

megabytes = int(sys.argv[1])
count = megabytes * 1024 * 1024 // 1450
source = random.Random(7)
records = []
by_name = {}
for i in range(count):
    record = {
        "id": i,
        "name": f"user-{i * 7919 % count}",
        "scores": [source.random() for _ in range(12)],
        "tags": [f"tag-{source.randrange(5000)}" for _ in range(4)],
        "payload": source.randbytes(120),
        "parent": None,
    }
    records.append(record)
    by_name[record["name"]] = record
print("records", len(records), len(by_name))
for i in range(0, count, 3):
    records[i]["parent"] = records[i * 31 % count]["name"]
    records[i]["scores"].append(float(i))


def digest(order):
    total = hashlib.sha256()
    for i in order:
        r = records[i]
        total.update(repr((r["id"], r["name"], r["scores"], r["tags"], r["payload"], r["parent"])).encode())
    return total.hexdigest()


print("in order", digest(range(count)))
some = list(range(count))
source.shuffle(some)
print("shuffled", digest(some[: count // 4]))
print("by name", sum(by_name[f"user-{i}"]["id"] * (i % 13) for i in some[: count // 2] if f"user-{i}" in by_name))
del by_name
records = [r for r in records if r["id"] % 2]
more = [bytes(500) + str(i).encode() for i in range(count // 4)]
print("thinned", hashlib.sha256(b"".join(r["payload"] for r in records)).hexdigest(), sum(map(len, more)))
