"""The suites of others: how they are built, which tests they have, and how their results are read."""
import collections
import glob
import os
import re
import shlex
import shutil
import subprocess

# `where` is what tells results of one test apart, `text` what it says. `command` begins with the path of the program.
Test = collections.namedtuple("Test", "name command environment")
Result = collections.namedtuple("Result", "status lines output seconds")

# What a name has to do with, for `--family`. The first that fits counts.
FAMILIES = [
    ("memory", r"m(map|remap|unmap|advise|lock|sync|protect|incore|em|test|as)|brk|sbrk|process_(vm|m)|userfaultfd|memfd|move_pages|"
               r"(get|set)_mempolicy|mbind|migrate_pages|vma|page|data_space|stack_space|malloc|remap_file|thp|pkey|shm"),
    ("signals", r"(rt_|tg?)?sig|kill|tkill|tgkill|pause|alarm|setitimer|getitimer|signalfd|abort|raise|timer_"),
    ("processes", r"fork|vfork|clone|exec|wait|exit|unshare|setns|pidfd|close_range|getpid|getppid|gettid|set_tid|setpgid|setsid|"
                  r"nice|prctl|arch_prctl|setpriority"),
    ("futex", r"futex|set_robust|get_robust|membarrier|rseq"),
    ("ptrace", r"ptrace|process_|kcmp|peeksiginfo|get_syscall_info|vmaccess"),
    ("io", r"p?readv?|p?writev?|preadv2|pwritev2|splice|tee|vmsplice|sendfile|copy_file|recv|send|io_|aio|poll|ppoll|epoll|p?select|"
           r"pipe|socket|getsockopt|setsockopt|accept|ioctl|fcntl|eventfd|inotify|getdents|readahead|msg|sem|mq_"),
    ("ids", r"sete?[ug]id|setres|setre|getres|get[ug]id|gete|setgroups|getgroups|setfs|cap|keyctl|add_key|request_key|chroot|"
            r"seccomp|landlock"),
    ("x86", r"x86/"),
]


def family_of(name):
    suite, short = name.split("/", 1)
    if suite == "x86":
        return "x86"
    if suite != "ltp":
        return {"vm": "memory", "mm": "memory", "pidfd": "processes", "ptrace": "ptrace", "seccomp": "ids"}[suite]
    return next((family for family, pattern in FAMILIES if re.match(pattern, short)), "other")


# Not run, and why: by name of the program.
LEFT_OUT = [
    (r"(clock_settime|settimeofday|stime|adjtimex|clock_adjtime|leapsec)\w*", "sets the machine's clock"),
    (r"(swapon|swapoff|swapping)\w*", "turns the kernel's swap on"),
    (r"(reboot|kexec\w*|init_module|finit_module|delete_module|acct|syslog|quotactl|ioperm|iopl)\d*", "changes the kernel"),
    (r"(oom|min_free_kbytes|overcommit_memory|max_map_count|ksm|thp|cpuset)\w*", "sets limits of the whole machine, or uses up its memory"),
    (r"(hugetlb|hugemmap|hugeshmat|hugeshmget|hugeshmctl|hugeshmdt|hugefork|hugefallocate)\w*", "takes the machine's huge pages"),
    (r"(fanotify|mount|umount|move_mount|open_tree|fsopen|fsconfig|fsmount|fspick|mount_setattr|pivot_root|statmount|listmount)\w*",
     "is about file systems"),
    (r"mtest01|mmapstress\d*|shm_test|kallsyms|cachestat\d*|sched_\w+|get_mempolicy\w*|perf_event_open\w*|bpf_\w+",
     "takes long, and has nothing to do with memory or system calls of this process"),
    # The selftests.
    (r"(hugepage|map_hugetlb|hugetlb|khugepaged|split_huge_page|transhuge|thuge|write_to_huge|charge_)[\w-]*|compaction_test|gup_test|"
     r"hmm-tests|ksm_tests|migration", "needs huge pages, modules, or settings of the whole machine"),
    (r"virtual_address_range|va_128TBswitch", "maps all of the address space"),
    (r"on-fault-limit", "waits for a limit that its runner sets"),
    (r"seccomp_benchmark", "measures"),
]


def left_out(program):
    name = os.path.basename(program)
    return next((why for pattern, why in LEFT_OUT if re.fullmatch(pattern, name)), None)


def make(*words, cwd):
    subprocess.run(["make", "-k", "-s", f"-j{os.cpu_count()}", *words], cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                   check=False)


