"""What a subject shows of the ops of a decode step, by its device's own record, and the evidence kept of it. No arithmetic.

Ops are named as in `oracle.subjects.ops`; an engine with others translates them. What is recorded is the device's word, made
where ops are enqueued, and not the decoder's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, runtime_checkable

Where = Literal["step", "layer", "sliding"]
OpCounts = tuple[tuple[str, int], ...]
"""(op name, how often), sorted by name."""


@dataclass(frozen=True)
class OpUse:
    """One op of a step.

    Attributes:
        name: of the op.
        weights: the checkpoint's names of the weights among its operands; of a stack, all that it stacks, in row order.
    """

    name: str
    weights: tuple[str, ...] = ()


@dataclass(frozen=True)
class DeclaredOps:
    """How many ops of each name a decode step has, as the subject's author counts them.

    Attributes:
        step: outside the layers.
        layer: in each layer, whatever it attends to; routed experts are counted at the config's number per token.
        sliding: in each sliding layer besides.
    """

    step: Mapping[str, int]
    layer: Mapping[str, int]
    sliding: Mapping[str, int]


@runtime_checkable
class RecordsOps(Protocol):
    """An optional ability of a subject; gate `census` judges what it shows."""

    def declared_ops(self) -> DeclaredOps:
        """The counts that every step must have."""
        ...

    def record_ops(self, on: bool) -> None:
        """Begin or end recording. Begun, each op's name and weights are kept until they are taken."""
        ...

    def recorded_ops(self) -> Sequence[OpUse]:
        """Take what was recorded since the last time, in the order in which the device was asked. Called after each step."""
        ...


@dataclass(frozen=True)
class OpTally:
    """One distinct set of counts.

    Attributes:
        where: outside the layers of a step, in a full layer (`layer`), or in a sliding one.
        ops: how often each op was enqueued there.
        times: how many steps, or layers of steps, had these counts.
        first: where it was seen first.
    """

    where: Where
    ops: OpCounts
    times: int
    first: str


@dataclass(frozen=True)
class CensusEvidence:
    """What the judge's auditor saw of a subject's ops.

    Attributes:
        steps: decode steps recorded.
        weights: uses of weights looked at.
        declared: (where, op name, count) as `DeclaredOps`, all but zeros, sorted.
        tallies: the distinct counts seen.
        violations: each weight that was missing, surplus or out of order, in the order seen, one sentence each.
    """

    steps: int = 0
    weights: int = 0
    declared: tuple[tuple[Where, str, int], ...] = ()
    tallies: tuple[OpTally, ...] = ()
    violations: tuple[str, ...] = ()

    def __add__(self, other: CensusEvidence) -> CensusEvidence:
        tallies: dict[tuple[Where, OpCounts], OpTally] = {}
        for tally in (*self.tallies, *other.tallies):
            known = tallies.get((tally.where, tally.ops))
            total = tally.times + (known.times if known else 0)
            tallies[tally.where, tally.ops] = replace(known or tally, times=total)
        return CensusEvidence(
            self.steps + other.steps,
            self.weights + other.weights,
            tuple(sorted({*self.declared, *other.declared})),
            tuple(tallies.values()),
            self.violations + other.violations,
        )
