"""Routing selects on logits plus bias, weighs by the sigmoid of the logits alone, and breaks ties to the lowest id."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from oracle.errors import DeviceFault
from tt_impl.router import route

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
