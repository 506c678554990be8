"""One op at a time on any device: operands up, the op, results down. For a judge that looks at ops alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from oracle.errors import DeviceFault
from oracle.subjects.ops import HostArray, Parameter
from oracle.subjects.protocol import SubjectIdentity
from tt_impl.device.protocol import Device, DType, Layout, Tensor
from tt_impl.experts.memo import upload
from tt_impl.lifetimes import Scratch

_OPS = (
    "embedding", "typecast", "rms_norm", "linear", "matmul", "add", "mul", "silu", "sigmoid", "swiglu", "concat_rows", "topk",
    "gather", "argmax", "nlp_create_qkv_heads_decode", "nlp_concat_heads_decode", "rotary_embedding_hf", "paged_update_cache",
    "paged_fill_cache", "paged_scaled_dot_product_attention_decode",
)  # fmt: skip
_ROW_MAJOR = {
    ("embedding", "ids"), ("embedding", "weight"), ("rms_norm", "weight"), *((op, name) for op in _OPS[-3:] for name in
    ("page_table", "update_idxs_tensor", "cur_pos_tensor"))
}  # fmt: skip
_DTYPES = {dtype.label: dtype for dtype in (DType.BFLOAT16, DType.FLOAT32, DType.UINT32, DType.UINT16, DType.INT32)}


class OpRunner:
    """Runs the ops of a device; see `oracle.subjects.ops.RunsOps` for their names, operands and parameters.

    Matrices go up in TILE, tables, ids and a norm's weight in ROW_MAJOR, as the decoder sends them.
    """

    def __init__(self, device: Device, identity: SubjectIdentity) -> None:
        self._device = device
        self._identity = identity

    @property
    def identity(self) -> SubjectIdentity:
        return self._identity

    def run_op(
        self, name: str, operands: Mapping[str, HostArray], parameters: Mapping[str, Parameter]
    ) -> tuple[HostArray, ...]:
        """Run one op.

        Raises:
            DeviceFault: `bad-operand` for an op or element type that no device has; whatever the device raises.
        """
        if name not in _OPS:
            raise DeviceFault("bad-operand", f"no device has an op {name!r}")
        device = self._device
        options: dict[str, Any] = {key: _DTYPES[str(value)] if key == "dtype" else value for key, value in parameters.items()}
        with Scratch(device) as scratch:
            tensors = {key: scratch.own(self._upload(name, key, array)) for key, array in operands.items()}
            if name == "concat_rows":
                results: Any = device.concat_rows(list(tensors.values()))
            else:
                results = getattr(device, name)(**tensors, **options)
            if results is None:
                return (self._read(tensors["cache"]),)
            found = [scratch.own(result) for result in (results if isinstance(results, tuple) else (results,))]
            return tuple(self._read(result) for result in found)

    def close(self) -> None:
        self._device.close()

    def _upload(self, op: str, name: str, array: HostArray) -> Tensor:
        if array.dtype.name not in _DTYPES:
            raise DeviceFault("bad-operand", f"{op}: no device holds {array.dtype.name} ({name})")
        layout = Layout.ROW_MAJOR if (op, name) in _ROW_MAJOR else Layout.TILE
        return upload(self._device, name, array, _DTYPES[array.dtype.name], layout)

    def _read(self, tensor: Tensor) -> HostArray:
        return np.array(self._device.copy_device_to_host_tensor(tensor, blocking=True).array())
