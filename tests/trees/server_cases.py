"""Servers of many processes, asked from outside."""
import glob
import hashlib
import os
import random
import shutil
import signal
import socket
import subprocess
import time
import zlib

from harness import NOBODY
from tree import Failure, need, until


class Server:
    """A command that runs until it is told to end, in order."""

    def __init__(self, context, command, ram, ready, by=None):
        self.context, self.ram = context, ram
        self.log = context.path("server.log")
        with open(self.log, "wb") as log:
            command = (by or []) + context.command(command, ram)
            self.process = subprocess.Popen(command, cwd=context.scratch, env=context.environment(), stdin=subprocess.DEVNULL,
                                            stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        self.watch = context.watch(self.process.pid, skip_root=ram is not None)
        self.watch.start()
        need(until(lambda: ready() or self.process.poll() is not None, 60) and self.process.poll() is None,
             f"the server does not come up: status {self.process.poll()}: {self.said()}")

    def said(self):
        with open(self.log, errors="replace") as log:
            return log.read()[-600:]

    def stop(self, number, seconds):
        """Ends it by a signal; what the sampler found."""
        os.kill(self.process.pid, number)
        try:
            status = self.process.wait(60)
        except subprocess.TimeoutExpired:
            raise Failure(f"it does not end by {signal.Signals(number).name}: {self.said()}") from None
        need(status == 0, f"it ended with {status}: {self.said()}")
        self.watch.stop()
        self.context.results.append((self.ram, self.watch.found, seconds()))
        return self.watch.found


def stopwatch():
    begin = time.monotonic()
    return lambda: time.monotonic() - begin


NGINX = """
daemon off;
worker_processes 4;
pid {scratch}/nginx.pid;
error_log {scratch}/error.log;
{user}
events {{ worker_connections 512; }}
http {{
  access_log off;
  # Contents go through memory of the workers: a slow client holds eight buffers of 512 KiB.
  sendfile off;
  output_buffers 8 512k;
  client_body_temp_path {scratch}/body;
  proxy_temp_path {scratch}/proxy;
  fastcgi_temp_path {scratch}/fastcgi;
  uwsgi_temp_path {scratch}/uwsgi;
  scgi_temp_path {scratch}/scgi;
  server {{
    listen unix:{scratch}/http;
    root {scratch}/files;
    location /packed/ {{ alias {scratch}/files/; gzip on; gzip_comp_level 6; gzip_types *; gzip_buffers 64 16k; }}
  }}
}}
"""


class Download:
    """A request over the server's socket whose answer is read bit by bit."""

    def __init__(self, path, name, is_packed):
        self.name, self.is_packed = name, is_packed
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(60)
        self.socket.connect(path)
        head = f"GET /{'packed/' if is_packed else ''}{name} HTTP/1.0\r\nHost: here\r\nAccept-Encoding: gzip\r\n\r\n"
        self.socket.sendall(head.encode())
        self.data = []

    def more(self, size):
        """False at its end."""
        part = self.socket.recv(size)
        self.data.append(part)
        return bool(part)

    def body(self):
        self.socket.close()
        head, _, body = b"".join(self.data).partition(b"\r\n\r\n")
        need(head.startswith(b"HTTP/1.1 200"), f"{self.name}: {head[:80]!r}")
        if b"Content-Encoding: gzip" in head:
            body = zlib.decompress(body, 31)
        return body


def accepts(path):
    """Whether a server listens there: its file exists from bind() on, before listen()."""
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            return False
    return True


def ask_nginx(path, sums, rounds, wide):
    """Many slow clients at once; every byte is compared."""
    rng = random.Random(5)
    for _ in range(rounds):
        downloads = [Download(path, rng.choice(sorted(sums)), i % 4 == 0) for i in range(wide)]
        left = list(downloads)
        while left:
            left = [one for one in left if one.more(rng.randrange(1, 400_000))]
        for one in downloads:
            need(hashlib.sha256(one.body()).hexdigest() == sums[one.name], f"{one.name} came with other contents")


def nginx(context):
    """A master and four workers, files through their buffers to slow clients."""
    directory = context.path("files")
    os.mkdir(directory)
    sums = {}
    for number in range(6):
        rng = random.Random(number)
        words = [rng.randbytes(6).hex().encode() for _ in range(5000)]
        content = b" ".join(rng.choice(words) for _ in range(context.pick(400_000, 800_000)))
        with open(os.path.join(directory, f"file{number}"), "wb") as file:
            file.write(content)
        sums[f"file{number}"] = hashlib.sha256(content).hexdigest()
    configuration = context.path("nginx.conf")
    with open(configuration, "w") as file:
        file.write(NGINX.format(scratch=context.scratch, user="user nobody nogroup;" if os.geteuid() == 0 else ""))
    os.chmod(context.scratch, 0o755)
    path = context.path("http")

    def serve(ram):
        elapsed = stopwatch()
        server = Server(context, ["nginx", "-e", context.path("error.log"), "-p", context.scratch, "-c", configuration], ram,
                        lambda: accepts(path))
        try:
            ask_nginx(path, sums, context.pick(2, 20), context.pick(64, 160))
        except OSError as error:
            raise Failure(f"{error}: the server's status is {server.process.poll()}: {server.said()}") from error
        return server.stop(signal.SIGQUIT, elapsed)

    plain = serve(None)
    ram = context.third(plain)
    context.bound_tree(serve(ram), ram, plain)


def postgres_binaries():
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin"), key=lambda path: int(path.split("/")[4]))
    need(found, "postgresql is missing: tools/install-packages")
    return found[-1]


class Postgres(Server):
    """A server on a socket in the scratch directory, with a cluster copied from a template."""

    OPTIONS = {"shared_buffers": "16MB", "work_mem": "96MB", "hash_mem_multiplier": "2", "listen_addresses": "",
               "max_parallel_workers_per_gather": "2", "enable_parallel_hash": "off", "min_parallel_table_scan_size": "0",
               "parallel_setup_cost": "1", "parallel_tuple_cost": "0.001", "jit": "off", "huge_pages": "off", "fsync": "off",
               "autovacuum": "off", "max_connections": "20"}

    def __init__(self, context, binaries, template, ram):
        self.data = context.path("cluster")
        self.binaries = binaries
        subprocess.run(["cp", "-a", template, self.data], check=True)
        options = [word for name, value in self.OPTIONS.items() for word in ("-c", f"{name}={value}")]
        command = [os.path.join(binaries, "postgres"), "-D", self.data, "-k", context.scratch, *options]
        super().__init__(context, command, ram, self.is_ready, NOBODY if os.geteuid() == 0 else [])

    def is_ready(self):
        done = subprocess.run([os.path.join(self.binaries, "pg_isready"), "-q", "-h", self.context.scratch], check=False)
        return done.returncode == 0

    def start_sql(self, text):
        """A client of its own that is at work on it."""
        command = [os.path.join(self.binaries, "psql"), "-h", self.context.scratch, "-U", "user", "-d", "postgres", "-X", "-q",
                   "-A", "-t", "-v", "ON_ERROR_STOP=1", "-c", text]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                env=self.context.environment())

    def sql_at_once(self, texts):
        """What each answers, all of them at the same time."""
        clients = [self.start_sql(text) for text in texts]
        answers = []
        try:
            for client, text in zip(clients, texts):
                answer, _ = client.communicate(timeout=1500)
                need(client.returncode == 0, f"{text[:60]}: {answer[-300:]}: {self.said()}")
                answers.append(answer)
        finally:
            for client in clients:
                if client.poll() is None:
                    client.kill()
                    client.wait()
        return answers


