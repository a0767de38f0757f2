"""redis: GET at random, alone and while BGSAVE runs."""

import json
import os
import random
import shutil
import socket
import subprocess
import tempfile
import threading
import time

from .errors import MIB, Failed
from .group import Group
from .process import Process
from .stop import together

VALUE_BYTES = 1024
BATCH = 500
CHECKED_KEYS = 500
FIELDS = ("path", "agent", "status", "message", "region", "service", "started", "owner")
AGENTS = ("Mozilla/5.0 (X11; Linux x86_64)", "curl/8.5.0", "okhttp/4.12.0", "Googlebot/2.1")


class Values:
    """Distinct values of 1 KiB such as services keep, made from their number alone."""

    def __init__(self):
        source = random.Random(1)
        self.hex = f"{source.getrandbits(4 * 65536):065536x}".encode()
        records = []
        while sum(map(len, records)) < 1 << 19:
            record = {name: source.randrange(10**6) for name in source.sample(FIELDS, 4)}
            record["agent"] = source.choice(AGENTS)
            record["took"] = source.random()
            records.append(json.dumps(record).encode())
        self.text = b",".join(records)

    def of(self, number):
        mixed = number * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
        at, hex_at = mixed % (len(self.text) - VALUE_BYTES), (mixed >> 20) % (len(self.hex) - 128)
        head = b'{"id":%d,"token":"%b","log":[' % (number, self.hex[hex_at : hex_at + 96])
        return head + self.text[at : at + VALUE_BYTES - len(head)]


def key(number):
    """As redis-benchmark names them."""
    return b"key:%012d" % number


class Server:
    """A redis-server of our own on a loopback port."""

    def __init__(self, journal, wrap):
        self.journal = journal
        with together():
            self.directory = tempfile.mkdtemp(prefix="ebb-bench-redis-", dir="/var/tmp")
            self.tree = journal.add("tree", self.directory)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        command = [
            "redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
            "--dir", self.directory, "--daemonize", "no",
        ]  # fmt: skip
        self.log = open(os.path.join(self.directory, "log"), "w+", encoding="utf-8")
        self.process = Process(journal, wrap(command), stdout=self.log, stderr=subprocess.STDOUT)
        self.stream = None
        self._connect()

    def _connect(self):
        end = time.monotonic() + 20
        while True:
            if self.process.child.poll() is not None:
                self.log.seek(0)
                said = self.log.read().strip().splitlines()
                raise Failed(f"redis-server did not start{': ' + said[-1] if said else ''}")
            try:
                self.stream = socket.create_connection(("127.0.0.1", self.port), timeout=300)
                self.file = self.stream.makefile("rb", buffering=1 << 20)
                return
            except OSError:
                if time.monotonic() > end:
                    raise Failed("redis-server does not listen") from None
                time.sleep(0.02)

    def reply(self):
        line = self.file.readline()
        if not line:
            raise Failed("redis-server closed the connection")
        if line[:1] == b"-":
            raise Failed(line[1:].decode(errors="replace").strip())
        if line[:1] == b"$":
            length = int(line[1:])
            return None if length < 0 else self.file.read(length + 2)[:-2]
        return line[1:].strip()

    def ask(self, *words):
        self.stream.sendall(encode(words))
        return self.reply()

    def info(self, section):
        text = self.ask(b"INFO", section.encode()).decode()
        return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)

    def load(self, values, nr_keys):
        for first in range(0, nr_keys, BATCH):
            numbers = range(first, min(first + BATCH, nr_keys))
            self.stream.sendall(b"".join(encode((b"SET", key(n), values.of(n))) for n in numbers))
            for _ in numbers:
                self.reply()

    def check(self, values, nr_keys):
        """Compares some values with what was stored."""
        source = random.Random(2)
        for number in source.sample(range(nr_keys), min(CHECKED_KEYS, nr_keys)):
            if self.ask(b"GET", key(number)) != values.of(number):
                raise Failed(f"key {number} does not hold what was stored")

    def close(self):
        """Ends it in order, so that Ebb writes its account."""
        try:
            self.stream.sendall(encode((b"SHUTDOWN", b"NOSAVE")))
            self.process.wait(30)
        except (OSError, Failed, AttributeError):
            self.process.end()
        finally:
            if self.stream is not None:
                self.stream.close()
            self.log.close()
            self.journal.undo_one(self.tree)


