"""The verdict table as text. Everything shown is plain text: nothing from a golden or a run is read as markup."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from oracle.judge.flip_record import FlipRecord
from oracle.judge.verdict import GateResult, Report
from oracle.report.plain import Text

_STYLE = {"pass": "green", "fail": "bold red", "incomplete": "yellow", "not applicable": "dim"}
_MOST_FLIPS = 20
_MOST_FINDINGS = 8


def print_report(console: Console, report: Report) -> None:
    """Print the headline, the verdict table, findings, flips and the signature."""
    identity = report.run.identity
    device = ", ".join(f"{k} {v}" for k, v in identity.device.items()) or "host only"
    console.print(Text(f"subject {identity.name}, arm {identity.arm}, class {identity.numeric_class}, device: {device}"))
    console.print(Text(f"golden {report.golden_digest}"))
    console.print(_gate_table(report))
    for gate in report.gates:
        if gate.measured:
            facts = ", ".join(f"{name} {_number(value)}" for name, value in gate.measured.items())
            console.print(Text(f"{gate.name}: {facts}"), soft_wrap=True)
    for gate in report.gates:
        for finding in gate.findings[:_MOST_FINDINGS]:
            console.print(
                Text.assemble((f"{finding.verdict} ", _STYLE[finding.verdict]), f"{gate.name}: {finding}"), soft_wrap=True
            )
        if (more := len(gate.findings) - _MOST_FINDINGS) > 0:
            console.print(Text(f"{gate.name}: and {more} more findings; --json FILE has them all"))
    for line in ledger_lines(report):
        console.print(Text(line), soft_wrap=True)
    if report.flips:
        console.print(_flip_table(report.flips))
        for flip in _largest(report.flips):
            console.print(Text(f"{flip.prompt}[{flip.position}] {flip.explanation}"), soft_wrap=True)
    console.print(Text(f"flips: {len(report.flips)}, signature {report.flip_signature}"), soft_wrap=True)
    if (found := report.localisation) is not None:
        for mode, part in (("accumulated", found.accumulated), ("isolated", found.isolated)):
            if part is not None:
                console.print(Text(f"{mode}: {part.sentence}"), soft_wrap=True)
    if left_out := report.run.left_out:
        console.print(Text(f"left out, {len(left_out)} prompts: {', '.join(left_out)}"), soft_wrap=True)
    headline = ("PARTIAL " if report.partial else "") + report.verdict.upper()
    console.print(Text(headline, style=_STYLE[report.verdict]))


def ledger_lines(report: Report) -> list[str]:
    """What of the ledger the table does not show: how much was answered, and which gate did not run and why."""
    facts = report.facts
    (prompts, all_prompts), (positions, all_positions) = facts.prompts, facts.positions
    answered = f"answered {prompts:,} of {all_prompts:,} prompts, {positions:,} of {all_positions:,} positions"
    faults = f", {len(facts.faults)} ended by a device fault" if facts.faults else ""
    libraries = f", {len(facts.libraries)} native libraries" if facts.libraries else ""
    return [f"ledger: {answered}{faults}{libraries}"] + [
        f"ledger: {entry.gate} did not run: {entry.reason}" if not entry.ran else f"ledger: {entry.gate}: {entry.reason}"
        for entry in report.ledger
        if entry.reason
    ]


def _gate_table(report: Report) -> Table:
    table = Table(show_lines=False)
    table.add_column("gate", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("compared", justify="right")
    table.add_column("controls", no_wrap=True)
    for gate in report.gates:
        table.add_row(
            Text(gate.id),
            Text(gate.verdict, style=_STYLE[gate.verdict]),
            f"{gate.compared:,}" if gate.verdict != "not applicable" else "",
            _controls(gate),
        )
    return table


def _controls(gate: GateResult) -> Text:
    if not gate.controls:
        return Text("")
    good, bad = [c for c in gate.controls if c.behaved], [c for c in gate.controls if not c.behaved]
    passed = sum(c.expected == "pass" for c in good)
    text = Text(f"{passed} passed, {len(good) - passed} fired", style="green" if not bad else "")
    if bad:
        text.append(f", {len(bad)} MISBEHAVED", style="bold red")
    return text


def _flip_table(flips: tuple[FlipRecord, ...]) -> Table:
    title = f"flips ({min(len(flips), _MOST_FLIPS)} of {len(flips)}, largest regret first)"
    table = Table(title=title, title_justify="left")
    for name in ("where", "expected", "got", "regret", "margin", "sets differ", "sketch off", "class"):
        table.add_column(name, no_wrap=True)
    for flip in _largest(flips):
        table.add_row(
            Text(f"{flip.prompt}[{flip.position}]"),
            str(flip.expected),
            str(flip.got),
            f"{flip.regret:.5f}" if flip.rank >= 0 else f"> {flip.regret:.3f}",
            f"{flip.golden_margin:.5f}",
            "no" if flip.set_layer is None else f"layer {flip.set_layer}, gap {flip.set_gap:.4f}",
            "no" if flip.sketch_layer is None else f"layer {flip.sketch_layer}",
            Text(flip.label, style="bold red" if flip.label == "hard" else ""),
        )
    return table


def _largest(flips: tuple[FlipRecord, ...]) -> list[FlipRecord]:
    return sorted(flips, key=lambda f: -f.regret)[:_MOST_FLIPS]


def _number(value: float | int | str) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
