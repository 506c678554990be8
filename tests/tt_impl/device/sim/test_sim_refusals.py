"""What no op takes: each refusal is `bad-operand`, at the call, and names the operands."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from device_cases import put

from oracle.errors import DeviceFault
from tt_impl.device.protocol import DType, Layout
from tt_impl.device.sim import SimDevice

BF16, FP32, BFP8, RM = DType.BFLOAT16, DType.FLOAT32, DType.BFLOAT8_B, Layout.ROW_MAJOR


class Bench:
    """Makes operands of a shape, a dtype and a layout, named after it."""

    def __init__(self) -> None:
        self.device = SimDevice(dram_bytes=1 << 23)

    def __call__(self, *shape: int, dtype: DType = BF16, layout: Layout = Layout.TILE) -> Any:
        return put(self.device, np.zeros(shape), dtype, layout, label="x".join(map(str, shape)))

    def ints(self, *shape: int, dtype: DType = DType.INT32) -> Any:
        return self(*shape, dtype=dtype, layout=RM)

    def update(self, cache: Any, x: Any, users: int = 2, *, positions: Any = None, table: Any = None) -> None:
        positions, table = positions or self.ints(1, users), table or self.ints(users, 3)
        self.device.paged_update_cache(cache, x, update_idxs_tensor=positions, page_table=table)

    def attend(self, q: Any, k: Any, v: Any, users: int = 2, *, window: int | None = None, table: Any = None) -> Any:
        return self.device.paged_scaled_dot_product_attention_decode(
            q,
            k,
            v,
            page_table=table or self.ints(users, 3),
            cur_pos_tensor=self.ints(1, users),
            scale=1.0,
            sliding_window_size=window,
        )


REFUSED: dict[str, Callable[[Bench, SimDevice], Any]] = {
    "embedding ids of another dtype": lambda t, d: d.embedding(t.ints(1, 2), t(4, 64, layout=RM)),
    "embedding ids in TILE": lambda t, d: d.embedding(t(1, 2, dtype=DType.UINT32), t(4, 64, layout=RM)),
    "embedding ids of two rows": lambda t, d: d.embedding(t.ints(2, 2, dtype=DType.UINT32), t(4, 64, layout=RM)),
    "embedding table in TILE": lambda t, d: d.embedding(t.ints(1, 2, dtype=DType.UINT32), t(4, 64)),
    "embedding table of bytes": lambda t, d: d.embedding(
        t.ints(1, 2, dtype=DType.UINT32), t(4, 64, dtype=DType.UINT8, layout=RM)
    ),
    "typecast of fp8": lambda t, d: d.typecast(t(1, 64, dtype=DType.FP8_E4M3, layout=RM), BF16),
    "typecast to fp8": lambda t, d: d.typecast(t(1, 64, layout=RM), DType.FP8_E4M3),
    "typecast to bfp8 in rows": lambda t, d: d.typecast(t(32, 64, layout=RM), DType.BFLOAT8_B),
    "rms_norm in rows": lambda t, d: d.rms_norm(t(1, 64, layout=RM), t(1, 64), epsilon=1e-6),
    "rms_norm weight of another width": lambda t, d: d.rms_norm(t(1, 64), t(1, 32), epsilon=1e-6),
    "rms_norm weight of integers": lambda t, d: d.rms_norm(t(1, 64), t.ints(1, 64), epsilon=1e-6),
    "rms_norm of integers": lambda t, d: d.rms_norm(t(1, 64, dtype=DType.INT32), t(1, 64), epsilon=1e-6),
    "linear of another K": lambda t, d: d.linear(t(1, 64), t(96, 32)),
    "linear of rows": lambda t, d: d.linear(t(1, 64, layout=RM), t(96, 64)),
    "linear weight in rows": lambda t, d: d.linear(t(1, 64), t(96, 64, layout=RM)),
    "linear to integers": lambda t, d: d.linear(t(1, 64), t(96, 64), dtype=DType.UINT32),
    "linear of a batch of matrices": lambda t, d: d.linear(t(2, 1, 64), t(96, 64)),
    "matmul into another shape": lambda t, d: d.matmul(t(1, 64), t(64, 32), dtype=BF16, output=t(2, 32)),
    "matmul into another dtype": lambda t, d: d.matmul(t(1, 64), t(64, 32), dtype=BF16, output=t(1, 32, dtype=DType.FLOAT32)),
    "matmul of another K": lambda t, d: d.matmul(t(1, 64), t(96, 64), dtype=BF16),
    "matmul of integers": lambda t, d: d.matmul(t(1, 64, dtype=DType.UINT32), t(64, 32), dtype=BF16),
    "add of other columns": lambda t, d: d.add(t(1, 64), t(1, 32)),
    "add of another dtype": lambda t, d: d.add(t(1, 64), t(1, 64, dtype=FP32)),
    "add of rows": lambda t, d: d.add(t(1, 64, layout=RM), t(1, 64, layout=RM)),
    "mul of other columns": lambda t, d: d.mul(t(1, 64), t(1, 32)),
    "silu of integers": lambda t, d: d.silu(t(1, 64, dtype=DType.INT32)),
    "sigmoid of rows": lambda t, d: d.sigmoid(t(1, 64, layout=RM)),
    "swiglu of half a tile": lambda t, d: d.swiglu(t(1, 96)),
    "concat of other widths": lambda t, d: d.concat_rows([t(1, 64), t(1, 32)]),
    "concat of other dtypes": lambda t, d: d.concat_rows([t(1, 64), t(1, 64, dtype=FP32)]),
    "concat of nothing": lambda t, d: d.concat_rows([]),
    "topk of rows": lambda t, d: d.topk(t(1, 64, layout=RM), 6),
    "topk of more than there is": lambda t, d: d.topk(t(1, 64), 65),
    "topk of nothing": lambda t, d: d.topk(t(1, 64), 0),
    "topk of integers": lambda t, d: d.topk(t(1, 64, dtype=DType.INT32), 6),
    "topk of columns beyond uint16": lambda t, d: d.topk(t(1, 65537), 6),
    "gather by signed": lambda t, d: d.gather(t(1, 64), t(1, 6, dtype=DType.INT32)),
    "gather by other rows": lambda t, d: d.gather(t(1, 64), t(2, 6, dtype=DType.UINT16)),
    "gather by rows": lambda t, d: d.gather(t(1, 64), t(1, 6, dtype=DType.UINT16, layout=RM)),
    "argmax of integers": lambda t, d: d.argmax(t(1, 64, dtype=DType.INT32)),
    "argmax of rows": lambda t, d: d.argmax(t(1, 64, layout=RM)),
    "heads that do not divide": lambda t, d: d.nlp_create_qkv_heads_decode(t(1, 228), num_heads=4, num_kv_heads=2),
    "heads in rows": lambda t, d: d.nlp_create_qkv_heads_decode(t(1, 256, layout=RM), num_heads=4, num_kv_heads=2),
    "joined without users": lambda t, d: d.nlp_concat_heads_decode(t(4, 32)),
    "rope of a head of 96": lambda t, d: d.rotary_embedding_hf(t(1, 4, 96), t(1, 96), t(1, 96)),
    "rope rows of other users": lambda t, d: d.rotary_embedding_hf(t(2, 4, 64), t(1, 64), t(1, 64)),
    "rope table in rows": lambda t, d: d.rotary_embedding_hf(t(1, 4, 64), t(1, 64, layout=RM), t(1, 64)),
    "cache of blocks of 8": lambda t, d: t.update(t(4, 2, 8, 64), t(2, 2, 64)),
    "cache of blocks of 48": lambda t, d: t.update(t(4, 2, 48, 64), t(2, 2, 64)),
    "cache of half tiles": lambda t, d: t.update(t(4, 2, 32, 48), t(2, 2, 48)),
    "cache in rows": lambda t, d: t.update(t(4, 2, 32, 64, layout=RM), t(2, 2, 64)),
    "update of other heads": lambda t, d: t.update(t(4, 2, 32, 64), t(2, 3, 64)),
    "update without users": lambda t, d: t.update(t(4, 2, 32, 64), t(2, 64)),
    "update of integers": lambda t, d: t.update(t(4, 2, 32, 64), t(2, 2, 64, dtype=DType.INT32)),
    "positions of other users": lambda t, d: t.update(t(4, 2, 32, 64), t(2, 2, 64), positions=t.ints(1, 3)),
    "unsigned positions": lambda t, d: t.update(t(4, 2, 32, 64), t(2, 2, 64), positions=t.ints(1, 2, dtype=DType.UINT32)),
    "pages of other users": lambda t, d: t.update(t(4, 2, 32, 64), t(2, 2, 64), table=t.ints(1, 3)),
    "update with more pages than blocks": lambda t, d: t.update(t(2, 2, 32, 64), t(1, 2, 64), users=1, table=t.ints(1, 3)),
    "fill of another dtype": lambda t, d: d.paged_fill_cache(
        t(4, 2, 32, 64), t(2, 40, 64, dtype=FP32), page_table=t.ints(1, 3), batch_idx=0
    ),
    "update of a value in bfp8": lambda t, d: t.update(t(4, 2, 32, 64, dtype=BFP8), t(2, 2, 64, dtype=BFP8)),
    "fill of a bfp8 cache in bf16": lambda t, d: d.paged_fill_cache(
        t(4, 2, 32, 64, dtype=BFP8), t(2, 40, 64), page_table=t.ints(1, 3), batch_idx=0
    ),
    "attention of queries in bfp8": lambda t, d: t.attend(
        t(2, 4, 64, dtype=BFP8), t(4, 2, 32, 64, dtype=BFP8), t(4, 2, 32, 64, dtype=BFP8)
    ),
    "attention of float32 over bfp8": lambda t, d: t.attend(
        t(2, 4, 64, dtype=FP32), t(4, 2, 32, 64, dtype=BFP8), t(4, 2, 32, 64, dtype=BFP8)
    ),
    "attention of bf16 keys and bfp8 values": lambda t, d: t.attend(t(2, 4, 64), t(4, 2, 32, 64), t(4, 2, 32, 64, dtype=BFP8)),
    "fill of no user": lambda t, d: d.paged_fill_cache(t(4, 2, 32, 64), t(2, 40, 64), page_table=t.ints(1, 3), batch_idx=1),
    "fill past the pages": lambda t, d: d.paged_fill_cache(t(4, 2, 32, 64), t(2, 97, 64), page_table=t.ints(1, 3), batch_idx=0),
    "fill of other heads": lambda t, d: d.paged_fill_cache(t(4, 2, 32, 64), t(3, 40, 64), page_table=t.ints(1, 3), batch_idx=0),
    "attention of other caches": lambda t, d: t.attend(t(2, 4, 64), t(4, 2, 32, 64), t(5, 2, 32, 64)),
    "attention of caches of two dtypes": lambda t, d: t.attend(t(2, 4, 64), t(4, 2, 32, 64), t(4, 2, 32, 64, dtype=FP32)),
    "attention of another head size": lambda t, d: t.attend(t(2, 4, 32), t(4, 2, 32, 64), t(4, 2, 32, 64)),
    "attention of heads that do not divide": lambda t, d: t.attend(t(2, 5, 64), t(4, 2, 32, 64), t(4, 2, 32, 64)),
    "attention in no window": lambda t, d: t.attend(t(2, 4, 64), t(4, 2, 32, 64), t(4, 2, 32, 64), window=0),
    "attention over pages of other users": lambda t, d: t.attend(
        t(2, 4, 64), t(4, 2, 32, 64), t(4, 2, 32, 64), table=t.ints(3, 3)
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_operands_that_an_op_does_not_take_are_refused_by_name(name: str) -> None:
    bench = Bench()
    before = bench.device.event_counts().get("ops", 0)
    with pytest.raises(DeviceFault) as caught:
        REFUSED[name](bench, bench.device)
    assert caught.value.kind == "bad-operand"
    if name != "concat of nothing":
        assert re.search(r"does not take \d+x\d+", str(caught.value)), "no operand is named"
    assert bench.device.event_counts().get("ops", 0) == before, "a refused op was logged as run"


@pytest.mark.parametrize("position", [-2, 96, 2**31 - 1])
def test_a_position_without_a_page_is_a_fault_when_the_op_runs(position: int) -> None:
    bench = Bench()
    at = put(bench.device, np.array([[0, position]]), DType.INT32, RM)
    bench.update(bench(4, 2, 32, 64), bench(2, 2, 64), positions=at)
    with pytest.raises(DeviceFault) as caught:
        bench.device.synchronize_device()
    assert caught.value.kind == "page-table"


def test_a_product_does_not_go_over_its_own_operand_and_into_another_tensor_it_is_the_same() -> None:
    bench = Bench()
    device, rng = bench.device, np.random.default_rng(7)
    a, b = (put(device, rng.normal(size=(32, 32)), FP32, Layout.TILE) for _ in range(2))
    for own in (a, b):
        with pytest.raises(DeviceFault, match="it cannot write over its own operand"):
            device.matmul(a, b, dtype=FP32, output=own)
    into = bench(32, 32, dtype=FP32)
    device.synchronize_device()
    before, generation = device.get_memory_view(), into.generation
    assert device.matmul(a, b, dtype=FP32, output=into) is into
    assert device.get_memory_view() == before
    read = device.copy_device_to_host_tensor(into, blocking=True).array()
    new = device.copy_device_to_host_tensor(device.matmul(a, b, dtype=FP32), blocking=True).array()
    assert np.array_equal(read, new)
    assert into.generation == generation + 1
    device.deallocate(into)
    with pytest.raises(DeviceFault, match="use-after-free"):
        device.matmul(a, b, dtype=FP32, output=into)
