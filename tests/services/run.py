#!/usr/bin/env python3
"""`ebb run` as the process that systemd starts for a service: what systemd says reaches the program, what the program says reaches
systemd, and a stop is one SIGTERM. One line a case; the closing line counts.

This driver takes the place of systemd, with a socket of its own for notifications. EBB names the command (default: target/release/ebb
of this repository, then `ebb` on the path).
"""
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.dirname(HERE))

from cases import Skip, need, only_of_arguments, run_cases  # noqa: E402
from command import find_ebb  # noqa: E402

LIMIT_S = 60
# The first thing that a service prints is its own PID; then it does what a case asks for.
PROGRAM = """
import os, signal, socket, sys, time
def say(*words):
    print(*words, flush=True)
def notify(text):
    address = os.environ["NOTIFY_SOCKET"].replace("@", "\\0", 1)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to:
        to.sendto(text, address)
def count_stops(status):
    # A second SIGTERM arrives right after the first if there is one: whoever sends both has sent them before this one says so.
    stops = []
    signal.signal(signal.SIGTERM, lambda *_: stops.append(1))
    say(os.getpid())
    while not stops:
        time.sleep(0.01)
    say("stopping")
    sys.stdin.read()
    say(len(stops))
    sys.exit(status)
"""


class Service:
    """A program under `ebb run`. `pid` is what systemd takes for the main process."""

    def __init__(self, ebb, code, shell="", options=(), **more):
        # As systemd does, the variables name the process that execve(2) turns into `ebb`.
        command = ["sh", "-c", f'{shell} exec "$@"', "sh", ebb, "run", "--no-config", "-q", *options, "--", "/usr/bin/python3", "-c", PROGRAM + code]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)
        self.pid = self.process.pid

    def line(self):
        return self.process.stdout.readline().strip()

    def end(self):
        """The last lines and the status, as subprocess tells it."""
        out, errors = self.process.communicate(timeout=LIMIT_S)
        need(not errors, f"ebb or the program says {errors}")
        return out.split(), self.process.returncode

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


class Cases:
    """The cases, each a method whose docstring says what holds."""

    def __init__(self, ebb, scratch):
        self.ebb, self.scratch = ebb, scratch

    def notified(self, address):
        """What arrives at a socket from a program that says it is ready: text and sender, and the PIDs of `ebb` and the program."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as at:
            at.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            at.settimeout(LIMIT_S)
            at.bind(address.replace("@", "\0", 1))
            env = {**os.environ, "NOTIFY_SOCKET": address}
            with Service(self.ebb, "say(os.getpid(), os.getppid()); notify(b'READY=1'); sys.stdin.read()", env=env) as service:
                pid, parent = map(int, service.line().split())
                text, ancillary, _, _ = at.recvmsg(100, socket.CMSG_SPACE(12))
                sender, _, _ = struct.unpack("iii", ancillary[0][2])
                need(service.end() == ([], 0), "the program did not end well")
        need(parent == service.pid, f"the program's parent is {parent}, not ebb ({service.pid})")
        return text, sender, service.pid, pid

    def notify(self):
        """READY=1 arrives, from the program. That is a child of the main process: NotifyAccess=all lets it count."""
        text, sender, main, program = self.notified(os.path.join(self.scratch, "notify"))
        need(text == b"READY=1", f"{text} arrived")
        need(sender == program != main, f"process {sender} sent it; the program is {program}, ebb {main}")

    def notify_abstract(self):
        """Likewise at an address without a file."""
        text, sender, _, program = self.notified(f"@ebb-test-{os.getpid()}")
        need((text, sender) == (b"READY=1", program), f"{text} of {sender}")

    def sockets(self):
        """Sockets that systemd has opened reach the program, which takes them for its own."""
        with socket.socket() as at:
            at.bind(("127.0.0.1", 0))
            at.listen()
            os.set_inheritable(at.fileno(), True)
            code = """
say(os.getpid(), os.environ["LISTEN_PID"], os.environ["WATCHDOG_PID"], os.environ["LISTEN_FDS"])
with socket.socket(fileno=3) as at:
    connection, _ = at.accept()
    connection.sendall(b"served")
