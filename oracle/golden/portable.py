"""Arithmetic that gives the same bits on every machine: a stored run must be judged to the same document everywhere.

numpy's `exp` and `log` come from the C library or from a vector library, by the processor, and differ in the last bit; how
`quantile` interpolates is its version's matter. What is here is made of sums, products, divisions and powers of two alone,
one array operation each, which IEEE 754 rounds in one way only. A NaN gives NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]

_LN2_HIGH = float.fromhex("0x1.62e42fee00000p-1")
"""ln 2 to 33 bits, so that its product with an exponent is exact (as in fdlibm)."""
_LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
_EXP_TERMS = [1.0 / math.factorial(n) for n in range(13, -1, -1)]
_LOG_TERMS = [1.0 / n for n in range(23, 0, -2)]


def exp(values: npt.ArrayLike) -> Float64:
    """e to each of `values`, within 2 ULP; infinity beyond 709.8, 0 below -745.2, NaN of NaN."""
    x = np.asarray(values, dtype=np.float64)
    with np.errstate(over="ignore", under="ignore"):
        power = np.rint(np.clip(x, -800.0, 800.0) * (1.0 / math.log(2.0)))
        rest = (np.clip(x, -800.0, 800.0) - power * _LN2_HIGH) - power * _LN2_LOW
        return np.ldexp(_horner(_EXP_TERMS, rest), np.nan_to_num(power).astype(np.int32))


def log(values: npt.ArrayLike) -> Float64:
    """The natural logarithm of each of the positive `values`, within 2 ULP where it is not near 0, else within 1e-16."""
    fraction, power = np.frexp(np.asarray(values, dtype=np.float64))
    low = fraction < math.sqrt(0.5)
    fraction, power = np.where(low, 2.0 * fraction, fraction), power - low
    ratio = (fraction - 1.0) / (fraction + 1.0)  # log(f) = 2 artanh((f - 1) / (f + 1))
    return power * _LN2_HIGH + (power * _LN2_LOW + 2.0 * ratio * _horner(_LOG_TERMS, ratio * ratio))


def quantiles(values: npt.ArrayLike, shares: Sequence[float], *, upper: bool = False) -> Float64:
    """Quantiles along the first axis: [len(shares), ...]. NaN where a column holds one.

    Args:
        upper: take the value at or above each quantile's place, and not between two neighbours.

    Raises:
        ValueError: there are no values.
    """
    ordered = np.sort(np.asarray(values, dtype=np.float64), axis=0)
    if not len(ordered):
        raise ValueError("no values, so no quantiles")
    rows = []
    for share in shares:
        place = share * (len(ordered) - 1)
        low, high = math.floor(place), math.ceil(place)
        rows.append(ordered[high] if upper else ordered[low] + (ordered[high] - ordered[low]) * (place - low))
    return np.where(np.isnan(ordered[-1]), np.nan, np.stack(rows))


def _horner(terms: Sequence[float], x: Float64) -> Float64:
    total = np.full_like(x, terms[0])
    for term in terms[1:]:
        total = total * x + term
    return total
