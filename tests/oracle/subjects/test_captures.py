"""Captured regions merged: nothing lost, nothing mixed, and the same whatever order they came in."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracle.subjects.captures import CapturedRegion, merged

REGIONS = st.lists(
    st.builds(
        CapturedRegion,
        calls=st.sampled_from(((("op.add", 1),), (("op.add", 2),), (("deallocate", 1), ("op.add", 1)))),
        replays=st.integers(0, 5),
        changed=st.sampled_from(((), ("a",), ("a", "b"))),
        experts=st.integers(0, 1),
        alike=st.integers(1, 3),
    ),
    max_size=8,
)


def counted(regions: list[CapturedRegion] | tuple[CapturedRegion, ...]) -> tuple[Counter, Counter]:
    """Regions and executions by what a region is."""
    alike: Counter = Counter()
    replays: Counter = Counter()
    for region in regions:
        key = (region.calls, region.changed, region.experts)
        alike[key] += region.alike
        replays[key] += region.replays
    return alike, +replays


@given(REGIONS, st.randoms())
def test_each_kind_stands_once_with_all_that_were_of_it_in_one_order(regions: list[CapturedRegion], chance: object) -> None:
    once = merged(regions)
    assert counted(once) == counted(regions)
    assert len({(r.calls, r.changed, r.experts) for r in once}) == len(once)
    chance.shuffle(regions)  # type: ignore[attr-defined]
    assert merged(regions) == once


@given(REGIONS, REGIONS)
def test_what_jobs_merged_is_merged_again(one: list[CapturedRegion], other: list[CapturedRegion]) -> None:
    assert merged((*merged(one), *merged(other))) == merged(one + other)


def test_names_are_sorted_and_counts_are_plain_numbers_whatever_a_subject_hands_over() -> None:
    shown = CapturedRegion([["op.mul", np.int64(2)], ("op.add", 1)], np.int32(4), ["b", "a"], np.int64(0))  # type: ignore[arg-type, list-item]
    [region] = merged([shown])
    assert region == CapturedRegion((("op.add", 1), ("op.mul", 2)), 4, ("a", "b"))
    assert {type(n) for n in (region.replays, region.experts, region.alike, *(n for _, n in region.calls))} == {int}


@pytest.mark.parametrize("field", ["replays", "experts", "alike"])
@pytest.mark.parametrize("value", [0.5, "1", None])
def test_what_is_no_whole_number_is_refused(field: str, value: object) -> None:
    with pytest.raises(TypeError):
        merged([replace(CapturedRegion((), 1), **{field: value})])  # type: ignore[arg-type]
