"""Plans as tables in the terminal."""

from __future__ import annotations

from collections.abc import Mapping

from rich import box
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from oracle.planning import Plan
from oracle.report.plain import escaped


def print_plans(console: Console, plans: Mapping[str, Plan]) -> None:
    """Print every section, then what was refused."""
    for name, plan in plans.items():
        for section in plan.sections:
            table = Table(Column(Text(escaped(f"{name}: {section.title}"))), "", box=box.SIMPLE_HEAD)
            for row, value, unit in section.rows:
                table.add_row(Text(escaped(row)), Text(escaped(f"{_shown(value)} {unit}".strip()), justify="right"))
            console.print(table)
        for line in plan.refused:
            console.print(Text(escaped(f"refused: {line}"), style="yellow"), soft_wrap=True)


def _shown(value: int | float | str) -> str:
    return value if isinstance(value, str) else f"{value:,}"
