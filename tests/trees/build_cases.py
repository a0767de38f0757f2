"""Builds by `make`, several compilers and shells at once."""
import hashlib
import os
import shutil
import subprocess

from tree import PYTHON, Failure, need, workload

KERNEL_SOURCE = "/usr/src/linux-source-6.1.tar.xz"
# Whatever of a build is told from outside and goes into the image.
KERNEL_IDENTITY = {"KBUILD_BUILD_TIMESTAMP": "Thu Jan  1 00:00:00 UTC 1970", "KBUILD_BUILD_USER": "user",
                   "KBUILD_BUILD_HOST": "host", "KBUILD_BUILD_VERSION": "1", "TZ": "UTC"}


def sha256(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def build_and_compare(context, tree, make, clean, image, budgets, environment=None):
    """Builds alone and under each budget; the image must be the same."""
    def run(ram):
        done = subprocess.run(clean, cwd=tree, env=context.environment(environment), stdout=subprocess.DEVNULL, check=False)
        need(done.returncode == 0, f"{' '.join(clean)}: status {done.returncode}")
        outcome = context.good(make, ram, timeout=7200, cwd=tree, env=environment)
        return outcome, sha256(os.path.join(tree, image))

    plain, expected = run(None)
    bounded = [(ram, *run(ram)) for ram in budgets]
    for ram, _, found in bounded:
        need(found == expected, f"{image} built under --ram {ram} is another one: {found}, not {expected}")
    for ram, outcome, _ in bounded:
        context.bound_tree(outcome.found, ram, plain.found)


def unpack_kernel(directory):
    """The source of Debian's kernel, configured as small as it gets; where it is."""
    if not os.path.exists(KERNEL_SOURCE):
        raise Failure(f"{KERNEL_SOURCE} is missing: tools/install-packages tests/trees/packages-long.txt")
    subprocess.run(["tar", "-xJf", KERNEL_SOURCE, "-C", directory], check=True)
    tree = os.path.join(directory, "linux-source-6.1")
    subprocess.run(["make", "-s", "tinyconfig"], cwd=tree, check=True, stdout=subprocess.DEVNULL)
    return tree


def kernel_build(context):
    """The long form builds a kernel; the short one a program of many files."""
    if context.long:
        tree = unpack_kernel(context.scratch)
        build_and_compare(context, tree, ["make", "-s", "-j4", "vmlinux"], ["make", "-s", "clean"], "vmlinux",
                          ["128M", "64M"], KERNEL_IDENTITY)
        return
    tree = context.path("project")
    os.mkdir(tree)
    subprocess.run([PYTHON, workload("project.py"), tree, "16"], check=True)
    build_and_compare(context, tree, ["make", "-s", "-j4"], ["make", "-s", "clean"], "project", ["64M"])


def make(context):
    """Makes that start makes, with one jobserver: shells, sort, python and gzip in the recipes."""
    tree = context.path("recipes")
    shutil.copytree(workload("recipes"), tree)
    # Each python of a recipe holds some 48 MiB in the short form.
    parts, size = context.pick(3, 8), context.pick(60000, 300000)

    def result():
        found = sha256(os.path.join(tree, "all.sums"))
        done = subprocess.run(["make", "-s", "clean"], cwd=tree, env=context.environment(), check=False)
        need(done.returncode == 0, f"make clean: status {done.returncode}")
        return found

    context.squeeze(["make", "-s", f"-j{parts}", f"COUNT={parts}", f"LINES={size}"], result=result, cwd=tree)
