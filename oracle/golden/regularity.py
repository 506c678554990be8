"""Chains so regular that an index or phase fault in them cannot be seen: constant, of short period, or caught in a loop.

Greedy decoding likes to end in a loop, and a fault that begins late (a page table's second block, a window that is
outgrown) then falls on ids that repeat. So the whole chain counts, and every half of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

LONGEST_SHORT_PERIOD = 16

LOOP_SHARE = 0.8
"""A stretch is a loop where at least this share of its ids equals the id one period before.

Measured on the shipped golden (2026-11-30): its most regular half, a count by threes with its spaces, has 0.65, the next
chain 0.35. A loop of period p with one wrong id in it loses at most two of the pairs.
"""

LEAST_PAIRS = 8
"""Fewer pairs of ids say nothing: one equal pair of one is no loop."""

SHORTEST_HALF_LOOP = 2 * (LEAST_PAIRS + 2)
"""A chain this long has halves in which two ids in turn are found."""


@dataclass(frozen=True)
class Regular:
    """Why a chain is too regular.

    Attributes:
        period: of the repetition, in ids; 1 means constant.
        start, stop: the stretch `generated[start:stop]`.
        share: how many of its ids equal the one a period before.
        whole: the whole chain repeats, without exception.
    """

    period: int
    start: int
    stop: int
    share: float
    whole: bool

    def __str__(self) -> str:
        if self.whole:
            return f"has period {self.period} and can show no index fault"
        where = f"generated[{self.start}:{self.stop}]"
        return f"repeats with period {self.period} in {where} ({self.share:.0%} of the ids) and can show no index fault there"


def regular(chain: Sequence[int]) -> Regular | None:
    """Why the chain is too regular to show an index fault, or None: by the whole of it, or by the shortest loop of a half.

    The controls of gate `golden` ask several times for the same chains: the last answers are kept.
    """
    return _regular(tuple(chain))


@lru_cache(maxsize=4096)
def _regular(chain: tuple[int, ...]) -> Regular | None:
    if period := short_period(chain):
        return Regular(period, 0, len(chain), 1.0, whole=True)
    ids = np.asarray(chain)
    loops = [s for width in (len(chain), (len(chain) + 1) // 2) for s in _stretches(ids, width) if s.share >= LOOP_SHARE]
    return min(loops, key=lambda s: (s.period, -s.share, s.start), default=None)


def short_period(chain: Sequence[int]) -> int | None:
    """The smallest period, up to 16, that explains the whole chain; 1 means constant. None where there is none.

    A chain must hold two whole periods to be called periodic.
    """
    for period in range(1, min(LONGEST_SHORT_PERIOD, len(chain) // 2) + 1):
        if all(a == b for a, b in zip(chain, chain[period:], strict=False)):
            return period
    return None


def _stretches(chain: np.ndarray, width: int) -> list[Regular]:
    """Per period, the stretch of `width` ids that repeats most; only where it holds two periods and enough pairs."""
    found = []
    for period in range(1, min(LONGEST_SHORT_PERIOD, width // 2, width - LEAST_PAIRS) + 1):
        pairs = width - period
        equal = np.concatenate([[0], np.cumsum(chain[period:] == chain[:-period])])
        counts = equal[pairs:] - equal[:-pairs]
        start = int(counts.argmax())
        found.append(Regular(period, start, start + width, float(counts[start]) / pairs, whole=False))
    return found
