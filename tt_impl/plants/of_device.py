"""The planted faults of `catalogue` that lie in a device, for one that has no plan of faults: by changing calls on their way.

A bit that flips as a write lands is one that is written flipped; a settling left out is a call not handed on; a quirk of an op
is about what it does to results, done to them as they are read. What each must be caught by is what `catalogue.PLANTS` says of
the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any, cast

import numpy as np
from ml_dtypes import bfloat16

from oracle.kolibri1.config import Kolibri1Config
from tt_impl.device.passing import Passing
from tt_impl.device.protocol import Device, HostArray, ReadHandle, Tensor
from tt_impl.plants.of_captures import IN_CAPTURES
from tt_impl.plants.of_census import IN_USE
from tt_impl.plants.places import MEMO_BYTE, NORM_BYTE, RESIDENT_BYTE, SLOT_BYTE, PlantedBits, drain_of


class _FlipsWrites(Passing):
    """`bits` of the first write to each tensor whose label matches: of its array's bytes, in row-major order."""

    def __init__(self, device: Device, bits: PlantedBits, layer: int) -> None:
        super().__init__(device)
        self._label, self._offset, self._mask = bits.label(layer), bits.offset, bits.mask
        self._written: set[int] = set()

    def copy_host_to_device_tensor(self, array: HostArray, tensor: Tensor, **queue: int) -> None:
        if fnmatchcase(tensor.label, self._label) and tensor.identity not in self._written:
            self._written.add(tensor.identity)
            array = array.copy()
            array.reshape(-1).view(np.uint8)[self._offset] ^= self._mask
        self._device.copy_host_to_device_tensor(array, tensor, **queue)


class _SkipsASynchronize(Passing):
    """Leaves out its `which`-th synchronization, counted from 1."""

    def __init__(self, device: Device, which: int) -> None:
        super().__init__(device)
        self._left = which

    def synchronize_device(self, **queue: Any) -> None:
        self._left -= 1
        if self._left != 0:
            self._device.synchronize_device(**queue)


class _CorruptsLate(Passing):
    """Flips `bits` of a row-major tensor after the device's `which`-th synchronization, counted from 1."""

    def __init__(self, device: Device, bits: PlantedBits, layer: int, which: int) -> None:
        super().__init__(device)
        self._label, self._bits, self._left = bits.label(layer), bits, which
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
            held.reshape(-1).view(np.uint8)[self._bits.offset] ^= self._bits.mask
            self._device.copy_host_to_device_tensor(held, self._victim)


class _Read:
    """A read whose array is changed; see `protocol.ReadHandle`."""

    def __init__(self, read: ReadHandle, change: Callable[[HostArray], HostArray]) -> None:
        self._read, self._change = read, change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._read, name)

    def array(self) -> HostArray:
        array = self._read.array()
        return self._change(array.copy()).astype(array.dtype)


class _ReadsOtherwise(Passing):
    """Results of the ops called `ops`, which their tensors are named after, come back changed."""

    def __init__(self, device: Device, ops: tuple[str, ...], change: Callable[[HostArray], HostArray]) -> None:
        super().__init__(device)
        self._ops, self._change = ops, change

    def copy_device_to_host_tensor(self, tensor: Tensor, *arguments: Any, **named: Any) -> ReadHandle:
        read = self._device.copy_device_to_host_tensor(tensor, *arguments, **named)
        return cast(ReadHandle, _Read(read, self._change)) if tensor.label in self._ops else read


def _quirk(ops: tuple[str, ...], change: Callable[[HostArray], HostArray]) -> Callable[[Device, int], Any]:
    return lambda device, layer: _ReadsOtherwise(device, ops, change)


def _zeros_if_narrow(array: HostArray) -> HostArray:
    return array * (array.shape[-1] > _HEAD)


def _flushed(array: HostArray) -> HostArray:
    return np.where(np.abs(array.astype(np.float32)) < np.finfo(np.float32).tiny, 0, array)


def _cut(array: HostArray) -> HostArray:
    """To the seven highest bits of bfloat16's eight: half a unit too small on average."""
    return (array.view(np.uint16) & 0xFFFE).view(array.dtype) if array.dtype == bfloat16 else array


_HEAD = 128
"""Columns up to which a row counts as a head: the release's head size."""

_ATTENTION = "paged_scaled_dot_product_attention_decode"

PLANTED: Mapping[str, Callable[[Device, int], Any]] = {
    "slot-byte": lambda device, layer: _FlipsWrites(device, SLOT_BYTE, layer),
    "resident-byte": lambda device, layer: _FlipsWrites(device, RESIDENT_BYTE, layer),
    "missing-drain": lambda device, layer: _SkipsASynchronize(device, drain_of(layer)),
    "memo-byte": lambda device, layer: _FlipsWrites(device, MEMO_BYTE, layer),
    "norm-byte-late": lambda device, layer: _CorruptsLate(device, NORM_BYTE, layer, drain_of(layer)),
    "quirk-norm-sum-bf16": _quirk(("rms_norm",), lambda array: array * np.float32(1.005)),
    "quirk-narrow-norm-zero": _quirk(("rms_norm",), _zeros_if_narrow),
    "quirk-fp32-on-bf16-grid": _quirk(("linear", "matmul"), lambda array: array.astype(bfloat16)),
    "quirk-subnormals-flushed": _quirk(("typecast",), _flushed),
    "quirk-ties-to-highest": _quirk(("topk", "argmax"), lambda array: array[..., ::-1]),
    "quirk-attention-sum-bf16": _quirk((_ATTENTION,), lambda array: array * np.float32(1 + 2**-6)),
    "quirk-truncating": _quirk(("add", "mul", "linear", "matmul", "rms_norm"), _cut),
}
"""By the plant's name: what changes the calls to a device, for the layer that plants go for."""


ASKED_OTHERWISE: Mapping[str, Callable[[Device, Kolibri1Config], Any]] = {**IN_USE, **IN_CAPTURES}
"""By the plant's name: what asks any device, the simulated one too, for something else than the decoder does."""


def planted(device: Device, plant: str | None, layer: int, config: Kolibri1Config) -> Device:
    """The device with `plant` in it, where that is a fault of a device; the device itself for the others.

    Args:
        layer: the layer that plants go for, from 0.
    """
    if (asked_otherwise := ASKED_OTHERWISE.get(plant or "")) is not None:
        return cast(Device, asked_otherwise(device, config))
    plant_in = PLANTED.get(plant or "")
    return device if plant_in is None else cast(Device, plant_in(device, layer))
