"""What the drivers of the tests share: what a case raises, the line that each gets, and the line that counts them."""

import argparse
import traceback


class Failure(Exception):
    """What is wrong."""


class Skip(Exception):
    """What this machine lacks."""


def need(condition, why):
    if not condition:
        raise Failure(why)


def only_of_arguments(doc):
    """Reads the arguments of a driver that has no other option than --only."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], help="only cases whose names begin so")
    return parser.parse_args().only


def run_cases(driver, cases, only=()):
    """Runs functions by name, one line a case, and returns the exit status. What a case returns is told on its line. A case that
    raises anything but Skip has failed, and the others run all the same."""
    passed = failed = skipped = 0
    for name, case in cases.items():
        if only and not name.startswith(tuple(only)):
            continue
        try:
            told = case()
            passed += 1
            print(f"ok   {name}{f': {told}' if told else ''}", flush=True)
        except Skip as why:
            skipped += 1
            print(f"skip {name}: {why}", flush=True)
        except Failure as why:
            failed += 1
            print(f"FAIL {name}: {why}", flush=True)
        except Exception:  # pylint: disable=broad-exception-caught
            # Not what the case looks for: where it was says more.
            failed += 1
            print(f"FAIL {name}: {traceback.format_exc()}", flush=True)
    print(f"{driver}: {passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or not passed else 0
