"""Two queues have no order but that of events, and the schedules see to it that a missing one shows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracle.errors import DeviceFault, UsageError
from tt_impl.device.protocol import DType, Layout
from tt_impl.device.sim import SimDevice, schedule_named
from tt_impl.device.sim.memory import SimTensor

HOSTILE = ["lazy", "reuse", *(f"random:{seed}" for seed in range(8))]
OLD, NEW = np.full((1, 32), 1, np.float32), np.full((1, 32), 5, np.float32)


def opened(schedule: str) -> tuple[SimDevice, SimTensor]:
    device = SimDevice(dram_bytes=1 << 20, schedule=schedule_named(schedule))
    x = device.allocate_tensor_on_device((1, 32), DType.FLOAT32, Layout.TILE, "x")
    device.copy_host_to_device_tensor(OLD, x)
    device.synchronize_device()
    return device, x


def doubled_after_a_write_on_queue_1(schedule: str, *, event: bool) -> float:
    """Twice x, computed on queue 0 after x was written on queue 1."""
    device, x = opened(schedule)
    device.copy_host_to_device_tensor(NEW, x, cq_id=1)
    if event:
        device.wait_for_event(device.record_event(cq_id=1), cq_id=0)
    return float(device.copy_device_to_host_tensor(device.add(x, x), blocking=True).array()[0, 0])


def doubled_before_a_write_on_queue_1(schedule: str, *, event: bool) -> float:
    """Twice x, computed on queue 0 before queue 1 writes the next x."""
    device, x = opened(schedule)
    double = device.add(x, x)
    if event:
        device.wait_for_event(device.record_event(cq_id=0), cq_id=1)
    device.copy_host_to_device_tensor(NEW, x, cq_id=1)
    device.synchronize_device()
    return float(device.copy_device_to_host_tensor(double, blocking=True).array()[0, 0])


@pytest.mark.parametrize("schedule", [*HOSTILE, "eager"])
def test_an_event_orders_a_write_and_an_op_on_two_queues(schedule: str) -> None:
    assert doubled_after_a_write_on_queue_1(schedule, event=True) == 10
    assert doubled_before_a_write_on_queue_1(schedule, event=True) == 2


def test_without_one_a_schedule_shows_the_old_bytes_to_the_op_behind_the_write() -> None:
    seen = {schedule: doubled_after_a_write_on_queue_1(schedule, event=False) for schedule in HOSTILE}
    assert seen["lazy"] == 2
    assert set(seen.values()) == {2, 10}


def test_without_one_a_schedule_shows_the_new_bytes_to_the_op_before_the_write() -> None:
    seen = {schedule: doubled_before_a_write_on_queue_1(schedule, event=False) for schedule in HOSTILE}
    assert seen["reuse"] == 10
    assert set(seen.values()) == {2, 10}


def test_an_op_that_does_not_wait_for_the_first_write_sees_poison() -> None:
    device = SimDevice(dram_bytes=1 << 20)
    x = device.allocate_tensor_on_device((1, 32), DType.FLOAT32, Layout.TILE, "x")
    device.copy_host_to_device_tensor(NEW, x, cq_id=1)
    assert np.isnan(device.copy_device_to_host_tensor(device.add(x, x), blocking=True).array()).all()


@pytest.mark.parametrize("schedule", HOSTILE)
def test_settling_one_queue_leaves_the_other_where_it_may_be(schedule: str) -> None:
    device, x = opened(schedule)
    early = device.copy_device_to_host_tensor(x, blocking=False, cq_id=1)
    device.synchronize_device(cq_id=0)
    device.copy_device_to_host_tensor(x, blocking=True, cq_id=0)
    assert not early.settled
    device.synchronize_device(cq_id=1)
    assert early.settled


@pytest.mark.parametrize("schedule", HOSTILE)
def test_what_is_waited_for_runs_though_only_the_waiting_queue_is_settled(schedule: str) -> None:
    """But its reads settle with their own queue."""
    device, x = opened(schedule)
    device.copy_host_to_device_tensor(NEW, x, cq_id=1)
    read = device.copy_device_to_host_tensor(x, blocking=False, cq_id=1)
    event = device.record_event(cq_id=1)
    device.wait_for_event(event, cq_id=0)
    device.synchronize_device(cq_id=0)
    assert x.generation == 2
    assert not read.settled
    assert not event.reached


@pytest.mark.parametrize("schedule", HOSTILE)
def test_a_wait_behind_other_commands_holds_its_queue_too(schedule: str) -> None:
    device, x = opened(schedule)
    device.copy_host_to_device_tensor(NEW, x, cq_id=1)
    written = device.record_event(cq_id=1)
    other = device.allocate_tensor_on_device((1, 32), DType.FLOAT32, Layout.TILE, "other")
    device.copy_host_to_device_tensor(OLD, other)
    device.wait_for_event(written, cq_id=0)
    assert device.copy_device_to_host_tensor(device.add(x, x), blocking=True).array()[0, 0] == 10


@pytest.mark.parametrize("schedule", ["lazy", "reuse"])
def test_no_more_than_what_is_waited_for_runs(schedule: str) -> None:
    device, x = opened(schedule)
    device.copy_host_to_device_tensor(NEW, x, cq_id=1)
    device.wait_for_event(device.record_event(cq_id=1), cq_id=0)
    device.copy_host_to_device_tensor(OLD, x, cq_id=1)
    device.synchronize_device(cq_id=0)
    assert x.generation == 2


@pytest.mark.parametrize("schedule", HOSTILE)
def test_a_freed_address_is_poisoned_only_when_both_queues_are_done_with_it(schedule: str) -> None:
    device, x = opened(schedule)
    double = device.add(x, x)
    read = device.copy_device_to_host_tensor(x, blocking=False, cq_id=1)
    device.deallocate(x)
    device.synchronize_device()
    assert read.array().tolist() == OLD.tolist()
    assert device.copy_device_to_host_tensor(double, blocking=True).array().tolist() == (2 * OLD).tolist()
    assert np.isnan(x.buffer.bytes.view(np.float32)).all()


@pytest.mark.parametrize("schedule", HOSTILE)
@pytest.mark.parametrize("also_read", [False, True])
def test_who_waits_for_the_last_use_may_take_the_freed_address_on_the_other_queue(schedule: str, also_read: bool) -> None:
    """The event is recorded before the free: the poison of the old bytes must not land on the new ones."""
    device, x = opened(schedule)
    double = device.add(x, x)
    if also_read:
        device.copy_device_to_host_tensor(x, blocking=False, cq_id=1)
    used = device.record_event(cq_id=0)
    device.deallocate(x)
    successor = device.allocate_tensor_on_device((1, 32), DType.FLOAT32, Layout.TILE, "successor")
    assert successor.buffer.address == x.buffer.address
    device.wait_for_event(used, cq_id=1)
    device.copy_host_to_device_tensor(NEW, successor, cq_id=1)
    assert (device.copy_device_to_host_tensor(successor, blocking=True, cq_id=1).array() == NEW).all()
    device.synchronize_device()
    assert (device.copy_device_to_host_tensor(successor, blocking=True).array() == NEW).all()
    assert (device.copy_device_to_host_tensor(double, blocking=True).array() == 2 * OLD).all()


@settings(max_examples=60)
@given(
    st.sampled_from(HOSTILE),
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1), st.booleans()), min_size=1, max_size=25),
)
def test_steps_that_wait_for_each_other_give_one_result_whatever_the_queues(
    schedule: str, steps: list[tuple[int, int, bool]]
) -> None:
    """Each step writes or reads on a queue of its own choosing, and waits for the step before it."""
    device, x = opened(schedule)
    expected, reads = 1, []
    last = None
    for value, (cq_id, _, writes) in enumerate(steps, start=2):
        if last is not None:
            device.wait_for_event(last, cq_id=cq_id)
        if writes:
            device.copy_host_to_device_tensor(np.full((1, 32), value, np.float32), x, cq_id=cq_id)
            expected = value
        else:
            reads.append((device.copy_device_to_host_tensor(x, blocking=False, cq_id=cq_id), expected))
        last = device.record_event(cq_id=cq_id)
    device.synchronize_device()
    assert [int(read.array()[0, 0]) for read, _ in reads] == [wanted for _, wanted in reads]
    assert x.buffer.bytes.view(np.float32)[0] == expected


def test_a_queue_that_the_device_has_not_is_refused() -> None:
    device = SimDevice(dram_bytes=1 << 20, command_queues=1)
    x = device.allocate_tensor_on_device((8,), DType.UINT8, Layout.ROW_MAJOR, "x")
    event = device.record_event()
    for call in (
        lambda: device.copy_host_to_device_tensor(np.zeros(8, np.uint8), x, cq_id=1),
        lambda: device.copy_device_to_host_tensor(x, blocking=True, cq_id=1),
        lambda: device.record_event(cq_id=1),
        lambda: device.wait_for_event(event, cq_id=1),
        lambda: device.synchronize_device(cq_id=1),
        lambda: device.begin_trace_capture(cq_id=-1),
    ):
        with pytest.raises(DeviceFault, match="there is no command queue") as caught:
            call()
        assert caught.value.kind == "bad-queue"


@pytest.mark.parametrize("count", [0, 3])
def test_a_device_has_one_or_two_queues(count: int) -> None:
    with pytest.raises(UsageError, match=f"command_queues is {count}"):
        SimDevice(command_queues=count)
