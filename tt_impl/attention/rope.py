"""The NeoX RoPE tables that sliding layers turn queries and keys by, and a step's rows of them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tt_impl.device.protocol import Device, DType, HostArray, Tensor
from tt_impl.lifetimes import Scratch


class RopeTables(NamedTuple):
    """Rows of cos and sin: all positions' ROW_MAJOR [positions, head size], or one step's TILE [users, head size]."""

    cos: Tensor
    sin: Tensor

    def rows(self, device: Device, scratch: Scratch, positions: Tensor) -> RopeTables:
        """The rows of `positions`, UINT32 ROW_MAJOR [1, users]: looked up once a step, shared by all its layers."""
        return RopeTables(*(scratch.own(device.embedding(positions, table)) for table in self))


def rope_tables(positions: int, head_dim: int, theta: float, dtype: DType) -> tuple[HostArray, HostArray]:
    """cos and sin, each [positions, head_dim], both halves alike.

    Inverse frequencies theta^(-2j / head_dim) and angles in float32, then cast to `dtype` (facts section 5).
    """
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    inverse = np.float32(1) / np.power(np.float32(theta), exponents)
    angles = np.arange(positions, dtype=np.float32)[:, None] * inverse
    both = np.concatenate((angles, angles), axis=1)
    return np.cos(both).astype(dtype.host), np.sin(both).astype(dtype.host)
