"""A host subject that a bench can measure in no time, and that differs from itself where a test wants it to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from oracle.subjects.modelled_time import PartTimes, TimeModel
from oracle.subjects.protocol import NumericClass, StepEvidence, SubjectIdentity, SubjectRequest

VOCABULARY = 96
Twist = Callable[["FakeSubject"], None]


@dataclass
class FakeSubject:
    """Predicts `7 * token + position + skew`; its counters and times rise by what a test sets.

    Attributes:
        log: of everything asked of it, shared by all that one factory opens.
    """

    arm: str
    log: list[str]
    skew: int = 0
    whisper: float = 0.0  # on a logit that decides nothing
    fills: int = 2
    drain_ns: int = 500
    consumes: int = 0  # away from what it is fed
    worst: float = 3.0
    modelled: bool = True
    steps: int = 0
    position: int = -1
    modelled_from: int = 0

    @property
    def identity(self) -> SubjectIdentity:
        return SubjectIdentity("fake", "fp32", self.arm, (), {"kind": "paper"})

    def reset(self) -> None:
        self.log.append("reset")
        self.steps = 0

    def start(self) -> None:
        self.position = -1

    def step(self, token: int) -> StepEvidence:
        self.log.append(f"step {token}")
        self.position += 1
        self.steps += 1
        logits = np.zeros(VOCABULARY, np.float32)
        logits[(7 * token + self.position + self.skew) % VOCABULARY] = self.worst
        logits[0] -= 1 + self.whisper
        return StepEvidence(token + self.consumes, self.position, logits, np.zeros(2, np.uint8))

    def stats(self) -> Mapping[str, int]:
        held = {"memory_before": 1000, "memory_after": 1000 + self.steps}
        return {"steps": self.steps, "fills": self.fills * self.steps, "never": 0, "device.ops": 9 * self.steps, **held}

    def time_model(self) -> TimeModel | None:
        return (
            TimeModel({"drain": "waits", "rest": "all else"}, {"wait": "", "ops": ""}, {"x_ns": 1}) if self.modelled else None
        )

    def model_time(self, on: bool) -> None:
        self.log.append(f"model {on}")
        self.modelled_from = self.steps

    def modelled_ns(self) -> PartTimes:
        steps = self.steps - self.modelled_from
        return {"drain": {"wait": self.drain_ns * steps, "ops": 0}, "rest": {"wait": 0, "ops": 2000 * steps}}

    def close(self) -> None:
        self.log.append("close")


@dataclass
class FakeFactory:
    """Opens fakes; the `nth` opening of all, from 1, is twisted.

    Attributes:
        bases: what each arm computes; None where the factory does not say.
    """

    twist: Twist = lambda _: None
    nth: int = 0
    bases: Mapping[str, str] | None = None
    log: list[str] = field(default_factory=list)
    arms: Mapping[str, NumericClass] = field(default_factory=lambda: {"plain": "fp32", "lean": "fp32", "wide": "fp32"})
    devices: tuple[str, ...] = ("paper",)
    levels: tuple[str, ...] = ("memory_before", "memory_after")
    plants: Mapping[str, str] = field(default_factory=dict)
    opened: int = 0

    def open(self, request: SubjectRequest, observer: Any = None) -> FakeSubject:
        assert observer is None
        self.opened += 1
        self.log.append(f"open {request.arm}")
        subject = FakeSubject(request.arm or "", self.log)
        if self.opened == self.nth:
            self.twist(subject)
        return subject


class KnowingFactory(FakeFactory):
    """Says which arms compute the same."""

    def arithmetic(self, arm: str) -> str:
        assert self.bases is not None
        return self.bases[arm]


class EffectiveFactory(FakeFactory):
    """Says that `lean` must fill and hold memory, and `wide` do what nobody does."""

    def effects(self, arm: str) -> tuple[str, ...]:
        return {"plain": (), "lean": ("fills", "memory_after"), "wide": ("fills", "never", "unheard_of")}[arm]
