"""Every op of the protocol with the shapes that a Kolibri-1 geometry gives it, for one user or more, over operands that hold
nothing; and what writes down the calls to any device.

For a device that accepts or refuses and computes no values. The order is a layer's, sliding and full, then the head's; the
router appears both ways, its logits read by the host and its top-k on the device. What the decoder sends, with its own
shapes, is not said here: it is run (`rehearsal`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from oracle.errors import DeviceFault
from oracle.kolibri1.config import Kolibri1Config
from tt_impl.device.protocol import Device, DType, HostArray, Layout, Tensor
from tt_impl.lifetimes import Scratch

_BF16, _F32, _INT32 = DType.BFLOAT16, DType.FLOAT32, DType.INT32
_BLOCKS = 4
"""Of each user's cache: the second step's position lies in another block than the first's."""


@dataclass(frozen=True)
class OpCall:
    """One op as it was asked for. `refusal` is empty where ttnn accepted it."""

    op: str
    operands: tuple[str, ...]
    results: tuple[str, ...]
    refusal: str = ""


class Recorder:
    """A device that writes down each op, a call with operands; a refused one raises as it would, and is written down too."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self.calls: list[OpCall] = []

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._device, name)
        if name in _NO_OPS or not callable(method):
            return method

        def call(*arguments: Any, **named: Any) -> Any:
            operands = tuple(filter(None, (_shown(value) for value in (*arguments, *named.values()))))
            try:
                result = method(*arguments, **named)
            except DeviceFault as fault:
                if operands:
                    self.calls.append(OpCall(name, operands, (), str(fault)))
                raise
            if not operands:
                return result
            results = result if isinstance(result, tuple) else () if result is None else (result,)
            self.calls.append(OpCall(name, operands, tuple(map(_shown, results))))
            return result

        return call


_NO_OPS = (
    "allocate_tensor_on_device",
    "deallocate",
    "copy_host_to_device_tensor",
    "copy_device_to_host_tensor",
)


class DecodeStep:
    """Operands of one layer and the head, allocated once; `run` may be called again, as a decoder steps again.

    Raises:
        DeviceFault: an operand or an op was refused.
    """

    def __init__(self, device: Device, config: Kolibri1Config, *, users: int, block_size: int = 32) -> None:
        self._device, self._config, self._users = device, config, users
        self._operands: list[Tensor] = []
        hidden, width = config.hidden_size, config.head_dim
        tiled = {
            "qkv": (config.query_width + 2 * config.key_value_width, hidden),
            "o_proj": (hidden, config.query_width),
            "router": (config.num_experts, hidden),
            "up_gate": (2 * config.moe_intermediate_size, hidden),
            "down": (hidden, config.moe_intermediate_size),
            "shared_up_gate": (2 * config.shared_expert_intermediate_size, hidden),
            "shared_down": (hidden, config.shared_expert_intermediate_size),
            "lm_head": (config.vocab_size, hidden),
            "cos": (users, width),
            "sin": (users, width),
            "picks": (users * config.num_experts_per_tok, users * config.num_experts_per_tok),
        }
        self._weights = {name: self._new(name, shape, _BF16) for name, shape in tiled.items()}
        self._norm = self._new("norm", (1, hidden), _BF16, Layout.ROW_MAJOR)
        self._head_norm = self._new("head_norm", (1, width), _BF16, Layout.ROW_MAJOR)
        self._table = self._new("embedding", (config.vocab_size, hidden), _BF16, Layout.ROW_MAJOR)
        self._row_weights = self._new("row_weights", (users, users * config.num_experts_per_tok), _F32)
        self._bias = self._new("expert_bias", (users, config.num_experts), _F32)
        self._ids = self._new("ids", (1, users), DType.UINT32, Layout.ROW_MAJOR)
        self._positions = self._new("positions", (1, users), _INT32, Layout.ROW_MAJOR)
        self._pages = self._new("page_table", (users, _BLOCKS), _INT32, Layout.ROW_MAJOR)
        cache = (users * _BLOCKS, config.num_key_value_heads, block_size, width)
        self._keys, self._values = (self._new(name, cache, _BF16) for name in ("keys", "values"))
        self._prompt = self._new("prompt_keys", (config.num_key_value_heads, block_size, width), _BF16)
        blocks = np.arange(users * _BLOCKS, dtype=np.int32).reshape(users, _BLOCKS)
        device.copy_host_to_device_tensor(blocks, self._pages)
        device.paged_fill_cache(self._keys, self._prompt, page_table=self._pages, batch_idx=users - 1)

    def run(self, position: int) -> None:
        """Two layers, one of each kind, and the head: the ids and positions go in, router logits and logits come out."""
        device, users = self._device, self._users
        with Scratch(device) as scratch:
            self._write(np.zeros((1, users), np.uint32), self._ids)
            self._write(np.full((1, users), position, np.int32), self._positions)
            hidden = scratch.own(device.embedding(self._ids, self._table))
            for window in (self._config.sliding_window, None):
                hidden = self._layer(scratch, hidden, window)
            logits = self._linear(scratch, self._rms(scratch, hidden), "lm_head", _F32)
            scratch.own(device.argmax(logits))
            scratch.own(device.argmax(scratch.own(device.typecast(logits, _BF16))))
            device.copy_device_to_host_tensor(logits, blocking=True)

    def close(self) -> None:
        """Give back all device memory."""
        for tensor in self._operands:
            self._device.deallocate(tensor)

    def _layer(self, scratch: Scratch, hidden: Tensor, window: int | None) -> Tensor:
        device = self._device
        attended = self._attention(scratch, self._rms(scratch, hidden), window)
        middle = scratch.own(device.add(hidden, self._rms(scratch, attended)))
        x = self._rms(scratch, middle)
        mixed = scratch.own(device.add(self._routed(scratch, x), self._feed_forward(scratch, x, "shared_")))
        after = scratch.own(device.add(middle, self._rms(scratch, mixed)))
        device.copy_device_to_host_tensor(after, blocking=False)
        return after

    def _attention(self, scratch: Scratch, x: Tensor, window: int | None) -> Tensor:
        device, config = self._device, self._config
        heads = device.nlp_create_qkv_heads_decode(
            self._linear(scratch, x, "qkv"),
            num_heads=config.num_attention_heads,
            num_kv_heads=config.num_key_value_heads,
        )
        q, k, v = (scratch.own(part) for part in heads)
        q, k = (scratch.own(device.rms_norm(part, self._head_norm, epsilon=config.rms_norm_eps)) for part in (q, k))
        if window is not None:
            cos, sin = self._weights["cos"], self._weights["sin"]
            q, k = (scratch.own(device.rotary_embedding_hf(part, cos, sin)) for part in (q, k))
        for cache, new in ((self._keys, k), (self._values, v)):
            device.paged_update_cache(cache, new, update_idxs_tensor=self._positions, page_table=self._pages)
        attended = device.paged_scaled_dot_product_attention_decode(
            q,
            self._keys,
            self._values,
            page_table=self._pages,
            cur_pos_tensor=self._positions,
            scale=config.head_dim**-0.5,
            sliding_window_size=window,
        )
        joined = scratch.own(device.nlp_concat_heads_decode(scratch.own(attended)))
        return self._linear(scratch, joined, "o_proj")

    def _routed(self, scratch: Scratch, x: Tensor) -> Tensor:
        """Each expert over all rows, and the weighted sum of the stacked rows; of several users each picks its own first."""
        device, count = self._device, self._config.num_experts_per_tok
        logits = self._linear(scratch, x, "router", _F32)
        device.copy_device_to_host_tensor(logits, blocking=True)
        _, chosen = map(scratch.own, device.topk(scratch.own(device.add(logits, self._bias)), count))
        weights = scratch.own(device.gather(scratch.own(device.sigmoid(logits)), chosen))
        outputs = [self._feed_forward(scratch, x, "") for _ in range(count)]
        stacked = scratch.own(device.concat_rows(outputs))
        if self._users > 1:
            scratch.own(device.mul(outputs[0], outputs[1]))  # no decoder's, but the protocol has it
            stacked = scratch.own(device.matmul(self._weights["picks"], stacked, dtype=_BF16))
            weights = self._row_weights
        return scratch.own(device.matmul(weights, stacked, dtype=_BF16))

    def _feed_forward(self, scratch: Scratch, x: Tensor, which: str) -> Tensor:
        hidden = scratch.own(self._device.swiglu(self._linear(scratch, x, f"{which}up_gate")))
        if which:
            hidden = scratch.own(self._device.silu(hidden))
        return self._linear(scratch, hidden, f"{which}down")

    def _rms(self, scratch: Scratch, x: Tensor) -> Tensor:
        return scratch.own(self._device.rms_norm(x, self._norm, epsilon=self._config.rms_norm_eps))

    def _linear(self, scratch: Scratch, x: Tensor, weight: str, dtype: DType | None = None) -> Tensor:
        return scratch.own(self._device.linear(x, self._weights[weight], dtype=dtype))

    def _write(self, array: HostArray, tensor: Tensor) -> None:
        self._device.copy_host_to_device_tensor(array, tensor)

    def _new(self, label: str, shape: Sequence[int], dtype: DType, layout: Layout = Layout.TILE) -> Tensor:
        self._operands.append(self._device.allocate_tensor_on_device(shape, dtype, layout, label))
        return self._operands[-1]


def _shown(value: Any) -> str:
    """A tensor, or tensors, as `dtype layout [shape]`; empty for anything else."""
    if isinstance(value, list | tuple):
        return ", ".join(filter(None, map(_shown, value)))
    if not hasattr(value, "layout"):
        return ""
    return f"{value.dtype.label} {value.layout.value} {list(value.shape)}"
