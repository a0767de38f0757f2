"""Builds records as a service would hold them, changes some, and prints a hash of them all.

The same arguments give the same hash: nothing depends on time, addresses or the order of a set.
"""

import hashlib
import json
import random
import sys

CITIES = ["Aarhus", "Bilbao", "Cork", "Delft", "Espoo", "Faro", "Graz", "Halle", "Iasi", "Jena"]


def record(chance, number):
    return {
        "id": number,
        "name": f"customer {chance.randrange(10**9):09d}",
        "mail": f"{chance.getrandbits(64):016x}@example.org",
        "city": CITIES[chance.randrange(len(CITIES))],
        "balance": chance.random() * 1000,
        "visits": [chance.randrange(86400) for _ in range(4)],
    }


def main():
    count = int(sys.argv[1])
    chance = random.Random(1)
    records = [record(chance, number) for number in range(count)]
    # Most of the work goes to a few records, as it does in life.
    for _ in range(count):
        chosen = records[int(chance.random() ** 4 * count)]
        chosen["balance"] += 1
        chosen["visits"].append(chance.randrange(86400))
    digest = hashlib.sha256()
    for each in records:
        digest.update(json.dumps(each).encode())
    print(f"{count} records, sha256 {digest.hexdigest()}")


if __name__ == "__main__":
    main()
