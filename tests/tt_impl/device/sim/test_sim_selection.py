"""Selection and look-ups on the simulated device: exact, the lowest column among equals, and no index read astray."""

from __future__ import annotations

import numpy as np
import pytest
from device_cases import get, put

from oracle.errors import DeviceFault
from tt_impl.device.protocol import DType, Layout
from tt_impl.device.sim import NO_QUIRKS, QUIRK_PROFILES, SimDevice

ROW = np.array([[2.0, 5.0, -1.0, 5.0, 5.0, np.nan, 7.0, -np.inf]])


@pytest.fixture
def device() -> SimDevice:
    return SimDevice(dram_bytes=1 << 22)


@pytest.mark.parametrize(("dtype", "indices"), [(DType.BFLOAT16, DType.UINT16), (DType.FLOAT32, DType.UINT32)])
def test_topk_falls_and_prefers_the_lowest_column(device: SimDevice, dtype: DType, indices: DType) -> None:
    values, columns = device.topk(put(device, ROW, dtype), 4)
    assert (columns.dtype, columns.layout, values.dtype) == (indices, Layout.TILE, dtype)
    assert get(device, columns).tolist() == [[6, 1, 3, 4]]
    assert get(device, values).astype(float).tolist() == [[7, 5, 5, 5]]


def test_argmax_takes_the_lowest_column_of_each_row(device: SimDevice) -> None:
    out = device.argmax(put(device, np.stack([ROW[0, :6], np.ones(6)]), DType.FLOAT32))
    assert (out.dtype, out.layout) == (DType.UINT32, Layout.ROW_MAJOR)
    assert get(device, out).tolist() == [[1, 0]]


def test_a_card_that_prefers_the_highest_column_does_in_both() -> None:
    device = SimDevice(dram_bytes=1 << 22, quirks=QUIRK_PROFILES["ties-to-highest"])
    x = put(device, ROW, DType.FLOAT32)
    assert get(device, device.topk(x, 3)[1]).tolist() == [[6, 4, 3]]
    assert get(device, device.argmax(put(device, ROW[:, :6], DType.FLOAT32))).tolist() == [[4]]


def test_gather_follows_topk_and_refuses_an_index_beyond_the_columns(device: SimDevice) -> None:
    x = put(device, ROW, DType.FLOAT32)
    _, columns = device.topk(x, 4)
    other = put(device, np.arange(8.0)[None] * 3, DType.BFLOAT16)
    assert get(device, device.gather(other, columns)).astype(float).tolist() == [[18, 3, 9, 12]]
    device.gather(x, put(device, np.array([[8]]), DType.UINT16))
    with pytest.raises(DeviceFault) as caught:
        device.synchronize_device()
    assert caught.value.kind == "gather-index"


def test_whole_numbers_above_float32_s_are_kept(device: SimDevice) -> None:
    big = np.array([[2**24 + 1, 2**31 + 3]], np.uint32)
    x = put(device, big, DType.UINT32)
    more = np.array([[1, 2]], np.uint32)
    assert get(device, device.add(x, put(device, more, DType.UINT32))).tolist() == (big + more).tolist()
    assert get(device, device.gather(x, put(device, np.array([[1, 0]]), DType.UINT32))).tolist() == big[:, ::-1].tolist()


def test_typecast_keeps_subnormals_unless_the_card_flushes_them() -> None:
    tiny = np.array([[1e-39, -3e-40, 1.0, 2.0**-126]], np.float32).astype(DType.BFLOAT16.host)
    for quirks, kept in ((NO_QUIRKS, True), (QUIRK_PROFILES["subnormals-flushed"], False)):
        device = SimDevice(dram_bytes=1 << 22, quirks=quirks)
        found = get(device, device.typecast(put(device, tiny, DType.BFLOAT16), DType.FLOAT32))
        assert (found[0, 2:] == [1.0, 2.0**-126]).all()
        assert (found == tiny.astype(np.float32)).all() == kept


def test_typecast_keeps_the_layout_and_rounds_to_even(device: SimDevice) -> None:
    x = np.array([[1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-8 + 2.0**-20]], np.float32)
    out = device.typecast(put(device, x, DType.FLOAT32, Layout.ROW_MAJOR), DType.BFLOAT16)
    assert out.layout is Layout.ROW_MAJOR
    assert get(device, out).astype(float).tolist() == [[1.0, 1 + 2.0**-6, 1 + 2.0**-7]]
