"""A tensor on the simulated card."""

from __future__ import annotations

from tt_impl.device.protocol import DType, Layout
from tt_impl.device.sim.buffer import Buffer


class SimTensor:
    """A buffer and how to read it. See `protocol.Tensor`."""

    __slots__ = ("buffer", "dtype", "identity", "label", "layout", "shape")

    def __init__(self, shape: tuple[int, ...], dtype: DType, layout: Layout, buffer: Buffer) -> None:
        self.shape, self.dtype, self.layout, self.buffer = shape, dtype, layout, buffer
        self.label, self.identity = buffer.label, buffer.identity

    @property
    def generation(self) -> int:
        return self.buffer.generation

    @property
    def is_allocated(self) -> bool:
        return self.buffer.is_allocated
