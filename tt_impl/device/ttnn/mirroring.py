"""A device that holds nothing, as ttnn's mock device, with the host's own writes to be read back."""

from __future__ import annotations

from typing import Any

from tt_impl.device.passing import Passing
from tt_impl.device.protocol import Bytes, Device, DType, HostArray, Layout, ReadHandle, Tensor
from tt_impl.device.sim.layout import pack, unpack


class MirroredRead:
    """A read whose bytes are replaced by those that the host had written, if it had; see `protocol.ReadHandle`."""

    def __init__(self, read: ReadHandle, tensor: Tensor, written: Bytes | None) -> None:
        self._read, self._written = read, written
        self._as: tuple[tuple[int, ...], DType, Layout] = (tensor.shape, tensor.dtype, tensor.layout)

    @property
    def settled(self) -> bool:
        return self._read.settled

    @property
    def event(self) -> int:
        return self._read.event

    def bytes(self) -> Bytes:
        found = self._read.bytes()
        if self._written is not None:
            found[:] = self._written
        return found

    def array(self) -> HostArray:
        return unpack(self.bytes(), *self._as)


class Mirroring(Passing):
    """Hands every call on. A tensor that the host wrote last reads back as that; what ops make stays what the device gives.

    So a decoder's own verification of fills passes, and nothing is verified: no value on such a device means anything.

    Args:
        withheld_bytes: writes of more are neither handed on nor kept: the device would forget them anyhow, and the release's
            embedding and head take seconds and gigabytes to pack.
    """

    def __init__(self, device: Device, *, withheld_bytes: int | None = None) -> None:
        super().__init__(device)
        self._most = withheld_bytes
        self._written: dict[int, tuple[int, Bytes]] = {}
        self._allocated: list[Tensor] = []

    def allocate_tensor_on_device(self, *arguments: Any, **named: Any) -> Tensor:
        self._allocated.append(self._device.allocate_tensor_on_device(*arguments, **named))
        return self._allocated[-1]

    def deallocate(self, tensor: Tensor) -> None:
        self._device.deallocate(tensor)
        self._written.pop(tensor.identity, None)

    def copy_host_to_device_tensor(self, array: HostArray, tensor: Tensor, **queue: Any) -> None:
        if self._most is not None and array.nbytes > self._most:
            return
        self._device.copy_host_to_device_tensor(array, tensor, **queue)
        self._written[tensor.identity] = (tensor.generation, pack(array, tensor.layout, tensor.dtype))

    def copy_device_to_host_tensor(self, tensor: Tensor, *arguments: Any, **named: Any) -> MirroredRead:
        read = self._device.copy_device_to_host_tensor(tensor, *arguments, **named)
        generation, written = self._written.get(tensor.identity, (None, None))
        return MirroredRead(read, tensor, written if generation == tensor.generation else None)

    def free_all(self) -> None:
        """Give back every tensor that was allocated through this and is still there."""
        for tensor in self._allocated:
            if tensor.is_allocated:
                self.deallocate(tensor)
        self._allocated.clear()
