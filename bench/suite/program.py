"""A program as a row: built from a source in `programs/` or installed, with inputs that are made. It gets as its limit a part of
the memory that it needs, and must print what it prints with all the RAM it wants."""

import os
import shutil
import subprocess
import sys

from case import SECONDS, Case, Metric
from rig.errors import Failed

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "programs")
PROCESSOR = Metric("processors", "s", places=2)
TIMES_ALONE = Metric("of the time alone", "times", places=2)
# The kernel's limit, as a part of what a program needs.
LIMIT_PART = 0.55
# The package that has a tool, where its name is another.
PACKAGES = {
    "7z": "p7zip-full", "Rscript": "r-base-core", "erl": "erlang-base", "escript": "erlang-base", "go": "golang-go", "gs": "ghostscript",
    "guile": "guile-3.0", "java": "openjdk-17-jdk-headless", "javac": "openjdk-17-jdk-headless", "node": "nodejs",
    "ocamlopt": "ocaml-nox", "php": "php-cli", "swipl": "swi-prolog-nox",
}  # fmt: skip
# Node makes its heaps smaller where a cgroup has a limit, which Ebb's has not: both sides get the same heaps.
HEAP = ["--max-old-space-size=256", "--max-semi-space-size=16"]


class Program(Case):
    """A program with its arguments. In them, {here} is the directory of the sources, {scratch} that of what is made."""

    table = "programs"
    seconds = 600

    def __init__(self, name, need_mib, command, tools, build=(), reads=None, part=LIMIT_PART):
        limit_mib = round(need_mib * part)
        super().__init__(f"{name}, {limit_mib} of {need_mib} MiB", [SECONDS, TIMES_ALONE, PROCESSOR], limit_mib)
        # `need_mib`: the most anonymous memory that its cgroup holds when nothing limits it.
        self.need_mib, self.command, self.tools, self.build = need_mib, command, tools, build
        # What it reads: the kind and the count of `programs/inputs.py`.
        self.reads = reads

    def missing(self):
        for tool in self.tools:
            if not shutil.which(tool):
                return f"{tool} is not installed: apt-get install {PACKAGES.get(tool, tool)}"
        return None

    def filled(self, command, context):
        """A command with what its placeholders stand for."""
        names = {"here": HERE, "scratch": context.directory("programs"), "python": sys.executable}
        if self.reads:
            names["input"] = os.path.join(names["scratch"], "-".join(map(str, self.reads)))
        return [part.format(**names) for part in command]

    def prepare(self, context):
        if self.reads:
            (path,) = self.filled(["{input}"], context)
            if not os.path.exists(path):
                subprocess.run([sys.executable, os.path.join(HERE, "inputs.py"), *map(str, self.reads), path], check=True)
        if self.build:
            # Go's files are no module.
            environment = os.environ | {"GO111MODULE": "off"}
            built = subprocess.run(self.filled(self.build, context), capture_output=True, text=True, check=False, env=environment)
            if built.returncode != 0:
                raise Failed(f"{self.build[0]}: status {built.returncode}: {built.stderr.strip()[-200:]}")

    def run(self, where, context):
        done = where.run(self.filled(self.command, context), self.seconds, env=os.environ | {"LC_ALL": "C"})
        if not done.out.strip():
            raise Failed("it printed nothing")
        if context.data.setdefault((self.table, self.name), done.out) != done.out:
            raise Failed(f"it printed something else than the first time: {done.out.strip()[-80:]}")
        return {SECONDS.name: done.wall, PROCESSOR.name: done.cpu}

    def derived(self, values, alone):
        if not alone or SECONDS.name not in values:
            return {}
        return {TIMES_ALONE.name: values[SECONDS.name] / alone[SECONDS.name]}


def summed(command):
    """Runs a command of the shell whose standard output is large: its digest is printed instead."""
    return ["/bin/bash", "-c", f"set -o pipefail; {command} | sha256sum"]


def java(collector, heap_mib, *arguments):
    return ["java", f"-XX:+Use{collector}GC", f"-Xms{heap_mib}m", f"-Xmx{heap_mib}m", "-cp", "{scratch}", "Allocations", *arguments]
