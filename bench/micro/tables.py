"""The report: Markdown that reads well in a terminal too."""

from cells import ACCESS, SWAP

from rig.errors import MIB
from rig.text import number, table

TITLES = {"none": "all in RAM", "kernel": "kernel", "ebb": "Ebb", "engine": "engine"}
PAGE_BYTES = 4096


def spread(figure, scale=1.0):
    """Median, and least and most when there was more than one round."""
    if figure is None:
        return "-"
    text = number(figure.median * scale)
    if len(figure.values) > 1:
        low, high = sorted((figure.low * scale, figure.high * scale))
        text += f" ({number(low)}..{number(high)})"
    return text


def plain(figure, scale=1.0):
    return "-" if figure is None else number(figure.median * scale)


def ratio(figure):
    """A ratio to the kernel."""
    return spread(figure) if figure else "-"


def others(plan):
    return [system for system in plan.systems if system in ("ebb", "engine")]


def get(digest, cell, system, name):
    return digest.get(cell, {}).get(system, {}).get(name)


def rows_of(digest, cells, name, plan, scale, label=lambda cell: cell.name, with_none=False):
    rows = []
    for cell in cells:
        row = [label(cell)]
        if with_none:
            row.append(plain(get(digest, cell, "none", name), scale))
        row.append(spread(get(digest, cell, "kernel", name), scale))
        for system in others(plan):
            figure = get(digest, cell, system, name)
            row += [spread(figure, scale), ratio(get(digest, cell, system, "/" + name))]
            row.append(ratio(get(digest, cell, system, f"/{name} cpu")))
        if any(text != "-" for text in row[1:]):
            rows.append(row)
    return rows


def heads(first, plan, with_none=False):
    head = [first, *([TITLES["none"]] if with_none else []), TITLES["kernel"]]
    for system in others(plan):
        head += [TITLES[system], f"{TITLES[system]}/kernel", "the same, processor time"]
    return head


def ram_line(results, cells, plan):
    """What RAM the systems had, over the cells given."""
    totals = [
        run["total_bytes"] / MIB
        for cell in cells
        for run in results.get(cell, {}).get("kernel", [])
        if "total_bytes" in run
    ]
    if not totals:
        return ""
    low, high = min(totals), max(totals)
    limit = plan.limit_mib(cells[0])
    span = f"{low:.0f} MiB" if round(low) == round(high) else f"{low:.0f} to {high:.0f} MiB"
    return (
        f"{plan.mib} MiB of data. The kernel's cgroup limit is {limit} MiB. With zram's peak that is {span} in all, which is Ebb's"
        " `--ram`."
    )


def aim(digest, plan):
    """How far the aim is reached: half the kernel's cost of a miss, a quarter of its cost of a page in order."""
    lines = []
    for system in others(plan):
        for name, title, wanted in (("miss", "cost of a miss", 0.5), ("access", "cost of a page in order", 0.25)):
            in_order = name == "access"
            figures = [
                get(digest, cell, system, "/" + name) for cell in ACCESS if cell.workload.startswith("seq") == in_order
            ]
            medians = [figure.median for figure in figures if figure]
            if medians:
                reached = sum(median <= wanted for median in medians)
                lines.append(
                    f"- {TITLES[system]}: the {title} is {number(min(medians))} to {number(max(medians))} of the kernel's."
                    f" {reached} of {len(medians)} rows reach the aim of {wanted}."
                )
    return [*lines, ""] if lines else []


def access_report(digest, results, plan):
    by_miss = [cell for cell in ACCESS if not cell.workload.startswith("seq")]
    in_order = [cell for cell in ACCESS if cell.workload.startswith("seq")]
    out = ["### Steady state", "", ram_line(results, ACCESS, plan), ""]
    misses = rows_of(digest, by_miss, "miss", plan, 1e-3)
    if misses:
        out += [
            "Microseconds per miss: what an access costs beyond an access with all in RAM, divided by the share of accesses whose",
            "page was not in memory. Everything that Ebb spends is included: reclaim, and faults on pages that were only staged.",
            "",
            table(heads("per miss, us", plan), misses),
            "",
        ]
    scans = rows_of(digest, in_order, "access", plan, 1e-3, with_none=True)
    if scans:
        out += [
            "Microseconds per page of a repeated scan:",
            "",
            table(heads("per page, us", plan, True), scans),
            "",
        ]
    out += [
        "Microseconds per access, over hits and misses, and the share of accesses that missed:",
        "",
    ]
    rows = []
    for cell in ACCESS:
        if cell not in results:
            continue
        row = [cell.name]
        for system in plan.systems:
            row.append(plain(get(digest, cell, system, "access"), 1e-3))
            if system != "none":
                missing = get(digest, cell, system, "missing")
                row.append("-" if missing is None else f"{missing.median:.1%}")
        rows.append(row)
    head = ["per access, us"]
    for system in plan.systems:
        head += [TITLES[system]] if system == "none" else [TITLES[system], "missed"]
    out += [table(head, rows), "", "Latency of single accesses in microseconds, at the 50th, 99th and 99.9th percentile:", ""]
    rows = []
    for cell in ACCESS:
        if cell not in results:
            continue
        row = [cell.name]
        for system in plan.systems:
            figures = [get(digest, cell, system, name) for name in ("p50", "p99", "p999")]
            row.append("-" if None in figures else " / ".join(plain(figure, 1e-3) for figure in figures))
        rows.append(row)
    out += [table(["latency, us", *(TITLES[system] for system in plan.systems)], rows), ""]
    return out


