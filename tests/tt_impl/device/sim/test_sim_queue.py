"""Nothing reaches the host before something settles it, in whatever order of time the device works."""

from __future__ import annotations

import numpy as np
import pytest

from oracle.errors import DeviceFault, UsageError
from tt_impl.device.protocol import DType, Layout
from tt_impl.device.sim import SimDevice, schedule_named
from tt_impl.device.sim.memory import SimTensor
from tt_impl.device.sim.queue import HOST_POISON

SCHEDULES = ["lazy", "eager", "seeded:1", "seeded:2"]
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
    for use in (handle.bytes, handle.array, lambda: handle.event):
        with pytest.raises(DeviceFault) as caught:
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


def test_use_after_free_names_the_op_and_the_buffer() -> None:
    device, tensor = device_with(VALUES, "lazy")
    device.deallocate(tensor)
    with pytest.raises(DeviceFault, match="copy_device_to_host_tensor of t") as caught:
        device.copy_device_to_host_tensor(tensor, blocking=True)
    assert caught.value.kind == "use-after-free"
    with pytest.raises(DeviceFault, match="use-after-free"):
        device.copy_host_to_device_tensor(VALUES, tensor)


def test_under_the_lazy_schedule_a_write_lands_only_at_the_end() -> None:
    device, tensor = device_with(VALUES, "lazy")
    assert tensor.generation == 0
    device.synchronize_device()
    assert tensor.generation == 1


def test_a_seeded_schedule_runs_some_work_early_and_repeats() -> None:
    def early(seed: int) -> list[int]:
        device, tensor = device_with(VALUES, f"seeded:{seed}")
        generations = []
        for _ in range(20):
            device.copy_host_to_device_tensor(VALUES, tensor)
            generations.append(tensor.generation)
        return generations

    assert early(1) == early(1)
    assert len({tuple(early(seed)) for seed in range(5)}) > 1
    assert 0 < early(1)[-1] <= 21


def test_a_closed_device_takes_nothing() -> None:
    device, tensor = device_with(VALUES, "lazy")
    device.close()
    with pytest.raises(DeviceFault) as caught:
        device.copy_device_to_host_tensor(tensor, blocking=True)
    assert caught.value.kind == "closed"


def test_an_unknown_schedule_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"unknown schedule 'sloppy'; use lazy, eager or seeded:N"):
        schedule_named("sloppy")
