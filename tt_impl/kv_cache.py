"""The paged KV cache of one sequence: blocks scattered by permuted page tables, sliding layers' bounded to the window.

A full layer has a block for every `block_size` positions of the context. A sliding layer has a ring of as few as hold a
window wherever it begins (`plans.kv_plan.sliding_blocks`): logical block b lies in block b mod n of the ring, over what no
query can see any more. Both kinds have a page table of their own, which names every logical block.

A table is a permutation without fixed order, so that code which forgets it reads other positions' keys. A new sequence
gets new, poisoned blocks: a position that was never written can't pass for an old one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from oracle.errors import UsageError
from oracle.kolibri1.config import Kolibri1Config
from tt_impl.device.protocol import Device, DType, Layout, Tensor
from tt_impl.memo import upload
from tt_impl.plans.kv_plan import cache_shape, layer_blocks
from tt_impl.settings import DecoderSettings
from tt_impl.stats import StepStats


@dataclass(frozen=True)
class LayerCache:
    """K and V of one layer, each TILE [blocks, key/value heads, block size, head size].

    `page_table` is INT32 ROW_MAJOR [1, logical blocks], shared by all layers of its kind.
    """

    keys: Tensor
    values: Tensor
    page_table: Tensor


class PagedKvCache:
    """Caches of all layers, their page tables, and the current position on host and device.

    Args:
        stats: told how much the caches take.

    Attributes:
        position: of the token being computed; counted here.
        position_tensor: INT32 ROW_MAJOR [1, 1], holding `position`.
        rope_positions: UINT32 ROW_MAJOR [1, 1], the same, as look-ups take it.
    """

    def __init__(self, device: Device, config: Kolibri1Config, settings: DecoderSettings, stats: StepStats) -> None:
        self._device = device
        self._max_positions = settings.max_positions
        self.position = -1
        self.position_tensor = device.allocate_tensor_on_device((1, 1), DType.INT32, Layout.ROW_MAJOR, "position")
        self.rope_positions = device.allocate_tensor_on_device((1, 1), DType.UINT32, Layout.ROW_MAJOR, "rope_positions")
        context, block_size = settings.max_positions, settings.block_size
        rng = np.random.default_rng(settings.page_seed)
        tables: dict[bool, Tensor] = {}
        self.layers: list[LayerCache] = []
        stats.kv_bytes = 0
        for layer in range(config.num_hidden_layers):
            sliding = config.is_sliding(layer)
            blocks = layer_blocks(config, layer, context=context, block_size=block_size)
            if sliding not in tables:
                label = "ring_page_table" if sliding else "page_table"
                table = page_table(blocks, context // block_size, rng)
                tables[sliding] = upload(device, label, table, DType.INT32, Layout.ROW_MAJOR)
            shape = cache_shape(config, blocks, block_size)
            before = device.get_memory_view().allocated_bytes
            keys, values = (
                device.allocate_tensor_on_device(shape, settings.activation, Layout.TILE, f"layer{layer}.{part}_cache")
                for part in "kv"
            )
            stats.kv_bytes += device.get_memory_view().allocated_bytes - before
            self.layers.append(LayerCache(keys, values, tables[sliding]))
        self._small = (*tables.values(), self.position_tensor, self.rope_positions)

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
        for tensor in self._small:
            self._device.deallocate(tensor)


def page_table(blocks: int, logical: int, rng: np.random.Generator) -> npt.NDArray[np.int32]:
    """int32 [1, logical]: the physical block of each logical one, of `blocks` in a ring; never in their own order.

    With one block there is no other order.
    """
    order = rng.permutation(blocks)
    if (order == np.arange(blocks)).all():
        order = np.roll(order, 1)
    return order[np.arange(logical) % blocks][None].astype(np.int32)
