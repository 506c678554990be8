"""A recomputed golden, for people: per prompt, how far what is stored is from what is computed here."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from oracle.golden.recomputation import BOUND, Recomputation
from oracle.report.plain import Text


def print_recomputed(console: Console, result: Recomputation) -> None:
    """The table, what the environment allows to ask for, and each failure on a line."""
    table = Table(title="recomputed", title_justify="left")
    for column in ("prompt", "positions", "chain", "logit error", "sets differ", "bits"):
        table.add_column(column, justify="left" if column in ("prompt", "bits") else "right")
    for p in result.prompts:
        table.add_row(
            Text(p.prompt),
            f"{p.positions:,}",
            f"{p.chain} of {p.generated}",
            f"{p.logit_error:.1e}",
            f"{p.sets_differ:,}",
            Text("equal" if not p.unequal else ", ".join(p.unequal)),
        )
    console.print(table)
    if result.bits_required:
        console.print("The environment is the one that made the golden: equal bits are required.")
    else:
        console.print(f"Logits are required within {BOUND:.0e} of the largest; not equal bits, since the environment differs:")
        for name, stored, here in result.environment:
            console.print(Text(f"  {name}: made with {stored}, here {here}"))
    for line in result.failures:
        console.print(Text(f"FAIL {line}", style="bold red"))
    if result.passed:
        console.print("The golden is what its reference computes.")
