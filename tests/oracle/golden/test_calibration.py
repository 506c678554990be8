"""Bins, flip chances and budgets: the arithmetic that decides how many flips are too many."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from oracle.golden.calibration import (
    BAND_MULTIPLE,
    BUDGET_TAIL,
    LIMIT_MULTIPLE,
    MARGIN_EDGES,
    NEAR_MULTIPLE,
    PART_MULTIPLE,
    Bands,
    Limits,
    MarginBins,
    Statistics,
    budget,
    expected_flips,
    flip_probability,
    margin_bin,
)

chances = st.lists(st.floats(0, 1), max_size=9)


def exact_tail(probabilities: list[float], count: int) -> float:
    """P(X >= count) by adding up every outcome."""
    outcomes = product((0, 1), repeat=len(probabilities))
    return sum(
        prod(p if hit else 1 - p for p, hit in zip(probabilities, outcome, strict=True))
        for outcome in outcomes
        if sum(outcome) >= count
    )


@given(chances, st.sampled_from([BUDGET_TAIL, 0.05, 0.5]))
def test_a_budget_is_the_smallest_count_with_a_tail_below_the_limit(probabilities: list[float], tail: float) -> None:
    count = budget(np.array(probabilities), tail)
    slack = 1e-12
    assert count >= 1
    assert exact_tail(probabilities, count) < tail + slack
    assert count == 1 or exact_tail(probabilities, count - 1) >= tail - slack


@given(st.integers(1, 200), st.floats(0.001, 0.5))
def test_equal_coins_give_the_binomial_tail(coins: int, chance: float) -> None:
    pmf = np.zeros(coins + 1)
    pmf[0] = (1 - chance) ** coins
    for k in range(coins):
        pmf[k + 1] = pmf[k] * (coins - k) / (k + 1) * chance / (1 - chance)
    tails = np.append(np.cumsum(pmf[::-1])[::-1], 0.0)
    count = budget(np.full(coins, chance))
    assert tails[count] < BUDGET_TAIL * (1 + 1e-6)
    assert count == 1 or tails[count - 1] >= BUDGET_TAIL * (1 - 1e-6)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.integers(0, 29), st.floats(0, 1))
def test_a_likelier_flip_never_lowers_the_budget(probabilities: list[float], at: int, chance: float) -> None:
    more = list(probabilities)
    more[at % len(more)] = max(chance, more[at % len(more)])
    assert budget(np.array(more)) >= budget(np.array(probabilities))


@pytest.mark.parametrize(
    ("probabilities", "count"),
    [
        ([], 1),
        ([0.0] * 50, 1),
        ([1.0] * 3, 4),
        ([0.5], 2),
        ([0.0009], 1),
        ([0.0011], 2),
        ([0.5] * 9, 10),
        ([0.5] * 10, 10),
        ([0.02] * 100, 8),
    ],
)
def test_budgets_known_by_hand(probabilities: list[float], count: int) -> None:
    assert budget(np.array(probabilities)) == count


def test_the_expected_number_of_flips_is_the_sum() -> None:
    assert expected_flips(np.array([0.25, 0.5])) == 0.75


def test_a_margin_belongs_to_the_bin_whose_lower_edge_it_reaches() -> None:
    assert margin_bin(MARGIN_EDGES).tolist() == list(range(len(MARGIN_EDGES)))
    below = np.nextafter(np.array(MARGIN_EDGES[1:]), 0)
    assert margin_bin(below).tolist() == list(range(len(MARGIN_EDGES) - 1))
    assert margin_bin([1e9]).tolist() == [len(MARGIN_EDGES) - 1]


@given(st.integers(0, 500), st.integers(0, 500))
def test_the_chance_of_a_flip_is_between_zero_and_one_and_never_either(flips: int, others: int) -> None:
    chance = flip_probability((flips,), (flips + others,))[0]
    assert 0 < chance < 1
    assert abs(chance - (flips + 0.5) / (flips + others + 1)) < 1e-15
    assert flip_probability((flips + 1,), (flips + others + 1,))[0] > chance


def bands(**values: Any) -> Bands:
    base = {
        "regret": NEAR_MULTIPLE * 0.1,
        "router_gap": BAND_MULTIPLE * 0.01,
        "router_regret": NEAR_MULTIPLE * 0.2,
        "floor_regret": 0.1,
        "floor_router_gap": 0.01,
        "floor_router_regret": 0.2,
        "near_multiple": NEAR_MULTIPLE,
        "multiple": BAND_MULTIPLE,
    }
    return Bands(**base | values)


@pytest.mark.parametrize("name", ["regret", "router_gap", "router_regret"])
def test_a_band_beyond_its_multiple_of_the_floor_is_refused(name: str) -> None:
    allowed = getattr(bands(), name)
    assert getattr(bands(**{name: allowed / 2}), name) == allowed / 2
    for inflated in (allowed * 1.001, allowed * 6.5):
        with pytest.raises(ValidationError, match=f"band {name} .* inflated"):
            bands(**{name: inflated})


def test_a_band_must_be_within_the_multiple_it_states() -> None:
    with pytest.raises(ValidationError, match=r"band router_gap .* inflated"):
        bands(multiple=1.0)


@pytest.mark.parametrize(
    "values",
    [
        {"multiple": BAND_MULTIPLE + 0.1},
        {"near_multiple": NEAR_MULTIPLE + 0.1},
        {"multiple": 0.5},
        {"regret": -0.1},
        {"regret": float("nan")},
        {"x": 1},
    ],
)
def test_bands_that_mean_nothing_are_refused(values: dict[str, float]) -> None:
    assert bands().multiple == BAND_MULTIPLE
    with pytest.raises(ValidationError):
        bands(**values)


def test_a_multiple_of_limits_beyond_the_declared_one_is_refused() -> None:
    floor = Statistics(
        kl=(0.1, 0.2),
        sketch_median=(0.1,),
        sketch_p90=(0.2,),
        sketch_slope=0.1,
        sets_differ=0.01,
        weight_median=(0.1,),
        weight_p90=(0.2,),
        router_logit=(0.1, 0.2),
    )
    assert Limits(floor=floor, multiple=LIMIT_MULTIPLE).kl == (LIMIT_MULTIPLE * 0.1, LIMIT_MULTIPLE * 0.2)
    for multiple in (PART_MULTIPLE + 0.001, 0.9, float("inf")):
        with pytest.raises(ValidationError):
            Limits(floor=floor, multiple=multiple)


@pytest.mark.parametrize("name", ["positions", "near", "router", "near_change", "router_change"])
def test_bins_have_one_count_per_edge(name: str) -> None:
    counts = {
        "positions": (9,) * 7,
        "near": (1,) * 7,
        "router": (0,) * 7,
        "near_change": (0.1,) * 7,
        "router_change": (0.1,) * 7,
    }
    assert MarginBins(**counts).positions == (9,) * 7
    with pytest.raises(ValidationError, match="each column of the bins needs 7 numbers"):
        MarginBins(**counts | {name: (0,) * 6})
