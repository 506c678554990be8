"""Modelled time of a subject whose device is simulated: what a step would cost by a stated model, and where it goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

PartTimes = Mapping[str, Mapping[str, int]]
"""Nanoseconds by part of a step, then by cause."""


@dataclass(frozen=True)
class TimeModel:
    """What a modelled time is made of.

    Attributes:
        parts: of a step, in reading order, and what each covers. Together they cover the step, and none covers another's.
        causes: of each part's time, in reading order, and what each is.
        constants: of the model, with their units in their names.
    """

    parts: Mapping[str, str]
    causes: Mapping[str, str]
    constants: Mapping[str, int]


@runtime_checkable
class ModelsTime(Protocol):
    """An optional ability of a subject: modelled device time, exact and the same in every run. Wall time is then that of a
    simulation, and says nothing of the device."""

    def time_model(self) -> TimeModel | None:
        """None on a device whose time nobody models, as a card."""
        ...

    def model_time(self, on: bool) -> None:
        """Begin to model steps from 0, or model none any more."""
        ...

    def modelled_ns(self) -> PartTimes:
        """Of all steps since modelling began: every part and cause of the model, 0 where nothing fell to it.

        A step's time is the sum over both.
        """
        ...


def total_ns(times: PartTimes) -> int:
    """Over all parts and causes."""
    return sum(sum(causes.values()) for causes in times.values())
