"""Each op in float64, the judge's own: true values, and how far a faithful device may be from them.

Shares no code with any subject. What a device may be off has three parts, all from arithmetic and none from a measurement:

- `noise`: rounding of sums and functions in float32, as one standard deviation. For a sum of K products, sqrt(K) u of the
  sum of their magnitudes (u = 2^-24): errors of K roundings add up like that, in any order, and exceed `SIGMAS` times it
  with a probability below 2e-8 (Higham and Mary, SIAM J. Sci. Comput. 41, 2019, theorem 2.4). exp, root and quotient
  count as 4 u together.
- `steps`: roundings to the activation dtype before the last one, each at most its unit roundoff (bf16 2^-8) of the value.
- half an ulp of the result's dtype, for the last one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from oracle.subjects.ops import HostArray

Float64 = npt.NDArray[np.float64]

SIGMAS = 6.0
_U32 = 2.0**-24
_FUNCTION = 4 * _U32
_UNIT_ROUNDOFF = {"bfloat16": 2.0**-8, "float32": 2.0**-24}
_STORED_BITS = {"bfloat16": 7, "float32": 23}
_LEAST_EXPONENT = -126


@dataclass(frozen=True)
class Exact:
    """A true result.

    Attributes:
        value: float64; NaN where nothing is specified. Or, with `equal`, the very array that must come out.
        noise, steps: as this module's docstring says; absolute.
        shared: all elements of a row have their noise in common, as from one root or one softmax; no mean over them lessens it.
        dtype: that the result must have.
    """

    value: HostArray
    dtype: str
    noise: Float64 | float = 0.0
    steps: Float64 | float = 0.0
    equal: bool = False
    shared: bool = False

    @property
    def unit(self) -> Float64:
        """What errors are told in: an ulp of the true value, and the noise and steps before the last rounding."""
        return ulp(np.abs(self.value), self.dtype) + self.noise + self.steps

    @property
    def limit(self) -> Float64:
        """How far from `value` each element may be."""
        before = SIGMAS * np.asarray(self.noise) + self.steps
        return before + ulp(np.abs(self.value) + before, self.dtype) / 2


def ulp(values: Float64, dtype: str) -> Float64:
    """The distance between neighbours in `dtype` at each of `values`."""
    exponent = np.where(values == 0, _LEAST_EXPONENT, np.maximum(np.frexp(values)[1] - 1, _LEAST_EXPONENT))
    return np.ldexp(1.0, exponent - _STORED_BITS[dtype])


def rms_norm(x: Float64, weight: Float64, epsilon: float, dtype: str) -> Exact:
    """w * x / sqrt(mean(x^2) + eps); the normalized value is rounded before the product. Half of the sum's error shows."""
    width = x.shape[-1]
    value = weight[0] * x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + epsilon)
    noise = (np.sqrt(width) * _U32 / 2 + _FUNCTION) * np.abs(value)
    return Exact(value, dtype, noise, _UNIT_ROUNDOFF[dtype] * np.abs(value), shared=True)


def product(a: Float64, b: Float64, dtype: str) -> Exact:
    """a [R, K] . b [K, C], summed in float32."""
    return Exact(a @ b, dtype, np.sqrt(a.shape[1]) * _U32 * (np.abs(a) @ np.abs(b)))


def elementwise(value: Float64, dtype: str) -> Exact:
    """A sum or product of two. ttnn states that its bf16 addition may be one ulp off, so half an ulp more than rounding."""
    return Exact(value, dtype, steps=_UNIT_ROUNDOFF[dtype] * np.abs(value))


def sigmoid(x: Float64, dtype: str) -> Exact:
    value = 1 / (1 + np.exp(-x))
    return Exact(value, dtype, _FUNCTION * value)


def silu(x: Float64, dtype: str) -> Exact:
    value = x / (1 + np.exp(-x))
    return Exact(value, dtype, _FUNCTION * np.abs(value))


def swiglu(x: Float64, dtype: str) -> Exact:
    """x[:, :C] * silu(x[:, C:]); SiLU is rounded before the product."""
    half = x.shape[1] // 2
    value = x[:, :half] * silu(x[:, half:], dtype).value
    return Exact(value, dtype, _FUNCTION * np.abs(value), _UNIT_ROUNDOFF[dtype] * np.abs(value))


def rotary_embedding(x: Float64, cos: Float64, sin: Float64, dtype: str) -> Exact:
    """NeoX: the two halves of a head turn against each other; both products are rounded before their sum."""
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    kept, turned = x * cos[:, None], np.concatenate((-second, first), axis=-1) * sin[:, None]
    return Exact(kept + turned, dtype, steps=_UNIT_ROUNDOFF[dtype] * (np.abs(kept) + np.abs(turned)))


def attention(q: Float64, keys: list[Float64], values: list[Float64], scale: float, window: int | None, dtype: str) -> Exact:
    """q [B, H, D] over each user's keys and values [G, T, D] of positions 0 to T - 1, its own the last; T = 0: skipped.

    An error d of a score changes a probability by the factor 1 + d, twice over: in the sum, and in what it is divided by.
    """
    _, heads, width = q.shape
    value = np.full(q.shape, np.nan)
    noise = np.zeros(q.shape)
    for user, (k, v) in enumerate(zip(keys, values, strict=True)):
        if not k.shape[1]:
            continue
        k, v = (rows if window is None else rows[:, -window:] for rows in (k, v))
        for head in range(heads):
            group = head // (heads // len(k))
            products = q[user, head] * k[group] * scale
            scores = products.sum(axis=1)
            weights = np.exp(scores - scores.max())
            weights /= weights.sum()
            value[user, head] = weights @ v[group]
            of_scores = np.sqrt(width) * np.abs(products).sum(axis=1).max()
            noise[user, head] = (2 * of_scores + 2 * np.sqrt(len(weights)) + 8) * _U32 * (weights @ np.abs(v[group]))
    return Exact(value, dtype, noise, shared=True)


def top_columns(x: Float64, k: int) -> npt.NDArray[np.int64]:
    """Columns of each row's k largest, falling; of equal ones the lowest first, a rule of ours."""
    return np.lexsort((np.broadcast_to(np.arange(x.shape[1]), x.shape), -x), axis=-1)[:, :k]
