"""What stays on the device for the whole run, tensor by tensor.

Every resident tensor of the checkpoint is staged: fp8 weights and their grids verbatim, bf16 tensors in the computing dtype
(the embedding table always in bf16), router biases in fp32. Beside them stand the copies that compute reads, since fp8 has no
matrix op on the device: query, key and value rows as one matrix, the output projection, and the shared expert.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from oracle.kolibri1.config import Kolibri1Config
from oracle.kolibri1.inventory import TensorSpec, inventory
from tt_impl.device.dram_bytes import dram_bytes
from tt_impl.device.protocol import DType, Layout


@dataclass(frozen=True)
class Operand:
    """One tensor on the device.

    Attributes:
        kind: `fp8`, `grid`, `plain`, `bias` (tensors of the checkpoint), `copy` (dequantized, for compute) or `table`.
        nbytes: of its elements alone.
        device_bytes: of DRAM: in tiles or pages, over all banks, each taking as much as the fullest.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    dtype: DType
    layout: Layout

    @cached_property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.item_bytes

    @cached_property
    def device_bytes(self) -> int:
        return dram_bytes(self.shape, self.dtype, self.layout)


@dataclass(frozen=True)
class StagingPlan:
    """All resident operands, in the order of the checkpoint's inventory, copies and tables behind them."""

    operands: tuple[Operand, ...]

    def count(self, *kinds: str) -> int:
        """How many operands are of these kinds."""
        return sum(operand.kind in kinds for operand in self.operands)

    def nbytes(self, *kinds: str) -> int:
        """Bytes of their elements."""
        return sum(operand.nbytes for operand in self.operands if operand.kind in kinds)

    @property
    def resident_bytes(self) -> int:
        """Of the checkpoint's resident tensors as staged: the port's published figure for the release."""
        return self.nbytes("fp8", "grid", "plain", "bias")

    @property
    def computing_bytes(self) -> int:
        """Of the dequantized copies."""
        return self.nbytes("copy")

    @property
    def device_bytes(self) -> int:
        """Of DRAM that all of it takes."""
        return sum(operand.device_bytes for operand in self.operands)


def plan_staging(
    config: Kolibri1Config, activation: DType, max_positions: int, *, topk: Literal["host", "device"] = "host", users: int = 1
) -> StagingPlan:
    """The operands that `tt_impl.staging.stage` uploads.

    Args:
        activation: the computing dtype, BFLOAT16 or FLOAT32.
        max_positions: rows of the RoPE tables.
        topk: who chooses experts, and so who adds the router's bias: the device's are tiled.
        users: sequences decoded side by side, of whom each has a row of a bias that the device adds.
    """
    staged = (_staged(spec, activation, topk) for spec in inventory(config) if ".mlp.experts." not in spec.name)
    rows = _bias_rows(config, users) if topk == "device" and users > 1 else ()
    return StagingPlan((*staged, *_copies(config, activation), *rows, *_tables(config, activation, max_positions)))


def _staged(spec: TensorSpec, activation: DType, topk: str) -> Operand:
    if spec.name.endswith(".expert_bias"):
        if topk == "device":
            return Operand(spec.name, "bias", (1, *spec.shape), DType.FLOAT32, Layout.TILE)
        return Operand(spec.name, "bias", spec.shape, DType.FLOAT32, Layout.ROW_MAJOR)
    if spec.dtype == "F8_E4M3":
        return Operand(spec.name, "fp8", spec.shape, DType.FP8_E4M3, Layout.ROW_MAJOR)
    if spec.dtype == "F32":
        return Operand(spec.name, "grid", spec.shape, DType.FLOAT32, Layout.ROW_MAJOR)
    if spec.name == "model.embed_tokens.weight":
        return Operand(spec.name, "plain", spec.shape, DType.BFLOAT16, Layout.ROW_MAJOR)
    if len(spec.shape) == 1:
        return Operand(spec.name, "plain", (1, *spec.shape), activation, Layout.ROW_MAJOR)
    return Operand(spec.name, "plain", spec.shape, activation, Layout.TILE)


def _bias_rows(config: Kolibri1Config, users: int) -> Iterator[Operand]:
    for layer in range(config.num_hidden_layers):
        name = f"model.layers.{layer}.moe.router.expert_bias.rows"
        yield Operand(name, "copy", (users, config.num_experts), DType.FLOAT32, Layout.TILE)


def _copies(config: Kolibri1Config, activation: DType) -> Iterator[Operand]:
    shapes = config.fp8_shapes()
    q, k, v = (shapes[f"self_attn.{name}_proj"] for name in "qkv")
    gate, up, down = (shapes[f"mlp.shared_experts.{name}_proj"] for name in ("gate", "up", "down"))
    copies = {
        "self_attn.qkv": (q[0] + k[0] + v[0], q[1]),
        "self_attn.o": shapes["self_attn.o_proj"],
        "mlp.shared_experts.up_gate": (up[0] + gate[0], up[1]),
        "mlp.shared_experts.down": down,
    }
    for layer in range(config.num_hidden_layers):
        for name, shape in copies.items():
            yield Operand(f"model.layers.{layer}.{name}", "copy", shape, activation, Layout.TILE)


def _tables(config: Kolibri1Config, activation: DType, max_positions: int) -> Iterator[Operand]:
    for name in ("rope.cos", "rope.sin"):
        yield Operand(name, "table", (max_positions, config.head_dim), activation, Layout.ROW_MAJOR)
