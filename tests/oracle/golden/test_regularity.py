"""Chains in which an index fault cannot show are found: whole, in a half, and with a few ids that break the pattern."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracle.golden.regularity import LEAST_PAIRS, LONGEST_SHORT_PERIOD, SHORTEST_HALF_LOOP, regular, short_period

GOOD = random.Random(5).sample(range(500), 64)
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
def test_the_smallest_period_of_the_whole_up_to_sixteen_is_found(chain: Sequence[int], period: int | None) -> None:
    assert short_period(chain) == period
    if period is not None:
        assert str(regular(chain)) == f"has period {period} and can show no index fault"


@given(st.lists(st.integers(0, 3), min_size=1, max_size=20), st.integers(2, 4))
def test_a_repeated_pattern_has_a_period_that_explains_it(pattern: list[int], times: int) -> None:
    chain = pattern * times
    period = short_period(chain)
    if len(pattern) <= LONGEST_SHORT_PERIOD:
        assert period is not None
        assert period <= len(pattern)
    if period is not None:
        assert all(chain[i] == chain[i % period] for i in range(len(chain)))


@pytest.mark.parametrize("period", [1, 2, 3, 12])
@pytest.mark.parametrize("before", [0, 1, 8, 30])
@pytest.mark.parametrize("after", [1, 8, 30])
def test_a_loop_of_half_the_chain_is_found_wherever_it_lies(period: int, before: int, after: int) -> None:
    looping = (TWELVE[:period] * 60)[: max(before + after, 30, 4 * period)]
    found = regular([*GOOD[:before], *looping, *GOOD[30 : 30 + after]])
    assert found is not None
    assert (found.period, found.whole, found.share) == (period, False, 1.0)
    assert found.start >= before
    assert found.stop <= before + len(looping)


def test_a_loop_that_is_shorter_than_half_the_chain_leaves_enough_to_see() -> None:
    assert regular([*GOOD[:40], *TWELVE[:2] * 10]) is None


def test_one_wrong_id_does_not_hide_a_loop() -> None:
    chain = [*GOOD[:20], *TWELVE[:2] * 10]
    chain[30] = 777
    found = regular(chain)
    assert found is not None
    assert (found.period, found.start, found.stop) == (2, 20, 40)
    assert str(found) == "repeats with period 2 in generated[20:40] (89% of the ids) and can show no index fault there"


def test_a_count_that_repeats_two_ids_of_three_is_no_loop() -> None:
    assert regular([id_ for tens in range(20) for id_ in (220, 23, 1000 + tens)]) is None
    assert regular([id_ for tens in range(20) for id_ in (220, 23, 24, 25, 1000 + tens)]) is not None


def test_a_few_equal_pairs_are_no_loop() -> None:
    """The shortest half that can be one holds two ids in turn, and one id less cannot."""
    assert regular([*GOOD[: SHORTEST_HALF_LOOP // 2], *[7, 8] * (SHORTEST_HALF_LOOP // 4)]) is not None
    assert regular([1, 2, 3, 4, 9, 9, 9]) is None
    assert regular([*GOOD[:3], *[9] * (LEAST_PAIRS - 1)]) is None


@given(
    st.lists(st.integers(0, 500), max_size=12),
    st.lists(st.integers(0, 500), min_size=1, max_size=LONGEST_SHORT_PERIOD),
    st.lists(st.integers(0, 500), max_size=12),
)
def test_every_loop_is_found_behind_and_before_anything(before: list[int], pattern: list[int], after: list[int]) -> None:
    chain = before + pattern * 34 + after
    found = regular(chain)
    assert found is not None
    assert found.period <= len(pattern)


@given(st.permutations(range(48)))
def test_a_chain_without_a_repeated_id_is_never_regular(chain: list[int]) -> None:
    assert regular(chain) is None
