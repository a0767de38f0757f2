"""The report: one table for each kind of workload, with what the work it is taken from says of itself."""

import shlex
import statistics

from rig import place, swap
from rig.errors import MIB, Failed
from rig.figures import Figure, gains, interval
from rig.machine import load_text
from rig.text import nr_rounds, number, table

MARKS = ("<!-- what bench/suite/run.py printed -->", "<!-- end of what it printed for the suite -->")
# Where a kind of workload comes from, and what the patches there changed (kernel before -> after).
TABLES = {
    "usemem": ("Using memory: usemem of vm-scalability", (
        "THP swap (v4, 2017), `swap-w-seq` on a RAM disk that stands for persistent memory: 1.12 -> 1.25 GB/s swapped out"
        " (+12.1 %). Swap table, phase II (2025), `usemem -n 32 1536M`: 5,677 -> 5,689 MB/s in all, 176 MB/s a process. In"
        " `swap-w-seq`, `swap-w-rand` and `swapin` the limit is a quarter of the data; in `anon-w-rand` and `anon-cow` it is half."
        " Latencies are those of single accesses.")),
    "pageout": ("All of it swapped out, and read again", (
        "zswap invalidation (2024), 4 GiB of zeros and 0x1 on a RAM disk, read in: 2.32 -> 2.28 s (4.6 us a page for 2 GiB of"
        " 0x1: 4.62 -> 4.60 s). Swap-in refactor (2023), 10 GiB of zeros on zram, read in: 12.48 -> 12.01 s (4.6 us a page). RAM is"
        " not short in these rows: the kernel's side has no limit, and Ebb's budget is twice the data and 64 MiB. *RAM in all* is"
        " what the kernel's side took.")),
    "redis": ("redis: GET at random over twice the limit", (
        "Swap table, phase II: `redis-benchmark -r 3000000 -d 1024 -c 12 -P 32 -t get` on x86-64, 306,044 -> 309,645 requests/s"
        " without persistence, 102,746 -> 125,313 (+22 %) during BGSAVE.")),
    "sysbench": ("MariaDB and sysbench: a buffer pool of twice the limit", (
        "Swap table, phase II: `oltp_read_only`, 16 tables of 1,000,000 rows, 96 threads, 512 MiB for a pool of 3 GiB: 318,162 ->"
        " 318,512 queries/s.")),
    "builds": ("Builds with make: more jobs and more RAM from row to row", (
        "Allocator locks (2024), `make -j6 .. -j96` in 192 MiB .. 1.5 GiB: total time -0.3 % with 6 jobs, -33 % with 48"
        " (330 -> 221 s), -36 % with 96 (283 -> 180 s); system time -0.3 .. -47 %.")),
    "copies": ("Whole pages copied in and out at random, like fio's mmap engine", (
        "Swap-in refactor: `fio --ioengine=mmap --rw=randrw`, 16 jobs on tmpfs in 2 GiB with lzo-rle: zipf 1.2 7,339 -> 7,305 MiB/s"
        " (reads; writes are as many), zipf 0.5 770 -> 775, uniform 537 -> 552 (+2.7 %). fio's processes share a file on tmpfs. Ebb"
        " manages private memory, so these rows run one process with two threads, and their figure counts reads and writes.")),
    "access": ("Single accesses", (
        "256 MiB of data like a heap's, a limit of 102 MiB. A miss costs what an access costs beyond an access with all in RAM, divided"
        " by the share of accesses whose page was not in memory. Everything that Ebb spends is included: reclaim, and faults on pages"
        " that were only staged. zipf-read has an exponent of 0.99. seq-read and seq-write are a repeated scan.")),
    "swapping": ("Swap-out and swap-in by kind of data", (
        "256 MiB of data, a limit of 64 MiB. *out*: memory is filled beyond RAM. *in*: it is read back in order for the first time."
        " 1 us a page is 3,906 MiB/s. Hard data takes as much RAM in zram as outside, and with that much RAM Ebb would swap nothing:"
        " for hard data Ebb gets only the limit, and a file on disk.")),
    "allocators": ("Allocators: threads that allocate, resize and free", (
        "This workload comes from no kernel patch. Blocks of 16 bytes to 64 KiB, some 100 MiB in all, a limit of 48 MiB. glibc grows"
        " its heaps page by page; the others map and give back in pieces. Busy loops take the processors away at any moment.")),
    "analytics": ("Analytics over more rows than fit", (
        "This workload comes from no kernel patch. numpy.memmap and blosc2 are the same job written for little RAM. They have no"
        " swap, and their limit is the RAM that the row of numpy had in all.")),
    "noswap": ("A container without swap", (
        "Both sides have the same limit. Ebb runs inside it, and its budget is three quarters of the limit. *RAM in all* is that"
        " budget.")),
    "disk": ("A disk behind memory", (
        "This workload comes from no kernel patch. 1 GiB of random data, or of data like a heap's, in a limit of 128 MiB, which counts"
        " everything on both sides: anonymous memory, page cache and what the kernel has for the run. Ebb runs inside the limit, and"
        " its budget is three quarters of it. *RAM in all* is the limit. The swap file, Ebb's file and fio's are in one directory. fio reads"
        " and writes past the page cache, one request at a time for each thread: pages at random, 1 MiB in order.")),
    "zswap": ("RAM first, then the disk: zswap and its swap file", (
        "This workload comes from no kernel patch. 4 GiB of data like a heap's, a limit of 384 MiB. zswap may fill 1 % of the machine's"
        " RAM, and the rest goes to its swap file. Ebb's budget is all that, and its file is in the same directory.")),
    "programs": ("Programs that nobody tuned Ebb for", (
        "This workload comes from no kernel patch. Many languages with their own collectors, many allocators, compressors and tools. The"
        " limit is 55 % of the anonymous memory that a program needs; both stand in the row. *Of the time alone* is the time by the"
        " median of the time with all in RAM.")),
    "curve": ("Slowdown by RAM", (
        "One thread uses 256 MiB. The kernel's limit is the named part of the 256 MiB. The plots show the RAM that each side had in"
        " all.")),
}


