"""The judge's own dequantization, and a bounded store of its results. Free of torch, and of what subjects compute with.

`W[o, i] = fp32(q[o, i]) * scale[o // rows, i // columns]` in fp32, then one rounding to nearest, ties to even, where the
computing type is bf16. Despite its name `weight_scale_inv` multiplies (transformers, vLLM and the vendor's plugin agree).
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
from ml_dtypes import bfloat16, float8_e4m3fn

from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.inventory import SCALE_SUFFIX
from oracle.subjects.operands import OperandDtype
from oracle.subjects.protocol import Bytes

_KEPT_BYTES = 1 << 28
"""Holds all of the mini's weights, and some 30 of the release's experts."""


def dequantize(checkpoint: Checkpoint, name: str, dtype: OperandDtype) -> Bytes:
    """An fp8 weight as it must be computed with: uint8 [bytes], row-major and little-endian."""
    rows, columns = checkpoint.spec(name).shape
    grid_rows, grid_columns = checkpoint.spec(name + SCALE_SUFFIX).shape
    scales = checkpoint.raw(name + SCALE_SUFFIX).view("<f4").reshape(grid_rows, 1, grid_columns, 1)
    values = checkpoint.raw(name).view(float8_e4m3fn).astype(np.float32)
    products = values.reshape(grid_rows, rows // grid_rows, grid_columns, columns // grid_columns) * scales
    rounded = products.astype(bfloat16) if dtype == "BF16" else products
    return rounded.reshape(-1).view(np.uint8)


class DequantizedWeights:
    """Weights by name and type, dequantized when first asked for; the least recently used make room."""

    def __init__(self, checkpoint: Checkpoint, kept_bytes: int = _KEPT_BYTES) -> None:
        self.checkpoint = checkpoint
        self._kept_bytes = kept_bytes
        self._weights: OrderedDict[tuple[str, OperandDtype], Bytes] = OrderedDict()
        self._nbytes = 0

    def bytes(self, name: str, dtype: OperandDtype) -> Bytes:
        """As `dequantize`, read-only."""
        key = (name, dtype)
        if key in self._weights:
            self._weights.move_to_end(key)
            return self._weights[key]
        weight = dequantize(self.checkpoint, name, dtype)
        weight.setflags(write=False)
        self._weights[key] = weight
        self._nbytes += weight.nbytes
        while self._nbytes > self._kept_bytes and len(self._weights) > 1:
            self._nbytes -= self._weights.popitem(last=False)[1].nbytes
        return weight
