"""A redis-server with values such as services keep, and the client that asks it for them."""

import json
import os
import random
import shutil
import socket
import subprocess
import tempfile
import time

from .errors import Failed
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


def missing():
    """Why redis cannot be measured here, or None."""
    for tool in ("redis-server", "redis-benchmark"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    return None