def by_round(runs, case, where, metric):
    """{round: value} of a metric of a row in a place."""
    of_it = (run for run in runs if run["table"] == case.table and run["case"] == case.name and run["place"] == where)
    return {run["round"]: run["values"][metric.name] for run in of_it if metric.name in run.get("values", {})}


def gains_of(runs, case, metric, where, kernel):
    """How many times better a row is in a place than in a kernel's, round by round."""
    ours, theirs = (by_round(runs, case, name, metric) for name in (where, kernel))
    return gains(ours, theirs, metric.more_is_better)


def spread(values, places):
    figure = Figure(values)
    text = f"{figure.median:,.{places}f}"
    return text if len(figure.values) < 2 else f"{text} ({figure.low:,.{places}f}..{figure.high:,.{places}f})"


def gain(values):
    """How many times better, and between which bounds most likely."""
    if not values:
        return "-"
    sure = interval(values)
    return number(statistics.median(values)) + (f" [{number(sure[0])}..{number(sure[1])}]" if sure else "")


def state(runs, case, where):
    """What became of a row in a place that has no figures."""
    of_it = [run for run in runs if (run["table"], run["case"], run["place"]) == (case.table, case.name, where)]
    if any("killed" in run for run in of_it):
        return f"killed ({sum('killed' in run for run in of_it)} of {len(of_it)})"
    if any("failed" in run for run in of_it):
        return "failed"
    return "-" if of_it else ""


def total(runs, case, where):
    had = [run["total_bytes"] / MIB for run in runs if (run["table"], run["case"], run["place"]) == (case.table, case.name, where) and "total_bytes" in run]
    return f"{statistics.median(had):.0f}" if had else ""


def beside(runs, case, places):
    """Page cache and kernel memory of a row in these places, one after the other."""
    def median(where, name):
        of_it = (run for run in runs if (run["table"], run["case"], run["place"]) == (case.table, case.name, where))
        had = [run[name] / MIB for run in of_it if name in run]
        return f"{statistics.median(had):.0f}" if had else "-"

    found = [(median(where, "page_cache_bytes"), median(where, "kernel_bytes")) for where in places]
    return "; ".join(" + ".join(pair) for pair in found) if any(value != "-" for pair in found for value in pair) else ""


def kernel_of(found, name):
    """The kernel's place that a table compares with: the first of the run, or where the table has others, its own first."""
    had = {run["place"] for run in found["runs"] if run["table"] == name}
    wanted = [where for where in found["places"] if where in swap.KINDS]
    return next((where for where in (*wanted, *swap.KINDS) if where in had), None)


def ours_of(places, first_kernel):
    """The places that are compared with the kernel's."""
    return [where for where in place.OURS if where in places and first_kernel in places]


def rows_of(runs, cases, places, first_kernel):
    compared = [where for where in (first_kernel, place.EBB) if where in places]
    ours = ours_of(places, first_kernel)
    rows = []
    for case in cases:
        for metric in case.metrics:
            values = {where: by_round(runs, case, where, metric) for where in places}
            row = [case.name if metric is case.metrics[0] else "", f"{metric.name}, {metric.unit}"]
            for where in places:
                found = values[where]
                row.append(spread(found.values(), metric.places) if found else state(runs, case, where))
            row += [gain(gains_of(runs, case, metric, where, first_kernel)) for where in ours]
            is_first = metric is case.metrics[0]
            row.append(total(runs, case, compared[0]) if is_first and compared else "")
            row.append(beside(runs, case, compared) if is_first else "")
            if any(row[2:]):
                rows.append(row)
    return rows


