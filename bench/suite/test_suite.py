"""Tests of the suite that need neither root nor swap: python3 bench/suite/test_suite.py"""

import io
import os
import sys
import tempfile
import unittest
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]

import micro_cases  # noqa: E402
import profiler  # noqa: E402
import report  # noqa: E402
import run as suite  # noqa: E402
from case import Case, Context, Metric  # noqa: E402
from rig import figures, group, page, place, progress, swap  # noqa: E402
from rig.errors import Failed  # noqa: E402

TIME = Metric("time", "s")
RATE = Metric("rate", "1/s", more_is_better=True)


class Row(Case):
    table = "usemem"

    def __init__(self, name="row", metrics=(TIME,), limit_mib=10, outcomes=None):
        super().__init__(name, list(metrics), limit_mib)
        self.outcomes = outcomes

    def run(self, where, context):
        found = self.outcomes(where)
        if isinstance(found, Exception):
            raise found
        return found


class FakePlace:
    def __init__(self, name, ram_bytes, kills=0):
        self.name, self.ram_bytes, self.kills, self.group, self.closed = name, ram_bytes, kills, self, False

    def oom_kills(self):
        return self.kills

    def check(self):
        pass

    def total_bytes(self):
        return self.ram_bytes or 12 << 20

    def beside(self):
        return {"page_cache_bytes": 3 << 20, "kernel_bytes": 5 << 20, "held_bytes": 20 << 20}

    def account(self):
        return {}

    def close(self):
        self.closed = True


def measured(cases, places, rounds=1, kills=None):
    """What `measure` finds, with places that only remember; and these."""
    made = []

    def make(name, _journal, _limit, ram_bytes, *_rest):
        made.append(FakePlace(name, ram_bytes, (kills or {}).get(name, 0)))
        return made[-1]

    chosen = mock.Mock(rounds=rounds, places=places)
    with mock.patch.object(place, "make", make), mock.patch("sys.stderr", io.StringIO()):
        return suite.measure(chosen, cases, Context(None, "", "", "", True), []), made


class MeasureTest(unittest.TestCase):
    def test_ebb_comes_after_the_kernel_and_gets_what_it_had(self):
        runs, made = measured([Row(outcomes=lambda where: {"time": 1.0})], ["ebb", "zram-lz4", "none"], 2)
        self.assertEqual([one.name for one in made], ["zram-lz4", "none", "ebb"] * 2)
        self.assertEqual([one.ram_bytes for one in made if one.name == "ebb"], [12 << 20] * 2)
        self.assertEqual([run["round"] for run in runs], [0] * 3 + [1] * 3)
        self.assertTrue(all(one.closed for one in made))

    def test_what_each_run_held_beside_is_kept(self):
        runs, _ = measured([Row(outcomes=lambda where: {"time": 1.0})], ["zram-lz4", "ebb"])
        self.assertEqual([(run["page_cache_bytes"], run["kernel_bytes"], run["held_bytes"]) for run in runs], [(3 << 20, 5 << 20, 20 << 20)] * 2)

    def test_where_the_kernel_failed_nothing_says_what_ebb_gets(self):
        row = Row(outcomes=lambda where: Failed("why") if where.name != "ebb" else {"time": 1.0})
        runs, made = measured([row], ["zram-lz4", "ebb"])
        self.assertEqual([one.name for one in made], ["zram-lz4"])
        self.assertEqual(runs[0]["failed"], "why")
        self.assertIn("the kernel's run failed", runs[1]["failed"])

    def test_what_the_kernel_killed_did_not_fail(self):
        row = Row(outcomes=lambda where: Failed("status -9"))
        runs, _ = measured([row], ["zram-lz4"], kills={"zram-lz4": 1})
        self.assertNotIn("failed", runs[0])
        self.assertIn("out of memory", runs[0]["killed"])

    def test_what_takes_more_memory_than_there_is_cannot_run(self):
        rows = micro_cases.pageout(quick=False)
        for available, able in ((1 << 10, 0), (8 << 10, 3), (64 << 10, 4)):
            with mock.patch("micro_cases.available_mib", return_value=available):
                self.assertEqual(sum(row.missing() is None for row in rows), able)

    def test_a_row_that_cannot_run_here_is_told_and_left_out(self):
        row = Row(outcomes=lambda where: {"time": 1.0})
        row.missing = lambda: "it is not installed"
        skipped, chosen = [], mock.Mock(rounds=1, places=["none"])
        with mock.patch("sys.stderr", io.StringIO()):
            self.assertEqual(suite.measure(chosen, [row], Context(None, "", "", "", True), skipped), [])
        self.assertEqual([one["why"] for one in skipped], ["it is not installed"])

    def test_every_row_has_a_name_of_its_own_and_a_table(self):
        for quick in (True, False):
            cases = suite.all_cases(quick)
            self.assertEqual(len({(case.table, case.name) for case in cases}), len(cases))
            self.assertEqual({case.table for case in cases}, set(report.TABLES))

    def test_ebb_without_a_kernel_beside_it_is_refused(self):
        with mock.patch("sys.stderr", io.StringIO()), self.assertRaises(SystemExit):
            suite.options(["--places", "none,ebb"])
        with mock.patch("sys.stderr", io.StringIO()), self.assertRaises(SystemExit):
            suite.options(["--places", "zram-lz5"])


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


