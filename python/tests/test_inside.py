"""What a program can ask of Ebb, under Ebb and without it; and how a script puts itself under Ebb. As test_ebb.py, it needs the
command beside the module or on the PATH.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import ebb
from ebb import _magic, _sizes

LIMIT_S = 60
PYTHONPATH = str(Path(ebb.__file__).parents[1])
# 24 MiB that differ from page to page.
HUNGRY = "import hashlib; held = [hashlib.sha512(b'%d' % n).digest() * 8 + bytes(3584) for n in range(6000)]"

# A shell without job control ignores SIGINT in what it starts in the background, and that would be inherited.
signal.signal(signal.SIGINT, signal.default_int_handler)


def python(*arguments, under=None, env=None, **options):
    """Runs this interpreter, under Ebb with a budget if there is one, and returns how that went."""
    command = [sys.executable, *arguments]
    if under:
        command = [ebb.find_ebb(), "run", "-q", "--ram", under, "--", *command]
    env = {**os.environ, "PYTHONPATH": PYTHONPATH, **(env or {})}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False, **options)


class Sizes(unittest.TestCase):
    def test_sizes_are_read_as_the_command_reads_them(self):
        for text, size in {"512M": 512 << 20, "1.5G": 3 << 29, " 2 GiB ": 2 << 30, "7": 7, "64k": 65536, ".5T": 1 << 39, "9b": 9}.items():
            self.assertEqual(_sizes.parse(text), size, text)
        self.assertEqual(_sizes.parse(4096), 4096)
        for text in ("", "M", "1.5.5G", "-1M", "1MB", "0", "1e9", 0, -5, 1 << 63, "99999999T"):
            with self.assertRaises(ValueError, msg=text):
                _sizes.parse(text)
        for wrong in (1.5, None, True, b"1M"):
            with self.assertRaises(TypeError):
                _sizes.parse(wrong)

    def test_sizes_are_written_as_the_command_writes_them(self):
        self.assertEqual([_sizes.short(n) for n in (0, 1023, 1536, 5 << 40)], ["0 B", "1023 B", "1.5 KiB", "5.0 TiB"])


@unittest.skipIf(ebb.active(), "this runs under Ebb")
class Without(unittest.TestCase):
    def test_who_asks_is_told_that_there_is_no_ebb(self):
        self.assertFalse(ebb.active())
        for ask in (ebb.stats, lambda: ebb.set_ram("64M"), lambda: ebb.set_ram("50%"), lambda: ebb.reclaim("1M"), lambda: ebb.reclaim("5%"),
                    _magic.panel):
            with self.assertRaisesRegex(ebb.NotUnderEbb, "ebb run"):
                ask()

    def test_the_header_is_where_compilers_are_told(self):
        self.assertIn("ebb_advise", Path(ebb.include_dir(), "ebb.h").read_text())


class Under(unittest.TestCase):
    def told(self, code, under="32M"):
        done = python("-c", f"import ebb, json\n{code}", under=under)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return json.loads(done.stdout)

    def test_figures_budget_and_reclaim(self):
        told = self.told(f"""
{HUNGRY}
first, given = ebb.stats(), ebb.reclaim("4M")
second, share = ebb.stats(), ebb.reclaim("10%")
ebb.set_ram("24M"); small = ebb.stats()
ebb.set_ram("50%"); large = ebb.stats()
wrong = []
for call, what in ((ebb.set_ram, "1M"), (ebb.set_ram, "much"), (ebb.set_ram, "0%"), (ebb.reclaim, "0%"), (ebb.reclaim, "x%")):
    try:
        call(what)
    except (ValueError, ebb.EbbError) as error:
        wrong.append(str(error))
print(json.dumps([ebb.active(), first.__dict__, given, second.__dict__, share, small.__dict__, large.__dict__, wrong]))
""")
        active, first, given, second, share, small, large, wrong = told
        self.assertTrue(active)
        self.assertEqual(first["tree_ram_bytes"], 32 << 20)
        self.assertGreater(first["wanted_bytes"], 24 << 20)
        self.assertEqual(first["held_bytes"], sum(first[f"{part}_bytes"] for part in ("resident", "staged", "pool")))
        self.assertGreaterEqual(given, 4 << 20)
        self.assertGreater(second["swapped_bytes"], first["swapped_bytes"])
        self.assertGreater(share, 1 << 20)
        self.assertEqual(small["tree_ram_bytes"], 24 << 20)
        self.assertLess(small["tree_held_bytes"], 25 << 20)
        self.assertGreater(large["tree_ram_bytes"], 32 << 20)
        self.assertEqual(len(wrong), 5, wrong)
        self.assertIn("at least 4 MiB", wrong[0])

    def test_the_panel_says_what_ps_says(self):
        text, html, usage = self.told(f"""
