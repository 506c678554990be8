"""Phases of a decode step: marks in the decoder, and a clock that attributes what the device counts to them.

A mark is `with phase("fills"):` around the calls, or `@phase("fills")` on a method; the innermost one holds, and what none
covers is `compute`. Marks cost next to nothing and change nothing where no clock runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

from tt_impl.device.protocol import Device

Phase = Literal["router", "fills", "verification", "dequantization", "compute", "logits", "evidence"]

PHASES: Mapping[str, str] = {
    "router": "the router's product, the read of its logits (and of its bias where that is fetched), the host's wait for them",
    "fills": "writes of fp8 experts into slots",
    "verification": "read-backs of filled slots, and the drains that wait for them",
    "dequantization": "uploads of dequantized experts, and slots read again for them; not the host's own arithmetic",
    "compute": "every op but the router's, and the ids, positions and expert weights that go in; with `dispatch=captured` all "
    "that is replayed, the router's product too",
    "logits": "the read of the step's logits, and the wait for it",
    "evidence": "embedding row and residual streams, read for the judge without a wait of their own",
}

_RUNNING: ContextVar[PhaseClock | None] = ContextVar("phase_clock", default=None)


@contextmanager
def phase(name: Phase) -> Iterator[None]:
    """What the device is asked for within belongs to phase `name`."""
    clock = _RUNNING.get()
    if clock is None:
        yield
    else:
        with clock.entered(name):
            yield


class PhaseClock:
    """Counts by phase, of the steps run within `step`.

    Args:
        device: whose counters are looked at, where its event number says that there is something new.

    Attributes:
        counts: by phase, the counters' increases; together, all increases during the steps.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._number = 0
        self._seen: Mapping[str, int] = {}
        self._phase: Phase = "compute"
        self.counts: Mapping[str, Counter[str]] = {name: Counter() for name in PHASES}

    @contextmanager
    def step(self) -> Iterator[None]:
        """One step: marks are told to this clock."""
        self._number, self._seen = self._device.event_number, self._device.event_counts()
        token = _RUNNING.set(self)
        try:
            with self.entered("compute"):
                yield
        finally:
            _RUNNING.reset(token)

    @contextmanager
    def entered(self, name: Phase) -> Iterator[None]:
        """Phase `name`, then again the one around it."""
        around = self._turn_to(name)
        try:
            yield
        finally:
            self._turn_to(around)

    def _turn_to(self, name: Phase) -> Phase:
        """Attribute what was counted since the last turn to the phase that was on, and return that."""
        left, self._phase = self._phase, name
        if (number := self._device.event_number) != self._number:
            now, before, counts = self._device.event_counts(), self._seen, self.counts[left]
            for counter, count in now.items():
                if increase := count - before.get(counter, 0):
                    counts[counter] += increase
            self._number, self._seen = number, now
        return left