def swap_report(digest, results, plan):
    fair = [cell for cell in SWAP if cell.data != "hard"]
    out = ["### Swap-out and swap-in", "", ram_line(results, fair, plan)]
    hard = [
        run["total_bytes"] / MIB
        for cell in SWAP
        if cell.data == "hard"
        for run in results.get(cell, {}).get("kernel", [])
        if "total_bytes" in run
    ]
    if hard:
        out.append(
            f"Hard data is the exception. It takes as much RAM in zram as outside ({max(hard):.0f} MiB in all), and with that"
            f" much RAM Ebb would swap nothing. For hard data Ebb gets only the cgroup's {plan.swap_limit_mib} MiB, and a file on disk."
        )
    for name, title in (("out", "Filling memory beyond the budget"), ("in", "Reading it back in order for the first time")):
        out += ["", f"{title}, microseconds per page:", ""]
        out.append(
            table(
                heads(f"swap-{name}, us", plan),
                rows_of(digest, SWAP, name, plan, 1e-3, lambda cell: f"{cell.data} {cell.threads}T"),
            )
        )
        out += ["", "The same in MiB/s, all threads together:", ""]
        rows = []
        for cell in SWAP:
            if cell not in results:
                continue
            row = [f"{cell.data} {cell.threads}T"]
            for system in ("kernel", *others(plan)):
                figure = get(digest, cell, system, name)
                row.append("-" if figure is None else number(PAGE_BYTES / MIB / (figure.median * 1e-9)))
            rows.append(row)
        out.append(table([f"swap-{name}, MiB/s", TITLES["kernel"], *(TITLES[s] for s in others(plan))], rows))
    return [*out, ""]


def held(run, prefix):
    """Anonymous memory of redis and its children at most, and zram's peak with it."""
    zram = run.get("save_zram_peak_bytes", 0) if prefix else run.get("zram", {}).get("peak_bytes", 0)
    return run[prefix + "anonymous_peak_bytes"] + zram


def redis_report(results, sizes, plan):
    nr_keys, limit_mib, _ = sizes
    good = {system: [run for run in runs if "failed" not in run] for system, runs in results.items()}
    used = [run["used_memory_bytes"] / MIB for runs in good.values() for run in runs]
    out = ["### redis GET", ""]
    if used:
        out.append(
            f"{nr_keys:,} values of 1 KiB, all different, take {min(used):.0f} MiB by redis's own count. The kernel's cgroup limit is"
            f" {limit_mib} MiB. Ebb's `--ram` is that limit plus zram's peak. Client: `redis-benchmark -t get -c 12 -P 32`."
        )
    systems = [system for system in plan.systems if good.get(system)]
    head = ["", *(TITLES[system] for system in systems)]
    with_ratio = "kernel" in systems and "ebb" in systems
    if with_ratio:
        head.append("Ebb/kernel")

    def row(title, take, scale=1.0, compare=False):
        cells = [title]
        for system in systems:
            values = sorted(take(run) * scale for run in good[system] if take(run) is not None)
            if not values:
                cells.append("-")
                continue
            text = number(values[len(values) // 2] if len(values) % 2 else sum(values[len(values) // 2 - 1 :][:2]) / 2)
            cells.append(text if len(values) == 1 else f"{text} ({number(values[0])}..{number(values[-1])})")
        if with_ratio:
            pairs = {run["round"]: take(run) for run in good["kernel"]}
            values = sorted(take(run) / pairs[run["round"]] for run in good["ebb"] if pairs.get(run["round"]))
            cells.append(number(values[len(values) // 2]) if compare and values else "")
        return cells

    rows = [
        row("GET, requests/s", lambda run: run["get_rps"], compare=True),
        row("GET during BGSAVE, requests/s", lambda run: run["save_get_rps"], compare=True),
        row("BGSAVE, s", lambda run: run["save_s"], compare=True),
        row("loading, s", lambda run: run["load_s"], compare=True),
        row("RAM allowed, MiB", lambda run: run.get("total_bytes"), 1 / MIB),
        row("the same during BGSAVE, MiB", lambda run: run.get("save_total_bytes"), 1 / MIB),
        row("anonymous memory and zram at most, MiB", lambda run: held(run, ""), 1 / MIB),
        row("the same during BGSAVE, MiB", lambda run: held(run, "save_"), 1 / MIB),
    ]
    out += ["", table(head, rows), ""]
    if "ebb" in systems:
        out.append(
            "The child that BGSAVE forks shares the limit or the budget with its parent. zram takes more RAM then, so Ebb runs"
            " twice: with the RAM that the kernel's side took before BGSAVE, and, for the figures of BGSAVE, with the RAM that it"
            " took in all."
        )
    if any(not run["save_covered_whole"] for runs in good.values() for run in runs):
        out.append("Some BGSAVE ended within the first requests beside it, so that part of these ran without it.")
    return [*out, ""]


def failures(results, redis_results):
    lines = [
        f"- {cell.name}, {system}, round {run['round'] + 1}: {run['failed']}"
        for cell, of_cell in results.items()
        for system, runs in of_cell.items()
        for run in runs
        if "failed" in run
    ]
    lines += [
        f"- redis, {system}, round {run['round'] + 1}: {run['failed']}"
        for system, runs in redis_results.items()
        for run in runs
        if "failed" in run
    ]
    return ["### Failed", "", *lines, ""] if lines else []
