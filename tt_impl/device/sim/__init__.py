"""A Blackhole in numpy: bytes at addresses, an asynchronous command queue, an event log, and faults on request."""

from tt_impl.device.sim.device import SimDevice
from tt_impl.device.sim.faults import BitFlip, FaultPlan
from tt_impl.device.sim.queue import Schedule, schedule_named
from tt_impl.device.sim.quirks import EXACT, QUIRK_PROFILES, Quirks

__all__ = ["EXACT", "QUIRK_PROFILES", "BitFlip", "FaultPlan", "Quirks", "Schedule", "SimDevice", "schedule_named"]
