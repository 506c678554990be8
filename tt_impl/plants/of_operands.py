"""Memos with one fault each, as a port once had it; `catalogue` enters them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tt_impl.device.protocol import Bytes, DType, HostArray
from tt_impl.experts.layout import ExpertLayout, Segment
from tt_impl.experts.memo import Memo
from tt_impl.experts.pool import ExpertPool


class _AtBf16Offset(Segment):
    """Takes its fp8 bytes from where bf16 ones would begin, twice as far; the image goes round where a port ran on."""

    def dequantize(self, image: Bytes, dtype: DType) -> HostArray:
        moved = image.copy()
        moved[self.start : self.grid] = image.take(np.arange(2 * self.start, self.start + self.grid), mode="wrap")
        return super().dequantize(moved, dtype)


class _MisplacesDown(Memo):
    def __init__(self, device: Any, layout: ExpertLayout, *rest: Any) -> None:
        *others, down = layout.segments
        moved = _AtBf16Offset(down.projection, down.shape, down.grid_shape, down.start, down.grid, down.stop)
        super().__init__(device, replace(layout, segments=(*others, moved)), *rest)


class MisplacesDown(ExpertPool):
    """Its experts' down projections are dequantized from the wrong bytes of verified slots."""

    memo_type = _MisplacesDown
