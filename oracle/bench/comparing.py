"""What the runs of a bench must agree in: everything but wall time; and what an arm's counters must show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from oracle.bench.document import STAGES, Difference, Kind
from oracle.bench.measure import BenchRun, Stage


def between_runs(arm: str, runs: Sequence[BenchRun]) -> list[Difference]:
    """Each run of an arm against its first: chain, logits, counts, modelled time; one difference of each kind and run."""
    differences = []
    first = runs[0]
    for number, run in enumerate(runs[1:], 2):
        where = f"arm {arm}, run {number} against run 1"
        found: dict[Kind, str | None] = {
            "chain": _chains(first, run),
            "logits": _logits(first, run),
            "counts": _numbers(_counts(first), _counts(run)),
            "modelled time": _numbers(_times(first), _times(run)),
        }
        differences += [Difference(kind=kind, where=where, what=what) for kind, what in found.items() if what]
    return differences


def between_arms(arms: Sequence[tuple[str, str | None, BenchRun]]) -> list[Difference]:
    """Each arm's first run against that of the first arm of the same arithmetic: chain and logits.

    Args:
        arms: name, arithmetic and first run of each.
    """
    differences = []
    for index, (name, arithmetic, run) in enumerate(arms):
        earlier = [(other, theirs) for other, same, theirs in arms[:index] if same == arithmetic]
        if arithmetic is None or not earlier:
            continue
        other, theirs = earlier[0]
        if what := _chains(theirs, run) or _logits(theirs, run):
            where = f"arm {name} against {other}, both {arithmetic}"
            differences.append(Difference(kind="arms", where=where, what=what))
    return differences


def without_effect(arm: str, effects: Sequence[str], run: BenchRun) -> list[Difference]:
    """An arm whose first run did not move all counters that it must: then another arm was measured.

    Args:
        effects: names of these counters (`oracle.subjects.repeats.StatesEffects`).
    """
    counts = {name: sum(_stage(run, stage).counts.get(name, 0) for stage in STAGES) for name in effects} | dict(run.levels)
    idle = [name for name in effects if counts[name] <= 0]
    what = f"took no effect: {', '.join(idle)} never moved"
    return [Difference(kind="effect", where=f"arm {arm}", what=what)] if idle else []


def _chains(first: BenchRun, other: BenchRun) -> str | None:
    for index, (expected, got) in enumerate(zip(first.chain, other.chain, strict=True)):
        if expected != got:
            return f"id {index} of {len(first.chain)} is {got} against {expected}"
    return None


def _logits(first: BenchRun, other: BenchRun) -> str | None:
    same = first.logits_digest == other.logits_digest
    return None if same else f"logits {other.logits_digest} against {first.logits_digest}"


def _numbers(first: Mapping[str, int], other: Mapping[str, int]) -> str | None:
    names = [name for name in sorted(first.keys() | other.keys()) if first.get(name, 0) != other.get(name, 0)]
    if not names:
        return None
    name, more = names[0], f", and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{name} {other.get(name, 0):,} against {first.get(name, 0):,}{more}"


def _counts(run: BenchRun) -> dict[str, int]:
    stages = {f"{stage} {name}": count for stage in STAGES for name, count in _stage(run, stage).counts.items()}
    return {**stages, **run.levels}


def _times(run: BenchRun) -> dict[str, int]:
    return {
        f"{stage} {part} {cause} ns": ns
        for stage in STAGES
        for part, causes in (_stage(run, stage).modelled_ns or {}).items()
        for cause, ns in causes.items()
    }


def _stage(run: BenchRun, name: str) -> Stage:
    return run.prefill if name == "prefill" else run.decode
