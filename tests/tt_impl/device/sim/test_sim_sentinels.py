"""Writing past a buffer is seen at the next settling or free, with both neighbours' names, and the right program never is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from oracle.errors import DeviceFault
from tt_impl.device.protocol import DType, Layout
from tt_impl.device.sim import Fault, FaultPlan, OnWrite, Overwrite, SimDevice
from tt_impl.device.sim.buffer import SENTINEL
from tt_impl.device.sim.memory import SimTensor


def three(fault: Fault | None, *, nbytes: int = 64) -> tuple[SimDevice, list[SimTensor]]:
    device = SimDevice(dram_bytes=4096, faults=FaultPlan((fault,) if fault else ()))
    tensors = [device.allocate_tensor_on_device((nbytes,), DType.UINT8, Layout.ROW_MAJOR, label) for label in "abc"]
    for tensor in tensors:
        device.copy_host_to_device_tensor(np.zeros(nbytes, np.uint8), tensor)
    return device, tensors


@pytest.mark.parametrize("nbytes", [64, 63, 10])
def test_one_byte_past_the_end_is_seen_at_the_drain(nbytes: int) -> None:
    device, (_, b, _) = three(Fault("b", OnWrite(), Overwrite(nbytes - 1, "0000")), nbytes=nbytes)
    wanted = (
        r"1 of 16 bytes behind b \(buffer 2\) at address 0x40 were overwritten, seen at synchronize_device; "
        r"on that side lies c \(buffer 3\); .* \[event 7, schedule lazy\]"
    )
    with pytest.raises(DeviceFault, match=wanted) as caught:
        device.synchronize_device()
    assert caught.value.kind == "sentinel"
    device.copy_host_to_device_tensor(np.zeros(nbytes, np.uint8), b)
    device.synchronize_device()  # said once


def test_bytes_before_the_buffer_are_watched_too() -> None:
    device, (_, b, _) = three(None)
    device.synchronize_device()
    device._dram.write_past(b.buffer, -3, b"\0\0\0")
    with pytest.raises(DeviceFault, match=r"3 of 16 bytes before b .* on that side lies a \(buffer 1\)"):
        device.synchronize_device()


def test_the_last_buffer_has_no_neighbour() -> None:
    device, _ = three(Fault("c", OnWrite(), Overwrite(64, "00")))
    with pytest.raises(DeviceFault, match="on that side lies no other buffer"):
        device.synchronize_device()


def test_a_free_looks_before_the_bytes_are_given_away() -> None:
    device, (_, b, _) = three(Fault("b", OnWrite(), Overwrite(64, "00")))
    device.deallocate(b)
    with pytest.raises(DeviceFault, match=r"behind b \(buffer 2\) .* seen at deallocate"):
        device.synchronize_device()


@pytest.mark.parametrize(
    "settle",
    [
        lambda device, tensor: device.event_synchronize(device.record_event()),
        lambda device, tensor: device.copy_device_to_host_tensor(tensor, blocking=True),
    ],
)
def test_every_settling_looks(settle: Callable[[SimDevice, SimTensor], object]) -> None:
    device, (a, _, _) = three(Fault("b", OnWrite(), Overwrite(64, "00")))
    with pytest.raises(DeviceFault, match="sentinel"):
        settle(device, a)


def test_only_what_was_written_since_is_looked_at_again() -> None:
    device, (a, b, _) = three(None)
    device.synchronize_device()
    device._dram.sentinels._memory[b.buffer.start + 64] = 0
    device.copy_host_to_device_tensor(np.zeros(64, np.uint8), a)
    device.synchronize_device()
    device.copy_host_to_device_tensor(np.zeros(64, np.uint8), b)
    with pytest.raises(DeviceFault, match="sentinel"):
        device.synchronize_device()


def test_a_write_far_past_the_end_reaches_the_neighbour() -> None:
    """And what was decoded from its bytes is dropped."""
    device, (a, b, _) = three(Fault("a", OnWrite(2), Overwrite(0, "07", repeat=256)))
    device.synchronize_device()
    device._load(b)
    device.copy_host_to_device_tensor(np.zeros(64, np.uint8), a)
    with pytest.raises(DeviceFault, match=r"behind a \(buffer 1\)"):
        device.synchronize_device()
    assert (device._load(b) == 7).any()


def test_sentinels_are_nan_so_that_memory_that_held_one_is_poison() -> None:
    assert np.isnan(np.frombuffer(SENTINEL, np.float32)).all()
    words = np.frombuffer(SENTINEL, np.uint16)
    assert ((words & 0x7FFF) == 0x7FFF).all()
    assert len(set(words.tolist())) == 2  # and not poison itself: a free that writes too far is seen
