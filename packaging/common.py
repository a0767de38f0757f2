"""What all packages share: the version, the time, the stripped files, what these need, and what is packed beside them."""
import gzip
import os
import re
import shutil
import subprocess
import tomllib

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MAINTAINER = os.environ.get("EBB_MAINTAINER", "The Ebb developers <noreply@ebb.invalid>")
SUMMARY = "swap subsystem inside the process: runs programs in less RAM"
DESCRIPTION = """\
Ebb runs an unmodified program, and all processes that it starts, within a
budget of RAM. It compresses cold memory in RAM and spills the rest to an
encrypted file. It needs no root, no kernel swap, no kernel module and no
daemon."""

COMMAND = "bin/ebb"
AGENT = "lib/ebb/libebb_agent.so"
HEADER = "include/ebb.h"
LICENCES = ("LICENSE-APACHE", "LICENSE-MIT")
# The pages for users, and the recipes that they quote, at the places where README.md links to them.
PAGES = ("README.md", "CHANGELOG.md", "SECURITY.md", "docs/api.md", "docs/compatibility.md", "docs/containers.md",
         "docs/contract.md", "docs/debugging.md", "docs/install.md", "docs/performance.md", "docs/programs.md", "docs/services.md",
         "docs/usage.md",
         *(f"examples/containers/{name}" for name in sorted(os.listdir(os.path.join(ROOT, "examples/containers")))))
LINK = re.compile(r"!?\[([^\]]*)\]\(([^)\s]*)\)")

MANUAL = "share/man/man1/"
# Of each shell, where it looks for what others install.
COMPLETIONS = {"ebb.bash": "share/bash-completion/completions/ebb", "_ebb": "share/zsh/site-functions/_ebb",
               "ebb.fish": "share/fish/vendor_completions.d/ebb.fish"}

# Versions of glibc's symbols that are named after something else: the version with which each came.
NAMED_VERSIONS = {"GLIBC_ABI_DT_RELR": "GLIBC_2.36"}

# Before that there is no time in a zip archive.
EPOCH_MIN = 315532800


class Problem(Exception):
    """Why there is no package."""


def tool(*command, **options):
    """What a tool prints; its own words if it fails."""
    try:
        ran = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    except FileNotFoundError as error:
        raise Problem(f"{command[0]} is missing: tests/packages/packages.txt lists what packages are built with") from error
    if ran.returncode:
        raise Problem(f"{' '.join(command)}: status {ran.returncode}\n{ran.stdout}{ran.stderr}")
    return ran.stdout


def version():
    with open(os.path.join(ROOT, "Cargo.toml"), "rb") as manifest:
        return tomllib.load(manifest)["workspace"]["package"]["version"]


def epoch():
    """The time of everything in a package: SOURCE_DATE_EPOCH, or that of the last commit."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if not given:
        try:
            asked = subprocess.run(["git", "-C", ROOT, "log", "-1", "--format=%ct"], capture_output=True, text=True, check=False)
            given = asked.stdout.strip() or EPOCH_MIN
        except FileNotFoundError:
            given = EPOCH_MIN
    return max(int(given), EPOCH_MIN)


def without_dead_links(page, text, packed):
    """A page without its links to what is not packed with it: the words of each stay, and say where in the source that is."""
    def kept(link):
        words, to = link.groups()
        file = to.partition("#")[0]
        path = os.path.normpath(os.path.join(os.path.dirname(page), file))
        if not file or ":" in file or path in packed or any(name.startswith(path + "/") for name in packed):
            return link[0]
        return f"{words} (in the source)" if words == path else f"{words} (`{path}` in the source)"

    return LINK.sub(kept, text)


def needs(*files):
    """The highest version of each library's symbols that ELF files refer to: {"libc.so.6": {"GLIBC": "2.34"}, ...}."""
    found = {}
    for file in files:
        library = None
        for line in tool("objdump", "-p", file).splitlines():
            if named := re.match(r"\s+NEEDED\s+(\S+)", line):
                found.setdefault(named[1], {})
            elif named := re.match(r"\s+required from (\S+):", line):
                library = found.setdefault(named[1], {})
            elif named := re.match(r"\s+0x\w+ 0x\w+ \d+ (\w+(?:\.\w+)*)$", line):
                symbols = NAMED_VERSIONS.get(named[1], named[1])
                if not (parts := re.fullmatch(r"([A-Z]+)_(\d+(?:\.\d+)*)", symbols)):
                    raise Problem(f"{file} needs {symbols}: say in packaging/common.py which version of the library has that")
                kind, wanted = parts.groups()
                library[kind] = max(library.get(kind, "0"), wanted, key=lambda text: [int(part) for part in text.split(".")])
    others = set(found) - {"libc.so.6", "libgcc_s.so.1"}
    if others:
        raise Problem(f"needs {', '.join(sorted(others))} as well: say in packaging/ which packages have them")
    return found


class Content:
    """The files of one package, gathered below `root`."""

    def __init__(self, release, root):
        self.release, self.root = release, root
        self.version, self.epoch, self.needs = version(), epoch(), {}
        os.makedirs(root)

    def path(self, name):
        path = os.path.join(self.root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return path

    def write(self, name, data, mode=0o644):
        with open(self.path(name), "wb") as file:
            file.write(data if isinstance(data, bytes) else data.encode())
        os.chmod(self.path(name), mode)

    def copy(self, source, name):
        shutil.copyfile(os.path.join(ROOT, source), self.path(name))
        os.chmod(self.path(name), 0o644)

    def pages(self, prefix, pages):
        """Files of the source with the same names below `prefix`; what is Markdown links only to the others of them."""
        for page in pages:
            with open(os.path.join(ROOT, page), encoding="utf-8") as file:
                text = file.read()
            self.write(prefix + page, without_dead_links(page, text, pages) if page.endswith(".md") else text)

    def binaries(self, command, agent):
        """The command and the agent, without what only debuggers use. The symbols stay: they name places in a backtrace."""
        for name, mode in ((command, 0o755), (agent, 0o644)):
            source = os.path.join(self.release, os.path.basename(name))
            if not os.path.exists(source):
                raise Problem(f"{source} is missing: run make build first")
            tool("strip", "--strip-debug", "-o", self.path(name), source)
            os.chmod(self.path(name), mode)
        self.needs = needs(self.path(command), self.path(agent))

    def for_shells(self, prefix, packed=False, zsh=COMPLETIONS["_ebb"]):
        """The manual pages, as gzip packs them or as they are, and the completions of shells."""
        for page in sorted(os.listdir(os.path.join(ROOT, "man"))):
            with open(os.path.join(ROOT, "man", page), "rb") as file:
                text = file.read()
            if packed:
                self.write(f"{prefix}{MANUAL}{page}.gz", gzip.compress(text, 9, mtime=0))
            else:
                self.write(f"{prefix}{MANUAL}{page}", text)
        for source, name in {**COMPLETIONS, "_ebb": zsh}.items():
            self.copy(f"completions/{source}", prefix + name)

    def files(self):
        """Names of all files, in the order of their bytes."""
        return sorted(os.path.relpath(os.path.join(where, name), self.root)
                      for where, _, names in os.walk(self.root) for name in names)

    def settle(self):
        """Modes and times that depend neither on who packs nor on when."""
        for where, _, names in os.walk(self.root, topdown=False):
            for name in names:
                os.utime(os.path.join(where, name), (self.epoch, self.epoch))
            os.chmod(where, 0o755)
            os.utime(where, (self.epoch, self.epoch))
