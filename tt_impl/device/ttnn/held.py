"""How a tensor of the protocol lies in ttnn: its shape there, its element type, its pages. Its packed bytes stay the same.

ttnn wants four dimensions where the protocol drops leading ones; norm weights in rows of 32; page tables and positions as
plain [B, n]. A row-major tensor's rows are its pages, dealt out over the DRAM banks, and every bank sets aside as much as the
fullest one: one row of 4 MB would take 4 MB of each of eight banks. So a vector is held in rows of a few KiB.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tt_impl.device.protocol import TILE_SIDE, DType, HostArray, Layout

PAGE_ALIGNMENT = 64
"""Bytes; of a DRAM page on Blackhole (`Buffer.aligned_page_size`)."""

_VECTOR_PAGE = 2048
"""Bytes that a page of a vector has at least, as many as a bfloat16 tile: smaller ones move slowly, larger ones lie uneven."""

_FLOATS = (DType.BFLOAT16, DType.FLOAT32)
_NAMES = {DType.FP8_E4M3: "uint8"}
"""fp8 has no op on the device and its conversions lose subnormals: it is held as what it is here, raw bytes."""


def ttnn_dtype(ttnn: Any, dtype: DType) -> Any:
    return getattr(ttnn, _NAMES.get(dtype, dtype.label))


def ttnn_layout(ttnn: Any, layout: Layout) -> Any:
    return ttnn.TILE_LAYOUT if layout is Layout.TILE else ttnn.ROW_MAJOR_LAYOUT


def held_shape(shape: Sequence[int], dtype: DType, layout: Layout) -> tuple[int, ...]:
    """The shape in ttnn of a tensor that is written and read as `shape`."""
    shape = tuple(shape)
    if layout is Layout.TILE:
        return four_dimensions(shape)
    if len(shape) == 1:
        width = _vector_row(shape[0], 1 if dtype is DType.FP8_E4M3 else dtype.item_bytes)
        return (shape[0] // width, width)
    if len(shape) == 2 and shape[0] == 1 and dtype in _FLOATS and shape[1] % TILE_SIDE == 0:
        return (1, 1, shape[1] // TILE_SIDE, TILE_SIDE)
    return shape


def four_dimensions(shape: Sequence[int]) -> tuple[int, ...]:
    return (*(1,) * (4 - len(shape)), *shape)


def host_tensor(ttnn: Any, array: HostArray, dtype: DType, layout: Layout) -> Any:
    """A ttnn host tensor with exactly the array's bits, packed by ttnn; every bfloat16 NaN becomes 0x7FC0.

    Args:
        array: of `dtype.host`: ttnn ends the process where it is given float64, and takes no ml_dtypes.
    """
    held = np.ascontiguousarray(array).reshape(held_shape(array.shape, dtype, layout))
    if dtype is DType.BFLOAT16:
        held = held.astype(np.float32)
    return ttnn.Tensor(held, ttnn_dtype(ttnn, dtype), layout=ttnn_layout(ttnn, layout))


def packed_host_bytes(ttnn: Any, tensor: Any) -> np.ndarray:
    """A host tensor's packed bytes, a read-only view: no value conversion, so fp8 subnormals and NaNs stay."""
    return np.from_dlpack(tensor.host_buffer().get_shard(ttnn.MeshCoordinate(0, 0)))


def _vector_row(length: int, item_bytes: int) -> int:
    """Elements of a vector's page: its smallest aligned divisor of at least `_VECTOR_PAGE` bytes, or all of it."""
    nbytes = length * item_bytes
    if nbytes % PAGE_ALIGNMENT:
        return length
    units = nbytes // PAGE_ALIGNMENT
    divisors = (units // n for n in range(int(units * PAGE_ALIGNMENT / _VECTOR_PAGE), 0, -1) if units % n == 0)
    return next((unit * PAGE_ALIGNMENT // item_bytes for unit in divisors), length)
