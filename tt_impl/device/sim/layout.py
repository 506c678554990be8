"""Packing arrays into a tensor's bytes and back: row-major, and 32x32 tiles of four 16x16 faces.

A face's row, 16 elements, is the longest run that both layouts keep together; it is moved as one opaque item, so that one
rule serves every dtype. Packing moves bits and converts nothing, but for BFLOAT8_B, whose rounding `block_float` states.
Every layout is the one of ttnn's host code, bit for bit, padding included.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from tt_impl.device.pages import row_major_shape
from tt_impl.device.protocol import FACE_SIDE, TILE_SIDE, Bytes, DType, HostArray, Layout
from tt_impl.device.sim import block_float


def padded_shape(shape: Sequence[int], layout: Layout) -> tuple[int, ...]:
    """`shape` as stored: in TILE the last two dimensions rounded up to 32."""
    if layout is Layout.ROW_MAJOR:
        return tuple(shape)
    return (*shape[:-2], _up(shape[-2]), _up(shape[-1]))


@lru_cache(maxsize=4096)
def packed_bytes(shape: tuple[int, ...], dtype: DType, layout: Layout) -> int:
    """Bytes of a tensor's content as the device holds it, padding included."""
    elements = math.prod(padded_shape(shape, layout))
    if dtype is DType.BFLOAT8_B:
        return elements // block_float.ELEMENTS * block_float.TILE_BYTES
    return elements * dtype.item_bytes


@lru_cache(maxsize=4096)
def page_bytes(shape: tuple[int, ...], dtype: DType, layout: Layout) -> int:
    """Bytes of one page, the unit that goes to one DRAM bank: a tile, or in ROW_MAJOR a row (`pages`)."""
    if layout is Layout.TILE:
        return packed_bytes((TILE_SIDE, TILE_SIDE), dtype, layout)
    return row_major_shape(shape, dtype)[-1] * dtype.item_bytes


def pack(array: HostArray, layout: Layout, dtype: DType | None = None) -> Bytes:
    """The bytes of `array` (at least two dimensions in TILE) in `layout`, in memory of their own; padding is zero.

    `dtype` need only be given for BFLOAT8_B, whose values travel as float32.
    """
    size = math.prod(padded_shape(array.shape, layout)) * array.itemsize
    if dtype is DType.BFLOAT8_B:
        size = packed_bytes(array.shape, dtype, layout)
    out = np.empty(size, np.uint8)
    pack_into(out, array, layout, dtype)
    return out


def pack_into(out: Bytes, array: HostArray, layout: Layout, dtype: DType | None = None) -> None:
    """As `pack`, into `out`, a contiguous vector of exactly the packed size."""
    if dtype is DType.BFLOAT8_B:
        faces = pack(array, Layout.TILE).view(np.float32)
        block_float.encode_tiles(faces.reshape(-1, block_float.EXPONENTS, FACE_SIDE), out)
        return
    if layout is Layout.ROW_MAJOR:
        out[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return
    elements = few_rows(out, array.shape, array.dtype)
    if elements is not None:
        out.fill(0)
        elements[...] = array.reshape(elements.shape)
        return
    rows, columns = array.shape[-2:]
    if rows % TILE_SIDE or columns % TILE_SIDE:
        padded = np.zeros(padded_shape(array.shape, layout), array.dtype)
        padded[..., :rows, :columns] = array
        array = padded
    runs, order = f"V{FACE_SIDE * array.itemsize}", _packed_order(array.shape[-1])
    bands = np.ascontiguousarray(array).view(runs).reshape(-1, order.size)
    bands.take(order, axis=1, out=out.view(runs).reshape(bands.shape), mode="clip")  # other modes go through a buffer


def unpack(data: Bytes, shape: Sequence[int], dtype: DType, layout: Layout) -> HostArray:
    """The array of `shape` in packed `data`, in `dtype.host`; a view of `data` in ROW_MAJOR, a copy in TILE."""
    if dtype is DType.BFLOAT8_B:
        data, dtype = block_float.decode_tiles(data).reshape(-1).view(np.uint8), DType.FLOAT32
    numpy_dtype = dtype.host
    if layout is Layout.ROW_MAJOR:
        return data.view(numpy_dtype).reshape(shape)
    rows, columns = shape[-2:]
    if rows == 1 and len(shape) == 2:
        return _first_row(data, dtype.host).reshape(1, -1)[:, :columns]
    elements = few_rows(data, shape, numpy_dtype)
    if elements is not None:
        return elements.reshape(shape)
    order = array_order(_up(columns))
    bands = data.view(f"V{FACE_SIDE * dtype.item_bytes}").reshape(-1, order.size)
    whole = bands.take(order, axis=1, mode="clip").reshape(-1).view(numpy_dtype)
    return whole.reshape(padded_shape(shape, layout))[..., :rows, :columns]


def few_rows(data: Bytes, shape: Sequence[int], dtype: np.dtype[Any]) -> HostArray | None:
    """Packed TILE bytes as a view of all elements in the array's order, [matrices, rows, tile columns, 2, 16].

    None where they are no such view, since there are rows below the upper faces, or columns beside whole tiles.
    """
    rows, columns = shape[-2:]
    if rows > FACE_SIDE or columns % TILE_SIDE:
        return None
    faces = data.view(dtype).reshape(-1, columns // TILE_SIDE, 2, 2, FACE_SIDE, FACE_SIDE)
    return faces[:, :, 0, :, :rows].transpose(0, 3, 1, 2, 4)


def face_rows(data: Bytes, shape: Sequence[int], item_bytes: int) -> HostArray:
    """Packed TILE bytes as opaque face rows: [matrices, tile rows, tile columns, face row, face column, 16]."""
    rows, columns = (-(-n // TILE_SIDE) for n in shape[-2:])
    return data.view(f"V{FACE_SIDE * item_bytes}").reshape(-1, rows, columns, 2, 2, FACE_SIDE)


@lru_cache(maxsize=64)
def _packed_order(columns: int) -> npt.NDArray[np.intp]:
    """Of a row of tiles, `columns` wide: which face row of the array comes first when packed, which second, and so on."""
    in_array = np.arange(2 * columns).reshape(2, FACE_SIDE, columns // TILE_SIDE, 2)
    order = in_array.transpose(2, 0, 3, 1).reshape(-1)
    order.setflags(write=False)  # everybody is given this one
    return order


@lru_cache(maxsize=64)
def array_order(columns: int) -> npt.NDArray[np.intp]:
    """The inverse: which face row of a packed row of tiles comes first in the array, and so on."""
    order = np.argsort(_packed_order(columns))
    order.setflags(write=False)
    return order


def _first_row(data: Bytes, dtype: np.dtype[Any]) -> HostArray:
    """Row 0 of the packed tiles of one matrix of at most 32 rows, as a view [tile column, face column, 16]."""
    return data.view(dtype).reshape(-1, 2, 2, FACE_SIDE, FACE_SIDE)[:, 0, :, 0]


def _up(n: int) -> int:
    return (n + TILE_SIDE - 1) & -TILE_SIDE
