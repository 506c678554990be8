"""The rows that a ROW_MAJOR tensor lies in on a card, which are its pages.

Pages are dealt out over the DRAM banks, and every bank sets aside as much as the fullest one: one row of 4 MB would take 4 MB
of each of eight banks. So a vector is held in rows of a few KiB, and a norm's weight in rows of 32, as ttnn's norm wants it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from tt_impl.device.protocol import TILE_SIDE, DType

DRAM_BANKS, DRAM_ALIGNMENT = 8, 64
"""Of a P150's DRAM: its banks, and what each page's size is rounded up to there (`Buffer.aligned_page_size`)."""

_PAGE_UNIT = 16
"""Bytes; a page of a vector is a multiple of it: whole over PCIe and the NoC."""

_VECTOR_PAGES = (2 << 10, 32 << 10)
"""Bytes of a vector's page, from and to: a bfloat16 tile's at least, since small pages move slowly."""

_FLOATS = (DType.BFLOAT16, DType.FLOAT32)


def row_major_shape(shape: Sequence[int], dtype: DType) -> tuple[int, ...]:
    """The shape in which a ROW_MAJOR tensor of `shape` lies; its last dimension is a page."""
    shape = tuple(shape)
    if len(shape) == 1:
        width = _vector_row(shape[0], dtype.item_bytes)
        return (shape[0] // width, width)
    if len(shape) == 2 and shape[0] == 1 and dtype in _FLOATS and shape[1] % TILE_SIDE == 0:
        return (1, 1, shape[1] // TILE_SIDE, TILE_SIDE)
    return shape


@lru_cache(maxsize=256)
def _vector_row(length: int, item_bytes: int) -> int:
    """Elements of a vector's page: the size that takes the least of the banks, the largest of equals; else all of it."""
    units, rest = divmod(length * item_bytes, _PAGE_UNIT)
    smallest, largest = (size // _PAGE_UNIT for size in _VECTOR_PAGES)
    sizes = [size for size in range(smallest, largest + 1) if not rest and units % size == 0]

    def taken(size: int) -> int:
        return -(-(units // size) // DRAM_BANKS) * -(-size * _PAGE_UNIT // DRAM_ALIGNMENT)

    if not sizes:
        return length
    return min(sizes, key=lambda size: (taken(size), -size)) * _PAGE_UNIT // item_bytes
