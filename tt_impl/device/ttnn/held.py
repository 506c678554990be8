"""How a tensor of the protocol lies in ttnn: its shape there, its element type, its pages. Its packed bytes stay the same.

ttnn wants four dimensions where the protocol drops leading ones; norm weights in rows of 32; page tables and positions as
plain [B, n]. A row-major tensor's rows are its pages, dealt out over the DRAM banks, and every bank sets aside as much as the
fullest one: one row of 4 MB would take 4 MB of each of eight banks. So a vector is held in rows of a few KiB.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from tt_impl.device.protocol import TILE_SIDE, DType, HostArray, Layout

_BANKS, _ALIGNMENT = 8, 64
"""Of a P150's DRAM: its banks, and what each page's size is rounded up to there (`Buffer.aligned_page_size`)."""

_PAGE_UNIT = 16
"""Bytes; a page of a vector is a multiple of it: whole over PCIe and the NoC."""

_VECTOR_PAGES = (2 << 10, 32 << 10)
"""Bytes of a vector's page, from and to: a bfloat16 tile's at least, since small pages move slowly."""

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
    if dtype is DType.BFLOAT16:
        array = array.astype(np.float32)
    writable = np.require(array, requirements=["C", "W"])  # nanobind takes no read-only array, as a mapped checkpoint's is
    held = writable.reshape(held_shape(array.shape, dtype, layout))
    return ttnn.Tensor(held, ttnn_dtype(ttnn, dtype), layout=ttnn_layout(ttnn, layout))


def packed_host_bytes(ttnn: Any, tensor: Any) -> np.ndarray:
    """A host tensor's packed bytes, a read-only view: no value conversion, so fp8 subnormals and NaNs stay."""
    return np.from_dlpack(tensor.host_buffer().get_shard(ttnn.MeshCoordinate(0, 0)))


@lru_cache(maxsize=256)
def _vector_row(length: int, item_bytes: int) -> int:
    """Elements of a vector's page: the size that takes the least of the banks, the largest of equals; else all of it."""
    units, rest = divmod(length * item_bytes, _PAGE_UNIT)
    smallest, largest = (size // _PAGE_UNIT for size in _VECTOR_PAGES)
    sizes = [size for size in range(smallest, largest + 1) if not rest and units % size == 0]

    def taken(size: int) -> int:
        return -(-(units // size) // _BANKS) * -(-size * _PAGE_UNIT // _ALIGNMENT)

    if not sizes:
        return length
    return min(sizes, key=lambda size: (taken(size), -size)) * _PAGE_UNIT // item_bytes
