#!/usr/bin/python3
"""Builds every program here and runs it alone and under `ebb run`, as root and as an ordinary user, and with the
fallbacks forced. One line each; the closing line counts.

A small process is dormant until it grows. These programs are small, so they are managed from their start on in most
variants; in `early` when they have hardly begun to grow, which puts the change into the middle of what they do; and in
`dormant` as users get it.

EBB names the command (default: target/release/ebb of this repository, then `ebb` on the path).
"""
import argparse
import concurrent.futures
import glob
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))

from command import find_ebb  # noqa: E402

NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
# name -> (under ebb, as nobody, EBB_FORCE)
VARIANTS = {
    "plain": (False, False, ""),
    "plain-user": (False, True, ""),
    "root": (True, False, "no-dormant"),
    "user": (True, True, "no-dormant"),
    "early": (True, False, "early"),
    "early-user": (True, True, "early"),
    "dormant": (True, False, ""),
    "dormant-user": (True, True, ""),
    "no-move": (True, False, "no-dormant,no-move"),
    "early-no-move": (True, False, "early,no-move"),
    "shared": (True, False, "no-dormant,shared"),
    "no-process-madvise": (True, False, "no-dormant,no-process-madvise"),
    "no-background": (True, False, "no-dormant,no-background"),
    "no-interpose": (True, False, "no-dormant,no-interpose"),
    "folios": (True, False, "no-dormant,always-huge"),
    "cold": (True, False, "no-dormant,always-cold"),
    "device": (True, False, "no-dormant,device"),
    "strict": (True, False, "no-dormant,strict"),
    "early-strict": (True, False, "early,strict"),
}
# Programs that need a budget of their own: where runs of pages are long enough for frames to be used again, or where
# what a call may pin is little.
RAM = {"huge_pages": "192M", "zerocopy": "128M", "lent_before": "128M", "lent_unlocked": "128M", "filter_asks": "48M",
       "io_streams_whole": "8M", "proc_self": "8M", "beside_the_budget": "64M"}
# Programs that are linked in a way of their own.
LINKED = {"early_calls": ["-Wl,-z,now"]}
# What may differ for an ordinary user (files, limits, descriptors, other processes, faults by way of the user's own right),
# and what the change from small to managed can disturb most.
SHORT = {
    "user": ["aio_kernel", "clean_pages", "clone_files", "clone_raw", "clone_vm_process", "close_all", "core_dump", "credentials",
             "daemon",
             "descriptor_table_full",
             "descriptors", "efault", "eviction_happens", "exec_environment", "exec_failures", "exec_variants",
             "exec_visible_environment", "fork_evicted", "fork_raw", "fork_storm", "io_control", "io_large", "io_sockets",
             "io_vectors", "ioctl_effects", "limit_file_size", "locks_in_evicted_memory", "madvise_fork", "mlock_on_fault", "mlocked", "mremap_moves",
             "parallel_faults", "paths", "privileges", "process_tree_pressure", "program_break", "resource_limits",
             "robust_list_process", "sent_to_fresh_child", "shared_memory", "spawn", "splices", "stack_in_heap", "static_program", "stderr_replaced",
             "timers", "traced", "traced_children", "uring", "vfork_exec", "zero_first"],
    "early": ["alignment_check", "altstack_heap", "cancel_deferred", "clone_raw", "data_and_bss", "exec_environment", "fork_evicted", "fork_in_handler", "gs_base",
              "kernel_pins", "madvise_fork", "mask_threads", "mlocked", "own_sigbus", "own_sigsegv", "program_break", "protections",
              "queued_signals", "sigaction_query", "spawn", "stack_in_heap", "timers", "vfork_exec"],
    "dormant": ["alignment_check", "clone3_arguments", "close_all", "credentials", "daemon", "descriptors", "exec_environment", "exec_variants", "filter_asks",
                "filter_inherited", "filter_ioctl", "filter_traps", "filter_userfaultfd", "fork_storm", "hints", "ioctl_effects",
                "kernel_pins", "mremap_realloc", "privileges", "relocated", "resource_limits", "sent_to_fresh_child", "spawn", "static_program",
                "stderr_replaced", "thread_turnover", "traced_children", "uring", "vfork_exec"],
    "no-background": ["own_tables"],
    "device": ["clone_files", "close_all", "credentials", "descriptor_table_full", "descriptors", "exec_variants", "fork_raw",
               "fork_storm", "own_tables", "own_userfaultfd", "proc_self", "spawn", "vfork_exec", "vfork_killed"],
    "folios": ["clean_pages", "data_and_bss", "fork_evicted", "huge_pages", "jumps_out_of_short_calls", "kernel_pins", "madvise_fork",
               "mlock_on_fault", "mremap_moves", "parallel_faults", "process_tree_pressure", "program_break", "protections", "splices"],
}


# What makes a userfaultfd where the system call may not.
DEVICE = "/dev/userfaultfd"
# Where files are in memory, and how much room makes it worth it.
MEMORY = "/dev/shm"
# Programs that are about what Ebb does with a disk.
ON_DISK = {"filter_flights", "own_mappings"}
ROOM = 1 << 30


def has_room(directory):
    try:
        status = os.statvfs(directory)
    except OSError:
        return False
    return os.access(directory, os.W_OK) and status.f_bavail * status.f_frsize >= ROOM


def build(source, into):
    name = os.path.basename(source)[:-2]
    program = os.path.join(into, name)
    command = ["gcc", "-O1", "-g", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-Wno-stringop-overread",
               "-Wno-stringop-overflow", "-Wno-infinite-recursion", "-pthread", f'-DNAME="{name}"',
               *LINKED.get(name, []), "-o", program, source]
    done = subprocess.run(command, capture_output=True, text=True)
    return name, program, done.stderr if done.returncode else ""


