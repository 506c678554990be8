"""Memory, transfers, events and traces on ttnn's mock device: counting, settling, and refusing before ttnn would crash."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from oracle.errors import DeviceFault, SubjectError
from tt_impl.device.protocol import Device, DType, Layout
from tt_impl.device.sim.device import SimDevice
from tt_impl.device.ttnn.device import TtnnDevice

BF16, U8, RM, TILE = DType.BFLOAT16, DType.UINT8, Layout.ROW_MAJOR, Layout.TILE
DRAM_BYTES = 8 * 4_272_947_072


def fault_of(call: Callable[[], Any]) -> DeviceFault:
    with pytest.raises(DeviceFault) as caught:
        call()
    return caught.value


def test_dram_is_a_p150s_and_fills_by_what_every_bank_gives(device: TtnnDevice) -> None:
    assert device.get_memory_view().total_bytes == DRAM_BYTES
    tensor = device.allocate_tensor_on_device((64, 64), BF16, TILE, "four tiles")
    assert device.get_memory_view().allocated_bytes == 8 * 2048
    device.deallocate(tensor)
    assert device.get_memory_view().allocated_bytes == 0


def test_too_much_is_out_of_memory_with_what_was_asked_and_what_is_free(device: TtnnDevice) -> None:
    device.allocate_tensor_on_device((1 << 15, 1 << 17), BF16, TILE, "8 GiB")
    fault = fault_of(lambda: [device.allocate_tensor_on_device((1 << 15, 1 << 17), BF16, TILE, "more") for _ in range(4)])
    assert fault.kind == "out-of-memory"
    assert "more: Out of Memory: Not enough space to allocate 8589934592 B" in fault.message
    assert "largest free block: 1051721600 B" in fault.message


def test_a_read_holds_poison_until_its_own_queue_has_settled(device: TtnnDevice) -> None:
    tensor = device.allocate_tensor_on_device((2, 64), U8, RM, "t")
    landing = np.zeros(128, np.uint8)
    read = device.copy_device_to_host_tensor(tensor, landing, blocking=False, cq_id=1)
    event = device.record_event(cq_id=1)
    late = device.copy_device_to_host_tensor(tensor, blocking=False, cq_id=1)
    device.synchronize_device(cq_id=0)
    assert not read.settled
    assert not event.reached
    assert set(landing.tolist()) == {0xDB}
    assert fault_of(read.bytes).kind == "unsettled-read"
    device.event_synchronize(event)
    assert read.settled
    assert event.reached
    assert not late.settled
    assert read.bytes() is landing
    assert not landing.any()  # the mock device's zeros
    assert read.event == device.event_number
    device.synchronize_device()
    assert late.settled


def test_the_event_log_counts_what_was_asked_in_packed_bytes(device: TtnnDevice) -> None:
    before = dict(device.event_counts())
    tensor = device.allocate_tensor_on_device((1, 40), DType.FLOAT32, TILE, "t")
    device.copy_host_to_device_tensor(np.ones((1, 40), np.float32), tensor)
    device.copy_device_to_host_tensor(tensor, blocking=True)
    device.copy_device_to_host_tensor(tensor, blocking=False)
    device.add(tensor, tensor)
    device.synchronize_device()
    counted = {name: n - before.get(name, 0) for name, n in device.event_counts().items() if n != before.get(name, 0)}
    assert counted == {
        "allocations": 2,
        "writes": 1,
        "bytes_written": 8192,
        "blocking_reads": 1,
        "non_blocking_reads": 1,
        "bytes_read": 16384,
        "round_trips": 2,
        "synchronizes": 1,
        "ops": 1,
        "op.add": 1,
    }


def test_identities_are_never_reused_and_generations_count_changes(device: TtnnDevice) -> None:
    first = device.allocate_tensor_on_device((32, 32), BF16, TILE, "a")
    address = first.value.buffer_address()
    device.copy_host_to_device_tensor(np.zeros((32, 32), BF16.host), first)
    assert first.generation == 1
    device.deallocate(first)
    second = device.allocate_tensor_on_device((32, 32), BF16, TILE, "b")
    assert second.value.buffer_address() == address
    assert (second.identity > first.identity, second.generation) == (True, 0)


BAD_ARRAYS = {
    "float64, which ends the process": np.zeros((32, 32)),
    "another shape": np.zeros((32, 31), BF16.host),
    "another dtype": np.zeros((32, 32), np.float32),
}


@pytest.mark.parametrize("which", BAD_ARRAYS)
def test_an_array_that_is_not_the_tensors_is_refused(device: TtnnDevice, which: str) -> None:
    tensor = device.allocate_tensor_on_device((32, 32), BF16, TILE, "t")
    fault = fault_of(lambda: device.copy_host_to_device_tensor(BAD_ARRAYS[which], tensor))
    assert (fault.kind, "t is bfloat16 [32, 32]" in fault.message) == ("bad-operand", True)


def test_a_landing_of_another_size_is_refused(device: TtnnDevice) -> None:
    tensor = device.allocate_tensor_on_device((2, 64), U8, RM, "t")
    assert (
        fault_of(lambda: device.copy_device_to_host_tensor(tensor, np.zeros(127, np.uint8), blocking=True)).kind
        == "bad-operand"
    )


@pytest.mark.parametrize(
    ("shape", "dtype", "layout"),
    [
        ((32, 32), DType.FP8_E4M3, TILE),
        ((32,), BF16, TILE),
        ((32, 32), DType.BFLOAT8_B, RM),
        ((1,) * 5, U8, RM),
        ((0, 4), U8, RM),
    ],
)
def test_what_no_tensor_can_be_is_refused(device: TtnnDevice, shape: tuple[int, ...], dtype: DType, layout: Layout) -> None:
    assert fault_of(lambda: device.allocate_tensor_on_device(shape, dtype, layout, "t")).kind == "bad-operand"


def test_a_freed_tensor_is_refused_everywhere_where_ttnn_would_read_its_memory(device: TtnnDevice) -> None:
    live = device.allocate_tensor_on_device((32, 32), BF16, TILE, "live")
    dead = device.allocate_tensor_on_device((32, 32), BF16, TILE, "dead")
    device.deallocate(dead)
    for call in (
        lambda: device.copy_device_to_host_tensor(dead, blocking=True),
        lambda: device.copy_host_to_device_tensor(np.zeros((32, 32), BF16.host), dead),
        lambda: device.add(live, dead),
    ):
        fault = fault_of(call)
        assert (fault.kind, "dead" in fault.message) == ("use-after-free", True)
    assert fault_of(lambda: device.deallocate(dead)).kind == "double-free"


def test_a_queue_that_was_not_opened_is_refused(device: TtnnDevice) -> None:
    tensor = device.allocate_tensor_on_device((2, 64), U8, RM, "t")
    for call in (
        lambda: device.copy_host_to_device_tensor(np.zeros((2, 64), np.uint8), tensor, cq_id=2),
        lambda: device.copy_device_to_host_tensor(tensor, blocking=True, cq_id=2),
        lambda: device.record_event(cq_id=2),
        lambda: device.synchronize_device(cq_id=-1),
    ):
        assert fault_of(call).kind == "bad-queue"


def test_what_the_mock_device_does_not_survive_is_refused_by_name(device: TtnnDevice) -> None:
    """wait_for_event, any op in a capture and any replay end the process there."""
    event = device.record_event()
    for name, call in {
        "wait_for_event": lambda: device.wait_for_event(event, cq_id=1),
        "begin_trace_capture": device.begin_trace_capture,
    }.items():
        fault = fault_of(call)
        assert (fault.kind, fault.message.startswith(name)) == ("not-on-mock", True)


def test_what_is_no_tensor_event_or_trace_of_it_is_refused(device: TtnnDevice) -> None:
    stranger: Any = object()
    simulated = SimDevice().allocate_tensor_on_device((32, 32), BF16, TILE, "simulated")
    for call in (
        lambda: device.deallocate(simulated),
        lambda: device.silu(simulated),
        lambda: device.event_synchronize(stranger),
        lambda: device.execute_trace(stranger, blocking=True),
    ):
        assert fault_of(call).kind == "bad-operand"


def test_the_mock_device_does_not_pass_for_a_card(device: TtnnDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its variable, and without it by what it holds: zeros."""
    with pytest.raises(SubjectError, match="TT_METAL_MOCK_CLUSTER_DESC_PATH is set: ttnn's mock device reads back zeros"):
        TtnnDevice.open()
    closed = []
    monkeypatch.setattr(device, "close", lambda: closed.append(True))
    with pytest.raises(SubjectError, match="does not hold what is written to it"):
        device._require_memory()
    assert closed


def test_it_is_a_device_of_the_protocol(device: TtnnDevice) -> None:
    promised = {name for name in vars(Device) if not name.startswith("_")}
    assert promised <= set(dir(device))
    accepted: Device = device  # pyright's part of this test
    assert accepted is device


def test_a_product_goes_into_a_tensor_that_is_there_if_it_fits(device: TtnnDevice) -> None:
    a, b, into = (device.allocate_tensor_on_device(s, BF16, TILE, "t") for s in ((8, 64), (64, 96), (8, 96)))
    before, generation = device.get_memory_view().allocated_bytes, into.generation
    assert device.matmul(a, b, dtype=BF16, output=into) is into
    assert device.get_memory_view().allocated_bytes == before
    assert into.generation == generation + 1
    wide = device.allocate_tensor_on_device((8, 96), DType.FLOAT32, TILE, "t")
    for wrong in (a, wide):
        assert fault_of(lambda wrong=wrong: device.matmul(a, b, dtype=BF16, output=wrong)).kind == "bad-operand"
