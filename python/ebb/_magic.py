"""The magic `%ebb` of IPython and Jupyter: what this kernel and its tree of processes hold, and two things to change that."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
from html import escape
from typing import Any

from . import _inside, _sizes
from ._command import find_ebb

_USAGE = "%ebb shows what this kernel holds; %ebb ram 2G sets the budget; %ebb reclaim 100M gives up RAM now"

# Colours that can be told from each other, also by those who see few of them, on light and on dark.
_PARTS = (("resident", "#4477aa"), ("staged", "#ccbb44"), ("pool", "#228833"))
_STYLE = """<style>
.ebb-panel { font: 13px/1.5 system-ui, sans-serif; max-width: 46em; border: 1px solid #8888; border-radius: 6px; padding: 10px 14px }
.ebb-panel .ebb-bar { display: flex; height: 12px; border-radius: 3px; overflow: hidden; background: #8883; margin: 6px 0 }
.ebb-panel .ebb-key { display: inline-block; width: 9px; height: 9px; border-radius: 2px; margin: 0 4px 0 0 }
.ebb-panel .ebb-legend span { margin-right: 14px; white-space: nowrap }
.ebb-panel .ebb-scroll { overflow-x: auto }
.ebb-panel table { border-collapse: collapse; margin: 8px 0 2px !important; font: inherit; font-variant-numeric: tabular-nums; color: inherit }
.ebb-panel tr { background: none !important }
.ebb-panel th, .ebb-panel td { padding: 2px 14px 2px 0 !important; text-align: right !important; background: none !important; border: 0 }
.ebb-panel th, .ebb-panel td { white-space: nowrap !important; line-height: inherit !important }
.ebb-panel th:last-child, .ebb-panel td:last-child { padding-right: 0 !important }
.ebb-panel th { font-weight: 600; opacity: .75 }
.ebb-panel th:nth-child(-n+2), .ebb-panel td:nth-child(-n+2) { text-align: left !important }
.ebb-panel .ebb-note { opacity: .75 }
</style>"""
_HEADINGS = ("PID", "command", "wanted", "held", "pool", "ratio", "device", "faults")


def _ratio(content: int, taken: int) -> str:
    return f"{content / taken:.1f}:1" if taken else "-"


class Panel:
    """What `ebb ps` says of one tree: a table for people, in a notebook a picture too."""

    def __init__(self, tree: dict[str, Any], figures: _inside.Stats, pid: int) -> None:
        self.tree, self.figures, self.pid = tree, figures, pid

    def _rows(self) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = []
        for process in self.tree["processes"]:
            is_own = process["pid"] == self.pid
            head = (f"{process['pid'] or '-'}{' *' if is_own else ''}", str(process["command"]))
            if not process["managed"]:
                rows.append((*head, "-", _sizes.short(process["held_bytes"]), "-", "-", "-", "not managed"))
                continue
            tiers = process["tiers"]
            content, taken = (sum(tiers[tier][what] for tier in ("hot", "cold")) for what in ("content_bytes", "bytes"))
            sizes = (process["wanted_bytes"], process["held_bytes"], process["pool_bytes"])
            rows.append(
                (
                    *head,
                    *map(_sizes.short, sizes),
                    _ratio(content, taken),
                    _sizes.short(tiers["device"]["content_bytes"]),
                    f"{process['faults']:,} ({process['faults_per_s']:,}/s)",
                )
            )
        return rows

    def _heading(self) -> str:
        tree = self.tree
        wanted = sum(process.get("wanted_bytes", process["held_bytes"]) for process in tree["processes"])
        return (
            f"{_sizes.short(wanted)} wanted, {_sizes.short(tree['held_bytes'])} held of {_sizes.short(tree['budget_bytes'])}, "
            f"at most {_sizes.short(max(tree['peak_held_bytes'], tree['held_bytes']))}"
        )

    def _cost(self) -> str:
        f = self.figures
        return (
            f"{_sizes.short(f.tree_swapped_out_bytes)} swapped out, {_sizes.short(f.tree_device_write_bytes)} written to a device; "
            f"{f.tree_stall_ns / 1e9:.1f} s lost to swap in all threads"
        )

    def __repr__(self) -> str:
        rows = [_HEADINGS, *self._rows()]
        widths = [max(len(row[i]) for row in rows) for i in range(len(_HEADINGS))]
        lines = [
            "  ".join(cell.ljust(width) if i < 2 else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths))).rstrip()
            for row in rows
        ]
        return "\n".join([f"Ebb: {self._heading()}", "", *lines, "", self._cost()])

    def _repr_html_(self) -> str:
        budget = max(self.tree["budget_bytes"], self.tree["held_bytes"], 1)
        managed = [process for process in self.tree["processes"] if process["managed"]]
        sizes = {part: sum(process[f"{part}_bytes"] for process in managed) for part, _ in _PARTS}
        # What processes share counts once in the tree, and in each of them here.
        scale = min(1.0, self.tree["held_bytes"] / max(sum(sizes.values()), 1))
        bar = "".join(
            f'<div style="width:{100 * scale * sizes[part] / budget:.2f}%;background:{colour}" title="{part}"></div>' for part, colour in _PARTS
        )
        legend = "".join(
            f'<span><i class="ebb-key" style="background:{colour}"></i>{part} {_sizes.short(sizes[part])}</span>' for part, colour in _PARTS
        )
        legend += f"<span>free {_sizes.short(self.tree['free_bytes'])}</span>"
        head = "".join(f"<th>{name}</th>" for name in _HEADINGS)
        body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in self._rows())
        return (
            f'{_STYLE}<div class="ebb-panel"><b>Ebb</b> {escape(self._heading())}<div class="ebb-bar">{bar}</div>'
            f'<div class="ebb-legend">{legend}</div><div class="ebb-scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody>'
            f'</table></div><div class="ebb-note">{escape(self._cost())}</div></div>'
        )


def panel() -> Panel:
    """What this process's tree holds now. Raises NotUnderEbb where Ebb does not manage this process."""
    figures, pid = _inside.stats(), os.getpid()
    command = [find_ebb(), "ps", "--json", str(pid)]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
    ) as ps:
        told, why = ps.communicate()
    if ps.returncode != 0:
        raise _inside.EbbError(why.strip() or f"ebb ps ended with status {ps.returncode}")
    tree = json.loads(told)[0]
    # What asks is of the tree, too, and gone by now.
    tree["processes"] = [process for process in tree["processes"] if process["pid"] != ps.pid]
    return Panel(tree, figures, pid)


def run_line(line: str) -> Panel | None:
    """Does what the magic's line says. Raises ValueError for a line that makes no sense."""
    words = line.split()
    if not words:
        return panel()
    if len(words) != 2 or words[0] not in ("ram", "reclaim"):
        raise ValueError(_USAGE)
    if words[0] == "ram":
        _inside.set_ram(words[1])
        now = _inside.stats()
        print(f"The budget is {_sizes.short(now.tree_ram_bytes)}; {_sizes.short(now.tree_held_bytes)} of it are held.")
    else:
        given = _inside.reclaim(words[1])
        print(f"{_sizes.short(given)} given up; the process holds {_sizes.short(_inside.stats().held_bytes)}.")
    return None


def register(shell: Any) -> None:
    """Adds `%ebb` to IPython's shell."""
    usage_error: type[Exception] = importlib.import_module("IPython.core.error").UsageError

    def ebb(line: str) -> Panel | None:
        try:
            return run_line(line)
        except (ValueError, _inside.EbbError, OSError) as error:
            # One line in place of a traceback.
            raise usage_error(str(error)) from None

    ebb.__doc__ = _USAGE
    shell.register_magic_function(ebb, "line", "ebb")
