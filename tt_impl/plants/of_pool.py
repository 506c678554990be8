"""Expert pools with one fault each, as a port once had it; `catalogue` enters them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tt_impl.device.protocol import Bytes
from tt_impl.experts.memo import FeedForwardWeights, Memo, MemoKey
from tt_impl.experts.pool import ExpertPool


class _StaleMemo(Memo):
    """Knows each slot by its first key."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._first: dict[tuple[int, int], MemoKey] = {}

    def obtain(self, key: MemoKey, image: Callable[[], Bytes]) -> FeedForwardWeights:
        return super().obtain(self._first.setdefault((key.layer, key.slot), key), image)


class ServesStaleMemos(ExpertPool):
    memo_type = _StaleMemo


class RecordsLate(ExpertPool):
    def release(self, layer: int) -> None:
        super().release(layer)
        self._epoch.begin_step()  # compares and re-records, and nobody listens


class CountsSwapsLate(ExpertPool):
    def _evicted(self, layer: int, expert: int, slot: int) -> None:
        super()._evicted(layer, expert, slot)
        self._stats.slot_swaps -= 1  # `Has(slot)`, asked here, was always no: nothing was ever added
