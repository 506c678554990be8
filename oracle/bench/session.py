"""A bench from options to document: arms in turn, A B A B A B, each run in a subject opened for it."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from oracle.bench.comparing import between_arms, between_runs, without_effect
from oracle.bench.document import (
    STAGES,
    ArmResult,
    BenchDocument,
    Counts,
    Machine,
    Memory,
    Model,
    Modelled,
    Prompt,
    Settings,
    Wall,
)
from oracle.bench.machine import machine_state
from oracle.bench.measure import WARM_UP, BenchRun, Stage, measure
from oracle.bench.prompt import DEFAULT_IDS, IDS_SERIALIZATION, bench_prompt, ids_digest
from oracle.environment import environment_record
from oracle.subjects.levels import levels_of
from oracle.subjects.modelled_time import total_ns
from oracle.subjects.protocol import SubjectFactory, SubjectRequest
from oracle.subjects.registry import canonical_arm, check_request, subject_factory
from oracle.subjects.repeats import StatesEffects
from oracle.subjects.shared_arithmetic import SharesArithmetic

Advance = Callable[[int, int, str], None]
_NS_PER_MS = 1e6


@dataclass(frozen=True)
class BenchOptions:
    """As on the command line; the subject's first arm and device where none is named."""

    checkpoint: Path
    golden: Path
    subject: str = "tt"
    device: str | None = None
    arms: tuple[str, ...] = ()
    prompt_ids: int = DEFAULT_IDS
    steps: int = 64
    runs: int = 3


def run_bench(options: BenchOptions, advance: Advance) -> BenchDocument:
    """Look at the machine, run every arm `runs` times in turn, and compare.

    Args:
        advance: told after each step how many of how many are done, and which arm ran.

    Raises:
        SubjectError: no such subject, device or arm.
        UsageError, GoldenError, CheckpointError: as `bench_prompt`.
        DeviceFault: of a run; nothing is kept of the others.
    """
    factory = subject_factory(options.subject)
    arms = [_arm(options, factory, arm) for arm in options.arms or (None,)]
    requests = [SubjectRequest(options.checkpoint, options.golden, options.device, arm) for arm in arms]
    for request in requests:
        check_request(options.subject, factory, request)
    prompt = bench_prompt(options.checkpoint, options.golden, options.prompt_ids, options.steps)
    machine = machine_state()
    order = tuple(range(len(arms))) * options.runs
    steps = min(WARM_UP, options.prompt_ids) + options.prompt_ids + options.steps
    runs: list[list[BenchRun]] = [[] for _ in arms]
    for done, index in enumerate(order):
        counter = _Counter(advance, done * steps, len(order) * steps, arms[index])
        runs[index].append(_run(factory, requests[index], prompt.ids, options.steps, counter))
    same = [factory.arithmetic(arm) if isinstance(factory, SharesArithmetic) else None for arm in arms]
    differences = [found for arm, its in zip(arms, runs, strict=True) for found in between_runs(arm, its)]
    differences += between_arms([(arm, what, its[0]) for arm, what, its in zip(arms, same, runs, strict=True)])
    effects = {arm: factory.effects(arm) if isinstance(factory, StatesEffects) else () for arm in arms}
    differences += [
        found for arm, its in dict(zip(arms, runs, strict=True)).items() for found in without_effect(arm, effects[arm], its[0])
    ]
    first = runs[0][0]
    return BenchDocument(
        verdict="fail" if differences else "pass",
        compared=_compared(first, options.runs, same),
        differences=tuple(differences),
        subject=options.subject,
        device=first.identity.device,
        prompt=Prompt(ids=prompt.ids, digest=prompt.digest, source=prompt.source),
        settings=Settings(
            prompt_ids=len(prompt.ids),
            steps=options.steps,
            runs=options.runs,
            warm_up_steps=min(WARM_UP, options.prompt_ids),
            order=tuple(arms[index] for index in order),
        ),
        chain_serialization=IDS_SERIALIZATION,
        machine=Machine(**asdict(machine)),
        environment=environment_record(),
        wall_time_is="the simulation's, not the device's" if first.model else "the subject's own, on the device or host named",
        model=None if first.model is None else Model(**asdict(first.model)),
        arms=tuple(_result(arm, what, its) for arm, what, its in zip(arms, same, runs, strict=True)),
    )


