"""The device counts what it was asked, whatever the decoder counts."""

from __future__ import annotations

import numpy as np

from tt_impl.device.protocol import DType, Layout
from tt_impl.device.sim import SimDevice


def test_every_event_is_counted_with_its_bytes() -> None:
    device = SimDevice(dram_bytes=1 << 16)
    tensor = device.allocate_tensor_on_device((1, 40), DType.BFLOAT16, Layout.TILE, "t")
    device.copy_host_to_device_tensor(np.zeros((1, 40), DType.BFLOAT16.host), tensor)
    total = device.add(tensor, tensor)
    device.copy_device_to_host_tensor(total, blocking=False)
    device.event_synchronize(device.record_event())
    device.copy_device_to_host_tensor(total, blocking=True)
    device.synchronize_device()
    device.deallocate(total)
    assert device.event_counts() == {
        "allocations": 2,
        "writes": 1,
        "bytes_written": 2 * 1024 * 2,  # two tiles of bf16
        "non_blocking_reads": 1,
        "blocking_reads": 1,
        "bytes_read": 2 * 2 * 1024 * 2,
        "events_recorded": 1,
        "event_synchronizes": 1,
        "synchronizes": 1,
        "round_trips": 3,
        "deallocations": 1,
        "ops": 1,
        "op.add": 1,
        "dram_bytes": 3 * 2 * 2 * 1024,  # two operands and the output
        "flops": 0,
    }
    assert device.event_number == 10
