"""Faults of captured regions, each planted where the decoder meets its device; `catalogue` enters them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from oracle.kolibri1.config import Kolibri1Config
from tt_impl.device.passing import Passing
from tt_impl.device.protocol import Device, DType, HostArray, Tensor, Trace


class ReadsInACapture(Passing):
    """Asks within a capture for the first layer's router logits, as a decoder does that waits for them there."""

    def __init__(self, device: Device, config: Kolibri1Config) -> None:
        super().__init__(device)
        self._capturing = False

    def begin_trace_capture(self, **queue: int) -> Trace:
        self._capturing = True
        return self._device.begin_trace_capture(**queue)

    def end_trace_capture(self, trace: Trace, **queue: int) -> None:
        self._capturing = False
        self._device.end_trace_capture(trace, **queue)

    def linear(self, x: Tensor, weight: Tensor, *, dtype: DType | None = None) -> Tensor:
        out = self._device.linear(x, weight, dtype=dtype)
        if self._capturing and weight.label == "model.layers.0.mlp.gate.weight":
            self._device.copy_device_to_host_tensor(out, blocking=True)
        return out


class RestagesInUse(Passing):
    """Writes a resident norm again, the same bytes, behind the first replay: what was captured over it is not captured anew."""

    _LABEL = "model.layers.0.input_layernorm.weight"

    def __init__(self, device: Device, config: Kolibri1Config) -> None:
        super().__init__(device)
        self._staged: tuple[HostArray, Tensor] | None = None

    def copy_host_to_device_tensor(self, array: HostArray, tensor: Tensor, **queue: int) -> None:
        if tensor.label == self._LABEL:
            self._staged = array.copy(), tensor
        self._device.copy_host_to_device_tensor(array, tensor, **queue)

    def execute_trace(self, trace: Trace, **how: Any) -> None:
        self._device.execute_trace(trace, **how)
        if self._staged is not None:
            staged, self._staged = self._staged, None
            self._device.copy_host_to_device_tensor(*staged)


IN_CAPTURES: Mapping[str, Callable[[Device, Kolibri1Config], Any]] = {
    "capture-reads": ReadsInACapture,
    "capture-restaged": RestagesInUse,
}
"""By the plant's name: what goes wrong with a device's captures."""
