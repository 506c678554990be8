"""Counters that add up over prompts, and levels that do not: how much was held at once, and at most."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol, runtime_checkable


@runtime_checkable
class StatesLevels(Protocol):
    """An ability of a subject's factory: to say which of its counters are levels.

    Attributes:
        levels: names in `stats()`. Over prompts the largest value is kept of these; all others are added up.
    """

    levels: Collection[str]


def levels_of(factory: object) -> Collection[str]:
    """Names of the counters that a subject's factory calls levels; none where it says nothing."""
    return factory.levels if isinstance(factory, StatesLevels) else ()


def over_prompts(stats: Iterable[Mapping[str, int]], levels: Collection[str]) -> Mapping[str, int]:
    """The counters of several prompts as one session's: added up, or, of levels, the largest."""
    total: dict[str, int] = {}
    for each in stats:
        for name, value in each.items():
            if name not in total:
                total[name] = value
            elif name in levels:
                total[name] = max(total[name], value)
            else:
                total[name] += value
    return dict(sorted(total.items()))