def aims(runs, cases, places, first_kernel):
    """How many rows reach what Ebb aims at, by what counts in them."""
    lines = []
    for aim, metric in dict.fromkeys((case.aim, case.metrics[0]) for case in cases if case.aim):
        alike = [case for case in cases if (case.aim, case.metrics[0]) == (aim, metric)]
        for where in ours_of(places, first_kernel):
            by_row = [gains_of(runs, case, metric, where, first_kernel) for case in alike]
            medians = [statistics.median(values) for values in by_row if values]
            if medians:
                lines.append(
                    f"- {place.title(where)} is better by {number(min(medians))} to {number(max(medians))} in *{metric.name}*."
                    f" {sum(value >= aim for value in medians)} of {len(medians)} rows reach the aim of {aim}."
                )
    return [*lines, ""] if lines else []


def overall(runs, cases, places, first_kernel):
    """How many times better the rows of a table are together, and the least, by what counts in each."""
    lines = []
    for where in ours_of(places, first_kernel):
        by_row = {case.name: gains_of(runs, case, case.metrics[0], where, first_kernel) for case in cases}
        medians = {name: statistics.median(values) for name, values in by_row.items() if values}
        if len(medians) > 1:
            least = min(medians, key=medians.get)
            killed = sum(not by_row[case.name] and state(runs, case, first_kernel).startswith("killed") for case in cases)
            lines.append(
                f"- {place.title(where)} is better by {number(statistics.geometric_mean(medians.values()))}, the geometric mean of"
                f" {len(medians)} rows. The least is {number(medians[least])}: {least}."
                + (f" In {killed} more the kernel killed the program." if killed else "")
            )
    return [*lines, ""] if lines else []


def section(name, found, cases):
    runs = [run for run in found["runs"] if run["table"] == name]
    of_it = [cases[key] for key in dict.fromkeys((run["table"], run["case"]) for run in runs)]
    wanted = [place.ALONE, place.NO_SWAP, place.DEVICE, *swap.KINDS, *place.OURS]
    places = [where for where in wanted if any(run["place"] == where for run in runs)]
    first_kernel = kernel_of(found, name)
    head = ["", "", *(place.title(where) for where in places)]
    head += [f"{place.title(where)} is better by" for where in ours_of(places, first_kernel)]
    head.append("RAM in all, MiB")
    head.append("page cache + kernel memory, MiB: " + "; ".join(place.title(where) for where in (first_kernel, place.EBB) if where in places))
    heading, source = TABLES[name]
    rows = rows_of(runs, of_it, places, first_kernel)
    return [f"### {heading}", "", source, "", *aims(runs, of_it, places, first_kernel), *overall(runs, of_it, places, first_kernel), table(head, rows), ""]


def summary(found, cases):
    """Each row's one ratio: how many times better Ebb is by what counts, wins and losses alike."""
    first_kernel = next((where for where in found["places"] if where in swap.KINDS), None)
    rows = []
    in_order = sorted(found["runs"], key=lambda run: list(TABLES).index(run["table"]))
    for key in dict.fromkeys((run["table"], run["case"]) for run in in_order if run["table"] != "curve"):
        case = cases[key]
        metric = case.metrics[0]
        kernel = kernel_of(found, case.table)
        values = gains_of(found["runs"], case, metric, place.EBB, kernel)
        if values:
            middle = statistics.median(values)
            beside_other = "" if kernel == first_kernel else f" (beside {place.title(kernel)})"
            rows.append([case.table, case.name + beside_other, metric.name, gain(values), "" if middle >= 1 else "**slower**"])
    return [table(["", "", "by", f"Ebb against {place.title(first_kernel)}", ""], rows), ""] if rows else []


def completed(found, cases):
    """What was found, with the values that cases derive from those with all in RAM, whichever round had them."""
    alone = {}
    for run in found["runs"]:
        if run["place"] == place.ALONE:
            for name, value in run.get("values", {}).items():
                alone.setdefault((run["table"], run["case"]), {}).setdefault(name, []).append(value)
    medians = {key: {name: statistics.median(values) for name, values in of_it.items()} for key, of_it in alone.items()}

    def whole(run):
        if "values" not in run:
            return run
        key = run["table"], run["case"]
        return run | {"values": run["values"] | cases[key].derived(run["values"], medians.get(key))}

    return found | {"runs": [whole(run) for run in found["runs"]]}


