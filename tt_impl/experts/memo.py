"""Dequantized experts on the device, kept for reuse.

fp8 has no matrix op on the device, so a slot's expert is dequantized on the host from its verified shadow and uploaded in
the computing dtype. A memo is named by what it was made from, (layer, expert, slot, generation of that slot), never by an
address, so a refilled slot can't be served by its predecessor's memo. One whose expert left its slot is *retired*: never
served again, the first to go for want of room, and freed at the latest where the content epoch moves.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from oracle.kolibri1.inventory import EXPERT_PROJECTIONS
from tt_impl.device.protocol import Bytes, Device, DType, HostArray, Layout, Tensor
from tt_impl.experts.layout import ExpertLayout
from tt_impl.operands import expert_label
from tt_impl.phases import phase
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


@dataclass
class _Entry:
    key: MemoKey
    weights: FeedForwardWeights
    retired: bool = False


class Memo:
    """Dequantized experts of all layers in at most `budget` device bytes; drops the least recently used.

    Args:
        budget: at least `ExpertLayout.memo_bytes`.
    """

    def __init__(self, device: Device, layout: ExpertLayout, dtype: DType, budget: int, stats: StepStats) -> None:
        self._device = device
        self._layout = layout
        self._dtype = dtype
        self._budget = budget
        self._nbytes = layout.memo_bytes(dtype)
        self._stats = stats
        self._entries: OrderedDict[tuple[int, int], _Entry] = OrderedDict()  # by (layer, expert); the first goes first

    @phase("dequantization")
    def obtain(self, key: MemoKey, image: Callable[[], Bytes]) -> FeedForwardWeights:
        """The expert's weights on the device; made from its slot's `image` if there is no memo of exactly `key`."""
        place = key[:2]
        entry = self._entries.get(place)
        if entry is not None and entry.key == key:
            self._stats.memo_hits += 1
            self._entries.move_to_end(place)
            return entry.weights
        self._stats.memo_misses += 1
        if entry is not None:
            self.retire(key.layer, key.expert)
            self._drop()
        while self._stats.memo_bytes + self._nbytes > self._budget:
            self._stats.memo_evictions += not self._drop().retired
        source = image()
        parts = {segment.projection: segment.dequantize(source, self._dtype) for segment in self._layout.segments}
        gate, up, down = (parts[name] for name in EXPERT_PROJECTIONS)
        weights = upload_feed_forward(self._device, expert_label(*key), self._dtype, gate, up, down)
        self._entries[place] = _Entry(key, weights)
        self._stats.memo_bytes += self._nbytes
        self._stats.memo_bytes_peak = max(self._stats.memo_bytes_peak, self._stats.memo_bytes)
        return weights

    def retire(self, layer: int, expert: int) -> None:
        """What was made from the expert's last fill, if it is still here, no longer counts."""
        entry = self._entries.get((layer, expert))
        if entry is not None:
            self._stats.memo_releases += not entry.retired
            entry.retired = True
            self._entries.move_to_end((layer, expert), last=False)

    def sweep(self) -> None:
        """Free what is retired; it all stands in front."""
        while self._entries and next(iter(self._entries.values())).retired:
            self._drop()

    def close(self) -> None:
        """Drop everything."""
        while self._entries:
            self._drop()

    def _drop(self) -> _Entry:
        """Free the first."""
        _, entry = self._entries.popitem(last=False)
        for tensor in entry.weights:
            self._device.deallocate(tensor)
        self._stats.memo_bytes -= self._nbytes
        return entry


def upload_feed_forward(
    device: Device, label: str, dtype: DType, gate: HostArray, up: HostArray, down: HostArray
) -> FeedForwardWeights:
    """Upload gate and up [width, hidden], stacked, and down [hidden, width]; after a fault neither is there."""
    up_gate = upload(device, f"{label}.up_gate", np.concatenate((up, gate)), dtype, Layout.TILE)
    try:
        return FeedForwardWeights(up_gate, upload(device, f"{label}.down", down, dtype, Layout.TILE))
    except BaseException:
        device.deallocate(up_gate)
        raise


def upload(device: Device, label: str, array: HostArray, dtype: DType, layout: Layout) -> Tensor:
    """A new device tensor holding `array`, which has exactly `dtype`'s bits; after a fault there is none."""
    tensor = device.allocate_tensor_on_device(array.shape, dtype, layout, label)
    try:
        device.copy_host_to_device_tensor(array, tensor)
    except BaseException:
        device.deallocate(tensor)
        raise
    return tensor
