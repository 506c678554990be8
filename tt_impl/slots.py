"""Which expert sits in which slot of a layer, and what may be done with it.

A slot's life: EMPTY -> STAGED (written, read-back enqueued) -> VERIFIED (its bytes compared) -> IN_USE (a step computes with
it) -> VERIFIED again, or evicted to EMPTY. Any other move is a `DeviceFault("slot-state")`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from oracle.errors import DeviceFault


class SlotState(Enum):
    EMPTY = "empty"
    STAGED = "staged"
    VERIFIED = "verified"
    IN_USE = "in use"


@dataclass
class Slot:
    """`generation` counts this slot's fills; (layer, slot, generation) names what it holds. `touched` orders evictions."""

    index: int
    state: SlotState = SlotState.EMPTY
    expert: int | None = None
    generation: int = 0
    touched: int = 0


@dataclass(frozen=True)
class Fetch:
    """A fill to be made: `expert` into `slot`, which is empty."""

    expert: int
    slot: int


EvictionHook = Callable[[int, int, int], None]
"""Called with (layer, expert, slot) before a slot loses its expert."""


class SlotTable:
    """One layer's slots; evicts the least recently touched expert that the present step does not need."""

    def __init__(self, layer: int, capacity: int, on_evict: EvictionHook) -> None:
        self._layer = layer
        self._slots = [Slot(index) for index in range(capacity)]
        self._resident: dict[int, Slot] = {}
        self._on_evict = on_evict
        self._clock = 0

    def touch(self, experts: Sequence[int]) -> list[Fetch]:
        """Ask for all experts of a step; returns the fills that are missing, in the order asked, with slots made empty.

        Raises:
            DeviceFault: `slot-capacity` when the step needs more experts than there are slots; `slot-state` when a slot
                would have to go that is not verified and idle.
        """
        needed = set(experts)
        if len(needed) > len(self._slots):
            raise DeviceFault("slot-capacity", f"layer {self._layer} needs {len(needed)} experts in {len(self._slots)} slots")
        free = [slot for slot in self._slots if slot.expert is None]
        idle = sorted((slot for slot in self._resident.values() if slot.expert not in needed), key=lambda slot: slot.touched)
        fetches = []
        for expert in dict.fromkeys(experts):
            slot = self._resident.get(expert)
            if slot is None:
                slot = free.pop(0) if free else self._evict(idle.pop(0))
                fetches.append(Fetch(expert, slot.index))
            self._clock += 1
            slot.touched = self._clock
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
        self._move(self._slots[index], (SlotState.STAGED,), SlotState.VERIFIED)

    def use(self, expert: int) -> Slot:
        """Take `expert` into compute.

        Raises:
            DeviceFault: `slot-state` when it is not resident or not verified.
        """
        slot = self._resident.get(expert)
        if slot is None:
            raise DeviceFault("slot-state", f"layer {self._layer}: expert {expert} was used but is in no slot")
        self._move(slot, (SlotState.VERIFIED, SlotState.IN_USE), SlotState.IN_USE)
        return slot

    def release(self) -> None:
        """The step's compute over this layer is enqueued: slots in use may be evicted again."""
        for slot in self._slots:
            if slot.state is SlotState.IN_USE:
                slot.state = SlotState.VERIFIED

    def _evict(self, slot: Slot) -> Slot:
        expert = slot.expert
        self._move(slot, (SlotState.VERIFIED,), SlotState.EMPTY)
        assert expert is not None, "a verified slot has an expert"
        self._on_evict(self._layer, expert, slot.index)
        del self._resident[expert]
        slot.expert = None
        return slot

    def _move(self, slot: Slot, allowed: tuple[SlotState, ...], to: SlotState) -> None:
        if slot.state not in allowed:
            raise DeviceFault(
                "slot-state",
                f"layer {self._layer} slot {slot.index} (expert {slot.expert}, generation {slot.generation}) is "
                f"{slot.state.value} and cannot become {to.value}",
            )
        slot.state = to
