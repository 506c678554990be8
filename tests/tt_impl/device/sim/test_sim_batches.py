"""Rows and users of a batch are independent: each one's bits are what they are alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from device_cases import get, put
from hypothesis import given, settings
from hypothesis import strategies as st

from tt_impl.device.protocol import DType, Layout, Tensor
from tt_impl.device.sim import NO_QUIRKS, QUIRK_PROFILES, SimDevice

DTYPES = (DType.BFLOAT16, DType.FLOAT32)
WIDTH = 64

Op = Callable[[SimDevice, Callable[[np.ndarray], Tensor], np.ndarray], tuple[Tensor, ...]]


def weights(rows: int) -> np.ndarray:
    return np.random.default_rng(7).normal(size=(rows, WIDTH))


ROW_OPS: dict[str, Op] = {
    "rms_norm": lambda d, t, x: (d.rms_norm(t(x), t(weights(1)), epsilon=1e-6),),
    "linear": lambda d, t, x: (d.linear(t(x), t(weights(40)), dtype=DType.FLOAT32),),
    "matmul": lambda d, t, x: (d.matmul(t(x), t(weights(96).T), dtype=DType.FLOAT32),),
    "add": lambda d, t, x: (d.add(t(x), t(x * 3)),),
    "mul": lambda d, t, x: (d.mul(t(x), t(x * 3)),),
    "silu": lambda d, t, x: (d.silu(t(x)),),
    "sigmoid": lambda d, t, x: (d.sigmoid(t(x)),),
    "swiglu": lambda d, t, x: (d.swiglu(t(x)),),
    "topk": lambda d, t, x: d.topk(t(x), 6),
    "heads": lambda d, t, x: d.nlp_create_qkv_heads_decode(t(np.tile(x, 4)), num_heads=4, num_kv_heads=2),
    "joined": lambda d, t, x: (d.nlp_concat_heads_decode(t(x[:, None].repeat(3, axis=1))),),
    "rope": lambda d, t, x: (d.rotary_embedding_hf(t(x[:, None].repeat(3, axis=1)), t(np.cos(x)), t(np.sin(x))),),
}


@pytest.mark.parametrize("quirk", ["none", "norm-sum-bf16", "truncating"])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.label)
@pytest.mark.parametrize("name", ROW_OPS)
def test_a_row_s_bits_do_not_depend_on_the_rows_beside_it(name: str, dtype: DType, quirk: str) -> None:
    device = SimDevice(dram_bytes=1 << 23, quirks=QUIRK_PROFILES.get(quirk, NO_QUIRKS))
    x = np.random.default_rng(5).normal(size=(9, WIDTH)) * np.logspace(-3, 3, 9)[:, None]

    def results(rows: np.ndarray) -> list[np.ndarray]:
        return [get(device, out) for out in ROW_OPS[name](device, lambda array: put(device, array, dtype), rows)]

    together = results(x)
    for row in range(len(x)):
        alone = results(x[row : row + 1])
        assert [a.tobytes() for a in alone] == [t[row : row + 1].tobytes() for t in together], row


class Paged:
    """Random caches of five-block users, each user's blocks in a permutation of its own."""

    def __init__(self, users: int, block: int, dtype: DType, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.users, self.block, self.dtype = users, block, dtype
        self.device = SimDevice(dram_bytes=1 << 24)
        self.table = self.rng.permutation(5 * users).reshape(users, 5)
        caches = self.rng.normal(size=(2, 5 * users, 2, block, WIDTH))
        self.caches = [put(self.device, cache, dtype) for cache in caches]
        self.held = [get(self.device, cache) for cache in self.caches]

    def integers(self, values: np.ndarray) -> Tensor:
        return put(self.device, values, DType.INT32, Layout.ROW_MAJOR)

    def attend(self, queries: np.ndarray, positions: list[int], table: np.ndarray, window: int | None) -> np.ndarray:
        out = self.device.paged_scaled_dot_product_attention_decode(
            put(self.device, queries, self.dtype),
            *self.caches,
            page_table=self.integers(table),
            cur_pos_tensor=self.integers(np.array([positions])),
            scale=0.125,
            sliding_window_size=window,
        )
        return get(self.device, out)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(-1, 79), min_size=1, max_size=4),
    st.sampled_from([16, 32]),
    st.sampled_from([None, 1, 9, 40]),
    st.data(),
)
def test_a_user_s_attention_is_its_own_and_a_skipped_user_disturbs_nobody(positions, block, window, data) -> None:
    paged = Paged(len(positions), block, data.draw(st.sampled_from(DTYPES)), data.draw(st.integers(0, 99)))
    queries = paged.rng.normal(size=(len(positions), 6, WIDTH))
    together = paged.attend(queries, positions, paged.table, window)
    for user, position in enumerate(positions):
        if position >= 0:
            part = slice(user, user + 1)
            alone = paged.attend(queries[part], [position], paged.table[part], window)
            assert alone.tobytes() == together[part].tobytes()
        else:
            assert np.isnan(together[user].astype(np.float32)).all()


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(-1, 79), min_size=1, max_size=4), st.sampled_from([16, 32, 64]), st.sampled_from(DTYPES))
def test_an_update_writes_one_row_of_each_user_and_nothing_else(positions, block, dtype) -> None:
    paged = Paged(len(positions), block, dtype, seed=3)
    rows = paged.rng.normal(size=(len(positions), 2, WIDTH)).astype(dtype.host)
    paged.device.paged_update_cache(
        paged.caches[0],
        put(paged.device, rows, dtype),
        update_idxs_tensor=paged.integers(np.array([positions])),
        page_table=paged.integers(paged.table),
    )
    expected = paged.held[0].copy()
    for user, position in enumerate(positions):
        if position >= 0:
            expected[paged.table[user, position // block], :, position % block] = rows[user]
    assert get(paged.device, paged.caches[0]).tobytes() == expected.tobytes()
    assert get(paged.device, paged.caches[1]).tobytes() == paged.held[1].tobytes()


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 80), st.sampled_from([16, 32]), st.sampled_from(DTYPES), st.integers(0, 2))
def test_a_fill_writes_a_user_s_first_positions_and_nothing_else(length, block, dtype, user) -> None:
    paged = Paged(3, block, dtype, seed=4)
    rows = paged.rng.normal(size=(2, length, WIDTH)).astype(dtype.host)
    table = paged.integers(paged.table)
    paged.device.paged_fill_cache(paged.caches[1], put(paged.device, rows, dtype), page_table=table, batch_idx=user)
    expected = paged.held[1].copy()
    for position in range(length):
        expected[paged.table[user, position // block], :, position % block] = rows[:, position]
    assert get(paged.device, paged.caches[1]).tobytes() == expected.tobytes()


def test_an_update_with_a_smaller_dtype_s_cache_rounds_to_nearest() -> None:
    paged = Paged(1, 32, DType.BFLOAT16, seed=5)
    rows = paged.rng.normal(size=(1, 2, WIDTH)).astype(np.float32)
    paged.device.paged_update_cache(
        paged.caches[0],
        put(paged.device, rows, DType.FLOAT32),
        update_idxs_tensor=paged.integers(np.array([[70]])),
        page_table=paged.integers(paged.table),
    )
    found = get(paged.device, paged.caches[0])[paged.table[0, 2], :, 6]
    assert found.tobytes() == rows[0].astype(DType.BFLOAT16.host).tobytes()
