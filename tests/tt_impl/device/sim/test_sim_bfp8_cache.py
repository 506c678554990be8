"""A paged cache in BFLOAT8_B: what an update and a fill put there, bit for bit, and that attention reads it as it is."""

from __future__ import annotations

import numpy as np
import pytest
from device_cases import get, put
from hypothesis import given, settings
from hypothesis import strategies as st

from tt_impl.device.protocol import DType, Layout, Tensor
from tt_impl.device.sim import SimDevice
from tt_impl.device.sim.layout import pack, unpack
from tt_impl.device.sim.memory import SimTensor

BF16, FP32, BFP8, TILE = DType.BFLOAT16, DType.FLOAT32, DType.BFLOAT8_B, Layout.TILE
GROUPS, WIDTH, PAGES = 2, 64, 3


class Cached:
    """Two users with pages in a permutation, over a cache that holds numbers of all magnitudes already."""

    def __init__(self, block: int, seed: int) -> None:
        self.rng, self.block = np.random.default_rng(seed), block
        self.device = SimDevice(dram_bytes=1 << 22)
        self.pages = self.rng.permutation(2 * PAGES).reshape(2, PAGES).astype(np.int32)
        self.table = put(self.device, self.pages, DType.INT32, Layout.ROW_MAJOR)
        self.before = self.spread(2 * PAGES, GROUPS, block, WIDTH)
        self.cache = put(self.device, self.before, BFP8)

    def spread(self, *shape: int) -> np.ndarray:
        return (self.rng.normal(size=shape) * 2.0 ** self.rng.integers(-9, 9, shape)).astype(np.float32)

    def bytes_of(self, tensor: Tensor) -> bytes:
        return self.device.copy_device_to_host_tensor(tensor, blocking=True).bytes().tobytes()

    def at(self, positions: list[int]) -> SimTensor:
        return put(self.device, np.array([positions]), DType.INT32, Layout.ROW_MAJOR)


def rounded(rows: np.ndarray) -> np.ndarray:
    """As ttnn's host code packs a tensor of them, which `test_ttnn_packing` compares."""
    return unpack(pack(rows, TILE, BFP8), rows.shape, BFP8, TILE)


@pytest.mark.parametrize("dtype", [BF16, FP32])
@settings(max_examples=30, deadline=None)
@given(block=st.sampled_from([16, 32, 64]), data=st.data(), seed=st.integers(0, 999))
def test_an_update_packs_its_own_position_and_leaves_every_other_byte(dtype: DType, block: int, data, seed: int) -> None:
    cached = Cached(block, seed)
    positions = [data.draw(st.integers(-1, PAGES * block - 1)) for _ in range(2)]
    new = cached.spread(2, GROUPS, WIDTH).astype(dtype.host)
    expected = rounded(cached.before)
    for user, position in enumerate(positions):
        if position >= 0:
            row = rounded(new[user].astype(np.float32))
            expected[cached.pages[user, position // block], :, position % block] = row
    x, at = put(cached.device, new, dtype), cached.at(positions)
    cached.device.paged_update_cache(cached.cache, x, update_idxs_tensor=at, page_table=cached.table)
    assert get(cached.device, cached.cache).tobytes() == expected.tobytes()


@settings(max_examples=20, deadline=None)
@given(block=st.sampled_from([16, 32]), length=st.integers(1, 48), user=st.integers(0, 1), seed=st.integers(0, 999))
def test_a_fill_copies_packed_rows_bit_for_bit(block: int, length: int, user: int, seed: int) -> None:
    cached = Cached(block, seed)
    prompt = cached.spread(GROUPS, length, WIDTH)
    expected = rounded(cached.before)
    for position in range(length):
        expected[cached.pages[user, position // block], :, position % block] = rounded(prompt)[:, position]
    cached.device.paged_fill_cache(cached.cache, put(cached.device, prompt, BFP8), page_table=cached.table, batch_idx=user)
    assert get(cached.device, cached.cache).tobytes() == expected.tobytes()
    assert cached.bytes_of(cached.cache) == cached.bytes_of(put(cached.device, expected, BFP8))


@pytest.mark.parametrize("block", [16, 32])
@pytest.mark.parametrize("window", [None, 7])
def test_attention_is_that_over_a_bfloat16_cache_of_the_same_values(block: int, window: int | None) -> None:
    """7 bits of mantissa and a sign fit bfloat16, so both caches hold the same numbers."""
    cached = Cached(block, 5)
    device = cached.device
    values = rounded(cached.rng.normal(size=cached.before.shape).astype(np.float32))
    q = put(device, cached.rng.normal(size=(2, 4, WIDTH)), BF16)
    found = []
    for dtype in (BFP8, BF16):
        k, v = (put(device, array, dtype) for array in (values, values[::-1].copy()))
        out = device.paged_scaled_dot_product_attention_decode(
            q,
            k,
            v,
            page_table=cached.table,
            cur_pos_tensor=cached.at([2 * block + 3, 5]),
            scale=0.125,
            sliding_window_size=window,
        )
        found.append(get(device, out).tobytes())
    assert found[0] == found[1]
    assert np.abs(np.frombuffer(found[0], BF16.host).astype(np.float32)).max() > 0.1
