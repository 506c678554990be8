"""Rows of a paged cache where they lie: one position of some blocks, in the packed bytes of a tiled tensor.

A face row's 16 elements lie together in every dtype, and in BFLOAT8_B they share their exponent, which lies apart. So a
position is written without touching its neighbours, and rounding one never moves another's values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tt_impl.device.protocol import FACE_SIDE, TILE_SIDE, Bytes, DType, HostArray
from tt_impl.device.sim import block_float
from tt_impl.device.sim.layout import array_order, face_rows

Index = slice | npt.NDArray[np.int32]


class PagedRows:
    """A view of `data`, the packed TILE bytes of a tensor [matrices..., rows, width] with a width of whole tiles."""

    def __init__(self, data: Bytes, shape: Sequence[int], dtype: DType) -> None:
        self._dtype, self._width = dtype, shape[-1]
        self._parts: tuple[HostArray, ...]
        if dtype is DType.BFLOAT8_B:
            rows, columns = -(-shape[-2] // TILE_SIDE), shape[-1] // TILE_SIDE
            tiles = data.reshape(math.prod(shape[:-2]), rows, columns, block_float.TILE_BYTES)
            faces = (*tiles.shape[:3], 2, 2, FACE_SIDE)
            exponents, elements = np.split(tiles, [block_float.EXPONENTS], axis=-1)
            self._parts = (exponents.reshape(faces), elements.reshape(*faces, FACE_SIDE))
        else:
            self._parts = (face_rows(data, shape, dtype.item_bytes),)

    def read(self, row: int) -> tuple[HostArray, ...]:
        """Row `row` of each matrix, packed: for `write` into another tensor of the dtype."""
        return tuple(part[_place(row)] for part in self._parts)

    def write(self, matrices: slice, row: int, packed: tuple[HostArray, ...]) -> None:
        """Replace row `row` of the matrices."""
        for part, values in zip(self._parts, packed, strict=True):
            part[matrices][_place(row)] = values

    def pack(self, rows: npt.NDArray[np.float32]) -> tuple[HostArray, ...]:
        """float32 [matrices, width], one row of each, rounded as the dtype's packing does."""
        cut = (len(rows), self._width // TILE_SIDE, 2)
        if self._dtype is DType.BFLOAT8_B:
            return block_float.encode_rows(rows.reshape(*cut, FACE_SIDE))
        stored = np.ascontiguousarray(rows.astype(self._dtype.host, copy=False))
        return (stored.view(self._parts[0].dtype).reshape(cut),)

    def matrices(self, chosen: Index) -> npt.NDArray[np.float32]:
        """Whole matrices as float32 [matrices, padded rows, width]."""
        parts = [part[chosen] for part in self._parts]
        if self._dtype is DType.BFLOAT8_B:
            values = block_float.decode_rows(*parts).transpose(0, 1, 3, 5, 2, 4, 6)
        else:
            order = array_order(self._width)
            in_rows = parts[0].reshape(-1, order.size).take(order, axis=1, mode="clip").reshape(-1)
            values = in_rows.view(self._dtype.host).astype(np.float32)
        return values.reshape(len(parts[0]), -1, self._width)


def _place(row: int) -> tuple[slice | int, ...]:
    """Of a row among [matrix, tile row, tile column, face row, face column, 16]."""
    tile, row_in_tile = divmod(row, TILE_SIDE)
    face, row_in_face = divmod(row_in_tile, FACE_SIDE)
    whole = slice(None)
    return (whole, tile, whole, face, whole, row_in_face)
