#!/usr/bin/python3
"""Ebb in containers: under the seccomp profiles of the engines, with /dev/userfaultfd and without, as root, as an ordinary user,
and in a user namespace as rootless engines have it. One line a case; the closing line counts.

EBB names the command (default: target/release/ebb of this repository, then `ebb` on the path).
"""
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))

from cases import Skip, need, only_of_arguments, run_cases  # noqa: E402
from command import find_ebb  # noqa: E402

LIMIT_S = 120
DEVICE = "/dev/userfaultfd"
# Debian's, for which there is the package python3-seccomp, and which every user may run.
PYTHON = "/usr/bin/python3"
CONTAINED = [PYTHON, os.path.join(HERE, "contained.py")]
SERVICE = [PYTHON, os.path.join(HERE, "service.py")]
NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"]
# Outside a container, and in one, whoever is root in a user namespace is a stranger to the machine.
ROOTLESS = ["unshare", "--user", "--map-root-user", "--mount", "--"]
# Without the device: another file takes its place.
HIDDEN = ["unshare", "--mount", "--", "sh", "-c", 'mount --bind /dev/null "$0" && exec "$@"', DEVICE]


def run(command, env=None):
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=env or os.environ, check=False)


def where_possible(name, case):
    """The case, which is skipped where this machine lacks what its name tells of."""
    def case_or_skip():
        if "device" in name and not os.path.exists(DEVICE):
            raise Skip(f"this kernel has no {DEVICE}")
        if "rootless" in name and run([*NOBODY, *ROOTLESS, "true"]).returncode != 0:
            raise Skip("users may have no namespaces here")
        case()
    return case_or_skip


