"""Reading resident operands back from the device, as evidence of what it holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from oracle.subjects.protocol import ResidentImage
from tt_impl.device.protocol import Device, DType, Tensor

_STORED = {DType.BFLOAT16: "BF16", DType.FLOAT32: "F32", DType.FP8_E4M3: "F8_E4M3"}
"""Element types as the checkpoint's format spells them."""


def read_residents(device: Device, staged: Mapping[str, Tensor]) -> Iterator[ResidentImage]:
    """Each staged tensor's bytes as the device holds them now, untiled and otherwise unconverted.

    One blocking read for each, so that the host holds one tensor at a time.

    Raises:
        DeviceFault: a tensor was deallocated, or the device closed.
    """
    for name, tensor in staged.items():
        array = device.copy_device_to_host_tensor(tensor, blocking=True).array()
        yield ResidentImage(name, _STORED[tensor.dtype], np.ascontiguousarray(array).reshape(-1).view(np.uint8))
