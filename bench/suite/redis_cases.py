"""redis: GET at random over more data than fits, without persistence and while BGSAVE runs."""

import subprocess
import time

from case import Case, Metric
from rig import redis
from rig.errors import Failed

GETS = Metric("GET", "requests/s", more_is_better=True, places=0)
SAVE = Metric("BGSAVE", "s", places=1)
LOADING = Metric("loading", "s", places=1)


class Redis(Case):
    table = "redis"
    rounds_max = 5
    seconds = 600

    def __init__(self, name, metrics, nr_keys, requests, limit_mib, with_save):
        super().__init__(name, metrics, limit_mib)
        self.nr_keys, self.requests, self.with_save = nr_keys, requests, with_save

    def missing(self):
        return redis.missing()

    def run(self, where, context):
        server = redis.Server(context.journal, where.command)
        try:
            values = context.data.setdefault("redis", redis.Values())
            start = time.monotonic()
            server.load(values, self.nr_keys)
            loading = time.monotonic() - start
            redis.gets_per_second(context.journal, server.port, self.nr_keys, self.requests // 4)
            found = self.save(server, context) if self.with_save else self.get(server, context)
            server.check(values, self.nr_keys)
        finally:
            server.close()
        return found | {LOADING.name: loading}

    def get(self, server, context):
        return {GETS.name: redis.gets_per_second(context.journal, server.port, self.nr_keys, self.requests)}

    def save(self, server, context):
        """GET until the dump is written, and a check of the dump."""
        start = time.monotonic()
        server.ask(b"BGSAVE")
        chunk, spent, done = self.requests // 6, 0.0, 0
        while True:
            rate = redis.gets_per_second(context.journal, server.port, self.nr_keys, chunk)
            is_running = server.info("persistence")["rdb_bgsave_in_progress"] == "1"
            # The part in which it ended was only partly beside it; it counts when there is no other.
            if is_running or not done:
                spent, done = spent + chunk / rate, done + chunk
            if not is_running:
                break
            if time.monotonic() - start > self.seconds:
                raise Failed(f"BGSAVE takes more than {self.seconds} s")
        took = time.monotonic() - start
        if server.info("persistence")["rdb_last_bgsave_status"] != "ok":
            raise Failed("BGSAVE failed")
        checked = subprocess.run(["redis-check-rdb", f"{server.directory}/dump.rdb"], capture_output=True, text=True, check=False)
        if checked.returncode != 0 or f"{self.nr_keys} keys read" not in checked.stdout:
            raise Failed(f"the dump is not sound: {checked.stdout.strip().splitlines()[-1:]}")
        return {GETS.name: done / spent, SAVE.name: took}


def cases(quick):
    # Some 1,300 bytes a key.
    nr_keys, requests, limit_mib = (30_000, 40_000, 20) if quick else (500_000, 300_000, 300)
    return [
        Redis("GET", [GETS, LOADING], nr_keys, requests, limit_mib, False),
        Redis("GET during BGSAVE", [GETS, SAVE], nr_keys, requests, limit_mib, True),
    ]
