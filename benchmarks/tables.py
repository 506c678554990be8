"""How the benchmarks print: markdown tables, and marks with what was asked and what was reached."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Mark:
    """One figure that a run must reach.

    Attributes:
        what: the figure.
        value: what was measured; None where it was not.
        limit: what is asked.
        at_most: whether `limit` is the largest good value, and not the smallest.
    """

    what: str
    value: float | None
    limit: float
    at_most: bool = False

    @property
    def met(self) -> bool:
        """Never true for what was not measured."""
        return self.value is not None and (self.value <= self.limit if self.at_most else self.value >= self.limit)

    def as_dict(self) -> dict[str, Any]:
        return {"what": self.what, "value": self.value, "limit": self.limit, "at_most": self.at_most, "met": self.met}


def print_table(head: list[str], rows: list[list[str]]) -> None:
    """A markdown table with aligned columns and an empty line after it."""
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    for row in [head, ["-" * width for width in widths], *rows]:
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |")
    print()


def print_marks(marks: list[Mark], *, small: bool) -> None:
    """The marks with met or NOT met; at a small geometry they say nothing, and are printed as such."""
    print("## Marks\n")
    if small:
        print("A small geometry: these are here to try the script, not to be met.\n")
    rows = []
    for mark in marks:
        value = "not measured" if mark.value is None else f"{mark.value:.2f}"
        sign = "at most" if mark.at_most else "at least"
        rows.append([mark.what, value, f"{sign} {mark.limit:g}", "met" if mark.met else "NOT met"])
    print_table(["mark", "measured", "asked", ""], rows)
