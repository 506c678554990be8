"""Repeating the beginning of one prompt under other conditions that must change nothing, and the evidence kept of that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True)
class Variant:
    """One other condition: a hostile schedule, fewer slots, a smaller budget, another checkpoint there before, ...

    Attributes:
        what: that changes, in a few words.
        moves: names of counters of `stats()` that are above 0 if and only if the condition took effect.
    """

    what: str
    moves: tuple[str, ...] = ()


@runtime_checkable
class Repeats(Protocol):
    """An ability of a subject's factory: to open it under conditions that must not change a bit of what it computes.

    Attributes:
        variants: by the name that `SubjectRequest.variant` takes. One without conditions should be among them: a plain
            repeat.
    """

    variants: Mapping[str, Variant]


@runtime_checkable
class StatesEffects(Protocol):
    """An ability of a subject's factory: to say what an arm's own counters must show, lest it be another arm's run."""

    def effects(self, arm: str) -> tuple[str, ...]:
        """Names of counters of `stats()` that are above 0 if and only if what sets `arm` apart took effect."""
        ...


def effects_of(factory: object, arm: str, stats: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """The counters that `arm` must move, with their values in `stats`; none where the factory says nothing."""
    named = factory.effects(arm) if isinstance(factory, StatesEffects) else ()
    return tuple((name, stats.get(name, 0)) for name in named)


@dataclass(frozen=True)
class Repeat:
    """The first steps of a prompt, teacher-forced, in a subject opened anew under one variant.

    Attributes:
        variant: its name.
        digests: of each position's logits, and of what its layers show (`oracle.judge.determinism.position_digests`).
        counters: those that the variant must move, with their values at the end.
        fault: what ended it early; empty if nothing.
    """

    variant: str
    digests: tuple[tuple[str, str], ...] = ()
    counters: tuple[tuple[str, int], ...] = ()
    fault: str = ""


@dataclass(frozen=True)
class RepeatEvidence:
    """All repeats of a run.

    Attributes:
        prompt: that was repeated.
        planned: names of all variants that the subject has, sorted.
        repeats: in that order.
        effects: counters that the run's arm must move, with their values over its answered prompts; empty where none was.
    """

    prompt: str
    planned: tuple[str, ...]
    repeats: tuple[Repeat, ...]
    effects: tuple[tuple[str, int], ...] = ()
