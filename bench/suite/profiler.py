#!/usr/bin/env python3
"""Where the time of a workload under Ebb goes: samples of all its threads, by what they do, and as stacks for a flame graph.

    bench/suite/profiler.py --ram 183M -- target/release/ebb-bench-micro random-read --mib 256 --seconds 5

Samples by the clock, since virtual machines have no counters; needs perf. Writes folded stacks, one a line with its count, as
flame graph programs read them (inferno-flamegraph, flamegraph.pl), and draws the graph if one of these is installed.
"""

import argparse
import collections
import os
import re
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
TARGET = os.path.join(os.environ.get("CARGO_TARGET_DIR") or os.path.join(ROOT, "target"), "release")
# What a sample is part of: the first that one of its functions matches, from the innermost function outwards.
KINDS = [
    ("decompress", r"LZ4_decompress|decompress|codec::words::decode"),
    ("compress", r"LZ4_compress|_compress\b|::compress|codec::words::encode"),
    ("encrypt and files", r"aes|ghash|polyval|vfs_read|vfs_write|ext4|btrfs|xfs|blk_|io_schedule|pread|pwrite"),
    ("MOVE", r"move_pages|move_present_pte|uffdio_move"),
    ("COPY", r"mfill_atomic|userfaultfd_copy|uffdio_copy"),
    ("write-protect", r"mwriteprotect|userfaultfd_writeprotect|uffd_wp_range"),
    ("drop", r"madvise|zap_page_range|unmap_page_range"),
    ("flush", r"flush_tlb|smp_call_function|native_flush"),
    ("fault entry", r"asm_exc_page_fault|exc_page_fault|handle_userfault|force_sig|get_signal|setup_rt_frame|rt_sigreturn|restore_sigcontext|on_sigbus|ebb_entry"),
    ("locks and waits", r"futex|lock::|spin_lock|queued_spin|Lock|gate|sched_yield|schedule"),
    ("Ebb, the rest", r"^libebb_agent:|^ebb:"),
    ("system calls", r"entry_SYSCALL_64|do_syscall_64"),
    ("kernel, the rest", r"\[k\]"),
]
PATTERNS = [(name, re.compile(pattern)) for name, pattern in KINDS]
PROGRAM = "the program"
# Ebb's own thread, whatever of libc it is in.
RECLAIM, REST = "ebb-reclaim", "Ebb, the rest"
SAMPLE = re.compile(r"^(?P<comm>.*?)\s+(?P<pid>\d+)(?:/\d+)?(?:\s|$)")
FRAME = re.compile(r"^\s+[0-9a-f]+ (?P<symbol>.*?)(?:\+0x[0-9a-f]+)? \((?P<object>[^()]*)\)$")


def frames_of(lines):
    """The functions of a sample, innermost first; those of the kernel are marked."""
    found = []
    for line in lines:
        match = FRAME.match(line)
        if match:
            inside = match["object"]
            name = match["symbol"] if match["symbol"] != "[unknown]" else f"[{os.path.basename(inside)}]"
            is_kernel = inside.startswith("[kernel") or inside.endswith(".ko")
            library = {"libebb_agent.so": "libebb_agent:", "ebb": "ebb:"}.get(os.path.basename(inside), "")
            found.append(f"{library}{name}{'_[k]' if is_kernel else ''}")
    return found


def samples_of(text):
    """(thread's name, functions) of each sample of `perf script`."""
    for block in text.split("\n\n"):
        lines = block.strip("\n").splitlines()
        match = lines and SAMPLE.match(lines[0])
        if match:
            frames = frames_of(lines[1:])
            if frames:
                yield match["comm"].strip(), frames


def kind_of(thread, frames):
    # What functions of the program's own are called says nothing.
    known = [frame for frame in frames if frame.endswith("_[k]") or frame.startswith(("libebb_agent:", "ebb:"))]
    for name, pattern in PATTERNS:
        if any(pattern.search(frame) for frame in known):
            return name
    return REST if thread == RECLAIM else PROGRAM


def report(samples):
    """Lines: the share of each kind in the samples, by thread."""
    threads = collections.Counter(thread for thread, _ in samples)
    counts = collections.Counter((kind_of(thread, frames), thread) for thread, frames in samples)
    total = sum(threads.values())
    names = [name for name, _ in threads.most_common(4)]
    yield f"{'':20} {'all':>8} " + " ".join(f"{name[:15]:>16}" for name in names)
    kinds = collections.Counter(kind for kind, _ in counts.elements())
    for kind, count in kinds.most_common():
        each = " ".join(f"{100 * counts[kind, name] / total:15.1f}%" for name in names)
        yield f"{kind:20} {100 * count / total:7.1f}% {each}"


def fold(samples):
    """Stacks, outermost function first, under their kind."""
    stacks = collections.Counter(";".join([thread, kind_of(thread, frames), *reversed(frames)]) for thread, frames in samples)
    return "".join(f"{stack} {count}\n" for stack, count in sorted(stacks.items()))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--ram", required=True, help="Ebb's budget, such as 183M")
    parser.add_argument("--ebb", default=os.path.join(TARGET, "ebb"), help="the command to measure")
    parser.add_argument("--out", default=os.path.join(ROOT, "target/bench/profile"), help="what the files are called, without their ends")
    parser.add_argument("--frequency", type=int, default=997, help="samples a second and processor (997)")
    parser.add_argument("command", nargs="+", metavar="-- PROGRAM ARGS")
    chosen = parser.parse_args()
    if not shutil.which("perf"):
        sys.exit("profile: perf is not installed: apt-get install linux-perf")
    os.makedirs(os.path.dirname(os.path.abspath(chosen.out)), exist_ok=True)
    data = chosen.out + ".data"
    record = ["perf", "record", "-q", "-o", data, "-F", str(chosen.frequency), "-e", "cpu-clock", "-g", "--"]
    run = subprocess.run([*record, chosen.ebb, "run", "-q", "--ram", chosen.ram, "--", *chosen.command], stdout=subprocess.DEVNULL, check=False)
    if run.returncode != 0:
        sys.exit(f"profile: the run ended with status {run.returncode}")
    script = subprocess.run(["perf", "script", "-i", data, "-F", "comm,pid,tid,ip,sym,symoff,dso"], capture_output=True, text=True, check=False)
    samples = list(samples_of(script.stdout))
    if not samples:
        sys.exit(f"profile: perf found no samples: {script.stderr.strip()[-200:]}")
    folded = chosen.out + ".folded"
    with open(folded, "w", encoding="utf-8") as file:
        file.write(fold(samples))
    print("\n".join(report(samples)))
    print(f"profile: {len(samples)} samples; stacks in {folded}")
    for tool in ("inferno-flamegraph", "flamegraph.pl"):
        if shutil.which(tool):
            with open(chosen.out + ".svg", "w", encoding="utf-8") as file:
                subprocess.run([tool, folded], stdout=file, check=True)
            print(f"profile: drew {chosen.out}.svg")
            break


if __name__ == "__main__":
    main()
