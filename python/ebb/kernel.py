"""`python -m ebb.kernel -f FILE`: the kernel of Jupyter that `ebb run` starts for a kernelspec of `ebb.kernelspec`.

It is ipykernel's own, with two things set right before it begins:

* A kernel watches the process that started it, and ends when that is gone. Here that is `ebb run`, which ends when the server kills
  it, and takes the kernel with it.
* A server interrupts the process group of what it started. `ebb run` passes that on, so the kernel is not in that group, or each
  interrupt would reach it twice.
"""

from __future__ import annotations

from ._parent import settle


def main() -> None:
    settle()
    from ipykernel import kernelapp

    kernelapp.launch_new_instance()


if __name__ == "__main__":
    main()
