#!/usr/bin/python3
"""The recipes of examples/containers, which docs/containers.md quotes: they follow the schemas of Kubernetes, Docker Compose, GitHub
Actions and GitLab CI, hold together, and every `ebb` command in them and on the page runs. One line a case; the closing line counts.

EBB names the command (default: target/release/ebb of this repository, then `ebb` on the path).
"""
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import tomllib

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.dirname(HERE))

from cases import Skip, need, only_of_arguments, run_cases  # noqa: E402
from command import find_ebb  # noqa: E402

LIMIT_S = 120
# Debian's, for which there are python3-venv and python3-yaml.
PYTHON = "/usr/bin/python3"
TARGET = os.path.join(ROOT, os.environ.get("CARGO_TARGET_DIR", "target"))
REQUIREMENTS = os.path.join(HERE, "requirements.txt")
EXAMPLES = os.path.join(ROOT, "examples/containers")
MANIFESTS = ("deployment.yaml", "job.yaml")
# Pages, and the languages of those blocks in them that are pieces of the recipes.
PAGES = {"docs/containers.md": ("yaml", "toml", "dockerfile"), "docs/install.md": ("yaml",)}
# Of what is no manifest: the schema, and a piece of text with one that the schema refuses in its place.
SCHEMAS = {
    "compose.yaml": ("compose-spec", "devices:", "device:"),
    "github-workflow.yaml": ("github-workflows", "runs-on:", "run-on:"),
    "gitlab-ci.yaml": ("gitlab-ci", "script:", "scripts:"),
    "action.yml": ("github-actions", "using: composite", "using: compost"),
}
# Pieces of manifests, and what strict schemas refuse: other names, values of another kind, what is missing.
BROKEN = (("volumeMounts:", "volumeMount:"), ("emptyDir: {}", "emptyDir: []"), ("mountPath:", "path:"), ("limits: {", "limit: {"),
          ('command: ["cp", "-r", "/opt/ebb", "/shared/"]', 'command: "cp -r /opt/ebb /shared/"'), ("containers:", "container:"))
# The oldest and the newest that the schemas are of, and one between.
VERSIONS = ("1.25", "1.29", "newest")
VALIDATE = """
import sys, kubernetes_validate, yaml
newest = kubernetes_validate.latest_version()
text = sys.stdin.read()
for wanted in sys.argv[1:]:
    version = newest if wanted == "newest" else wanted
    try:
        for manifest in yaml.safe_load_all(text):
            used = kubernetes_validate.validate(manifest, version, strict=True)
            assert version.startswith(used), f"{used} instead of {version}"
        print(f"{wanted}: right")
    except kubernetes_validate.ValidationError as error:
        print(f"{wanted}: {'.'.join(map(str, error.path))}: {error.message}")
"""
TO_JSON = "import json, sys, yaml; json.dump(list(yaml.safe_load_all(sys.stdin)), sys.stdout)"
UNITS = {"M": 1 << 20, "G": 1 << 30, "Mi": 1 << 20, "Gi": 1 << 30}


def run(command, text=None, status=0, **options):
    """What a command prints."""
    ran = subprocess.run(command, input=text, capture_output=True, text=True, timeout=LIMIT_S, check=False, **options)
    need(ran.returncode == status, f"{command}: status {ran.returncode}\n{ran.stdout[-2000:]}{ran.stderr[-2000:]}")
    return ran.stdout


def read(*names):
    with open(os.path.join(ROOT, *names), encoding="utf-8") as file:
        return file.read()


def recipe(name):
    return read("action.yml") if name == "action.yml" else read(EXAMPLES, name)


def documents(text):
    """The documents of a YAML file."""
    if subprocess.run([PYTHON, "-c", "import yaml"], stderr=subprocess.DEVNULL, check=False).returncode:
        raise Skip("python3-yaml is missing")
    return json.loads(run([PYTHON, "-c", TO_JSON], text))


def blocks(page, languages):
    """The blocks of code in a page that are in one of these languages."""
    found = re.findall(r"(?ms)^```(\w+)\n(.*?)^```$", read(page))
    return [textwrap.dedent(block).splitlines() for language, block in found if language in languages]


def size(text):
    number, unit = re.fullmatch(r"(\d+)(\w+)", text).groups()
    return int(number) * UNITS[unit]


