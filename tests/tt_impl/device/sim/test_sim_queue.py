"""Nothing reaches the host before something settles it, in whatever order of time the device works."""

from __future__ import annotations

import numpy as np
import pytest

from oracle.errors import DeviceFault, UsageError
from tt_impl.device.host_read import HOST_POISON
from tt_impl.device.protocol import DType, Layout
from tt_impl.device.sim import SimDevice, schedule_named
from tt_impl.device.sim.memory import SimTensor

SCHEDULES = ["lazy", "eager", "reuse", "random:1", "random:2"]
VALUES = np.arange(1, 9, dtype=np.uint8)


def device_with(values: np.ndarray, schedule: str) -> tuple[SimDevice, SimTensor]:
    device = SimDevice(dram_bytes=1 << 16, schedule=schedule_named(schedule))
    tensor = device.allocate_tensor_on_device(values.shape, DType.UINT8, Layout.ROW_MAJOR, "t")
    device.copy_host_to_device_tensor(values, tensor)
    return device, tensor


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_non_blocking_read_holds_poison_until_it_is_settled(schedule: str) -> None:
    device, tensor = device_with(VALUES, schedule)
    destination = np.zeros(8, np.uint8)
    handle = device.copy_device_to_host_tensor(tensor, destination, blocking=False)
    assert not handle.settled
    assert (destination == HOST_POISON).all()
    wanted = rf"copy_device_to_host_tensor of t \(buffer 1\), enqueued at event 3, .* \[event 3, schedule {schedule}\]"
    for use in (handle.bytes, handle.array, lambda: handle.event):
        with pytest.raises(DeviceFault, match=wanted) as caught:
            use()
        assert caught.value.kind == "unsettled-read"
    device.synchronize_device()
    assert handle.settled
    assert destination.tolist() == VALUES.tolist()
    assert handle.event == device.event_number


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_blocking_read_settles_those_before_it(schedule: str) -> None:
    device, tensor = device_with(VALUES, schedule)
    early = device.copy_device_to_host_tensor(tensor, blocking=False)
    device.copy_device_to_host_tensor(tensor, blocking=True)
    late = device.copy_device_to_host_tensor(tensor, blocking=False)
    assert early.bytes().tolist() == VALUES.tolist()
    assert not late.settled


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_an_event_settles_what_was_enqueued_before_it_only(schedule: str) -> None:
    device, tensor = device_with(VALUES, schedule)
    early = device.copy_device_to_host_tensor(tensor, blocking=False)
    event = device.record_event()
    late = device.copy_device_to_host_tensor(tensor, blocking=False)
    assert not event.reached
    device.event_synchronize(event)
    assert event.reached
    assert early.settled
    assert not late.settled


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_read_sees_the_write_before_it_and_not_the_one_after(schedule: str) -> None:
    device, tensor = device_with(VALUES, schedule)
    handle = device.copy_device_to_host_tensor(tensor, blocking=False)
    device.copy_host_to_device_tensor(VALUES + 1, tensor)
    device.synchronize_device()
    assert handle.bytes().tolist() == VALUES.tolist()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_write_takes_its_bytes_when_it_is_enqueued(schedule: str) -> None:
    values = VALUES.copy()
    device, tensor = device_with(values, schedule)
    values[:] = 0
    assert device.copy_device_to_host_tensor(tensor, blocking=True).bytes().tolist() == VALUES.tolist()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_enqueued_work_survives_the_free_of_its_operand_and_the_reuse_of_its_address(schedule: str) -> None:
    device, tensor = device_with(VALUES, schedule)
    handle = device.copy_device_to_host_tensor(tensor, blocking=False)
    device.deallocate(tensor)
    other = device.allocate_tensor_on_device((8,), DType.UINT8, Layout.ROW_MAJOR, "other")
    device.copy_host_to_device_tensor(VALUES * 2, other)
    device.synchronize_device()
    assert handle.bytes().tolist() == VALUES.tolist()
    assert other.buffer.address == tensor.buffer.address


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("captured", [False, True])
def test_enqueued_work_survives_a_successor_that_is_freed_unused(schedule: str, captured: bool) -> None:
    """As after a fault: a tensor that nothing was written to, or what a capture allocated that was never replayed."""
    device = SimDevice(dram_bytes=2 * 4096, schedule=schedule_named(schedule))
    kept, tensor = (device.allocate_tensor_on_device((1, 32), DType.FLOAT32, Layout.TILE, label) for label in ("kept", "t"))
    device.copy_host_to_device_tensor(np.ones((1, 32), np.float32), tensor)
    device.synchronize_device()
    read = device.copy_device_to_host_tensor(tensor, blocking=False)
    device.deallocate(tensor)
    if captured:
        trace = device.begin_trace_capture()
        successor = device.add(kept, kept)
        device.end_trace_capture(trace)
        device.release_trace(trace)
    else:
        successor = device.allocate_tensor_on_device((1, 32), DType.FLOAT32, Layout.TILE, "unused")
        device.deallocate(successor)
    assert successor.buffer.address == tensor.buffer.address
    device.synchronize_device()
    assert (read.array() == 1).all()


