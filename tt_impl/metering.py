"""Bytes each way, counted where the decoder hands them over: by shape and dtype, not by the device's own log."""

from __future__ import annotations

import math
from typing import Any, cast

from tt_impl.device.passing import Passing
from tt_impl.device.protocol import TILE_SIDE, Bytes, Device, HostArray, Layout, ReadHandle, Tensor
from tt_impl.stats import StepStats


class Meter(Passing):
    """Stands before a device, passes everything on, and counts transfers into `stats`."""

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self.stats = StepStats()

    @property
    def device(self) -> Device:
        """This meter, as the device that it passes everything on to."""
        return cast(Device, self)

    def copy_host_to_device_tensor(self, array: HostArray, tensor: Tensor, **rest: Any) -> None:
        self._device.copy_host_to_device_tensor(array, tensor, **rest)
        self.stats.bytes_written += _packed_bytes(tensor)

    def copy_device_to_host_tensor(
        self, tensor: Tensor, destination: Bytes | None = None, *, blocking: bool, **rest: Any
    ) -> ReadHandle:
        handle = self._device.copy_device_to_host_tensor(tensor, destination, blocking=blocking, **rest)
        self.stats.bytes_read += _packed_bytes(tensor)
        return handle


def _packed_bytes(tensor: Tensor) -> int:
    """What a tensor takes in its layout, padding of whole tiles included."""
    shape = tensor.shape
    if tensor.layout is Layout.TILE:
        shape = (*shape[:-2], *(-(-side // TILE_SIDE) * TILE_SIDE for side in shape[-2:]))
    return math.prod(shape) * tensor.dtype.item_bytes
