"""The NeoX RoPE tables that sliding layers turn queries and keys by."""

from __future__ import annotations

import numpy as np

from tt_impl.device.protocol import DType, HostArray


def rope_tables(positions: int, head_dim: int, theta: float, dtype: DType) -> tuple[HostArray, HostArray]:
    """cos and sin, each [positions, head_dim], both halves alike.

    Inverse frequencies theta^(-2j / head_dim) and angles in float32, then cast to `dtype` (facts section 5).
    """
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    inverse = np.float32(1) / np.power(np.float32(theta), exponents)
    angles = np.arange(positions, dtype=np.float32)[:, None] * inverse
    both = np.concatenate((angles, angles), axis=1)
    return np.cos(both).astype(dtype.host), np.sin(both).astype(dtype.host)
