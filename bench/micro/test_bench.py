#!/usr/bin/env python3
"""Tests of what the benchmarks here are made of; they need no root: python3 bench/micro/test_bench.py"""

import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]

import cells  # noqa: E402
import program  # noqa: E402
import tables  # noqa: E402
from rig import group, redis, session, stop, undo  # noqa: E402
from rig.errors import MIB, Failed, Missing  # noqa: E402


class WholeRunTest(unittest.TestCase):
    """What a run changes is undone however it ends."""

    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)
        self.setting = os.path.join(self.directory.name, "setting")
        for number in stop.SIGNALS:
            self.addCleanup(signal.signal, number, signal.getsignal(number))
        # It prints why it did not run.
        for stream in ("stdout", "stderr"):
            quiet = mock.patch.object(sys, stream, io.StringIO())
            setattr(self, stream, quiet.start())
            self.addCleanup(quiet.stop)

    def journal(self):
        return undo.Journal(self.directory.name, "t")

    def run_and_end(self, end, uid=0, **options):
        """A run that changes a setting and ends so; what became of it."""
        undo.write(self.setting, "3")

        def work(journal, scratch):
            self.scratch = scratch
            journal.add("value", self.setting, "0", "3")
            undo.write(self.setting, "0")
            return end()

        self.scratch = None
        with mock.patch("os.geteuid", return_value=uid):
            found = session.whole("t", work, self.directory.name, journal=self.journal(), **options)
        self.assertEqual(undo.read(self.setting), "3")
        self.assertFalse(self.scratch and os.path.exists(self.scratch))
        return found

    @staticmethod
    def raises(error):
        def end():
            raise error

        return end

    def test_it_gives_what_was_found(self):
        self.assertEqual(self.run_and_end(lambda: "found"), "found")

    def test_what_is_missing_skips_it(self):
        self.assertEqual(self.run_and_end(self.raises(Missing("no zram"))), 0)
        self.assertEqual(self.run_and_end(self.raises(Missing("no zram")), skipped=1), 1)
        self.assertIn("t: skipped: no zram", self.stdout.getvalue())

    def test_a_failure_and_a_signal_are_statuses(self):
        self.assertEqual(self.run_and_end(self.raises(Failed("it died"))), 1)
        self.assertIn("t: failed: it died", self.stderr.getvalue())
        self.assertEqual(self.run_and_end(lambda: os.kill(os.getpid(), signal.SIGTERM)), 128 + signal.SIGTERM)

    def test_an_error_of_the_benchmark_itself_is_not_hidden(self):
        with self.assertRaises(KeyError):
            self.run_and_end(self.raises(KeyError("x")))
        self.assertEqual(undo.read(self.setting), "3")

    def test_nothing_is_done_for_a_user_or_beside_another_run(self):
        self.assertEqual(self.run_and_end(lambda: "found", uid=65534), 0)
        first = self.journal()
        self.assertTrue(first.begin())
        self.assertEqual(self.run_and_end(lambda: "found"), 0)
        self.assertIsNone(self.scratch)
        first.end()


class JournalTest(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)

    def path(self, name):
        return os.path.join(self.directory.name, name)

    def left_behind(self, *entries, boot=None):
        undo.write(self.path("t.json"), json.dumps({"boot": boot or undo.boot_id(), "entries": list(entries)}))

    def begun(self):
        journal = undo.Journal(self.directory.name, "t")
        self.assertTrue(journal.begin())
        return journal

    def test_a_killed_run_s_setting_is_restored_by_the_next(self):
        undo.write(self.path("setting"), "0")
        self.left_behind(["value", self.path("setting"), "0", "3"])
        self.begun().end()
        self.assertEqual(undo.read(self.path("setting")), "3")

    def test_a_setting_that_somebody_changed_since_is_left_alone(self):
        undo.write(self.path("setting"), "7")
        self.left_behind(["value", self.path("setting"), "0", "3"])
        self.begun().end()
        self.assertEqual(undo.read(self.path("setting")), "7")

    def test_what_was_left_before_a_boot_is_not_undone(self):
        os.mkdir(self.path("tree"))
        self.left_behind(["tree", self.path("tree")], boot="another")
        self.begun().end()
        self.assertTrue(os.path.isdir(self.path("tree")))

    def test_a_process_that_was_left_is_ended(self):
        child = subprocess.Popen(["sleep", "60"], start_new_session=True)
        self.left_behind(["process", child.pid, undo.start_of(child.pid)])
        self.begun().end()
        self.assertEqual(child.wait(10), -9)

    def test_a_process_with_the_number_of_one_that_was_left_is_not_ended(self):
        child = subprocess.Popen(["sleep", "60"], start_new_session=True)
        self.left_behind(["process", child.pid, undo.start_of(child.pid) - 1])
        self.begun().end()
        self.assertIsNone(child.poll())
        child.kill()
        child.wait()

    def test_a_second_run_does_not_begin(self):
        first = self.begun()
        self.assertFalse(undo.Journal(self.directory.name, "t").begin())
        first.end()
        self.begun().end()

    def test_nothing_is_noted_after_the_end(self):
        journal = self.begun()
        journal.add("tree", self.path("tree"))
        journal.end()
        self.assertFalse(os.path.exists(self.path("t.json")))