class ReportTest(unittest.TestCase):
    def found(self, runs):
        machine = {"processor": "p", "processors": 2, "memory_mib": 1, "kernel": "6", "date": "today"}
        return {"machine": machine, "settings": {"cgroup": "v1"}, "load": [0.1, 0.2], "arguments": [], "rounds": 3, "quick": False,
                "places": ["none", "zram-lz4", "ebb"], "skipped": [], "runs": runs}  # fmt: skip

    def runs(self, where, values, metric="rate"):
        return [{"table": "usemem", "case": "row", "place": where, "round": nr, "values": {metric: value}, "total_bytes": 7 << 20}
                for nr, value in enumerate(values)]  # fmt: skip

    def test_losses_are_as_visible_as_wins(self):
        cases = {("usemem", "row"): Row(metrics=[RATE])}
        slower = report.text(self.found(self.runs("zram-lz4", [10, 10, 10]) + self.runs("ebb", [5, 5, 5])), cases)
        self.assertIn("0.50 [0.50..0.50]", slower)
        self.assertIn("**slower**", slower)
        faster = report.text(self.found(self.runs("zram-lz4", [10, 10, 10]) + self.runs("ebb", [30, 20, 30])), cases)
        self.assertIn("3.00 [2.00..3.00]", faster)
        self.assertNotIn("**slower**", faster)

    def test_what_was_held_beside_is_printed_for_the_kernel_and_for_ebb(self):
        def beside(where, cache, kernel):
            return [run | {"page_cache_bytes": cache << 20, "kernel_bytes": kernel << 20} for run in self.runs(where, [10, 10, 10])]

        text = report.text(self.found(beside("zram-lz4", 2, 9) + beside("ebb", 1031, 12)), {("usemem", "row"): Row(metrics=[RATE])})
        self.assertIn("page cache + kernel memory, MiB: kernel, zram lz4; Ebb |", text)
        self.assertIn("2 + 9; 1031 + 12", text)
        # An earlier run, whose figures were kept, did not count it.
        self.assertRegex(report.text(self.found(self.runs("ebb", [1.0])), {("usemem", "row"): Row(metrics=[RATE])}), r"(?m)^\| row .*\| +\|$")

    def test_a_killed_run_is_a_cell_and_a_failed_one_a_line(self):
        runs = self.runs("ebb", [1.0]) + [{"table": "usemem", "case": "row", "place": "zram-lz4", "round": 0, "killed": "x"},
                                          {"table": "usemem", "case": "row", "place": "none", "round": 1, "failed": "no disk"}]  # fmt: skip
        text = report.text(self.found(runs), {("usemem", "row"): Row(metrics=[RATE])})
        self.assertIn("killed (1 of 1)", text)
        self.assertIn("- usemem, row, none, round 2: no disk", text)

    def test_a_run_replaces_the_tables_it_has_and_no_others(self):
        def ran(arguments, table, value):
            runs = [run | {"table": table} for run in self.runs("zram-lz4", [10]) + self.runs("ebb", [value])]
            return self.found(runs) | {"arguments": arguments}

        cases = {(table, "row"): Row(metrics=[RATE]) for table in ("usemem", "redis")}
        cases["redis", "row"].table = "redis"
        first = report.joined(ran(["--only", "redis"], "redis", 20), ran(["--only", "usemem"], "usemem", 5))
        both = report.text(first, cases)
        self.assertIn("**usemem**:", both)
        self.assertIn("**redis**:", both)
        self.assertIn("--only usemem", both)
        self.assertIn("0.50", both)
        self.assertIn("2.00", both)
        again = report.text(report.joined(ran(["--rounds", "9"], "usemem", 30), first), cases)
        self.assertNotIn("0.50", again)
        self.assertNotIn("--only usemem", again)
        self.assertIn("3.00", again)
        self.assertIn("2.00", again)
        with self.assertRaises(Failed):
            report.joined(first, first | {"quick": True})

    def test_the_report_is_put_between_its_marks_only(self):
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "page.md")
            with open(path, "w", encoding="utf-8") as file:
                file.write(f"before\n{report.MARKS[0]}\nold\n{report.MARKS[1]}\nafter\n")
            page.put(path, "new", report.MARKS)
            with open(path, encoding="utf-8") as file:
                self.assertEqual(file.read(), f"before\n{report.MARKS[0]}\nnew\n{report.MARKS[1]}\nafter\n")

    def test_paths_are_no_part_of_the_command_that_is_reported(self):
        self.assertEqual(page.told(["--ebb", "/x", "--rounds", "3", "--json=/y", "--join", "/z", "--quick"]), ["--rounds", "3", "--quick"])


