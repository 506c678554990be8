"""The KV cache scatters its blocks, counts positions, and begins each sequence with unreadable blocks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import settings as settings_of
from hypothesis import strategies as st

from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.config import Kolibri1Config
from oracle.kolibri1.synthetic import TINY
from tt_impl.attention.kv_cache import PagedKvCache
from tt_impl.attention.kv_pages import Pages, scattered
from tt_impl.device.dram_bytes import dram_bytes
from tt_impl.device.protocol import DType, Layout, Tensor
from tt_impl.device.sim import SimDevice
from tt_impl.experts.memo import upload
from tt_impl.plans.kv_plan import plan_kv, sliding_blocks
from tt_impl.settings import BLOCKS, DecoderSettings, default_settings
from tt_impl.stats import StepStats


@pytest.fixture
def settings(tiny: Checkpoint) -> DecoderSettings:
    return default_settings(tiny.config, DType.BFLOAT16)


def put(device: SimDevice, array: np.ndarray, dtype: DType) -> Tensor:
    return upload(device, "operand", array.astype(dtype.host), dtype, Layout.TILE)


def read(device: SimDevice, tensor: Tensor) -> np.ndarray:
    return device.copy_device_to_host_tensor(tensor, blocking=True).array()


def test_each_kind_of_layer_has_a_page_table_without_fixed_order(tiny: Checkpoint, settings: DecoderSettings) -> None:
    """512 positions are 16 blocks of 32; a window of 9 lies in at most two of them."""
    device = SimDevice()
    cache = PagedKvCache(device, tiny.config, settings, StepStats())
    ring, full, other_ring = (read(device, layer.pages.table)[0].tolist() for layer in cache.layers)
    assert sorted(full) == list(range(16))
    assert not any(physical == logical for logical, physical in enumerate(full[:4]))  # also within a short sequence
    assert ring == other_ring == [1, 0]
    assert [layer.keys.shape[0] for layer in cache.layers] == [2, 16, 2]


@given(st.integers(1, 8), st.integers(1, 12), st.integers(0, 99))
def test_users_share_out_all_blocks_and_never_in_their_own_order(users: int, blocks: int, seed: int) -> None:
    order = scattered(users, blocks, np.random.default_rng(seed))
    assert order.shape == (users, blocks)
    assert sorted(order.reshape(-1)) == list(range(users * blocks))
    if users * blocks > 1:
        assert order.reshape(-1).tolist() != list(range(users * blocks))


def test_a_ring_shows_the_device_the_blocks_up_to_the_present_one() -> None:
    """Three blocks of 16 for each of three users: one at position 70, in logical block 4; one that idles; one at the start."""
    device = SimDevice()
    pages = Pages(device, "ring_", users=3, blocks=3, block_size=16, rng=np.random.default_rng(1))
    own = read(device, pages.table).tolist()
    pages.tell([70, 40, 0], [0, 2])
    assert read(device, pages.table).tolist() == [[own[0][2], own[0][0], own[0][1]], own[1], own[2]]  # 2, 3, 4 mod 3
    assert read(device, pages.written).tolist() == [[70 - 2 * 16, -1, 0]]
    assert read(device, pages.queried).tolist() == [[70 - 2 * 16, 0, 0]]
    pages.tell([-1, 48, 1], [1, 2])
    assert read(device, pages.table).tolist() == [own[0], [own[1][1], own[1][2], own[1][0]], own[2]]
    assert read(device, pages.written).tolist() == [[-1, 48 - 16, 1]]


@pytest.mark.parametrize("activation", [DType.BFLOAT16, DType.FLOAT32])
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("window", [1, 9, 33, 1000])
def test_the_device_gives_what_is_planned_to_the_byte(tiny: Checkpoint, activation: DType, block, window: int) -> None:
    config = tiny.config.model_copy(update={"sliding_window": window})
    settings = replace(default_settings(config, activation), block=block)
    plan = plan_kv(config, activation, sequences=1, context=settings.max_positions, block_size=int(block))
    device, stats = SimDevice(), StepStats()
    cache = PagedKvCache(device, config, settings, stats)
    assert stats.kv_bytes == plan.device_bytes
    small = [tensor for layer in {layer.pages for layer in cache.layers} for tensor in layer.tensors]
    small = sum(dram_bytes(table.shape, table.dtype, table.layout) for table in (cache.rope_positions, *small))
    assert device.get_memory_view().allocated_bytes == plan.device_bytes + small
    cache.close()
    assert device.get_memory_view().allocated_bytes == 0


@pytest.mark.parametrize(("block", "users", "blocks"), [("32", 1, 0), ("16", 1, 2 + 32 + 2), ("16", 3, 3 * (2 + 32 + 2))])
def test_blocks_of_16_are_counted_and_no_others(tiny: Checkpoint, settings: DecoderSettings, block, users, blocks) -> None:
    """512 positions are 32 of them; a window of 9 lies in at most two."""
    device, stats = SimDevice(), StepStats()
    settings = replace(settings, block=block, users=users)
    for _ in range(2):
        PagedKvCache(device, tiny.config, settings, stats)
        assert stats.small_blocks == blocks


@settings_of(max_examples=6, deadline=None)
@example(33, "32", DType.FLOAT32, 0)
@example(65, "32", DType.BFLOAT16, 0)
@example(65, "16", DType.FLOAT32, 0)
@given(st.integers(1, 70), st.sampled_from(BLOCKS), st.sampled_from([DType.BFLOAT16, DType.FLOAT32]), st.integers(0, 99))
def test_a_ring_shows_at_every_position_what_an_unbounded_cache_does(window: int, block, dtype: DType, seed: int) -> None:
    """Over several wraps, and bit for bit: what was overwritten could not be seen any more."""
    device = SimDevice(dram_bytes=1 << 24)
    tiny = Kolibri1Config.model_validate(TINY).model_copy(update={"sliding_window": window, "num_hidden_layers": 1})
    size = int(block)
    length = min(512, max(3 * size * sliding_blocks(window, size), 100) // size * size)
    caches = []
    for kind in ("sliding_attention", "full_attention"):
        config = tiny.model_copy(update={"layer_types": (kind,)})
        settings = replace(default_settings(config, dtype), block=block, max_positions=length, page_seed=seed)
        caches.append(PagedKvCache(device, config, settings, StepStats()))
    bounded, unbounded = (cache.layers[0].keys.shape[0] for cache in caches)
    assert bounded <= unbounded // 2
    rng = np.random.default_rng(seed)
    for _ in range(length):
        q, k, v = (put(device, rng.normal(size=(1, heads, 32)), dtype) for heads in (6, 2, 2))
        shown = []
        for cache in caches:
            cache.advance()
            layer = cache.layers[0]
            pages = layer.pages
            for paged, new in ((layer.keys, k), (layer.values, v)):
                device.paged_update_cache(paged, new, update_idxs_tensor=pages.written, page_table=pages.table)
            out = device.paged_scaled_dot_product_attention_decode(
                q,
                layer.keys,
                layer.values,
                page_table=pages.table,
                cur_pos_tensor=pages.queried,
                scale=0.2,
                sliding_window_size=window,
            )
            shown.append(read(device, out))
            device.deallocate(out)
        assert shown[0].tobytes() == shown[1].tobytes()
        assert np.isfinite(shown[0].astype(np.float32)).all()
        for tensor in (q, k, v):
            device.deallocate(tensor)


def test_the_default_context_is_the_model_s_up_to_4096(tiny: Checkpoint) -> None:
    for most, positions in ((512, 512), (4095, 4064), (4096, 4096), (131072, 4096)):
        config = tiny.config.model_copy(update={"max_position_embeddings": most})
        assert default_settings(config, DType.BFLOAT16).max_positions == positions


def test_the_device_is_told_each_position(tiny: Checkpoint, settings: DecoderSettings) -> None:
    device = SimDevice()
    cache = PagedKvCache(device, tiny.config, settings, StepStats())
    for expected in range(3):
        assert cache.advance() == [expected]
        assert read(device, cache.layers[1].pages.written).tolist() == [[expected]]
        assert read(device, cache.rope_positions).tolist() == [[expected]]


def test_new_blocks_hold_nan_even_where_an_old_sequence_was(tiny: Checkpoint, settings: DecoderSettings) -> None:
    device = SimDevice()
    old = PagedKvCache(device, tiny.config, settings, StepStats())
    keys = old.layers[0].keys
    device.copy_host_to_device_tensor(np.ones(keys.shape, DType.BFLOAT16.host), keys)
    old.close()
    new = PagedKvCache(device, tiny.config, settings, StepStats())
    for layer in new.layers:
        assert np.isnan(read(device, layer.keys).astype(np.float32)).all()
        assert np.isnan(read(device, layer.values).astype(np.float32)).all()
