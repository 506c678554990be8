"""Chains on which an index fault cannot show are found; chains on which every one shows are told apart."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracle.golden.sensitivity import LONGEST_SHORT_PERIOD, measure, short_period

GOOD = random.Random(5).sample(range(500), 32)
OTHER = random.Random(6).sample(range(500), 32)
TWELVE = random.Random(7).sample(range(500), 12)


@pytest.mark.parametrize(
    ("chain", "period"),
    [
        ([9] * 32, 1),
        ([1, 2] * 16, 2),
        ((TWELVE * 3)[:32], 12),
        (list(range(16)) * 2, 16),
        (list(range(17)) * 2, None),
        (GOOD, None),
        ([1, 1], 1),
        ([1], None),
        ([1, 2, 1], None),
        ([1] * 31 + [2], None),
        ([1, 2, 3, 1, 2], None),
    ],
    ids=["constant", "two", "twelve", "sixteen", "seventeen", "good", "pair", "one", "short", "end", "under two periods"],
)
def test_the_smallest_period_up_to_sixteen_is_found(chain: Sequence[int], period: int | None) -> None:
    assert short_period(chain) == period


@given(st.lists(st.integers(0, 3), min_size=1, max_size=20), st.integers(2, 4))
def test_a_repeated_pattern_has_a_period_that_explains_it(pattern: list[int], times: int) -> None:
    chain = pattern * times
    period = short_period(chain)
    if len(pattern) <= LONGEST_SHORT_PERIOD:
        assert period is not None
        assert period <= len(pattern)
    if period is not None:
        assert all(chain[i] == chain[i % period] for i in range(len(chain)))


def test_good_chains_expose_every_fault() -> None:
    measured = measure({"a": ([501, 502], GOOD), "b": ([503, 504, 505], OTHER)})
    assert measured.hidden == ()
    # Eight shifts each way (the prompts' lengths are among them), two dropped ids, one swap; for both prompts.
    assert measured.faults == measured.exposed == 2 * (16 + 2 + 1)


def test_a_prompt_longer_than_the_shifts_adds_its_own_length() -> None:
    assert measure({"a": (list(range(600, 620)), GOOD)}).faults == 18 + 2


def test_a_constant_chain_hides_every_shift() -> None:
    measured = measure({"a": ([9, 9], [9] * 32), "b": ([503], OTHER)})
    assert {f"a: {n} late" for n in range(1, 9)} <= set(measured.hidden)
    assert {"a: 1 early", "a: 2 early", "a: first id dropped", "a: last id dropped"} <= set(measured.hidden)
    assert "a: answered as b" not in measured.hidden
    assert measured.exposed == measured.faults - len(measured.hidden)


def test_a_chain_of_two_ids_hides_even_shifts() -> None:
    hidden = measure({"a": ([1, 2], [1, 2] * 16)}).hidden
    assert {"a: 2 late", "a: 4 late", "a: 6 late", "a: 8 late"} <= set(hidden)
    assert "a: 1 late" not in hidden


def test_a_chain_of_period_twelve_hides_a_shift_by_twelve() -> None:
    chain = (TWELVE * 3)[:32]
    assert measure({"a": (TWELVE, chain)}).hidden == ("a: 12 late", "a: 12 early")


def test_two_prompts_with_one_answer_hide_a_swap() -> None:
    hidden = measure({"a": ([501], GOOD), "b": ([502], GOOD)}).hidden
    assert hidden == ("a: answered as b", "b: answered as a")
