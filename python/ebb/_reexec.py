"""Replaces a Python process by one that runs under Ebb."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any, Iterable, NoReturn

from ._command import find_ebb, options_of
from ._inside import EbbError, active
from ._parent import settle

# Set for the process that takes this one's place, so that it does not try again where Ebb cannot manage it.
_MARK = "EBB_PYTHON_REEXEC"
# By when a kernel has answered the cell that asks for it.
_ANSWERED_S = 0.2


class KernelRestarts(EbbError):
    """The kernel of this notebook starts again under Ebb. Run the cells again."""

    def __init__(self) -> None:
        super().__init__("this kernel starts again under Ebb now, and forgets what it had: run the cells again, from this one on")


def _own_arguments() -> list[str]:
    """How this process was started: the interpreter with its options, the script and its arguments."""
    arguments = list(getattr(sys, "orig_argv", ()))
    if not arguments:
        # Before Python 3.10.
        with open("/proc/self/cmdline", "rb") as file:
            arguments = [os.fsdecode(argument) for argument in file.read().split(b"\0")[:-1]]
    if not sys.executable:
        raise EbbError("ebb.reexec: this program has Python built in: start it with `ebb run -- PROGRAM`")
    # Under the name of the interpreter, by which it finds the environment it is in.
    return [sys.executable, *arguments[1:]]


def _reads_itself() -> bool:
    """Whether the script comes from standard input, which cannot be read again."""
    main = sys.modules.get("__main__")
    has_script = getattr(main, "__file__", None) not in (None, "<stdin>") or getattr(main, "__spec__", None) is not None
    return not has_script and not {"-c", "-m"} & set(_own_arguments()) and not os.isatty(0)


def _replace(command: list[str]) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os.environ[_MARK] = "1"
    os.execv(command[0], command)


def _replace_kernel(command: list[str]) -> NoReturn:
    """As `_replace`, without what ends with this kernel and what an exec would hand on."""
    # A kernel reads what is written to these descriptors through pipes of its own.
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        original = getattr(stream, "_original_stdstream_copy", None)
        if original is not None:
            os.dup2(original, number)
    # Between cells, a kernel ignores interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # What a kernel looks for to see whether its server is gone: the process that becomes its parent.
    if "JPY_PARENT_PID" in os.environ:
        os.environ["JPY_PARENT_PID"] = str(os.getpid())
    _replace(command)


def _kernel() -> Any:
    """The kernel that this process is, or None."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None)


def reexec(
    ram: str | int | None = "50%",
    *,
    swap: str | Iterable[str] | None = None,
    name: str | None = None,
    quiet: bool = False,
) -> None:
    """Goes on under Ebb: replaces this process by `ebb run`, which starts the same interpreter with the same options, script,
    arguments and environment. Under Ebb already, it does nothing. So a script calls it at its top, before it has done anything:

        import ebb
        ebb.reexec(ram="4G")

    The options are those of `ebb.run`. In a notebook, the kernel starts again under Ebb with the same connection, and the cell ends
    with KernelRestarts, so that the cells after it do not run before that; run them again. The process number of the program is
    another one afterwards; the one that its parent knows is that of `ebb run`, which passes signals on.

    Raises FileNotFoundError if there is no command `ebb`, and EbbError if the script comes from standard input, or Ebb was started
    and does not manage this process.
    """
    if active():
        if os.environ.pop(_MARK, None) is not None and _kernel() is not None:
            # Interrupts come by `ebb run`, once, from now on.
            settle()
        return
    if os.environ.pop(_MARK, None) is not None:
        raise EbbError(
            "ebb.reexec: `ebb run` has started this process, but does not manage it: `ebb doctor` says what is missing on this host"
        )
    kernel = _kernel()
    if kernel is None and _reads_itself():
        raise EbbError("ebb.reexec: the script comes from standard input, which cannot be read again: put it into a file")
    command = [find_ebb(), "run", *options_of(ram, swap, name, quiet), "--", *_own_arguments()]
    loop = getattr(kernel, "io_loop", None)
    if loop is None:
        _replace(command)
    # Once the cell has been answered: whoever asked would wait for that for ever.
    loop.call_later(_ANSWERED_S, _replace_kernel, command)
    raise KernelRestarts()
