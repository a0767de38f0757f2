"""Tests of tools/run-steps: what fails is remembered, what can go on goes on, and the end says how long each step took."""

import os
import re
import subprocess
import tempfile
import unittest

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "run-steps")
MAKEFILE = """
.PHONY: one two bad worse build
one two:
	@echo ran $@
bad worse:
	@echo ran $@; exit 3
build:
	@echo ran $@; test -z "$$BROKEN"
"""


def run(*goals, **variables):
    """The exit status, what was printed, and what was complained of by the script itself."""
    with tempfile.TemporaryDirectory() as directory:
        with open(os.path.join(directory, "Makefile"), "w") as file:
            file.write(MAKEFILE)
        # A `make` that runs this test is not the one that is tested.
        kept = {name: value for name, value in os.environ.items() if name not in ("MAKE", "MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
        ended = subprocess.run([PATH, "make test", *goals], cwd=directory, env=kept | variables, capture_output=True, text=True)
        printed = [re.sub(r"\b\d+ s\b", "N s", line) for line in ended.stdout.splitlines()]
        return ended.returncode, printed, [line for line in ended.stderr.splitlines() if line.startswith("make test: ")]


class RunSteps(unittest.TestCase):
    def test_all_that_pass_end_with_the_line_for_that(self):
        self.assertEqual(run("one", "build", "two"), (0, ["ran one", "ran build", "ran two", "make test: one N s, build N s, two N s", "make test: every step passed"], []))

    def test_the_steps_after_a_failure_run_and_all_failures_are_listed(self):
        status, printed, complaints = run("bad", "one", "worse", "two")
        self.assertEqual((status, printed), (1, ["ran bad", "ran one", "ran worse", "ran two", "make test: bad N s, one N s, worse N s, two N s"]))
        self.assertEqual(complaints[-1], "make test: failed: bad, worse")
        self.assertEqual(complaints[0], "make test: the step bad failed")

    def test_nothing_runs_after_a_build_that_failed(self):
        status, printed, complaints = run("bad", "build", "two", BROKEN="1")
        self.assertEqual((status, printed), (1, ["ran bad", "ran build", "make test: bad N s, build N s"]))
        self.assertEqual(complaints[-1], "make test: failed: bad, build")


if __name__ == "__main__":
    unittest.main()
