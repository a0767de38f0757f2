#!/usr/bin/python3
"""By how much real programs pass their budget, as their cgroup counts it: for each program what it needs alone, and with half
of that under Ebb the most anonymous memory of all its processes together, the same in the second half of the run, what the
kernel had for them, and the memory that is not managed by kind of mapping.

Root, for a cgroup of its own (version 1 or 2) for each run. A program that is not installed is left out and named.

  bench/bound/run.py [--only NAME] [--node DIR] [-- NAME=COMMAND ...]

--node DIR: a folder where `npm install webpack webpack-cli eslint` was run. NAME=COMMAND adds a program of your own.
EBB names the command (default: target/release/ebb of this repository).
"""
import argparse
import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
EVERY_S = 0.02
MAPS_EVERY_S = 2
TIMEOUT_S = 900
MIB = 1 << 20
# What a tree may have beside its budget.
ALLOWED_BYTES = 16 * MIB

REDIS = """port=7399; redis-server --port $port --save '' >/dev/null & server=$!
until redis-cli -p $port ping >/dev/null 2>&1; do sleep 0.1; done
redis-benchmark -p $port -q -n 60000 -r 1000000 -d 1000 -t set -P 16 >/dev/null
redis-cli -p $port bgsave >/dev/null
redis-benchmark -p $port -q -n 40000 -r 1000000 -d 1000 -t set,get -P 8 >/dev/null
kill $server; wait $server; exit 0"""

MARIADB = """mkdir data; mariadb-install-db --no-defaults --datadir=$PWD/data --auth-root-authentication-method=normal --user=root >/dev/null 2>&1
mariadbd --no-defaults --user=root --datadir=$PWD/data --socket=$PWD/s --skip-networking --innodb-buffer-pool-size=256M 2>/dev/null & server=$!
until mariadb-admin --no-defaults -u root -S $PWD/s ping >/dev/null 2>&1; do sleep 0.2; done
mariadb-slap --no-defaults -u root -S $PWD/s -a --auto-generate-sql-load-type=mixed --number-of-queries=4000 -c 8 \
  --auto-generate-sql-write-number=4000 >/dev/null
mariadb-admin --no-defaults -u root -S $PWD/s shutdown; wait $server"""

CPP = "".join(f"#include <{name}>\n" for name in ["regex", "map", "iostream", "thread", "algorithm", "functional"])


def programs(node):
    """Name, what must be installed, and a line for the shell, run in an empty folder."""
    rust = r'printf "fn main() {}\n" > m.rs; cargo init -q --name x --vcs none . 2>/dev/null; ' \
        "for i in $(seq 3000); do echo \"pub fn f$i(a: Vec<String>) -> Vec<String> { a.iter().map(|x| x.repeat($i)).collect() }\"; done > src/lib.rs; " \
        "cargo build -q --offline"
    yield "redis", ["redis-server", "redis-benchmark"], REDIS
    yield "mariadb", ["mariadbd", "mariadb-slap"], MARIADB
    yield "clang++", ["clang++"], "printf '%s' " + shlex.quote(CPP) + " > a.cc; clang++ -O2 -c a.cc"
    yield "cargo", ["cargo"], rust
    modules = "for i in $(seq 200); do for k in $(seq 60); do echo \"export const f$k = (a, b) => { " \
        "let s = 0; for (let i = 0; i < a * $k; i++) s += i % b; return s; };\"; done > m$i.js; " \
        "echo \"import * as m$i from './m$i.js'; console.log(m$i);\" >> index.js; done; "
    if node:
        bin_dir = os.path.abspath(node) + "/node_modules"
        yield "webpack", ["node"], modules + f"node {bin_dir}/webpack/bin/webpack.js --mode production --entry ./index.js -o out >/dev/null"
        rules = "export default [{ rules: { indent: [2, 2], semi: 2, 'no-undef': 2, 'prefer-const': 2 } }];"
        yield "eslint", ["node"], modules + f"echo {shlex.quote(rules)} > eslint.config.mjs; " \
            f"node {bin_dir}/eslint/bin/eslint.js . >/dev/null; true"
    yield "chromium", ["chromium"], "for i in 1 2 3; do chromium --headless --no-sandbox --disable-gpu --user-data-dir=$PWD/p " \
        "--dump-dom chrome://version >/dev/null 2>&1; done; true"