class Cases:
    """The cases, each a method whose docstring says what holds."""

    def __init__(self, ebb, scratch):
        self.ebb, self.scratch = ebb, scratch
        os.chmod(scratch, 0o755)
        self.profiles = {}
        for engine in ("docker", "podman", "k8s"):
            printed = run([ebb, "doctor", "--seccomp-profile", engine])
            need(printed.returncode == 0, printed.stderr)
            self.write(engine, json.loads(printed.stdout))
            self.write(engine + "-default", self.default_of(json.loads(printed.stdout)))
        self.small = os.path.join(scratch, "small")
        built = run(["gcc", "-O1", "-Wall", "-Wextra", "-Werror", "-o", self.small, os.path.join(HERE, "small.c")])
        need(built.returncode == 0, built.stderr)
        self.expected = {drop: self.unlimited(drop) for drop in ((), ("--drop",))}

    def write(self, name, profile):
        path = os.path.join(self.scratch, name + ".json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(profile, file)
        os.chmod(path, 0o644)
        self.profiles[name] = path

    @staticmethod
    def default_of(profile):
        """The engine's own profile: what Ebb adds is refused, by the error that the engine gives."""
        for rule in profile["syscalls"]:
            if rule["names"] in (["userfaultfd"], ["process_madvise"]):
                rule.update(action="SCMP_ACT_ERRNO", errnoRet=1, args=[])
        return profile

    def unlimited(self, drop):
        ran = run([*SERVICE, *drop])
        need(ran.returncode == 0, ran.stderr)
        return ran.stdout

    def contained(self, profile, command, before=(), after=(), env=None):
        return run([*before, *CONTAINED, self.profiles[profile], "--", *after, *command], env=env)

    def serves(self, profile, before=(), after=(), drop=()):
        """The service runs in a quarter of its memory, managed, and prints what it prints without Ebb."""
        ran = self.contained(profile, [self.ebb, "run", "--ram", "20M", "--", *SERVICE, *drop], self.hidden(before), after)
        need(ran.returncode == 0, f"status {ran.returncode}: {ran.stderr}")
        need(ran.stdout == self.expected[drop], "the output is another")
        need("swapped out" in ran.stderr, f"nothing was swapped out: {ran.stderr}")
        need("not managed" not in ran.stderr, f"something was not managed: {ran.stderr}")

    def goes_without(self, command, expected):
        """A program that becomes another user, who has no device, before it grows: it runs, is not managed, and says so."""
        ran = self.contained("docker-default", [self.ebb, "run", "--ram", "20M", "--", *command])
        need(ran.returncode == 0, f"status {ran.returncode}: {ran.stderr}")
        need(ran.stdout == expected, "the output is another")
        need(f"may not open {DEVICE}" in ran.stderr, f"it does not say why: {ran.stderr}")

    def keeps_the_device(self):
        """A program that changes its root is managed before it does: then its forks have the device."""
        command = [self.ebb, "run", "--ram", "20M", "--", self.small, "/proc/self/fdinfo"]
        ran = self.contained("docker-default", command)
        need(ran.returncode == 0 and ran.stdout == "kept\n", f"status {ran.returncode}: {ran.stderr}")
        need("swapped out" in ran.stderr and DEVICE not in ran.stderr, f"it was not managed: {ran.stderr}")

    @staticmethod
    def hidden(before):
        """Where there is no device, none needs to be hidden."""
        return () if before == HIDDEN and not os.path.exists(DEVICE) else before

    def refuses(self, words, before=(), after=(), env=None, profile="docker-default"):
        """Neither `ebb run` nor `ebb doctor` works, and both say what to do."""
        before = self.hidden(before)
        ran = self.contained(profile, [self.ebb, "run", "--ram", "20M", "--", "true"], before, after, env)
        need(ran.returncode == 125 and "userfaultfd" in ran.stderr, f"status {ran.returncode}: {ran.stderr}")
        need(ran.stderr.count("\n") == 1, f"more than a line: {ran.stderr}")
        told = self.contained(profile, [self.ebb, "doctor"], before, after, env)
        need(told.returncode == 1, "the doctor finds nothing")
        for word in words:
            need(word in ran.stderr and word in told.stdout, f"no word of {word!r}: {ran.stderr}{told.stdout}")
        need("unconfined" not in ran.stderr + told.stdout, "the remedy is too wide")

    def doctor_names_the_device(self):
        """Where the system call is refused, the doctor finds the device."""
        told = self.contained("docker-default", [self.ebb, "doctor", "--json"])
        need(told.returncode == 0, told.stdout + told.stderr)
        checks = {check["name"]: check for check in json.loads(told.stdout)["checks"]}
        need(checks["userfaultfd"]["mechanism"] == DEVICE, str(checks["userfaultfd"]))

    def a_profile_allows_no_more_than_user_mode(self):
        """With Ebb's profile a program gets no userfaultfd for faults of the kernel."""
        tries = "import ctypes; libc = ctypes.CDLL(None); print([libc.syscall(323, flags) >= 0 for flags in (0, 1)])"
        for engine in ("docker", "podman", "k8s"):
            ran = self.contained(engine, [PYTHON, "-c", tries])
            need(ran.stdout == "[False, True]\n", f"{engine}: {ran.stdout}{ran.stderr}")

    def all(self):
        """Name and function of each case."""
        cases = {}
        for engine in ("docker", "podman", "k8s"):
            cases[f"{engine}: profile, root"] = lambda engine=engine: self.serves(engine, HIDDEN, drop=("--drop",))
            cases[f"{engine}: profile, user"] = lambda engine=engine: self.serves(engine, after=NOBODY)
        cases["docker: profile, rootless"] = lambda: self.serves("docker", [*NOBODY, *ROOTLESS])
        cases["docker: device"] = lambda: self.serves("docker-default")
        cases["docker: device, chroot and another user"] = lambda: self.serves("docker-default", drop=("--drop",))
        cases["docker: device, another program of another user"] = lambda: self.goes_without([*NOBODY, *SERVICE], self.expected[()])
        cases["docker: device, another user while small"] = lambda: self.goes_without([self.small], "kept\n")
        cases["docker: device, another root while small"] = self.keeps_the_device
        cases["podman: device"] = lambda: self.serves("podman-default", drop=("--drop",))
        cases["doctor: the device"] = self.doctor_names_the_device
        cases["docker: neither"] = lambda: self.refuses(["seccomp"], HIDDEN)
        for variable, word in (("container=podman", "podman"), ("KUBERNETES_SERVICE_HOST=10.0.0.1", "kubelet")):
            env = {**os.environ, **dict([variable.split("=")])}
            cases[f"neither, {word}"] = lambda env=env, word=word: self.refuses([word], HIDDEN, env=env)
        cases["user mode only"] = self.a_profile_allows_no_more_than_user_mode
        return {name: where_possible(name, case) for name, case in cases.items()}


def main():
    only = only_of_arguments(__doc__)
    ebb = find_ebb()
    if os.geteuid() != 0:
        print("containers: these tests need root, to be an engine")
        return 0
    with tempfile.TemporaryDirectory(prefix="ebb-containers-") as scratch:
        return run_cases("containers", Cases(ebb, scratch).all(), only)


if __name__ == "__main__":
    sys.exit(main())
