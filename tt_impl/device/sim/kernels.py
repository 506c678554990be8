"""What the ops compute, on float32 arrays, each with its rounding.

Operands are exact float32 images of what DRAM holds. Accumulation is float32 throughout. The result is rounded once to the
output tensor's dtype when it is stored (`rounded`); where an op rounds in between, it says so, and takes the rounding of the
card as an argument. Sums go through `einsum` without BLAS: its order of additions depends neither on the number of threads
nor on how many rows are computed together. Rows, and users, are independent: each one's bits are its bits alone.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from ml_dtypes import bfloat16

from tt_impl.device.protocol import DType

Float32 = npt.NDArray[np.float32]
Rounding = Callable[[Float32, DType], Float32]
_ONE = np.float32(1)
_EXP_LIMIT = np.float32(88)


def rounded(values: Float32, dtype: DType) -> Float32:
    """`values` rounded to nearest, ties to even, on the grid of `dtype` (BFLOAT16, or FLOAT32: unchanged)."""
    return values.astype(bfloat16).astype(np.float32) if dtype is DType.BFLOAT16 else values


def mean_of_squares(x: Float32) -> Float32:
    """Of each row of x [R, C], in float32: [R]."""
    return np.einsum("ri,ri->r", x, x) / np.float32(x.shape[1])


def rms_norm(
    x: Float32,
    weight: Float32,
    epsilon: float,
    dtype: DType,
    *,
    mean: Callable[[Float32], Float32] = mean_of_squares,
    rounding: Rounding = rounded,
) -> Float32:
    """w * dt(x * rsqrt(mean(x^2) + eps)) per row of x [R, C] (facts section 5).

    Mean of squares, root and quotient in float32; the normalized value is rounded to `dtype`, then the product at store.
    """
    scale: Float32 = np.divide(_ONE, np.sqrt(mean(x) + np.float32(epsilon)))
    return weight * rounding(x * scale[:, None], dtype)


def linear(x: Float32, weight: Float32) -> Float32:
    """x [R, in] . weight [out, in]^T: float32 products and sums, rounded at store only."""
    if x.shape[0] == 1:
        return np.einsum("oi,i->o", weight, x[0])[None]
    return np.stack([np.einsum("oi,i->o", weight, row) for row in x])


def matmul(a: Float32, b: Float32) -> Float32:
    """a [R, K] . b [K, C]: float32 products, summed in float32 over rising K, rounded at store only."""
    out = a[:, :1] * b[0]
    for k in range(1, b.shape[0]):
        out += a[:, k : k + 1] * b[k]
    return out


def sigmoid(x: Float32) -> Float32:
    """1 / (1 + exp(-x)) in float32; the exponent is held at 88, below float32's overflow: 6e-39 stands for all smaller."""
    return _ONE / (_ONE + np.exp(np.minimum(-x, _EXP_LIMIT)))


def silu(x: Float32) -> Float32:
    """x / (1 + exp(-x)) in float32; the exponent is held at 88, where silu is under 1e-35 anyway."""
    return x / (_ONE + np.exp(np.minimum(-x, _EXP_LIMIT)))


def swiglu(x: Float32, dtype: DType, *, rounding: Rounding = rounded) -> Float32:
    """x[:, :C] * dt(silu(x[:, C:])): SiLU in float32 and rounded to `dtype`, then the product at store (facts section 5)."""
    half = x.shape[1] // 2
    return x[:, :half] * rounding(silu(x[:, half:]), dtype)


def rotary_embedding(x: Float32, cos: Float32, sin: Float32, dtype: DType, *, rounding: Rounding = rounded) -> Float32:
    """NeoX: x * cos + cat(-x2, x1) * sin, over the last dimension. Both products rounded to `dtype`, then the sum at store
    (facts section 5)."""
    half = x.shape[-1] // 2
    turned = np.concatenate((-x[..., half:], x[..., :half]), axis=-1)
    return rounding(x * cos, dtype) + rounding(turned * sin, dtype)


def weighted_sum(weights: Float32, v: Float32) -> Float32:
    """weights [G, A, T] over v [G, T, D], in float32 -> [G, A, D]."""
    return np.einsum("gat,gtd->gad", weights, v)


def attention(
    q: Float32, k: Float32, v: Float32, scale: float, *, summed: Callable[[Float32, Float32], Float32] = weighted_sum
) -> Float32:
    """One query over its visible keys: q [H, D], k and v [G, T, D] -> [H, D].

    Scores, softmax (shifted by the maximum) and the weighted sum in float32; probabilities are not rounded; the result is
    rounded at store only.
    """
    heads, width = q.shape
    groups = k.shape[0]
    scores = np.einsum("gad,gtd->gat", q.reshape(groups, heads // groups, width), k) * np.float32(scale)
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    total = np.einsum("gat->ga", scores)
    return (summed(scores, v) / total[..., None]).reshape(heads, width)


def top_columns(x: Float32, k: int, *, highest: bool = False) -> npt.NDArray[np.intp]:
    """Columns of each row's k largest values, falling: [R, k]; of equal values the lowest column first, or the highest.

    NaN counts as smallest.
    """
    order = np.where(np.isnan(x), -np.inf, x)
    if highest:
        return x.shape[1] - 1 - np.argsort(-order[:, ::-1], axis=1, kind="stable")[:, :k]
    return np.argsort(-order, axis=1, kind="stable")[:, :k]
