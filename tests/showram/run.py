#!/usr/bin/python3
"""`ebb run --show-ram`: programs believe in the size that they are shown, by every way to learn it, and notice nothing else. One line
a case; the closing line counts.

EBB names the command (default: target/release/ebb of this repository, then `ebb` on the path).
"""
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))

from cases import Skip, need, only_of_arguments, run_cases  # noqa: E402
from command import find_ebb  # noqa: E402

LIMIT_S = 60
PYTHON = "/usr/bin/python3"
NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"]
MIB = 1 << 20
RAM, SHOWN = 200, 600
RUN = ["run", "-q", "--ram", f"{RAM}M", "--show-ram", f"{SHOWN}M", "--"]
FREE = "import os; print(os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGESIZE'))"
# Copies by sendfile and copy_file_range, and by splice, where the kernel takes them.
COPIES = """
import os, shutil, sys
shutil.copyfile("/proc/meminfo", sys.argv[1])
first = open(sys.argv[1]).readline()
source = os.open("/proc/meminfo", os.O_RDONLY)
read, write = os.pipe()
for call in (lambda: os.splice(source, write, 100), lambda: os.copy_file_range(source, os.open(sys.argv[1], os.O_RDWR), 100)):
    try:
        print("moved", call())
    except OSError:
        pass
print(first, end="")
"""
# Grows, says what is left, shrinks, says so again.
GROWS = """
import hashlib
def left():
    return {k: int(v.split()[0]) >> 10 for k, v in (line.split(":") for line in open("/proc/meminfo"))}
before = left()
m = [hashlib.shake_128(str(i).encode()).digest(1 << 17) * 8 for i in range(300)]
full = left()
total = sum(x[0] + x[-1] for x in m)
del m
print(before["MemFree"], full["MemFree"], left()["MemFree"], full["MemTotal"], full["MemAvailable"], total)
"""
# Grows, forks, says what is left before and after.
FORKS = GROWS.split("full = ")[0] + """
import os, signal
full = left()
read, write = os.pipe()
children = []
for _ in range(3):
    child = os.fork()
    if child == 0:
        os.write(write, b"x")
        signal.pause()
    children.append(child)
    os.read(read, 1)
print(full["MemFree"], left()["MemFree"], full["MemTotal"])
for child in children:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
"""
JAVA = ["java", "-XX:+UseSerialGC", "-XX:MaxRAMPercentage=75", "-cp"]
NODE = "console.log(JSON.stringify([require('os').totalmem(), require('os').freemem(), require('v8').getHeapStatistics().heap_size_limit]))"


def run(command, **options):
    options = {"capture_output": True, "text": True, "timeout": LIMIT_S, "check": False, **options}
    return subprocess.run(command, **options)


def output(command, **options):
    ran = run(command, **options)
    need(ran.returncode == 0, f"{' '.join(command[:8])}: status {ran.returncode}: {ran.stdout[-300:]}{ran.stderr[-300:]}")
    return ran.stdout


def machine_kib():
    with open("/proc/meminfo", encoding="ascii") as file:
        return int(file.readline().split()[1])


class Groups:
    """Memory control groups of these tests: `above` with a limit, `own` in it with a smaller one, and `other` beside `own`."""

    LIMITS = {"": 500, "/own": 400, "/other": 100}

    def __init__(self):
        if os.geteuid() != 0:
            raise Skip("only root can make control groups")
        self.is_second = os.path.exists("/sys/fs/cgroup/cgroup.controllers")
        base = "/sys/fs/cgroup" if self.is_second else "/sys/fs/cgroup/memory"
        self.above = f"{base}/ebb-showram-{os.getpid()}"
        self.limit = "memory.max" if self.is_second else "memory.limit_in_bytes"
        self.usage = "memory.current" if self.is_second else "memory.usage_in_bytes"

    def __enter__(self):
        try:
            for below, limit in self.LIMITS.items():
                os.mkdir(self.above + below)
                if self.is_second and not below:
                    self.write(f"{self.above}/cgroup.subtree_control", "+memory")
                self.write(f"{self.above}{below}/{self.limit}", str(limit * MIB))
        except OSError as error:
            self.__exit__()
            raise Skip(f"no memory control groups: {error}") from error
        return self

    def __exit__(self, *_):
        for below in ("/own", "/other", ""):
            for _ in range(50):
                with contextlib.suppress(FileNotFoundError):
                    try:
                        os.rmdir(self.above + below)
                    except OSError:
                        time.sleep(0.02)
                        continue
                break

    @staticmethod
    def write(path, text):
        with open(path, "w", encoding="ascii") as file:
            file.write(text)

    def enter(self):
        self.write(f"{self.above}/own/cgroup.procs", str(os.getpid()))


