"""The paged KV cache of one or more sequences: blocks scattered by permuted page tables, sliding layers' bounded to the window.

A full layer has, for each user, a block for every `block_size` positions of the context. A sliding layer has a ring of as few
as hold a window wherever it begins (`plans.kv_plan.sliding_blocks`): logical block b lies in block b mod n of the ring, over
what no query can see any more. Both kinds have a page table of their own, which names every logical block of every user.

A table is a permutation over all users' blocks without fixed order, so that code which forgets it reads other positions' keys,
and code which forgets the user another sequence's. When all sequences begin, they get new, poisoned blocks: a position that
was never written can't pass for an old one. A sequence that begins beside others keeps its blocks, and sees none of what it
has not written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from oracle.errors import UsageError
from oracle.kolibri1.config import Kolibri1Config
from tt_impl.device.protocol import Device, DType, Layout, Tensor
from tt_impl.lifetimes import Scratch
from tt_impl.memo import upload
from tt_impl.plans.kv_plan import cache_shape, layer_blocks
from tt_impl.settings import DecoderSettings
from tt_impl.stats import StepStats


@dataclass(frozen=True)
class LayerCache:
    """K and V of one layer, each TILE [blocks, key/value heads, block size, head size].

    `page_table` is INT32 ROW_MAJOR [users, logical blocks], shared by all layers of its kind.
    """

    keys: Tensor
    values: Tensor
    page_table: Tensor


class PagedKvCache:
    """Caches of all layers, their page tables, and the users' positions on host and device.

    Args:
        stats: told how much the caches take.

    Attributes:
        active: the users that take part in the present step.
        written: INT32 ROW_MAJOR [1, users], where each user's key and value go; -1 for one that idles, which writes nothing.
        queried: the same for its query, but 0 for one that idles. It is the same tensor where there is one user. ttnn leaves
            the rows of a user at -1 unspecified, and the experts' outputs of all users are multiplied by zeros and ones where
            each takes its own: there a row that is no number would spread. So whoever idles sees position 0, which always
            holds numbers.
        rope_positions: UINT32 ROW_MAJOR [1, users], `queried` as look-ups take it.
    """

    def __init__(self, device: Device, config: Kolibri1Config, settings: DecoderSettings, stats: StepStats) -> None:
        self._device = device
        self._max_positions = settings.max_positions
        self._positions = [-1] * settings.users
        self.active: tuple[int, ...] = ()
        row = (1, settings.users)
        self.written = device.allocate_tensor_on_device(row, DType.INT32, Layout.ROW_MAJOR, "position")
        self.rope_positions = device.allocate_tensor_on_device(row, DType.UINT32, Layout.ROW_MAJOR, "rope_positions")
        self._small = [self.written, self.rope_positions]
        self.queried = self.written
        if settings.users > 1:
            self.queried = device.allocate_tensor_on_device(row, DType.INT32, Layout.ROW_MAJOR, "query_position")
            self._small.append(self.queried)
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
        present = np.full((1, len(self._positions)), -1)
        for user in active:
            self._positions[user] += 1
            present[0, user] = self._positions[user]
        self._tell(self.written, present)
        self._tell(self.rope_positions, np.maximum(present, 0))
        if self.queried is not self.written:
            self._tell(self.queried, np.maximum(present, 0))
        return [self._positions[user] for user in active]

    def restart(self, user: int) -> None:
        """`user` begins a new sequence in its own blocks; the others go on."""
        self._positions[user] = -1

    def close(self) -> None:
        """Give back all device memory."""
        for cache in self.layers:
            self._device.deallocate(cache.keys)
            self._device.deallocate(cache.values)
        for tensor in self._small:
            self._device.deallocate(tensor)

    def _layers(self, config: Kolibri1Config, settings: DecoderSettings, stats: StepStats) -> list[LayerCache]:
        device, users = self._device, settings.users
        context, block_size = settings.max_positions, settings.block_size
        rng = np.random.default_rng(settings.page_seed)
        tables: dict[bool, Tensor] = {}
        layers: list[LayerCache] = []
        stats.kv_bytes = 0
        for layer in range(config.num_hidden_layers):
            sliding = config.is_sliding(layer)
            blocks = layer_blocks(config, layer, context=context, block_size=block_size)
            if sliding not in tables:
                label = "ring_page_table" if sliding else "page_table"
                table = page_table(users, blocks, context // block_size, rng)
                tables[sliding] = upload(device, label, table, DType.INT32, Layout.ROW_MAJOR)
                self._small.append(tables[sliding])
            shape = cache_shape(config, users * blocks, block_size)
            before = device.get_memory_view().allocated_bytes
            keys, values = (
                device.allocate_tensor_on_device(shape, settings.activation, Layout.TILE, f"layer{layer}.{part}_cache")
                for part in "kv"
            )
            stats.kv_bytes += device.get_memory_view().allocated_bytes - before
            layers.append(LayerCache(keys, values, tables[sliding]))
        return layers

    def _hold_numbers_at_0(self, config: Kolibri1Config, settings: DecoderSettings) -> None:
        """Zeros at position 0 of every user, for those that idle before they have begun."""
        device = self._device
        self._tell(self.queried, np.zeros((1, settings.users)))
        zeros = np.zeros((settings.users, config.num_key_value_heads, config.head_dim), settings.activation.host)
        with Scratch(device) as scratch:
            nothing = scratch.own(upload(device, "nothing", zeros, settings.activation, Layout.TILE))
            for cache in self.layers:
                for paged in (cache.keys, cache.values):
                    device.paged_update_cache(paged, nothing, update_idxs_tensor=self.queried, page_table=cache.page_table)

    def _tell(self, tensor: Tensor, positions: npt.NDArray[np.generic]) -> None:
        self._device.copy_host_to_device_tensor(positions.astype(tensor.dtype.host), tensor)


def page_table(users: int, blocks: int, logical: int, rng: np.random.Generator) -> npt.NDArray[np.int32]:
    """int32 [users, logical]: the physical block of each logical one, of `blocks` in a ring; never in their own order.

    With one block of one user there is no other order.
    """
    order = rng.permutation(users * blocks)
    if (order == np.arange(users * blocks)).all():
        order = np.roll(order, 1)
    return order.reshape(users, blocks)[:, np.arange(logical) % blocks].astype(np.int32)
