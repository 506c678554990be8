"""A trace runs over what its buffers hold now, keeps its own memory, and refuses what a captured region cannot do."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from oracle.errors import DeviceFault
from tt_impl.device.protocol import DType, Layout
from tt_impl.device.sim import SimDevice, schedule_named
from tt_impl.device.sim.memory import SimTensor
from tt_impl.device.sim.queue import SimEvent
from tt_impl.device.sim.trace import SimTrace

SCHEDULES = ["lazy", "eager", "reuse", "random:1", "random:2"]


def row(value: float) -> np.ndarray:
    return np.full((1, 32), value, np.float32)


class Captured:
    """(2 x + y), captured: x and y are allocated outside, the double inside and freed inside."""

    def __init__(self, schedule: str = "lazy") -> None:
        self.device = SimDevice(dram_bytes=1 << 18, schedule=schedule_named(schedule))
        self.x, self.y = (self.tensor(label) for label in "xy")
        self.write(1, 10)
        self.before = self.device.get_memory_view()
        self.trace: SimTrace = self.device.begin_trace_capture()
        double = self.device.add(self.x, self.x)
        self.out = self.device.add(double, self.y)
        self.device.deallocate(double)
        self.double = double
        self.device.end_trace_capture(self.trace)

    def tensor(self, label: str) -> SimTensor:
        return self.device.allocate_tensor_on_device((1, 32), DType.FLOAT32, Layout.TILE, label)

    def write(self, x: float, y: float) -> None:
        self.device.copy_host_to_device_tensor(row(x), self.x)
        self.device.copy_host_to_device_tensor(row(y), self.y)

    def event(self) -> SimEvent:
        return SimEvent(self.device._queue, 0, 0)

    def replay(self, *, blocking: bool = False) -> None:
        self.device.execute_trace(self.trace, blocking=blocking)

    def result(self) -> float:
        return float(self.device.copy_device_to_host_tensor(self.out, blocking=True).array()[0, 0])


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_replay_computes_over_what_the_buffers_hold_now(schedule: str) -> None:
    captured = Captured(schedule)
    for x, y in ((1, 10), (3, 20), (3, 20), (-1, 0)):
        captured.write(x, y)
        captured.replay()
        assert captured.result() == 2 * x + y


def test_capturing_runs_nothing() -> None:
    captured = Captured()
    assert np.isnan(captured.result())
    counts = captured.device.event_counts()
    assert (counts["captured_ops"], counts["ops"], counts["traces_captured"]) == (2, 0, 1)
    captured.replay()
    counts = captured.device.event_counts()
    assert (counts["captured_ops"], counts["ops"], counts["op.add"], counts["replayed_ops"]) == (2, 2, 2, 2)
    assert counts["dram_bytes"] == 2 * 3 * 4096
    assert counts["traces_executed"] == 1


def test_a_blocking_replay_waits_for_the_device() -> None:
    captured = Captured()
    early = captured.device.copy_device_to_host_tensor(captured.x, blocking=False)
    trips = captured.device.event_counts().get("round_trips", 0)
    captured.replay(blocking=True)
    assert early.settled
    assert captured.device.event_counts()["round_trips"] == trips + 1
    assert captured.out.generation == 1


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("allocate_tensor_on_device", lambda c: c.tensor("new")),
        ("copy_host_to_device_tensor", lambda c: c.write(0, 0)),
        ("copy_host_to_device_tensor", lambda c: c.device.copy_host_to_device_tensor(row(0), c.x, cq_id=1)),
        ("copy_device_to_host_tensor", lambda c: c.device.copy_device_to_host_tensor(c.x, blocking=False)),
        ("synchronize_device", lambda c: c.device.synchronize_device()),
        ("record_event", lambda c: c.device.record_event()),
        ("wait_for_event", lambda c: c.device.wait_for_event(c.event(), cq_id=1)),
        ("event_synchronize", lambda c: c.device.event_synchronize(c.event())),
        ("begin_trace_capture", lambda c: c.device.begin_trace_capture()),
        ("execute_trace", lambda c: c.replay()),
    ],
)
def test_a_captured_region_refuses_what_is_not_an_op(name: str, call: Callable[[Captured], object]) -> None:
    captured = Captured()
    second = captured.device.begin_trace_capture()
    with pytest.raises(DeviceFault, match=f"{name} while trace 2 is being captured") as caught:
        call(captured)
    assert caught.value.kind == "trace-capture"
    captured.device.end_trace_capture(second)
    call(captured)


def test_a_trace_is_ended_once_and_not_used_before() -> None:
    captured = Captured()
    open_trace = captured.device.begin_trace_capture()
    with pytest.raises(DeviceFault, match="end_trace_capture of trace 1, which is not being captured"):
        captured.device.end_trace_capture(captured.trace)
    with pytest.raises(DeviceFault, match="release_trace of trace 2, which is still being captured"):
        captured.device.release_trace(open_trace)
    captured.device.end_trace_capture(open_trace)
    with pytest.raises(DeviceFault, match="end_trace_capture of trace 2, which is not being captured"):
        captured.device.end_trace_capture(open_trace)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_outputs_stay_the_traces_until_it_is_released(schedule: str) -> None:
    """Also what the capture freed: no later allocation gets an address that a replay writes."""
    captured = Captured(schedule)
    device = captured.device
    assert device.get_memory_view().allocated_bytes == captured.before.allocated_bytes + 2 * 4096
    others = [captured.tensor("other") for _ in range(20)]
    for other in others:
        device.copy_host_to_device_tensor(row(7), other)
    captured.replay()
    assert captured.result() == 12
    for other in others:
        assert (device.copy_device_to_host_tensor(other, blocking=True).array() == 7).all()
        device.deallocate(other)
    captured.replay()
    device.release_trace(captured.trace)
    assert device.get_memory_view() == captured.before
    device.synchronize_device()
    assert np.isnan(captured.out.buffer.bytes.view(np.float32)).all()
    with pytest.raises(DeviceFault, match=r"of add \(buffer 4\), which was deallocated at event \d+") as caught:
        captured.result()
    assert caught.value.kind == "use-after-free"


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_replay_that_is_still_to_run_survives_the_release(schedule: str) -> None:
    captured = Captured(schedule)
    device = captured.device
    captured.replay()
    read = device.copy_device_to_host_tensor(captured.out, blocking=False)
    device.release_trace(captured.trace)
    fresh = captured.tensor("fresh")
    device.copy_host_to_device_tensor(row(0), fresh)
    device.synchronize_device()
    assert read.array()[0, 0] == 12


def test_what_a_capture_frees_is_poisoned_by_each_replay() -> None:
    captured = Captured()
    for _ in range(2):
        captured.replay(blocking=True)
        assert np.isnan(captured.double.buffer.bytes.view(np.float32)).all()
    with pytest.raises(DeviceFault, match="use-after-free"):
        captured.device.add(captured.double, captured.double)


@pytest.mark.parametrize("which", ["x", "out"])
def test_a_replay_needs_every_buffer_that_the_capture_used(which: str) -> None:
    captured = Captured()
    captured.device.deallocate(getattr(captured, which))
    label = "x" if which == "x" else "add"
    with pytest.raises(DeviceFault, match=rf"execute_trace of trace 1: it needs {label} \(buffer \d\), which was") as caught:
        captured.replay()
    assert caught.value.kind == "use-after-free"


def test_an_outer_operand_freed_inside_a_capture_is_lost_to_it() -> None:
    captured = Captured()
    device = captured.device
    trace = device.begin_trace_capture()
    device.add(captured.x, captured.y)
    device.deallocate(captured.x)
    device.end_trace_capture(trace)
    with pytest.raises(DeviceFault, match=r"it needs x \(buffer 1\)"):
        device.execute_trace(trace, blocking=False)


def test_an_operand_of_a_pending_replay_may_be_freed_behind_it() -> None:
    captured = Captured()
    captured.replay()
    captured.device.deallocate(captured.x)
    assert captured.result() == 12


def test_a_released_trace_is_gone() -> None:
    captured = Captured()
    captured.device.release_trace(captured.trace)
    for call in (captured.replay, lambda: captured.device.release_trace(captured.trace)):
        with pytest.raises(DeviceFault, match="of trace 1, which was released") as caught:
            call()
        assert caught.value.kind == "trace-released"


def test_traces_are_captured_and_replayed_where_ops_run() -> None:
    captured = Captured()
    for call in (
        lambda: captured.device.begin_trace_capture(cq_id=1),
        lambda: captured.device.execute_trace(captured.trace, cq_id=1, blocking=False),
    ):
        with pytest.raises(DeviceFault, match="ops run on queue 0") as caught:
            call()
        assert caught.value.kind == "bad-queue"


@pytest.mark.parametrize("schedule", ["lazy", "reuse", "random:4"])
def test_a_replay_waits_for_the_other_queue_if_it_is_told_to(schedule: str) -> None:
    captured = Captured(schedule)
    device = captured.device
    device.synchronize_device()
    device.copy_host_to_device_tensor(row(100), captured.x, cq_id=1)
    device.wait_for_event(device.record_event(cq_id=1), cq_id=0)
    captured.replay()
    assert captured.result() == 210


def test_a_replay_that_does_not_wait_sees_the_old_bytes() -> None:
    captured = Captured("lazy")
    captured.device.synchronize_device()
    captured.device.copy_host_to_device_tensor(row(100), captured.x, cq_id=1)
    captured.replay()
    assert captured.result() == 12


def test_a_record_says_what_was_asked_for_inside_and_what_the_host_wrote_before_a_replay() -> None:
    captured = Captured()
    [record] = captured.device.captures()
    assert record.calls == (("deallocate", 1), ("op.add", 2))
    assert record.operands == ("add", "x", "y")
    assert (record.replays, record.changed, record.alike) == (0, (), 1)
    captured.replay()
    captured.device.copy_host_to_device_tensor(row(4), captured.y)
    [record] = captured.device.captures()
    assert (record.replays, record.changed) == (1, ()), "written, and not replayed since"
    captured.replay()
    [record] = captured.device.captures()
    assert (record.replays, record.changed) == (2, ("y",))


def test_records_of_released_traces_are_kept_those_alike_as_one_until_they_are_forgotten() -> None:
    captured = Captured()
    device = captured.device
    for replays in (1, 3):
        trace = device.begin_trace_capture()
        device.add(captured.x, captured.x)
        device.end_trace_capture(trace)
        for _ in range(replays):
            device.execute_trace(trace, blocking=False)
        device.release_trace(trace)
    alike, own = sorted(device.captures(), key=lambda record: record.alike, reverse=True)
    assert (alike.calls, alike.replays, alike.alike) == ((("op.add", 1),), 4, 2)
    assert (own.replays, own.alike) == (0, 1)
    captured.write(1, 1)
    captured.replay()
    device.forget_captures()
    assert [(record.replays, record.changed) for record in device.captures()] == [(0, ())]
    device.copy_host_to_device_tensor(row(0), device.allocate_tensor_on_device((1, 32), DType.FLOAT32, Layout.TILE, "x"))
    captured.replay()
    assert [record.changed for record in device.captures()] == [()], "another tensor of that name was written"


@pytest.mark.parametrize("spoiled", [0, 1])
def test_a_record_of_what_was_written_before_a_replay_is_not_merged_with_an_honest_one(spoiled: int) -> None:
    captured = Captured()
    device = captured.device
    for number in range(2):
        trace = device.begin_trace_capture()
        device.add(captured.x, captured.x)
        device.end_trace_capture(trace)
        if number == spoiled:
            device.copy_host_to_device_tensor(row(2), captured.x)
        device.execute_trace(trace, blocking=False)
        device.release_trace(trace)
    assert sorted(record.changed for record in device.captures() if record.replays) == [(), ("x",)]
