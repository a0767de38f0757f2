"""redis that saves: the child of BGSAVE and of the rewrite of the log, and its parent, share one budget."""
import random
import shutil
import time

from redis_case import Server, load, value, verify
from tree import MIB, need


def read_until(client, count, finished):
    """GETs at random, each compared, while something is under way; how many a second."""
    rng = random.Random(17)
    begin, asked = time.monotonic(), 0
    while not finished():
        keys = [rng.randrange(count) for _ in range(800)]
        for i, found in zip(keys, client.pipeline(("GET", f"key:{i}") for i in keys)):
            need(found == value(1, i), f"while it saves: key:{i} holds {found[:40] if found else found!r}...")
        asked += len(keys)
    return asked / (time.monotonic() - begin)


def save_while_read(client, count, command, running, status, what):
    """Starts a save by a child and reads until it has ended; GETs a second meanwhile."""
    client.call(*command)
    rate = read_until(client, count, lambda: all(client.info("persistence")[name] == "0" for name in running))
    need(client.info("persistence")[status] == "ok", f"{what} failed")
    return rate


def load_elsewhere(context, directory, digest, what, *options):
    """An unlimited server reads what was saved: it must be what the server holds."""
    plain = Server(context, None, directory, *options)
    try:
        plain.wait_loaded()
        need(plain.client.call("DEBUG", "DIGEST") == digest, f"{what} holds something else than the server")
    finally:
        plain.stop()


def serve(context, ram, count, tag):
    """Fills a server, saves in both ways while it is read; (what the sampler saw, the server's own measure of its data)."""
    directory = context.path(f"redis-{tag}")
    begin = time.monotonic()
    server = Server(context, ram, directory)
    try:
        client = server.client
        load(server, count, 1)
        data = int(client.info("memory")["used_memory_dataset"])
        rates = [save_while_read(client, count, ("BGSAVE",), ["rdb_bgsave_in_progress"], "rdb_last_bgsave_status", "BGSAVE")]
        digest = client.call("DEBUG", "DIGEST")
        load_elsewhere(context, directory, digest, "the snapshot")
        # The first writing of the log is a rewrite by a child, too.
        idle = ["aof_rewrite_in_progress", "aof_rewrite_scheduled"]
        commands = [("CONFIG", "SET", "appendonly", "yes"), ("BGREWRITEAOF",)]
        for command in commands[:context.pick(1, 2)]:
            rates.append(save_while_read(client, count, command, idle, "aof_last_bgrewrite_status", "the rewrite of the log"))
        load_elsewhere(context, directory, digest, "the log", "--appendonly", "yes")
        client.call("CONFIG", "SET", "appendonly", "no")
        verify(client, count, 1, "after saving", share=context.pick(4, 1))
    except BaseException:
        server.kill()
        raise
    server.stop()
    shutil.rmtree(directory)
    context.results.append((ram, server.watch.found, time.monotonic() - begin))
    context.notes.append(f"{'alone' if ram is None else ram}: GET/s during BGSAVE {rates[0]:.0f}, during the rewrite {rates[1]:.0f}")
    return server.watch.found, data


def bgsave(context):
    """A half, then a quarter of the data."""
    count = context.pick(70_000, 600_000)
    plain, data = serve(context, None, count, "plain")
    bounded = []
    for share in (2, 4):
        ram = f"{data // share // MIB}M"
        bounded.append((ram, serve(context, ram, count, f"{share}")[0]))
    for ram, found in bounded:
        context.bound_tree(found, ram, plain)
