"""Would this golden's chains expose a phase or index fault? A chain that repeats one id exposes none.

A port's golden once held one id 32 times, two ids in turn, and a chain of period 12: no shift by one could show on them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
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


class Exposure(NamedTuple):
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
    return count(exposures(chains))


def count(found: Sequence[Exposure]) -> Sensitivity:
    """How many of the simulated faults are exposed."""
    hidden = tuple(exposure.fault for exposure in found if not exposure.changed)
    return Sensitivity(faults=len(found), exposed=len(found) - len(hidden), hidden=hidden)


def exposures(chains: Chains) -> tuple[Exposure, ...]:
    """Simulate the faults on every prompt, each with how much of the chain it changes.

    The controls of gate `golden` ask several times for the same chains: the last answers are kept.
    """
    return _exposures(tuple((name, tuple(prompt), tuple(generated)) for name, (prompt, generated) in chains.items()))


def weakest(found: Sequence[Exposure]) -> Exposure:
    """The fault that changes the smallest share; the first of equals."""
    return min(found, key=lambda exposure: exposure.share)


@lru_cache(maxsize=2)
def _exposures(chains: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...]) -> tuple[Exposure, ...]:
    names = [name for name, _, _ in chains]
    lengths = np.array([len(generated) for _, _, generated in chains])
    ids = np.full((len(chains), lengths.max()), _NO_ID)
    for row, (_, _, generated) in zip(ids, chains, strict=True):
        row[: len(generated)] = generated
    return tuple(
        exposure
        for index, (name, prompt, generated) in enumerate(chains)
        for exposure in (*_shifts(name, prompt, generated), *_swaps(names, ids, lengths, index))
    )


_NO_ID = -1
"""Behind the end of a shorter chain."""


def _shifts(name: str, prompt: tuple[int, ...], generated: tuple[int, ...]) -> Iterator[Exposure]:
    chain, whole = np.array(generated), np.array(prompt + generated)
    for shift in sorted({*_SHIFTS, len(prompt)}):
        late = whole[len(prompt) + shift :]
        early = whole[max(0, len(prompt) - shift) :][: len(generated)]
        if len(late):
            yield _exposure(f"{name}: {shift} late", chain, late)
        yield _exposure(f"{name}: {shift} early", chain, early)
    yield _exposure(f"{name}: first id dropped", chain, np.roll(chain, -1))
    yield _exposure(f"{name}: last id dropped", chain, np.roll(chain, 1))


def _exposure(fault: str, expected: np.ndarray, got: np.ndarray) -> Exposure:
    compared = min(len(expected), len(got))
    return Exposure(fault, int((expected[:compared] != got[:compared]).sum()), compared)


def _swaps(names: list[str], ids: np.ndarray, lengths: np.ndarray, index: int) -> Iterator[Exposure]:
    """One prompt answered as each other one, compared as far as the shorter chain goes."""
    compared = np.minimum(lengths, lengths[index])
    within = np.arange(ids.shape[1]) < compared[:, None]
    changed = ((ids != ids[index]) & within).sum(axis=1)
    for other, (name, differ, of) in enumerate(zip(names, changed.tolist(), compared.tolist(), strict=True)):
        if other != index:
            yield Exposure(f"{names[index]}: answered as {name}", differ, of)
