"""A tree in which some programs cannot be managed: they run untouched, are named, and their memory counts."""
import os
import shutil
import subprocess
import time

import harness
from tree import MIB, Failure, need, until, workload

RAM_MIB = 64
STATIC_MIB = 40
SIBLING_MIB = 100
PATIENCE_S = 200


def anonymous_bytes(pid):
    try:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            for line in file:
                if line.startswith("Pss_Anon:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def build_narrow(context):
    """By the assembler and the linker alone: no 32-bit library is needed. None where this kernel runs no such program."""
    binary = context.path("narrow")
    subprocess.run(["as", "--32", "-o", binary + ".o", workload("narrow.s")], check=True)
    subprocess.run(["ld", "-m", "elf_i386", "-o", binary, binary + ".o"], check=True)
    try:
        done = subprocess.run([binary], stdout=subprocess.PIPE, check=False)
    except OSError:
        return None
    return binary if done.returncode == 0 else None


def build_elevated(context):
    """With the set-user-ID bit, for another user. None where one cannot be made."""
    if os.geteuid() != 0:
        return None
    binary = context.path("elevated")
    shutil.copy(context.tools.c("elevated"), binary)
    os.chown(binary, 65534, 65534)
    os.chmod(binary, 0o4755)
    done = subprocess.run([binary], stdout=subprocess.PIPE, check=False)
    return binary if b"elevated: 65534 1 " in done.stdout else None


def build_go(context):
    binary = context.path("go_holder")
    environment = context.environment({"GOCACHE": context.path("go-cache"), "CGO_ENABLED": "0", "GO111MODULE": "off"})
    if not shutil.which("go"):
        raise Failure("go is missing: tools/install-packages tests/trees/packages-long.txt")
    subprocess.run(["go", "build", "-o", binary, workload("go_holder.go")], check=True, env=environment)
    return binary


def programs(context):
    """Those to run, the one that holds memory first."""
    binary = context.path("static")
    shutil.copy(context.tools.c("static", "-static"), binary)
    found = [binary]
    for name, build in (("set-user-ID", build_elevated), ("32-bit", build_narrow)):
        one = build(context)
        if one:
            found.append(one)
        else:
            context.notes.append(f"no {name} program can be run here: left out")
    if context.long:
        found.append(build_go(context))
    return found


def run_tree(context, ram, found, check):
    """Runs them under a shell; calls `check` with the sibling's pid while the static one holds its memory. (output, what
    `ebb run` said)"""
    for name in ("held", "release", "sibling"):
        if os.path.exists(context.path(name)):
            os.unlink(context.path(name))
    command = ["sh", workload("mixed.sh"), context.scratch, *found]
    if ram:
        # Not quiet: the summary is looked at.
        command = [context.ebb, "run", "--ram", ram, "--", *command]
    environment = context.environment({"SIBLING": workload("sibling.py"), "SIBLING_MIB": str(SIBLING_MIB),
                                       "STATIC_MIB": str(STATIC_MIB)})
    begin = time.monotonic()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               env=environment, start_new_session=True)
    watch = context.watch(process.pid, skip_root=ram is not None)
    watch.start()
    complaint = ""
    try:
        need(until(lambda: os.path.exists(context.path("held")) or process.poll() is not None, PATIENCE_S)
             and process.poll() is None, f"the static program does not run: status {process.poll()}")
        check(sibling_of(process.pid))
    except Failure as failure:
        complaint = str(failure)
    with open(context.path("release"), "w"):
        pass
    output, errors = process.communicate(timeout=PATIENCE_S * 2)
    watch.stop()
    context.results.append((ram, watch.found, time.monotonic() - begin))
    need(process.returncode == 0, f"status {process.returncode}: {output[-200:]} {errors[-400:]}")
    need(os.path.exists(context.path("sibling")), "the managed sibling said nothing")
    return output, errors, watch.found, complaint


def sibling_of(root):
    """The managed python below a process."""
    work = [root]
    while work:
        pid = work.pop()
        try:
            with open(f"/proc/{pid}/cmdline") as file:
                if "sibling.py" in file.read().split("\0")[1]:
                    return pid
        except (OSError, IndexError):
            pass
        work += harness.children(pid)
    raise Failure("the managed sibling is not there")


def mixed(context):
    os.chmod(context.scratch, 0o777)
    found = programs(context)

    def is_large(pid):
        need(until(lambda: anonymous_bytes(pid) > SIBLING_MIB * MIB * 3 // 4, PATIENCE_S),
             f"this case proves nothing: alone the sibling holds {anonymous_bytes(pid) / MIB:.0f} MiB")

    limit = (RAM_MIB - STATIC_MIB) * MIB + context.slack

    def is_squeezed(pid):
        # It must stay so: where nothing tells it of the static program it may pass by that size as it grows.
        need(until(lambda: len(os.listdir(f"/proc/{pid}/task")) > 1, PATIENCE_S), "the sibling never met its budget")
        end = time.monotonic() + PATIENCE_S
        steady = 0
        while steady < 20 and time.monotonic() < end:
            time.sleep(0.1)
            steady = steady + 1 if anonymous_bytes(pid) <= limit else 0
        need(steady == 20, f"beside a static program of {STATIC_MIB} MiB a managed one holds {anonymous_bytes(pid) / MIB:.1f} MiB"
             f" under --ram {RAM_MIB}M, more than {limit / MIB:.0f}: what is not managed does not count")

    expected, _, plain, complaint = run_tree(context, None, found, is_large)
    need(not complaint, complaint)
    output, said, squeezed, complaint = run_tree(context, f"{RAM_MIB}M", found, is_squeezed)
    need(output == expected, f"the output differs: {expected!r} became {output!r}")
    for path in found:
        name = os.path.basename(path)
        lines = [line for line in said.split("\n") if "not managed" in line and name in line]
        need(lines, f"the summary does not say that {name} was not managed: {said[-500:]!r}")
    need(not complaint, complaint)
    context.bound_tree(squeezed, f"{RAM_MIB}M", plain)
