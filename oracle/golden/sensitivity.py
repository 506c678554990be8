"""Would this golden's chains expose a phase or index fault? A chain that repeats one id exposes none.

A port's golden once held one id 32 times, two ids in turn, and a chain of period 12: no shift by one could show on them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

LEAST_SHARE = 0.125
"""A simulated fault must change at least this share of the ids it could change: one that shows in a single place is lost as
soon as that place is left out, or called a tie.

Measured on the shipped golden (2026-11-30): the weakest of its shifts changes 0.60 of the ids, its weakest swap 0.25.
"""

_SHIFTS = range(1, 9)
Chains = Mapping[str, tuple[Sequence[int], Sequence[int]]]
"""By prompt name, its prompt ids and its generated ids."""


class Sensitivity(BaseModel):
    """How many simulated index and phase faults the stored chains expose.

    Attributes:
        faults: faults simulated: shifts by 1 to 8 and by the prompt's length, first or last id dropped, every prompt answered
            as every other one.
        exposed: those that change at least one compared id.
        hidden: the others, by name.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    faults: int
    exposed: int
    hidden: tuple[str, ...]

    def __str__(self) -> str:
        share = self.exposed / self.faults if self.faults else 0.0
        return f"{self.exposed} of {self.faults} ({share:.1%})"


@dataclass(frozen=True)
class Exposure:
    """One simulated fault, and how many of the ids it could change it does change."""

    fault: str
    changed: int
    compared: int

    @property
    def share(self) -> float:
        return self.changed / self.compared

    @property
    def weak(self) -> bool:
        """Whether it changes less than `LEAST_SHARE`."""
        return self.share < LEAST_SHARE

    def __str__(self) -> str:
        return f"{self.fault} ({self.changed} of {self.compared} ids)"


def measure(chains: Chains) -> Sensitivity:
    """Simulate the faults on every prompt, and count those that are exposed."""
    found = exposures(chains)
    hidden = tuple(exposure.fault for exposure in found if not exposure.changed)
    return Sensitivity(faults=len(found), exposed=len(found) - len(hidden), hidden=hidden)


def exposures(chains: Chains) -> tuple[Exposure, ...]:
    """Simulate the faults on every prompt, each with how much of the chain it changes."""
    return tuple(exposure for name in chains for exposure in _faults(name, chains))


def weakest(found: Sequence[Exposure]) -> Exposure:
    """The fault that changes the smallest share; the first of equals."""
    return min(found, key=lambda exposure: exposure.share)


def _faults(name: str, chains: Chains) -> Iterator[Exposure]:
    prompt, generated = chains[name]
    whole = [*prompt, *generated]
    for shift in sorted({*_SHIFTS, len(prompt)}):
        late = whole[len(prompt) + shift :]
        early = whole[max(0, len(prompt) - shift) :][: len(generated)]
        if late:
            yield _exposure(f"{name}: {shift} late", generated, late)
        yield _exposure(f"{name}: {shift} early", generated, early)
    yield _exposure(f"{name}: first id dropped", generated, [*generated[1:], generated[0]])
    yield _exposure(f"{name}: last id dropped", generated, [generated[-1], *generated[:-1]])
    for other in chains:
        if other != name:
            yield _exposure(f"{name}: answered as {other}", generated, chains[other][1])


def _exposure(fault: str, expected: Sequence[int], got: Sequence[int]) -> Exposure:
    pairs = list(zip(expected, got, strict=False))
    return Exposure(fault, sum(a != b for a, b in pairs), len(pairs))
