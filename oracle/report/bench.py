"""A bench in the terminal: what ran where, one table for the decode and one for the prefill, per step, then digests."""

from __future__ import annotations

from collections.abc import Callable

from rich import box
from rich.console import Console
from rich.table import Column, Table

from oracle.bench.document import ArmResult, BenchDocument
from oracle.report.plain import Text

_STYLE = {"pass": "green", "fail": "bold red"}


def print_bench(console: Console, bench: BenchDocument) -> None:
    """Print everything but ids, environment and the device's own counters, which the JSON has."""
    device = ", ".join(f"{k} {v}" for k, v in bench.device.items()) or "host only"
    settings, machine = bench.settings, bench.machine
    lines = [
        f"subject {bench.subject}, device: {device}",
        f"prompt: {settings.prompt_ids} ids, {bench.prompt.source}; then {settings.steps} decode steps",
        f"{settings.runs} runs of each arm, in turn: {', '.join(settings.order)}; "
        f"each after {settings.warm_up_steps} steps of warm-up",
        f"machine: {machine.cpus} CPUs, allowed {', '.join(map(str, machine.affinity))}, governor {machine.governor}, "
        f"load {_load(machine.load)}, busy {_share(machine.busy_share)}",
    ]
    for line in lines:
        console.print(Text(line), soft_wrap=True)
    if machine.busy:
        console.print(
            Text(f"BUSY START: {'; '.join(machine.busy)}. Wall times compare with nothing", style="yellow"), soft_wrap=True
        )
    for stage in ("decode", "prefill"):
        console.print(_table(bench, stage))
    console.print(Text(f"wall time is {bench.wall_time_is}; it is not judged"), soft_wrap=True)
    console.print(Text(f"chain digests: {bench.chain_serialization}"), soft_wrap=True)
    for arm in bench.arms:
        console.print(Text(f"{arm.arm}: chain {arm.chain_digest}, logits {arm.logits_digest}"), soft_wrap=True)
        before, after = arm.memory.before, arm.memory.after
        if before is not None and after is not None:
            line = f"{arm.arm}: device memory {before:,} bytes before the first step, {after:,} after the last"
            console.print(Text(line), soft_wrap=True)
    for difference in bench.differences:
        line = f"{difference.kind}: {difference.where}: {difference.what}"
        console.print(Text.assemble(("fail ", _STYLE["fail"]), Text(line)), soft_wrap=True)
    console.print(Text(f"compared: {'; '.join(bench.compared)}"), soft_wrap=True)
    console.print(Text(bench.verdict.upper(), style=_STYLE[bench.verdict]))


def _table(bench: BenchDocument, stage: str) -> Table:
    """One column an arm; what it costs against the first arm beside the modelled time."""
    columns = [Column(Text(arm.arm), justify="right") for arm in bench.arms]
    table = Table(Column(Text(f"{stage}, per step")), *columns, box=box.SIMPLE_HEAD)

    def row(name: str, shown: Callable[[ArmResult], str], style: str = "") -> None:
        table.add_row(Text(name), *(Text(shown(arm)) for arm in bench.arms), style=style)

    if bench.model is not None:
        row("modelled ms", lambda arm: _modelled(bench, arm, stage), "bold")
        for part in bench.model.parts:
            row(f"  {part}", lambda arm, part=part: f"{_part(arm, stage, part):,.3f}")
        row("or by cause", lambda arm: "")
        for cause in bench.model.causes:
            row(f"  {cause.replace('_', ' ')}", lambda arm, cause=cause: f"{_cause(arm, stage, cause):,.3f}")
    row("wall ms, median", lambda arm: f"{arm.wall_ms[stage].per_step:,.2f}")
    row("  spread", lambda arm: f"{arm.wall_ms[stage].spread:.1%}")
    row("  tokens/s", lambda arm: f"{arm.wall_ms[stage].tokens_per_second:,.1f}")
    for name in bench.arms[0].counts[stage].total:
        if name != "steps" and not name.startswith("device.") and any(arm.counts[stage].total.get(name) for arm in bench.arms):
            row(name, lambda arm, name=name: f"{arm.counts[stage].per_step.get(name, 0.0):,.2f}")
    return table


def _modelled(bench: BenchDocument, arm: ArmResult, stage: str) -> str:
    times, first = arm.modelled_ms or {}, bench.arms[0].modelled_ms or {}
    shown = f"{times[stage].per_step:,.3f}"
    if arm is bench.arms[0] or not first[stage].total:
        return shown
    return f"({times[stage].total / first[stage].total - 1:+.1%}) {shown}"


def _part(arm: ArmResult, stage: str, part: str) -> float:
    times = (arm.modelled_ms or {})[stage]
    return times.parts[part] / arm.counts[stage].steps


def _cause(arm: ArmResult, stage: str, cause: str) -> float:
    times = (arm.modelled_ms or {})[stage]
    return sum(causes[cause] for causes in times.causes.values()) / arm.counts[stage].steps


def _load(load: tuple[float, float, float] | None) -> str:
    return "not stated" if load is None else " ".join(f"{average:.2f}" for average in load)


def _share(share: float | None) -> str:
    return "not stated" if share is None else f"{share:.0%}"