def parts_of(found):
    """The runs that it was put together from: how each was made, and the tables it has."""
    of_one = {key: found[key] for key in ("arguments", "machine", "settings", "load", "rounds")}
    return found.get("parts") or [of_one | {"tables": tables_of(found["runs"])}]


def tables_of(runs):
    return sorted({run["table"] for run in runs}, key=list(TABLES).index)


def joined(found, earlier):
    """What a run found, with the tables of an earlier one that it has not."""
    if found["quick"] != earlier["quick"]:
        raise Failed("a quick run and one that is not cannot be joined")
    new = {run["table"] for run in found["runs"]}
    kept = [run for run in earlier["runs"] if run["table"] not in new]
    parts = [part | {"tables": [name for name in part["tables"] if name not in new]} for part in parts_of(earlier)]
    skipped = [one for one in earlier["skipped"] if one["table"] not in new] + found["skipped"]
    return found | {"runs": kept + found["runs"], "skipped": skipped, "parts": [part for part in parts if part["tables"]] + parts_of(found)}


def setting(part):
    """What a run was made on, and under which settings."""
    here, kernel = part["machine"], part["settings"]
    return [
        f"{here['processor']}, {here['processors']} processors, {here['memory_mib']} MiB, Linux {here['kernel']}.",
        f"At most {nr_rounds(part['rounds'])}, by turns. Kernel: {', '.join(f'{name} {value}' for name, value in kernel.items())}.",
    ]


def made(part):
    """By which command a run was made, when, and under which load."""
    command = shlex.join(["bench/suite/run.py", *part["arguments"]])
    return f"`{command}`, {part['machine']['date']}. {load_text(part['load'], part['machine'])}"


def origins(parts):
    """How the runs were made; what they have in common is said once."""
    if len(parts) == 1:
        return [*setting(parts[0]), f"Command: {made(parts[0])}", ""]
    alike = all(setting(part) == setting(parts[0]) for part in parts)
    lines = ["All runs: " + " ".join(setting(parts[0])), ""] if alike else []
    for part in parts:
        own = "" if alike else " ".join(setting(part)) + " "
        lines.append(f"- **{', '.join(part['tables'])}**: {own}{made(part)}")
    return [*lines, ""]


# Less page cache than this is no part of what a cgroup held that matters.
LITTLE_CACHE_BYTES = 1 << 20


def above_budget(found):
    """What a cgroup of Ebb's held above the budget at its peak, where it held next to no page cache: the run that had most."""

    def above(run):
        return (run["held_bytes"] - run["account"]["counters"]["ram_limit_bytes"]) / MIB

    def counts(run):
        return run["place"] == "ebb" and "account" in run and run.get("page_cache_bytes", LITTLE_CACHE_BYTES) < LITTLE_CACHE_BYTES

    runs = [run for run in found["runs"] if counts(run)]
    if not runs:
        return []
    most = max(runs, key=above)
    return [
        f"The kernel's count of the most memory that a run of Ebb's took in all, kernel memory included: {above(most):+.1f} MiB beside"
        f" its budget ({most['table']}, {most['case']}; the most of {len(runs)} runs with less than 1 MiB of page cache).",
        "",
    ]


def text(found, cases):
    found = completed(found, cases)
    lines = origins(parts_of(found))
    lines += [
        "Each cell has the median of the rounds, with (least..most). *Ebb is better by* compares throughput or time of Ebb with the"
        " kernel's, round by round: the median, and its 95 % bootstrap interval. Below 1 Ebb is slower. *RAM in all* is what the"
        " kernel's side had: the most that its cgroup held within the limit, page cache and kernel memory included, plus the most RAM"
        " that its swap took. Ebb's budget is the same amount; where the kernel's run was killed, it is what that run had until then."
        " Page cache and kernel memory of Ebb's cgroup come on top of the budget. The last column has the most of each, for both"
        " sides.",
        "",
    ]
    if found["quick"]:
        lines += ["**Quick run: sizes and times are too small to say anything but that it works.**", ""]
    lines += above_budget(found)
    lines += summary(found, cases)
    for name in TABLES:
        if any(run["table"] == name for run in found["runs"]):
            lines += section(name, found, cases)
    if found["skipped"]:
        lines += ["Left out:", "", *(f"- {one['table']}, {one['case']}: {one['why']}" for one in found["skipped"]), ""]
    bad = [run for run in found["runs"] if "failed" in run]
    if bad:
        lines += ["Failed:", "", *(f"- {run['table']}, {run['case']}, {run['place']}, round {run['round'] + 1}: {run['failed']}" for run in bad), ""]
    return "\n".join(lines).rstrip()
