"""BFLOAT8_B is packed as ttnn's host code packs it: shared exponents, rounding, order of bytes, padding."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracle.errors import DeviceFault
from tt_impl.device.protocol import DType, Layout
from tt_impl.device.sim import SimDevice
from tt_impl.device.sim.fp8 import through_float32
from tt_impl.device.sim.layout import pack, packed_bytes, unpack

BFP8 = DType.BFLOAT8_B
SHAPES = st.lists(st.integers(1, 3), max_size=2).flatmap(
    lambda lead: st.tuples(st.integers(1, 70), st.integers(1, 70)).map(lambda last: (*lead, *last))
)


def packed_row(values: list[float]) -> tuple[int, list[int]]:
    """Shared exponent and elements of the first face row of a matrix that starts with `values`."""
    data = pack(np.array([values], np.float32), Layout.TILE, BFP8)
    return int(data[0]), data[64 : 64 + len(values)].tolist()


def round_trip(array: np.ndarray) -> np.ndarray:
    return unpack(pack(array, Layout.TILE, BFP8), array.shape, BFP8, Layout.TILE)


def any_floats(shape: tuple[int, ...], seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape) * np.exp2(rng.integers(-30, 30, shape))).astype(np.float32)


def test_bytes_and_values_are_those_of_ttnn() -> None:
    """Digests of what ttnn 0.81.1 made of the same bits, NaNs, infinities and subnormals among them, in a padded shape."""
    bits = (np.arange(40 * 70, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(32)).astype(np.uint32)
    packed = pack(bits.view(np.float32).reshape(40, 70), Layout.TILE, BFP8)
    assert packed.size == 6 * 1088
    assert hashlib.sha256(packed.tobytes()).hexdigest() == "eaaa711afb5434bb6debddf3d4743ade9a1feaf903ad93d4a3265260e2d9b4e4"
    values = np.ascontiguousarray(unpack(packed, (40, 70), BFP8, Layout.TILE))
    assert hashlib.sha256(values.tobytes()).hexdigest() == "4b52663139e4e766c97b9a2713063dddc7d56a6b2434aec248a9489d28a7e2dc"


@pytest.mark.parametrize(
    ("values", "exponent", "elements"),
    [
        ([1.0, -1.0, 0.5], 127, [0x40, 0xC0, 0x20]),  # the top mantissa bit is 2^(exponent - 127)
        ([1.0, 1 + 1 / 128, 1 + 3 / 128], 127, [0x40, 0x40, 0x42]),  # ties go to even
        ([1.0, 1 + 1 / 128 + 2**-20], 127, [0x40, 0x41]),
        ([1.0, 2 - 2**-20], 127, [0x40, 0x7F]),  # rounding up is held at 127, the exponent stays
        ([1.0, 2**-7 + 2**-30], 127, [0x40, 0x00]),  # what falls off in the shift does not break a tie
        ([1.0, -(2**-8)], 127, [0x40, 0x00]),  # an element that becomes 0 loses its sign
        ([0.0, -0.0], 0, [0, 0]),
        ([2**-127, 2**-149], 0, [0, 0]),  # subnormals
        ([2**-126, 2**-127], 1, [0x40, 0]),
        ([math.inf, 1.0], 255, [0x40, 0]),
    ],
)
def test_one_face_row_by_hand(values: list[float], exponent: int, elements: list[int]) -> None:
    assert packed_row(values) == (exponent, elements)


@given(SHAPES, st.integers(0, 99))
def test_values_stay_within_half_a_step_of_their_face_rows_largest(shape: tuple[int, ...], seed: int) -> None:
    array = any_floats(shape, seed)
    again = round_trip(array)
    padded = np.zeros((*shape[:-1], -(-shape[-1] // 16) * 16), np.float32)
    padded[..., : shape[-1]] = np.abs(array)
    largest = padded.reshape(*shape[:-1], -1, 16).max(axis=-1)
    step = np.exp2(np.frexp(largest)[1] - 7).repeat(16, axis=-1)[..., : shape[-1]]
    assert (np.abs(again - array) <= step).all()  # half a step for rounding, and half for holding at 127
    assert round_trip(again).tobytes() == again.tobytes()


@given(SHAPES)
def test_sizes_and_padding(shape: tuple[int, ...]) -> None:
    packed = pack(np.ones(shape, np.float32), Layout.TILE, BFP8)
    assert packed.size == packed_bytes(shape, BFP8, Layout.TILE)
    tiles = packed.reshape(-1, 1088)
    assert (tiles[:, 64:] == 0x40).sum() == math.prod(shape)
    assert np.isin(tiles[:, 64:], [0, 0x40]).all()
    assert (tiles[:, :64] == 127).sum() == math.prod(shape[:-1]) * -(-shape[-1] // 16)


def test_a_tensor_goes_to_the_device_and_back() -> None:
    device = SimDevice(dram_bytes=1 << 16)
    tensor = device.allocate_tensor_on_device((40, 70), BFP8, Layout.TILE, "t")
    values = any_floats((40, 70), 1)
    device.copy_host_to_device_tensor(values, tensor)
    read = device.copy_device_to_host_tensor(tensor, blocking=True)
    assert read.bytes().tobytes() == pack(values, Layout.TILE, BFP8).tobytes()
    assert read.array().tobytes() == round_trip(values).tobytes()
    device._store(tensor, values * 3)
    assert device._load(tensor).tobytes() == round_trip(values * 3).tobytes()  # rounded, not what was stored


def test_it_is_tile_only() -> None:
    with pytest.raises(DeviceFault, match="bfloat8_b is TILE only"):
        SimDevice(dram_bytes=1 << 16).allocate_tensor_on_device((32, 32), BFP8, Layout.ROW_MAJOR, "t")


def test_fp8_bytes_pass_raw_but_for_the_quirk_that_flushes_subnormals() -> None:
    raw = np.arange(256, dtype=np.uint8)
    seen = {}
    for quirk in (False, True):
        device = SimDevice(dram_bytes=4096, flushes_fp8_subnormals=quirk)
        tensor = device.allocate_tensor_on_device((1, 256), DType.FP8_E4M3, Layout.ROW_MAJOR, "w")
        device.copy_host_to_device_tensor(raw[None], tensor)
        read = device.copy_device_to_host_tensor(tensor, blocking=True)
        assert read.bytes().tobytes() == raw.tobytes()
        seen[quirk] = read.array()[0]
    assert seen[False].tolist() == raw.tolist()
    changed = np.flatnonzero(seen[True] != raw)
    assert changed.tolist() == [*range(1, 8), *range(0x81, 0x88)]
    assert through_float32(changed.astype(np.uint8)).tolist() == [0] * 7 + [0x80] * 7
