#!/usr/bin/env python3
"""Packs what `make build` built: build.py [--from target/release] [--into target/packages] tarball|deb|rpm|wheel...

Two runs give the same bytes: entries are sorted and belong to root, and their time is SOURCE_DATE_EPOCH or that of the last
commit. Prints the path and the size of each package.
"""
import argparse
import os
import sys
import tempfile

import deb
import rpm
import tarball
import wheel
from common import ROOT, Problem

KINDS = {"tarball": tarball, "deb": deb, "rpm": rpm, "wheel": wheel}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="release", default=os.path.join(ROOT, "target/release"), help="where ebb and its agent are")
    parser.add_argument("--into", default=os.path.join(ROOT, "target/packages"), help="where the packages go")
    parser.add_argument("kinds", nargs="+", choices=KINDS)
    args = parser.parse_args()
    into = os.path.abspath(args.into)
    os.makedirs(into, exist_ok=True)
    for kind in args.kinds:
        with tempfile.TemporaryDirectory(prefix="ebb-packaging-") as scratch:
            try:
                package = KINDS[kind].build(os.path.abspath(args.release), scratch, into)
            except Problem as problem:
                print(f"build.py: {kind}: {problem}", file=sys.stderr)
                return 1
        print(f"{os.path.relpath(package)}: {os.path.getsize(package) / 1e6:.2f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
