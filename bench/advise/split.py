#!/usr/bin/python3
"""Splits what a smaller budget costs into misses and what a miss costs, beside what `ebb advise` foretold.

For each program of run.py: `ebb advise`, a run with RAM for everything, and one for each part. Prints, for each part, how many times
the base's processor time the run took without background threads, without and with waits for devices; the misses; and for a miss, in
microseconds: processor time in its handler, waits for devices, background threads, and the rest. Of processor time other programs
take nothing, so this works on a busy machine too; waits for devices do grow there.

usage: bench/advise/split.py [--only NAMES] [--parts 80,60]
"""
import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile

from run import EBB, LIMIT_S, programs

# The status of `ebb advise` if the program ended with 0 and there is no forecast.
NO_FORECAST = 124


def run(stats, *arguments):
    """Processor time and counters of a run of `ebb`."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([EBB, arguments[0], "-q", "--stats", stats, *arguments[1:]], stdin=subprocess.DEVNULL,
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=LIMIT_S)
    # The advice says itself why there is none.
    if done.returncode != 0 and (arguments[0], done.returncode) != ("advise", NO_FORECAST):
        sys.exit(f"split.py: {' '.join(arguments)}: ended with status {done.returncode}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    with open(stats) as file:
        counted = json.load(file)
    counters = counted["counters"]
    return {
        "cpu": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "misses": max(1, sum(counters[name] for name in ("faults_soft", "faults_pool", "faults_file"))),
        "fault": counters["fault_cpu_ns"] / 1e9,
        "background": counters["background_ns"] / 1e9,
        "wait": sum(device["read_ns"] for device in counted["devices"]) / 1e9,
        "of_file": counters["faults_file"],
    }


def each(of):
    """What a miss costs on average, in microseconds."""
    us = 1e6 / of["misses"]
    return f"{of['fault'] * us:.1f} in its handler, {of['wait'] * us:.1f} waiting, {of['background'] * us:.1f} behind"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--parts", default="80,60")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as scratch:
        told, stats = os.path.join(scratch, "advice.json"), os.path.join(scratch, "stats.json")
        for name, command in programs(scratch):
            if options.only and name not in options.only.split(","):
                continue
            command = command()
            advised = run(stats, "advise", "--json", told, "--", *command)
            with open(told) as file:
                advice = json.load(file)
            if advice["lack"]:
                print(f"{name}: no advice: {advice['lack']}", flush=True)
                continue
            wanted = advice["wanted_bytes"]
            foretold = {round(100 * f["ram_bytes"] / wanted): f["times"] for f in advice["forecasts"]}
            base = run(stats, "run", "--ram", f"{wanted * 130 // 100 // 4096 * 4}K", "--", *command)["cpu"]
            print(f"{name}: base {base:.2f} s; a miss in the advised run: {each(advised)} us", flush=True)
            for part in map(int, options.parts.split(",")):
                of = run(stats, "run", "--ram", f"{wanted * part // 100 // 4096 * 4}K", "--", *command)
                front = of["cpu"] - of["background"]
                rest = (front - base - of["fault"]) / of["misses"] * 1e6
                print(f"  {part:3}%: foretold {foretold[part] or 0:5.2f}x, was {front / base:5.2f}x, {(front + of['wait']) / base:5.2f}x with waits;"
                      f" {of['misses']:8} misses, {of['of_file'] / of['misses']:.0%} in a file; each: {each(of)}, {rest:.1f} other us", flush=True)


if __name__ == "__main__":
    main()