TABLES = """
create table items as select i as id, (i::bigint * 7919) % 100003 as number, md5(i::text) as name, repeat(chr(97 + i % 26), 60) as text
  from generate_series(1, {rows}) i;
create table accounts as select i as id, 0 as balance from generate_series(1, 1000) i;
alter table accounts add primary key (id);
analyze;
"""
# Sorts, hashes and aggregates, each in some dozen MiB of work memory and some in several workers; and a table that is changed.
QUERIES = [
    "select md5(string_agg(name, ',')) from (select name from items order by text, name) s",
    "select md5(string_agg(v, ',')) from (select number || ':' || count(*) || ':' || min(name) as v from items group by number, name"
    " order by number, name) s",
    "select count(*), sum(a.number), md5(min(a.name || b.text)) from items a join items b on a.name = b.name",
    "select md5(string_agg(r, ',')) from (select name || row_number() over (partition by number order by name) as r from items"
    " order by number, name) s",
    "select md5(string_agg(n, ',')) from (select distinct name || text as n from items order by 1) s",
    "do $$ begin for i in 1..6000 loop update accounts set balance = balance + i where id = (i * 37) % 1000 + 1; end loop; end $$;"
    " select sum(balance), md5(string_agg(balance::text, ',' order by id)) from accounts",
]


def postgres(context):
    """Backends and parallel workers that sort and hash at once."""
    binaries = postgres_binaries()
    template = context.path("template")
    by = NOBODY if os.geteuid() == 0 else []
    os.chmod(context.scratch, 0o777)
    subprocess.run(by + [os.path.join(binaries, "initdb"), "-D", template, "-U", "user", "-A", "trust", "--no-sync", "-E", "UTF8",
                         "--locale=C"], check=True, stdout=subprocess.DEVNULL, env=context.environment())

    def serve(ram):
        elapsed = stopwatch()
        server = Postgres(context, binaries, template, ram)
        answers = server.sql_at_once([TABLES.format(rows=context.pick(360_000, 900_000))])
        for _ in range(context.pick(1, 3)):
            answers += server.sql_at_once(QUERIES)
        found = server.stop(signal.SIGINT, elapsed)
        shutil.rmtree(server.data)
        return answers, found

    expected, plain = serve(None)
    ram = context.third(plain)
    answers, found = serve(ram)
    for query, one, other in zip(["tables", *QUERIES], expected, answers):
        need(one == other, f"{query[:60]}: {one[:100]!r} became {other[:100]!r}")
    context.bound_tree(found, ram, plain)
