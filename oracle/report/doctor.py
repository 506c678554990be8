"""What a checkpoint audit found, for people and as JSON, with the environment it was found in.

Names and messages may come from damaged or hostile headers: whatever is not printable is shown escaped, and nothing is read
as markup.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from oracle.accelerator import Level
from oracle.kolibri1.audit import Audit
from oracle.report.plain import escaped

DOCTOR_SCHEMA = "kolibri-doctor/1"
_MOST_LINES = 12
_MOST_CHARACTERS = 40
_MOST_OTHERWISE = 3


def summarize(folder: Path, audit: Audit, environment: Mapping[str, str], levels: Sequence[Level]) -> dict[str, Any]:
    """The audit as JSON: every difference and fault, counts by kind and group, config differences, environment, levels.

    Values of config keys are JSON text, so that whatever a config holds can be written.
    """
    return _printable(
        {
            "schema": DOCTOR_SCHEMA,
            "checkpoint": str(folder),
            "agrees": audit.agrees,
            "geometry": "other" if audit.geometry else "release",
            "config": [{**asdict(d), "geometry": d.is_geometry} for d in audit.config],
            "kinds": [asdict(kind) for kind in audit.kinds],
            "totals": {total.kind: asdict(total) for total in audit.totals},
            "tensors": [asdict(difference) for difference in audit.tensors],
            "faults": [asdict(fault) for fault in audit.faults],
            "environment": dict(environment),
            "levels": [asdict(level) for level in levels],
        }
    )


def print_doctor(console: Console, summary: dict[str, Any]) -> None:
    """Print a summary made by `summarize`."""
    console.print(Text(f"checkpoint {summary['checkpoint']}"), soft_wrap=True)
    console.print(Text(f"geometry: {_geometry(summary['config'])}"), soft_wrap=True)
    console.print(_kind_table(summary))
    _print_lines(console, "file", [f"{f['kind']}: {f['message']}{_alike(f['more'])}" for f in summary["faults"]])
    _print_lines(console, "tensor", [f"{t['what']}: {t['name']}: {t['detail']}" for t in summary["tensors"]])
    if summary["config"]:
        console.print(_config_table(summary["config"]))
    environment = Table("environment", "version", box=box.SIMPLE_HEAD)
    for name, version in summary["environment"].items():
        environment.add_row(Text(name), Text(version))
    console.print(environment)
    levels = Table("ttnn level", "here", "why", box=box.SIMPLE_HEAD)
    for level in summary["levels"]:
        levels.add_row(Text(level["name"]), Text("yes" if level["available"] else "no"), Text(level["why"]))
    console.print(levels)
    console.print(_headline(summary), soft_wrap=True)


def _headline(summary: dict[str, Any]) -> Text:
    if summary["agrees"]:
        return Text("AGREES with its inventory, by its headers alone: no tensor was read", style="green")
    counts = summary["totals"]["all"]
    tensors = ", ".join(f"{counts[what]:,} {what}" for what in _WHAT if counts[what]) or "as they must be"
    said = f"DIFFERS: file faults: {len(summary['faults'])}; tensors: {tensors}"
    return Text(f"{said}; restore what is named above and run doctor again", style="bold red")


_WHAT = ("missing", "surplus", "wrong", "repeated")


def _geometry(config: list[dict[str, Any]]) -> str:
    if other := [f"{d['key']} {d['here']} (release {d['release']})" for d in config if d["geometry"]]:
        return f"not the release's: {', '.join(other)}; checked against the inventory of its own config.json"
    return "the release's"


def _kind_table(summary: dict[str, Any]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("kind", "must be"):
        table.add_column(name, no_wrap=True)
    for name in ("expected", "found", "expected bytes", "found bytes"):
        table.add_column(name, no_wrap=True, justify="right")
    table.add_column("differs", overflow="fold")
    totals = summary["totals"]
    for group in totals:
        for kind in summary["kinds"]:
            if kind["group"] == (None if group == "all" else group) and (kind["expected"] or kind["found"]):
                table.add_row(*_cells(kind))
        table.add_row(*_cells(totals[group] | {"kind": f"total {group}"}), style="bold")
        table.add_section()
    return table


def _cells(count: dict[str, Any]) -> list[Text]:
    lines = [", ".join(f"{count[what]:,} {what}" for what in _WHAT if count[what])]
    otherwise = sorted(count["otherwise"].items(), key=lambda item: -item[1])
    lines += [f"found {number:,} {described}" for described, number in otherwise[:_MOST_OTHERWISE]]
    if (more := len(otherwise) - _MOST_OTHERWISE) > 0:
        lines.append(f"and {more:,} other shapes")
    return [
        Text(count["kind"]),
        Text(count["must_be"] or ""),
        *(Text(f"{count[field]:,}") for field in ("expected", "found", "expected_bytes", "found_bytes")),
        Text("\n".join(filter(None, lines)), style="red"),
    ]


def _config_table(config: list[dict[str, Any]]) -> Table:
    title = "config.json, where it differs from the release's (for information)"
    table = Table("key", "here", "release", title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for difference in config:
        here, release = difference["here"], difference["release"]
        begin = max(0, _common_prefix(here, release) - _MOST_CHARACTERS // 2)
        table.add_row(Text(difference["key"]), Text(_clip(here, begin)), Text(_clip(release, begin)))
    return table


def _common_prefix(one: str, other: str) -> int:
    length = min(len(one), len(other))
    return next((i for i in range(length) if one[i] != other[i]), length)


def _clip(text: str, begin: int) -> str:
    """`text` from where it becomes interesting, short enough for a cell."""
    if len(text) <= _MOST_CHARACTERS:
        return text
    rest = text[begin:]
    return ("…" if begin else "") + (rest if len(rest) <= _MOST_CHARACTERS else rest[:_MOST_CHARACTERS] + "…")


def _print_lines(console: Console, of: str, lines: list[str]) -> None:
    for line in lines[:_MOST_LINES]:
        console.print(Text.assemble((f"{of} ", "bold red"), line), soft_wrap=True)
    if (more := len(lines) - _MOST_LINES) > 0:
        console.print(Text(f"{of}: and {more:,} more; --json FILE has them all"))


def _alike(more: int) -> str:
    return f" (and {more:,} more tensors alike)" if more else ""


def _printable(value: Any) -> Any:
    """`value` with every text in it made printable, so that a terminal and UTF-8 take it as it is."""
    if isinstance(value, str):
        return escaped(value)
    if isinstance(value, Mapping):
        return {_printable(key): _printable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_printable(item) for item in value]
    return value
