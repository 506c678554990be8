"""The dot product as `oracle/kolibri1/kernels/vector.py` documents it, in numpy; and products by the kernels, to compare."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from oracle.kolibri1.kernels.products import JOB_FIELDS, run_jobs


def fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """float32 a * b + c, rounded once.

    The product is exact in float64. The sum is rounded to odd there (its last bit set where it is not exact), so that the
    second rounding, to float32, sees on which side of a tie it lies. Source: Boldo and Melquiond, "Emulation of FMA and
    correctly rounded sums: proved algorithms using rounding to odd", 2008.
    """
    product, addend = a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)
    total = product + addend
    part = total - product
    lost = (product - (total - part)) + (addend - part)
    even = total.view(np.int64) & 1 == 0
    to_odd = np.nextafter(total, np.where(lost > 0, np.inf, -np.inf))
    return np.where((lost != 0) & even, to_odd, total).astype(np.float32)


def dot(weights: np.ndarray, inputs: np.ndarray) -> np.ndarray:
    """float32 weights [R, K] and inputs [T, K] to [T, R], every addition where the documentation puts it."""
    even = np.zeros((len(inputs), len(weights), 16), np.float32)
    odd = even.copy()
    for start in range(0, weights.shape[1], 32):
        w, x = weights[None, :, start : start + 32], inputs[:, None, start : start + 32]
        even = fma(w[..., 0::2], x[..., 0::2], even)
        odd = fma(w[..., 1::2], x[..., 1::2], odd)
    lanes = even + odd
    for width in (8, 4, 2, 1):
        lanes = lanes[..., :width] + lanes[..., width:]
    return lanes[..., 0]


def packed(inputs: np.ndarray) -> np.ndarray:
    """[T, K] as the kernels take them: of every 32 the even-numbered 16, then the odd-numbered."""
    groups = inputs.reshape(len(inputs), -1, 32)
    return np.ascontiguousarray(np.concatenate([groups[..., 0::2], groups[..., 1::2]], -1).reshape(inputs.shape))


def fp8_values(codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """float32 weights of e4m3 codes [R, K] and a grid of scales that divides them: fp32(q) * scale, rounded once."""
    grid = np.kron(scales, np.ones((codes.shape[0] // scales.shape[0], codes.shape[1] // scales.shape[1]), np.float32))
    return codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32) * grid


def fp8_product(codes: np.ndarray, scales: np.ndarray, inputs: np.ndarray) -> np.ndarray:
    """[T, R] by the kernels: uint8 codes [R, K], a grid of float32 scales that divides them, float32 inputs [T, K]."""
    blocks = scales.shape[1]
    geometry = {"block_rows": len(codes) // len(scales), "blocks": blocks, "groups": codes.shape[1] // blocks // 32}
    return _product(inputs, fp8=1, w=codes, scales=scales, **geometry)


def bf16_product(words: np.ndarray, inputs: np.ndarray) -> np.ndarray:
    """[T, R] by the kernels: uint16 words [R, K], float32 inputs [T, K]."""
    return _product(inputs, fp8=0, w=words, scales=None, block_rows=1, blocks=1, groups=words.shape[1] // 32)


def _product(inputs: np.ndarray, *, w: np.ndarray, scales: np.ndarray | None, **fields: int) -> np.ndarray:
    x, out = packed(inputs), np.full((len(inputs), len(w)), np.nan, np.float32)
    addresses: dict[str, Any] = {
        "w": w.ctypes.data,
        "w_stride": w.strides[0],
        "scales": 0 if scales is None else scales.ctypes.data,
        "scales_stride": 0 if scales is None else scales.strides[0],
        "rows": len(w),
        "x": x.ctypes.data,
        "x_stride": x.strides[0],
        "tokens": len(x),
        "out": out.ctypes.data,
        "out_stride": out.strides[0],
    }
    run_jobs(np.array([[(fields | addresses)[name] for name in JOB_FIELDS]], dtype=np.int64))
    return out
