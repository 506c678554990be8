"""A fault plan changes what it names, when it names, and nothing else; and it says what it struck."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracle.errors import DeviceFault, UsageError
from tt_impl.device.host_read import HOST_POISON
from tt_impl.device.protocol import DType, Layout
from tt_impl.device.sim import (
    Delay,
    Drop,
    Fault,
    FaultPlan,
    Flip,
    OnDrain,
    OnEvent,
    OnOp,
    OnRead,
    OnWrite,
    Overwrite,
    SimDevice,
    schedule_named,
)
from tt_impl.device.sim.memory import SimTensor

SCHEDULES = ["lazy", "eager", "reuse", "random:1", "random:2"]


def opened(fault: Fault, label: str, schedule: str = "lazy") -> tuple[SimDevice, SimTensor]:
    device = SimDevice(dram_bytes=1 << 16, faults=FaultPlan((fault,)), schedule=schedule_named(schedule))
    return device, device.allocate_tensor_on_device((4,), DType.UINT8, Layout.ROW_MAJOR, label)


def write(device: SimDevice, tensor: SimTensor, value: int) -> None:
    device.copy_host_to_device_tensor(np.full(4, value, np.uint8), tensor)


def held(device: SimDevice, tensor: SimTensor) -> list[int]:
    return device.copy_device_to_host_tensor(tensor, blocking=True).bytes().tolist()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_bit_flips_when_the_nth_write_lands(schedule: str) -> None:
    device, tensor = opened(Fault("layer1.slot*", OnWrite(2), Flip(3, 0x10)), "layer1.slot0", schedule)
    seen = []
    for _ in range(3):
        write(device, tensor, 0)
        seen.append(held(device, tensor))
    assert seen == [[0, 0, 0, 0], [0, 0, 0, 0x10], [0, 0, 0, 0]]
    assert device.faults_struck == (1,)


def test_other_buffers_are_left_alone_and_the_plan_knows_that_it_struck_nothing() -> None:
    device, tensor = opened(Fault("layer1.slot*", OnWrite(), Flip()), "layer2.slot0")
    write(device, tensor, 0)
    assert held(device, tensor) == [0, 0, 0, 0]
    assert device.faults_struck == (0,)


def test_a_flip_behind_the_end_strikes_nothing() -> None:
    device, tensor = opened(Fault("t", OnWrite(), Flip(4)), "t")
    write(device, tensor, 0)
    assert held(device, tensor) == [0, 0, 0, 0]
    assert device.faults_struck == (0,)


def test_a_block_is_overwritten() -> None:
    device, tensor = opened(Fault("t", OnWrite(), Overwrite(1, "abcd")), "t")
    write(device, tensor, 0)
    assert held(device, tensor) == [0, 0xAB, 0xCD, 0]
    device, tensor = opened(Fault("t", OnWrite(), Overwrite(0, "09", repeat=4)), "t")
    write(device, tensor, 0)
    assert held(device, tensor) == [9, 9, 9, 9]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_dropped_write_never_lands(schedule: str) -> None:
    device, tensor = opened(Fault("t", OnWrite(2), Drop()), "t", schedule)
    seen = []
    for value in (1, 2, 3):
        write(device, tensor, value)
        seen.append(held(device, tensor)[0])
    assert seen == [1, 1, 3]
    assert device.faults_struck == (1,)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_delayed_write_lands_behind_the_settling_that_should_have_waited_for_it(schedule: str) -> None:
    device, tensor = opened(Fault("t", OnWrite(2), Delay()), "t", schedule)
    write(device, tensor, 1)
    write(device, tensor, 2)
    read_back = device.copy_device_to_host_tensor(tensor, blocking=False)
    device.synchronize_device()
    assert read_back.bytes().tolist() == [1, 1, 1, 1]
    assert held(device, tensor) == [2, 2, 2, 2]


def test_a_dropped_read_is_reported_done_and_brings_nothing() -> None:
    device, tensor = opened(Fault("t", OnRead(), Drop()), "t")
    write(device, tensor, 1)
    assert held(device, tensor) == [HOST_POISON] * 4
    assert held(device, tensor) == [1, 1, 1, 1]


def test_a_delayed_read_settles_one_settling_later_and_those_behind_it_in_time() -> None:
    device, tensor = opened(Fault("t", OnRead(), Delay()), "t")
    write(device, tensor, 1)
    late, other = (device.copy_device_to_host_tensor(tensor, blocking=False) for _ in range(2))
    device.synchronize_device()
    assert other.settled
    with pytest.raises(DeviceFault, match="unsettled-read"):
        late.bytes()
    write(device, tensor, 2)
    device.synchronize_device()
    assert late.bytes().tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("what", [Flip(1, 0x80), Overwrite(1, "81ff")])
def test_a_read_is_corrupted_on_its_way_and_the_device_is_not(what: Flip | Overwrite) -> None:
    device, tensor = opened(Fault("t", OnRead(2), what), "t")
    write(device, tensor, 1)
    seen = [held(device, tensor) for _ in range(3)]
    assert seen[0] == seen[2] == [1, 1, 1, 1]
    assert seen[1][:2] == [1, 0x81]
    assert tensor.generation == 1


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_an_event_strikes_behind_its_own_command(schedule: str) -> None:
    """Events: 1 allocates, 2 and 3 write, 4 records, 5 writes. Nothing runs at 1 and 4, so these strike at 2 and 5."""
    seen = {}
    for nth in range(1, 6):
        device, tensor = opened(Fault("t", OnEvent(nth), Flip(0, 0x40)), "t", schedule)
        write(device, tensor, 0)
        reads = [device.copy_device_to_host_tensor(tensor, blocking=False)] if nth == 3 else []
        write(device, tensor, 1)
        device.record_event()
        write(device, tensor, 2)
        seen[nth] = held(device, tensor)[0]
        assert device.faults_struck == (1,)
        assert [read.bytes()[0] for read in reads] == [0] * len(reads)
    assert seen == {1: 2, 2: 2, 3: 2, 4: 0x42, 5: 0x42}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_an_op_strikes_behind_its_nth_call_and_its_own_output_too(schedule: str) -> None:
    plan = FaultPlan((Fault("x", OnOp("add", 2), Flip(3, 0x80)), Fault("add", OnOp("add", 3), Overwrite(0, "0000803f"))))
    device = SimDevice(dram_bytes=1 << 18, faults=plan, schedule=schedule_named(schedule))
    x = device.allocate_tensor_on_device((1, 32), DType.FLOAT32, Layout.TILE, "x")
    device.copy_host_to_device_tensor(np.ones((1, 32), np.float32), x)
    for _ in range(3):
        device.typecast(x, DType.BFLOAT16)  # other ops are not counted
    sums = [device.add(x, x) for _ in range(3)]
    device.synchronize_device()
    first = [device.copy_device_to_host_tensor(t, blocking=True).array()[0, 0] for t in (*sums, x)]
    assert first == [1, 1, 1, -1]  # the third overwrites all outputs of add that live
    assert device.copy_device_to_host_tensor(sums[2], blocking=True).array()[0, 1] == 2
    assert device.faults_struck == (1, 3)


def test_a_freed_buffer_is_not_struck() -> None:
    device, tensor = opened(Fault("t", OnDrain(), Flip()), "t")
    device.deallocate(tensor)
    device.synchronize_device()
    assert device.faults_struck == (0,)


def test_ops_of_replays_count() -> None:
    device = SimDevice(dram_bytes=1 << 18, faults=FaultPlan((Fault("x", OnOp("add", 2), Flip(3, 0x80)),)))
    x = device.allocate_tensor_on_device((1, 32), DType.FLOAT32, Layout.TILE, "x")
    device.copy_host_to_device_tensor(np.ones((1, 32), np.float32), x)
    trace = device.begin_trace_capture()
    out = device.add(x, x)
    device.end_trace_capture(trace)
    seen = []
    for _ in range(3):
        device.execute_trace(trace, blocking=True)
        seen.append(device.copy_device_to_host_tensor(out, blocking=True).array()[0, 0])
    assert seen == [2, 2, -2]


@pytest.mark.parametrize("drain", ["device", "event"])
def test_a_drain_strikes_when_it_is_over(drain: str) -> None:
    device, tensor = opened(Fault("t", OnDrain(2), Flip(0, 1)), "t")
    write(device, tensor, 0)
    read = device.copy_device_to_host_tensor(tensor, blocking=False)
    for _ in range(2):
        assert held(device, tensor) == [0] * 4  # a blocking read is no drain
        if drain == "event":
            device.event_synchronize(device.record_event())
        else:
            device.synchronize_device()
    assert held(device, tensor) == [1, 0, 0, 0]
    assert read.bytes().tolist() == [0] * 4


def test_a_flipped_operand_is_decoded_afresh() -> None:
    device = SimDevice(dram_bytes=1 << 16)
    tensor = device.allocate_tensor_on_device((1, 32), DType.FLOAT32, Layout.TILE, "x")
    device.copy_host_to_device_tensor(np.ones((1, 32), np.float32), tensor)
    before = device.copy_device_to_host_tensor(device.add(tensor, tensor), blocking=True).array()[0, 0]
    device.poke(tensor, 0, np.float32(5).tobytes())
    after = device.copy_device_to_host_tensor(device.add(tensor, tensor), blocking=True).array()[0, 0]
    assert (before, after) == (2, 10)


@pytest.mark.parametrize(
    ("when", "what", "why"),
    [
        (lambda: OnWrite(0), Flip, "nth counts from 1"),
        (lambda: OnOp("add", 0), Flip, "nth counts from 1"),
        (OnWrite, lambda: Flip(-1), "offset counts from 0"),
        (OnWrite, lambda: Flip(0, 0), "mask is a byte"),
        (OnWrite, lambda: Flip(0, 256), "mask is a byte"),
        (OnWrite, lambda: Overwrite(-1, "00"), "offset counts from 0"),
        (OnWrite, lambda: Overwrite(0, ""), "hexadecimal"),
        (OnWrite, lambda: Overwrite(0, "0"), "hexadecimal"),
        (OnWrite, lambda: Overwrite(0, "xy"), "hexadecimal"),
        (OnWrite, lambda: Overwrite(0, "00", 0), "repeat from 1"),
        (OnDrain, Drop, "only a transfer"),
        (lambda: OnEvent(3), Delay, "only a transfer"),
    ],
)
def test_a_fault_that_could_not_happen_is_refused(when: Any, what: Any, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        Fault("x", when(), what())


WHENS = st.one_of(
    st.builds(OnWrite, st.integers(1, 9)),
    st.builds(OnRead, st.integers(1, 9)),
    st.builds(OnEvent, st.integers(1, 9)),
    st.builds(OnOp, st.text(max_size=9), st.integers(1, 9)),
    st.builds(OnDrain, st.integers(1, 9)),
)
WHATS = st.one_of(
    st.builds(Flip, st.integers(0, 9), st.integers(1, 255)),
    st.builds(Overwrite, st.integers(0, 9), st.binary(min_size=1, max_size=4).map(bytes.hex), st.integers(1, 9)),
)
TRANSFERS = st.builds(Fault, st.text(), st.sampled_from([OnWrite(1), OnRead(2)]), st.sampled_from([Drop(), Delay()]))


@given(st.lists(st.builds(Fault, st.text(), WHENS, WHATS) | TRANSFERS, max_size=4))
def test_a_plan_is_a_value_that_a_run_can_carry(faults: list[Fault]) -> None:
    plan = FaultPlan(tuple(faults))
    assert FaultPlan.from_json(plan.to_json()) == plan
    assert hash(plan) == hash(FaultPlan(tuple(faults)))


@pytest.mark.parametrize(
    "text", ["", "[]", '{"faults": [{"where": "x"}]}', '{"faults": [{"where": 1, "when": {"kind": "never"}}]}']
)
def test_what_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a fault plan"):
        FaultPlan.from_json(text)


@pytest.mark.parametrize("schedule", ["random:11", "reuse"])
def test_one_name_replays_a_run_exactly_faults_included(schedule: str) -> None:
    def run() -> list[Any]:
        plan = FaultPlan((Fault("t", OnWrite(3), Delay()), Fault("t", OnEvent(7), Flip(2, 9)), Fault("t", OnRead(4), Drop())))
        device = SimDevice(dram_bytes=1 << 14, faults=plan, schedule=schedule_named(schedule))
        tensor = device.allocate_tensor_on_device((4,), DType.UINT8, Layout.ROW_MAJOR, "t")
        shown: list[Any] = []
        for value in range(9):
            device.copy_host_to_device_tensor(np.full(4, value, np.uint8), tensor, cq_id=value % 2)
            shown.append((held(device, tensor), tensor.generation, device.event_number))
        return [*shown, device.faults_struck]

    assert run() == run()