def encode(words):
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def gets_per_second(journal, port, nr_keys, requests):
    command = [
        "redis-benchmark", "-h", "127.0.0.1", "-p", str(port), "-t", "get", "-r", str(nr_keys), "-n", str(requests),
        "-d", str(VALUE_BYTES), "-c", "12", "-P", "32", "--csv",
    ]  # fmt: skip
    process = Process(journal, command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = process.wait(300)
    for line in out.splitlines():
        fields = [text.strip('"') for text in line.split(",")]
        if fields[0] == "GET":
            return float(fields[1])
    raise Failed(f"redis-benchmark: {(err or out).strip()[-200:]}")


class Sampler(threading.Thread):
    """The most anonymous memory that a cgroup's processes held, looked at every 50 ms."""

    def __init__(self, group):
        super().__init__(daemon=True)
        self.group, self.peak, self.done = group, 0, threading.Event()
        self.start()

    def run(self):
        while not self.done.wait(0.05):
            self.peak = max(self.peak, self.group.anonymous_bytes())

    def take(self):
        """The peak since the last time."""
        peak, self.peak = self.peak, 0
        return peak

    def close(self):
        self.done.set()
        self.join()


def load_and_get(journal, server, zram, sampler, nr_keys, requests, values):
    """Loads, measures, checks; what was found."""
    start = time.monotonic()
    server.load(values, nr_keys)
    found = {"load_s": time.monotonic() - start}
    found["used_memory_bytes"] = int(server.info("memory")["used_memory"])
    gets_per_second(journal, server.port, nr_keys, requests // 4)
    found["get_rps"] = gets_per_second(journal, server.port, nr_keys, requests)
    if zram:
        found["zram"] = zram.memory()
    found["anonymous_peak_bytes"] = sampler.take()
    server.check(values, nr_keys)
    return found


def save_and_get(journal, server, zram, sampler, nr_keys, requests, values):
    """What is measured while a child of a loaded server saves."""
    sampler.take()
    start = time.monotonic()
    server.ask(b"BGSAVE")
    chunk, spent, done, share = requests // 6, 0.0, 0, 1.0
    while True:
        rps = gets_per_second(journal, server.port, nr_keys, chunk)
        running = server.info("persistence")["rdb_bgsave_in_progress"] == "1"
        # The chunk in which it ended was only in part beside it; it counts when there is no other.
        if running or not done:
            spent, done, share = spent + chunk / rps, done + chunk, 1.0 if running else 0.5
        if not running:
            break
        if time.monotonic() - start > 300:
            raise Failed("BGSAVE takes more than 300 s")
    found = {"save_s": time.monotonic() - start}
    found["save_get_rps"] = done / spent
    found["save_covered_whole"] = share == 1.0
    if server.info("persistence")["rdb_last_bgsave_status"] != "ok":
        raise Failed("BGSAVE failed")
    server.check(values, nr_keys)
    if zram:
        found["save_zram_peak_bytes"] = zram.memory()["peak_bytes"]
    found["save_anonymous_peak_bytes"] = sampler.take()
    return found


def run_server(plan, journal, zram, sizes, prefix, limit_bytes, with_save):
    """One server from its start to its end, in a cgroup; what was found. `prefix` is the command that runs it."""
    nr_keys, _, requests = sizes
    group = sampler = server = None
    try:
        group = Group(journal, limit_bytes)
        sampler = Sampler(group)
        server = Server(journal, lambda command: group.wrap(prefix + command))
        values = Values()
        found = load_and_get(journal, server, zram, sampler, nr_keys, requests, values)
        if with_save:
            found |= save_and_get(journal, server, zram, sampler, nr_keys, requests, values)
        return found
    finally:
        if sampler:
            sampler.close()
        if server:
            server.close()
        if group:
            group.close()


def run_ebb(plan, journal, sizes, ram_bytes, with_save):
    """A server whose whole tree has a budget."""
    stats = os.path.join(plan.scratch, "redis-stats.json")
    prefix = [plan.ebb, "run", "--ram", str(ram_bytes), "--stats", stats, "-q", "--"]
    found = run_server(plan, journal, None, sizes, prefix, None, with_save)
    if os.path.exists(stats):
        with open(stats, encoding="utf-8") as file:
            whole = json.load(file)
        os.unlink(stats)
        found["counters"] = whole["counters"]
        if whole["error"]:
            raise Failed(whole["error"])
    return found


def run_system(plan, journal, zram, sizes, system, ram):
    """A system's figures. The kernel's run puts into `ram` what it took, without BGSAVE and with it; Ebb gets the same,
    in a server for each."""
    limit_bytes = sizes[1] * MIB
    if system == "none":
        return run_server(plan, journal, None, sizes, [], None, True)
    if system == "kernel":
        zram.reset_peak()
        found = run_server(plan, journal, zram, sizes, [], limit_bytes, True)
        ram["get"] = limit_bytes + found["zram"]["peak_bytes"]
        ram["save"] = limit_bytes + found["save_zram_peak_bytes"]
    else:
        found = run_ebb(plan, journal, sizes, ram["save"], True)
        found["save_counters"] = found.pop("counters", None)
        found |= run_ebb(plan, journal, sizes, ram["get"], False)
    return found | {"total_bytes": ram["get"], "save_total_bytes": ram["save"]}


def run_round(plan, journal, zram, nr, sizes, results, say):
    """One round of redis under every system; `sizes` is (keys, limit in MiB, requests)."""
    ram = {}
    for system in plan.systems:
        # The engine alone manages only what the benchmark asks it for.
        if system == "engine" or (system == "ebb" and not ram):
            continue
        try:
            found = run_system(plan, journal, zram, sizes, system, ram)
        except (Failed, OSError) as failure:
            say(f"redis, {system}: failed: {failure}")
            found = {"failed": str(failure)}
        found["round"] = nr
        results.setdefault(system, []).append(found)


def missing():
    """Why redis cannot be measured here, or None."""
    for tool in ("redis-server", "redis-benchmark"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    return None
