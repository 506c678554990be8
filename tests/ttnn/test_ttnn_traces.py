"""The trace's rules, as far as ttnn's mock device goes along: it captures nothing, and must never replay.

Through a view that does not know that its device is the mock one; no op is captured, which would end the process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from oracle.errors import DeviceFault
from tt_impl.device.protocol import DType, Layout
from tt_impl.device.sim.trace import CapturedOp
from tt_impl.device.ttnn.device import TtnnDevice
from tt_impl.device.ttnn.memory import TtnnTensor, TtnnTrace


def kind_of(call: Callable[[], Any]) -> str:
    with pytest.raises(DeviceFault) as caught:
        call()
    return caught.value.kind


@pytest.fixture
def view(device: TtnnDevice) -> TtnnDevice:
    return TtnnDevice(device.ttnn, device._mesh, command_queues=2, is_mock=False)


def test_nothing_but_ops_and_frees_is_let_into_a_capture(view: TtnnDevice) -> None:
    tensor = view.allocate_tensor_on_device((2, 64), DType.UINT8, Layout.ROW_MAJOR, "t")
    event = view.record_event()
    trace = view.begin_trace_capture()
    for call in (
        lambda: view.allocate_tensor_on_device((2, 64), DType.UINT8, Layout.ROW_MAJOR, "t"),
        lambda: view.copy_host_to_device_tensor(np.zeros((2, 64), np.uint8), tensor),
        lambda: view.copy_device_to_host_tensor(tensor, blocking=True),
        view.begin_trace_capture,
        view.synchronize_device,
        view.record_event,
        lambda: view.event_synchronize(event),
        lambda: view.execute_trace(trace, blocking=True),
        lambda: view.release_trace(trace),
        lambda: view.end_trace_capture(trace, cq_id=1),
    ):
        assert kind_of(call) == "trace-capture"
    view.end_trace_capture(trace)
    view.synchronize_device()
    assert kind_of(lambda: view.end_trace_capture(trace)) == "trace-capture"
    view.release_trace(trace)


def test_a_released_trace_is_refused_and_traces_are_counted(view: TtnnDevice) -> None:
    first = view.begin_trace_capture()
    view.end_trace_capture(first)
    view.release_trace(first)
    for call in (lambda: view.release_trace(first), lambda: view.execute_trace(first, blocking=False)):
        assert kind_of(call) == "trace-released"
    second = view.begin_trace_capture()
    view.end_trace_capture(second)
    view.release_trace(second)
    assert (first.identity, second.identity) == (1, 2)


def test_what_a_capture_made_stays_until_its_release(view: TtnnDevice) -> None:
    """`_adopt` is what every op's result goes through."""
    value = view.allocate_tensor_on_device((32, 32), DType.BFLOAT16, Layout.TILE, "made")
    trace = view.begin_trace_capture()
    output, other = (view._adopt(value.value, (32, 32), DType.BFLOAT16, Layout.TILE, "output") for _ in range(2))
    view.deallocate(output)
    view.end_trace_capture(trace)
    assert [(record.calls, record.replays) for record in view.captures()] == [((("deallocate", 1),), 0)]
    assert value.value.is_allocated()
    assert kind_of(lambda: view.silu(output)) == "use-after-free"
    assert other.is_allocated
    view.release_trace(trace)
    assert not value.value.is_allocated()
    assert kind_of(lambda: view.silu(other)) == "use-after-free"


def test_what_ops_hold_in_l1_on_the_way_is_not_kept_for_a_trace(view: TtnnDevice) -> None:
    """As in a capture, which the mock device takes no op in: what is kept stays in DRAM, of which there is enough."""

    def held(kind: str) -> int:
        return view.ttnn.get_memory_view(view._mesh, getattr(view.ttnn.BufferType, kind)).total_bytes_allocated_per_bank

    def tiled(*shape: int) -> TtnnTensor:
        return view.allocate_tensor_on_device(shape, DType.BFLOAT16, Layout.TILE, "x")

    projected, cos, sin = tiled(2, 56 * 128), tiled(2, 128), tiled(2, 128)
    view._capturing = trace = TtnnTrace(1, 0, None)
    before = held("DRAM")
    q, _, _ = view.nlp_create_qkv_heads_decode(projected, num_heads=48, num_kv_heads=4)
    turned = view.rotary_embedding_hf(q, cos, sin)
    view.nlp_concat_heads_decode(turned)
    view._capturing = None
    assert held("L1") == 0
    assert len(trace.kept) == len(trace.outputs) + 2  # the transposed tables
    for value in trace.kept:
        view.ttnn.deallocate(value)
    assert held("DRAM") == before
    for tensor in (projected, cos, sin):
        view.deallocate(tensor)


def test_a_trace_whose_operand_is_gone_is_not_executed(view: TtnnDevice) -> None:
    tensor = view.allocate_tensor_on_device((2, 64), DType.UINT8, Layout.ROW_MAJOR, "t")
    trace = TtnnTrace(1, 0, None)
    trace.note_op(CapturedOp("add", 0, 0, (tensor,)))
    view.deallocate(tensor)
    with pytest.raises(DeviceFault, match=r"trace 1: it needs t \(buffer \d+\), which was deallocated") as caught:
        view.execute_trace(trace, blocking=False)
    assert caught.value.kind == "use-after-free"
    tensor.trace = trace
    assert trace.lost() is None
