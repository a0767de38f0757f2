"""`python -m ebb.kernelspec`: kernels for Jupyter that run under Ebb.

    python -m ebb.kernelspec install --ram 4G --user
    python -m ebb.kernelspec list
    python -m ebb.kernelspec remove --name ebb
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import sys
import tempfile
from typing import Any, Sequence

from ._command import find_ebb, options_of

# In `metadata` of the kernelspecs that this module makes, with what they were made with.
_KEY = "ebb"


class _Problem(Exception):
    """What to tell the user."""


def _manager() -> Any:
    try:
        module = importlib.import_module("jupyter_client.kernelspec")
    except ImportError:
        raise _Problem(f"{sys.executable} has no jupyter_client: install it with `pip install jupyter_client ipykernel`") from None
    return module.KernelSpecManager()


def spec(ram: str | int | None, swap: Sequence[str] = (), display_name: str | None = None) -> dict[str, Any]:
    """What the file `kernel.json` says: this interpreter's kernel, under `ebb run`. Interrupts are signals, which `ebb run` passes on."""
    shown = display_name or f"Python {sys.version_info[0]} (Ebb, {ram})"
    command = [find_ebb(), "run", *options_of(ram, swap, None, True), "--", sys.executable, "-m", "ebb.kernel", "-f", "{connection_file}"]
    return {
        "argv": command,
        "display_name": shown,
        "language": "python",
        "interrupt_mode": "signal",
        "metadata": {"debugger": True, _KEY: {"ram": ram, "swap": list(swap)}},
    }


def install(
    ram: str | int | None,
    *,
    swap: Sequence[str] = (),
    name: str = "ebb",
    display_name: str | None = None,
    user: bool = False,
    prefix: str | None = None,
) -> str:
    """Installs a kernelspec, in the place of an earlier one of this name that this module made. Returns its directory."""
    manager = _manager()
    if importlib.util.find_spec("ipykernel") is None:
        raise _Problem(f"{sys.executable} has no ipykernel: install it with `pip install ipykernel`")
    with tempfile.TemporaryDirectory(prefix="ebb-kernelspec-") as made:
        os.chmod(made, 0o755)
        with open(os.path.join(made, "kernel.json"), "w", encoding="utf-8") as file:
            json.dump(spec(ram, swap, display_name), file, indent=1)
            file.write("\n")
        try:
            return str(manager.install_kernel_spec(made, kernel_name=name, user=user, prefix=prefix))
        except PermissionError as error:
            raise _Problem(f"{error.filename} cannot be written: install with --user or --sys-prefix") from None
        except ValueError as error:
            raise _Problem(str(error)) from None


def installed() -> dict[str, dict[str, Any]]:
    """The kernelspecs of this module that Jupyter finds: name, and `kernel.json` with its directory as `resource_dir`."""
    found = {}
    for name, entry in _manager().get_all_specs().items():
        if _KEY in entry["spec"].get("metadata", {}):
            found[name] = {**entry["spec"], "resource_dir": entry["resource_dir"]}
    return found


def remove(name: str) -> str:
    """Removes a kernelspec that this module made. Returns its directory."""
    if name not in installed():
        raise _Problem(f"there is no kernelspec {name!r} of Ebb: `python -m ebb.kernelspec list` lists them")
    return str(_manager().remove_kernel_spec(name))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. Returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m ebb.kernelspec", description="Kernels for Jupyter that run under Ebb.")
    commands = parser.add_subparsers(dest="command", required=True)
    adds = commands.add_parser("install", help="install a kernelspec for this interpreter")
    adds.add_argument("--ram", default="50%", help="budget of the kernel and all that it starts, as `ebb run --ram` takes it (50%%)")
    adds.add_argument("--swap", action="append", default=[], help="as `ebb run --swap` takes it; may be repeated")
    adds.add_argument("--name", default="ebb", help="name of the kernelspec (ebb)")
    adds.add_argument("--display-name", help="what Jupyter shows")
    where = adds.add_mutually_exclusive_group()
    where.add_argument("--user", action="store_true", help="for this user only")
    where.add_argument("--sys-prefix", action="store_const", dest="prefix", const=sys.prefix, help="in this environment")
    where.add_argument("--prefix", help="below PREFIX/share/jupyter/kernels")
    commands.add_parser("list", help="list the kernelspecs that this command installed")
    takes = commands.add_parser("remove", help="remove one of them")
    takes.add_argument("--name", default="ebb", help="its name (ebb)")
    given = parser.parse_args(arguments)
    try:
        if given.command == "install":
            place = install(
                given.ram, swap=given.swap, name=given.name, display_name=given.display_name, user=given.user, prefix=given.prefix
            )
            print(f"installed {given.name} in {place}")
        elif given.command == "remove":
            print(f"removed {remove(given.name)}")
        else:
            for name, found in sorted(installed().items()):
                print(f"{name}  {found['display_name']}  {found['resource_dir']}")
    except (_Problem, OSError) as problem:
        print(f"ebb.kernelspec: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
