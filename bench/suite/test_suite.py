"""Tests of the suite that need neither root nor swap: python3 bench/suite/test_suite.py"""

import io
import json
import os
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]

import disk  # noqa: E402
import micro_cases  # noqa: E402
import profiler  # noqa: E402
import program  # noqa: E402
import report  # noqa: E402
import run as suite  # noqa: E402
from case import Case, Context, Metric  # noqa: E402
from rig import page, place  # noqa: E402
from rig.errors import MIB, Failed  # noqa: E402

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


class DiskRow(Row):
    table = "disk"


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


class OptionsTest(unittest.TestCase):
    def test_help_names_every_place(self):
        with mock.patch("sys.stdout", io.StringIO()) as out, self.assertRaises(SystemExit) as ended:
            suite.options(["--help"])
        said = "".join(out.getvalue().split())
        self.assertEqual(ended.exception.code, 0)
        self.assertEqual([name for name in suite.swap.KINDS if name not in said], [])


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

    def test_a_row_with_kernels_of_its_own_gives_ebb_what_they_had(self):
        row = Row(outcomes=lambda where: {"time": 1.0})
        row.places = lambda wanted: ["zswap-1%", "ebb"]
        _, made = measured([row], ["none", "zram-lz4", "ebb"])
        self.assertEqual([(one.name, one.ram_bytes) for one in made], [("zswap-1%", None), ("ebb", 12 << 20)])

    def test_what_the_kernel_killed_did_not_fail(self):
        row = Row(outcomes=lambda where: Failed("status -9"))
        runs, _ = measured([row], ["zram-lz4"], kills={"zram-lz4": 1})
        self.assertNotIn("failed", runs[0])
        self.assertIn("out of memory", runs[0]["killed"])

    def test_ebb_gets_what_was_too_little_for_the_kernel(self):
        row = Row(outcomes=lambda where: Failed("status -9") if where.name != "ebb" else {"time": 1.0})
        runs, made = measured([row], ["zram-lz4", "ebb"], kills={"zram-lz4": 1})
        self.assertEqual((made[-1].name, made[-1].ram_bytes), ("ebb", 12 << 20))
        self.assertEqual(runs[1]["values"], {"time": 1.0})

    def test_the_engine_alone_is_measured_where_a_row_can(self):
        cell = micro_cases.Swapping("mixed", 1, 256)
        self.assertEqual(suite.in_order(cell, ["engine", "none", "ebb", "zram-lz4"]), ["zram-lz4", "ebb", "engine"])
        self.assertEqual(suite.in_order(Row(), ["engine", "none", "ebb", "zram-lz4"]), ["none", "zram-lz4", "ebb"])

    def test_what_counts_may_be_known_only_once_all_has_run(self):
        runs, _ = measured([Row(metrics=[RATE, TIME], outcomes=lambda where: {"time": 1.0})], ["none"])
        self.assertEqual(runs[0]["values"], {"time": 1.0})

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
        for places in ("none,engine", "zram-lz5"):
            with mock.patch("sys.stderr", io.StringIO()), self.assertRaises(SystemExit):
                suite.options(["--places", places])
        self.assertEqual(suite.options(["--places", "zram-lz4,ebb,engine"]).places, ["zram-lz4", "ebb", "engine"])


def found_by_micro(ns_per_access, missing, **more):
    """What ebb-bench-micro prints, as far as cases look."""
    return {
        "ns_per_access": ns_per_access, "cpu_ns_per_access": ns_per_access * 2, "accesses_per_second": 1000, "accesses": 100,
        "pages_in": int(missing * 100), "pages_in_per_access": missing, "wall_ns": 1_000_000, "latency_ns": {"p50": 1, "p99": 2, "p999": 3},
        "fill_beyond": {"pages": 50, "wall_ns": 200_000, "cpu_ns": 100_000}, "ebb": {}, **more,
    }  # fmt: skip


