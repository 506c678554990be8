"""When the simulated card works: every order of time that a real one may choose, and a decoder must survive.

| name | commands run | of two queues goes first | addresses |
|---|---|---|---|
| `eager` | at once | the one enqueued to | lowest that fits |
| `lazy` | only when something settles them | queue 0 | lowest that fits |
| `random:SEED` | some of them, now and then | either | lowest that fits |
| `reuse` | only when something settles them | queue 1 | those freed last, at once |

A schedule is a name: the same name replays the same run exactly, faults included.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol

from oracle.errors import UsageError

SCHEDULES = "eager, lazy, reuse or random:SEED"
"""The names, for messages."""


class Schedule(Protocol):
    """Asked after each command is enqueued, and whenever there is a choice.

    Attributes:
        name: gives this schedule again, from its beginning.
        latest_address: an allocation gets what was freed last.
        only_settled: no command runs by itself; `turns` need not be asked.
    """

    name: str
    latest_address: bool
    only_settled: bool

    def turns(self, pending: int) -> int:
        """How many commands run by themselves now, of `pending` in all queues."""
        ...

    def pick(self, ready: Sequence[int]) -> int:
        """Which of the queues that could go on, two or more, does."""
        ...


class EagerSchedule:
    """The earliest that a device may be."""

    name = "eager"
    latest_address = False
    only_settled = False

    def turns(self, pending: int) -> int:
        return pending

    def pick(self, ready: Sequence[int]) -> int:
        return ready[0]


class LazySchedule:
    """The latest, with transfers on the other queue behind all ops: an op that does not wait for its operand sees poison."""

    name = "lazy"
    latest_address = False
    only_settled = True

    def turns(self, pending: int) -> int:
        return 0

    def pick(self, ready: Sequence[int]) -> int:
        return ready[0]


class ReuseSchedule:
    """The latest, with transfers on the other queue before all ops, and addresses that go from hand to hand: a write that
    does not wait for the op before it destroys what the op was to read."""

    name = "reuse"
    latest_address = True
    only_settled = True

    def turns(self, pending: int) -> int:
        return 0

    def pick(self, ready: Sequence[int]) -> int:
        return ready[-1]


class RandomSchedule:
    """After every other command on average, a random share of what is pending runs, from queues taken at random."""

    latest_address = False
    only_settled = False

    def __init__(self, seed: int) -> None:
        self.name = f"random:{seed}"
        self._random = random.Random(seed).random  # whose sequence Python guarantees, other than that of its other methods

    def turns(self, pending: int) -> int:
        return int(self._random() * (pending + 1)) if self._random() < 0.5 else 0

    def pick(self, ready: Sequence[int]) -> int:
        return ready[int(self._random() * len(ready))]


def schedule_named(name: str) -> Schedule:
    """The schedule called `name`, at its beginning.

    Raises:
        UsageError: another name.
    """
    for kind in (EagerSchedule, LazySchedule, ReuseSchedule):
        if name == kind.name:
            return kind()
    prefix, _, seed = name.partition(":")
    if prefix == "random" and seed.isascii() and seed.isdecimal():
        return RandomSchedule(int(seed))
    raise UsageError(f"unknown schedule {name!r}; use {SCHEDULES}")
