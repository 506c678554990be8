"""What the ops compute, on float32 arrays, each with its rounding.

Operands are exact float32 images of what DRAM holds. Accumulation is float32 throughout. The result is rounded once to the
output tensor's dtype when it is stored (`rounded`); where an op rounds in between, it says so. Sums go through `einsum`
without BLAS: its order of additions depends neither on the number of threads nor on how many rows are computed together.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from ml_dtypes import bfloat16

from tt_impl.device.protocol import DType

Float32 = npt.NDArray[np.float32]
_ONE = np.float32(1)
_EXP_LIMIT = np.float32(88)


def rounded(values: Float32, dtype: DType) -> Float32:
    """`values` rounded to nearest, ties to even, on the grid of `dtype` (BFLOAT16, or FLOAT32: unchanged)."""
    return values.astype(bfloat16).astype(np.float32) if dtype is DType.BFLOAT16 else values


def rms_norm(x: Float32, weight: Float32, epsilon: float, dtype: DType) -> Float32:
    """w * dt(x * rsqrt(mean(x^2) + eps)) per row (facts section 5).

    Mean of squares, root and quotient in float32; the normalized value is rounded to `dtype`, then the product at store.
    """
    mean = np.einsum("ri,ri->r", x, x) / np.float32(x.shape[1])
    scale = _ONE / np.sqrt(mean + np.float32(epsilon))
    return weight * rounded(x * scale[:, None], dtype)


def linear(x: Float32, weight: Float32) -> Float32:
    """x [R, in] . weight [out, in]^T: float32 products and sums, rounded at store only. Rows are independent."""
    if x.shape[0] == 1:
        return np.einsum("oi,i->o", weight, x[0])[None]
    return np.stack([np.einsum("oi,i->o", weight, row) for row in x])


def matmul(a: Float32, b: Float32) -> Float32:
    """a [R, K] . b [K, C]: float32 products, summed in float32 over rising K, rounded at store only."""
    out = a[:, :1] * b[0]
    for k in range(1, b.shape[0]):
        out += a[:, k : k + 1] * b[k]
    return out


def swiglu(x: Float32, dtype: DType) -> Float32:
    """x[:, :C] * dt(silu(x[:, C:])): SiLU in float32 and rounded to `dtype`, then the product at store (facts section 5).

    silu(x) = x / (1 + exp(-x)); the exponent is held at 88, below float32's overflow, where silu is under 1e-35 anyway.
    """
    half = x.shape[1] // 2
    gate = x[:, half:]
    return x[:, :half] * rounded(gate / (_ONE + np.exp(np.minimum(-gate, _EXP_LIMIT))), dtype)


def rotary_embedding(x: Float32, cos: Float32, sin: Float32, dtype: DType) -> Float32:
    """NeoX: x * cos + cat(-x2, x1) * sin. Both products rounded to `dtype`, then the sum at store (facts section 5)."""
    half = x.shape[1] // 2
    turned = np.concatenate((-x[:, half:], x[:, :half]), axis=1)
    return rounded(x * cos, dtype) + rounded(turned * sin, dtype)


def attention(q: Float32, k: Float32, v: Float32, scale: float) -> Float32:
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
    out = np.einsum("gat,gtd->gad", scores, v)
    return (out / total[..., None]).reshape(heads, width)
