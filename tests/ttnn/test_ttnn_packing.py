"""ttnn's own host tensors against the simulated card's packing, bit for bit: no device, but the mock one for its layouts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from ml_dtypes import bfloat16

from tt_impl.device.protocol import DType, HostArray, Layout
from tt_impl.device.sim.layout import pack, packed_bytes, unpack
from tt_impl.device.ttnn.device import TtnnDevice
from tt_impl.device.ttnn.held import host_tensor, packed_host_bytes

RM, TILE = Layout.ROW_MAJOR, Layout.TILE
CASES = [
    (dtype, layout)
    for dtype in DType
    for layout in Layout
    if (dtype, layout) not in {(DType.FP8_E4M3, TILE), (DType.BFLOAT8_B, RM)}
]

shapes = st.lists(st.integers(1, 3), max_size=2).flatmap(
    lambda outer: st.tuples(st.integers(1, 70), st.integers(1, 70)).map(lambda matrix: (*outer, *matrix))
)


def random_bits(shape: tuple[int, ...], dtype: DType, seed: int) -> HostArray:
    """Any bits of the type but NaNs of bfloat16, which ttnn makes one, and what bfloat8_b cannot hold."""
    rng = np.random.default_rng(seed)
    if dtype is DType.BFLOAT8_B:
        return (rng.standard_normal(shape) * 2.0 ** rng.integers(-20, 20, shape)).astype(np.float32)
    bits = rng.integers(0, 256, (*shape, dtype.item_bytes), dtype=np.uint8).view(dtype.host)[..., 0]
    return np.where(np.isnan(bits.astype(np.float32)), bits.dtype.type(1), bits) if dtype is DType.BFLOAT16 else bits


@pytest.mark.parametrize(("dtype", "layout"), CASES, ids=lambda value: value.name)
@settings(max_examples=60, deadline=None)
@given(shape=shapes, seed=st.integers(0, 2**32 - 1))
def test_a_packed_host_tensor_is_the_simulated_cards_bytes(
    ttnn: Any, dtype: DType, layout: Layout, shape: tuple[int, ...], seed: int
) -> None:
    array = random_bits(shape, dtype, seed)
    theirs = packed_host_bytes(ttnn, host_tensor(ttnn, array, dtype, layout))
    assert theirs.size == packed_bytes(shape, dtype, layout)
    np.testing.assert_array_equal(theirs, pack(array, layout, dtype))
    if dtype is not DType.BFLOAT8_B:
        np.testing.assert_array_equal(unpack(np.array(theirs), shape, dtype, layout).view(np.uint8), array.view(np.uint8))


def test_every_bfloat16_arrives_with_its_bits_and_every_nan_as_one(ttnn: Any) -> None:
    every = np.arange(1 << 16, dtype=np.uint16)
    packed = packed_host_bytes(ttnn, host_tensor(ttnn, every.view(bfloat16).reshape(256, 256), DType.BFLOAT16, RM))
    found, nan = packed.view(np.uint16), np.isnan(every.view(bfloat16).astype(np.float32))
    np.testing.assert_array_equal(found[~nan], every[~nan])
    assert set(found[nan].tolist()) == {0x7FC0}


def test_every_fp8_byte_arrives_as_it_is(ttnn: Any) -> None:
    """Subnormals and NaNs too: ttnn's own conversions flush the first."""
    every = np.arange(256, dtype=np.uint8).reshape(2, 128)
    packed = packed_host_bytes(ttnn, host_tensor(ttnn, every, DType.FP8_E4M3, RM))
    np.testing.assert_array_equal(packed, every.reshape(-1))


def test_an_array_that_is_read_only_or_strided_is_copied(ttnn: Any) -> None:
    array = np.arange(64, dtype=np.uint8).reshape(8, 8).T
    array.setflags(write=False)
    packed = packed_host_bytes(ttnn, host_tensor(ttnn, array, DType.UINT8, RM))
    np.testing.assert_array_equal(packed, array.reshape(-1))
    assert not np.shares_memory(packed, array)


@given(values=arrays(np.float32, (32, 48), elements=st.floats(width=32, allow_nan=False, allow_infinity=False)))
@settings(max_examples=60, deadline=None)
def test_shared_exponents_are_ttnns_for_any_finite_values(ttnn: Any, values: HostArray) -> None:
    theirs = packed_host_bytes(ttnn, host_tensor(ttnn, values, DType.BFLOAT8_B, TILE))
    np.testing.assert_array_equal(theirs, pack(values, TILE, DType.BFLOAT8_B))


@pytest.mark.parametrize(
    ("length", "more"), [(1, 64), (63, 64), (64, 1), (2048, 1), (196_656, 1.12), (3_933_120, 1.005), (4_096_000, 1.03)]
)
def test_a_vector_lies_in_even_pages_and_keeps_its_bytes(device: TtnnDevice, length: int, more: float) -> None:
    """An expert's slot above all, the mini's and the release's: as one row it would take its size of each of eight banks."""
    vector = np.random.default_rng(length).integers(0, 256, length, dtype=np.uint8)
    tensor = device.allocate_tensor_on_device(vector.shape, DType.UINT8, RM, "vector")
    taken = device.get_memory_view().allocated_bytes
    assert taken <= max(length * more, 8 * 2048), f"{length} bytes take {taken} of the banks"
    packed = packed_host_bytes(device.ttnn, host_tensor(device.ttnn, vector, DType.UINT8, RM))
    np.testing.assert_array_equal(packed, vector)
    assert tensor.shape == (length,)