def _arm(options: BenchOptions, factory: SubjectFactory, arm: str | None) -> str:
    """Its canonical name; the factory's first for None."""
    return canonical_arm(options.subject, arm) or next(iter(factory.arms), "")


@dataclass
class _Counter:
    """Counts steps for a progress bar."""

    advance: Advance
    done: int
    of: int
    arm: str

    def __call__(self) -> None:
        self.done += 1
        self.advance(self.done, self.of, self.arm)


def _run(
    factory: SubjectFactory, request: SubjectRequest, prompt: tuple[int, ...], steps: int, advance: Callable[[], None]
) -> BenchRun:
    """Opened for this run alone, for a card can be open once; so every run has its own warm-up."""
    subject = factory.open(request)
    try:
        return measure(subject, prompt, steps, levels_of(factory), advance)
    finally:
        subject.close()


def _compared(first: BenchRun, runs: int, arithmetic: Sequence[str | None]) -> tuple[str, ...]:
    """What was held against what, and what was not."""
    shown = ["chain", "logits", *["counts"] * bool(first.decode.counts), *["modelled time"] * (first.model is not None)]
    what = f"{', '.join(shown[:-1])} and {shown[-1]}"
    again = f"{what} of {runs} runs of each arm" if runs > 1 else "no runs: there is only one"
    if len(arithmetic) == 1:
        return (again,)
    if None in arithmetic:
        return (again, "no arms: the subject does not say which compute the same")
    groups = Counter(arithmetic)
    said = [f"chain and logits of {count} arms of arithmetic {name}" for name, count in groups.items() if count > 1]
    return (again, *said, *(["not arms of different arithmetic"] if len(groups) > 1 else []))


def _result(arm: str, arithmetic: str | None, runs: Sequence[BenchRun]) -> ArmResult:
    first = runs[0]
    stages = {name: [getattr(run, name) for run in runs] for name in STAGES}
    return ArmResult(
        arm=arm,
        numeric_class=first.identity.numeric_class,
        arithmetic=arithmetic,
        chain=first.chain,
        chain_digest=ids_digest(first.chain),
        logits_digest=first.logits_digest,
        counts={name: _counts(its[0]) for name, its in stages.items()},
        memory=Memory(before=first.levels.get("memory_before"), after=first.levels.get("memory_after")),
        modelled_ms=None if first.model is None else {name: _modelled(its[0]) for name, its in stages.items()},
        wall_ms={name: _wall(its) for name, its in stages.items()},
    )


def _counts(stage: Stage) -> Counts:
    total = dict(sorted(stage.counts.items()))
    return Counts(steps=stage.steps, total=total, per_step={name: count / stage.steps for name, count in total.items()})


def _modelled(stage: Stage) -> Modelled:
    times = stage.modelled_ns or {}
    total = total_ns(times) / _NS_PER_MS
    return Modelled(
        total=total,
        per_step=total / stage.steps,
        parts={part: sum(causes.values()) / _NS_PER_MS for part, causes in times.items()},
        causes={part: {cause: ns / _NS_PER_MS for cause, ns in causes.items()} for part, causes in times.items()},
    )


def _wall(stages: Sequence[Stage]) -> Wall:
    runs = tuple(stage.wall_ns / _NS_PER_MS for stage in stages)
    median, steps = statistics.median(runs), stages[0].steps
    return Wall(
        runs=runs,
        median=median,
        least=min(runs),
        greatest=max(runs),
        spread=(max(runs) - min(runs)) / median,
        per_step=median / steps,
        tokens_per_second=steps / median * 1e3,
    )
