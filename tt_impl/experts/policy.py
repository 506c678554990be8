"""Which expert a full layer gives up when another one needs its slot.

A policy sees what a layer is asked for and names a victim among the slots that may go; what may go (`slots.SlotTable`
pins what the present step needs) is not its business. To add one: a class with a name, `touch` and `victim`, in `POLICIES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

HOTNESS_DECAY = 15 / 16
"""What an earlier touch still counts, one touch call later; exact in binary.

On the expert ids of the shipped golden (all 17 prompts, each walked twice from cold) 15/16 makes 9,212 fills with 14 slots
of 16 experts, where 1/2 makes 9,887, 7/8 9,244, 31/32 9,156 and no decay 9,368; least recently used makes 9,980. With 12
slots: 18,444 against 19,666, 18,626, 18,607, 18,797 and 19,838.
"""


class SlotPolicy(Protocol):
    """One layer's memory of what it was asked for.

    Attributes:
        name: what `DecoderSettings.policy` calls it.
    """

    name: str

    def touch(self, experts: Sequence[int]) -> None:
        """A step asks for `experts`, each once, in this order. Called before any victim of that step is named."""
        ...

    def victim(self, candidates: Mapping[int, int]) -> int:
        """The slot to give up, of `candidates`: slot to the expert in it, at least one."""
        ...


class Hotness:
    """Gives up the expert with the fewest touches, older ones counting less; of equals the lowest slot.

    An expert keeps its heat while it is out of its slot, so one that returns often is not the first to go again.
    """

    name: str = "hotness"

    def __init__(self) -> None:
        self._heat: dict[int, float] = {}

    def touch(self, experts: Sequence[int]) -> None:
        heat = self._heat
        for expert in heat:
            heat[expert] *= HOTNESS_DECAY
        for expert in experts:
            heat[expert] = heat.get(expert, 0.0) + 1.0

    def victim(self, candidates: Mapping[int, int]) -> int:
        return min(candidates, key=lambda slot: (self._heat.get(candidates[slot], 0.0), slot))


class LeastRecentlyUsed:
    """Gives up the expert whose latest touch is longest ago; within one step the one asked for first is the older."""

    name: str = "lru"

    def __init__(self) -> None:
        self._clock = 0
        self._touched: dict[int, int] = {}

    def touch(self, experts: Sequence[int]) -> None:
        for expert in experts:
            self._clock += 1
            self._touched[expert] = self._clock

    def victim(self, candidates: Mapping[int, int]) -> int:
        return min(candidates, key=lambda slot: (self._touched.get(candidates[slot], 0), slot))


POLICIES: Mapping[str, Callable[[], SlotPolicy]] = {policy.name: policy for policy in (Hotness, LeastRecentlyUsed)}
"""By the name that `DecoderSettings.policy` and the arms use; each call makes one layer's."""
