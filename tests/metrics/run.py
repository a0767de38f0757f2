#!/usr/bin/python3
"""`ebb metrics`: what it prints, answers and writes is read by Prometheus' own parsers, and says what `ebb ps --json` says. One line a
case; the closing line counts.

EBB names the command (default: target/release/ebb of this repository, then `ebb` on the path).
"""
import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))

from cases import need, run_cases  # noqa: E402
from command import find_ebb  # noqa: E402

# Debian's python3, for which there is the package python3-prometheus-client.
PYTHON = "/usr/bin/python3"
PARSE = """
import json, sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as prometheus
parse = {"openmetrics": openmetrics, "prometheus": prometheus}[sys.argv[1]]
families = [(f.name, f.type, f.unit, [(s.name, s.labels, s.value) for s in f.samples]) for f in parse(sys.stdin.read())]
json.dump(families, sys.stdout)
"""
# Grows to five times its budget, says so, and waits.
PROGRAM = """
import hashlib, sys
m = [hashlib.shake_128(str(i).encode()).digest(1 << 17) * 4 for i in range(120)]
print("grown", flush=True)
sys.stdin.read()
print(sum(x[0] + x[-1] for x in m))
"""
LIMIT_S = 60
NAME = "metrics-test"


def parse(text, how):
    """The families by name, or a failure with the parser's own words."""
    ran = subprocess.run([PYTHON, "-c", PARSE, how], input=text, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    need(ran.returncode == 0, f"the parser refuses it: {ran.stderr}")
    return {name: (kind, unit, samples) for name, kind, unit, samples in json.loads(ran.stdout)}


def values(families, name, **wanted):
    """The values of a family's samples with these labels."""
    return [value for _, labels, value in families[name][2] if wanted.items() <= labels.items()]


@contextlib.contextmanager
def tree(ebb, name=NAME):
    """A program under Ebb that waits until it has been looked at."""
    command = [ebb, "run", "--ram", "12M", "--show-ram", "3G", "--name", name, "--", PYTHON, "-c", PROGRAM]
    program = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        need(program.stdout.readline() == "grown\n", "the program did not grow")
        yield program
        program.communicate(timeout=LIMIT_S)
        need(program.returncode == 0, f"the program ended with {program.returncode}")
    finally:
        program.kill()
        program.wait()


@contextlib.contextmanager
def server(ebb, address, prefix=(), targets=()):
    """The number of `ebb metrics --listen`, and the line that it says."""
    asked = subprocess.Popen([*prefix, ebb, "metrics", "--listen", address, *targets], stderr=subprocess.PIPE, text=True)
    try:
        said = asked.stderr.readline()
        need(said.startswith("ebb: metrics at "), f"it says {said!r}")
        with open(f"/proc/{asked.pid}/task/{asked.pid}/children", encoding="ascii") as file:
            children = file.read().split()
        yield int(children[0]) if prefix else asked.pid, said
    finally:
        asked.send_signal(signal.SIGTERM)
        need(asked.wait(LIMIT_S) == -signal.SIGTERM, "it does not end")


def get(connection, path="/metrics"):
    connection.request("GET", path)
    answer = connection.getresponse()
    return answer.status, answer.getheader("Content-Type"), answer.read().decode()


class Unix(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=LIMIT_S)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(LIMIT_S)
        self.sock.connect(self.path)


class Cases:
    """Each method is a case, whose docstring says what holds."""

    def __init__(self, ebb, scratch):
        self.ebb, self.scratch = ebb, scratch

    def run(self, *arguments):
        return subprocess.run([self.ebb, *arguments], capture_output=True, text=True, timeout=LIMIT_S, check=False)

    def printed_is_what_ps_says(self):
        """Standard output is OpenMetrics, and its figures are those of `ebb ps`."""
        told = self.run("metrics", NAME)
        need(told.returncode == 0 and told.stderr == "", told.stderr)
        families = parse(told.stdout, "openmetrics")
        shown = json.loads(self.run("ps", "--json", NAME).stdout)[0]
        process = next(one for one in shown["processes"] if one["managed"])
        need(values(families, "ebb_budget_bytes", tree=NAME) == [shown["budget_bytes"]], "another budget")
        need(values(families, "ebb_budget_bytes", pid=str(shown["supervisor"])) == [shown["budget_bytes"]], "another pid")
        need(values(families, "ebb_wanted_bytes", tree=NAME) == [process["wanted_bytes"]], "another amount is wanted")
        own = {"tree": NAME, "process": str(process["pid"])}
        need(values(families, "ebb_process_swapped_bytes", **own) == [process["swapped_bytes"]], "another amount is out")
        need(values(families, "ebb_process_faults", **own) == [process["faults"]], "other faults")
        for tier, of in process["tiers"].items():
            need(values(families, "ebb_tier_bytes", tier=tier, tree=NAME) == [of["bytes"]], f"another amount is {tier}")
        kind, unit, _ = families["ebb_stall_seconds"]
        need((kind, unit) == ("counter", "seconds"), f"stalls are {kind}, {unit}")
        kind, unit, _ = families["ebb_pressure_waiting_seconds"]
        need((kind, unit) == ("counter", "seconds"), f"the time that somebody waited is {kind}, {unit}")
        waited = values(families, "ebb_pressure_waiting_seconds", tree=NAME)
        need(waited == [shown["stall"]["some_ns"] / 1e9] and 0 < waited[0], f"waited {waited}, {shown['stall']}")
        need(values(families, "ebb_shown_ram_bytes", tree=NAME) == [shown["show_ram_bytes"]] == [3 << 30], "another RAM is shown")
        need(sum(values(families, "ebb_swapped_out_bytes", tree=NAME)) > 20 << 20, "nothing was swapped out")

    def whoever_asks_is_answered(self):
        """An HTTP server on a TCP port tells the same, as often as it is asked, and keeps nothing of it."""
        for prefix, targets in (([], []), ([], [NAME]), ([], ["not-there"]), ([self.ebb, "run", "-q", "--ram", "64M", "--"], [])):
            self.scrape(prefix, targets)

    def scrape(self, prefix, targets):
        with server(self.ebb, "127.0.0.1:0", prefix, targets) as (asked, said):
            host, port = re.search(r"http://([0-9.]+):(\d+)/metrics", said).groups()
            descriptors = []
            for _ in range(8):
                status, kind, text = get(http.client.HTTPConnection(host, int(port), timeout=LIMIT_S))
                need(status == 200 and kind.startswith("application/openmetrics-text; version=1.0.0"), f"{status} {kind}")
                families = parse(text, "openmetrics")
                if targets == ["not-there"]:
                    need(families == {}, "there is something")
                else:
                    need(values(families, "ebb_processes", tree=NAME, managed="yes") == [1], "no process")
                descriptors.append(len(os.listdir(f"/proc/{asked}/fd")))
            # The first look at its own tree opens that for good.
            need(descriptors[1] == descriptors[-1], f"descriptors are left over: {descriptors}")
            status, _, text = get(http.client.HTTPConnection(host, int(port), timeout=LIMIT_S), "/")
            need(status == 404 and "/metrics" in text, f"{status} {text}")

    def a_socket_in_a_directory_is_an_address_too(self):
        """A UNIX socket, also where an earlier one was left behind."""
        path = os.path.join(self.scratch, "socket")
        for _ in range(2):
            with server(self.ebb, f"unix:{path}"):
                need("ebb_held_bytes" in parse(get(Unix(path))[2], "openmetrics"), "nothing is held")

    def a_file_is_in_the_older_format(self):
        """node_exporter reads the file, and finds no half of it."""
        need(self.run("metrics", "--textfile", self.scratch).returncode == 0, "it was not written")
        with open(os.path.join(self.scratch, "ebb.prom"), encoding="utf-8") as file:
            families = parse(file.read(), "prometheus")
        need(families["ebb_faults"][0] == "counter", str(families["ebb_faults"][0]))
        need(values(families, "ebb_held_bytes", tree=NAME)[0] > 0, "nothing is held")
        need([name for name in os.listdir(self.scratch) if name.startswith(".ebb")] == [], "a file is left over")

    def mistakes_are_one_line(self):
        """What cannot be done is said in one line, with status 125."""
        taken = socket.create_server(("127.0.0.1", 0))
        with taken:
            port = taken.getsockname()[1]
            for arguments, words in ((["--listen", f"127.0.0.1:{port}"], "in use"), (["--listen", "here"], "no address"),
                                     (["--textfile", "/nowhere"], "No such file"), (["no-such-tree"], "no running tree")):
                told = self.run("metrics", *arguments)
                need(told.returncode == 125 and told.stderr.count("\n") == 1 and words in told.stderr,
                     f"{arguments}: {told.returncode} {told.stderr}")

    def a_tree_that_ended_is_told_no_more(self):
        """Nothing is left of it."""
        with tree(self.ebb, "metrics-ended"):
            need("metrics-ended" in self.run("metrics").stdout, "it is not told")
        told = self.run("metrics")
        need("metrics-ended" not in told.stdout and told.stdout.endswith("# EOF\n"), f"{told.stdout}{told.stderr}")

    def all(self):
        return [self.printed_is_what_ps_says, self.whoever_asks_is_answered, self.a_socket_in_a_directory_is_an_address_too,
                self.a_file_is_in_the_older_format, self.mistakes_are_one_line,
                self.a_tree_that_ended_is_told_no_more]


def main():
    ebb = find_ebb()
    with tempfile.TemporaryDirectory(prefix="ebb-metrics-") as scratch, tree(ebb):
        time.sleep(0.5)
        cases = Cases(ebb, scratch).all()
        return run_cases("metrics", {case.__name__: case for case in cases})


if __name__ == "__main__":
    sys.exit(main())