@functools.cache
def schemas_or_why():
    """A Python that has the schemas, made once for a version of them, or None; and why there is none."""
    place = os.path.join(TARGET, "recipes-python")
    done = os.path.join(place, "requirements.txt")
    if not (os.path.exists(done) and read(done) == read(REQUIREMENTS)):
        shutil.rmtree(place, ignore_errors=True)
        pip = [f"{place}/bin/python", "-m", "pip", "-q", "--disable-pip-version-check", "--retries", "1"]
        for command in ([PYTHON, "-m", "venv", place], [*pip, "install", "-r", REQUIREMENTS]):
            made = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
            if made.returncode:
                told = (made.stderr.strip() or made.stdout.strip()).splitlines()
                return None, f"no schemas: {told[-1] if told else made.returncode}"
        shutil.copy(REQUIREMENTS, done)
    return os.path.join(place, "bin/python"), ""


def schemas():
    python, why = schemas_or_why()
    if not python:
        raise Skip(why)
    return python


def refusals(manifest):
    """What the schemas of each version say against a manifest; nothing if it is right."""
    lines = run([schemas(), "-c", VALIDATE, *VERSIONS], manifest).splitlines()
    need(len(lines) == len(VERSIONS), str(lines))
    return [line for line in lines if not line.endswith(": right")]


