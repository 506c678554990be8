"""Ops on the simulated device: operands they refuse, pages they follow, and what freed or unwritten memory does to them."""

from __future__ import annotations

import numpy as np
import pytest
from device_cases import get, put
from ml_dtypes import bfloat16

from oracle.errors import DeviceFault
from tt_impl.device.protocol import DType, Layout
from tt_impl.device.sim import SimDevice

GROUPS, WIDTH = 2, 32


@pytest.fixture
def device() -> SimDevice:
    return SimDevice(dram_bytes=1 << 22)


def test_fp8_is_row_major_and_no_op_takes_it(device: SimDevice) -> None:
    with pytest.raises(DeviceFault, match="TILE"):
        device.allocate_tensor_on_device((32, 32), DType.FP8_E4M3, Layout.TILE, "w")
    x = put(device, np.ones((1, 32)), DType.BFLOAT16)
    weight = put(device, np.ones((32, 32)), DType.FP8_E4M3, Layout.ROW_MAJOR)
    for op in (lambda: device.linear(x, weight), lambda: device.typecast(weight, DType.BFLOAT16)):
        with pytest.raises(DeviceFault) as caught:
            op()
        assert caught.value.kind == "bad-operand"


def test_shapes_that_do_not_fit_are_refused_by_name(device: SimDevice) -> None:
    x, y = put(device, np.ones((1, 64)), DType.BFLOAT16, label="x"), put(device, np.ones((1, 32)), DType.BFLOAT16, label="y")
    with pytest.raises(DeviceFault, match=r"add does not take x bfloat16 tile \[1, 64\], y bfloat16 tile \[1, 32\]"):
        device.add(x, y)
    with pytest.raises(DeviceFault, match="linear does not take"):
        device.linear(x, y)
    with pytest.raises(DeviceFault, match="the array float32"):
        device.copy_host_to_device_tensor(np.ones((1, 32), np.float32), y)


def test_an_op_on_a_freed_tensor_is_a_fault_and_one_enqueued_before_is_not(device: SimDevice) -> None:
    x = put(device, np.ones((1, 32)), DType.FLOAT32, label="x")
    before = device.add(x, x)
    device.deallocate(x)
    with pytest.raises(DeviceFault, match="add of x") as caught:
        device.add(before, x)
    assert caught.value.kind == "use-after-free"
    assert (get(device, before) == 2).all()


def test_unwritten_memory_turns_results_into_nan(device: SimDevice) -> None:
    x = device.allocate_tensor_on_device((1, 32), DType.BFLOAT16, Layout.TILE, "x")
    assert np.isnan(get(device, device.add(x, x)).astype(np.float32)).all()


def test_linear_rounds_once_to_the_asked_dtype(device: SimDevice) -> None:
    rng = np.random.default_rng(3)
    x, weight = rng.normal(size=(1, 64)).astype(bfloat16), rng.normal(size=(40, 64)).astype(bfloat16)
    operands = put(device, x, DType.BFLOAT16), put(device, weight, DType.BFLOAT16)
    whole = get(device, device.linear(*operands, dtype=DType.FLOAT32))
    assert np.allclose(whole, x.astype(np.float64) @ weight.astype(np.float64).T, rtol=1e-5, atol=1e-5)
    assert (whole != whole.astype(bfloat16).astype(np.float32)).any()
    assert get(device, device.linear(*operands)).tobytes() == whole.astype(bfloat16).tobytes()


def test_embedding_copies_the_row_and_refuses_ids_beyond_the_table(device: SimDevice) -> None:
    table = np.random.default_rng(3).normal(size=(5, 64)).astype(bfloat16)
    weight = put(device, table, DType.BFLOAT16, Layout.ROW_MAJOR)
    ids = put(device, np.array([[3]]), DType.UINT32, Layout.ROW_MAJOR)
    assert get(device, device.embedding(ids, weight)).tobytes() == table[3].tobytes()
    device.embedding(put(device, np.array([[5]]), DType.UINT32, Layout.ROW_MAJOR), weight)
    with pytest.raises(DeviceFault) as caught:
        device.synchronize_device()
    assert caught.value.kind == "embedding-index"


