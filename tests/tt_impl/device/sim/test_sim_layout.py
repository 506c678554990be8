"""Packing puts every element where the layout's definition says, and unpacking finds it again."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tt_impl.device.protocol import DType, Layout
from tt_impl.device.sim.layout import pack, packed_bytes, unpack

DTYPES = [DType.BFLOAT16, DType.FLOAT32, DType.UINT32, DType.UINT16, DType.INT32, DType.UINT8]
SHAPES = st.lists(st.integers(1, 3), max_size=2).flatmap(
    lambda lead: st.tuples(st.integers(1, 70), st.integers(1, 70)).map(lambda last: (*lead, *last))
)


def distinct(shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    raw = np.random.default_rng(1).integers(0, 256, (*shape, dtype.item_bytes), dtype=np.uint8)
    return raw.view(dtype.host)[..., 0]


def tile_offset(row: int, column: int, columns: int) -> int:
    """Where element (row, column) of a matrix lies, in elements, by the definition: tile, face, row in face, column in face."""
    tiles_per_row = -(-columns // 32)
    tile = (row // 32) * tiles_per_row + column // 32
    face = (row % 32 // 16) * 2 + column % 32 // 16
    return tile * 1024 + face * 256 + (row % 16) * 16 + column % 16


@given(SHAPES, st.sampled_from(DTYPES), st.sampled_from(list(Layout)))
def test_unpacking_undoes_packing_bit_for_bit(shape: tuple[int, ...], dtype: DType, layout: Layout) -> None:
    array = distinct(shape, dtype)
    packed = pack(array, layout)
    assert packed.size == packed_bytes(shape, dtype, layout)
    assert unpack(packed, shape, dtype, layout).tobytes() == array.tobytes()


@pytest.mark.parametrize("shape", [(1, 64), (1, 40), (12, 64), (16, 96), (17, 64), (33, 70), (64, 96)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_each_element_lies_in_its_tile_and_face(shape: tuple[int, int], dtype: DType) -> None:
    array = distinct(shape, dtype)
    stored = pack(array, Layout.TILE).view(dtype.host)
    for row in range(shape[0]):
        for column in range(shape[1]):
            assert stored[tile_offset(row, column, shape[1])].tobytes() == array[row, column].tobytes()


@given(SHAPES)
def test_tile_padding_is_zero(shape: tuple[int, ...]) -> None:
    ones = np.ones(shape, np.uint8)
    packed = pack(ones, Layout.TILE)
    assert packed.sum() == ones.size


def test_matrices_of_a_batch_follow_each_other() -> None:
    array = distinct((2, 3, 32, 64), DType.BFLOAT16)
    whole = pack(array, Layout.TILE)
    parts = [pack(array[i, j], Layout.TILE) for i in range(2) for j in range(3)]
    assert whole.tobytes() == b"".join(part.tobytes() for part in parts)
