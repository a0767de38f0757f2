"""Kernels of Jupyter under Ebb: the kernelspec, `%ebb`, interrupts, restarts, and that nothing is left. They need ipykernel and
jupyter_client, and are skipped without these.
"""

import contextlib
import io
import json
import os
import queue
import sys
import tempfile
import time
import unittest
from pathlib import Path

import ebb
from ebb import kernelspec

try:
    import ipykernel  # noqa: F401
    from jupyter_client.manager import KernelManager
except ImportError:
    KernelManager = None

LIMIT_S = 30
PYTHONPATH = str(Path(ebb.__file__).parents[1])
HUNGRY = "import hashlib; held = [hashlib.sha512(b'%d' % n).digest() * 8 + bytes(3584) for n in range(16000)]"
# Interrupted, it says so.
LOOP = """
import time
try:
    print("begun", flush=True)
    while True:
        time.sleep(0.01)
except KeyboardInterrupt:
    print("interrupted")
"""
MARK = "EBB_TEST_JUPYTER"


def marked():
    """The living processes whose environment has this test's mark."""
    found = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            environ = Path("/proc", entry, "environ").read_bytes().split(b"\0")
            state = Path("/proc", entry, "stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        if f"{MARK}={os.getpid()}".encode() in environ and state not in "ZX" and int(entry) != os.getpid():
            found[int(entry)] = Path("/proc", entry, "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


class Told:
    """What came back for a cell."""

    def __init__(self):
        self.status, self.error, self.printed, self.shown = "", "", "", {}


@unittest.skipIf(KernelManager is None, "ipykernel or jupyter_client is missing")
class Kernels(unittest.TestCase):
    def setUp(self):
        self.stack = contextlib.ExitStack()
        self.addCleanup(self.stack.close)
        self.place = Path(self.stack.enter_context(tempfile.TemporaryDirectory(prefix="ebb-jupyter-")))
        self.spill = self.place / "spill"
        self.spill.mkdir()
        kept = dict(os.environ)
        self.stack.callback(lambda: (os.environ.clear(), os.environ.update(kept)))
        os.environ.update({
            "HOME": str(self.place), "JUPYTER_DATA_DIR": str(self.place / "data"), "JUPYTER_CONFIG_DIR": str(self.place / "config"),
            "JUPYTER_RUNTIME_DIR": str(self.place / "runtime"), "IPYTHONDIR": str(self.place / "ipython"), "PYTHONPATH": PYTHONPATH,
            "EBB_TMPDIR": str(self.spill), MARK: str(os.getpid()),
        })
        for name in ("JUPYTER_PATH", "EBB_OPTIONS", "PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED"):
            os.environ.pop(name, None)

    def command(self, *arguments):
        printed, complained = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(complained):
            status = kernelspec.main(arguments)
        return status, printed.getvalue(), complained.getvalue()

    def start(self, **options):
        manager = KernelManager(**options)
        manager.start_kernel()
        self.addCleanup(lambda: manager.is_alive() and manager.shutdown_kernel(now=True))
        return manager, self.connect(manager)

    def connect(self, manager):
        """A client whose channels are all connected: what a kernel says before that is lost."""
        client = manager.client()
        client.start_channels()
        self.addCleanup(client.stop_channels)
        client.wait_for_ready(timeout=LIMIT_S)
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            client.kernel_info()
            with contextlib.suppress(queue.Empty):
                client.get_iopub_msg(timeout=0.2)
                break
        # Answers to the questions above.
        with contextlib.suppress(queue.Empty):
            while True:
                client.get_shell_msg(timeout=0.2)
        return client

    def run_cell(self, client, code, meanwhile=None):
        """Runs a cell, and calls `meanwhile` once it has printed that it has begun."""
        told, sent = Told(), client.execute(code)
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            try:
                message = client.get_iopub_msg(timeout=1)
            except queue.Empty:
                continue
            kind, content = message["msg_type"], message["content"]
            if message["parent_header"].get("msg_id") != sent:
                continue
            if kind == "stream":
                told.printed += content["text"]
                if meanwhile and "begun" in told.printed:
                    meanwhile()
                    meanwhile = None
            elif kind in ("execute_result", "display_data"):
                told.shown = content["data"]
            elif kind == "error":
                told.error = f"{content['ename']}: {content['evalue']}"
            elif kind == "status" and content["execution_state"] == "idle":
                answer = client.get_shell_msg(timeout=LIMIT_S)
                while answer["parent_header"].get("msg_id") != sent:
                    answer = client.get_shell_msg(timeout=LIMIT_S)
                told.status = answer["content"]["status"]
                return told
        raise AssertionError(f"no answer to {code!r}: {told.printed}")

    def nothing_is_left(self):
        end = time.monotonic() + 10
        while marked() and time.monotonic() < end:
            time.sleep(0.02)
        self.assertEqual((marked(), list(self.spill.iterdir())), ({}, []))

    def test_kernelspecs_are_installed_listed_and_removed(self):
        status, printed, complained = self.command("install", "--ram", "96M", "--swap", "file,size=1G", "--display-name", "Less RAM", "--user")
        self.assertEqual((status, complained), (0, ""))
        place = self.place / "data/kernels/ebb"
        self.assertEqual(printed, f"installed ebb in {place}\n")
        spec = json.loads((place / "kernel.json").read_text())
        self.assertEqual(
            spec["argv"],
            [ebb.find_ebb(), "run", "--ram", "96M", "--swap", "file,size=1G", "--quiet", "--", sys.executable, "-m", "ebb.kernel", "-f",
             "{connection_file}"],
        )
        self.assertEqual((spec["display_name"], spec["interrupt_mode"]), ("Less RAM", "signal"))
        self.assertEqual(self.command("install", "--ram", "1G", "--name", "ebb2", "--prefix", str(self.place / "prefix"))[0], 0)
        self.assertTrue((self.place / "prefix/share/jupyter/kernels/ebb2/kernel.json").exists())
        os.environ["JUPYTER_PATH"] = str(self.place / "prefix/share/jupyter")
        listed = self.command("list")[1].splitlines()
        self.assertEqual([line.split("  ")[:2] for line in listed], [["ebb", "Less RAM"], ["ebb2", f"Python {sys.version_info[0]} (Ebb, 1G)"]])
        self.assertEqual(self.command("remove")[:2], (0, f"removed {place}\n"))
        self.assertFalse(place.exists())
        for arguments, words in ((("remove",), "no kernelspec 'ebb' of Ebb"), (("remove", "--name", "python3"), "'python3'"),
                                 (("install", "--user", "--name", "a b"), "name")):
            status, printed, complained = self.command(*arguments)
            self.assertEqual((status, printed, complained.count("\n")), (1, "", 1))
            self.assertIn(words, complained)

    def test_a_kernel_swaps_is_interrupted_restarts_and_leaves_nothing(self):
        self.assertEqual(self.command("install", "--ram", "96M", "--user")[0], 0)
        manager, client = self.start(kernel_name="ebb")
        told = self.run_cell(client, f"%load_ext ebb\nimport ebb\n{HUNGRY}\nprint(ebb.stats().tree_ram_bytes)")
        self.assertEqual((told.status, told.printed), ("ok", f"{96 << 20}\n"), told.error)
        told = self.run_cell(client, "%ebb")
        self.assertRegex(told.shown["text/plain"], r"^Ebb: [\d.]+ MiB wanted, [\d.]+ MiB held of 96.0 MiB")
        self.assertIn('class="ebb-panel"', told.shown["text/html"])
        told = self.run_cell(client, "%ebb ram 64M")
        self.assertRegex(told.printed, r"^The budget is 64\.0 MiB; [\d.]+ MiB of it are held\.\n$")
        self.assertRegex(self.run_cell(client, "%ebb reclaim 10M").printed, r"^1\d\.\d MiB given up; the process holds [\d.]+ MiB\.\n$")
        told = self.run_cell(client, "%ebb ram 1M")
        self.assertIn("at least 4 MiB", told.error + told.printed)
        told = self.run_cell(client, "print(sum(map(len, held)), ebb.stats().tree_swapped_out_bytes > 1 << 24)")
        self.assertEqual(told.printed, f"{16000 * 4096} True\n")

        for _ in range(2):
            self.assertEqual(self.run_cell(client, LOOP, manager.interrupt_kernel).printed, "begun\ninterrupted\n")
        self.assertEqual(self.run_cell(client, "print(6 * 7)").printed, "42\n")

        before = set(marked())
        manager.restart_kernel()
        client.stop_channels()
        client = self.connect(manager)
        told = self.run_cell(client, "import ebb; print(ebb.active(), 'held' in dir(), ebb.stats().tree_ram_bytes)")
        self.assertEqual(told.printed, f"True False {96 << 20}\n")
        self.assertFalse(before & set(marked()))
        manager.shutdown_kernel()
        self.nothing_is_left()

    def test_a_kernel_that_is_killed_leaves_nothing(self):
        self.assertEqual(self.command("install", "--ram", "96M", "--user")[0], 0)
        manager, client = self.start(kernel_name="ebb")
        self.run_cell(client, "import subprocess; child = subprocess.Popen(['sleep', '600'])")
        self.assertGreaterEqual(len(marked()), 3)
        manager.shutdown_kernel(now=True)
        self.nothing_is_left()

    def test_a_notebook_puts_itself_under_ebb(self):
        manager, client = self.start()
        cell = "import ebb\nebb.reexec(ram='96M', quiet=True)\nprint(ebb.active(), ebb.stats().tree_ram_bytes)"
        told = self.run_cell(client, cell)
        self.assertIn("KernelRestarts: this kernel starts again under Ebb", told.error)
        end = time.monotonic() + LIMIT_S
        while not any("ipykernel_launcher" in line and " run " in line for line in marked().values()) and time.monotonic() < end:
            time.sleep(0.02)
        client.stop_channels()
        client = self.connect(manager)
        self.assertEqual(self.run_cell(client, cell).printed, f"True {96 << 20}\n")
        self.assertEqual(self.run_cell(client, LOOP, manager.interrupt_kernel).printed, "begun\ninterrupted\n")
        self.assertEqual(self.run_cell(client, "print(6 * 7)").printed, "42\n")
        manager.shutdown_kernel()
        self.nothing_is_left()


if __name__ == "__main__":
    unittest.main()
