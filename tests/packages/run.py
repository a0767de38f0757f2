#!/usr/bin/env python3
"""The packages: each is made twice, installed into a clean place, and run there by an ordinary user. One line a case; the closing
line counts.

CARGO_TARGET_DIR names where everything is built (default: target of this repository). The packages stay in its `packages`.
"""
import ast
import filecmp
import glob
import gzip
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.dirname(HERE))

from cases import Failure, Skip, need, only_of_arguments, run_cases  # noqa: E402

TARGET = os.path.join(ROOT, os.environ.get("CARGO_TARGET_DIR", "target"))
LIMIT_S = 300
# Debian's, which every user may run, and for which there are python3-venv and python3-yaml.
PYTHON = "/usr/bin/python3"
NOBODY = [shutil.which("setpriv") or "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"] if os.geteuid() == 0 else []
# What is installed, below the prefix.
FILES = ("bin/ebb", "lib/ebb/libebb_agent.so", "include/ebb.h")
COMMANDS = ("run", "ps", "top", "set", "reclaim", "advise", "metrics", "doctor", "locks", "swapon", "swapoff")
# For readers and shells, below the prefix; Debian packs manual pages, and has a directory of its own for zsh.
FOR_SHELLS = {f"share/man/man1/{name}.1" for name in ("ebb", *(f"ebb-{command}" for command in COMMANDS))} | {
    "share/bash-completion/completions/ebb", "share/zsh/site-functions/_ebb", "share/fish/vendor_completions.d/ebb.fish"}
# Calls what completes `ebb`, as bash does when somebody presses TAB after the last of the words.
COMPLETE = """
source "$1"; shift
function=$(complete -p ebb | sed 's/.* -F \\([^ ]*\\) .*/\\1/')
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
"$function" ebb "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""
# RHEL 9 has it; Debian 12, on which packages are built, has 2.36.
GLIBC, GLIBC_OF_BUILDS = (2, 34), (2, 36)

STUBS_OF_RPM = """
Name: glibc
Version: 2.{minor}
Release: 1
Summary: Offers what another glibc does
License: MIT
Provides: {glibc}

%description
Without files.

%package -n libgcc
Summary: Offers what another libgcc does
Provides: {libgcc}

%description -n libgcc
Without files.

%files
%files -n libgcc
"""

# 60 MiB of content that differs from page to page, read forth and back.
PROGRAM = """
import hashlib
pages = [hashlib.sha512(b"%d" % n).digest() * 8 + bytes(3584) for n in range(15000)]
total = hashlib.sha256()
for page in pages + pages[::-1]:
    total.update(page)
