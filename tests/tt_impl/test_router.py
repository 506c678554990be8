"""Routing selects on logits plus bias, weighs by the sigmoid of the logits alone, and breaks ties to the lowest id."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from oracle.errors import DeviceFault
from tt_impl.device.protocol import DType, Layout, Tensor
from tt_impl.device.sim import QUIRK_PROFILES, SimDevice
from tt_impl.device_router import DeviceSelection, checked_ids
from tt_impl.experts.memo import upload
from tt_impl.lifetimes import Scratch
from tt_impl.router import HostSelection, RouterBias, Routing, Selection, sigmoid_weights, top_experts
from tt_impl.stats import StepStats

ZERO = np.zeros(8, np.float32)


def selected(
    device: SimDevice, where: str, logits: np.ndarray, bias: np.ndarray, count: int
) -> tuple[Routing, StepStats, dict[str, int]]:
    """One choice among `logits`, by the host or by the device: it, what the decoder counts, and what the device counts."""
    if where == "host":
        selection: Selection = HostSelection(device, bias_on(device, bias, keep=True)[1])
    else:
        selection = DeviceSelection(device, upload(device, "bias", bias[None], DType.FLOAT32, Layout.TILE))
    tensor = upload(device, "logits", logits[None], DType.FLOAT32, Layout.TILE)
    before, stats = device.event_counts(), StepStats()
    with Scratch(device) as scratch:
        [routing] = selection.choose(selection.score(scratch, scratch, tensor, count), count, stats)
    return routing, stats, {name: n - before.get(name, 0) for name, n in device.event_counts().items()}


def test_equal_scores_go_to_the_lowest_ids() -> None:
    assert top_experts(ZERO, ZERO, 3).tolist() == [0, 1, 2]
    logits = np.array([0, 2, 1, 2, 1, 2, 0, 0], np.float32)
    assert top_experts(logits, ZERO, 4).tolist() == [1, 3, 5, 2]
    steps = np.arange(384, dtype=np.float32) // 100
    assert top_experts(steps, np.zeros(384, np.float32), 6).tolist() == [300, 301, 302, 303, 304, 305]


@pytest.mark.parametrize("where", ["host", "device"])
def test_the_bias_selects_and_does_not_weigh(where: str) -> None:
    logits = np.array([1, 2, 3, 4, 0, 0, 0, 0], np.float32)
    bias = np.array([0, 0, 0, 0, 0, 0, 0, 5], np.float32)
    routing = selected(SimDevice(), where, logits, bias, 2)[0]
    assert routing.experts.tolist() == [7, 3]
    assert np.allclose(routing.weights, [0.5, 1 / (1 + np.exp(-4.0))], rtol=1e-6)


def test_selection_is_on_logits_not_on_their_sigmoid() -> None:
    logits = np.array([8, 5, 0, 0, 0, 0, 0, 0], np.float32)
    bias = np.array([0, 0.5, 0, 0, 0, 0, 0, 0], np.float32)  # would lift expert 1 over 0 if added to sigmoids
    assert top_experts(logits, bias, 1).tolist() == [0]


def test_weights_are_not_renormalized() -> None:
    assert sigmoid_weights(np.full(6, 3, np.float32)).sum() > 5


@given(hnp.arrays(np.float32, 8, elements=st.floats(-(2**7), 2**7, width=32)))
def test_weights_are_float32_sigmoids_in_routing_order(logits: np.ndarray) -> None:
    experts = top_experts(logits, ZERO, 6)
    weights = sigmoid_weights(logits[experts])
    assert experts.dtype == np.int32
    assert weights.dtype == np.float32
    assert (np.diff(logits[experts]) <= 0).all()
    assert np.allclose(weights, 1 / (1 + np.exp(-logits[experts].astype(np.float64))), rtol=1e-6, atol=1e-37)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_logit_that_is_no_number_is_a_fault(bad: float) -> None:
    logits = ZERO.copy()
    logits[5] = bad
    with pytest.raises(DeviceFault, match=r"1 of 8 router logits, the first of expert 5") as caught:
        top_experts(logits, ZERO, 3)
    assert caught.value.kind == "non-finite"


def bias_on(device: SimDevice, values: np.ndarray, *, keep: bool) -> tuple[Tensor, RouterBias]:
    tensor = upload(device, "bias", values, DType.FLOAT32, Layout.ROW_MAJOR)
    return tensor, RouterBias(device, tensor, keep=keep)


@pytest.mark.parametrize(("keep", "reads"), [(True, 0), (False, 3)])
def test_a_kept_bias_is_read_when_staged_and_a_fetched_one_each_time(keep: bool, reads: int) -> None:
    device, stats = SimDevice(), StepStats()
    values = np.arange(8, dtype=np.float32)
    _, bias = bias_on(device, values, keep=keep)
    for _ in range(3):
        assert bias.values(stats).tolist() == values.tolist()
    assert (stats.bias_reads, stats.round_trips) == (reads, reads)
    assert device.event_counts()["blocking_reads"] == 1 + reads


def test_a_kept_bias_is_read_again_once_the_devices_bytes_have_changed() -> None:
    device, stats = SimDevice(), StepStats()
    tensor, bias = bias_on(device, ZERO, keep=True)
    device.copy_host_to_device_tensor(ZERO + 5, tensor)
    device.synchronize_device()
    assert bias.values(stats).tolist() == bias.values(stats).tolist() == [5] * 8
    assert stats.bias_reads == 1


def test_a_bias_is_not_known_by_its_address() -> None:
    """Another checkpoint's bias at the address of one that is gone."""
    device, stats = SimDevice(), StepStats()
    old, _ = bias_on(device, ZERO, keep=True)
    address = device._owned(old).buffer.address
    device.deallocate(old)
    new, bias = bias_on(device, ZERO + 7, keep=True)
    assert device._owned(new).buffer.address == address
    assert bias.values(stats).tolist() == [7] * 8


