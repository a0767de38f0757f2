#!/usr/bin/env python3
"""How many pages Ebb misses, beside what other replacement policies would miss with as many pages in memory.

For each program: what it needs; a trace of the pages that it touches; a run in half of what it needs. Then
`ebb-bench-misses` replays the trace. docs/internals/misses.md describes it. Prints a table; needs no privilege.
"""

import argparse
import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import namedtuple

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
PROGRAMS = os.path.join(HERE, "programs")
WORKLOADS = os.path.join(ROOT, "tests/programs/workloads")

MIB = 1 << 20
PAGE = 4096
# Enough that nothing is evicted for lack of memory.
PLENTY = 16 << 30
# A trace keeps this part of the need mapped, and at least so many pages.
FILTER_PART = 32
FILTER_PAGES_MIN = 256
TIMEOUT_S = 400

Program = namedtuple("Program", "name command needs environment stdin", defaults=((), {}, None))


def programs(scratch, misses):
    """What to run. `needs` are commands that must be there, beside the first one."""
    of = lambda name: os.path.join(PROGRAMS, name)
    made = lambda name: os.path.join(scratch, name)
    touch = lambda *arguments: [misses, "touch", *arguments]
    return [
        Program("touch seq", touch("seq", "96", "98304")),
        Program("touch random", touch("random", "96", "150000")),
        Program("touch zipf", touch("zipf", "96", "400000")),
        Program("perl", ["perl", of("records.pl"), "90000"], environment={"PERL_HASH_SEED": "0"}),
        Program("python", ["/usr/bin/python3", of("records.py"), "140000"], environment={"PYTHONHASHSEED": "0"}),
        Program("node", ["node", "--single-threaded", "--hash-seed=1", "--random-seed=1", of("records.js"), "200000"]),
        Program(
            "java",
            [
                "java", "-XX:+UseSerialGC", "-Xmx256m", "-Xms256m", "-Xshare:off", "-Xbatch", "-XX:TieredStopAtLevel=1",
                "-XX:-ResizeTLAB", "-XX:-UsePerfData", "-cp", scratch, "Records", "200000",
            ],
            needs=["javac"],
        ),
        Program("go", [made("records-go"), "400000"], needs=["go"], environment={"GOMAXPROCS": "1"}),
        Program("lua", ["lua5.4", of("records.lua"), "250000"]),
        Program("ocaml", [made("records-ml"), "250000"], needs=["ocamlopt"]),
        Program("php", ["php", of("records.php"), "250000"]),
        Program("ruby", ["ruby", of("records.rb"), "200000"]),
        Program("sqlite", ["sqlite3", ":memory:"], stdin=of("rows.sql")),
        Program("gcc", ["gcc", "-O2", "-w", "-c", made("large.c"), "-o", made("large.o")]),
        Program("gfortran", [made("stencil")], needs=["gfortran"]),
        Program("sort", ["sort", "-S", "400M", "--parallel=1", "-o", made("sorted"), made("lines")]),
        Program("jq", ["jq", "-f", of("sums.jq"), made("items.json")]),
        Program("redis", ["sh", of("redis.sh"), scratch], needs=["redis-server", "redis-cli"]),
    ]


def prepare(scratch):
    """Makes what the programs read."""
    made = lambda name: os.path.join(scratch, name)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with open(made("lines"), "wb") as file:
        for i in range(800000):
            file.write(b"%016x some text %d\n" % (i * 0x9E3779B97F4A7C15 % (1 << 64), i % 977))
    with open(made("large.c"), "w", encoding="utf-8") as file:
        subprocess.run([sys.executable, os.path.join(WORKLOADS, "generate_c.py"), "60"], stdout=file, check=True)
    with open(made("items.json"), "w", encoding="utf-8") as file:
        items = [{"kind": i * 7919 % 1009, "value": i, "name": f"item {i}"} for i in range(150000)]
        json.dump(items, file)
    # Go lets its heap begin anywhere.
    os.environ["GOEXPERIMENT"] = "norandomizedheapbase64"
    for tool, command in (
        ("javac", ["javac", "-d", scratch, os.path.join(PROGRAMS, "Records.java")]),
        ("go", ["go", "build", "-o", made("records-go"), os.path.join(PROGRAMS, "records.go")]),
        ("gfortran", ["gfortran", "-O2", "-o", made("stencil"), os.path.join(PROGRAMS, "stencil.f90")]),
    ):
        if shutil.which(tool):
            subprocess.run(command, check=True, **quiet)
    if shutil.which("ocamlopt"):
        shutil.copy(os.path.join(PROGRAMS, "records.ml"), scratch)
        command = ["ocamlopt", made("records.ml"), "-o", made("records-ml")]
        subprocess.run(command, check=True, cwd=scratch, **quiet)


