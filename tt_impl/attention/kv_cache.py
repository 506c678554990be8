"""The paged KV cache of one or more sequences: blocks scattered by permuted page tables, sliding layers' bounded to the window.

A full layer has, for each user, a block for every `block_size` positions of the context; a sliding layer a ring of as few as
hold a window wherever it begins (`plans.kv_plan.sliding_blocks`). Each kind has page tables of its own (`kv_pages`).

A table is a permutation over all users' blocks without fixed order, so that code which forgets it reads other positions' keys,
and code which forgets the user another sequence's. When all sequences begin, they get new, poisoned blocks: a position that
was never written can't pass for an old one. A sequence that begins beside others keeps its blocks, and sees none of what it
has not written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from oracle.errors import UsageError
from oracle.kolibri1.config import Kolibri1Config
from tt_impl.attention.kv_pages import Pages
from tt_impl.device.protocol import TILE_SIDE, Device, DType, Layout, Tensor
from tt_impl.experts.memo import upload
from tt_impl.lifetimes import Scratch
from tt_impl.plans.kv_plan import cache_shape, layer_blocks
from tt_impl.settings import DecoderSettings
from tt_impl.stats import StepStats


@dataclass(frozen=True)
class LayerCache:
    """K and V of one layer, each TILE [blocks, key/value heads, block size, head size]; `pages` of all layers of its kind."""

    keys: Tensor
    values: Tensor
    pages: Pages


class PagedKvCache:
    """Caches of all layers, their pages, and the users' positions on host and device.

    Args:
        stats: told how much the caches take.

    Attributes:
        active: the users that take part in the present step.
        rope_positions: UINT32 ROW_MAJOR [1, users], the positions as look-ups take them; 0 for one that idles.
    """

    def __init__(self, device: Device, config: Kolibri1Config, settings: DecoderSettings, stats: StepStats) -> None:
        self._device = device
        self._max_positions = settings.max_positions
        self._positions = [-1] * settings.users
        self._pages: dict[bool, Pages] = {}
        self.active: tuple[int, ...] = ()
        self.rope_positions = device.allocate_tensor_on_device(
            (1, settings.users), DType.UINT32, Layout.ROW_MAJOR, "rope_positions"
        )
        self.layers = self._layers(config, settings, stats)
        if settings.users > 1:
            self._hold_numbers_at_0(config, settings)

    def advance(self, active: Sequence[int] = (0,)) -> list[int]:
        """Go to the next position of each user of `active`, rising, and return them; the others stay where they are.

        Raises:
            UsageError: a user's cache is full; nobody has moved.
        """
        for user in active:
            if self._positions[user] + 1 >= self._max_positions:
                raise UsageError(
                    f"position {self._positions[user] + 1} does not fit in a KV cache of {self._max_positions} positions; "
                    "use a shorter prompt or raise max_positions"
                )
        self.active = tuple(active)
        turned = np.zeros((1, len(self._positions)), np.uint32)
        for user in active:
            self._positions[user] += 1
            turned[0, user] = self._positions[user]
        self._device.copy_host_to_device_tensor(turned, self.rope_positions)
        for pages in self._pages.values():
            pages.tell(self._positions, active)
        return [self._positions[user] for user in active]

    def restart(self, user: int) -> None:
        """`user` begins a new sequence in its own blocks; the others go on."""
        self._positions[user] = -1

    def close(self) -> None:
        """Give back all device memory."""
        for cache in self.layers:
            self._device.deallocate(cache.keys)
            self._device.deallocate(cache.values)
        for tensor in (self.rope_positions, *(tensor for pages in self._pages.values() for tensor in pages.tensors)):
            self._device.deallocate(tensor)

    def _layers(self, config: Kolibri1Config, settings: DecoderSettings, stats: StepStats) -> list[LayerCache]:
        device, users, block_size = self._device, settings.users, settings.block_size
        rng = np.random.default_rng(settings.page_seed)
        layers: list[LayerCache] = []
        stats.kv_bytes = stats.small_blocks = 0
        for layer in range(config.num_hidden_layers):
            sliding = config.is_sliding(layer)
            blocks = layer_blocks(config, layer, context=settings.max_positions, block_size=block_size)
            if sliding not in self._pages:
                label = "ring_" if sliding else ""
                self._pages[sliding] = Pages(device, label, users=users, blocks=blocks, block_size=block_size, rng=rng)
            shape = cache_shape(config, users * blocks, block_size)
            before = device.get_memory_view().allocated_bytes
            keys, values = (
                device.allocate_tensor_on_device(shape, settings.activation, Layout.TILE, f"layer{layer}.{part}_cache")
                for part in "kv"
            )
            stats.kv_bytes += device.get_memory_view().allocated_bytes - before
            count, _, positions, _ = keys.shape
            stats.small_blocks += count if positions < TILE_SIDE else 0
            layers.append(LayerCache(keys, values, self._pages[sliding]))
        return layers

    def _hold_numbers_at_0(self, config: Kolibri1Config, settings: DecoderSettings) -> None:
        """Zeros at position 0 of every user, for those that idle before they have begun."""
        device = self._device
        zeros = np.zeros((settings.users, config.num_key_value_heads, config.head_dim), settings.activation.host)
        with Scratch(device) as scratch:
            nothing = scratch.own(upload(device, "nothing", zeros, settings.activation, Layout.TILE))
            for cache in self.layers:
                pages = cache.pages
                for paged in (cache.keys, cache.values):
                    device.paged_update_cache(paged, nothing, update_idxs_tensor=pages.queried, page_table=pages.table)
