#!/usr/bin/python3
"""Starts a command as a container engine does: with a seccomp profile, and the capabilities of a container.

contained.py PROFILE -- COMMAND...

PROFILE is a file in the format of Docker, Podman and Kubernetes. Rules that need capabilities, architectures or kernels count as
these engines count them, for x86-64 and the capabilities that Docker gives a container.
"""
import json
import os
import sys

import seccomp

CAPABILITIES = ("chown", "dac_override", "fsetid", "fowner", "mknod", "net_raw", "setgid", "setuid", "setfcap", "setpcap",
                "net_bind_service", "sys_chroot", "kill", "audit_write")
OPS = {"SCMP_CMP_NE": seccomp.NE, "SCMP_CMP_LT": seccomp.LT, "SCMP_CMP_LE": seccomp.LE, "SCMP_CMP_EQ": seccomp.EQ,
       "SCMP_CMP_GE": seccomp.GE, "SCMP_CMP_GT": seccomp.GT, "SCMP_CMP_MASKED_EQ": seccomp.MASKED_EQ}


def kernel():
    return tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])


def applies(rule):
    """Whether a rule concerns this machine and a container with the usual capabilities."""
    includes, excludes = rule.get("includes") or {}, rule.get("excludes") or {}
    has = {"CAP_" + name.upper() for name in CAPABILITIES}
    if "amd64" not in includes.get("arches", ["amd64"]) or "amd64" in excludes.get("arches", []):
        return False
    if not set(includes.get("caps", [])) <= has or set(excludes.get("caps", [])) & has:
        return False
    least = includes.get("minKernel")
    return least is None or kernel() >= tuple(int(part) for part in least.split("."))


def action(of, errno):
    match of:
        case "SCMP_ACT_ALLOW":
            return seccomp.ALLOW
        case "SCMP_ACT_ERRNO":
            return seccomp.ERRNO(1 if errno is None else errno)
    raise ValueError(f"this action is not known: {of}")


def condition(arg):
    op, value, second = OPS[arg["op"]], arg["value"], arg.get("valueTwo", 0)
    # With a mask, it comes first.
    return seccomp.Arg(arg["index"], op, value, second) if op == seccomp.MASKED_EQ else seccomp.Arg(arg["index"], op, value)


def load(profile):
    """Applies a profile to this process, as runc does."""
    default = action(profile["defaultAction"], profile.get("defaultErrnoRet"))
    made = seccomp.SyscallFilter(default)
    for rule in filter(applies, profile["syscalls"]):
        what = action(rule["action"], rule.get("errnoRet"))
        if what == default:
            continue
        for name in rule["names"]:
            try:
                number = seccomp.resolve_syscall(seccomp.Arch(), name)
            except ValueError:
                continue
            # Negative numbers are those of other architectures.
            if number >= 0:
                made.add_rule(what, name, *map(condition, rule.get("args") or []))
    made.load()


def main():
    path, separator, *command = sys.argv[1:]
    assert separator == "--" and command
    with open(path, encoding="utf-8") as file:
        profile = json.load(file)
    bounds = ",".join(["-all", *("+" + name for name in CAPABILITIES)])
    if os.geteuid() == 0:
        command = ["setpriv", "--bounding-set", bounds, "--inh-caps", "-all", "--", *command]
    # What is loaded without no_new_privs needs CAP_SYS_ADMIN, so it comes before the capabilities go.
    load(profile)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
