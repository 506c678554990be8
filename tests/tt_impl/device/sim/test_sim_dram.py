"""DRAM hands out bytes at addresses, reuses freed ones at once, and names every misuse."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ml_dtypes import bfloat16, float8_e4m3fn

from oracle.errors import DeviceFault
from tt_impl.device.protocol import DType, Layout
from tt_impl.device.sim import SimDevice
from tt_impl.device.sim.dram import ALIGNMENT, POISON, Dram


def test_out_of_memory_says_how_much_was_asked_and_how_much_is_free() -> None:
    device = SimDevice(dram_bytes=4096)
    device.allocate_tensor_on_device((1000,), DType.UINT8, Layout.ROW_MAJOR, "first")
    with pytest.raises(DeviceFault, match=r"big asked for 3500 bytes; 3072 of 4096 are free, the largest piece 3072") as caught:
        device.allocate_tensor_on_device((3500,), DType.UINT8, Layout.ROW_MAJOR, "big")
    assert caught.value.kind == "out-of-memory"


def test_a_freed_address_is_reused_by_the_next_allocation_with_a_new_identity() -> None:
    dram = Dram(4096)
    first = dram.allocate(100, "first")
    dram.allocate(100, "second")
    dram.free(first, "test")
    again = dram.allocate(100, "again")
    assert again.address == first.address
    assert again.identity != first.identity


def test_double_free_names_the_buffer_and_the_op() -> None:
    device = SimDevice(dram_bytes=4096)
    tensor = device.allocate_tensor_on_device((8,), DType.UINT8, Layout.ROW_MAJOR, "twice")
    device.deallocate(tensor)
    with pytest.raises(DeviceFault, match="deallocate of twice") as caught:
        device.deallocate(tensor)
    assert caught.value.kind == "double-free"


@pytest.mark.parametrize("dtype", [np.dtype(bfloat16), np.dtype(np.float32), np.dtype(float8_e4m3fn)])
def test_poison_is_nan_in_every_float_format(dtype: np.dtype) -> None:
    buffer = Dram(4096).allocate(64, "poisoned")
    buffer.poison()
    assert np.isnan(buffer.bytes.view(dtype).astype(np.float32)).all()


def test_what_was_never_written_reads_as_poison() -> None:
    device = SimDevice(dram_bytes=4096)
    tensor = device.allocate_tensor_on_device((1, 4), DType.FLOAT32, Layout.ROW_MAJOR, "unwritten")
    assert np.isnan(device.copy_device_to_host_tensor(tensor, blocking=True).array()).all()


def test_a_freed_buffer_holds_poison_once_the_queue_gets_there() -> None:
    device = SimDevice(dram_bytes=4096)
    tensor = device.allocate_tensor_on_device((4,), DType.UINT32, Layout.ROW_MAJOR, "freed")
    device.copy_host_to_device_tensor(np.arange(4, dtype=np.uint32), tensor)
    device.deallocate(tensor)
    device.synchronize_device()
    assert (tensor.buffer.bytes.view(np.uint16) == POISON).all()


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 400), st.integers(0, 30)), max_size=60))
def test_buffers_never_overlap_and_everything_comes_back(steps: list[tuple[bool, int, int]]) -> None:
    dram = Dram(1 << 16)
    live = []
    for allocate, size, which in steps:
        if allocate or not live:
            buffer = dram.allocate(size, "b")
            assert buffer.address % ALIGNMENT == 0
            assert buffer.bytes.size == size
            for other in live:
                assert buffer.address + buffer.reserved.size <= other.address or (
                    other.address + other.reserved.size <= buffer.address
                )
            live.append(buffer)
        else:
            dram.free(live.pop(which % len(live)), "test")
    assert dram.view().allocated_bytes == sum(buffer.reserved.size for buffer in live)
    for buffer in live:
        dram.free(buffer, "test")
    assert dram.view().largest_free_bytes == dram.view().total_bytes == 1 << 16
