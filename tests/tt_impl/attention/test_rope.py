"""RoPE tables against float64, position 0 unturned."""

from __future__ import annotations

import numpy as np

from tt_impl.attention.rope import rope_tables
from tt_impl.device.protocol import DType


def test_tables_are_cos_and_sin_of_position_times_inverse_frequency() -> None:
    cos, sin = rope_tables(600, 128, 10000.0, DType.FLOAT32)
    angles = np.arange(600)[:, None] * 10000.0 ** (-2 * np.arange(64) / 128)
    for found, expected in ((cos, np.cos(angles)), (sin, np.sin(angles))):
        assert np.abs(found - np.tile(expected, 2)).max() < 1e-4  # float32 angles: 600 * 2^-24 and a little
    assert (cos[0] == 1).all()
    assert (sin[0] == 0).all()


def test_bf16_tables_are_the_float32_ones_rounded() -> None:
    for exact, rounded in zip(
        rope_tables(70, 32, 10000.0, DType.FLOAT32), rope_tables(70, 32, 10000.0, DType.BFLOAT16), strict=True
    ):
        assert rounded.tobytes() == exact.astype(DType.BFLOAT16.host).tobytes()
