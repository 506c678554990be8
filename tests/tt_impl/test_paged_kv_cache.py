"""The KV cache scatters its blocks, counts positions, and begins each sequence with unreadable blocks."""

from __future__ import annotations

import numpy as np
import pytest

from oracle.kolibri1.checkpoint import Checkpoint
from tt_impl.device.protocol import DType, Tensor
from tt_impl.device.sim import SimDevice
from tt_impl.kv_cache import PagedKvCache
from tt_impl.settings import DecoderSettings, default_settings


@pytest.fixture
def settings(tiny: Checkpoint) -> DecoderSettings:
    return default_settings(tiny.config, DType.BFLOAT16)


def read(device: SimDevice, tensor: Tensor) -> np.ndarray:
    return device.copy_device_to_host_tensor(tensor, blocking=True).array()


def test_the_page_table_is_a_permutation_without_fixed_order(tiny: Checkpoint, settings: DecoderSettings) -> None:
    device = SimDevice()
    table = read(device, PagedKvCache(device, tiny.config, settings).page_table)[0]
    assert sorted(table) == list(range(settings.max_positions // settings.block_size))
    assert table.tolist() != sorted(table)
    assert np.count_nonzero(table[:4] == np.arange(4)) == 0  # also within a short sequence


def test_the_device_is_told_each_position(tiny: Checkpoint, settings: DecoderSettings) -> None:
    device = SimDevice()
    cache = PagedKvCache(device, tiny.config, settings)
    for expected in range(3):
        assert cache.advance() == expected
        assert read(device, cache.position_tensor).tolist() == [[expected]]


def test_new_blocks_hold_nan_even_where_an_old_sequence_was(tiny: Checkpoint, settings: DecoderSettings) -> None:
    device = SimDevice()
    old = PagedKvCache(device, tiny.config, settings)
    keys = old.layers[0].keys
    device.copy_host_to_device_tensor(np.ones(keys.shape, DType.BFLOAT16.host), keys)
    old.close()
    new = PagedKvCache(device, tiny.config, settings)
    for layer in new.layers:
        assert np.isnan(read(device, layer.keys).astype(np.float32)).all()
        assert np.isnan(read(device, layer.values).astype(np.float32)).all()
