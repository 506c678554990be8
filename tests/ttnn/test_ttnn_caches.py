"""Which element types a paged cache has: ttnn's mock device and the simulated card take the same ones and refuse the same ones.

All 27 triples of bfloat16, float32 and bfloat8_b; the simulated card alone has attention in float32, for the arm `exact`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from oracle.errors import DeviceFault
from tt_impl.device.protocol import DType, Layout
from tt_impl.device.sim import SimDevice
from tt_impl.device.ttnn.device import TtnnDevice

DTYPES = (DType.BFLOAT16, DType.FLOAT32, DType.BFLOAT8_B)
FLOAT32_ATTENTION = ("attention", *3 * (DType.FLOAT32,))

Taken = dict[tuple[Any, ...], bool]


def taken_by(device: Any, block: int) -> Taken:
    """By op and element types, whether the device takes them."""

    def new(dtype: DType, *shape: int, layout: Layout = Layout.TILE) -> Any:
        tensor = device.allocate_tensor_on_device(shape, dtype, layout, "t")
        device.copy_host_to_device_tensor(np.zeros(shape, dtype.host), tensor)
        return tensor

    at, table = (new(DType.INT32, *shape, layout=Layout.ROW_MAJOR) for shape in ((1, 2), (2, 4)))
    caches = {dtype: new(dtype, 8, 4, block, 64) for dtype in DTYPES}
    rows = {dtype: new(dtype, 2, 4, 64) for dtype in DTYPES}
    prompts = {dtype: new(dtype, 4, 37, 64) for dtype in DTYPES}
    queries = {dtype: new(dtype, 2, 12, 64) for dtype in DTYPES}
    found: Taken = {}
    for cache, x in itertools.product(DTYPES, DTYPES):
        found["update", cache, x] = takes(
            lambda c=caches[cache], x=rows[x]: device.paged_update_cache(c, x, update_idxs_tensor=at, page_table=table)
        )
        found["fill", cache, x] = takes(
            lambda c=caches[cache], x=prompts[x]: device.paged_fill_cache(c, x, page_table=table, batch_idx=1)
        )
    for q, k, v in itertools.product(DTYPES, DTYPES, DTYPES):
        found["attention", q, k, v] = takes(
            lambda q=queries[q], k=caches[k], v=caches[v]: device.paged_scaled_dot_product_attention_decode(
                q, k, v, page_table=table, cur_pos_tensor=at, scale=0.125, sliding_window_size=33
            )
        )
    return found


def takes(call: Callable[[], object]) -> bool:
    try:
        call()
    except DeviceFault as fault:
        if fault.kind != "bad-operand":
            raise
        return False
    return True


@pytest.mark.parametrize("block", [16, 32])
def test_the_simulated_card_takes_the_caches_that_ttnn_takes(device: TtnnDevice, block: int) -> None:
    sim = SimDevice(dram_bytes=1 << 23)
    ours = taken_by(sim, block)
    sim.synchronize_device()
    theirs = taken_by(device, block)
    assert {case for case in ours if ours[case] != theirs[case]} == {FLOAT32_ATTENTION}
    assert ours[FLOAT32_ATTENTION]
    bf16, fp32, bfp8 = DTYPES
    for taken in (("update", bfp8, bf16), ("update", bfp8, fp32), ("fill", bfp8, bfp8), ("attention", bf16, bfp8, bfp8)):
        assert theirs[taken], taken
