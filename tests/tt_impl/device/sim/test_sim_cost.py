"""Modelled time follows from exact counts, by stated constants, as computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from oracle.errors import UsageError
from tt_impl.device.protocol import DType, Layout
from tt_impl.device.sim import CostModel, ModelledTime, SimDevice, schedule_named

ROUND = CostModel(
    pcie_bytes_per_second=1_000_000_000,
    round_trip_ns=1000,
    dispatch_ns=100,
    replay_ns=7,
    flops_per_second=1_000_000_000_000,
    dram_bytes_per_second=2_000_000_000,
)
TILE = 32 * 32 * 2


def step(device: SimDevice) -> None:
    """Write two matrices, multiply, add, read back, drain."""
    a = device.allocate_tensor_on_device((1, 64), DType.BFLOAT16, Layout.TILE, "a")
    w = device.allocate_tensor_on_device((32, 64), DType.BFLOAT16, Layout.TILE, "w")
    device.copy_host_to_device_tensor(np.zeros((1, 64), DType.BFLOAT16.host), a)
    device.copy_host_to_device_tensor(np.zeros((32, 64), DType.BFLOAT16.host), w)
    y = device.linear(a, w)
    z = device.add(y, y)
    device.copy_device_to_host_tensor(z, blocking=False)
    device.synchronize_device()
    device.copy_device_to_host_tensor(z, blocking=True)


@pytest.mark.parametrize("schedule", ["lazy", "eager", "random:3"])
def test_a_step_reckoned_by_hand(schedule: str) -> None:
    device = SimDevice(cost=ROUND, schedule=schedule_named(schedule))
    step(device)
    assert device.modelled_time() == ModelledTime(
        transfers_in_ns=4 * TILE,  # a byte a nanosecond; a and w are two tiles each
        transfers_out_ns=2 * TILE,
        round_trips_ns=2000,
        dispatch_ns=200,
        matrix_ns=132,  # 2 * 32 * 64 * 32 = 131,072 flops at 1,000 a nanosecond, rounded up
        memory_ns=(5 * TILE + 3 * TILE) // 2,  # linear 2 + 2 + 1 tiles, add 1 + 1 + 1, two bytes a nanosecond
        round_trips=2,
        drains=1,
        bytes_in=4 * TILE,
        bytes_out=2 * TILE,
        ops=2,
    )
    assert device.modelled_time().total_ns == 6 * TILE + 2000 + 200 + 132 + 4 * TILE


def test_a_part_is_the_difference_of_two_looks() -> None:
    device = SimDevice(cost=ROUND)
    step(device)
    before = device.event_counts()
    whole = device.modelled_time()
    step(device)
    after = device.event_counts()
    assert ROUND.time({name: n - before.get(name, 0) for name, n in after.items()}) == whole


def test_replayed_ops_cost_a_replay_each_and_no_dispatch() -> None:
    counts = {"ops": 10, "replayed_ops": 4}
    assert ROUND.time(counts).dispatch_ns == 6 * 100 + 4 * 7
    assert ROUND.time({}).total_ns == 0


def test_each_cause_is_bounded_by_its_own_constant_alone() -> None:
    device = SimDevice()
    step(device)
    counts = device.event_counts()
    base = CostModel().time(counts)
    for name, part in [
        ("pcie_bytes_per_second", ("transfers_in_ns", "transfers_out_ns")),
        ("round_trip_ns", ("round_trips_ns",)),
        ("dispatch_ns", ("dispatch_ns",)),
        ("flops_per_second", ("matrix_ns",)),
        ("dram_bytes_per_second", ("memory_ns",)),
    ]:
        old = getattr(CostModel(), name)
        changed = CostModel(**{name: old // 2}).time(counts)
        differing = {field for field in vars(base) if getattr(base, field) != getattr(changed, field)}
        assert differing == set(part)


def kv(device: SimDevice, label: str, blocks: int) -> object:
    return device.allocate_tensor_on_device((blocks, 2, 32, 64), DType.BFLOAT16, Layout.TILE, label)


def test_ops_that_look_into_an_operand_are_charged_for_what_they_could_touch() -> None:
    device = SimDevice(dram_bytes=1 << 24)
    table = device.allocate_tensor_on_device((500, 64), DType.BFLOAT16, Layout.ROW_MAJOR, "table")
    ids = device.allocate_tensor_on_device((1, 1), DType.UINT32, Layout.ROW_MAJOR, "ids")
    device.copy_host_to_device_tensor(np.zeros((1, 1), np.uint32), ids)
    device.embedding(ids, table)
    assert device.event_counts()["dram_bytes"] == 4 + 2 * 2 * TILE
    before = device.event_counts()["dram_bytes"]
    caches = [kv(device, name, 10) for name in "kv"]
    q = device.allocate_tensor_on_device((4, 64), DType.BFLOAT16, Layout.TILE, "q")
    pages = device.allocate_tensor_on_device((1, 3), DType.INT32, Layout.ROW_MAJOR, "pages")
    position = device.allocate_tensor_on_device((1, 1), DType.INT32, Layout.ROW_MAJOR, "position")
    name = "paged_scaled_dot_product_attention_decode"
    device._result(name, (q, *caches, pages, position), q.shape, q.dtype)  # type: ignore[arg-type]
    three_blocks = 3 * 2 * 2 * TILE  # of ten, for 2 heads of two tiles
    assert device.event_counts()["dram_bytes"] - before == 2 * three_blocks + 2 * TILE + 12 + 4 + 2 * TILE
    assert device.event_counts()["flops"] == 2 * 2 * 32 * 64 * 3 * 32
    before = device.event_counts()["dram_bytes"]
    x = device.allocate_tensor_on_device((2, 64), DType.BFLOAT16, Layout.TILE, "x")
    device._operate("paged_update_cache", (caches[0], x, position, pages))  # type: ignore[arg-type]
    assert device.event_counts()["dram_bytes"] - before == 2 * 2 * TILE + 4 + 12


@pytest.mark.parametrize("bad", [{"flops_per_second": 0}, {"dispatch_ns": -1}])
def test_a_model_that_cannot_be_is_refused(bad: dict[str, int]) -> None:
    with pytest.raises(UsageError):
        CostModel(**bad)