class MicroTest(unittest.TestCase):
    def run_of(self, case, ram_bytes=None, **more):
        where = mock.Mock(ram_bytes=ram_bytes)
        where.run.return_value.out = json.dumps(found_by_micro(1000.0, 0.5, **more))
        return case.run(where, Context(None, "", "", "micro", True)), where.run.call_args.args[0]

    def test_ebb_gets_what_the_kernel_had_but_for_hard_data(self):
        self.assertEqual(micro_cases.Access("random-read", 1, 256, []).ram_bytes(7), 7)
        self.assertEqual(micro_cases.Swapping("mixed", 1, 256).ram_bytes(7), 7)
        self.assertEqual(micro_cases.Swapping("hard", 1, 256).ram_bytes(7), 64 * MIB)
        self.assertEqual([micro_cases.Free(data, 1, 256).ram_bytes(7) for data in ("mixed", "hard")], [7, 64 * MIB])

    def test_what_is_swapped_out_is_what_is_beyond_the_ram_of_each_side(self):
        case = micro_cases.Swapping("mixed", 2, 256)
        _, kernel = self.run_of(case)
        _, ours = self.run_of(case, ram_bytes=100 * MIB + 1)
        self.assertEqual([command[command.index("--resident") + 1] for command in (kernel, ours)], ["64", "101"])

    def test_a_page_costs_the_time_by_the_pages_that_were_swapped(self):
        values, _ = self.run_of(micro_cases.Swapping("zero", 1, 256))
        self.assertEqual(values, {"out": 4.0, "out, processor": 2.0, "in": 20.0, "in, processor": 4.0})
        nothing, _ = self.run_of(micro_cases.Swapping("zero", 1, 256), pages_in=0, fill_beyond={"pages": 0, "wall_ns": 0, "cpu_ns": 0})
        self.assertEqual(nothing, {})

    def test_a_freed_page_costs_its_part_of_what_unmapping_takes(self):
        values, command = self.run_of(micro_cases.Free("same", 2, 256))
        self.assertEqual((values, command[1]), ({"free": 1000.0, "free, processor": 2000.0}, "free"))
        self.assertNotIn("none", micro_cases.Free("same", 2, 256).places(["none", "zram", "ebb"]))

    def test_a_run_without_ebb_is_none_of_ebb_s(self):
        with self.assertRaisesRegex(Failed, "without Ebb"):
            self.run_of(micro_cases.Access("random-read", 1, 256, []), ram_bytes=MIB, ebb=None)
        self.run_of(micro_cases.Access("random-read", 1, 256, []), ebb=None)

    def test_every_metric_of_a_new_row_is_found(self):
        for case in (*micro_cases.accesses(False), *micro_cases.swapping(False), micro_cases.Free("mixed", 1, 256)):
            values, _ = self.run_of(case)
            values |= case.derived(values, values) if case.aim else {}
            self.assertLessEqual({metric.name for metric in case.metrics}, values.keys())


class DiskTest(unittest.TestCase):
    def row(self, name):
        return next(case for case in disk.cases(quick=False) if case.name == name)

    def test_fio_says_what_the_disk_does_for_each_thread(self):
        row, side = self.row("random-read 8T"), {"bw_bytes": 80 * 4096, "total_ios": 9, "clat_ns": {"percentile": {}}}
        side["clat_ns"]["percentile"] = {"50.000000": 1000, "99.000000": 2000, "99.900000": 3000}
        with tempfile.TemporaryDirectory() as scratch:
            where = mock.Mock(ram_bytes=None)
            where.name = place.DEVICE
            where.run.return_value.out = json.dumps({"jobs": [{"read": side, "write": {"total_ios": 0, "bw_bytes": 0}}]})
            values = row.run(where, Context(None, scratch, "", "micro", True))
        self.assertEqual(values, {"access": 100_000.0, "p50": 1.0, "p99": 2.0, "p99.9": 3.0})
        self.assertIn("--numjobs=8", where.run.call_args.args[0])

    def test_without_fio_the_disk_itself_is_not_measured(self):
        row = self.row("random-read 1T")
        for path, places in (("/usr/bin/fio", ["device", "swap-file", "ebb"]), (None, ["swap-file", "ebb"])):
            with mock.patch("shutil.which", return_value=path):
                self.assertEqual(row.places(["none", "zram-lz4", "ebb"]), places)

    def test_zswap_that_holds_all_of_it_is_no_disk(self):
        for mib, able in ((24 << 10, True), (256 << 10, False)):
            with mock.patch("disk.machine", return_value={"memory_mib": mib}):
                self.assertEqual(self.row("fill 1T").missing() is None, True)
                self.assertEqual(disk.cases(quick=False)[-1].missing() is None, able)


