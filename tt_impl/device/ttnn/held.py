"""How a tensor of the protocol lies in ttnn: its shape there, its element type, its pages. Its packed bytes stay the same.

ttnn wants four dimensions where the protocol drops leading ones; norm weights in rows of 32; page tables and positions as
plain [B, n]. What rows a vector lies in, `pages` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tt_impl.device.pages import row_major_shape
from tt_impl.device.protocol import DType, HostArray, Layout

_NAMES = {DType.FP8_E4M3: "uint8"}
"""fp8 has no op on the device and its conversions lose subnormals: it is held as what it is here, raw bytes."""


def ttnn_dtype(ttnn: Any, dtype: DType) -> Any:
    return getattr(ttnn, _NAMES.get(dtype, dtype.label))


def ttnn_layout(ttnn: Any, layout: Layout) -> Any:
    return ttnn.TILE_LAYOUT if layout is Layout.TILE else ttnn.ROW_MAJOR_LAYOUT


def held_shape(shape: Sequence[int], dtype: DType, layout: Layout) -> tuple[int, ...]:
    """The shape in ttnn of a tensor that is written and read as `shape`."""
    if layout is Layout.TILE:
        return four_dimensions(shape)
    return row_major_shape(shape, dtype)


def four_dimensions(shape: Sequence[int]) -> tuple[int, ...]:
    return (*(1,) * (4 - len(shape)), *shape)


def host_tensor(ttnn: Any, array: HostArray, dtype: DType, layout: Layout) -> Any:
    """A ttnn host tensor with exactly the array's bits, packed by ttnn; every bfloat16 NaN becomes 0x7FC0.

    Args:
        array: of `dtype.host`: ttnn ends the process where it is given float64, and takes no ml_dtypes.
    """
    if dtype is DType.BFLOAT16:
        array = array.astype(np.float32)
    writable = np.require(array, requirements=["C", "W"])  # nanobind takes no read-only array, as a mapped checkpoint's is
    held = writable.reshape(held_shape(array.shape, dtype, layout))
    return ttnn.Tensor(held, ttnn_dtype(ttnn, dtype), layout=ttnn_layout(ttnn, layout))


def packed_host_bytes(ttnn: Any, tensor: Any) -> np.ndarray:
    """A host tensor's packed bytes, a read-only view: no value conversion, so fp8 subnormals and NaNs stay."""
    return np.from_dlpack(tensor.host_buffer().get_shard(ttnn.MeshCoordinate(0, 0)))
