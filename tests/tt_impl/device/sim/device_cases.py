"""Tensors onto a simulated device and back."""

from __future__ import annotations

import numpy as np

from tt_impl.device.protocol import DType, Layout, Tensor
from tt_impl.device.sim import SimDevice
from tt_impl.device.sim.memory import SimTensor


def put(device: SimDevice, array: np.ndarray, dtype: DType, layout: Layout = Layout.TILE, label: str = "t") -> SimTensor:
    tensor = device.allocate_tensor_on_device(array.shape, dtype, layout, label)
    device.copy_host_to_device_tensor(array.astype(dtype.host), tensor)
    return tensor


def get(device: SimDevice, tensor: Tensor) -> np.ndarray:
    return device.copy_device_to_host_tensor(tensor, blocking=True).array()