class ProgramTest(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)
        self.context = Context(None, self.directory.name, "", "", True)

    def rows(self):
        return [case for quick in (True, False) for case in suite.all_cases(quick) if isinstance(case, program.Program)]

    def test_the_limit_is_a_part_of_the_need_and_both_are_in_the_name(self):
        case = program.Program("sort, lines", 200, [], [])
        self.assertEqual((case.name, case.limit_of(self.context)), ("sort, lines, 110 of 200 MiB", 110 * MIB))

    def test_a_row_whose_program_is_missing_says_which_package_has_it(self):
        case = program.Program("7z", 10, ["7z"], ["7z"])
        with mock.patch("shutil.which", return_value=None):
            self.assertEqual(case.missing(), "7z is not installed: apt-get install p7zip-full")
        self.assertIsNone(program.Program("python", 10, [], []).missing())

    def test_a_program_that_prints_something_else_has_failed(self):
        case, where = program.Program("row", 10, ["echo"], []), mock.Mock()
        where.run.side_effect = [mock.Mock(out=out, wall=2.0, cpu=1.0) for out in ("a\n", "a\n", "b\n", " \n")]
        for _ in range(2):
            self.assertEqual(case.run(where, self.context), {"time": 2.0, "processors": 1.0})
        with self.assertRaisesRegex(Failed, "something else"):
            case.run(where, self.context)
        with self.assertRaisesRegex(Failed, "nothing"):
            case.run(where, self.context)

    def test_the_time_is_told_as_a_multiple_of_the_time_alone(self):
        case = program.Program("row", 10, [], [])
        self.assertEqual(case.derived({"time": 6.0}, {"time": 2.0}), {"of the time alone": 3.0})
        self.assertEqual(case.derived({"time": 6.0}, None), {})

    def test_an_input_is_made_once_and_the_same_each_time(self):
        case = program.Program("row", 10, ["cat", "{input}"], [], reads=("text", 20))
        contents = []
        for name in ("a", "b"):
            context = Context(None, os.path.join(self.directory.name, name), "", "", True)
            case.prepare(context)
            with open(case.filled(case.command, context)[1], encoding="ascii") as file:
                contents.append(file.read())
        self.assertEqual(contents[0], contents[1])
        self.assertEqual(len(contents[0].splitlines()), 20)

    def test_what_cannot_be_built_says_why(self):
        case = program.Program("row", 10, [], [], build=["sh", "-c", "echo why >&2; exit 3"])
        with self.assertRaisesRegex(Failed, "status 3: why"):
            case.prepare(self.context)

    def test_a_failure_in_front_of_the_digest_is_a_failure(self):
        self.assertEqual(subprocess.run(program.summed("false"), stdout=subprocess.DEVNULL, check=False).returncode, 1)

    def test_every_source_of_a_row_is_there_and_every_package_is_listed(self):
        root = os.path.dirname(os.path.dirname(HERE))
        # Who builds Ebb has Rust.
        listed = {"rustc"}
        for path in (os.path.join(root, "bench/packages.txt"), os.path.join(root, "tests/programs/packages.txt")):
            with open(path, encoding="utf-8") as file:
                listed |= set(file.read().split("\n"))
        for case in self.rows():
            for part in [*case.filled(case.command, self.context), *case.filled(case.build, self.context)]:
                for word in part.split():
                    if word.startswith(program.HERE):
                        self.assertTrue(os.path.exists(word), f"{case.name}: {word}")
            for tool in case.tools:
                self.assertIn(program.PACKAGES.get(tool, tool), listed, case.name)


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

    def accesses(self, where, runs):
        case = micro_cases.Access("random-read", 1, 256, [])
        return [{"table": "access", "case": case.name, "place": where, "round": nr, "values": case.values(found_by_micro(*run))}
                for nr, run in enumerate(runs)]  # fmt: skip

    def test_a_miss_costs_what_an_access_costs_more_than_a_hit(self):
        runs = (self.accesses("ebb", [(350.0, 0.5), (350.0, 0.25), (350.0, 0.005)]) + self.accesses("none", [(100.0, 0)])
                + self.accesses("zram-lz4", [(600.0, 0.5), (1100.0, 0.5), (600.0, 0.5)]))  # fmt: skip
        cases = {("access", "random-read 1T"): micro_cases.Access("random-read", 1, 256, [])}
        whole = report.completed(self.found(runs), cases)["runs"]
        misses = [[round(value, 6) for value in (run["values"].get(name) for run in whole if run["place"] == where) if value is not None]
                  for where in ("zram-lz4", "ebb", "none") for name in ("miss", "miss, processor")]  # fmt: skip
        self.assertEqual(misses, [[1.0, 2.0, 1.0], [2.0, 4.0, 2.0], [0.5, 1.0], [1.0, 2.0], [], []])
        text = report.text(self.found(runs), cases)
        self.assertIn("- Ebb is better by 2.00 to 2.00 in *miss*. 1 of 1 rows reach the aim of 2.", text)
        self.assertRegex(text, r"(?m)^\| random-read 1T +\| +miss, us \| +- \|")
        # Without a run with all in RAM nothing says what a hit costs.
        alone = report.completed(self.found(self.accesses("ebb", [(350.0, 0.5)])), cases)["runs"][0]["values"]
        self.assertNotIn("miss", alone)

    def test_a_table_says_what_its_rows_come_to_and_which_is_the_least(self):
        cases = {("usemem", name): Row(name, metrics=[RATE]) for name in ("good", "bad")}
        runs = []
        for name, ours in (("good", 80), ("bad", 5)):
            runs += [run | {"case": name} for run in self.runs("zram-lz4", [10]) + self.runs("ebb", [ours])]
        text = report.text(self.found(runs), cases)
        self.assertIn("- Ebb is better by 2.00, the geometric mean of 2 rows. The least is 0.50: bad.", text)
        self.assertNotIn("geometric mean", report.text(self.found(runs[:2]), cases))
        cases["usemem", "killed"] = Row("killed", metrics=[RATE])
        killed = {"table": "usemem", "case": "killed", "place": "zram-lz4", "round": 0, "killed": "why"}
        ours = [run | {"case": "killed"} for run in self.runs("ebb", [7])]
        self.assertIn("2 rows. The least is 0.50: bad. In 1 more the kernel killed the program.", report.text(self.found([*runs, killed, *ours]), cases))

    def test_each_of_ours_is_compared_with_the_kernel(self):
        runs = self.runs("zram-lz4", [10, 10, 10]) + self.runs("ebb", [20, 20, 20]) + self.runs("engine", [40, 40, 40])
        text = report.text(self.found(runs), {("usemem", "row"): Row(metrics=[RATE])})
        self.assertRegex(text, r"Ebb is better by +\| +engine is better by")
        self.assertIn("| 2.00 [2.00..2.00] |   4.00 [4.00..4.00] |", text)

    def test_a_table_with_kernels_of_its_own_is_compared_with_them(self):
        runs = self.runs("zram-lz4", [10]) + self.runs("ebb", [20])
        runs += [run | {"table": "disk"} for run in self.runs("swap-file", [10]) + self.runs("device", [90]) + self.runs("ebb", [40])]
        text = report.text(self.found(runs), {("usemem", "row"): Row(metrics=[RATE]), ("disk", "row"): DiskRow(metrics=[RATE])})
        self.assertRegex(text, r"(?m)^\| disk +\| row \(beside kernel, swap file\) \| rate \| +4\.00 \|")
        self.assertRegex(text, r"the disk itself \| kernel, swap file \| +Ebb \| Ebb is better by")

    def test_what_was_held_beside_is_printed_for_the_kernel_and_for_ebb(self):
        def beside(where, cache, kernel):
            return [run | {"page_cache_bytes": cache << 20, "kernel_bytes": kernel << 20} for run in self.runs(where, [10, 10, 10])]

        text = report.text(self.found(beside("zram-lz4", 2, 9) + beside("ebb", 1031, 12)), {("usemem", "row"): Row(metrics=[RATE])})
        self.assertIn("page cache + kernel memory, MiB: kernel, zram lz4; Ebb |", text)
        self.assertIn("2 + 9; 1031 + 12", text)
        # An earlier run, whose figures were kept, did not count it.
        self.assertRegex(report.text(self.found(self.runs("ebb", [1.0])), {("usemem", "row"): Row(metrics=[RATE])}), r"(?m)^\| row .*\| +\|$")

    def test_what_a_run_held_above_its_budget_is_printed_where_no_page_cache_hides_it(self):
        def held(mib, cache):
            more = {"held_bytes": mib << 20, "page_cache_bytes": cache << 20, "account": {"counters": {"ram_limit_bytes": 7 << 20}}}
            return [run | more for run in self.runs("ebb", [10])]

        cases = {("usemem", "row"): Row(metrics=[RATE])}
        text = report.text(self.found(held(9, 0) + held(11, 0) + held(99, 90)), cases)
        self.assertIn("+4.0 MiB beside its budget (usemem, row; the most of 2 runs with less than 1 MiB of page cache)", text)
        self.assertNotIn("beside its budget", report.text(self.found(held(99, 90) + self.runs("ebb", [10])), cases))

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


if __name__ == "__main__":
    unittest.main()
