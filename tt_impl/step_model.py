"""Modelled time of a decoder's steps on the simulated device, by phase: `oracle.subjects.modelled_time.ModelsTime` for `tt`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict

from oracle.subjects.modelled_time import PartTimes, TimeModel
from tt_impl.device.protocol import Device
from tt_impl.device.sim.cost import CostModel
from tt_impl.device.sim.machine import SimMachine
from tt_impl.phases import PHASES, PhaseClock

CAUSES: Mapping[str, str] = {
    "transfers_in": "bytes from host to device",
    "transfers_out": "bytes from device to host",
    "round_trips": "calls that wait for the device, without the work they wait for",
    "dispatch": "the host's work to enqueue ops",
    "matrix": "matrix engines",
    "memory": "the device's DRAM",
}
"""Of `ModelledTime`, whose fields are these with `_ns`."""


class StepModel:
    """Off at first, and for ever where the device is no simulated one.

    Args:
        device: that the decoder runs on.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._cost: CostModel | None = device.cost_model if isinstance(device, SimMachine) else None
        self._clock: PhaseClock | None = None

    def told(self) -> TimeModel | None:
        """What the times are made of; None where there are none."""
        return None if self._cost is None else TimeModel(PHASES, CAUSES, asdict(self._cost))

    def turn(self, on: bool) -> None:
        """Begin from 0, or end."""
        self._clock = PhaseClock(self._device) if on else None

    def step(self) -> AbstractContextManager[None]:
        """Around one step of the decoder."""
        return nullcontext() if self._clock is None else self._clock.step()

    def modelled_ns(self) -> PartTimes:
        """By phase and cause; nothing while off, or without a model."""
        if self._clock is None or self._cost is None:
            return {}
        times = {name: self._cost.time(counts) for name, counts in self._clock.counts.items()}
        return {name: {cause: getattr(time, f"{cause}_ns") for cause in CAUSES} for name, time in times.items()}
