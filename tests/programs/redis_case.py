"""redis under a budget: every value read back, snapshots and logs taken while it serves, all of it dropped and refilled."""
import base64
import os
import random
import socket
import subprocess
import time

from harness import MIB, Failure, Outcome, parse_size
from redis_client import RedisError, connect, encode


def value(seed, i):
    """About a KiB, different for every key, that compresses by a quarter."""
    return base64.b64encode(random.Random(seed * 1_000_003 + i).randbytes(760))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    def __init__(self, context, ram, directory, *options, variables=None):
        self.context, self.directory = context, directory
        self.port = free_port()
        os.makedirs(directory, exist_ok=True)
        os.chmod(directory, 0o777)
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--dir", directory, "--save", "",
                   "--enable-debug-command", "local", "--daemonize", "no", "--logfile", "server.log", *options]
        self.process, self.watch = context.start(command, ram, cwd=directory, stdout=subprocess.DEVNULL, env=variables)
        self.client = connect(self.port)
        self.pid = int(self.client.info("server")["process_id"])

    def wait_loaded(self):
        while self.client.info("persistence")["loading"] != "0":
            time.sleep(0.1)

    def stop(self):
        """Ends the server by its own command, and whatever is left by its id."""
        try:
            self.client.call("SHUTDOWN", "NOSAVE")
        except (RedisError, OSError):
            pass
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.context.end(self.process)
            self.process.wait()
        self.watch.stop()

    def kill(self):
        self.context.end(self.process)
        self.process.wait()
        self.watch.stop()