"""
            shell = f"export LISTEN_PID=$$ WATCHDOG_PID=$$ LISTEN_FDS=1; exec 3<&{at.fileno()};"
            with Service(self.ebb, code, shell, pass_fds=[at.fileno()]) as service:
                pid, listen, watchdog, count = service.line().split()
                need(listen == watchdog == pid != str(service.pid), f"LISTEN_PID={listen}, WATCHDOG_PID={watchdog} for process {pid}")
                need(count == "1", f"LISTEN_FDS={count}")
                with socket.create_connection(at.getsockname(), LIMIT_S) as client:
                    need(client.recv(100) == b"served", "nobody serves")
                need(service.end() == ([], 0), "the program did not end well")

    def not_addressed(self):
        """What names another process stays as it is."""
        code = "say(os.environ['LISTEN_PID'], os.environ['WATCHDOG_PID'])"
        with Service(self.ebb, code, "export LISTEN_PID=1 WATCHDOG_PID=;") as service:
            out, status = service.end()
            need((out, status) == (["1"], 0), f"{out}, {status}")

    def nested(self):
        """The program under the inner of two `ebb run` takes the sockets."""
        code = "say(os.getpid(), os.environ['LISTEN_PID'])"
        with Service(self.ebb, code, "export LISTEN_PID=$$;", ("--", self.ebb, "run", "--no-config", "-q")) as service:
            pid, listen = service.line().split()
            need(pid == listen, f"LISTEN_PID={listen} for process {pid}")
            need(service.end() == ([], 0), "the program did not end well")

    def stop(self):
        """KillMode=mixed: SIGTERM to the main process alone is one SIGTERM for the program, whose exit status passes."""
        with Service(self.ebb, "count_stops(7)") as service:
            service.line()
            service.process.send_signal(signal.SIGTERM)
            need(service.line() == "stopping", "the program does not stop")
            out, status = service.end()
            need((out, status) == (["1"], 7), f"{out} signals, status {status}")

    def stop_all(self):
        """KillMode=control-group: SIGTERM to every process stops the program too, whose exit status passes."""
        with Service(self.ebb, "count_stops(7)") as service:
            program = int(service.line())
            for pid in (service.pid, program):
                os.kill(pid, signal.SIGTERM)
            need(service.line() == "stopping", "the program does not stop")
            out, status = service.end()
            # One from systemd and one through `ebb`, which the kernel may have merged.
            need(out in (["1"], ["2"]) and status == 7, f"{out} signals, status {status}")

    def killed(self):
        """A program that SIGTERM ends makes `ebb` end by SIGTERM, which systemd takes for a clean end."""
        with Service(self.ebb, "say(os.getpid()); time.sleep(600)") as service:
            service.line()
            service.process.send_signal(signal.SIGTERM)
            need(service.end() == ([], -signal.SIGTERM), "another end")

    def unit(self):
        """systemd takes the drop-in of docs/services.md."""
        if not shutil.which("systemd-analyze"):
            raise Skip("systemd-analyze is missing")
        with open(os.path.join(ROOT, "docs/services.md"), encoding="utf-8") as file:
            (name, text), = re.findall(r"```ini\n# /etc/systemd/system/(web\.service\.d/ebb\.conf)\n(.*?)```", file.read(), re.DOTALL)
        where = os.path.join(self.scratch, "units")
        os.makedirs(os.path.join(where, os.path.dirname(name)))
        with open(os.path.join(where, "web.service"), "w", encoding="utf-8") as file:
            file.write("[Unit]\nDescription=Web\n[Service]\nType=notify\nExecStart=/bin/true\n")
        with open(os.path.join(where, name), "w", encoding="utf-8") as file:
            # What the page names is not installed here.
            file.write(text.replace("/usr/bin/ebb", self.ebb).replace("/usr/bin/web", "/bin/true"))
        command = ["systemd-analyze", "verify", "--man=no", os.path.join(where, "web.service")]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        complaints = [line for line in ran.stderr.splitlines() if "web.service" in line or where in line]
        need(ran.returncode == 0 and not complaints, f"status {ran.returncode}: {ran.stderr}")

    def all(self):
        """Name and function of each case."""
        return {
            "notify: ready": self.notify,
            "notify: abstract address": self.notify_abstract,
            "sockets, watchdog: named": self.sockets,
            "sockets, watchdog: of others": self.not_addressed,
            "sockets: nested": self.nested,
            "stop: main process": self.stop,
            "stop: all processes": self.stop_all,
            "stop: by the signal": self.killed,
            "drop-in": self.unit,
        }


def main():
    only = only_of_arguments(__doc__)
    ebb = find_ebb()
    if not ebb:
        print("services: there is no ebb: run make build, or name it with EBB", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="ebb-services-") as scratch:
        return run_cases("services", Cases(ebb, scratch).all(), only)


if __name__ == "__main__":
    sys.exit(main())
