"""Uploading what stays on the device for the whole run; `plans.staging_plan` says what and how much that is.

Every resident tensor of the checkpoint is staged: fp8 weights and their grids verbatim, bf16 tensors in the computing dtype,
router biases in fp32 (tiled where the device adds them). Beside each fp8 weight stands a copy in the computing dtype,
dequantized on the host, since fp8 has no matrix op on the device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from ml_dtypes import bfloat16

from oracle.kolibri1.config import Kolibri1Config
from oracle.kolibri1.inventory import SCALE_SUFFIX, inventory
from tt_impl.attention.rope import RopeTables, rope_tables
from tt_impl.device.protocol import Bytes, Device, DType, HostArray, Layout, Tensor
from tt_impl.device_router import DeviceSelection
from tt_impl.experts.dequant import dequantize
from tt_impl.experts.memo import FeedForwardWeights, upload, upload_feed_forward
from tt_impl.router import HostSelection, RouterBias, Selection
from tt_impl.settings import DecoderSettings


class WeightSource(Protocol):
    """Raw bytes of named tensors: the checkpoint."""

    def raw(self, name: str) -> Bytes: ...


@dataclass(frozen=True)
class LayerWeights:
    """One layer's resident operands. Norm weights are [1, width] ROW_MAJOR, matrices [out, in] TILE.

    `qkv` stacks the query, key and value rows; `selection` holds the router's bias, as the host's copy, read back once, or as
    the device's tensor.
    """

    input_layernorm: Tensor
    post_attn_norm: Tensor
    post_attention_layernorm: Tensor
    post_ffn_norm: Tensor
    q_norm: Tensor
    k_norm: Tensor
    qkv: Tensor
    o_proj: Tensor
    router: Tensor
    selection: Selection
    shared: FeedForwardWeights


@dataclass(frozen=True)
class Residents:
    """All resident operands. `embedding` is BFLOAT16 ROW_MAJOR in every arm.

    `staged` holds every resident tensor of the checkpoint by its name there: fp8 weights and grids verbatim, the others
    in the dtype they are used in.
    """

    embedding: Tensor
    final_norm: Tensor
    lm_head: Tensor
    rope: RopeTables
    layers: tuple[LayerWeights, ...]
    staged: Mapping[str, Tensor]


def stage(device: Device, config: Kolibri1Config, source: WeightSource, settings: DecoderSettings) -> Residents:
    """Upload everything resident. The device keeps it until it is closed.

    Raises:
        DeviceFault: `out-of-memory`.
        CheckpointError: a tensor with NaN or infinite values.
    """
    return _Stager(device, config, source, settings).stage()


class _Stager:
    def __init__(self, device: Device, config: Kolibri1Config, source: WeightSource, settings: DecoderSettings) -> None:
        self._device = device
        self._config = config
        self._source = source
        self._settings = settings
        self._dtype = settings.activation
        self._shapes = {spec.name: spec.shape for spec in inventory(config) if ".mlp.experts." not in spec.name}
        self._staged: dict[str, Tensor] = {}

    def stage(self) -> Residents:
        config, dtype = self._config, self._dtype
        cos, sin = rope_tables(self._settings.max_positions, config.head_dim, config.rope_theta, dtype)
        name = "model.embed_tokens.weight"
        return Residents(
            embedding=self._upload(name, self._bfloat16(name), DType.BFLOAT16, Layout.ROW_MAJOR),
            final_norm=self._norm("model.norm.weight"),
            lm_head=self._matrix("lm_head.weight"),
            rope=RopeTables(
                upload(self._device, "rope.cos", cos, dtype, Layout.ROW_MAJOR),
                upload(self._device, "rope.sin", sin, dtype, Layout.ROW_MAJOR),
            ),
            layers=tuple(self._layer(f"model.layers.{layer}") for layer in range(config.num_hidden_layers)),
            staged=self._staged,
        )

    def _layer(self, prefix: str) -> LayerWeights:
        attention, shared = f"{prefix}.self_attn", f"{prefix}.mlp.shared_experts"
        qkv = np.concatenate([self._fp8(f"{attention}.{name}_proj.weight") for name in "qkv"])
        return LayerWeights(
            input_layernorm=self._norm(f"{prefix}.input_layernorm.weight"),
            post_attn_norm=self._norm(f"{prefix}.post_attn_norm.weight"),
            post_attention_layernorm=self._norm(f"{prefix}.post_attention_layernorm.weight"),
            post_ffn_norm=self._norm(f"{prefix}.post_ffn_norm.weight"),
            q_norm=self._norm(f"{attention}.q_norm.weight"),
            k_norm=self._norm(f"{attention}.k_norm.weight"),
            qkv=upload(self._device, f"{attention}.qkv", qkv, self._dtype, Layout.TILE),
            o_proj=upload(self._device, f"{attention}.o", self._fp8(f"{attention}.o_proj.weight"), self._dtype, Layout.TILE),
            router=self._matrix(f"{prefix}.mlp.gate.weight"),
            selection=self._selection(f"{prefix}.moe.router.expert_bias"),
            shared=upload_feed_forward(
                self._device,
                shared,
                self._dtype,
                *(self._fp8(f"{shared}.{name}_proj.weight") for name in ("gate", "up", "down")),
            ),
        )

    def _fp8(self, name: str) -> HostArray:
        """Stage an fp8 weight and its grid verbatim, and return the weight dequantized."""
        quantized = self._source.raw(name).reshape(self._shapes[name])
        grid_name = name + SCALE_SUFFIX
        scales = self._source.raw(grid_name).view(np.float32).reshape(self._shapes[grid_name])
        self._upload(name, quantized, DType.FP8_E4M3, Layout.ROW_MAJOR)
        self._upload(grid_name, scales, DType.FLOAT32, Layout.ROW_MAJOR)
        return dequantize(quantized, scales, self._dtype)

    def _norm(self, name: str) -> Tensor:
        weight = self._bfloat16(name).astype(self._dtype.host)
        return self._upload(name, weight[None], self._dtype, Layout.ROW_MAJOR)

    def _matrix(self, name: str) -> Tensor:
        weight = self._bfloat16(name).astype(self._dtype.host)
        return self._upload(name, weight, self._dtype, Layout.TILE)

    def _selection(self, name: str) -> Selection:
        """Stage a router bias in fp32, in the layout that whoever adds it needs."""
        bias = self._bfloat16(name).astype(np.float32)
        if self._settings.topk == "device":
            added = self._upload(name, bias[None], DType.FLOAT32, Layout.TILE)
            if (users := self._settings.users) > 1:  # `add` takes equal shapes
                rows = np.repeat(bias[None], users, axis=0)
                added = upload(self._device, f"{name}.rows", rows, DType.FLOAT32, Layout.TILE)
            return DeviceSelection(self._device, added)
        tensor = self._upload(name, bias, DType.FLOAT32, Layout.ROW_MAJOR)
        return HostSelection(self._device, RouterBias(self._device, tensor, keep=self._settings.bias == "cached"))

    def _upload(self, name: str, array: HostArray, dtype: DType, layout: Layout) -> Tensor:
        """Stage a tensor of the checkpoint under its name."""
        self._staged[name] = upload(self._device, name, array, dtype, layout)
        return self._staged[name]

    def _bfloat16(self, name: str) -> HostArray:
        return self._source.raw(name).view(bfloat16).reshape(self._shapes[name])