from ebb import _magic
{HUNGRY}
ebb.reclaim("4M")
panel, usage = _magic.panel(), None
panel.tree["processes"][0]["command"] = "<script>"
try:
    _magic.run_line("nonsense")
except ValueError as error:
    usage = str(error)
print(json.dumps([repr(panel), panel._repr_html_(), usage]))
""")
        self.assertRegex(text, r"^Ebb: [\d.]+ MiB wanted, [\d.]+ MiB held of 32.0 MiB, at most")
        self.assertIn("written to a device", text)
        # This process alone: what asked is left out.
        self.assertRegex(text, r"(?s)faults\n\d+ \*  <script>[^\n]*\d:1[^\n]*\n\n")
        self.assertIn("&lt;script&gt;", html)
        self.assertNotIn("<script>", html)
        self.assertIn("%ebb ram 2G", usage)


class Reexec(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.place = Path(scratch.name)

    def script(self, code, name="script.py"):
        path = self.place / name
        path.write_text(f"import ebb, json, os, sys\nebb.reexec(ram='48M', quiet=True)\n{code}")
        return str(path)

    def test_a_script_goes_on_with_all_that_it_was_given(self):
        code = "print(json.dumps([sys.argv, sys.flags.dev_mode, ebb.active(), ebb.stats().tree_ram_bytes, os.environ['GIVEN'], " \
               "[name for name in os.environ if name.startswith('EBB_PYTHON')], input(), os.getcwd()]))"
        script = self.script(code)
        done = python("-X", "dev", script, "a", "b c", "--ram", env={"GIVEN": "this"}, input="typed\n", cwd=self.place)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(
            json.loads(done.stdout),
            [[script, "a", "b c", "--ram"], True, True, 48 << 20, "this", [], "typed", str(self.place.resolve())],
        )

    def test_modules_and_commands_too_and_the_status_is_theirs(self):
        self.script("print(sys.argv[1:], ebb.active()); sys.exit(3)", "module.py")
        done = python("-m", "module", "x", cwd=self.place)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (3, "['x'] True\n", ""))
        done = python("-c", "import ebb, sys; ebb.reexec(quiet=True); print(sys.argv, ebb.active())", "y")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "['-c', 'y'] True\n", ""))

    def test_under_ebb_nothing_happens(self):
        done = python(self.script("print(ebb.stats().tree_ram_bytes)"), under="40M")
        self.assertEqual((done.returncode, done.stdout), (0, f"{40 << 20}\n"))

    def test_what_cannot_be_done_is_said_once(self):
        code = "import ebb; ebb.reexec(); print('not reached')"
        for done, words in (
            (python("-", input=code), "standard input"),
            (python("-c", code, env={"EBB_PYTHON_REEXEC": "1"}), "does not manage"),
            (python("-c", code, env={"EBB_OPTIONS": "--no-such-option"}), "no-such-option"),
        ):
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(words, done.stderr)
            self.assertEqual(done.stdout, "")

    def test_a_signal_reaches_the_script(self):
        script = self.script("import signal, time\nprint(os.getpid(), flush=True)\ntry:\n time.sleep(60)\nexcept KeyboardInterrupt:\n sys.exit(7)")
        env = {**os.environ, "PYTHONPATH": PYTHONPATH}
        with subprocess.Popen([sys.executable, script], env=env, stdout=subprocess.PIPE, text=True) as program:
            inside = int(program.stdout.readline())
            self.assertNotEqual(inside, program.pid)
            time.sleep(0.2)
            program.send_signal(signal.SIGINT)
            self.assertEqual(program.wait(LIMIT_S), 7)
        self.assertFalse(Path("/proc", str(inside)).exists())


if __name__ == "__main__":
    unittest.main()
