"""Two goldens compared, for people: the headline, what grew, what moved and where, and what it is a multiple of."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from oracle.golden.diff import GoldenDiff, Multiple, PromptDiff
from oracle.golden.document_diff import Change, ClassDiff
from oracle.golden.movement import Movement
from oracle.report.plain import Text

_STYLE = {"same": "green", "arithmetic": "yellow", "tie re-roll": "yellow"}
_MOST_LINES = 12
_MOST_PLACES = 8


def print_golden_diff(console: Console, diff: GoldenDiff) -> None:
    """Print a diff; the headline comes last, where a terminal shows it."""
    console.print(Text(f"old {diff.old}"), soft_wrap=True)
    console.print(Text(f"new {diff.new}"), soft_wrap=True)
    if diff.checkpoints[0] != diff.checkpoints[1]:
        console.print(Text(f"checkpoint {diff.checkpoints[0]} became {diff.checkpoints[1]}", style="bold red"), soft_wrap=True)
    _print_prompt_list(console, diff)
    _print_changes(console, "recipe", diff.recipe)
    for note in diff.notes:
        console.print(Text(f"note: {note}"), soft_wrap=True)
    if any(prompt.moved for prompt in diff.prompts):
        console.print(_prompt_table(diff))
        _print_places(console, diff)
    if diff.multiples and diff.values != "same":
        console.print(_multiple_table(diff.multiples))
    for each in diff.classes:
        _print_class(console, each)
    if diff.sensitivity[0] != diff.sensitivity[1] or diff.weakest[0] != diff.weakest[1]:
        before, after = (f"{s}, weakest {w}" for s, w in zip(diff.sensitivity, diff.weakest, strict=True))
        console.print(Text(f"sensitivity {before}; now {after}"), soft_wrap=True)
    _print_some(console, "beyond the floor: ", diff.beyond, "bold red")
    _print_some(console, "", diff.grown, "bold red")
    console.print(Text(diff.headline.upper(), style=_STYLE.get(diff.headline, "bold red")))


def _print_prompt_list(console: Console, diff: GoldenDiff) -> None:
    renamed = [f"{old} as {new}" for old, new in diff.renamed]
    for what, names in (("added", diff.added), ("removed", diff.removed), ("renamed", renamed)):
        if names:
            console.print(Text(f"prompts {what}: {', '.join(names)}"), soft_wrap=True)
    if diff.reordered:
        console.print(Text("prompts are in another order"))


def _print_changes(console: Console, of: str, changes: tuple[Change, ...]) -> None:
    for change in changes[:_MOST_LINES]:
        console.print(Text(f"{of} {'.'.join(change.path)}: {_change(change)}"), soft_wrap=True)
    if (more := len(changes) - _MOST_LINES) > 0:
        console.print(Text(f"{of}: and {more} more; --json FILE has them all"))


def _change(change: Change) -> str:
    if change.kind != "changed":
        return f"{change.kind} {change.new if change.kind == 'added' else change.old!r}"
    times = f" (x{change.growth:.3g})" if 0 < change.growth < float("inf") else ""
    return f"{_value(change.old)} became {_value(change.new)}{times}"


def _value(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _prompt_table(diff: GoldenDiff) -> Table:
    table = Table(title="prompts that moved", title_justify="left")
    for name in ("prompt", "positions", "chain parts at", "margin there", "flips", "sets differ", "logit", "KL", "sketch"):
        table.add_column(name, justify="left" if name in ("prompt", "chain parts at", "margin there") else "right")
    for prompt in diff.prompts:
        if prompt.moved:
            name = prompt.name if prompt.name == prompt.former_name else f"{prompt.name} (was {prompt.former_name})"
            table.add_row(Text(name), *(Text(cell) for cell in (*_parting(prompt), *_largest(prompt.movement))))
    return table


def _parting(prompt: PromptDiff) -> tuple[str, str, str]:
    """Positions compared, where the chains part, and whether that is a tie."""
    count = "0" if prompt.movement is None else f"{prompt.movement.positions:,}"
    parted = prompt.divergence
    if parted is None:
        lengths = prompt.generated
        return count, "nowhere" if lengths[0] == lengths[1] else f"nowhere, {lengths[0]} ids became {lengths[1]}", ""
    where = f"generated[{parted.index}]: {parted.expected} became {parted.got}"
    if parted.choice is None:
        return count, where, "not comparable"
    return count, where, f"{parted.choice.margin:.2e}, {'near tie' if parted.choice.tie else 'BEYOND the band'}"


def _largest(movement: Movement | None) -> tuple[str, ...]:
    if movement is None:
        return ("", "", "", "", "")
    values = (movement.logit_change.value, movement.kl.value, movement.sketch.value)
    return (str(len(movement.choices)), str(len(movement.sets)), *(f"{value:.1e}" for value in values))


def _print_places(console: Console, diff: GoldenDiff) -> None:
    """Each flip and each expert set that differs."""
    lines = []
    for prompt in diff.prompts:
        if (movement := prompt.movement) is None:
            continue
        for c in movement.choices:
            what = f"argmax {c.expected} became {c.got}, regret {c.regret:.2e} nat, allowed {c.allowed:.2e}"
            lines.append(f"{prompt.name}[{c.position}]: {what}: {'near tie' if c.tie else 'BEYOND'}")
        for s in movement.sets:
            what = f"expert set differs first at layer {s.layer}, router gap {s.gap:.2e}, allowed {s.allowed:.2e}"
            lines.append(f"{prompt.name}[{s.position}]: {what}: {'router tie' if s.tie else 'BEYOND'}")
    _print_some(console, "", lines, "", _MOST_PLACES)


def _multiple_table(multiples: tuple[Multiple, ...]) -> Table:
    title = "over all compared positions, against the old golden's floor of class fp32"
    table = Table("statistic", "moved by", "floor", "times", "allowed", title=title, title_justify="left")
    for m in multiples:
        times = "-" if m.ratio is None else f"{m.ratio:.3g}"
        style = "bold red" if m.beyond else ""
        table.add_row(m.name, f"{m.value:.2e}", f"{m.floor:.2e}", times, f"{m.allowed:g}", style=style)
    return table


def _print_class(console: Console, each: ClassDiff) -> None:
    """Bands, budgets and multiples; the counts behind them are in the JSON."""
    if each.kind != "changed":
        console.print(Text(f"class {each.numeric_class} {each.kind}", style="bold red"))
        return
    shown = [c for c in each.changes if c.path[0] in ("bands", "limits", "budget", "logit_dtype", "arms")]
    _print_changes(console, f"class {each.numeric_class}", tuple(shown))
    if len(shown) < len(each.changes):
        console.print(Text(f"class {each.numeric_class}: {len(each.changes) - len(shown)} changed counts and held-out results"))


def _print_some(console: Console, before: str, lines: tuple[str, ...] | list[str], style: str, most: int = _MOST_LINES) -> None:
    for line in lines[:most]:
        console.print(Text(f"{before}{line}", style=style), soft_wrap=True)
    if (more := len(lines) - most) > 0:
        console.print(Text(f"and {more} more; --json FILE has them all"))
