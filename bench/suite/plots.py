"""Plots of a run's figures, as SVG: slowdown by RAM, latency, and throughput by threads and processes. Needs matplotlib."""

import os
import statistics

from rig import place, swap
from rig.errors import MIB

COLOURS = {place.ALONE: "#777777", "zram-lz4": "#c0392b", "zram-lzo-rle": "#e67e22", "zswap": "#8e44ad", place.EBB: "#1f6fb2"}
MARKERS = {place.ALONE: "^", "zram-lz4": "s", "zram-lzo-rle": "D", "zswap": "v", place.EBB: "o"}


def library():
    import matplotlib

    matplotlib.use("svg")
    # The same bytes for the same figures.
    matplotlib.rcParams.update({"svg.hashsalt": "ebb", "svg.fonttype": "none", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3,
                                "axes.spines.top": False, "axes.spines.right": False})  # fmt: skip
    from matplotlib import pyplot

    return pyplot


def save(figure, directory, name):
    path = os.path.join(directory, name + ".svg")
    figure.savefig(path, metadata={"Date": None}, bbox_inches="tight")
    return path


def median_of(runs, metric):
    values = [run["values"][metric] for run in runs if metric in run.get("values", {})]
    return statistics.median(values) if values else None


def groups(runs, key):
    found = {}
    for run in runs:
        found.setdefault(key(run), []).append(run)
    return found


def slowdown(pyplot, found, cases, directory):
    """How many times as long an access takes as with all in RAM, by what RAM there was in all."""
    runs = [run for run in found["runs"] if run["table"] == "curve"]
    curves = list(dict.fromkeys(cases["curve", run["case"]].curve for run in runs))
    if not curves:
        return None
    figure, axes = pyplot.subplots(1, len(curves), figsize=(3.2 * len(curves), 3), sharey=True, squeeze=False)
    for axis, curve in zip(axes[0], curves):
        of_it = [run for run in runs if cases["curve", run["case"]].curve == curve]
        alone = median_of([run for run in of_it if run["place"] == place.ALONE], "access")
        if not alone:
            continue
        for where in (*swap.KINDS, place.EBB):
            points = []
            for name, at_point in groups([run for run in of_it if run["place"] == where], lambda run: run["case"]).items():
                value = median_of(at_point, "access")
                had = [run["total_bytes"] for run in at_point if "total_bytes" in run]
                if value and had:
                    points.append((100 * statistics.median(had) / MIB / cases["curve", name].mib, value / alone))
            if points:
                axis.plot(*zip(*sorted(points)), marker=MARKERS[where], color=COLOURS[where], label=place.title(where), markersize=4)
        axis.set_title(curve)
        axis.set_yscale("log")
        axis.set_xlabel("RAM in all, % of the data")
        axis.invert_xaxis()
    axes[0][0].set_ylabel("time of an access, all in RAM = 1")
    axes[0][0].legend(frameon=False)
    return save(figure, directory, "slowdown")


def latency(pyplot, found, cases, directory):
    """Latencies of single accesses, by percentile."""
    runs = [run for run in found["runs"] if run["table"] in ("usemem", "copies")]
    rows = list(dict.fromkeys((run["table"], run["case"]) for run in runs))
    if not rows:
        return None
    metrics = ("p50", "p99", "p99.9")
    columns = min(4, len(rows))
    height = -(-len(rows) // columns)
    figure, axes = pyplot.subplots(height, columns, figsize=(2.7 * columns, 2.3 * height), sharey=True, squeeze=False)
    for axis in axes.flat[len(rows) :]:
        axis.set_visible(False)
    for axis, row in zip(axes.flat, rows):
        for where in (place.ALONE, *swap.KINDS, place.EBB):
            of_it = [run for run in runs if (run["table"], run["case"]) == row and run["place"] == where]
            values = [median_of(of_it, metric) for metric in metrics]
            if None not in values:
                axis.plot(metrics, values, marker=MARKERS[where], color=COLOURS[where], label=place.title(where), markersize=4)
        axis.set_title(row[1], fontsize=8)
        axis.set_yscale("log")
    for axis in axes[:, 0]:
        axis.set_ylabel("us")
    axes[0][0].legend(frameon=False, fontsize=7)
    figure.tight_layout()
    return save(figure, directory, "latency")


def throughput(pyplot, found, cases, directory):
    """Throughput of usemem by threads and processes."""
    runs = [run for run in found["runs"] if run["table"] == "usemem"]
    kinds = list(dict.fromkeys(run["case"].rsplit(" ", 1)[0] for run in runs))
    if not kinds:
        return None
    figure, axes = pyplot.subplots(1, len(kinds), figsize=(2.6 * len(kinds), 2.8), squeeze=False)
    for axis, kind in zip(axes[0], kinds):
        of_it = [run for run in runs if run["case"].rsplit(" ", 1)[0] == kind]
        counts = list(dict.fromkeys(run["case"].rsplit(" ", 1)[1] for run in of_it))
        # All in RAM would leave nothing to see of the others; the tables have it.
        systems = [where for where in (*swap.KINDS, place.EBB) if any(run["place"] == where for run in of_it)]
        for i, where in enumerate(systems):
            heights = [median_of([run for run in of_it if run["case"].endswith(" " + count) and run["place"] == where], "throughput") for count in counts]
            at = [x + (i - (len(systems) - 1) / 2) * 0.8 / len(systems) for x in range(len(counts))]
            axis.bar(at, [height or 0 for height in heights], 0.8 / len(systems), color=COLOURS[where], label=place.title(where))
        axis.set_xticks(range(len(counts)), counts)
        axis.set_title(kind)
    axes[0][0].set_ylabel("MiB/s")
    figure.tight_layout()
    # Above the bars, which leave no room beside them.
    handles = axes[0][0].get_legend_handles_labels()
    figure.legend(*handles, loc="lower center", bbox_to_anchor=(0.5, 1), ncol=len(handles[0]), frameon=False, fontsize=7)
    return save(figure, directory, "throughput")


def draw(found, cases, directory):
    """Draws what there are figures for; the paths."""
    pyplot = library()
    os.makedirs(directory, exist_ok=True)
    drawn = [plot(pyplot, found, cases, directory) for plot in (slowdown, latency, throughput)]
    return [path for path in drawn if path]
