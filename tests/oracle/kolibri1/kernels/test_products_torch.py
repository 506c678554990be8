"""The kernels' matrix products: weights decode exactly, and every addition is where the documentation puts it, bit for bit."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numba
import numpy as np
import pytest
from documented_order import bf16_product, dot, fma, fp8_product, fp8_values, packed
from hypothesis import given, settings
from hypothesis import strategies as st

from oracle.kolibri1.kernels import products

FINITE = np.array([code for code in range(256) if code & 0x7F != 0x7F], dtype=np.uint8)
"""The 254 codes that are no NaN."""


def codes_of(rng: np.random.Generator, rows: int, width: int) -> np.ndarray:
    return rng.choice(FINITE, (rows, width))


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype == np.float32 and np.array_equal(a.view(np.int32), b.view(np.int32))


def decoded(product: np.ndarray) -> np.ndarray:
    """The weights [R, K] behind products with the K unit vectors [K, R]: every other term adds a zero."""
    return np.ascontiguousarray(product.T)


scales = st.one_of(
    st.floats(2.0**-12, 2.0**-8, width=32),
    st.floats(2.0**-126, 2.0**100, width=32),
    st.sampled_from([2.0**-149, 2.0**-140 * 3, 2.0**-126, 1.0, float(np.float32(1 / 3)), float(np.float32(2.0**119))]),
)


@settings(max_examples=60, deadline=None)
@given(scale=scales, several=st.booleans())
def test_every_code_times_every_scale_is_one_float32_product(scale: float, several: bool) -> None:
    codes = np.resize(FINITE, (1, 256))
    grid = np.array([[scale]], dtype=np.float32)
    units = np.eye(256, dtype=np.float32)
    got = fp8_product(codes, grid, units) if several else np.concatenate([fp8_product(codes, grid, u[None]) for u in units])
    assert np.array_equal(decoded(got), fp8_values(codes, grid))
    assert len(np.unique(codes)) == 254


def test_every_finite_bf16_word_is_widened_exactly() -> None:
    words = np.arange(1 << 16, dtype=np.uint16)
    words[words & 0x7F80 == 0x7F80] = 0  # no infinities and NaNs: the checkpoint refuses them
    words = words.reshape(-1, 64)
    units = np.eye(64, dtype=np.float32)
    expected = words.view(ml_dtypes.bfloat16).astype(np.float32)
    assert np.array_equal(decoded(bf16_product(words, units)), expected)
    assert np.array_equal(decoded(np.concatenate([bf16_product(words, unit[None]) for unit in units])), expected)


floats = st.floats(-(2.0**60), 2.0**60, width=32)


@given(floats, floats, st.one_of(floats, st.none()))
def test_the_models_fused_multiply_add_rounds_the_exact_sum_once(a: float, b: float, c: float | None) -> None:
    c = float(np.float32(-a * b)) if c is None else c  # cancellation: all that is left is what rounding would lose
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    got = np.float32(fma(*(np.array([v], np.float32) for v in (a, b, c)))[0])
    below, above = (np.nextafter(got, np.float32(side)) for side in (-np.inf, np.inf))
    error = abs(Fraction(float(got)) - exact)
    for neighbour in (below, above):
        other = abs(Fraction(float(neighbour)) - exact)
        assert error < other or (error == other and got.view(np.int32) % 2 == 0)


def test_the_models_fused_multiply_add_is_not_two_roundings() -> None:
    """1 + 2^-24 + 2^-60 lies above a tie of float32, and on the tie once rounded to float64."""
    one = np.array([1.0], np.float32)
    small, factor = np.array([2.0**-12 + 2.0**-35], np.float32), np.array([2.0**-12], np.float32)
    assert fma(small, factor, one)[0] == np.float32(1 + 2.0**-23)
    assert fma(factor, factor, one)[0] == 1


shapes = {
    "rows": st.integers(1, 37),
    "groups": st.integers(1, 3),
    "blocks": st.integers(1, 3),
    "tokens": st.integers(1, 7),
    "seed": st.integers(0, 2**32 - 1),
}


@settings(max_examples=60, deadline=None)
@given(**shapes)
def test_fp8_products_add_in_the_documented_order(rows: int, groups: int, blocks: int, tokens: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    codes = codes_of(rng, rows, 32 * groups * blocks)
    block_rows = rng.choice([d for d in range(1, rows + 1) if rows % d == 0])
    grid = rng.uniform(1e-4, 1e-2, (rows // block_rows, blocks)).astype(np.float32)
    inputs = rng.normal(0, 1, (tokens, codes.shape[1])).astype(np.float32)
    assert same_bits(fp8_product(codes, grid, inputs), dot(fp8_values(codes, grid), inputs))


@settings(max_examples=60, deadline=None)
@given(**shapes)
def test_bf16_products_add_in_the_documented_order(rows: int, groups: int, blocks: int, tokens: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    weights = rng.normal(0, 1, (rows, 32 * groups * blocks)).astype(ml_dtypes.bfloat16)
    inputs = rng.normal(0, 1, (tokens, weights.shape[1])).astype(np.float32)
    assert same_bits(bf16_product(weights.view(np.uint16), inputs), dot(weights.astype(np.float32), inputs))


def test_another_order_has_other_bits_so_the_comparison_can_fail() -> None:
    rng = np.random.default_rng(0)
    weights = rng.normal(0, 1, (8, 256)).astype(ml_dtypes.bfloat16)
    inputs = rng.normal(0, 1, (4, 256)).astype(np.float32)
    got, wide = bf16_product(weights.view(np.uint16), inputs), weights.astype(np.float32)
    assert not same_bits(got, inputs @ wide.T)
    assert not same_bits(got, dot(wide[:, ::-1], inputs[:, ::-1]))
    plain = np.zeros((4, 8, 32), np.float32)
    for start in range(0, 256, 32):  # without fused multiply-adds
        plain += wide[None, :, start : start + 32] * inputs[:, None, start : start + 32]
    lanes = plain[..., 0::2] + plain[..., 1::2]
    for width in (8, 4, 2, 1):
        lanes = lanes[..., :width] + lanes[..., width:]
    assert not same_bits(got, np.ascontiguousarray(lanes[..., 0]))


@pytest.mark.parametrize("offset", [1, 2, 3, 5])
def test_weights_and_scales_may_lie_at_any_address(offset: int) -> None:
    rng = np.random.default_rng(3)
    codes, grid = codes_of(rng, 20, 64), rng.uniform(1e-4, 1e-2, (2, 2)).astype(np.float32)
    words = rng.normal(0, 1, (20, 64)).astype(ml_dtypes.bfloat16).view(np.uint16)
    inputs = rng.normal(0, 1, (3, 64)).astype(np.float32)
    for tokens in (1, 3):
        x = inputs[:tokens]
        assert same_bits(fp8_product(moved(codes, offset), moved(grid, offset), x), fp8_product(codes, grid, x))
        assert same_bits(bf16_product(moved(words, offset), x), bf16_product(words, x))


def moved(array: np.ndarray, offset: int) -> np.ndarray:
    """A copy whose address is `offset` bytes past a multiple of 64."""
    buffer = np.empty(array.nbytes + 128, np.uint8)
    start = -buffer.ctypes.data % 64 + offset
    copy = buffer[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[:] = array
    assert copy.ctypes.data % 64 == offset
    return copy


class Jobs:
    """bf16 jobs of unequal cost, (rows, groups, tokens) each, and the order's answer to each; outputs hold NaN before."""

    def __init__(self, shapes: list[tuple[int, int, int]]) -> None:
        rng = np.random.default_rng(4)
        self.outs, self.expected, self._kept = [], [], []
        table = []
        for rows, groups, tokens in shapes:
            weights = rng.normal(0, 1, (rows, 32 * groups)).astype(ml_dtypes.bfloat16)
            inputs = rng.normal(0, 1, (tokens, 32 * groups)).astype(np.float32)
            x, out = packed(inputs), np.full((tokens, rows), np.nan, np.float32)
            stored = (0, weights.ctypes.data, weights.strides[0], 0, 0, 1, 1, groups, rows)
            table.append((*stored, x.ctypes.data, x.strides[0], tokens, out.ctypes.data, out.strides[0]))
            self.outs.append(out)
            self.expected.append(dot(weights.astype(np.float32), inputs))
            self._kept.append((weights, x))
        self.table = np.array(table, dtype=np.int64)