def test_use_after_free_names_the_op_the_buffer_and_the_events() -> None:
    device, tensor = device_with(VALUES, "random:5")
    device.deallocate(tensor)
    wanted = r"copy_device_to_host_tensor of t \(buffer 1\), which was deallocated at event 3 \[event 3, schedule random:5\]"
    with pytest.raises(DeviceFault, match=wanted) as caught:
        device.copy_device_to_host_tensor(tensor, blocking=True)
    assert caught.value.kind == "use-after-free"
    with pytest.raises(DeviceFault, match="use-after-free"):
        device.copy_host_to_device_tensor(VALUES, tensor)


@pytest.mark.parametrize("schedule", ["lazy", "reuse"])
def test_under_the_latest_schedules_a_write_lands_only_at_the_end(schedule: str) -> None:
    device, tensor = device_with(VALUES, schedule)
    assert tensor.generation == 0
    device.synchronize_device()
    assert tensor.generation == 1


def test_under_the_earliest_schedule_a_write_lands_at_once() -> None:
    _, tensor = device_with(VALUES, "eager")
    assert tensor.generation == 1


def test_a_random_schedule_runs_some_work_early_and_repeats() -> None:
    def early(seed: int) -> list[int]:
        device, tensor = device_with(VALUES, f"random:{seed}")
        generations = []
        for _ in range(20):
            device.copy_host_to_device_tensor(VALUES, tensor)
            generations.append(tensor.generation)
        return generations

    assert early(1) == early(1)
    assert len({tuple(early(seed)) for seed in range(5)}) > 1
    assert 0 < early(1)[-1] <= 21


def test_a_seed_stands_for_the_same_times_on_every_python_and_numpy() -> None:
    schedule = schedule_named("random:7")
    assert [schedule.turns(9) for _ in range(12)] == [1, 0, 5, 0, 0, 4, 0, 8, 2, 0, 0, 0]
    assert [schedule.pick([0, 1]) for _ in range(12)] == [0, 1, 0, 1, 0, 0, 0, 0, 1, 0, 1, 1]


@pytest.mark.parametrize("schedule", ["lazy", "eager", "random:3"])
def test_a_fault_of_a_command_says_when_it_was_seen_and_under_which_schedule(schedule: str) -> None:
    device = SimDevice(schedule=schedule_named(schedule))
    ids = device.allocate_tensor_on_device((1, 1), DType.UINT32, Layout.ROW_MAJOR, "ids")
    table = device.allocate_tensor_on_device((4, 32), DType.FLOAT32, Layout.ROW_MAJOR, "table")
    device.copy_host_to_device_tensor(np.array([[9]], np.uint32), ids)

    def look_up() -> None:
        device.embedding(ids, table)
        device.synchronize_device()

    with pytest.raises(DeviceFault, match=rf"ids holds 9, which is not below 4 \[event \d+, schedule {schedule}\]") as caught:
        look_up()
    assert caught.value.kind == "embedding-index"


def test_a_closed_device_takes_nothing() -> None:
    device, tensor = device_with(VALUES, "lazy")
    x = device.allocate_tensor_on_device((1, 32), DType.FLOAT32, Layout.TILE, "x")
    event = device.record_event()
    device.close()
    for call in (
        lambda: device.copy_device_to_host_tensor(tensor, blocking=True),
        lambda: device.copy_host_to_device_tensor(VALUES, tensor),
        lambda: device.allocate_tensor_on_device((1,), DType.UINT8, Layout.ROW_MAJOR, "late"),
        lambda: device.deallocate(tensor),
        lambda: device.deallocate(x),
        device.synchronize_device,
        device.record_event,
        lambda: device.wait_for_event(event, cq_id=1),
        device.begin_trace_capture,
        lambda: device.add(x, x),
    ):
        with pytest.raises(DeviceFault) as caught:
            call()
        assert caught.value.kind == "closed"


@pytest.mark.parametrize("name", ["sloppy", "random", "random:", "random:-1", "random:x", "lazy:1", "seeded:1", "random:٣"])
def test_an_unknown_schedule_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(UsageError, match=rf"unknown schedule '{name}'; use eager, lazy, reuse or random:SEED"):
        schedule_named(name)