class StopTest(unittest.TestCase):
    def test_a_signal_waits_until_what_belongs_together_is_done(self):
        stop.install()
        done = []
        with self.assertRaises(stop.Stopped):
            with stop.together():
                os.kill(os.getpid(), stop.SIGNALS[0])
                done.append(1)
        self.assertEqual(done, [1])


def run_of(nr, ns_per_access, missing, **more):
    latency = {"p50": 1, "p99": 2, "p999": 3}
    return {
        "round": nr, "ns_per_access": ns_per_access, "cpu_ns_per_access": ns_per_access, "accesses_per_second": 1,
        "pages_in_per_access": missing, "latency_ns": latency, **more,
    }  # fmt: skip


class DigestTest(unittest.TestCase):
    def test_a_miss_costs_what_an_access_costs_more_than_a_hit(self):
        cell = cells.ACCESS[0]
        results = {cell: {"none": [run_of(0, 100.0, 0)], "kernel": [run_of(0, 600.0, 0.5), run_of(1, 1100.0, 0.5)],
                          "ebb": [run_of(0, 350.0, 0.5), run_of(1, 350.0, 0.25)]}}  # fmt: skip
        digest = cells.digest(results)[cell]
        self.assertEqual(digest["kernel"]["miss"].values, [1000.0, 2000.0])
        self.assertEqual(digest["ebb"]["miss"].values, [500.0, 1000.0])
        self.assertEqual(digest["ebb"]["/miss"].values, [0.5, 0.5])

    def test_a_failed_run_has_no_figures_and_is_reported(self):
        cell = cells.ACCESS[0]
        results = {cell: {"kernel": [{"round": 0, "failed": "why"}]}}
        self.assertEqual(cells.digest(results)[cell]["kernel"], {})
        self.assertIn("- random-read mixed 1T, kernel, round 1: why", tables.failures(results, {}))

    def test_ebb_gets_the_limit_and_zram_s_peak_but_for_hard_data(self):
        plan = cells.Plan(256, 100, 64, 1, 1, "", "", "", ())
        self.assertEqual(cells.budget_bytes(plan, cells.Cell("random-read", "mixed", 1), 7), (100 << 20) + 7)
        self.assertEqual(cells.budget_bytes(plan, cells.Cell("swap-in", "hard", 1), 7), 64 << 20)


class SearchTest(unittest.TestCase):
    """The search of the kernel's limit, with a program that needs `need` MiB, half of it in zram at a quarter of its size."""

    def found(self, ram, least, need=300):
        tries = []

        def attempt(limit):
            tries.append(limit // MIB)
            return None if limit < least * MIB else limit + max(0, need * MIB - limit) // 4

        return program.search(ram * MIB, attempt), tries

    def test_limit_and_zram_come_close_to_ram(self):
        found, tries = self.found(128, 0)
        self.assertLess(abs(found.total - 128 * MIB), 128 * MIB * program.CLOSE)
        self.assertEqual(found.died, [])
        self.assertLessEqual(len(tries), program.SEARCH_MAX)

    def test_a_program_that_is_killed_within_ram_gets_the_least_limit_beyond_it(self):
        found, tries = self.found(64, 75)
        self.assertEqual(tries, [42, 64, 72, 80])
        self.assertEqual(found.limit // MIB, 80)
        self.assertEqual(len(found.died), 3)

    def test_a_program_that_ends_only_with_nearly_all_of_ram(self):
        # With its least limit, 120, it takes 165 in all: nothing comes to 128, and 120 is the nearest.
        found, tries = self.found(128, 120)
        self.assertIn(found.limit // MIB, range(120, 129))
        self.assertEqual(len(tries), len(set(tries)))

    def test_only_the_out_of_memory_killer_s_deeds_count_as_kills(self):
        self.assertEqual(group.kills("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"), 3)
        self.assertEqual(group.kills("low 0\nhigh 12\nmax 7\noom 4\noom_kill 2\noom_group_kill 9\n"), 2)
        self.assertEqual(group.kills(""), 0)

    def test_what_fails_for_another_reason_is_no_limit_s_doing(self):
        def fails(*_):
            raise program.Failed("no such file")

        with mock.patch.object(program, "under_kernel", fails), self.assertRaises(program.Failed):
            program.find_limit(mock.Mock(ram=64 * MIB), None, None)

    def test_a_program_that_never_ends_well_is_told(self):
        with self.assertRaises(program.Failed):
            program.search(64 * MIB, lambda limit: None)


class ValuesTest(unittest.TestCase):
    def test_values_are_distinct_and_of_the_size_that_is_said(self):
        values = redis.Values()
        made = {values.of(number) for number in range(2000)}
        self.assertEqual(len(made), 2000)
        self.assertEqual({len(value) for value in made}, {redis.VALUE_BYTES})


if __name__ == "__main__":
    unittest.main()
