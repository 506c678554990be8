"""The attention kernel: softmax attention as float64 computes it, and bits that only the visible positions decide."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracle.kolibri1.kernels import attention


def attend(
    q: np.ndarray, keys: np.ndarray, values: np.ndarray, first: list[int] | np.ndarray, last: list[int] | np.ndarray
) -> np.ndarray:
    out = np.full(q.shape, np.nan, np.float32)
    attention.attend(q, keys, values, np.asarray(first, np.int64), np.asarray(last, np.int64), out)
    return out


def exactly(
    q: np.ndarray, keys: np.ndarray, values: np.ndarray, first: list[int] | np.ndarray, last: list[int] | np.ndarray
) -> np.ndarray:
    """The same in float64, one token and head at a time."""
    out = np.empty(q.shape)
    group = q.shape[1] // len(keys)
    for token, head in np.ndindex(*q.shape[:2]):
        seen = slice(first[token], last[token] + 1)
        scores = keys[head // group, seen].astype(np.float64) @ q[token, head] / np.sqrt(q.shape[2])
        odds = np.exp(scores - scores.max())
        out[token, head] = odds / odds.sum() @ values[head // group, seen]
    return out


def operands(seed: int, tokens: int, heads: int, group: int, width: int, positions: int) -> tuple[np.ndarray, ...]:
    """q [T, A, D], keys and values [K, n, D], normal like normed heads."""
    rng = np.random.default_rng(seed)
    shapes = (tokens, heads * group, width), (heads, positions, width), (heads, positions, width)
    return tuple(rng.normal(0, 1, shape).astype(np.float32) for shape in shapes)


@settings(max_examples=40, deadline=None)
@given(
    heads=st.integers(1, 3),
    group=st.integers(1, 7),
    width=st.sampled_from([32, 64, 96, 128, 160]),
    positions=st.one_of(st.integers(1, 40), st.sampled_from([127, 128, 129, 300])),
    tokens=st.integers(1, 3),
    seed=st.integers(0, 2**32 - 1),
)
def test_attention_is_what_float64_gives(heads: int, group: int, width: int, positions: int, tokens: int, seed: int) -> None:
    q, keys, values = operands(seed, tokens, heads, group, width, positions)
    rng = np.random.default_rng(seed)
    last = rng.integers(0, positions, tokens)
    first = rng.integers(0, last + 1)
    assert np.abs(attend(q, keys, values, first, last) - exactly(q, keys, values, first, last)).max() < 2e-6  # measured: 6.2e-7


def test_one_visible_position_gives_its_value_to_the_bit() -> None:
    q, keys, values = operands(0, 2, 2, 3, 64, 5)
    got = attend(q, keys, values, [1, 4], [1, 4])
    assert np.array_equal(got, np.stack([values[:, 1].repeat(3, 0), values[:, 4].repeat(3, 0)]))


@pytest.mark.parametrize("size", [1e3, 1e18])
def test_scores_of_any_size_neither_overflow_nor_vanish(size: float) -> None:
    q, keys, values = operands(1, 2, 1, 3, 64, 200)
    q *= np.float32(size)
    got = attend(q, keys, values, [0, 0], [199, 150])
    assert np.isfinite(got).all()
    assert np.abs(got - exactly(q, keys, values, [0, 0], [199, 150])).max() < 1e-3


@settings(max_examples=40, deadline=None)
@given(
    before=st.integers(0, 150),
    after=st.integers(0, 30),
    visible=st.integers(1, 140),
    spare=st.integers(0, 70),
    group=st.integers(1, 5),
    seed=st.integers(0, 2**32 - 1),
)
def test_what_lies_around_the_visible_positions_changes_no_bit(
    before: int, after: int, visible: int, spare: int, group: int, seed: int
) -> None:
    """The same window alone, and inside a longer cache with spare room between heads, beside other tokens."""
    q, keys, values = operands(seed, 3, 2, group, 64, visible)
    alone = attend(q[1:2], keys, values, [0], [visible - 1])
    wide = np.full((2, 2, before + visible + after + spare, 64), np.nan, np.float32)
    wide[:, :, before : before + visible] = keys, values
    inside = wide[:, :, : before + visible + after]
    wide[:, :, :before], wide[:, :, before + visible :] = 1e30, 1e30
    first, last = [before, before, before], [before, before + visible - 1, before + visible // 2]
    together = attend(q, inside[0], inside[1], first, last)
    assert np.array_equal(together[1:2].view(np.int32), alone.view(np.int32))
    assert np.abs(together).max() < 1e3


def test_a_position_more_or_less_is_seen() -> None:
    q, keys, values = operands(2, 1, 1, 3, 128, 513)
    whole = attend(q, keys, values, [0], [512])
    assert np.abs(attend(q, keys, values, [1], [512]) - whole).max() > 1e-4
    assert np.abs(attend(q, keys, values, [0], [511]) - whole).max() > 1e-4
