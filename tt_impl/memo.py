"""Dequantized experts on the device, kept for reuse.

fp8 has no matrix op on the device, so a slot's expert is dequantized on the host from its verified shadow and uploaded in
the computing dtype. A memo is named by what it was made from, (layer, expert, slot, generation of that slot), never by an
address, so a refilled slot can't be served by its predecessor's memo.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

import numpy as np

from oracle.kolibri1.inventory import EXPERT_PROJECTIONS
from tt_impl.device.protocol import Bytes, Device, DType, HostArray, Layout, Tensor
from tt_impl.expert_layout import ExpertLayout
from tt_impl.operands import expert_label
from tt_impl.stats import StepStats


class MemoKey(NamedTuple):
    layer: int
    expert: int
    slot: int
    generation: int


class FeedForwardWeights(NamedTuple):
    """A gated feed-forward network: `up_gate` TILE [2 * width, hidden], up rows first; `down` TILE [hidden, width]."""

    up_gate: Tensor
    down: Tensor


class Memo:
    """At most `capacity` dequantized experts over all layers; drops the least recently used."""

    def __init__(self, device: Device, layout: ExpertLayout, dtype: DType, capacity: int, stats: StepStats) -> None:
        self._device = device
        self._layout = layout
        self._dtype = dtype
        self._capacity = capacity
        self._stats = stats
        self._entries: OrderedDict[MemoKey, FeedForwardWeights] = OrderedDict()

    def obtain(self, key: MemoKey, image: Bytes) -> FeedForwardWeights:
        """The expert's weights on the device; made from its shadow `image` if there is no memo under `key`."""
        if key in self._entries:
            self._stats.memo_hits += 1
            self._entries.move_to_end(key)
            return self._entries[key]
        self._stats.memo_misses += 1
        while len(self._entries) >= self._capacity:
            _, weights = self._entries.popitem(last=False)
            self._deallocate(weights)
            self._stats.memo_evictions += 1
        parts = {segment.projection: segment.dequantize(image, self._dtype) for segment in self._layout.segments}
        gate, up, down = (parts[name] for name in EXPERT_PROJECTIONS)
        weights = upload_feed_forward(self._device, expert_label(*key), self._dtype, gate, up, down)
        self._entries[key] = weights
        return weights

    def release(self, layer: int, expert: int, slot: int) -> None:
        """The expert has left its slot: drop what was made from it."""
        for key in [key for key in self._entries if key[:3] == (layer, expert, slot)]:
            self._deallocate(self._entries.pop(key))
            self._stats.memo_releases += 1

    def close(self) -> None:
        """Drop everything."""
        while self._entries:
            self._deallocate(self._entries.popitem()[1])

    def _deallocate(self, weights: FeedForwardWeights) -> None:
        for tensor in weights:
            self._device.deallocate(tensor)


def upload_feed_forward(
    device: Device, label: str, dtype: DType, gate: HostArray, up: HostArray, down: HostArray
) -> FeedForwardWeights:
    """Upload gate and up [width, hidden], stacked, and down [hidden, width]."""
    return FeedForwardWeights(
        upload(device, f"{label}.up_gate", np.concatenate((up, gate)), dtype, Layout.TILE),
        upload(device, f"{label}.down", down, dtype, Layout.TILE),
    )


def upload(device: Device, label: str, array: HostArray, dtype: DType, layout: Layout) -> Tensor:
    """A new device tensor holding `array`, which has exactly `dtype`'s bits."""
    tensor = device.allocate_tensor_on_device(array.shape, dtype, layout, label)
    device.copy_host_to_device_tensor(array, tensor)
    return tensor