class ProfileTest(unittest.TestCase):
    SCRIPT = """micro 12/12
\tffffffff81 move_pages+0x10 ([kernel.kallsyms])
\tffffffff82 entry_SYSCALL_64_after_hwframe+0x7 ([kernel.kallsyms])
\t    7f01 ebb::sweep::Space::unmap+0x3 (/x/libebb_agent.so)

ebb-reclaim 12/13
\t    7f02 LZ4_compress_fast_extState+0x1 (/x/libebb_agent.so)

micro 12/12
\t    5501 main+0x5 (/x/micro)

micro 12/12
\t    5502 ebb_bench_micro::compress::Gate+0x5 (/x/micro)

ebb-reclaim 12/13
\t    7f03 __memmove_sse2_unaligned_erms+0x1 (/lib/libc.so.6)

"""

    def test_a_sample_belongs_to_what_its_functions_do(self):
        samples = list(profiler.samples_of(self.SCRIPT))
        self.assertEqual([thread for thread, _ in samples], ["micro", "ebb-reclaim", "micro", "micro", "ebb-reclaim"])
        kinds = [profiler.kind_of(thread, frames) for thread, frames in samples]
        self.assertEqual(kinds, ["MOVE", "compress", profiler.PROGRAM, profiler.PROGRAM, profiler.REST])
        self.assertIn("micro;the program;main 1\n", profiler.fold(samples))
        self.assertTrue(any(line.startswith("MOVE") and "20.0%" in line for line in profiler.report(samples)))


class ProgressTest(unittest.TestCase):
    def test_time_left_goes_by_what_each_row_took(self):
        bar = progress.Progress([("a",), ("a",), ("b",)], io.StringIO())
        bar.took = {("a",): [10.0]}
        self.assertEqual(bar.seconds_left(), 30.0)
        bar.left.remove(("a",))
        bar.took[("b",)] = [2.0]
        self.assertEqual(bar.seconds_left(), 12.0)
        self.assertEqual([progress.span(s) for s in (40, 300, 3900)], ["40 s", "5 min", "1 h 05 min"])


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


class SwapTest(unittest.TestCase):
    def test_the_last_change_is_undone_first(self):
        journal, entries = mock.Mock(), ["made", "mounted", "on"]
        swap.close(journal, entries)
        self.assertEqual([call.args[0] for call in journal.undo_one.call_args_list], ["on", "mounted", "made"])
        self.assertEqual(entries, [])


if __name__ == "__main__":
    unittest.main()