class Failed(Exception):
    """A program did not do what it should."""


def run(ebb, program, scratch, ram_bytes, environment, timeout_s=TIMEOUT_S):
    """Runs a program under Ebb, at the same addresses each time. Returns the counters."""
    stats = os.path.join(scratch, "stats.json")
    command = ["setarch", "-R", ebb, "run", "-q", "--ram", str(ram_bytes), "--stats", stats, "--", *program.command]
    everything = {**os.environ, "EBB_FORCE": "no-dormant", **program.environment, **environment}
    stdin = open(program.stdin, "rb") if program.stdin else subprocess.DEVNULL
    try:
        done = subprocess.run(
            command, stdin=stdin, env=everything, timeout=timeout_s, capture_output=True, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise Failed(f"took more than {timeout_s} s") from error
    if done.returncode != 0:
        raise Failed(f"status {done.returncode}: {done.stderr.decode(errors='replace').strip()[-300:]}")
    with open(stats, encoding="utf-8") as file:
        return json.load(file)["counters"]


def largest(beginning):
    """The records of the process that wrote most; those of the others are removed."""
    files = glob.glob(beginning + ".*")
    if not files:
        raise Failed("no process wrote records: is the agent built with the feature `events`?")

    def records(path):
        with open(path, "rb") as file:
            return int.from_bytes(file.read(8), "little")

    files.sort(key=records)
    for path in files[:-1]:
        os.remove(path)
    return files[-1]


def measure(ebb, misses, program, scratch, budget_part):
    """One row: the need, the trace, the run, the replay."""
    need = run(ebb, program, scratch, PLENTY, {})["peak_wanted_bytes"]
    files = {}
    trace_of = {"EBB_EVENTS_FILTER": str(max(FILTER_PAGES_MIN, need // PAGE // FILTER_PART))}
    for name, ram, environment in (("trace", PLENTY, trace_of), ("real", int(need * budget_part), {})):
        beginning = os.path.join(scratch, "events-" + name)
        for path in glob.glob(beginning + ".*"):
            os.remove(path)
        counters = run(ebb, program, scratch, ram, {"EBB_EVENTS": beginning, **environment})
        files[name] = largest(beginning)
    command = [misses, "compare", files["trace"], files["real"]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    for path in files.values():
        os.remove(path)
    if done.returncode != 0:
        raise Failed(done.stderr.strip())
    row = json.loads(done.stdout)
    row.update(name=program.name, need_mib=need / MIB, ram_mib=need * budget_part / MIB)
    row.update({name: counters[name] for name in ("processes", "faults_soft", "faults_pool", "faults_file", "out_file_pages")})
    return row


ONLINE = ("LRU", "CLOCK", "S3-FIFO", "LIRS", "ARC")
AHEAD = ("around", "window", "beside", "willneed")
COLUMNS = (
    "program | need, MiB | pages, of need | found | touches, k | faults, k | misses, k | : LRU | : best | best | : optimum"
    " | LRU had staged | in place | clean | soft, k | ahead, k | used | of RAM: present | clean | unused | staging | pool"
    " | stock | books | free"
)


def ratio(a, b):
    return f"{a / b:.2f}" if b > 0 else "-"


def line(row):
    best = min(ONLINE, key=lambda name: row[name])
    brought = sum(row["ahead_" + why] for why in AHEAD)
    used = sum(row[f"ahead_{why}_used"] for why in AHEAD)
    limit = row["size_limit"] or 1
    part = lambda pages: f"{100 * pages / limit:.0f}"
    k = lambda n: f"{n / 1000:.1f}"
    percent = lambda n, of: f"{100 * n / of:.0f} %" if of else "-"
    had = lambda way: percent(row["lru_avoids_" + way], row[f"out_{way}_missed"])
    # Staged pages count as pages. The rest of staging's memory are frames that pages left behind.
    frames = row["size_frames"] - row["size_staged"]
    free = row["size_limit"] - row["mean_pages"] - frames - row["size_pool"] - row["size_books"]
    return [
        row["name"], f"{row['need_mib']:.0f}", ratio(row["mean_pages"], row["need_mib"] * MIB / PAGE),
        f"{100 * row['aligned'] / max(row['marks'], 1):.0f} %", k(row["touches"]), k(row["hard"]), k(row["misses"]),
        ratio(row["misses"], row["LRU"]), ratio(row["misses"], row[best]), best, ratio(row["misses"], row["optimum"]),
        had("staged"), had("in_place"), had("clean"),
        k(row["soft"]), k(brought), percent(used, brought),
        part(row["mean_present"]), part(row["size_clean"]), part(row["mean_unused"]), part(row["size_frames"] - row["size_stock"]),
        part(row["size_pool"]), part(row["size_stock"]), part(row["size_books"]), part(free),
    ]


def check(row):
    """What must hold for a program whose touches are known, whatever the machine. Returns what does not."""
    hard = row["faults_pool"] + row["faults_file"]
    return [
        what
        for what, holds in (
            ("the records have the faults that the counters have", abs(row["hard"] - hard) <= 0.01 * hard + 10),
            ("90 % of the faults are found in the trace", row["aligned"] >= 0.9 * row["marks"]),
            ("nobody misses less than the optimum", row["misses"] >= 0.95 * row["optimum"] > 0),
            ("nobody misses less than the optimum, online", all(row[name] >= row["optimum"] for name in ONLINE)),
            ("Ebb misses at most twice what LRU misses", row["misses"] <= 2 * row["LRU"]),
        )
        if not holds
    ]


def table(rows):
    heads = [head.strip() for head in COLUMNS.split("|")]
    lines = [heads, ["---" if i == 0 else "--:" for i in range(len(heads))], *(line(row) for row in rows)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def main():
    target = os.environ.get("CARGO_TARGET_DIR") or os.path.join(ROOT, "target")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ebb", default=os.path.join(target, "events/release/ebb"), help="built with the feature `events`")
    parser.add_argument("--misses", default=os.path.join(target, "release/ebb-bench-misses"))
    parser.add_argument("--only", action="append", default=[], metavar="TEXT", help="only programs with TEXT in their name")
    parser.add_argument("--part", type=float, default=0.5, help="budget, in parts of what the program needs (0.5)")
    parser.add_argument("--quick", action="store_true", help="one small program whose touches are known, and checks")
    parser.add_argument("--json", help="where to write all figures")
    options = parser.parse_args()
    rows, failed = [], []
    with tempfile.TemporaryDirectory(dir=os.environ.get("EBB_TMPDIR") or "/var/tmp") as scratch:
        if options.quick:
            command = [os.path.abspath(options.misses), "touch", "zipf", "24", "60000"]
            todo = [Program("touch zipf, small", command)]
        else:
            prepare(scratch)
            todo = programs(scratch, os.path.abspath(options.misses))
        for program in todo:
            tools = [program.command[0], *program.needs]
            if options.only and not any(text in program.name for text in options.only):
                continue
            if not all(shutil.which(tool) for tool in tools):
                print(f"{program.name}: left out: {', '.join(tools)} not found", file=sys.stderr)
                continue
            try:
                rows.append(measure(os.path.abspath(options.ebb), os.path.abspath(options.misses), program, scratch, options.part))
                print(table(rows[-1:]).splitlines()[-1], file=sys.stderr)
            except Failed as why:
                print(f"{program.name}: {why}", file=sys.stderr)
                failed.append(program.name)
            if options.json:
                with open(options.json, "w", encoding="utf-8") as file:
                    json.dump(rows, file, indent=1)
    print(table(rows))
    if options.quick:
        failed += [what for row in rows for what in check(row)]
        print(*(f"does not hold: {what}" for what in failed), sep="\n", end="")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