class Group:
    """A cgroup that is gone afterwards, with what runs in it."""

    def __init__(self):
        v1 = "/sys/fs/cgroup/memory"
        self.is_v1 = os.path.isdir(v1)
        self.path = f"{v1 if self.is_v1 else '/sys/fs/cgroup'}/ebb-bound-{os.getpid()}"

    def __enter__(self):
        os.mkdir(self.path)
        return self

    def __exit__(self, *_):
        for _ in range(200):
            for pid in self.pids():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(OSError):
                return os.rmdir(self.path)
            time.sleep(0.05)

    def read(self, name):
        with open(f"{self.path}/{name}") as file:
            return file.read()

    def pids(self):
        return [int(pid) for pid in self.read("cgroup.procs").split()]

    def join(self):
        with open(f"{self.path}/cgroup.procs", "w") as file:
            file.write(str(os.getpid()))

    def memory(self):
        """Anonymous bytes, and the kernel's."""
        stat = dict(line.split() for line in self.read("memory.stat").splitlines())
        if self.is_v1:
            kernel = self.read("memory.kmem.usage_in_bytes") if os.path.exists(f"{self.path}/memory.kmem.usage_in_bytes") else 0
            return int(stat["total_rss"]), int(kernel)
        return int(stat["anon"]), int(stat.get("kernel", 0))

    def beside(self):
        """Anonymous bytes by kind of mapping, of those that are not managed. What is shared since a fork counts for each."""
        kinds = Counter()
        for pid in self.pids():
            try:
                with open(f"/proc/{pid}/smaps") as file:
                    lines = file.read().splitlines()
            except OSError:
                continue
            head, anonymous = [], 0
            for line in lines:
                words = line.split()
                if not words[0].endswith(":"):
                    head = words
                elif words[0] == "Anonymous:":
                    anonymous = int(words[1]) << 10
                elif words[0] == "VmFlags:" and "um" not in words and anonymous:
                    file_name = os.path.basename(head[5]) if len(head) > 5 else "no name"
                    kinds["tables of Ebb, pool" if "dd" in words else f"{file_name} {head[1]}"] += anonymous
        return kinds


def measure(line, before):
    """Runs a line; the peak, that of the second half, the kernel's peak, kinds at the peak, seconds, exit status."""
    with tempfile.TemporaryDirectory(prefix="ebb-bound-") as here, Group() as group:
        process = subprocess.Popen([*before, "sh", "-c", line], cwd=here, preexec_fn=group.join, stdin=subprocess.DEVNULL)
        began, looked, looks, kernel_most, kinds, most = time.monotonic(), 0, [], 0, Counter(), 0
        while process.poll() is None:
            now = time.monotonic()
            if now - began > TIMEOUT_S:
                process.terminate()
                break
            held, kernel = group.memory()
            looks.append((now - began, held))
            kernel_most = max(kernel_most, kernel)
            if held > most and now - looked >= MAPS_EVERY_S:
                kinds, looked, most = group.beside(), now, held
            time.sleep(EVERY_S)
        seconds = time.monotonic() - began
        process.wait()
    late = [held for at, held in looks if at > seconds / 2]
    return max((held for _, held in looks), default=0), max(late, default=0), kernel_most, kinds, seconds, process.returncode


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--only", action="append", default=[])
    arguments.add_argument("--node")
    arguments.add_argument("--kinds", type=int, default=4, help="kinds of memory that are named (4)")
    arguments.add_argument("own", nargs="*", metavar="NAME=COMMAND")
    args = arguments.parse_args()
    # Groups and what runs in them go whatever ends this.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    ebb = os.path.abspath(os.environ.get("EBB") or os.path.join(ROOT, "target/release/ebb"))
    own = [(name, [], line) for name, _, line in (text.partition("=") for text in args.own)]
    print("| program | alone, MiB | budget | most | beyond | second half | kernel | seconds | status | beside |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|---|")
    is_within = True
    for name, needs, line in [*programs(args.node), *own]:
        if args.only and name not in args.only:
            continue
        missing = [need for need in needs if not shutil.which(need)]
        if missing:
            print(f"{name}: not installed: {', '.join(missing)}", file=sys.stderr)
            continue
        alone = measure(line, [])[0]
        budget = max(alone // 2, 8 * MIB) // MIB * MIB
        most, late, kernel, kinds, seconds, status = measure(line, [ebb, "run", "-q", "--ram", str(budget), "--"])
        named = ", ".join(f"{kind} {size / MIB:.1f}" for kind, size in kinds.most_common(args.kinds))
        figures = [f"{size / MIB:.1f}" for size in (alone, budget, most, most - budget, late - budget, kernel)]
        print("|", " | ".join([name, *figures, f"{seconds:.0f}", str(status), named]), "|", flush=True)
        is_within &= most <= budget + ALLOWED_BYTES
    return 0 if is_within else 1


if __name__ == "__main__":
    sys.exit(main())
