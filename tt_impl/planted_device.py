"""The planted faults of `plants` that lie in a device, for a device that has no plan of faults: by changing calls on their way.

A bit that flips as a write lands is one that is written flipped; a settling left out is a call not handed on. What each must
be caught by is what `plants.PLANTS` says of the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np

from tt_impl.device.protocol import Device, HostArray, Tensor


class _Passing:
    """A device that hands every call on."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)


class _FlipsAWrite(_Passing):
    """One bit of the first write to a row-major tensor of bytes."""

    def __init__(self, device: Device, label: str, offset: int, mask: int) -> None:
        super().__init__(device)
        self._label, self._offset, self._mask = label, offset, mask

    def copy_host_to_device_tensor(self, array: HostArray, tensor: Tensor, **queue: int) -> None:
        if tensor.label == self._label:
            self._label = ""
            array = array.copy()
            array.reshape(-1)[self._offset] ^= self._mask
        self._device.copy_host_to_device_tensor(array, tensor, **queue)


class _SkipsASynchronize(_Passing):
    """Leaves out its `which`-th synchronization, counted from 1."""

    def __init__(self, device: Device, which: int) -> None:
        super().__init__(device)
        self._left = which

    def synchronize_device(self, **queue: Any) -> None:
        self._left -= 1
        if self._left != 0:
            self._device.synchronize_device(**queue)


class _CorruptsLate(_Passing):
    """Flips the lowest bit of one row-major tensor's byte 0 after its `which`-th synchronization, counted from 1."""

    def __init__(self, device: Device, label: str, which: int) -> None:
        super().__init__(device)
        self._label, self._left = label, which
        self._victim: Tensor | None = None

    def copy_host_to_device_tensor(self, array: HostArray, tensor: Tensor, **queue: int) -> None:
        if tensor.label == self._label:
            self._victim = tensor
        self._device.copy_host_to_device_tensor(array, tensor, **queue)

    def synchronize_device(self, **queue: Any) -> None:
        self._device.synchronize_device(**queue)
        self._left -= 1
        if self._left == 0 and self._victim is not None:
            held = self._device.copy_device_to_host_tensor(self._victim, blocking=True).array().copy()
            held.reshape(-1).view(np.uint8)[0] ^= 1
            self._device.copy_host_to_device_tensor(held, self._victim)


PLANTED: Mapping[str, Callable[[Device, int], Any]] = {
    "slot-byte": lambda device, layer: _FlipsAWrite(device, f"layer{layer}.slot0", 5, 0x10),
    "resident-byte": lambda device, layer: _FlipsAWrite(device, f"model.layers.{layer}.self_attn.o_proj.weight", 7, 0x02),
    "missing-drain": lambda device, layer: _SkipsASynchronize(device, layer + 1),
    "norm-byte-late": lambda device, layer: _CorruptsLate(device, f"model.layers.{layer}.input_layernorm.weight", layer + 1),
}
"""By the plant's name: what changes the calls to a device, for the layer that plants go for."""


def planted(device: Device, plant: str | None, layer: int) -> Device:
    """The device with `plant` in it, where that is a fault of a device; the device itself for the others.

    Args:
        layer: the layer that plants go for, from 0.
    """
    plant_in = PLANTED.get(plant or "")
    return device if plant_in is None else cast(Device, plant_in(device, layer))
