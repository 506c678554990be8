"""The simulated card, whole."""

from __future__ import annotations

from tt_impl.device.sim.attention_ops import AttentionOps
from tt_impl.device.sim.row_ops import RowOps


class SimDevice(RowOps, AttentionOps):
    """A simulated Blackhole; implements `protocol.Device`. Rounding and error are stated per op.

    Args:
        quirks: what it does otherwise than its ops say; nothing by default.
        memory: as `SimMemory` takes them: capacity, schedule, faults.
    """
