"""A fault plan changes the bytes it names at the write it names, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from oracle.errors import UsageError
from tt_impl.device.protocol import DType, Layout
from tt_impl.device.sim import BitFlip, FaultPlan, SimDevice


def contents_after_writes(flip: BitFlip, label: str, writes: int) -> list[int]:
    device = SimDevice(dram_bytes=1 << 12, faults=FaultPlan((flip,)))
    tensor = device.allocate_tensor_on_device((4,), DType.UINT8, Layout.ROW_MAJOR, label)
    for _ in range(writes):
        device.copy_host_to_device_tensor(np.zeros(4, np.uint8), tensor)
    return device.copy_device_to_host_tensor(tensor, blocking=True).bytes().tolist()


def test_the_bit_flips_when_the_nth_write_lands() -> None:
    flip = BitFlip("layer1.slot*", write=2, offset=3, mask=0x10)
    assert contents_after_writes(flip, "layer1.slot0", 1) == [0, 0, 0, 0]
    assert contents_after_writes(flip, "layer1.slot0", 2) == [0, 0, 0, 0x10]
    assert contents_after_writes(flip, "layer1.slot0", 3) == [0, 0, 0, 0]


def test_other_buffers_are_left_alone() -> None:
    assert contents_after_writes(BitFlip("layer1.slot*"), "layer2.slot0", 1) == [0, 0, 0, 0]


def test_a_flipped_operand_is_decoded_afresh() -> None:
    device = SimDevice(dram_bytes=1 << 16)
    tensor = device.allocate_tensor_on_device((1, 32), DType.FLOAT32, Layout.TILE, "x")
    device.copy_host_to_device_tensor(np.ones((1, 32), np.float32), tensor)
    before = device.copy_device_to_host_tensor(device.add(tensor, tensor), blocking=True).array()[0, 0]
    device.poke(tensor, 0, np.float32(5).tobytes())
    after = device.copy_device_to_host_tensor(device.add(tensor, tensor), blocking=True).array()[0, 0]
    assert (before, after) == (2, 10)


@pytest.mark.parametrize("bad", [{"write": 0}, {"offset": -1}, {"mask": 0}, {"mask": 256}])
def test_a_flip_that_could_not_happen_is_refused(bad: dict[str, int]) -> None:
    with pytest.raises(UsageError):
        BitFlip("x", **bad)
