"""The host's image of what each slot must hold: the truth that a fill is verified against and dequantized from."""

from __future__ import annotations

import numpy as np

from tt_impl.device.protocol import Bytes
from tt_impl.experts.layout import ExpertLayout


class ShadowStore:
    """One image per (layer, slot), in memory of its own that nothing else writes to."""

    def __init__(self, layout: ExpertLayout) -> None:
        self._nbytes = layout.nbytes
        self._images: dict[tuple[int, int], Bytes] = {}

    def record(self, layer: int, slot: int, payload: Bytes) -> None:
        """Copy `payload` as the slot's new image. Must happen before the fill's read-back is enqueued."""
        image = self._images.get((layer, slot))
        if image is None:
            image = self._images[layer, slot] = np.empty(self._nbytes, np.uint8)
        image[:] = payload

    def image(self, layer: int, slot: int) -> Bytes:
        """The slot's present image, uint8 [ExpertLayout.nbytes]."""
        return self._images[layer, slot]
