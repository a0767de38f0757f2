"""What a service does that holds much and uses little of it: 2,000 documents of 100 KiB (JSON) in memory, and requests, 99 of 100 of
which are for the same forty documents. Prints how many it answered, and a digest of all answers.

usage: demo_service.py REQUESTS
"""
import hashlib
import json
import random
import sys
import time

from demo_records import record

DOCUMENTS, LINES, POPULAR = 2000, 600, 40


def main():
    begin = time.monotonic()
    chance = random.Random(1)
    lines = [json.dumps(record(chance, number)).encode() + b"\n" for number in range(5000)]
    documents = [b"".join(chance.choices(lines, k=LINES)) for _ in range(DOCUMENTS)]
    loaded = time.monotonic()
    answers = hashlib.sha256()
    requests = int(sys.argv[1])
    for _ in range(requests):
        which = chance.randrange(POPULAR) if chance.random() < 0.99 else chance.randrange(DOCUMENTS)
        answers.update(hashlib.md5(documents[which]).digest())
    print(f"  loaded in {loaded - begin:.1f} s, answered in {time.monotonic() - loaded:.1f} s", file=sys.stderr)
    print(f"{requests} requests answered: {answers.hexdigest()}")


main()
