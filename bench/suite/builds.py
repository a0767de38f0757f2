"""Builds by make, with more jobs and more RAM from row to row, as the seeds' tables have them: a generated program of many
files, and Debian's kernel as small as it gets. What is built must be the same file each time."""

import os
import subprocess
import sys

from case import SECONDS, Case, Metric
from rig.errors import Failed
from rig.process import Process

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TREES = os.path.join(ROOT, "tests/trees")
sys.path.append(TREES)

import build_cases  # noqa: E402

SYSTEM = Metric("in the kernel", "s", places=1)
PROCESSOR = Metric("processors", "s", places=1)


class Build(Case):
    table = "builds"
    seconds = 3600

    def __init__(self, name, jobs, limit_mib):
        super().__init__(f"{name}, {jobs} jobs / {limit_mib} MiB", [SECONDS, PROCESSOR, SYSTEM], limit_mib)
        self.kind, self.jobs = name, jobs

    def tree(self, context):
        """Where the source is, and what is built of it."""
        raise NotImplementedError

    def run(self, where, context):
        tree, image = self.tree(context)
        cleaned = Process(context.journal, ["make", "-s", "-C", tree, "clean"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        _, err = cleaned.wait(120)
        if cleaned.child.returncode != 0:
            raise Failed(f"make clean: {err.strip()[-200:]}")
        environment = os.environ | build_cases.KERNEL_IDENTITY
        done = where.run(["make", "-s", f"-j{self.jobs}", "-C", tree, image], self.seconds, env=environment)
        found = build_cases.sha256(os.path.join(tree, image))
        if context.data.setdefault(tree, found) != found:
            raise Failed(f"{image} is another file than the one built before")
        return {SECONDS.name: done.wall, PROCESSOR.name: done.cpu, SYSTEM.name: done.system}


class Project(Build):
    def __init__(self, files, jobs, limit_mib):
        super().__init__("program", jobs, limit_mib)
        self.files = files

    def missing(self):
        tools = [tool for tool in ("make", "gcc") if not any(os.access(f"{path}/{tool}", os.X_OK) for path in os.get_exec_path())]
        return f"{tools[0]} is not installed" if tools else None

    def prepare(self, context):
        path = os.path.join(context.scratch, "project")
        if not os.path.exists(path):
            os.mkdir(path)
            script = os.path.join(TREES, "workloads/project.py")
            subprocess.run([sys.executable, script, path, str(self.files)], check=True)

    def tree(self, context):
        return os.path.join(context.scratch, "project"), "project"


class Linux(Build):
    rounds_max = 2

    def __init__(self, jobs, limit_mib):
        super().__init__("Linux 6.1 tinyconfig", jobs, limit_mib)

    def missing(self):
        if not os.path.exists(build_cases.KERNEL_SOURCE):
            return f"{build_cases.KERNEL_SOURCE} is missing: apt-get install linux-source-6.1 bc bison flex libelf-dev"
        return None

    def prepare(self, context):
        if "linux" not in context.data:
            context.data["linux"] = build_cases.unpack_kernel(context.scratch)

    def tree(self, context):
        return context.data["linux"], "vmlinux"


def cases(quick):
    if quick:
        return [Project(6, 2, 64)]
    matrix = [(2, 96), (4, 144), (8, 256)]
    # Little more than one compiler takes.
    tight = Linux(4, 64)
    return [Project(40, jobs, limit) for jobs, limit in matrix] + [Linux(jobs, limit) for jobs, limit in matrix] + [tight]
