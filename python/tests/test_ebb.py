"""The module `ebb`: what it returns, what it passes on, and what it refuses. It needs the command, beside the module or on the
PATH: PYTHONPATH=python PATH=$PWD/target/release:$PATH python3 -m unittest discover -s python/tests
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import ebb
from ebb import _command

# 48 MiB of content that differs from page to page, read twice, and what it adds up to.
HUNGRY = """
import hashlib
pages = [hashlib.sha512(b"%d" % n).digest() * 8 + bytes(3584) for n in range(12000)]
total = hashlib.sha256()
for page in pages + pages[::-1]:
    total.update(page)
print(total.hexdigest())
"""


class Run(unittest.TestCase):
    def run_python(self, code, **options):
        return ebb.run([sys.executable, "-c", code], quiet=True, capture_output=True, text=True, **options)

    def test_a_program_in_less_memory_prints_the_same_and_was_swapped_out(self):
        done = self.run_python(HUNGRY, ram="32M")
        plain = subprocess.run([sys.executable, "-c", HUNGRY], capture_output=True, text=True, check=True)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, plain.stdout, ""))
        self.assertEqual(done.args, [sys.executable, "-c", HUNGRY])
        self.assertGreater(done.stats["derived"]["out_pages"], 1000)
        self.assertLess(done.stats["counters"]["peak_held_bytes"], 40 << 20)

    def test_options_arrive(self):
        with tempfile.TemporaryDirectory() as scratch:
            spill = f"file:{scratch},size=64M"
            done = self.run_python("import os; print(os.getcwd())", ram=64 << 20, swap=[spill, "file"], name="arrives", cwd=scratch)
            self.assertEqual((done.returncode, done.stdout.strip()), (0, os.path.realpath(scratch)))
        self.assertEqual(done.stats["name"], "arrives")
        self.assertEqual(done.stats["counters"]["ram_limit_bytes"], 64 << 20)
        self.assertEqual(self.run_python("", ram="64M", swap="none").returncode, 0)
        kept = self.run_python("", ram=None, env={**os.environ, "EBB_OPTIONS": "--ram 48M"})
        self.assertEqual(kept.stats["counters"]["ram_limit_bytes"], 48 << 20)

    def test_the_summary_is_printed_unless_it_is_quiet(self):
        done = ebb.run([sys.executable, "-c", HUNGRY], ram="32M", stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        self.assertIn(b"ebb: swapped out", done.stderr)

    def test_a_status_is_returned_and_with_check_raised(self):
        self.assertEqual(self.run_python("exit(3)").returncode, 3)
        with self.assertRaises(subprocess.CalledProcessError) as raised:
            self.run_python("print('so far'); exit(3)", check=True)
        self.assertEqual((raised.exception.returncode, raised.exception.stdout), (3, "so far\n"))

    def test_a_signal_is_negative(self):
        done = self.run_python("import os, signal; os.kill(os.getpid(), signal.SIGTERM)")
        self.assertEqual(done.returncode, -signal.SIGTERM)
        self.assertEqual(done.stats["exit"]["signal"], signal.SIGTERM)

    def test_a_program_that_does_not_start_has_no_stats(self):
        done = ebb.run(["/nowhere/program"], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stats), (127, None))
        self.assertIn("/nowhere/program", done.stderr)
        self.assertEqual(ebb.run(["true"], ram="1M", stderr=subprocess.DEVNULL).returncode, 125)

    def test_a_string_is_no_list_of_arguments(self):
        with self.assertRaises(TypeError):
            ebb.run("true")


class Find(unittest.TestCase):
    def test_the_command_answers_and_so_does_the_module(self):
        told = subprocess.run([ebb.find_ebb(), "--version"], capture_output=True, text=True, check=True).stdout
        self.assertRegex(told, r"^ebb \d+\.\d+\.\d+\n$")
        self.assertEqual(subprocess.run([sys.executable, "-m", "ebb", "--version"], capture_output=True, text=True).stdout, told)

    def test_the_one_of_the_module_comes_before_the_path(self):
        with contextlib.ExitStack() as stack:
            places = [Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in range(2)]
            stack.enter_context(mock.patch.dict(os.environ, PATH=str(places[1])))
            stack.enter_context(mock.patch.object(_command, "_places", lambda: iter(places[:1])))
            with self.assertRaises(FileNotFoundError):
                ebb.find_ebb()
            for place in reversed(places):
                (place / "ebb").touch(0o755)
                self.assertEqual(ebb.find_ebb(), str(place / "ebb"))

    def test_the_module_has_hints_for_types(self):
        self.assertTrue((Path(ebb.__file__).parent / "py.typed").exists())


if __name__ == "__main__":
    unittest.main()
