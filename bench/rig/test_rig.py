#!/usr/bin/env python3
"""Tests of what the benchmarks share; they need no root: python3 bench/rig/test_rig.py"""

import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from rig import figures, group, place, progress, redis, session, stop, swap, undo  # noqa: E402
from rig.errors import Failed, Killed, Missing  # noqa: E402


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

    def test_a_setting_that_names_all_that_it_could_be_is_what_is_marked(self):
        self.assertEqual(undo.chosen("always [madvise] never"), "madvise")
        self.assertEqual((undo.chosen("3"), undo.chosen(None)), ("3", None))

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


class GroupTest(unittest.TestCase):
    FILES = {
        1: {"memory.stat": "cache 1\nrss 2\ntotal_cache 4096\ntotal_rss 8192\n", "memory.kmem.usage_in_bytes": "12288\n"},
        2: {"memory.stat": "anon 8192\nfile 4096\nkernel 12288\nkernel_stack 5\n"},
    }

    def group(self, directory, version, files):
        for name, text in files.items():
            with open(os.path.join(directory, name), "w", encoding="utf-8") as file:
                file.write(text)
        with mock.patch("rig.group.memory_hierarchy", return_value=(version, directory)), mock.patch("os.mkdir"):
            made = group.Group(mock.Mock(), None)
        made.path = directory
        return made

    def test_page_cache_and_kernel_memory_are_read_of_both_versions(self):
        for version, files in self.FILES.items():
            with tempfile.TemporaryDirectory() as directory, mock.patch("rig.group.write"):
                made = self.group(directory, version, files)
                self.assertEqual((made.anonymous_bytes(), made.page_cache_bytes(), made.kernel_bytes()), (8192, 4096, 12288))

    def test_an_older_kernel_counts_its_memory_in_parts(self):
        with tempfile.TemporaryDirectory() as directory, mock.patch("rig.group.write"):
            made = self.group(directory, 2, {"memory.stat": "anon 1\nkernel_stack 5\npagetables 6\nslab 7\nsock 8\n"})
            self.assertEqual(made.kernel_bytes(), 26)

    def test_the_most_that_there_was_at_a_time_is_what_counts(self):
        where = place.Place.__new__(place.Place)
        where.anonymous_bytes = where.page_cache_bytes = where.kernel_bytes = 0
        where.group = mock.Mock()
        where.group.peak_bytes.return_value = 99
        for anonymous, cache, kernel in ((1, 9, 2), (5, 1, 7), (2, 3, 1)):
            where.group.anonymous_bytes.return_value = anonymous
            where.group.page_cache_bytes.return_value = cache
            where.group.kernel_bytes.return_value = kernel
            where.sample()
        self.assertEqual(where.anonymous_bytes, 5)
        self.assertEqual(where.beside(), {"page_cache_bytes": 9, "kernel_bytes": 7, "held_bytes": 99})

    def test_only_the_out_of_memory_killer_s_deeds_count_as_kills(self):
        self.assertEqual(group.kills("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"), 3)
        self.assertEqual(group.kills("low 0\nhigh 12\nmax 7\noom 4\noom_kill 2\noom_group_kill 9\n"), 2)
        self.assertEqual(group.kills(""), 0)


class PlaceTest(unittest.TestCase):
    def test_what_fails_is_the_killer_s_doing_only_where_it_killed(self):
        for kills, error in ((0, Failed), (2, Killed)):
            where = mock.Mock()
            where.group.oom_kills.return_value = kills
            with self.assertRaises(Failed) as caught, place.blamed(where):
                raise Failed("status -9")
            self.assertIs(type(caught.exception), error)

    def test_the_engine_s_budget_is_an_option_of_the_workload(self):
        where = place.Engine.__new__(place.Engine)
        where.group, where.ram_bytes = mock.Mock(wrap=lambda command: ["wrapped", *command]), 7
        self.assertEqual(where.command(["micro", "swap-in"]), ["wrapped", "micro", "swap-in", "--in-process", "7"])


class SwapTest(unittest.TestCase):
    def test_the_last_change_is_undone_first(self):
        journal, entries = mock.Mock(), ["made", "mounted", "on"]
        swap.close(journal, entries)
        self.assertEqual([call.args[0] for call in journal.undo_one.call_args_list], ["on", "mounted", "made"])
        self.assertEqual(entries, [])


class FiguresTest(unittest.TestCase):
    def test_a_gain_is_above_one_where_ebb_is_better(self):
        ours, theirs = {0: 2.0, 1: 4.0, 3: 1.0}, {0: 4.0, 1: 4.0, 2: 1.0}
        self.assertEqual(figures.gains(ours, theirs, False), [2.0, 1.0])
        self.assertEqual(figures.gains(ours, theirs, True), [0.5, 1.0])

    def test_the_interval_holds_the_median_and_needs_three_rounds(self):
        values = [1.0, 1.1, 1.2, 5.0, 0.9]
        low, high = figures.interval(values)
        self.assertTrue(0.9 <= low <= 1.1 <= high <= 5.0)
        self.assertEqual(figures.interval(values), (low, high))
        self.assertIsNone(figures.interval(values[:2]))


class ProgressTest(unittest.TestCase):
    def test_time_left_goes_by_what_each_row_took(self):
        bar = progress.Progress([("a",), ("a",), ("b",)], io.StringIO())
        bar.took = {("a",): [10.0]}
        self.assertEqual(bar.seconds_left(), 30.0)
        bar.left.remove(("a",))
        bar.took[("b",)] = [2.0]
        self.assertEqual(bar.seconds_left(), 12.0)
        self.assertEqual([progress.span(s) for s in (40, 300, 3900)], ["40 s", "5 min", "1 h 05 min"])


class ValuesTest(unittest.TestCase):
    def test_values_are_distinct_and_of_the_size_that_is_said(self):
        values = redis.Values()
        made = {values.of(number) for number in range(2000)}
        self.assertEqual(len(made), 2000)
        self.assertEqual({len(value) for value in made}, {redis.VALUE_BYTES})


if __name__ == "__main__":
    unittest.main()