def load(server, count, seed):
    """Through redis-cli --pipe."""
    cli = subprocess.Popen(["redis-cli", "-p", str(server.port), "--pipe"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    for start in range(0, count, 500):
        block = b"".join(encode("SET", f"key:{i}", value(seed, i)) for i in range(start, min(start + 500, count)))
        cli.stdin.write(block)
    cli.stdin.close()
    output = cli.stdout.read().decode()
    if cli.wait() != 0 or f"replies: {count}" not in output or "errors: 0" not in output:
        raise Failure(f"redis-cli --pipe: {output.strip()[-200:]}")


def verify(client, count, seed, what, share=1):
    order = list(range(count))
    random.Random(count).shuffle(order)
    order = order[:count // share]
    for i, found in zip(order, client.pipeline(("GET", f"key:{i}") for i in order)):
        if found != value(seed, i):
            raise Failure(f"{what}: key:{i} holds {found[:40] if found else found!r}...")


def hot_traffic(client, count, seed, round_number, hot, finished):
    """Reads of the keys and writes to hot ones, until something is finished."""
    rng = random.Random(round_number)
    steps = 0
    while not finished():
        for _ in range(4):
            keys = [rng.randrange(count) for _ in range(200)]
            for i, found in zip(keys, client.pipeline(("GET", f"key:{i}") for i in keys)):
                if found != value(seed, i):
                    raise Failure(f"during traffic: key:{i} holds {found[:40] if found else found!r}...")
            writes = [rng.randrange(hot) for _ in range(100)]
            for _ in client.pipeline(("SET", f"hot:{i}", b"%d:%d:" % (i, steps) + value(99, i)) for i in writes):
                pass
            steps += 1
    return steps


def check_hot(client, hot):
    for i, found in enumerate(client.pipeline(("GET", f"hot:{i}") for i in range(hot))):
        if found is not None:
            number, _, rest = found.split(b":", 2)
            if int(number) != i or rest != value(99, i):
                raise Failure(f"hot:{i} holds {found[:40]!r}...")


def scenario(context, ram, count, tag):
    hot = max(count // 10, 100)
    directory = context.path(f"redis-{tag}")
    begin = time.monotonic()
    server = Server(context, ram, directory)
    try:
        client = server.client
        load(server, count, 1)
        verify(client, count, 1, "after loading")
        loaded_s = time.monotonic() - begin

        # A snapshot by a forked child, while the parent serves and writes.
        client.call("BGSAVE")
        finished = lambda: client.info("persistence")["rdb_bgsave_in_progress"] == "0"
        hot_traffic(client, count, 1, 1, hot, finished)
        if client.info("persistence")["rdb_last_bgsave_status"] != "ok":
            raise Failure("BGSAVE failed")
        plain = Server(context, None, directory)
        try:
            plain.wait_loaded()
            verify(plain.client, count, 1, "in the snapshot")
            check_hot(plain.client, hot)
        finally:
            plain.stop()

        # The append-only file: its first writing is a rewrite by a child, then a second one.
        client.call("CONFIG", "SET", "appendonly", "yes")
        for round_number in (2, 3):
            idle = lambda: (lambda i: i["aof_rewrite_in_progress"] == "0" and i["aof_rewrite_scheduled"] == "0")(
                client.info("persistence"))
            hot_traffic(client, count, 1, round_number, hot, idle)
            if client.info("persistence")["aof_last_bgrewrite_status"] != "ok":
                raise Failure("the rewrite of the append-only file failed")
            if round_number == 2:
                client.call("BGREWRITEAOF")
        digest = client.call("DEBUG", "DIGEST")
        client.call("CONFIG", "SET", "appendfsync", "always")
        client.call("SET", "last", "one")
        client.call("DEL", "last")
        plain = Server(context, None, directory, "--appendonly", "yes")
        try:
            plain.wait_loaded()
            if plain.client.call("DEBUG", "DIGEST") != digest:
                raise Failure("the append-only file holds something else than the server")
        finally:
            plain.stop()
        client.call("CONFIG", "SET", "appendonly", "no")

        # Everything dropped, freed by another thread while new values come in.
        client.call("FLUSHALL", "ASYNC")
        load(server, count // 2, 2)
        verify(client, count // 2, 2, "after the refill")
        if client.call("GET", f"key:{count - 1}") is not None:
            raise Failure("a key is left after FLUSHALL")
    except BaseException:
        server.kill()
        raise
    seconds = time.monotonic() - begin
    server.stop()
    peak, name = server.watch.peak()
    context.notes.append(f"{'alone' if ram is None else ram}: loaded and read in {loaded_s:.1f} s")
    return Outcome(0, b"", seconds, peak, name)


def crash_of(context, ram, count, tag):
    """A server that crashes: its report tests every range of memory that its own maps show, in its last moments."""
    directory = context.path(f"redis-crash-{tag}")
    begin = time.monotonic()
    # Its report ends the server's own threads first, but not jemalloc's, which then dies of the test now and then, also without Ebb;
    # and the kernel ends a thread (SIGSEGV of its own) that is interrupted while its rseq area holds the test's pattern.
    variables = {"GLIBC_TUNABLES": "glibc.pthread.rseq=0"}
    server = Server(context, ram, directory, "--jemalloc-bg-thread", "no", variables=variables)
    try:
        load(server, count, 1)
        verify(server.client, count, 1, "before the crash", share=4)
        try:
            server.client.call("DEBUG", "SEGFAULT")
        except (RedisError, OSError, EOFError):
            pass
        try:
            status = server.process.wait(300)
        except subprocess.TimeoutExpired:
            raise Failure("the server did not end within 300 s of its crash") from None
    except BaseException:
        server.kill()
        raise
    server.watch.stop()
    with open(os.path.join(directory, "server.log"), errors="replace") as log:
        report = log.read()
    if "Fast memory test PASSED" not in report:
        raise Failure(f"status {status}, and the memory test has no result: {report[-300:]}")
    tested = sum(int(line.split("(")[1].split()[0]) for line in report.split("\n") if "test memory region" in line)
    peak, name = server.watch.peak()
    context.notes.append(f"{'alone' if ram is None else ram}: {tested / MIB:.0f} MiB tested")
    return Outcome(status, b"", time.monotonic() - begin, peak, name), tested


def crash(context):
    count = context.pick(40_000, 490_000)
    ram = context.pick("20M", "300M")
    plain, tested = crash_of(context, None, count, "plain")
    if context.ebb is None:
        return plain, None
    bounded, tested_bounded = crash_of(context, ram, count, "ebb")
    if bounded.status != plain.status:
        raise Failure(f"status {bounded.status} became of {plain.status}")
    if tested_bounded > tested * 1.5 + 16 * MIB:
        raise Failure(f"{tested_bounded / MIB:.0f} MiB were tested; alone {tested / MIB:.0f}")
    # The test writes to the whole stacks of the server's threads, too, which are not managed.
    stacks = 6 * 8 * MIB
    if bounded.peak > parse_size(ram) + 16 * MIB + stacks:
        raise Failure(f"{bounded.peak_name} held {bounded.peak / MIB:.0f} MiB")
    return plain, bounded


def case(context):
    count = context.pick(40_000, 490_000)
    ram = context.pick("30M", "300M")
    plain = scenario(context, None, count, "plain")
    if context.ebb is None:
        return plain, None
    bounded = scenario(context, ram, count, "ebb")
    context.bound(bounded, ram)
    context.notes.append(f"alone {plain.peak / MIB:.0f} MiB")
    return plain, bounded
