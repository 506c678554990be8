"""A Blackhole in numpy: bytes at addresses, asynchronous command queues, traces, an event log, and faults on request."""

from tt_impl.device.sim.cost import CostModel, ModelledTime
from tt_impl.device.sim.device import SimDevice
from tt_impl.device.sim.faults import (
    Delay,
    Drop,
    Fault,
    FaultPlan,
    Flip,
    OnDrain,
    OnEvent,
    OnOp,
    OnRead,
    OnWrite,
    Overwrite,
)
from tt_impl.device.sim.geometry import P150, DramGeometry
from tt_impl.device.sim.quirks import NO_QUIRKS, QUIRK_PROFILES, Quirks
from tt_impl.device.sim.schedule import Schedule, schedule_named

__all__ = [
    "NO_QUIRKS",
    "P150",
    "QUIRK_PROFILES",
    "CostModel",
    "Delay",
    "DramGeometry",
    "Drop",
    "Fault",
    "FaultPlan",
    "Flip",
    "ModelledTime",
    "OnDrain",
    "OnEvent",
    "OnOp",
    "OnRead",
    "OnWrite",
    "Overwrite",
    "Quirks",
    "Schedule",
    "SimDevice",
    "schedule_named",
]
