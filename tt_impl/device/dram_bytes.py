"""What a tensor takes of a card's DRAM, from its shape alone."""

from __future__ import annotations

from collections.abc import Sequence

from tt_impl.device.protocol import DType, Layout
from tt_impl.device.sim.geometry import P150
from tt_impl.device.sim.layout import packed_bytes, page_bytes


def dram_bytes(shape: Sequence[int], dtype: DType, layout: Layout) -> int:
    """Bytes over all of a P150's banks, each taking as much as the fullest (`sim.geometry.DramGeometry`)."""
    shape = tuple(shape)
    return P150.banks * P150.bank_share(packed_bytes(shape, dtype, layout), page_bytes(shape, dtype, layout))