@pytest.mark.parametrize("threads", [1, 2, 3, 7, 64])
def test_any_cut_among_threads_does_every_row_of_every_job_once(threads: int) -> None:
    jobs = Jobs([(5, 1, 1), (70, 3, 4), (16, 2, 1), (33, 1, 2)])
    panel = np.empty((products.PANEL, 96), np.float32)
    total = sum(panels * cost for panels, cost in map(products._cost, jobs.table))
    done = [np.zeros(out.shape, int) for out in jobs.outs]
    for thread in range(threads):
        for out in jobs.outs:
            out[:] = np.nan
        products._share(jobs.table, total * thread // threads, total * (thread + 1) // threads, panel)
        for count, out in zip(done, jobs.outs, strict=True):
            count += ~np.isnan(out)
    assert all((count == 1).all() for count in done)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 3), st.integers(1, 4)), min_size=1, max_size=5))
def test_two_threads_write_every_row_of_every_job(shapes: list[tuple[int, int, int]]) -> None:
    jobs, before = Jobs(shapes), numba.get_num_threads()
    try:
        numba.set_num_threads(2)
    except ValueError:
        pytest.skip("NOT TESTED: numba has one thread on this host, so work was not shared between threads")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(products, "PARALLEL_COST", 0)
        products.run_jobs(jobs.table)
    numba.set_num_threads(before)
    for out, expected in zip(jobs.outs, jobs.expected, strict=True):
        assert same_bits(out, expected)
