"""fp8 bytes become exactly fp32(q) * scale, rounded once."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tt_impl.device.protocol import DType
from tt_impl.experts.dequant import E4M3FN_VALUES, dequantize


def test_every_byte_decodes_as_ml_dtypes_decodes_it() -> None:
    expected = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    numbers = ~np.isnan(expected)
    assert E4M3FN_VALUES[numbers].tobytes() == expected[numbers].tobytes()  # signed zeros too
    assert np.isnan(E4M3FN_VALUES).nonzero()[0].tolist() == [0x7F, 0xFF]


@given(
    grid=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    block=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    dtype=st.sampled_from([DType.BFLOAT16, DType.FLOAT32]),
    seed=st.integers(0, 99),
)
def test_each_element_takes_its_blocks_scale(grid: tuple[int, int], block: tuple[int, int], dtype: DType, seed: int) -> None:
    rng = np.random.default_rng(seed)
    quantized = rng.integers(0, 127, (grid[0] * block[0], grid[1] * block[1]), dtype=np.uint8)
    quantized |= rng.integers(0, 2, quantized.shape, dtype=np.uint8) << 7
    scales = np.exp(rng.normal(-6, 2, grid)).astype(np.float32)
    values = quantized.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    expected = (values * np.kron(scales, np.ones(block, np.float32))).astype(dtype.host)
    found = dequantize(quantized, scales, dtype)
    assert found.dtype == dtype.host
    assert found.tobytes() == expected.tobytes()


def test_subnormal_codes_keep_their_value() -> None:
    found = dequantize(np.array([[0x01, 0x87]], np.uint8), np.ones((1, 1), np.float32), DType.FLOAT32)
    assert found.tolist() == [[2.0**-9, -7 * 2.0**-9]]


@pytest.mark.parametrize("scale", [0.1, 3e-5])
def test_bf16_is_rounded_from_the_fp32_product(scale: float) -> None:
    quantized = np.arange(0, 127, dtype=np.uint8)[None]
    exact = dequantize(quantized, np.full((1, 1), scale, np.float32), DType.FLOAT32)
    rounded = dequantize(quantized, np.full((1, 1), scale, np.float32), DType.BFLOAT16)
    assert rounded.tobytes() == exact.astype(ml_dtypes.bfloat16).tobytes()
    assert (rounded.astype(np.float32) != exact).any()
