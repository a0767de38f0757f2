#!/usr/bin/python3
"""Compares what `ebb advise` foretells with what other budgets really cost.

For each program and round: `ebb advise`, then runs with RAM for everything and with parts of it. Prints, for each budget, how many
times as long the program took as with RAM for everything (the median of the rounds), what was foretold in each round, and how far
each forecast is off; then the median of how far they are off, in all and for each program. Times are by the clock: leave the
machine alone.

usage: bench/advise/run.py [--rounds N] [--only NAMES] [--parts 90,80,70,60] [--json FILE]
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

EBB = os.environ.get("EBB") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../target/release/ebb")
LIMIT_S = 600
# RAM for everything, in percent of what is wanted.
WHOLE = 130

PYTHON = """
import random
random.seed(1)
n = 300_000
records = {i: ("key%d" % i, [i] * 8, random.random()) for i in range(n)}
total = 0
for _ in range(14_000_000):
    total += records[random.randrange(n // 5) if random.random() < 0.9 else random.randrange(n)][1][3]
print(total)
"""
NODE = """
let state = 1;
const random = n => (state = (state * 48271) % 2147483647) % n;
const records = [];
for (let i = 0; i < 250000; i++) records.push({ key: 'key' + i, list: [i, i + 1, i + 2, i * 1.5], text: 'x'.repeat(20) + i });
let total = 0;
for (let i = 0; i < 40000000; i++) {
  const at = i % 10 ? random(50000) : random(250000);
  total += records[at].list[2] + records[at].text.length;
}
console.log(total);
"""
DUCKDB = """
import duckdb
con = duckdb.connect(config={"threads": 1, "memory_limit": "4GB"})
con.execute("create table t as select i % 1000003 as k, (i * 7919) % 100003 as g, i as v, 'text' || (i % 5000) as s from range(3000000) r(i)")
for _ in range(100):
    print(con.execute("select count(*), sum(x) from (select g, sum(v) as x, max(s) from t group by g)").fetchall())
    print(con.execute("select count(*) from t a join (select distinct k from t where v % 17 = 0) b on a.k = b.k").fetchall())
"""
REDIS = """
set -e
cd "$1"
redis-server --port 0 --unixsocket "$1/redis" --save '' --appendonly no --daemonize no > server.log &
server=$!
until redis-cli -s "$1/redis" ping > /dev/null 2>&1; do sleep 0.05; done
redis-benchmark -s "$1/redis" -q -n 600000 -r 150000 -d 400 -P 16 -c 4 -t set > filled.log
redis-benchmark -s "$1/redis" -q -n 6000000 -r 150000 -d 400 -P 16 -c 4 -t get > read.log
redis-cli -s "$1/redis" shutdown nosave || true
wait $server
"""


def programs(scratch):
    """Name and command of each program that is there."""
    lines = os.path.join(scratch, "lines")
    python = "/usr/bin/python3"
    made = f"import random; random.seed(3); [print(random.getrandbits(96), i) for i in range(5_000_000)]"

    def sort():
        with open(lines, "w") as file:
            subprocess.run([python, "-c", made], stdout=file, check=True)
        return ["sort", "-S", "2G", "--parallel=1", "-o", os.path.join(scratch, "sorted"), lines]

    yield "python", lambda: [python, "-c", PYTHON]
    yield "sort", sort
    if shutil.which("node"):
        yield "node", lambda: ["node", "-e", NODE]
    if shutil.which("redis-server"):
        yield "redis", lambda: ["/bin/sh", "-c", REDIS, "redis", scratch]
    with_duckdb = os.environ.get("PYTHON_WITH_DUCKDB", python)
    if subprocess.run([with_duckdb, "-c", "import duckdb"], capture_output=True).returncode == 0:
        yield "duckdb", lambda: [with_duckdb, "-c", DUCKDB]


def run(*arguments):
    """The time of a run of `ebb`."""
    began = time.monotonic()
    subprocess.run([EBB, *arguments], check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL, timeout=LIMIT_S)
    return time.monotonic() - began


def off_by(forecast, real):
    """How far a forecast is off, as a part of what is real; none for a bound."""
    return abs(forecast["times"] / real - 1) if forecast["outcome"] == "measured" else None


def said(forecast, real):
    """A forecast, and how far it is off, as text."""
    off = off_by(forecast, real)
    if off is not None:
        return f"{forecast['times']:.2f}x (off by {off:.0%})"
    return f"{forecast['times'] or 0:.2f}x ({forecast['outcome']})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="")
    parser.add_argument("--parts", default="90,80,70,60")
    parser.add_argument("--json")
    options = parser.parse_args()
    parts = [int(part) for part in options.parts.split(",")]
    rows = []
    with tempfile.TemporaryDirectory(dir="/var/tmp") as scratch:
        for name, command in programs(scratch):
            if options.only and name not in options.only.split(","):
                continue
            command, told = command(), os.path.join(scratch, "advice.json")
            times = {part: [] for part in (WHOLE, *parts)}
            forecasts = {part: [] for part in parts}
            wanted = None
            for _ in range(options.rounds):
                run("advise", "-q", "--json", told, "--", *command)
                with open(told) as file:
                    advice = json.load(file)
                # Rounds differ by a few pages. Runs are of the first one's size.
                wanted = wanted or advice["wanted_bytes"]
                of_part = {round(100 * f["ram_bytes"] / advice["wanted_bytes"]): f for f in advice["forecasts"]}
                for part in parts:
                    forecasts[part].append(of_part[part])
                for part, of in times.items():
                    of.append(run("run", "-q", "--ram", f"{wanted * part // 100 // 4096 * 4}K", "--", *command))
            alone = statistics.median(times.pop(WHOLE))
            for part, of in times.items():
                real = statistics.median(of) / alone
                print(f"{name:8} {part:3}% of {wanted / 2**20:5.0f} MiB: {real:5.2f}x ({min(of) / alone:.2f} to {max(of) / alone:.2f}),"
                      f" foretold {', '.join(said(forecast, real) for forecast in forecasts[part])}", flush=True)
                for forecast in forecasts[part]:
                    rows.append({"program": name, "part": part, "ram_mib": round(wanted * part / 100 / 2**20), "real": real,
                                 "spread": [min(of) / alone, max(of) / alone], "foretold": forecast["times"],
                                 "outcome": forecast["outcome"], "off": off_by(forecast, real)})
    off = [row["off"] for row in rows if row["off"] is not None]
    if not off:
        sys.exit("bench/advise/run.py: nothing was measured")
    for name in dict.fromkeys(row["program"] for row in rows):
        of = [row["off"] for row in rows if row["program"] == name and row["off"] is not None]
        if of:
            print(f"{name:8} median off by {statistics.median(of):.0%}")
    print(f"all      median off by {statistics.median(off):.0%} in {len(off)} of {len(rows)} forecasts")
    if options.json:
        with open(options.json, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
