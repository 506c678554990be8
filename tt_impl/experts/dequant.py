"""Dequantization on the host: e4m3fn bytes times one fp32 scale per block.

`W[o, i] = fp32(q[o, i]) * scale[o // rows, i // columns]`, rounded once to the computing dtype (facts section 4: despite
its name, `weight_scale_inv` multiplies). A block has one scale and a byte has 256 values, so the products are worked out
once per block and byte, and the matrix is looked up.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tt_impl.device.protocol import Bytes, DType, HostArray


def decode_e4m3fn(code: int) -> float:
    """The value of one e4m3fn byte: sign, 4 exponent bits with bias 7, 3 mantissa bits; no infinity, NaN is S.1111.111."""
    sign = -1.0 if code & 0x80 else 1.0
    exponent, mantissa = code >> 3 & 0xF, code & 0x7
    if exponent == 0xF and mantissa == 0x7:
        return float("nan")
    if exponent == 0:
        return sign * mantissa * 2.0**-9
    return sign * (8 + mantissa) * 2.0 ** (exponent - 10)


E4M3FN_VALUES: npt.NDArray[np.float32] = np.array([decode_e4m3fn(code) for code in range(256)], np.float32)


def dequantize(quantized: Bytes, scales: npt.NDArray[np.float32], dtype: DType) -> HostArray:
    """A weight in the computing dtype.

    Args:
        quantized: uint8 [out, in].
        scales: float32 [out / block rows, in / block columns].
        dtype: BFLOAT16 (float32 product, rounded to nearest even) or FLOAT32 (the product).

    Returns:
        [out, in] of `dtype.host`.
    """
    rows, columns = quantized.shape
    row_blocks, column_blocks = scales.shape
    products = (E4M3FN_VALUES * scales.reshape(-1, 1)).astype(dtype.host, copy=False)
    tables = products.view(f"u{dtype.item_bytes}").reshape(row_blocks, 256 * column_blocks)
    first = np.arange(0, tables.shape[1], 256, dtype=np.uint16 if tables.shape[1] <= 1 << 16 else np.uint32)[:, None]
    shape = (row_blocks, rows // row_blocks, column_blocks, columns // column_blocks)
    out = np.empty(shape, tables.dtype)
    for table, codes, into in zip(tables, quantized.reshape(shape), out, strict=True):  # a row of blocks fits a core's cache
        table.take(codes + first, out=into, mode="clip")  # nothing is out of range; other modes go through a buffer
    return out.reshape(rows, columns).view(products.dtype)
