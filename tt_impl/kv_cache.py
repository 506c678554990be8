"""The paged KV cache of one sequence: blocks scattered by a permuted page table.

The table is a permutation without fixed order, so that code which forgets it reads other positions' keys. A new sequence
gets new, poisoned blocks: a position that was never written can't pass for an old one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from oracle.errors import UsageError
from oracle.kolibri1.config import Kolibri1Config
from tt_impl.device.protocol import Device, DType, Layout, Tensor
from tt_impl.memo import upload
from tt_impl.settings import DecoderSettings


@dataclass(frozen=True)
class LayerCache:
    """K and V of one layer, each TILE [blocks, key/value heads, block size, head size]."""

    keys: Tensor
    values: Tensor


class PagedKvCache:
    """Caches of all layers, their one page table, and the current position on host and device.

    Attributes:
        position: of the token being computed; counted here.
        page_table: INT32 ROW_MAJOR [1, blocks].
        position_tensor: INT32 ROW_MAJOR [1, 1], holding `position`.
        rope_positions: UINT32 ROW_MAJOR [1, 1], the same, as look-ups take it.
    """

    def __init__(self, device: Device, config: Kolibri1Config, settings: DecoderSettings) -> None:
        blocks = settings.max_positions // settings.block_size
        shape = (blocks, config.num_key_value_heads, settings.block_size, config.head_dim)
        order = np.random.default_rng(settings.page_seed).permutation(blocks).astype(np.int32)
        self._device = device
        self._max_positions = settings.max_positions
        self.position = -1
        self.page_table = upload(device, "page_table", order[None], DType.INT32, Layout.ROW_MAJOR)
        self.position_tensor = device.allocate_tensor_on_device((1, 1), DType.INT32, Layout.ROW_MAJOR, "position")
        self.rope_positions = device.allocate_tensor_on_device((1, 1), DType.UINT32, Layout.ROW_MAJOR, "rope_positions")
        self.layers = [
            LayerCache(
                device.allocate_tensor_on_device(shape, settings.activation, Layout.TILE, f"layer{layer}.k_cache"),
                device.allocate_tensor_on_device(shape, settings.activation, Layout.TILE, f"layer{layer}.v_cache"),
            )
            for layer in range(config.num_hidden_layers)
        ]

    def advance(self) -> int:
        """Go to the next position, and return it.

        Raises:
            UsageError: the cache is full.
        """
        if self.position + 1 >= self._max_positions:
            raise UsageError(
                f"position {self.position + 1} does not fit in a KV cache of {self._max_positions} positions; "
                "use a shorter prompt or raise max_positions"
            )
        self.position += 1
        for positions in (self.position_tensor, self.rope_positions):
            row = np.array([[self.position]], positions.dtype.host)
            self._device.copy_host_to_device_tensor(row, positions)
        return self.position

    def close(self) -> None:
        """Give back all device memory."""
        for cache in self.layers:
            self._device.deallocate(cache.keys)
            self._device.deallocate(cache.values)
        self._device.deallocate(self.page_table)
        self._device.deallocate(self.position_tensor)
        self._device.deallocate(self.rope_positions)
