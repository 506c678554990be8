"""Routing selects on logits plus bias, weighs by the sigmoid of the logits alone, and breaks ties to the lowest id."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from oracle.errors import DeviceFault
from tt_impl.device.protocol import DType, Layout, Tensor
from tt_impl.device.sim import SimDevice
from tt_impl.memo import upload
from tt_impl.router import RouterBias, route
from tt_impl.stats import StepStats

ZERO = np.zeros(8, np.float32)


def test_equal_scores_go_to_the_lowest_ids() -> None:
    assert route(ZERO, ZERO, 3).experts.tolist() == [0, 1, 2]
    logits = np.array([0, 2, 1, 2, 1, 2, 0, 0], np.float32)
    assert route(logits, ZERO, 4).experts.tolist() == [1, 3, 5, 2]
    steps = np.arange(384, dtype=np.float32) // 100
    assert route(steps, np.zeros(384, np.float32), 6).experts.tolist() == [300, 301, 302, 303, 304, 305]


def test_the_bias_selects_and_does_not_weigh() -> None:
    logits = np.array([1, 2, 3, 4, 0, 0, 0, 0], np.float32)
    bias = np.array([0, 0, 0, 0, 0, 0, 0, 5], np.float32)
    routing = route(logits, bias, 2)
    assert routing.experts.tolist() == [7, 3]
    assert np.allclose(routing.weights, [0.5, 1 / (1 + np.exp(-4.0))], rtol=1e-6)


def test_selection_is_on_logits_not_on_their_sigmoid() -> None:
    logits = np.array([8, 5, 0, 0, 0, 0, 0, 0], np.float32)
    bias = np.array([0, 0.5, 0, 0, 0, 0, 0, 0], np.float32)  # would lift expert 1 over 0 if added to sigmoids
    assert route(logits, bias, 1).experts.tolist() == [0]


def test_weights_are_not_renormalized() -> None:
    assert route(np.full(8, 3, np.float32), ZERO, 6).weights.sum() > 5


@given(hnp.arrays(np.float32, 8, elements=st.floats(-(2**7), 2**7, width=32)))
def test_weights_are_float32_sigmoids_in_routing_order(logits: np.ndarray) -> None:
    routing = route(logits, ZERO, 6)
    assert routing.experts.dtype == np.int32
    assert routing.weights.dtype == np.float32
    assert (np.diff(logits[routing.experts]) <= 0).all()
    assert np.allclose(routing.weights, 1 / (1 + np.exp(-logits[routing.experts].astype(np.float64))), rtol=1e-6, atol=1e-37)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_logit_that_is_no_number_is_a_fault(bad: float) -> None:
    logits = ZERO.copy()
    logits[5] = bad
    with pytest.raises(DeviceFault, match=r"1 of 8 router logits, the first of expert 5") as caught:
        route(logits, ZERO, 3)
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