print(total.hexdigest())
"""


def tools(*names):
    for name in names:
        if not shutil.which(name):
            raise Skip(f"there is no {name}")


def run(*command, status=0, **options):
    """What a command prints."""
    ran = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False, **options)
    need(ran.returncode == status, f"{' '.join(command)[:200]}: status {ran.returncode}\n{ran.stdout[-2000:]}{ran.stderr[-2000:]}")
    return ran.stdout


class Cases:
    """The cases, each a method whose docstring says what holds."""

    def __init__(self, scratch):
        os.chmod(scratch, 0o755)
        self.scratch = scratch
        self.built = {}
        self.plain = run(PYTHON, "-c", PROGRAM)

    def package(self, kind):
        """The package of this kind, made by its goal."""
        if kind not in self.built:
            if kind == "rpm":
                tools("rpmbuild")
            if kind == "deb":
                tools("dpkg-deb")
            env = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
            printed = run("make", "-s", "-C", ROOT, kind, env={**env, "CARGO_TARGET_DIR": TARGET})
            name = printed.strip().splitlines()[-1].split(":")[0]
            self.built[kind] = os.path.join(TARGET, "packages", os.path.basename(name))
        return self.built[kind]

    def place(self, name):
        """A directory of the ordinary user."""
        path = os.path.join(self.scratch, name)
        os.makedirs(path)
        if NOBODY:
            os.chown(path, 65534, 65534)
        return path

    def works(self, ebb, env=None):
        """The program runs in half of its memory, and prints what it prints without Ebb."""
        stats = os.path.join(self.place(f"stats-{len(os.listdir(self.scratch))}"), "stats.json")
        printed = run(*NOBODY, ebb, "run", "--ram", "32M", "--stats", stats, "--", PYTHON, "-c", PROGRAM, env=env)
        need(printed == self.plain, "the output is another")
        with open(stats, encoding="utf-8") as file:
            told = json.load(file)
        need(told["program"]["managed"] and told["derived"]["out_pages"] > 1000, f"too little was swapped out: {told['derived']}")

    def the_same_twice(self, kind):
        """Who packs, and when, is not in the package."""
        first = self.package(kind)
        again = os.path.join(self.scratch, "again: 100%")
        env = {**os.environ, "TZ": "Asia/Tokyo", "LC_ALL": "C", "USER": "another"}
        run("bash", "-c", 'umask 077 && exec "$@"', "bash", sys.executable, os.path.join(ROOT, "packaging/build.py"), "--from",
            os.path.join(TARGET, "release"), "--into", again, kind, env=env, cwd=self.scratch)
        second = os.path.join(again, os.path.basename(first))
        need(filecmp.cmp(first, second, shallow=False), f"{os.path.basename(first)} is another the second time")

    def elsewhere(self):
        """Packages are made in a directory with any name; rpmbuild cannot, and that is said."""
        odd = os.path.join(self.scratch, "50 %{name}")
        os.makedirs(odd)
        build = [sys.executable, os.path.join(ROOT, "packaging/build.py"), "--from", os.path.join(TARGET, "release"), "--into", odd]
        run(*build, "tarball", "wheel", env={**os.environ, "TMPDIR": odd})
        ran = subprocess.run([*build, "rpm"], capture_output=True, text=True, env={**os.environ, "TMPDIR": odd}, check=False)
        need(ran.returncode == 1 and ran.stderr.count("\n") == 1 and "set TMPDIR" in ran.stderr, f"{ran.returncode}: {ran.stderr}")

    def needs(self):
        """A version that is named after something else than a number counts as the one that it came with; another is no package."""
        tools("gcc")
        sys.path.insert(0, os.path.join(ROOT, "packaging"))
        import common  # pylint: disable=import-outside-toplevel

        program = os.path.join(self.scratch, "relative")
        run("gcc", "-x", "c", "-", "-o", program, "-Wl,-z,pack-relative-relocs", input="void *p = &p; int main(void) { return !p; }")
        wanted = common.needs(program)["libc.so.6"]["GLIBC"]
        need(tuple(map(int, wanted.split("."))) >= (2, 36), f"needs glibc {wanted}")
        library = os.path.join(self.scratch, "libodd.so")
        run("gcc", "-x", "c", "-", "-shared", "-fPIC", "-o", library, f"-Wl,--version-script={self.written('map', 'ODD_ABI { *; };')}",
            "-Wl,-soname,libodd.so", input="int odd(void) { return 0; }")
        run("gcc", "-x", "c", "-", "-x", "none", "-o", program, library, input="int odd(void); int main(void) { return odd(); }")
        try:
            found = common.needs(program)
        except common.Problem as problem:
            need("ODD_ABI" in str(problem), str(problem))
        else:
            raise Failure(f"an unknown version is left out: {found}")

    def written(self, name, text):
        path = os.path.join(self.scratch, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def links(self):
        """Every link on a packed page leads to a file of the package."""
        roots = {kind: os.path.join(self.scratch, "links", kind) for kind in ("tarball", "deb", "rpm")}
        for root in roots.values():
            os.makedirs(root)
        run("tar", "-xzf", self.package("tarball"), "-C", roots["tarball"])
        run("dpkg-deb", "-x", self.package("deb"), roots["deb"])
        tools("rpm2cpio", "cpio")
        run("bash", "-o", "pipefail", "-c", 'rpm2cpio "$0" | cpio --quiet -idm', self.package("rpm"), cwd=roots["rpm"])
        for kind, root in roots.items():
            pages = [os.path.join(root, name) for name in self.files(root) if name.endswith(".md")]
            need(len(pages) >= 12, f"{kind}: only {pages}")
            for page in pages:
                with open(page, encoding="utf-8") as file:
                    text = file.read()
                for to in re.findall(r"\]\(([^)#\s]+)", text):
                    if "://" not in to:
                        need(os.path.exists(os.path.join(os.path.dirname(page), to)), f"{kind}: {os.path.relpath(page, root)}: no {to}")

    def glibc(self):
        """What is built on Debian 12 needs no newer glibc than RHEL 9 has."""
        built_on = tuple(int(part) for part in os.confstr("CS_GNU_LIBC_VERSION").split()[1].split("."))
        if built_on > GLIBC_OF_BUILDS:
            raise Skip(f"this machine has glibc {built_on[0]}.{built_on[1]}: build packages on Debian 12")
        need(self.newest() <= GLIBC, f"needs glibc {self.newest()}")

    def newest(self):
        """The newest version of glibc that a symbol of the two files is of."""
        symbols = "".join(run("objdump", "-T", os.path.join(TARGET, "release", name)) for name in ("ebb", "libebb_agent.so"))
        return max(tuple(int(part) for part in found.split(".")) for found in re.findall(r"\bGLIBC_([\d.]+)", symbols))

    def tarball(self):
        """Unpacked by an ordinary user, it runs where it is and where it is moved to, with nothing on the PATH."""
        place = self.place("tarball")
        run(*NOBODY, "tar", "-xzf", self.package("tarball"), "-C", place)
        top, = os.listdir(place)
        need(re.fullmatch(r"ebb-\d+\.\d+\.\d+-x86_64-linux", top), top)
        for name in (*FILES, "README.md", "LICENSE-MIT", "LICENSE-APACHE", "THIRD-PARTY.txt", "docs/install.md"):
            need(os.path.isfile(os.path.join(place, top, name)), f"there is no {name}")
        self.works(os.path.join(place, top, "bin/ebb"), env={"PATH": "/nowhere"})
        moved = os.path.join(self.place("moved"), "ebb")
        shutil.move(os.path.join(place, top), moved)
        self.works(os.path.join(moved, "bin/ebb"), env={"PATH": "/nowhere"})
        need(".debug_info" not in run("objdump", "-h", os.path.join(moved, FILES[1])), "debug information is left")

    def deb_fields(self):
        """The fields are right, the dependencies are those of the files, and every file has its sum."""
        package = self.package("deb")
        fields = dict(line.split(": ", 1) for line in run("dpkg-deb", "-f", package).splitlines() if not line.startswith(" "))
        need((fields["Package"], fields["Architecture"], fields["Section"]) == ("ebb", "amd64", "utils"), str(fields))
        glibc = ".".join(str(part) for part in self.newest())
        need(f"libc6 (>= {glibc})" in fields["Depends"] and "libgcc-s1" in fields["Depends"], fields["Depends"])
        root = os.path.join(self.scratch, "deb")
        run("dpkg-deb", "-R", package, root)
        with open(os.path.join(root, "DEBIAN/md5sums"), encoding="utf-8") as file:
            summed = {line.split("  ")[1].strip() for line in file}
        need(summed == self.files(root) - {"DEBIAN/control", "DEBIAN/md5sums"}, f"sums of {summed}")
        run("md5sum", "--check", "--strict", "DEBIAN/md5sums", cwd=root)
        for name in ("share/doc/ebb/copyright", "share/doc/ebb/changelog.gz", "share/doc/ebb/README.md", *FILES):
            need("usr/" + name in summed, f"there is no {name}")
        listed = run("dpkg-deb", "-c", package).splitlines()
        need(all(line.split()[1] == "root/root" for line in listed), "not all belongs to root")

    @staticmethod
    def files(root):
        return {os.path.relpath(os.path.join(where, name), root) for where, _, names in os.walk(root) for name in names}

    def deb_unpacked(self):
        """dpkg-deb -x is enough to run it."""
        root = os.path.join(self.scratch, "deb-x")
        run("dpkg-deb", "-x", self.package("deb"), root)
        self.works(os.path.join(root, "usr/bin/ebb"))

    def deb_installed(self):
        """dpkg installs it into a root where there are only the packages that it depends on, and removes it."""
        if os.geteuid() != 0:
            raise Skip("dpkg --root needs root")
        package = self.package("deb")
        root = os.path.join(self.scratch, "dpkg")
        for name in ("info", "updates"):
            os.makedirs(os.path.join(root, "var/lib/dpkg", name))
        dpkg = ["dpkg", f"--root={root}", "--log=/dev/null"]
        status = os.path.join(root, "var/lib/dpkg/status")
        with open(status, "w", encoding="utf-8"):
            pass
        refused = subprocess.run([*dpkg, "--install", package], capture_output=True, text=True, check=False)
        need(refused.returncode == 1 and "depends on libc6" in refused.stderr, f"installed without glibc: {refused.stderr}")
        run(*dpkg, "--purge", "ebb")
        with open(status, "w", encoding="utf-8") as file:
            # What these need themselves is not of interest.
            for name in ("libc6", "libgcc-s1"):
                stanza = run("dpkg-query", "--status", name).strip()
                file.write(re.sub(r"(?m)^(Pre-)?Depends:.*\n", "", stanza) + "\n\n")
        run(*dpkg, "--install", package)
        need(run("dpkg-query", f"--admindir={root}/var/lib/dpkg", "-W", "-f", "${Status}", "ebb") == "install ok installed", "no")
        need(run(*dpkg, "--verify", "ebb") == "", "dpkg --verify finds something")
        self.works(os.path.join(root, "usr/bin/ebb"))
        run(*dpkg, "--purge", "ebb")
        left = [name for name in self.files(root) if not name.startswith("var/lib/dpkg/")]
        need(not left, f"left behind: {left}")

    def rpm_fields(self):
        """The fields are right, and the dependencies are those of the files."""
        package = self.package("rpm")
        query = run("rpm", "-qp", "--qf", "%{NAME} %{ARCH} %{LICENSE}", package)
        need(query == "ebb x86_64 MIT OR Apache-2.0", query)
        wanted = run("rpm", "-qp", "--requires", package)
        found = max(tuple(int(part) for part in version.split(".")) for version in re.findall(r"GLIBC_([\d.]+)", wanted))
        need(found == self.newest() and "libgcc_s.so.1" in wanted, wanted)
        provided = run("rpm", "-qp", "--provides", package)
        need("libebb_agent" not in provided, "the agent is offered to others")
        owners = run("rpm", "-qp", "--qf", "[%{FILEUSERNAME}:%{FILEGROUPNAME}\n]", package)
        need(set(owners.split()) == {"root:root"}, "not all belongs to root")

    def rpm_unpacked(self):
        """rpm2cpio and cpio are enough to run it."""
        tools("rpm2cpio", "cpio")
        root = os.path.join(self.scratch, "rpm-x")
        os.makedirs(root)
        run("bash", "-o", "pipefail", "-c", 'rpm2cpio "$0" | cpio --quiet -idm', self.package("rpm"), cwd=root)
        self.works(os.path.join(root, "usr/bin/ebb"))

    def rpm_installed(self):
        """rpm installs it where packages offer what those of RHEL 9 do, not where they offer what those of RHEL 8 do; and removes
        it."""
        if os.geteuid() != 0:
            raise Skip("rpm --root needs root")
        package = self.package("rpm")
        root = os.path.join(self.scratch, "rpm")
        os.makedirs(root)
        rpm = ["rpm", "--root", root, "--dbpath", "/var/lib/rpm"]
        run(*rpm, "--install", *self.libraries_of_rpm(28))
        refused = subprocess.run([*rpm, "--install", package], capture_output=True, text=True, check=False)
        need(refused.returncode == 1 and "libc.so.6(GLIBC_2.34)(64bit) is needed by ebb" in refused.stderr, f"installed: {refused.stderr}")
        run(*rpm, "--upgrade", *self.libraries_of_rpm(34))
        run(*rpm, "--install", package)
        need(run(*rpm, "--verify", "ebb") == "", "rpm --verify finds something")
        self.works(os.path.join(root, "usr/bin/ebb"))
        run(*rpm, "--erase", "ebb")
        left = [name for name in self.files(root) if not name.startswith("var/lib/rpm/")]
        need(not left, f"left behind: {left}")

    def libraries_of_rpm(self, minor):
        """Packages without files that offer the versions of symbols that glibc 2.MINOR of Fedora and RHEL does, and its libgcc."""
        place = os.path.join(self.scratch, f"glibc-2.{minor}")
        os.makedirs(place)
        versions = ["2.2.5", "2.2.6", "2.3", "2.3.2", "2.3.3", "2.3.4", *(f"2.{number}" for number in range(4, minor + 1))]
        glibc = ["rtld(GNU_HASH)", "libc.so.6()(64bit)", *(f"libc.so.6(GLIBC_{version})(64bit)" for version in versions)]
        versions = ("3.0", "3.3", "3.3.1", "3.4", "3.4.2", "4.0.0", "4.2.0", "4.3.0", "4.7.0", "4.8.0", "7.0.0")
        libgcc = ["libgcc_s.so.1()(64bit)", *(f"libgcc_s.so.1(GCC_{version})(64bit)" for version in versions)]
        spec = self.written(f"glibc-2.{minor}/spec", STUBS_OF_RPM.format(minor=minor, glibc="\nProvides: ".join(glibc),
                                                                       libgcc="\nProvides: ".join(libgcc)))
        run("rpmbuild", "-bb", "--quiet", "--target", "x86_64-linux", "--define", f"_topdir {place}", "--define", f"_dbpath {place}/db", spec)
        return glob.glob(os.path.join(place, "RPMS/x86_64/*.rpm"))

    def dnf_installed(self):
        """dnf does the same: it says what is missing where glibc is too old."""
        tools("dnf")
        if os.geteuid() != 0:
            raise Skip("dnf --installroot needs root")
        for minor, status in ((27, 1), (35, 0)):
            root = os.path.join(self.scratch, f"dnf-{minor}")
            os.makedirs(root)
            dnf = ["dnf", "-y", "--installroot", root, "--releasever", "9", "--setopt=reposdir=/nowhere", "--setopt=cachedir=/cache"]
            told = subprocess.run([*dnf, "install", *self.libraries_of_rpm(minor), self.package("rpm")], capture_output=True, text=True,
                                  timeout=LIMIT_S, check=False)
            need(told.returncode == status, f"glibc 2.{minor}: status {told.returncode}: {told.stdout}{told.stderr}")
            need(status == 0 or "nothing provides libc.so.6(GLIBC_2.34)(64bit) needed by ebb" in told.stderr, told.stderr)
        self.works(os.path.join(root, "usr/bin/ebb"))

    def venv(self, place, *options):
        """A new environment of the ordinary user, with pip."""
        ran = subprocess.run([*NOBODY, PYTHON, "-m", "venv", *options, place], capture_output=True, text=True, timeout=LIMIT_S, check=False)
        if "ensurepip is not" in ran.stdout:
            raise Skip("python3-venv is missing: apt-get install python3-venv")
        need(ran.returncode == 0, f"no environment: {ran.stdout}{ran.stderr}")
        return os.path.join(place, "bin/python")

    def for_shells(self):
        """Every package, and make install, have all manual pages and completions, at the places where they are looked for."""
        packed = {f"usr/{name}.gz" if name.endswith(".1") else f"usr/{name}" for name in FOR_SHELLS}
        of_debian = {name.replace("zsh/site-functions", "zsh/vendor-completions") for name in packed}
        listed = run("dpkg-deb", "-c", self.package("deb")).splitlines()
        need(of_debian <= {line.split()[-1].removeprefix("./") for line in listed}, "deb: not all are there")
        need(packed <= {name.strip("/") for name in run("rpm", "-qpl", self.package("rpm")).splitlines()}, "rpm: not all are there")
        with tarfile.open(self.package("tarball")) as archive:
            need(FOR_SHELLS <= {name.partition("/")[2] for name in archive.getnames()}, "tarball: not all are there")
        with zipfile.ZipFile(self.package("wheel")) as archive:
            need(FOR_SHELLS <= {name.partition(".data/data/")[2] for name in archive.namelist()}, "wheel: not all are there")
        root = os.path.join(self.scratch, "installed")
        make = ["make", "-s", "-C", ROOT, f"DESTDIR={root}", "PREFIX=/p"]
        env = {**os.environ, "CARGO_TARGET_DIR": TARGET}
        run(*make, "install", env=env)
        need(self.files(root) == {f"p/{name}" for name in (*FILES, *FOR_SHELLS)}, f"make install: {self.files(root)}")
        run(*make, "uninstall", env=env)
        need(not self.files(root), f"make uninstall leaves {self.files(root)}")

    def manual(self):
        """Every page is well formed, and fits 80 columns; man(1) finds it, and every command has one."""
        tools("mandoc")
        root = os.path.join(self.scratch, "manual")
        run("dpkg-deb", "-x", self.package("deb"), root)
        listed = run(os.path.join(root, "usr/bin/ebb"), "--help").partition("Commands:\n")[2].partition("\n\n")[0]
        need({line.split()[0] for line in listed.splitlines()} - {"help"} == set(COMMANDS), f"other commands: {listed}")
        for page in sorted(glob.glob(os.path.join(root, "usr/share/man/man1/*.gz"))):
            source = page.removesuffix(".gz")
            with gzip.open(page) as packed, open(source, "wb") as file:
                file.write(packed.read())
            name = os.path.basename(source).removesuffix(".1")
            run("mandoc", "-T", "lint", "-W", "warning", source)
            lines = re.sub(r".\x08", "", run("mandoc", "-T", "utf8", "-O", "width=80", source)).splitlines()
            need(max(map(len, lines)) <= 80, f"{name}: {max(lines, key=len)}")
            headings = [line for line in lines if re.match(r"[A-Z]", line)]
            wanted = ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS", "EXAMPLES", "SEE ALSO"]
            if name in ("ebb", "ebb-run"):
                wanted[5:5] = ["ENVIRONMENT", "FILES"]
            need([heading for heading in headings if heading in wanted] == wanted, f"{name}: {headings}")
            need(f"{name} - " in lines[3], f"{name} is described as {lines[3]}")

    def completions(self):
        """bash completes commands, options, their values, and programs; zsh and fish, where they are, read their files."""
        root = os.path.join(self.scratch, "completions")
        run("dpkg-deb", "-x", self.package("deb"), root)
        file = os.path.join(root, "usr/share/bash-completion/completions/ebb")

        def of(*words):
            return run("bash", "--noprofile", "--norc", "-c", COMPLETE, "bash", file, *words, env={"PATH": "/usr/bin:/bin"}).split()

        for words, expected in ((["ru"], ["run"]), (["run", "--all"], ["--allow-unmanaged"]), (["run", "--thp", "al"], ["always"]),
                                (["set", "--i"], ["--idle"]), (["doctor", "--seccomp-profile", "k"], ["k8s"]), (["help", "swapof"], ["swapoff"]),
                                (["run", "--ram", "1G", "--", "dpkg-de"], ["dpkg-deb"])):
            found = of("ebb", *words)
            need(sorted(set(found)) == expected, f"ebb {' '.join(words)}: {found}")
        for shell, name in (("zsh", "zsh/vendor-completions/_ebb"), ("fish", "fish/vendor_completions.d/ebb.fish")):
            if shutil.which(shell):
                run(shell, "-n", os.path.join(root, "usr/share", name))

    def wheel_format(self):
        """Its tag is true, and RECORD has the sum of every file."""
        package = self.package("wheel")
        major, minor = self.newest()
        need(package.endswith(f"-py3-none-manylinux_{major}_{minor}_x86_64.whl"), package)
        with zipfile.ZipFile(package) as archive:
            names = archive.namelist()
            record = archive.read(next(name for name in names if name.endswith("/RECORD"))).decode()
            need([line.split(",")[0] for line in record.splitlines()] == names, "RECORD has other files")
            need({"ebb/py.typed", "ebb/include/ebb.h"} <= set(names), "there is no py.typed, or no ebb.h")
            scripts = [entry for entry in archive.infolist() if ".data/scripts/" in entry.filename]
            need([entry.external_attr >> 16 & 0o777 for entry in scripts] == [0o755], "the command is not executable")
            for name in names:
                if name.startswith("ebb/") and name.endswith(".py"):
                    ast.parse(archive.read(name).decode(), feature_version=(3, 9))

    def wheel_installed(self):
        """pip installs it into a new environment; the command, the module and the tests of the module work; pip removes it."""
        place = self.place("venv")
        # Jupyter's kernels are the system's.
        python = self.venv(place, "--system-site-packages")
        pip = [*NOBODY, python, "-m", "pip", "--no-cache-dir", "--disable-pip-version-check", "-q"]
        # What is on the PATH here must not be found.
        env = {"PATH": "/usr/bin:/bin", "HOME": place}
        run(*pip, "install", "--no-index", self.package("wheel"), env=env)
        ebb = os.path.join(place, "bin/ebb")
        need(run(*NOBODY, python, "-c", "import ebb; print(ebb.find_ebb())", env=env).strip() == ebb, "another command is found")
        need(stat.S_IMODE(os.stat(ebb).st_mode) & 0o111, "the command is not executable")
        self.works(ebb)
        tests = self.place("python-tests")
        shutil.copytree(os.path.join(ROOT, "python/tests"), tests, dirs_exist_ok=True)
        run(*NOBODY, python, "-B", "-m", "unittest", "discover", "-s", tests, env=env, cwd=tests)
        run(*pip, "uninstall", "--yes", "ebb-swap", env=env)
        left = [name for name in self.files(place) if "ebb" in os.path.basename(name)]
        need(not left, f"left behind: {left}")

    def wheel_elsewhere(self):
        """pip install --prefix: the module finds the command, and the command the agent."""
        place = self.place("elsewhere")
        python = self.venv(os.path.join(place, "venv"))
        env = {"PATH": "/usr/bin:/bin", "HOME": place}
        prefix = os.path.join(place, "prefix")
        run(*NOBODY, python, "-m", "pip", "--no-cache-dir", "--disable-pip-version-check", "-q", "install", "--no-index", "--prefix",
            prefix, self.package("wheel"), env=env)
        modules, = glob.glob(os.path.join(prefix, "lib/python*/site-packages"))
        code = "import ebb; print(ebb.run(['true'], ram='32M', quiet=True).returncode, ebb.find_ebb())"
        printed = run(*NOBODY, python, "-B", "-c", code, env={**env, "PYTHONPATH": modules})
        need(printed == f"0 {prefix}/bin/ebb\n", printed)

    def action(self):
        """The action is well formed; its script, run here, puts the command on the PATH, where it works as a step's shell."""
        if subprocess.run([PYTHON, "-c", "import yaml"], stderr=subprocess.DEVNULL, check=False).returncode:
            raise Skip("python3-yaml is missing")
        to_json = "import json, sys, yaml; json.dump(yaml.safe_load(open(sys.argv[1])), sys.stdout)"
        action = json.loads(run(PYTHON, "-c", to_json, os.path.join(ROOT, "action.yml")))
        need({"name", "description", "inputs", "runs"} <= set(action), f"only {set(action)}")
        need(action["runs"]["using"] == "composite", "it is not composite")
        step, = action["runs"]["steps"]
        need(step["shell"] == "bash" and step["env"]["TARBALL"] == "${{ inputs.tarball }}", str(step["env"]))
        place = self.place("runner")
        files = {name: os.path.join(place, name) for name in ("GITHUB_PATH", "GITHUB_OUTPUT")}
        # The runner may read no directory of this repository.
        tarball = "ebb:1.tar.gz"
        os.chmod(shutil.copy(self.package("tarball"), os.path.join(place, tarball)), 0o644)
        env = {"PATH": "/usr/bin:/bin", "RUNNER_TEMP": place, "TARBALL": tarball, "SOURCE": "/nowhere", **files}
        run(*NOBODY, "bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"], env=env, cwd=place)
        with open(files["GITHUB_PATH"], encoding="utf-8") as file:
            path = file.read().strip()
        self.works(os.path.join(path, "ebb"))
        script = os.path.join(place, "step.sh")
        with open(script, "w", encoding="utf-8") as file:
            file.write("echo begun\nfalse\necho not reached\n")
        printed = run(*NOBODY, "ebb", "run", "--ram", "2G", "--", "bash", "-e", script, status=1, env={"PATH": f"{path}:/usr/bin:/bin"})
        need(printed == "begun\n", f"the step printed {printed}")

    def dockerfile(self):
        """Its stages and goals are there, and what it copies is where it says."""
        with open(os.path.join(ROOT, "Dockerfile"), encoding="utf-8") as file:
            text = re.sub(r"\\\n", " ", re.sub(r"(?m)^#.*\n", "", file.read()))
        steps = [line.split(maxsplit=1) for line in text.splitlines() if line.strip()]
        need({word for word, _ in steps} <= {"FROM", "WORKDIR", "RUN", "COPY", "ARG"}, "unknown instructions")
        stages = [rest for word, rest in steps if word == "FROM"]
        need(stages == ["rust:1-bookworm AS build", "scratch"], str(stages))
        with open(os.path.join(ROOT, "Makefile"), encoding="utf-8") as file:
            goals = set(re.findall(r"(?m)^([a-z-]+):", file.read()))
        ran = " ".join(rest for word, rest in steps if word == "RUN")
        need(set(re.findall(r"\bmake (\S+)", ran)) == {"tarball"} and "tarball" in goals, "an unknown goal")
        pattern, = re.findall(r"target/packages/(\S+)", ran)
        need(glob.fnmatch.fnmatch(os.path.basename(self.package("tarball")), pattern), f"no tarball matches {pattern}")
        need([rest for word, rest in steps if word == "COPY"] == [". .", "--from=build /ebb /ebb"], "copies something else")
        with open(os.path.join(ROOT, ".dockerignore"), encoding="utf-8") as file:
            ignored = file.read().split()
        tracked = run("git", "-C", ROOT, "ls-files").splitlines()
        need(not [name for name in tracked if name.startswith(tuple(f"{part}/" for part in ignored))], "ignores what is needed")
        need(not [name for name in ignored if name.startswith("crates")], "ignores what is needed")

    def all(self):
        """Name and function of each case."""
        cases = {f"{kind}: the same twice": lambda kind=kind: self.the_same_twice(kind) for kind in ("tarball", "deb", "rpm", "wheel")}
        return {
            **cases,
            "made in another place": self.elsewhere,
            "glibc 2.34": self.glibc,
            "versions of symbols": self.needs,
            "links of packed pages": self.links,
            "tarball: unpacked, moved": self.tarball,
            "deb: fields": self.deb_fields,
            "deb: unpacked": self.deb_unpacked,
            "deb: installed, removed": self.deb_installed,
            "rpm: fields": self.rpm_fields,
            "rpm: unpacked": self.rpm_unpacked,
            "rpm: installed, removed": self.rpm_installed,
            "rpm: installed by dnf": self.dnf_installed,
            "wheel: format": self.wheel_format,
            "wheel: installed, removed": self.wheel_installed,
            "wheel: another prefix": self.wheel_elsewhere,
            "manual pages, completions": self.for_shells,
            "manual pages: form": self.manual,
            "completions: bash": self.completions,
            "action": self.action,
            "Dockerfile": self.dockerfile,
        }


def main():
    only = only_of_arguments(__doc__)
    with tempfile.TemporaryDirectory(prefix="ebb-packages-") as scratch:
        return run_cases("packages", Cases(scratch).all(), only)


if __name__ == "__main__":
    sys.exit(main())