def test_heads_are_cut_and_joined_in_order(device: SimDevice) -> None:
    row = np.arange(8 * 32, dtype=np.float32)[None]
    q, k, v = device.nlp_create_qkv_heads_decode(put(device, row, DType.FLOAT32), num_heads=4, num_kv_heads=2)
    heads = row.reshape(1, 8, 32)
    expected = [heads[:, :4], heads[:, 4:6], heads[:, 6:]]
    assert [get(device, part).tolist() for part in (q, k, v)] == [part.tolist() for part in expected]
    assert get(device, device.nlp_concat_heads_decode(q)).tolist() == row[:, :128].tolist()


class Pages:
    """A paged cache of five blocks, filled position by position through a permuted table."""

    def __init__(self, device: SimDevice, length: int, block: int = 32) -> None:
        rng = np.random.default_rng(5)
        shape = (5, GROUPS, block, WIDTH)
        self.device = device
        self.caches = [device.allocate_tensor_on_device(shape, DType.FLOAT32, Layout.TILE, name) for name in ("k", "v")]
        self.table = put(device, np.array([[3, 0, 4, 1, 2]]), DType.INT32, Layout.ROW_MAJOR, "table")
        self.position = put(device, np.array([[0]]), DType.INT32, Layout.ROW_MAJOR, "position")
        self.rows = rng.normal(size=(2, length, GROUPS, WIDTH)).astype(np.float32)
        self.query = rng.normal(size=(4, WIDTH)).astype(np.float32)
        for position in range(length):
            device.copy_host_to_device_tensor(np.array([[position]], np.int32), self.position)
            for cache, rows in zip(self.caches, self.rows, strict=True):
                row = put(device, rows[position][None], DType.FLOAT32)
                device.paged_update_cache(cache, row, update_idxs_tensor=self.position, page_table=self.table)

    def attend(self, window: int | None) -> np.ndarray:
        out = self.device.paged_scaled_dot_product_attention_decode(
            put(self.device, self.query[None], DType.FLOAT32),
            *self.caches,
            page_table=self.table,
            cur_pos_tensor=self.position,
            scale=0.25,
            sliding_window_size=window,
        )
        return get(self.device, out)[0]

    def expected(self, first: int) -> np.ndarray:
        k, v = self.rows.astype(np.float64)[:, first:]
        out = np.empty((4, WIDTH))
        for head in range(4):
            weights = np.exp(k[:, head // 2] @ self.query[head] * 0.25)
            out[head] = weights / weights.sum() @ v[:, head // 2]
        return out


@pytest.mark.parametrize(("length", "block"), [(1, 32), (31, 32), (32, 32), (33, 32), (70, 32), (70, 16), (70, 64)])
@pytest.mark.parametrize("window", [None, 1, 9, 33])
def test_paged_attention_sees_the_window_with_its_own_position_and_nothing_else(
    device: SimDevice, length: int, block: int, window: int | None
) -> None:
    pages = Pages(device, length, block)
    first = 0 if window is None else max(0, length - window)
    assert np.allclose(pages.attend(window), pages.expected(first), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("entry", [5, -1])
def test_a_page_table_entry_that_is_no_block_is_a_fault(device: SimDevice, entry: int) -> None:
    pages = Pages(device, 3)
    device.synchronize_device()
    device.poke(pages.table, 0, np.int32(entry).tobytes())
    with pytest.raises(DeviceFault, match=rf"table: logical blocks 0 to 0 of 5 are \[{entry}\]") as caught:
        pages.attend(None)
    assert caught.value.kind == "page-table"


def test_the_page_table_is_read_on_the_device_when_the_op_runs(device: SimDevice) -> None:
    pages = Pages(device, 40)
    right = pages.attend(None)
    device.poke(pages.table, 0, np.array([0, 3], np.int32).tobytes())
    assert not np.allclose(pages.attend(9), right)
