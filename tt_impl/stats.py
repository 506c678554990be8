"""The decoder's own counters; a judge compares them with the device's event log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass


@dataclass
class StepStats:
    """Counts since `reset`.

    Attributes:
        steps: decode steps finished.
        round_trips: times the host waited for the device.
        slot_hits, slot_misses: experts asked for that a slot held, or not.
        slot_swaps: experts evicted from a slot to make room.
        fills: experts staged; equals `slot_misses`.
        staged_bytes, verified_bytes: of fills, written and compared; equal after every drain.
        drains: drains that had something to settle, at most one per layer and step.
        expert_uses: experts that took part in compute.
        memo_hits, memo_misses: dequantized experts found on the device, or made.
        memo_evictions: memos dropped because their number is bounded; `memo_releases`: because their slot was evicted.
    """

    steps: int = 0
    round_trips: int = 0
    slot_hits: int = 0
    slot_misses: int = 0
    slot_swaps: int = 0
    fills: int = 0
    staged_bytes: int = 0
    verified_bytes: int = 0
    drains: int = 0
    expert_uses: int = 0
    memo_hits: int = 0
    memo_misses: int = 0
    memo_evictions: int = 0
    memo_releases: int = 0

    def counts(self) -> Mapping[str, int]:
        return asdict(self)
