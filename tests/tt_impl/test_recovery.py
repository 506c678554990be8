"""A fault at any call of a step, also within a capture, leaves nothing behind once the decoder was reset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from oracle.errors import DeviceFault
from tt_impl.decode import Decoder
from tt_impl.device.passing import Passing
from tt_impl.device.sim import SimDevice, schedule_named

STEPS = 2
"""In the second a decoder that captures does so, and replays."""

STRIDE = 13
"""One call in so many is made to fault: enough for each kind, some within captures."""

CLEANING = ("deallocate", "end_trace_capture", "release_trace")
QUESTIONS = ("get_memory_view", "event_counts", "captures", "forget_captures")


class FaultsAt(Passing):
    """The `due`-th call from now on does nothing but fault; those that give back or ask are not counted."""

    def __init__(self, schedule: str) -> None:
        super().__init__(SimDevice(schedule=schedule_named(schedule)))
        self.calls, self.due = 0, 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._device, name)
        if not callable(found) or name in (*CLEANING, *QUESTIONS):
            return found

        def call(*operands: Any, **how: Any) -> Any:
            self.calls += 1
            if self.calls == self.due:
                raise DeviceFault("planted", name)
            return found(*operands, **how)

        return call


def steps(decoder: Decoder, tokens: list[int]) -> list[np.ndarray]:
    return [decoder.step(token).logits for token in tokens[:STEPS]]


@pytest.mark.parametrize(("dispatch", "schedule"), [("eager", "reuse"), ("captured", "random:3")])
def test_nothing_is_left_of_a_fault_at_any_call(
    open_decoder: Callable[..., Decoder], tokens: list[int], dispatch: str, schedule: str
) -> None:
    device = FaultsAt(schedule)
    decoder = open_decoder(device=device, dispatch=dispatch, topk="device")
    held = device.get_memory_view().allocated_bytes
    device.calls = 0
    logits = steps(decoder, tokens)
    stats = decoder.stats()
    for due in range(1, device.calls, STRIDE):
        decoder.reset()
        device.calls, device.due = 0, due
        with pytest.raises(DeviceFault, match=r"^planted"):
            steps(decoder, tokens)
        decoder.reset()
        assert device.get_memory_view().allocated_bytes == held, due
        assert np.array_equal(steps(decoder, tokens), logits), due
        assert decoder.stats() == stats, due