class Cases:
    """The cases, each a method whose docstring says what holds."""

    def __init__(self, ebb, scratch):
        self.ebb, self.scratch = ebb, scratch
        os.chmod(scratch, 0o777)
        self.facts = self.built("facts")

    def built(self, name, *flags):
        out = os.path.join(self.scratch, name)
        built = run(["gcc", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", *flags, "-o", out, os.path.join(HERE, "facts.c")])
        if flags and built.returncode:
            raise Skip("no static C library")
        need(built.returncode == 0, built.stderr)
        return out

    def shown(self, *command, before=(), **options):
        return output([*before, self.ebb, *RUN, *command], **options)

    def same_facts(self, before=()):
        """All ways to learn the size tell the shown one, and every other fact is the kernel's."""
        bare = output([*before, self.facts, str(machine_kib())])
        shown = self.shown(self.facts, str(SHOWN << 10), before=before)
        need("right" in bare and len(bare.splitlines()) > 90, bare)
        self.need_same(bare, shown)

    @staticmethod
    def need_same(bare, shown):
        differ = [f"{a} / {b}" for a, b in zip(bare.splitlines(), shown.splitlines()) if a != b]
        need(not differ and len(bare.splitlines()) == len(shown.splitlines()), f"bare / shown: {differ[:3]}")

    def same_facts_trapped(self):
        """Likewise where no call of libc's is answered without a trap."""
        bare = output([self.facts, str(machine_kib())])
        shown = self.shown(self.facts, str(SHOWN << 10), env={**os.environ, "EBB_FORCE": "no-interpose"})
        self.need_same(bare, shown)

    def off(self):
        """Without the option, and with `off` over another place's, programs see the truth."""
        for options, env in (([], {}), (["--show-ram", "off"], {"EBB_OPTIONS": "--show-ram 300%"})):
            said = output([self.ebb, "run", "-q", "--ram", "200M", *options, "--", "cat", "/proc/meminfo"], env={**os.environ, **env})
            need(self.one_total(said) == machine_kib(), said[:40])

    def static(self):
        """A statically linked program is not managed, and sees the truth."""
        static = self.built("static", "-static")
        need("total" not in output([static, str(machine_kib())]), "it does not work without Ebb")
        said = self.shown("sh", "-c", f"{static} {machine_kib()}")
        need("sysinfo: right" in said and "total" not in said, said)

    def filtered(self):
        """A program whose filter kills for the calls by which Ebb knows the files lives on, and sees the truth."""
        said = self.shown(self.facts, str(machine_kib()), "-")
        need(said == "filter: 0\nunder a filter: right\n", said)

    def tools(self):
        """free, sysconf of Python, and shells that read a byte at a time tell the size."""
        rows = [line.split() for line in self.shown("free", "-m").splitlines()]
        need(rows[1][1] == str(SHOWN) and rows[2][1:] == ["0", "0", "0"], str(rows))
        need(all(int(cell) <= SHOWN for cell in rows[1][1:]), str(rows))
        need(int(self.shown(PYTHON, "-c", FREE)) == SHOWN * MIB, "sysconf")
        script = "read -r line < /proc/meminfo; echo $line; cat < /proc/meminfo; dd if=/proc/meminfo bs=3 status=none; cp /proc/meminfo \"$0\"; cat \"$0\""
        said = self.shown("sh", "-c", script, os.path.join(self.scratch, "copy"))
        need(re.findall(r"MemTotal: *(\d+)", said) == [str(SHOWN << 10)] * 4, said[:200])

    def copies(self):
        """What moves a file within the kernel is refused, so that programs read it."""
        said = self.shown(PYTHON, "-c", COPIES, os.path.join(self.scratch, "moved"))
        need(said.split() == ["MemTotal:", str(SHOWN << 10), "kB"], said)

    def bound(self):
        """A file that is mounted in another place is known by what it is, not by its path."""
        mounts = ["unshare", "--mount", "--"]
        if os.geteuid() != 0 or run([*mounts, "true"]).returncode != 0:
            raise Skip("no mounts for this user")
        with open(os.path.join(self.scratch, "under"), "w", encoding="ascii"):
            pass
        script = f"mount --bind /proc/meminfo {self.scratch}/under && exec {self.ebb} {' '.join(RUN)} cat {self.scratch}/under"
        need(self.one_total(output([*mounts, "sh", "-c", script])) == SHOWN << 10, "by a bind mount")
        os.makedirs(f"{self.scratch}/proc", exist_ok=True)
        script = f"mount -t proc proc {self.scratch}/proc && exec {self.ebb} {' '.join(RUN)} cat {self.scratch}/proc/meminfo"
        need(self.one_total(output([*mounts, "sh", "-c", script])) == SHOWN << 10, "by another procfs")
        # As where a container engine tells the container's own size.
        told = f"sed 's/^MemTotal: .*/MemTotal:        1024 kB/' /proc/meminfo > {self.scratch}/own && mount --bind {self.scratch}/own /proc/meminfo"
        script = f"{told} && exec {self.ebb} {' '.join(RUN)} sh -c 'read -r line < /proc/meminfo; echo $line; cat {self.scratch}/under'"
        need(output([*mounts, "sh", "-c", script]) == f"MemTotal: {SHOWN << 10} kB\n", "by a file in its place")
        # Another file under the name has what it has.
        script = f"echo 'MemTotal:  7 kB' > {self.scratch}/meminfo && exec {self.ebb} {' '.join(RUN)} cat {self.scratch}/meminfo"
        need(self.one_total(output(["sh", "-c", script])) == 7, "a file of that name")

    @staticmethod
    def one_total(text):
        found = re.findall(r"MemTotal: *(\d+)", text)
        need(len(found) == 1, text[:200])
        return int(found[0])

    def falls_and_rises(self):
        """What is left falls by what the tree wants, in RAM or not, and rises again."""
        before, full, after, total, available, checksum = map(int, self.shown(PYTHON, "-c", GROWS).split())
        need(total == SHOWN and before <= SHOWN and full == available, f"{before} {full} {after} {total} {available}")
        need(280 <= before - full <= 330 and after - full >= 280, f"{before} MiB left, then {full}, then {after}")
        need(checksum > 0, "no content")

    def forks(self):
        """What children of a fork share with their parent counts once, in RAM or not."""
        before, forked, total = map(int, self.shown(PYTHON, "-c", FORKS).split())
        need(total == SHOWN and before <= 350 and before - forked <= 60, f"{before} MiB left, then {forked}")

    def groups(self):
        """Limits below the shown size are told as that size in the program's own group and those above, and nowhere else."""
        with Groups() as groups:
            files = [f"{groups.above}/own/{groups.limit}", f"{groups.above}/{groups.limit}", f"{groups.above}/other/{groups.limit}"]
            around = f"{groups.above}/other/../own//./{groups.limit}"
            told = self.shown("cat", *files, around, preexec_fn=groups.enter).split()
            need([int(limit) // MIB for limit in told] == [SHOWN, SHOWN, 100, SHOWN], str(told))
            stat = dict(line.split() for line in self.shown("cat", f"{groups.above}/own/memory.stat", preexec_fn=groups.enter).splitlines())
            if not groups.is_second:
                need(int(stat["hierarchical_memory_limit"]) == SHOWN * MIB, str(stat))
            # Where the groups are read by the path that the program finds for itself.
            names = "{ own=$(sed -n 's/^[0-9]*:memory://p; s/^0:://p' /proc/self/cgroup | grep ebb-showram | head -1); cat \"$0$own/$1\"; }"
            base = groups.above.rsplit("/", 1)[0]
            told = self.shown("sh", "-c", names, base, groups.limit, preexec_fn=groups.enter)
            need(int(told) == SHOWN * MIB, told)
            small = [self.ebb, "run", "-q", "--ram", f"{RAM}M", "--show-ram", "50%", "--", "cat", files[0]]
            need(int(output(small, preexec_fn=groups.enter)) == 400 * MIB, "a limit above the shown size is another")

    def group_usage(self):
        """What a group uses includes what is swapped out, and is no more than the shown size."""
        with Groups() as groups:
            usage = f"{groups.above}/own/{groups.usage}"
            code = GROWS.split("total = ")[0] + f"print(open({usage!r}).read(), open({usage.replace('own/', '')!r}).read())"
            own, above = map(int, self.shown(PYTHON, "-c", code, preexec_fn=groups.enter).split())
            need(300 <= own // MIB <= SHOWN and own // MIB <= above // MIB + 20 and above // MIB <= SHOWN, f"{own // MIB} {above // MIB}")

    def hold(self):
        """Compiles the program that sizes its heap by itself. Returns the command, which lacks how much to hold."""
        if not shutil.which("javac"):
            raise Skip("no javac")
        output(["javac", "-d", self.scratch, os.path.join(HERE, "Hold.java")])
        return [*JAVA, self.scratch, "Hold"]

    def java(self):
        """Java sizes its heap by the shown RAM."""
        heap = int(self.shown(*self.hold(), "1000").split()[0]) / MIB
        need(0.70 * SHOWN <= heap <= 0.76 * SHOWN, f"{heap} MiB")

    def java_in_a_group(self):
        """Where the limit is too small for Java's heap, the program runs with a larger size shown, in the same limit."""
        hold = [*self.hold(), "900000"]
        with Groups() as groups:
            groups.write(f"{groups.above}/own/{groups.limit}", str(160 * MIB))
            bare = run(hold, preexec_fn=groups.enter)
            need(bare.returncode != 0, "it fits: hold more")
            shown = [self.ebb, "run", "-q", "--ram", "100M", "--show-ram", "400M", "--", *hold]
            held = output(shown, preexec_fn=groups.enter).splitlines()
        need(held[1] == output(hold).splitlines()[1], "the output is another")

    def node(self):
        """node tells the shown RAM, and sizes its heap by it."""
        if not shutil.which("node"):
            raise Skip("no node")
        total, left, heap = json.loads(self.shown("node", "-e", NODE))
        need(total == SHOWN * MIB and 0 < left <= total and heap < SHOWN * MIB, f"{total} {left} {heap}")

    def said(self):
        """The summary, --stats and `ebb ps -v` say that another size is shown."""
        stats = os.path.join(self.scratch, "stats.json")
        script = f"{self.ebb} ps -v --bytes --noheadings showram-test; {self.ebb} ps --json showram-test"
        command = [self.ebb, "run", "--ram", "200M", "--show-ram", "150%", "--name", "showram-test", "--stats", stats, "--", "sh", "-c", script]
        ran = run(command)
        need("; shown 300.0 MiB of RAM" in ran.stderr, ran.stderr)
        need(re.search(rf"^showram-test +off +0 +0 +{300 * MIB}$", ran.stdout, re.M), ran.stdout)
        need(json.loads(ran.stdout[ran.stdout.index("[\n"):])[0]["show_ram_bytes"] == 300 * MIB, ran.stdout)
        with open(stats, encoding="utf-8") as file:
            need(json.load(file)["show_ram_bytes"] == 300 * MIB, "--stats")
        need("of RAM" not in run([self.ebb, "run", "--ram", "200M", "--", "true"]).stderr, "it is said where it is off")

    def nested(self):
        """An inner `ebb run` shows what the outer one does, or what it is told."""
        for options, expected in (([], SHOWN << 10), (["--show-ram", "1G"], 1 << 20), (["--show-ram", "off"], machine_kib())):
            said = self.shown(self.ebb, "run", "-q", "--ram", "100M", *options, "--", "cat", "/proc/meminfo")
            need(self.one_total(said) == expected, f"{options}: {said[:40]}")

    def auto(self):
        """`auto` is the budget and the swap, within two and three budgets."""
        for swap, expected in (("none", 200), ("file,size=1M", 200), ("file,size=150M", 250), ("file,size=900M", 300)):
            said = output([self.ebb, "run", "-q", "--ram", "100M", "--show-ram", "auto", "--swap", swap, "--", "cat", "/proc/meminfo"])
            need(self.one_total(said) == expected << 10, f"{swap}: {said[:40]}")

    def refused(self):
        """What makes no sense is refused in one line that says what to write."""
        for value in ("0", "0%", "", "much", "1K", "-1G", "3GB", "2000000T", "1152921504606846977", "99999999999999%"):
            ran = run([self.ebb, "run", "--ram", "200M", "--show-ram", value, "--", "true"])
            need(ran.returncode == 125 and ran.stderr.count("\n") == 1 and "300%" in ran.stderr, f"{value}: {ran.stderr}")
        ran = run([self.ebb, "run", "--ram", "64M", "--show-ram", "1T", "--", "true"])
        need(ran.returncode == 0 and "more than 50 times the budget" in ran.stderr, ran.stderr)

    def all(self):
        """Name and function of each case."""
        cases = {"facts": self.same_facts, "facts, all trapped": self.same_facts_trapped}
        if os.geteuid() == 0:
            cases["facts, user"] = lambda: self.same_facts(NOBODY)
        names = ("off", "static", "filtered", "tools", "copies", "bound", "falls_and_rises", "forks", "groups", "group_usage",
                 "java", "java_in_a_group", "node", "said", "nested", "auto", "refused")
        return {**cases, **{name.replace("_", " "): getattr(self, name) for name in names}}


def main():
    only = only_of_arguments(__doc__)
    with tempfile.TemporaryDirectory(prefix="ebb-showram-") as scratch:
        return run_cases("showram", Cases(find_ebb(), scratch).all(), only)


if __name__ == "__main__":
    sys.exit(main())
