"""Computing copies of fp8 weights: told to a judge as they are uploaded, and read back from the device as they are now."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, cast

import numpy as np

from oracle.kolibri1.inventory import expert_weight
from oracle.subjects.operands import OperandDtype, OperandImage, OperandObserver
from oracle.subjects.protocol import FillObserver
from tt_impl.device.passing import Passing
from tt_impl.device.protocol import Device, DType, HostArray, Tensor

_DTYPES: dict[DType, OperandDtype] = {DType.BFLOAT16: "BF16", DType.FLOAT32: "F32"}
_RESIDENT = re.compile(r"(model\.layers\.\d+)\.(self_attn|mlp\.shared_experts)\.(qkv|o|up_gate|down)")
_EXPERT = re.compile(r"layer(\d+)\.expert(\d+)\.slot(\d+)\.generation(\d+)\.(up_gate|down)")
_ROWS = {"qkv": ("q", "k", "v"), "o": ("o",), "up_gate": ("up", "gate"), "down": ("down",)}
"""Which projections each copy stacks, in the order of its rows."""


def expert_label(layer: int, expert: int, slot: int, generation: int) -> str:
    """How the copies of an expert made from that fill are called on the device, before `.up_gate` and `.down`."""
    return f"layer{layer}.expert{expert}.slot{slot}.generation{generation}"


def is_expert(label: str) -> bool:
    """Whether that is a copy of a routed expert."""
    return _EXPERT.fullmatch(label) is not None


@lru_cache(maxsize=1 << 12)  # asked twice of each upload, and of the same few labels at every step
def stacked_weights(label: str) -> tuple[str, ...]:
    """The checkpoint's names of the fp8 weights that a copy of that label stacks; none if it is no copy's."""
    if resident := _RESIDENT.fullmatch(label):
        return tuple(f"{resident[1]}.{resident[2]}.{name}_proj.weight" for name in _ROWS[resident[3]])
    if expert := _EXPERT.fullmatch(label):
        return tuple(expert_weight(int(expert[1]), int(expert[2]), f"{name}_proj") for name in _ROWS[expert[5]])
    return ()


class OperandWatch(Passing):
    """Stands before a device, passes everything on, and follows the copies by their labels.

    Args:
        observer: told of each upload if it listens to them.
    """

    def __init__(self, device: Device, observer: FillObserver | None) -> None:
        super().__init__(device)
        self._observer = observer if isinstance(observer, OperandObserver) else None
        self._live: dict[int, Tensor] = {}

    @property
    def device(self) -> Device:
        """This watch, as the device that it passes everything on to."""
        return cast(Device, self)

    def copy_host_to_device_tensor(self, array: HostArray, tensor: Tensor, **rest: Any) -> None:
        self._device.copy_host_to_device_tensor(array, tensor, **rest)
        if stacked_weights(tensor.label):
            self._live[tensor.identity] = tensor
            if self._observer is not None:
                self._observer.uploaded(_image(tensor, array))

    def deallocate(self, tensor: Tensor) -> None:
        self._device.deallocate(tensor)
        self._live.pop(tensor.identity, None)

    def operands(self) -> Iterator[OperandImage]:
        """Every copy that was uploaded and not given back, as the device holds it now.

        Raises:
            DeviceFault: the device was closed.
        """
        for tensor in self._live.values():
            yield _image(tensor, self._device.copy_device_to_host_tensor(tensor, blocking=True).array())


def _image(tensor: Tensor, array: HostArray) -> OperandImage:
    expert = _EXPERT.fullmatch(tensor.label)
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    fill = (None, None) if expert is None else (int(expert[3]), int(expert[4]))
    return OperandImage(stacked_weights(tensor.label), _DTYPES[tensor.dtype], data, *fill)
