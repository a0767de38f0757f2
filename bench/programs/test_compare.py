#!/usr/bin/env python3
"""Tests of the comparison of any program; they need no root: python3 bench/programs/test_compare.py"""

import io
import os
import sys
import unittest
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]

import compare  # noqa: E402
from rig.errors import MIB, Failed, Killed  # noqa: E402


class SearchTest(unittest.TestCase):
    """The search of the kernel's limit, with a program that needs `need` MiB, half of it in zram at a quarter of its size."""

    def found(self, ram, least, need=300):
        tries = []

        def attempt(limit):
            tries.append(limit // MIB)
            return None if limit < least * MIB else limit + max(0, need * MIB - limit) // 4

        return compare.search(ram * MIB, attempt), tries

    def test_limit_and_zram_come_close_to_ram(self):
        found, tries = self.found(128, 0)
        self.assertLess(abs(found.total - 128 * MIB), 128 * MIB * compare.CLOSE)
        self.assertEqual(found.died, [])
        self.assertLessEqual(len(tries), compare.SEARCH_MAX)

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

    def test_what_fails_for_another_reason_is_no_limit_s_doing(self):
        def fails(*_):
            raise Failed("no such file")

        with mock.patch.object(compare, "under_kernel", fails), self.assertRaises(Failed):
            compare.find_limit(mock.Mock(ram=64 * MIB), None, None)

    def test_a_round_in_which_the_kernel_kills_is_none_of_the_kernel_s(self):
        def killed(*_):
            raise Killed("out of memory")

        run = compare.Run(2.0, 1.0, MIB)
        with mock.patch.object(compare, "under_kernel", killed), mock.patch.object(compare, "run_in", return_value=run), \
             mock.patch.object(compare.place, "make"), mock.patch("sys.stderr", io.StringIO()):  # fmt: skip
            rounds = compare.measured(mock.Mock(rounds=2), 64 * MIB, None, None)
        self.assertEqual(rounds, {"alone": [run] * 2, "kernel": [], "ebb": [run] * 2})
        with mock.patch("sys.stdout", io.StringIO()) as out:
            compare.report(rounds)
        self.assertNotRegex(out.getvalue(), "(?m)^kernel")
        self.assertIn("ebb ", out.getvalue())

    def test_a_program_that_never_ends_well_is_told(self):
        with self.assertRaises(Failed):
            compare.search(64 * MIB, lambda limit: None)


if __name__ == "__main__":
    unittest.main()
