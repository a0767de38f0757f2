"""MariaDB with a buffer pool larger than the limit, read by sysbench's oltp_read_only."""

import os
import re
import shutil
import subprocess
import time

from case import Case, Metric
from rig.errors import Failed
from rig.process import Process

QUERIES = Metric("queries", "1/s", more_is_better=True, places=0)
LATENCY = Metric("p95", "ms", places=1)
LUA = "oltp_read_only"
DATABASE = "sbtest"


class Sysbench(Case):
    table = "sysbench"
    rounds_max = 5
    seconds = 600

    def __init__(self, tables, rows, pool_mib, limit_mib, seconds):
        super().__init__(f"{LUA}, {tables} tables of {rows:,} rows", [QUERIES, LATENCY], limit_mib)
        self.tables, self.rows, self.pool_mib, self.measured = tables, rows, pool_mib, seconds

    def missing(self):
        tools = [tool for tool in ("mariadbd", "mariadb-install-db", "mariadb", "sysbench") if not shutil.which(tool)]
        return f"{tools[0]} is not installed: apt-get install mariadb-server sysbench" if tools else None

    def paths(self, context):
        directory = context.directory("mariadb")
        return os.path.join(directory, "data"), os.path.join(directory, "socket")

    def server(self, context):
        data, socket = self.paths(context)
        return [
            "mariadbd", "--no-defaults", "--user=root", f"--datadir={data}", f"--socket={socket}", "--skip-networking",
            f"--innodb-buffer-pool-size={self.pool_mib}M", "--innodb-flush-method=O_DIRECT", "--skip-log-bin",
            "--innodb-buffer-pool-load-at-startup=0", "--innodb-buffer-pool-dump-at-shutdown=0", "--max-connections=64",
        ]  # fmt: skip

    def sysbench(self, context, *words):
        socket = self.paths(context)[1]
        command = [
            "sysbench", LUA, "--db-driver=mysql", f"--mysql-socket={socket}", "--mysql-user=root", f"--mysql-db={DATABASE}",
            f"--tables={self.tables}", f"--table-size={self.rows}", "--rand-type=uniform", "--rand-seed=7", *words,
        ]  # fmt: skip
        process = Process(context.journal, command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        out, _ = process.wait(self.seconds)
        if process.child.returncode != 0:
            said = [line for line in out.splitlines() if "FATAL" in line] or out.strip().splitlines()[-1:]
            raise Failed(f"sysbench: {said[0] if said else process.child.returncode}")
        return out

    def sql(self, context, text):
        command = ["mariadb", "--no-defaults", f"--socket={self.paths(context)[1]}", "--user=root", "-N", "-e", text]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def await_server(self, process, context):
        end = time.monotonic() + 120
        while self.sql(context, "select 1").returncode != 0:
            if process.child.poll() is not None:
                raise Failed(f"mariadbd ended with status {process.child.returncode}")
            if time.monotonic() > end:
                raise Failed("mariadbd does not answer after 120 s")
            time.sleep(0.2)

    def end_server(self, process, context):
        """Ends it in order, so that its files are whole for the next run."""
        self.sql(context, "shutdown")
        try:
            process.wait(120)
        except Failed:
            process.end()
            raise

    def prepare(self, context):
        data, _ = self.paths(context)
        if os.path.exists(data):
            return
        made = subprocess.run(
            ["mariadb-install-db", "--no-defaults", f"--datadir={data}", "--user=root", "--auth-root-authentication-method=normal",
             "--skip-test-db"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if made.returncode != 0:
            raise Failed(f"mariadb-install-db: {made.stderr.strip()[-200:]}")
        process = Process(context.journal, self.server(context), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            self.await_server(process, context)
            self.sql(context, f"create database {DATABASE}")
            self.sysbench(context, "prepare")
            context.data["sysbench"] = self.sum(context)
        finally:
            self.end_server(process, context)

    def sum(self, context):
        """What all tables hold, as one line."""
        names = [f"{DATABASE}.sbtest{i + 1}" for i in range(self.tables)]
        found = self.sql(context, f"checksum table {', '.join(names)}")
        if found.returncode != 0:
            raise Failed(f"checksum table: {found.stderr.strip()[-200:]}")
        return found.stdout

    def run(self, where, context):
        process = where.start(self.server(context), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            self.await_server(process, context)
            # Brings every row into the buffer pool, and says whether it is right.
            if self.sum(context) != context.data["sysbench"]:
                raise Failed("a table is not what was put in")
            self.sysbench(context, "--threads=8", f"--time={self.measured // 2}", "run")
            out = self.sysbench(context, "--threads=8", f"--time={self.measured}", "run")
        finally:
            self.end_server(process, context)
        queries = re.search(r"queries:\s+\d+\s+\(([\d.]+) per sec", out)
        latency = re.search(r"95th percentile:\s+([\d.]+)", out)
        if not (queries and latency):
            raise Failed("sysbench's report is not understood")
        return {QUERIES.name: float(queries[1]), LATENCY.name: float(latency[1])}


def cases(quick):
    if quick:
        return [Sysbench(2, 5_000, 32, 80, 2)]
    return [Sysbench(8, 200_000, 512, 240, 20)]