def run(program, variant, ebb, args, scratch):
    under_ebb, as_user, force = VARIANTS[variant]
    name = os.path.basename(program)
    here = tempfile.mkdtemp(prefix=f"{name}-", dir=scratch)
    os.chmod(here, 0o777)
    spill = tempfile.mkdtemp(prefix="spill-", dir=here if name in ON_DISK else args.spill or here)
    os.chmod(spill, 0o777)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("EBB_") and k != "LD_PRELOAD"}
    environment["EBB_TMPDIR"] = spill
    if force:
        environment["EBB_FORCE"] = force
    command = [program]
    if under_ebb:
        command = [ebb, "run", "-q", "--ram", RAM.get(name, args.ram), "--", program]
    if as_user and os.geteuid() == 0:
        command = NOBODY + command
    start = time.monotonic()
    process = subprocess.Popen(command, cwd=here, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, start_new_session=True)
    try:
        output, _ = process.communicate(timeout=args.timeout)
        why = ""
    except subprocess.TimeoutExpired:
        why = f"did not end within {args.timeout} s"
        if args.keep_hung:
            why += f" and is left running as {process.pid}"
            output = b""
        else:
            end_session(process.pid)
            output, _ = process.communicate()
    took = time.monotonic() - start
    lines = output.decode(errors="replace").strip().split("\n")
    last = lines[-1]
    left = os.listdir(spill)
    if not why and left:
        why = f"left {left} in EBB_TMPDIR"
    if process.returncode == 77 and last.startswith("skip "):
        result = "skip"
    elif why or process.returncode != 0 or len(lines) != 1 or not last.startswith(f"ok {name} "):
        result = "FAIL"
        why = why or f"exit status {process.returncode}"
    else:
        result = "ok"
    shutil.rmtree(here, ignore_errors=True)
    detail = last.split(" ", 2)[-1] if result != "FAIL" else f"{why}: " + " | ".join(lines[-6:])
    return result, f"{result:4} {variant:18} {name:26} {took:6.2f} s  {detail}"


def end_session(leader):
    """Kills what is left of the session that this driver started."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as file:
                    fields = file.read().rsplit(")", 1)[1].split()
                if int(fields[3]) == leader:
                    os.kill(int(entry), signal.SIGKILL)
            except (OSError, IndexError):
                pass


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plain", action="store_true", help="only without ebb")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="only this program (may be repeated)")
    parser.add_argument("--variant", action="append", default=[], choices=VARIANTS, help="only this variant")
    parser.add_argument("--short", action="store_true",
                        help="only the programs that each variant is about; what is swapped out goes to /dev/shm where that has room")
    parser.add_argument("--ram", default="16M", help="budget under ebb (16M)")
    parser.add_argument("--jobs", type=int, default=2, help="programs at once (2)")
    parser.add_argument("--timeout", type=float, default=120, help="seconds for one program (120)")
    parser.add_argument("--repeat", type=int, default=1, help="runs of each program (1)")
    parser.add_argument("--keep-hung", action="store_true", help="leave a program that hangs for a debugger")
    args = parser.parse_args()
    args.spill = None
    # Ended from outside, this leaves nothing behind either.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    ebb = find_ebb()
    variants = args.variant or (["plain"] if args.plain else [
        "plain", "root", "user", "early", "early-user", "early-no-move", "dormant", "dormant-user", "no-move", "shared",
        "no-process-madvise", "no-background", "folios", *(["device"] if os.access(DEVICE, os.R_OK | os.W_OK) else [])])
    if any(VARIANTS[v][0] for v in variants) and not (ebb and os.path.exists(ebb)):
        sys.exit("run.py: there is no ebb: build it, or set EBB; or give --plain")
    if "device" in args.variant and not os.access(DEVICE, os.R_OK | os.W_OK):
        print(f"skip device: {DEVICE} cannot be opened here")
        variants.remove("device")
    sources = sorted(glob.glob(os.path.join(HERE, "*.c")))
    unknown = set(args.only) - {os.path.basename(s)[:-2] for s in sources}
    if unknown:
        sys.exit(f"run.py: no program is called {' or '.join(sorted(unknown))}; they are the files in tests/transparency, without .c")
    if args.only:
        sources = [s for s in sources if os.path.basename(s)[:-2] in args.only]
    scratch = tempfile.mkdtemp(prefix="ebb-transparency-")
    os.chmod(scratch, 0o755)
    # What these programs ask is not the disk's affair, and they wait for it for most of their time.
    if args.short and has_room(MEMORY):
        args.spill = tempfile.mkdtemp(prefix="ebb-transparency-", dir=MEMORY)
        os.chmod(args.spill, 0o755)
    passed = failed = skipped = 0
    try:
        with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
            programs = []
            for name, program, error in pool.map(lambda source: build(source, scratch), sources):
                if error:
                    failed += 1
                    print(f"FAIL build {name}\n{error}", flush=True)
                else:
                    programs.append(program)
            def is_wanted(program, variant):
                name = os.path.basename(program)
                # What tells of small processes says nothing of one that is managed from its start on.
                listed = name.startswith("dormant_") if variant == "dormant" else False
                wanted = SHORT.get(variant, [] if name.startswith("dormant_") else [name])
                return not args.short or listed or name in wanted

            work = [(p, v) for v in variants for p in programs if is_wanted(p, v) for _ in range(args.repeat)]
            for result, line in pool.map(lambda job: run(*job, ebb, args, scratch), work):
                passed += result == "ok"
                failed += result == "FAIL"
                skipped += result == "skip"
                print(line, flush=True)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        if args.spill:
            shutil.rmtree(args.spill, ignore_errors=True)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    sys.exit(1 if failed else 0)


main()