class Ltp:
    """A checkout of the Linux Test Project: its families for system calls and memory."""

    FOLDERS = ("testcases/kernel/syscalls", "testcases/kernel/mem")

    def __init__(self, checkout, into):
        self.checkout, self.into = os.path.abspath(checkout), os.path.abspath(into)

    def build(self):
        """Builds what builds."""
        if not os.path.exists(os.path.join(self.checkout, "include/mk/config.mk")):
            make("autotools", cwd=self.checkout)
            subprocess.run(["./configure", f"--prefix={self.into}"], cwd=self.checkout, stdout=subprocess.DEVNULL, check=True)
        for folder in ("lib", "libs", *self.FOLDERS):
            make("-C", folder, cwd=self.checkout)
        for folder in self.FOLDERS:
            make("-C", folder, "install", f"prefix={self.into}", cwd=self.checkout)

    NEEDS = [("makes file systems", r"\.(needs_device|mount_device|all_filesystems|format_device)\s*=|tst_acquire_device"),
             ("makes control groups, whose names are those of other runs", r"\.needs_cgroup_ctrls\s*=")]

    def needs(self):
        """{name: why} of tests that are left out for what their source says that they need."""
        found = {}
        for folder in self.FOLDERS:
            for path in glob.glob(f"{self.checkout}/{folder}/**/*.c", recursive=True):
                with open(path, encoding="utf-8", errors="replace") as file:
                    text = file.read()
                why = next((why for why, pattern in self.NEEDS if re.search(pattern, text)), None)
                if why:
                    found[os.path.basename(path).removesuffix(".c")] = why
        return found

    def tests(self):
        bin_dir = os.path.join(self.into, "testcases/bin")
        environment = {"LTPROOT": self.into, "PATH": f"{bin_dir}:{os.environ['PATH']}", "LTP_TIMEOUT_MUL": "6",
                       "LTP_COLORIZE_OUTPUT": "0"}
        found, skipped, needs = {}, collections.Counter(), self.needs()
        for list_name in ("mm", "syscalls"):
            with open(os.path.join(self.checkout, "runtest", list_name), encoding="utf-8") as file:
                lines = [line.split(None, 1) for line in file if line.strip() and not line.startswith("#")]
            for name, text in (line for line in lines if len(line) == 2):
                words = shlex.split(text)
                program = os.path.join(bin_dir, words[0])
                if "=" in words[0] or not os.access(program, os.X_OK):
                    skipped["not built"] += 1
                elif why := left_out(program):
                    skipped[why] += 1
                elif words[0] in needs:
                    skipped[needs[words[0]]] += 1
                else:
                    found[f"ltp/{name}"] = Test(f"ltp/{name}", [program, *words[1:]], environment)
        return list(found.values()), skipped

    NEW = re.compile(r"^(?P<where>[\w.-]+\.[ch]:\d+): (?P<status>TPASS|TFAIL|TBROK|TCONF|TWARN)\b", re.M)
    OLD = re.compile(r"^(?P<where>[\w.-]+ +\d+) +(?P<status>TPASS|TFAIL|TBROK|TCONF|TWARN) +:", re.M)

    @classmethod
    def read(cls, output):
        """Places and what came out there, whatever it says of numbers and times, and however often."""
        found = [match.group("where", "status") for pattern in (cls.NEW, cls.OLD) for match in pattern.finditer(output)]
        return sorted({f"{' '.join(where.split())} {status}" for where, status in found})


class Selftests:
    """The kernel's own tests, of Debian's sources."""

    FOLDERS = ("vm", "mm", "x86", "pidfd", "ptrace", "seccomp")
    PARTS = ("tools/testing/selftests", "tools/include", "scripts", "include", "arch/x86/include", "mm/gup_test.h", "lib/test_hmm_uapi.h")

    def __init__(self, into):
        self.into = os.path.abspath(into)

    def root(self):
        return next(iter(glob.glob(f"{self.into}/linux-source-*/tools/testing/selftests")), None)

    def build(self):
        if not self.root():
            archives = sorted(glob.glob("/usr/src/linux-source-*.tar.xz"))
            if not archives:
                raise FileNotFoundError("there is no /usr/src/linux-source-*.tar.xz: install tests/foreign/packages-long.txt")
            os.makedirs(self.into, exist_ok=True)
            top = os.path.basename(archives[-1]).removesuffix(".tar.xz")
            subprocess.run(["tar", "xf", archives[-1], "-C", self.into, *(f"{top}/{part}" for part in self.PARTS)], check=True)
        for folder in self.FOLDERS:
            path = os.path.join(self.root(), folder)
            if os.path.isdir(path):
                make(cwd=path)

    def tests(self):
        found, skipped = [], collections.Counter()
        for folder in self.FOLDERS:
            for program in sorted(glob.glob(f"{self.root()}/{folder}/*")):
                if not os.access(program, os.X_OK) or os.path.isdir(program) or program.endswith((".sh", ".o", ".py")):
                    continue
                if why := left_out(program):
                    skipped[why] += 1
                    continue
                name = f"{folder}/{os.path.basename(program)}"
                if name.endswith("/userfaultfd"):
                    found += [Test(f"{name}-{kind}", [program, kind, "16", "8"], {}) for kind in ("anon", "shmem")]
                else:
                    found.append(Test(name, [program], {}))
        return found, skipped

    TAP = re.compile(r"^\s*(?P<status>ok|not ok) \d+ ?(?P<where>.*)$", re.M)
    MARK = re.compile(r"^\[(?P<status>OK|FAIL|SKIP|PASS|ERROR)\]\s*(?P<where>.*)$", re.M)

    @classmethod
    def read(cls, output):
        found = [match.group("where", "status") for pattern in (cls.TAP, cls.MARK) for match in pattern.finditer(output)]
        return sorted({f"{re.sub(r'(0x)*[0-9a-f]*[0-9][0-9a-f]*', 'N', where).strip()} {status}" for where, status in found})


def copy_beside(into, source):
    """Builds the program that runs a test beside a hog."""
    os.makedirs(into, exist_ok=True)
    binary = os.path.join(into, "beside")
    subprocess.run(["gcc", "-O2", "-Wall", "-Wextra", "-o", binary, source], check=True)
    os.chmod(binary, 0o755)
    return binary


def needed():
    """Tools without which nothing can be run."""
    return [tool for tool in ("gcc", "make", "unshare") if not shutil.which(tool)]
