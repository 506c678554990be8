"""Which expert sits in which slot of a layer, and what may be done with it.

A slot's life: EMPTY -> STAGED (written, read-back enqueued) -> VERIFIED (its bytes compared) -> IN_USE (a step computes with
it) -> VERIFIED again, or evicted to EMPTY. Where later fills of an expert are not compared (`verify=first`), TRUSTED stands
for VERIFIED. Any other move is a `DeviceFault("slot-state")`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from oracle.errors import DeviceFault
from tt_impl.experts.policy import SlotPolicy


class SlotState(Enum):
    EMPTY = "empty"
    STAGED = "staged"
    VERIFIED = "verified"
    TRUSTED = "trusted"
    IN_USE = "in use"


@dataclass
class Slot:
    """`generation` counts this slot's fills; (layer, slot, generation) names what it holds.

    `idle` is the state to go back to after use: VERIFIED or TRUSTED.
    """

    index: int
    state: SlotState = SlotState.EMPTY
    expert: int | None = None
    generation: int = 0
    idle: SlotState = SlotState.VERIFIED


@dataclass(frozen=True)
class Fetch:
    """A fill to be made: `expert` into `slot`, which is empty."""

    expert: int
    slot: int


EvictionHook = Callable[[int, int, int], None]
"""Called with (layer, expert, slot) before a slot loses its expert."""

Content = tuple[int, int, int, int]
"""(layer, slot, expert, generation): one filled slot."""


class SlotTable:
    """One layer's slots. What a step touches is pinned until `release`; of the rest, `policy` says what is evicted."""

    def __init__(self, layer: int, capacity: int, policy: SlotPolicy, on_evict: EvictionHook) -> None:
        self._layer = layer
        self._slots = [Slot(index) for index in range(capacity)]
        self._resident: dict[int, Slot] = {}
        self._pinned: set[int] = set()
        self._policy = policy
        self._on_evict = on_evict

    @property
    def policy(self) -> str:
        """The name of what says who is evicted."""
        return self._policy.name

    def __contains__(self, expert: int) -> bool:
        """Whether a slot holds `expert`, verified or not."""
        return expert in self._resident

    def content(self) -> Iterable[Content]:
        """What the filled slots hold."""
        for expert, slot in self._resident.items():
            yield self._layer, slot.index, expert, slot.generation

    def touch(self, experts: Sequence[int]) -> list[Fetch]:
        """Ask for experts of a step; returns the fills that are missing, in the order asked, with slots made empty.

        Raises:
            DeviceFault: `slot-capacity` when the step needs more experts than there are slots; `slot-state` when a slot
                would have to go that is not verified and idle.
        """
        wanted = list(dict.fromkeys(experts))
        pinned = self._pinned.union(wanted)
        if len(pinned) > len(self._slots):
            raise DeviceFault("slot-capacity", f"layer {self._layer} needs {len(pinned)} experts in {len(self._slots)} slots")
        self._pinned = pinned
        self._policy.touch(wanted)
        free = [slot for slot in self._slots if slot.expert is None]
        fetches = []
        for expert in wanted:
            if expert not in self._resident:
                slot = free.pop(0) if free else self._evict()
                fetches.append(Fetch(expert, slot.index))
        return fetches

    def stage(self, index: int, expert: int) -> Slot:
        """`expert`'s bytes are being written into the empty slot `index`."""
        slot = self._slots[index]
        self._move(slot, (SlotState.EMPTY,), SlotState.STAGED)
        slot.expert = expert
        slot.generation += 1
        self._resident[expert] = slot
        return slot

    def verify(self, index: int) -> None:
        """The slot's bytes have been compared with its shadow."""
        self._settle(index, SlotState.VERIFIED)

    def trust(self, index: int) -> None:
        """The slot's bytes are not compared: those of an earlier fill of its expert were."""
        self._settle(index, SlotState.TRUSTED)

    def use(self, expert: int) -> Slot:
        """Take `expert` into compute.

        Raises:
            DeviceFault: `slot-state` when it is not resident, or neither verified nor trusted.
        """
        slot = self._resident.get(expert)
        if slot is None:
            raise DeviceFault("slot-state", f"layer {self._layer}: expert {expert} was used but is in no slot")
        self._move(slot, (SlotState.VERIFIED, SlotState.TRUSTED, SlotState.IN_USE), SlotState.IN_USE)
        return slot

    def release(self) -> None:
        """The step's compute over this layer is enqueued: its experts may be evicted again."""
        self._pinned = set()
        for slot in self._slots:
            if slot.state is SlotState.IN_USE:
                slot.state = slot.idle

    def _evict(self) -> Slot:
        candidates = {slot.index: expert for expert, slot in self._resident.items() if expert not in self._pinned}
        slot = self._slots[self._policy.victim(candidates)]
        expert = candidates[slot.index]
        self._move(slot, (SlotState.VERIFIED, SlotState.TRUSTED), SlotState.EMPTY)
        self._on_evict(self._layer, expert, slot.index)
        del self._resident[expert]
        slot.expert = None
        return slot

    def _settle(self, index: int, state: SlotState) -> None:
        slot = self._slots[index]
        self._move(slot, (SlotState.STAGED,), state)
        slot.idle = state

    def _move(self, slot: Slot, allowed: tuple[SlotState, ...], to: SlotState) -> None:
        if slot.state not in allowed:
            raise DeviceFault(
                "slot-state",
                f"layer {self._layer} slot {slot.index} (expert {slot.expert}, generation {slot.generation}) is "
                f"{slot.state.value} and cannot become {to.value}",
            )
        slot.state = to
