"""The licences of the crates that are linked into the command and the agent: whoever passes these on passes them on as well."""
import hashlib
import json
import os

from common import ROOT, Problem, tool

NAME = "THIRD-PARTY.txt"
HEAD = """\
The command ebb and the library libebb_agent.so contain the Rust standard library (MIT or Apache-2.0, https://www.rust-lang.org)
and the packages below. Each is named with its licence, and with the numbers of the texts that come after the list.
"""
# Beside those at the root of a package: of code that it brings along.
BELOW = ("liblz4/lib/LICENSE", "zstd/LICENSE", "third_party/fiat/LICENSE")


def linked():
    """The packages of others that the command and the agent are linked with, as cargo describes them."""
    asked = tool("cargo", "metadata", "--format-version", "1", "--filter-platform", "x86_64-unknown-linux-gnu", "--locked", cwd=ROOT)
    metadata = json.loads(asked)
    packages = {package["id"]: package for package in metadata["packages"]}
    dependencies = {node["id"]: node["deps"] for node in metadata["resolve"]["nodes"]}
    to_look, seen = [of for of, package in packages.items() if package["name"] in ("ebb-cli", "ebb-agent")], set()
    while to_look:
        package = to_look.pop()
        # A macro works within the compiler.
        if package in seen or any("proc-macro" in target["kind"] for target in packages[package]["targets"]):
            continue
        seen.add(package)
        to_look += [to["pkg"] for to in dependencies[package] if any(kind["kind"] is None for kind in to["dep_kinds"])]
    return sorted((packages[of] for of in seen if packages[of]["source"]), key=lambda package: (package["name"], package["version"]))


def texts_of(package):
    directory = os.path.dirname(package["manifest_path"])
    names = [name for name in sorted(os.listdir(directory)) if name.upper().startswith(("LICENSE", "LICENCE"))]
    for name in (*names, *BELOW):
        path = os.path.join(directory, name)
        if os.path.isfile(path):
            with open(path, encoding="utf-8") as file:
                yield file.read().strip()


def text():
    entries, numbers, texts = "", {}, ""
    for package in linked():
        own = []
        for found in texts_of(package):
            key = hashlib.sha256(" ".join(found.split()).encode()).digest()
            if key not in numbers:
                numbers[key] = len(numbers) + 1
                texts += f"\n{'=' * 30} {numbers[key]} {'=' * 30}\n\n{found}\n"
            own.append(str(numbers[key]))
        if not own and not package["license"]:
            raise Problem(f"{package['name']} has no licence")
        of = f"texts {', '.join(own)}" if own else "no text of its own"
        entries += f"\n{package['name']} {package['version']}: {package['license']}; {of}\n  {package['repository']}\n"
    return HEAD + entries + texts
