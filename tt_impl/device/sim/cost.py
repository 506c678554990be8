"""A stated cost model: modelled time from exact counts.

It answers "what does one more round trip, or one upload less, cost?", not "how fast is a P150?". Nothing overlaps in it: not
transfers with ops, not the two queues, not computing with DRAM traffic, so its sum is an upper bound for its own constants,
and what two queues or prefetching save does not show. A step's time is that of the difference between two looks at the
device's counters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from oracle.errors import UsageError


@dataclass(frozen=True)
class CostModel:
    """Constants of one P150 in its host. None was measured on silicon by this project.

    Attributes:
        pcie_bytes_per_second: each way. Guess: 25 GB/s, the lower end of what hosts reach over its 16 lanes of PCIe 5.0
            (63 GB/s at best; Tenstorrent states 500 Gb/s).
        round_trip_ns: of a call that waits for the device, without the work it waits for. Guess: 20 us, a PCIe write, the
            device's answer and a polling host.
        dispatch_ns: of the host for one op, program in the cache. ttnn 0.81.1 on a mock P150: a step of 3 ops in 0.4 ms.
        replay_ns: of one op of a replayed trace. Guess: 5 us, between two ops on the device.
        flops_per_second: of the matrix engines. Guess: 100 TFLOP/s in bf16, far below the product page's block-float peak,
            since a decode step fills few rows of its tiles.
        dram_bytes_per_second: 437.5 GB/s, the 3.5 Tb/s that Tenstorrent states for eight GDDR6 channels.

    Raises:
        UsageError: a rate that is not positive, or a negative time.
    """

    pcie_bytes_per_second: int = 25_000_000_000
    round_trip_ns: int = 20_000
    dispatch_ns: int = 133_333
    replay_ns: int = 5_000
    flops_per_second: int = 100_000_000_000_000
    dram_bytes_per_second: int = 437_500_000_000

    def __post_init__(self) -> None:
        if min(self.pcie_bytes_per_second, self.flops_per_second, self.dram_bytes_per_second) < 1:
            raise UsageError(f"{self}: rates are whole numbers from 1")
        if min(self.round_trip_ns, self.dispatch_ns, self.replay_ns) < 0:
            raise UsageError(f"{self}: times are whole numbers from 0")

    def time(self, counts: Mapping[str, int]) -> ModelledTime:
        """Of what happened between two looks at a device's event counters, given as differences; missing ones are 0."""
        get = counts.get
        replayed = get("replayed_ops", 0)
        return ModelledTime(
            transfers_in_ns=_at(self.pcie_bytes_per_second, get("bytes_written", 0)),
            transfers_out_ns=_at(self.pcie_bytes_per_second, get("bytes_read", 0)),
            round_trips_ns=get("round_trips", 0) * self.round_trip_ns,
            dispatch_ns=(get("ops", 0) - replayed) * self.dispatch_ns + replayed * self.replay_ns,
            matrix_ns=_at(self.flops_per_second, get("flops", 0)),
            memory_ns=_at(self.dram_bytes_per_second, get("dram_bytes", 0)),
            round_trips=get("round_trips", 0),
            drains=get("synchronizes", 0) + get("event_synchronizes", 0),
            bytes_in=get("bytes_written", 0),
            bytes_out=get("bytes_read", 0),
            ops=get("ops", 0),
        )


@dataclass(frozen=True)
class ModelledTime:
    """Nanoseconds by cause, each rounded up to a whole one, and the exact counts behind them.

    Attributes:
        transfers_in_ns, transfers_out_ns: host to device and back.
        drains: synchronizations of the device or with an event; blocking reads are round trips without being drains.
    """

    transfers_in_ns: int
    transfers_out_ns: int
    round_trips_ns: int
    dispatch_ns: int
    matrix_ns: int
    memory_ns: int
    round_trips: int
    drains: int
    bytes_in: int
    bytes_out: int
    ops: int

    @property
    def total_ns(self) -> int:
        return (
            self.transfers_in_ns
            + self.transfers_out_ns
            + self.round_trips_ns
            + self.dispatch_ns
            + self.matrix_ns
            + self.memory_ns
        )


def _at(per_second: int, amount: int) -> int:
    return -(-amount * 1_000_000_000 // per_second)
