#!/usr/bin/python3
"""`ebb.h` and the crate `ebb-hints`: they compile wherever C99, C++11 and Rust do, do nothing without Ebb, in static programs and in
programs that filter their system calls, and save what the examples promise. One line a case; the closing line counts. What each
function does, tests/transparency/hints.c asks.

EBB names the command (default: target/release/ebb of this repository, then `ebb` on the path).
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.dirname(HERE))

from cases import Failure, Skip, need, run_cases  # noqa: E402
from command import find_ebb  # noqa: E402

TARGET = os.path.join(ROOT, os.environ.get("CARGO_TARGET_DIR", "target"))
STRICT = ["-O1", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-Wconversion", "-Wcast-qual", f"-I{ROOT}/include"]
# Half of it in another source file, so that nothing is defined twice.
ASKS = r"""
#include "ebb.h"
#include <stdio.h>
int other_asks(void);
int main(void)
{
    struct ebb_stats stats;
    int told = ebb_stats(&stats), budget = ebb_set_ram((uint64_t)64 << 20);
    if (ebb_active() != other_asks())
        return 1;
    printf("active %d, stats %d, set %d, reclaim %d, advise %d, size %u\n", ebb_active(), told, budget, (int)ebb_reclaim(4096),
           ebb_advise((void *)&stats, 1, EBB_COLD), (unsigned)stats.size);
    return 0;
}
"""
OTHER = """
#include "ebb.h"
int other_asks(void);
int other_asks(void) { return ebb_active(); }
"""
# A filter that ends the program for a call that Linux does not have.
FILTERED = r"""
#include "ebb.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <sys/prctl.h>
int main(void)
{
    struct sock_filter code[] = { BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0), BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 600, 0, 1),
                                  BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW) };
    struct sock_fprog filter = { 4, code };
    struct ebb_stats stats;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0)
        return 77;
    printf("stats %d, reclaim %d\n", ebb_stats(&stats), (int)ebb_reclaim(0));
    return 0;
}
"""
WITHOUT = "active 0, stats -1, set -1, reclaim 0, advise 0, size 0\n"
# The address of a local variable is no whole page.
WITH = r"active 1, stats 0, set 0, reclaim \d+, advise -1, size 160\n"
LIMIT_S = 120


class Cases:
    """The cases, each a method whose docstring says what holds."""

    def __init__(self, ebb, scratch):
        self.ebb, self.scratch = ebb, scratch
        for name, text in (("asks.c", ASKS), ("other.c", OTHER), ("filtered.c", FILTERED)):
            with open(os.path.join(scratch, name), "w", encoding="utf-8") as file:
                file.write(text)

    def run(self, *command, status=0):
        """What a command prints."""
        env = {name: value for name, value in os.environ.items() if not name.startswith("EBB_")}
        ran = subprocess.run(command, cwd=self.scratch, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        need(ran.returncode == status, f"{' '.join(command)[:200]}: status {ran.returncode}: {ran.stdout[-1000:]}{ran.stderr[-1000:]}")
        return ran.stdout

    def under(self, program, *options):
        return self.run(self.ebb, "run", "-q", "--ram", "24M", *options, "--", program)

    def compiled(self, compiler, *options, sources=("asks.c", "other.c")):
        if not shutil.which(compiler):
            raise Skip(f"there is no {compiler}")
        program = os.path.join(self.scratch, "program")
        self.run(compiler, *STRICT, *options, "-o", program, *sources)
        return program

    def language(self, compiler, *options):
        """It compiles without a warning, and finds Ebb where there is one."""
        program = self.compiled(compiler, *options)
        need(self.run(program) == WITHOUT, self.run(program))
        told = self.under(program)
        need(re.fullmatch(WITH, told), told)

    def disabled(self):
        """With EBB_DISABLE nobody is looked for."""
        program = self.compiled("gcc", "-std=c99", "-DEBB_DISABLE")
        need((self.run(program), self.under(program)) == (WITHOUT, WITHOUT), "somebody answered")
        need("dlsym" not in self.run("nm", "-D", program), "dlsym is asked for")

    def static(self):
        """A static program finds nothing, alone, under Ebb, and as a child of a managed program."""
        try:
            program = self.compiled("gcc", "-std=c99", "-static")
        except Failure as why:
            raise Skip("there is no static C library") from why
        need(self.run(program) == WITHOUT, "somebody answered")
        need(self.under(program, "--allow-unmanaged") == WITHOUT, "somebody answered")
        need(self.run(self.ebb, "run", "-q", "--ram", "24M", "--", "sh", "-c", f"{program}; true") == WITHOUT, "somebody answered")

    def filtered(self):
        """Nothing that is asked is a call by which a filter of the program's could end it."""
        program = self.compiled("gcc", "-D_GNU_SOURCE", sources=("filtered.c",))
        need(self.run(program) == "stats -1, reclaim 0\n", "a filter and no Ebb")
        for force in ("", "no-dormant", "no-process-madvise"):
            told = self.run("env", f"EBB_FORCE={force}", self.ebb, "run", "-q", "--ram", "24M", "--", program)
            need(told == "stats 0, reclaim 0\n", told)

    def saves(self, program):
        """Telling Ebb saves at least a quarter of what is swapped out and written, and half of the faults."""
        alone = self.run(program).splitlines()
        need(alone[1:] == ["Ebb is not here, and nothing was swapped"], str(alone))
        told = self.under(program).splitlines()
        need(told[0] == alone[0], "the documents are others under Ebb")
        figures = [[int(number) for number in re.findall(r" (\d+)", line)[:2]] for line in told[2:]]
        need(len(figures) == 3 and all(before > 1000 for before, _ in figures), str(told))
        for (before, after), part in zip(figures, (0.75, 0.75, 0.5)):
            need(after <= part * before, f"{before} and {after}")
        return ", ".join(f"{before} -> {after}" for before, after in figures)

    def lru_c(self):
        return self.saves(self.compiled("gcc", "-std=c99", "-O2", "-Wno-conversion", sources=(os.path.join(ROOT, "examples/lru.c"),)))

    def lru_rust(self):
        if not shutil.which("cargo"):
            raise Skip("there is no cargo")
        # `make unit` has built it.
        cargo = ["cargo", "build", "--quiet", "--profile", "checks", "-p", "ebb-hints", "--example", "lru"]
        subprocess.run(cargo, cwd=ROOT, check=True, timeout=LIMIT_S)
        return self.saves(os.path.join(TARGET, "checks/examples/lru"))

    def all(self):
        """Name and function of each case."""
        languages = {"gcc": ("c99", "c17"), "g++": ("c++11", "c++17"), "clang": ("c99",), "clang++": ("c++17",)}
        cases = {f"{compiler} {standard}": (lambda c=compiler, s=standard: self.language(
            c, f"-std={s}", *(["-xc++"] if "++" in c else []))) for compiler, all_ in languages.items() for standard in all_}
        return {**cases, "EBB_DISABLE": self.disabled, "static": self.static, "filter": self.filtered, "lru.c": self.lru_c,
                "lru.rs": self.lru_rust}


def main():
    ebb = find_ebb()
    if not ebb:
        sys.exit("run.py: there is no ebb: build it, or set EBB")
    with tempfile.TemporaryDirectory(prefix="ebb-api-") as scratch:
        return run_cases("api", Cases(ebb, scratch).all())


if __name__ == "__main__":
    sys.exit(main())