class Cases:
    """The cases, each a method whose docstring says what holds."""

    def __init__(self, ebb, scratch):
        self.scratch = scratch
        # A host, or a container, with Ebb in /opt/ebb.
        for place in ("opt/ebb/bin", "opt/ebb/lib/ebb", "shared", "swap", "var/tmp"):
            os.makedirs(os.path.join(scratch, place))
        shutil.copy(ebb, os.path.join(scratch, "opt/ebb/bin/ebb"))
        beside = [os.path.join(os.path.dirname(ebb), place, "libebb_agent.so") for place in ("", "../lib/ebb")]
        shutil.copy(next(filter(os.path.exists, beside)), os.path.join(scratch, "opt/ebb/lib/ebb"))

    def here(self, words):
        """A command of a recipe with this machine's places, and with a program."""
        for place in ("/opt/ebb", "/shared", "/swap"):
            words = [re.sub(rf"(?<![\w/]){place}\b", self.scratch + place, word) for word in words]
        return ["/bin/true" if word == "PROGRAM" else word for word in words]

    def run_here(self, words):
        # In a container nothing else tells Ebb what to do.
        env = {"PATH": "/usr/bin:/bin", "HOME": self.scratch, "TMPDIR": os.path.join(self.scratch, "swap"),
               "EBB_TMPDIR": os.path.join(self.scratch, "var/tmp")}
        return run(self.here(words), env=env, cwd=self.scratch)

    @staticmethod
    def manifest(name):
        """It is what each version of Kubernetes takes, and what they refuse is found in it."""
        text = recipe(name)
        refused = refusals(text)
        need(not refused, "; ".join(refused))
        for piece, wrong in BROKEN:
            if piece in text:
                need(len(refusals(text.replace(piece, wrong, 1))) == len(VERSIONS), f"{wrong} is not refused by all")

    @staticmethod
    def every_piece_is_somewhere():
        """What is broken for the schemas is in a manifest."""
        for piece, _ in BROKEN:
            need(any(piece in recipe(name) for name in MANIFESTS), f"no manifest has {piece}")

    def other(self, name):
        """The schema takes it, and refuses it when a name or value in it is another."""
        schema, piece, wrong = SCHEMAS[name]
        check = [schemas(), "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
        path = os.path.join(self.scratch, name)
        text = recipe(name)
        need(piece in text, f"no {piece}")
        for written, status in ((text, 0), (text.replace(piece, wrong, 1), 1)):
            with open(path, "w", encoding="utf-8") as file:
                file.write(written)
            told = run([*check, path], status=status)
            need(status == 0 or "Schema validation errors" in told, told)

    @staticmethod
    def holds_together(name):
        """Mounts name volumes, what Ebb spills goes to one that is on the disk, and the budget is below the limit."""
        manifest, = documents(recipe(name))
        template = manifest["spec"]["template"]
        if "selector" in manifest["spec"]:
            need(manifest["spec"]["selector"]["matchLabels"] == template["metadata"]["labels"], "the selector selects others")
        pod = template["spec"]
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        container, = pod["containers"]
        mounted = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
        need({mount["name"] for of in pod["initContainers"] for mount in of["volumeMounts"]} <= set(volumes), "no such volume")
        command = container["command"]
        need(os.path.dirname(command[0]).removesuffix("/ebb/bin") in mounted, f"{command[0]} is nowhere")
        spill = command[command.index("--swap") + 1].removeprefix("file:").split(",")[0] if "--swap" in command else "/var/tmp"
        need("medium" not in mounted[spill]["emptyDir"], "what is spilled stays in RAM")
        limit = size(container["resources"]["limits"]["memory"])
        need("--ram" not in command or size(command[command.index("--ram") + 1]) < limit, "the budget is not below the limit")

    def pod_runs(self, name):
        """What the init container copies is what the container runs."""
        pod = documents(recipe(name))[0]["spec"]["template"]["spec"]
        shutil.rmtree(os.path.join(self.scratch, "shared/ebb"), ignore_errors=True)
        for container in (*pod["initContainers"], *pod["containers"]):
            self.run_here(container["command"])

    def others_run(self):
        """The commands of Docker Compose and GitLab CI, and the shell of a step."""
        with open(os.path.join(self.scratch, "Makefile"), "w", encoding="utf-8") as file:
            file.write("all:\n\t@echo made\n")
        service, = documents(recipe("compose.yaml"))[0]["services"].values()
        self.run_here(service["entrypoint"])
        line, = documents(recipe("gitlab-ci.yaml"))[0]["build"]["script"]
        need(self.run_here(line.split()) == "made\n", "make made nothing")
        step = documents(recipe("github-workflow.yaml"))[0]["jobs"]["build"]["steps"][-1]
        script = os.path.join(self.scratch, "step.sh")
        with open(script, "w", encoding="utf-8") as file:
            file.write(step["run"])
        shell = step["shell"].replace("{0}", script).split()
        need(shell[0] == "ebb" and self.run_here(["/opt/ebb/bin/ebb", *shell[1:]]) == "made\n", "the step made nothing")

    @staticmethod
    def runner():
        """GitLab's runner is configured in TOML, and passes on the device and Ebb."""
        runner, = tomllib.loads(recipe("gitlab-runner.toml"))["runners"]
        docker = runner["docker"]
        need(runner["executor"] == "docker" and docker["devices"] == ["/dev/userfaultfd"], str(runner))
        need("/opt/ebb:/opt/ebb:ro" in docker["volumes"], str(docker["volumes"]))

    @staticmethod
    def pages_quote():
        """Every block on the pages is a piece of a recipe, and the page names every recipe."""
        recipes = {name: recipe(name).splitlines() for name in sorted(os.listdir(EXAMPLES))}

        def is_in(block, lines):
            return any(textwrap.dedent("\n".join(lines[at:at + len(block)])).splitlines() == block for at in range(len(lines)))

        found = 0
        for page, languages in PAGES.items():
            for block in blocks(page, languages):
                found += 1
                need(any(is_in(block, lines) for lines in recipes.values()), f"{page}: in no recipe:\n" + "\n".join(block))
        need(found >= 6, f"only {found} blocks")
        text = read("docs/containers.md")
        missing = [name for name in recipes if f"(../examples/containers/{name})" not in text]
        need(not missing, f"the page does not name {missing}")
        return f"{found} pieces"

    def page_runs(self):
        """Every shell command on the page can be read by a shell, and each `ebb` in it runs."""
        commands = [line for block in blocks("docs/containers.md", ("sh",)) for line in block]
        run(["bash", "-n"], "\n".join(commands))
        ebbs = [match for line in commands for match in re.findall(r"/opt/ebb/bin/ebb [^>]*", line)]
        need(len(ebbs) >= 6, f"only {ebbs}")
        for command in ebbs:
            self.run_here(["sh", "-c", re.sub(r"\bPROGRAM\b", "true", command)])
        return f"{len(ebbs)} commands"

    def all(self):
        """Name and function of each case."""
        return {
            **{f"{name}: schemas of Kubernetes": lambda name=name: self.manifest(name) for name in MANIFESTS},
            "schemas of Kubernetes: what is broken": self.every_piece_is_somewhere,
            **{f"{name}: schema": lambda name=name: self.other(name) for name in SCHEMAS},
            **{f"{name}: holds together": lambda name=name: self.holds_together(name) for name in MANIFESTS},
            **{f"{name}: runs": lambda name=name: self.pod_runs(name) for name in MANIFESTS},
            "compose, GitLab, GitHub: run": self.others_run,
            "gitlab-runner.toml": self.runner,
            "pages quote the recipes": self.pages_quote,
            "page: commands run": self.page_runs,
        }


def main():
    only = only_of_arguments(__doc__)
    ebb = find_ebb()
    if not ebb:
        sys.exit("recipes.py: there is no ebb: build it, or set EBB")
    with tempfile.TemporaryDirectory(prefix="ebb-recipes-") as scratch:
        return run_cases("recipes", Cases(ebb, scratch).all(), only)


if __name__ == "__main__":
    sys.exit(main())
