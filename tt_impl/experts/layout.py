"""How one routed expert lies in its slot: gate, up and down, each its fp8 bytes and then its fp32 scale grid's bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.config import Kolibri1Config
from oracle.kolibri1.inventory import EXPERT_PROJECTIONS, SCALE_SUFFIX, expert_weight
from tt_impl.device.dram_bytes import dram_bytes
from tt_impl.device.protocol import Bytes, DType, HostArray, Layout
from tt_impl.experts.dequant import dequantize


@dataclass(frozen=True)
class Segment:
    """One projection's place in a slot: bytes `start` to `grid`, and its scale grid's, `grid` to `stop`."""

    projection: str
    shape: tuple[int, int]
    grid_shape: tuple[int, int]
    start: int
    grid: int
    stop: int

    def dequantize(self, image: Bytes, dtype: DType) -> HostArray:
        """This projection's weight [out, in] from a slot's whole image."""
        quantized = image[self.start : self.grid].reshape(self.shape)
        return dequantize(quantized, image[self.grid : self.stop].view(np.float32).reshape(self.grid_shape), dtype)


@dataclass(frozen=True)
class ExpertLayout:
    """All segments in slot order, and the bytes of a slot."""

    segments: tuple[Segment, ...]
    nbytes: int

    @classmethod
    def of(cls, config: Kolibri1Config) -> ExpertLayout:
        block_rows, block_columns = config.quantization_config.weight_block_size
        segments, start = [], 0
        for projection in EXPERT_PROJECTIONS:
            rows, columns = config.fp8_shapes()[f"mlp.experts.E.{projection}"]
            grid_shape = (rows // block_rows, columns // block_columns)
            grid = start + rows * columns
            stop = grid + 4 * grid_shape[0] * grid_shape[1]
            segments.append(Segment(projection, (rows, columns), grid_shape, start, grid, stop))
            start = stop
        return cls(tuple(segments), start)

    @property
    def slot_bytes(self) -> int:
        """DRAM that a slot takes: more than `nbytes`, for its pages are dealt out over the banks (`device.pages`)."""
        return dram_bytes((self.nbytes,), DType.UINT8, Layout.ROW_MAJOR)

    def memo_bytes(self, dtype: DType) -> int:
        """DRAM that one expert dequantized takes: two matrices in tiles, gate and up stacked to one."""
        (rows, columns), down = (self.segment(name).shape for name in ("up_proj", "down_proj"))
        return sum(dram_bytes(shape, dtype, Layout.TILE) for shape in ((2 * rows, columns), down))

    def segment(self, projection: str) -> Segment:
        return next(segment for segment in self.segments if segment.projection == projection)


class ExpertSource(Protocol):
    """Where fills take their bytes from: the host's memory."""

    def payload(self, layer: int, expert: int) -> Bytes:
        """The expert's slot image, uint8 [ExpertLayout.nbytes]: each projection from its own bytes."""
        ...


class CheckpointExperts:
    """Experts straight from the checkpoint's shards."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def payload(self, layer: int, expert: int) -> Bytes:
        names = [expert_weight(layer, expert, projection) for projection in EXPERT_PROJECTIONS]
        return np.concatenate([self._checkpoint.raw(part) for name in names for part in (name, name + SCALE_SUFFIX)])
