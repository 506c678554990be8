"""What a subject shows of its dequantized weights, and the evidence that is kept of them. Types only: no arithmetic.

fp8 has no matrix op on some devices, so they compute with copies in a wider type, and those are what the numbers come from.
A subject that tells of each copy as it is uploaded, and reads back those it holds, is judged by gate `operands`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from oracle.subjects.protocol import Bytes

OperandDtype = Literal["BF16", "F32"]


@dataclass(frozen=True)
class OperandImage:
    """One computing copy of fp8 weights of the checkpoint.

    Attributes:
        names: the checkpoint's names of the weights stacked in it, in the order of their rows (q, k, v for example).
        dtype: what it is computed with in: `BF16`, or `F32`.
        data: uint8 [bytes], row-major and little-endian, without tile padding.
        slot, generation: of a routed expert, the fill that it was made from, as `VerifiedFill` names it; None otherwise.
    """

    names: tuple[str, ...]
    dtype: OperandDtype
    data: Bytes
    slot: int | None = None
    generation: int | None = None


@runtime_checkable
class OperandObserver(Protocol):
    """An ear that an observer may have beside those of `FillObserver`; arrays are valid during the call only."""

    def uploaded(self, operand: OperandImage) -> None:
        """Called for each copy, with the bytes handed to the device, from opening on."""
        ...


@runtime_checkable
class ShowsOperands(Protocol):
    """An optional ability of a subject; one that has it also tells `OperandObserver` of its uploads."""

    def operands(self) -> Iterable[OperandImage]:
        """Read back from the device, now, every copy that it holds: residents, each once, and those of experts.

        Called after the last step of each prompt. `data` is host memory of its own, never the host's copy that was uploaded.
        """
        ...


@dataclass(frozen=True)
class OperandEvidence:
    """What the judge's auditor saw of a subject's computing copies.

    Attributes:
        readbacks: how many times all of them were read back.
        uploaded, held: (kind of tensor, tensors, elements) compared as they were uploaded, and read back, in order of kinds.
        experts: (layer, expert, times) of every routed expert that was uploaded whole, sorted.
        violations: each thing that was wrong, in the order seen, one sentence each.
    """

    readbacks: int = 0
    uploaded: tuple[tuple[str, int, int], ...] = ()
    held: tuple[tuple[str, int, int], ...] = ()
    experts: tuple[tuple[int, int, int], ...] = ()
    violations: tuple[str, ...] = ()

    def __add__(self, other: OperandEvidence) -> OperandEvidence:
        experts: Counter[tuple[int, int]] = Counter()
        for layer, expert, times in (*self.experts, *other.experts):
            experts[layer, expert] += times
        return OperandEvidence(
            self.readbacks + other.readbacks,
            _sum(self.uploaded, other.uploaded),
            _sum(self.held, other.held),
            tuple((layer, expert, times) for (layer, expert), times in sorted(experts.items())),
            self.violations + other.violations,
        )


def _sum(*tables: tuple[tuple[str, int, int], ...]) -> tuple[tuple[str, int, int], ...]:
    tensors: Counter[str] = Counter()
    elements: Counter[str] = Counter()
    for kind, count, size in (row for table in tables for row in table):
        tensors[kind] += count
        elements[kind] += size
    return tuple((kind, tensors[kind], elements[kind]) for kind in tensors)
