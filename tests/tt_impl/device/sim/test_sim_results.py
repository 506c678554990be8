"""An op's result lies in its memory as packing would put it there, whatever lay there before."""

from __future__ import annotations

import numpy as np
import pytest
from device_cases import get, put

from tt_impl.device.protocol import DType, Layout
from tt_impl.device.sim import SimDevice
from tt_impl.device.sim.layout import pack, pack_into


@pytest.mark.parametrize("shape", [(1, 64), (5, 64), (16, 32), (17, 32), (1, 40), (2, 3, 64)])
@pytest.mark.parametrize("dtype", [DType.BFLOAT16, DType.FLOAT32])
def test_a_result_is_packed_into_poison_with_zeros_around_it(shape: tuple[int, ...], dtype: DType) -> None:
    device = SimDevice()
    values = np.random.default_rng(3).integers(1, 9, shape).astype(np.float32)
    x = put(device, values, dtype)
    doubled = device.copy_device_to_host_tensor(device.add(x, x), blocking=True)
    expected = pack((2 * values).astype(dtype.host), Layout.TILE)
    assert doubled.bytes().tobytes() == expected.tobytes()


@pytest.mark.parametrize("shape", [(1, 64), (5, 64), (17, 32), (1, 40)])
def test_packing_leaves_nothing_of_what_was_there(shape: tuple[int, ...]) -> None:
    array = np.ones(shape, np.float32)
    expected = pack(array, Layout.TILE)
    used = np.full_like(expected, 0x7F)
    pack_into(used, array, Layout.TILE)
    assert used.tobytes() == expected.tobytes()


def test_results_of_other_shapes_and_dtypes_take_turns_at_one_place() -> None:
    device = SimDevice()
    kinds = [
        ((1, 64), DType.FLOAT32),
        ((1, 64), DType.UINT32),
        ((9, 64), DType.FLOAT32),
        ((64, 16), DType.FLOAT32),
        ((1, 128), DType.BFLOAT16),
        ((16, 128), DType.BFLOAT16),
        ((1, 64), DType.FLOAT32),
    ]
    operands = [put(device, np.full(shape, index + 1.0, np.float32), dtype) for index, (shape, dtype) in enumerate(kinds)]
    device.synchronize_device()
    addresses = set()
    for index, x in enumerate(operands):
        result = device.add(x, x)
        addresses.add(result.buffer.address)
        assert (get(device, result).astype(np.float32) == 2 * (index + 1)).all()
        device.deallocate(result)
        device.synchronize_device()
    assert len(addresses) == 1
