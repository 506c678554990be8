"""How a card with a quirk computes, in place of what `kernels` does. See `quirks.Quirks` for what each stands for."""

from __future__ import annotations

import numpy as np

from tt_impl.device.protocol import TILE_SIDE, DType
from tt_impl.device.sim.kernels import Float32, rounded

_PARTIAL_SUMS = 16
_HIGH_HALF = np.uint32(0xFFFF0000)


def truncated(values: Float32, dtype: DType) -> Float32:
    """`values` cut to the grid of BFLOAT16, toward zero; FLOAT32: unchanged."""
    if dtype is not DType.BFLOAT16:
        return values
    return (np.ascontiguousarray(values, np.float32).view(np.uint32) & _HIGH_HALF).view(np.float32)


def truncated_mean_of_squares(x: Float32) -> Float32:
    """16 partial sums of squares in float32, then added in pairs, each sum cut to bf16: four levels lose about 1 %."""
    parts = [np.einsum("ri,ri->r", part, part) for part in np.array_split(x, _PARTIAL_SUMS, axis=1)]
    while len(parts) > 1:
        pairs = zip(parts[::2], parts[1::2], strict=True)
        parts = [truncated(first + second, DType.BFLOAT16) for first, second in pairs]
    return parts[0] / np.float32(x.shape[1])


def weighted_sum_in_bf16(weights: Float32, v: Float32) -> Float32:
    """As `kernels.weighted_sum`, the running sum rounded to bf16 after every 32 positions."""
    total = np.zeros((*weights.shape[:2], v.shape[2]), np.float32)
    for start in range(0, v.shape[1], TILE_SIDE):
        part = slice(start, start + TILE_SIDE)
        total = rounded(total + np.einsum("gat,gtd->gad", weights[..., part], v[:, part]), DType.BFLOAT16)
    return total


def flushed(values: Float32) -> Float32:
    """Subnormal numbers of float32, which are bf16's too, turned into zeros of their sign."""
    return np.where(np.abs(values) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), values), values)