SCORES = st.integers(-64, 64).map(float)
"""Few enough values that many sums are equal."""


@given(hnp.arrays(np.float32, 40, elements=SCORES), hnp.arrays(np.float32, 40, elements=SCORES), st.integers(1, 40))
def test_the_simulated_card_chooses_as_the_host_does_to_the_bit(logits: np.ndarray, bias: np.ndarray, count: int) -> None:
    device = SimDevice()
    host, there = (selected(device, where, logits, bias, count)[0] for where in ("host", "device"))
    device.synchronize_device()
    for name in ("experts", "weights"):
        assert getattr(host, name).dtype == getattr(there, name).dtype
        assert getattr(host, name).tobytes() == getattr(there, name).tobytes()
    assert host.logits.tobytes() == there.logits.tobytes() == logits.tobytes()


def test_the_device_waits_once_for_one_tile_of_ids_and_one_of_logits() -> None:
    """At the release's 384 experts: 4,096 bytes of ids and as many of logits, where all logits take twelve tiles. Those are
    read for the judge all the same, and nobody waits for them."""
    logits = np.random.default_rng(7).normal(size=384).astype(np.float32)
    bias = np.zeros(384, np.float32)
    _, stats, log = selected(SimDevice(), "host", logits, bias, 6)
    assert (stats.round_trips, stats.device_topks) == (1, 0)
    assert (log["round_trips"], log["blocking_reads"], log["bytes_read"]) == (1, 1, 12 * 4096)
    routing, stats, log = selected(SimDevice(), "device", logits, bias, 6)
    assert (stats.round_trips, stats.device_topks, log["op.topk"]) == (1, 1, 1)
    assert (log["round_trips"], log["blocking_reads"], log["non_blocking_reads"]) == (1, 1, 2)
    assert log["bytes_read"] == (2 + 12) * 4096
    assert not routing.read.settled


def test_a_card_that_prefers_the_highest_of_equal_scores_is_believed() -> None:
    """What the arm does not guarantee. Scores 0 to 3 tie for the last of two places; so do those within the choice."""
    logits = np.array([1, 1, 1, 1, 5, 0, 0, 0], np.float32)
    there = SimDevice(quirks=QUIRK_PROFILES["ties-to-highest"])
    assert selected(there, "host", logits, ZERO, 2)[0].experts.tolist() == [4, 0]
    assert selected(there, "device", logits, ZERO, 2)[0].experts.tolist() == [4, 3]
    assert selected(there, "device", logits, ZERO, 5)[0].experts.tolist() == [4, 3, 2, 1, 0]


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        ([0, 8, 3, 9], "2 of 4 ids are none of 8 experts, first 8"),
        ([0, 2**32 - 1, 3, 4], "1 of 4 ids are none of 8 experts, first 4294967295"),
        ([7, 3, 7, 3], "2 of 2 experts chosen more than once, first 3"),
        ([0, 0, 0, 0], "1 of 1 experts chosen more than once, first 0"),
    ],
)
def test_ids_that_no_choice_can_have_are_a_fault(ids: list[int], said: str) -> None:
    with pytest.raises(DeviceFault, match=said) as caught:
        checked_ids(np.array(ids, np.uint32), 8)
    assert caught.value.kind == "router-ids"
    assert checked_ids(np.array([7, 0, 3], np.uint32), 8).tolist() == [7, 0, 3]


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_a_selected_logit_that_is_no_number_is_a_fault(bad: float) -> None:
    logits = np.arange(8, dtype=np.float32)
    logits[5] = bad
    with pytest.raises(DeviceFault, match="1 of 8 selected router logits, the first of expert 5") as caught:
        selected(SimDevice(), "device", logits, ZERO, 8)
    assert caught.value.kind == "non-finite"


def test_a_logit_that_is_no_number_goes_unseen_where_it_is_not_selected() -> None:
    logits = np.arange(8, dtype=np.float32)
    logits[5] = np.nan
    assert selected(SimDevice(), "device", logits, ZERO, 3)[0].experts.tolist() == [7, 6, 4]
