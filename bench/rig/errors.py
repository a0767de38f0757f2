"""Why something was not measured, and the unit of sizes."""

MIB = 1 << 20


class Missing(Exception):
    """It cannot be measured on this machine; says why."""


class Failed(Exception):
    """A measured process did not do its work; says why."""


class Killed(Failed):
    """The kernel's out-of-memory killer ended a process of the run, which did not end well."""
