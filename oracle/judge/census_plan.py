"""Which weights a Kolibri-1 decode step uses, in which order and by which op, from the config alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from oracle.kolibri1.config import Kolibri1Config
from oracle.kolibri1.inventory import expert_weight

EMBEDDING, FINAL_NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
PRODUCTS = frozenset({"linear", "matmul"})
NORMS = frozenset({"rms_norm"})
LOOK_UPS = frozenset({"embedding"})
ATTENTION = "paged_scaled_dot_product_attention_decode"

FIXED_BY_THE_MODEL = {"rms_norm": 6, ATTENTION: 1, "paged_update_cache": 2}
"""Ops in every layer: four norms of the stream and two of heads; one attention; its key and its value cached."""

LEAST_ADDS = 2
"""Residual additions of a layer; how many more an implementation has is its own affair, and declared."""

ROTATED = 2
"""RoPE of a sliding layer turns queries and keys; a full layer has none."""


@dataclass(frozen=True)
class Stage:
    """Weights that a step uses before those of the next stage, among each other in any order.

    Attributes:
        layer: None outside the layers.
        names: each used once.
        ops: by which of these.
        after: by name, weights of the stage that must be used before it.
    """

    layer: int | None
    names: tuple[str, ...]
    ops: frozenset[str]
    after: tuple[tuple[str, tuple[str, ...]], ...] = ()


def first_of_layer(layer: int) -> str:
    """The weight whose use begins a layer."""
    return f"model.layers.{layer}.input_layernorm.weight"


def bias_of_layer(layer: int) -> str:
    """The router's bias, which a device may use, once a step, or the host."""
    return f"model.layers.{layer}.moe.router.expert_bias"


def stages(config: Kolibri1Config, experts: Sequence[Sequence[int]]) -> tuple[Stage, ...]:
    """All weights of one step in order.

    Args:
        experts: by layer, the ids of the experts that the step was routed to.
    """
    found = [Stage(None, (EMBEDDING,), LOOK_UPS)]
    for layer in range(config.num_hidden_layers):
        found += fixed_stages(layer)
        found.append(_mixture(layer, experts[layer]))
        found.append(Stage(layer, (f"model.layers.{layer}.post_ffn_norm.weight",), NORMS))
    return (*found, Stage(None, (FINAL_NORM,), NORMS), Stage(None, (HEAD,), PRODUCTS))


def fixed_stages(layer: int) -> list[Stage]:
    """Those of a layer before its mixture of experts."""
    prefix = f"model.layers.{layer}"
    attention = f"{prefix}.self_attn"
    return [
        Stage(layer, (first_of_layer(layer),), NORMS),
        Stage(layer, tuple(f"{attention}.{name}_proj.weight" for name in "qkv"), PRODUCTS),
        Stage(layer, (f"{attention}.q_norm.weight", f"{attention}.k_norm.weight"), NORMS),
        Stage(layer, (f"{attention}.o_proj.weight",), PRODUCTS),
        Stage(layer, (f"{prefix}.post_attn_norm.weight",), NORMS),
        Stage(layer, (f"{prefix}.post_attention_layernorm.weight",), NORMS),
        Stage(layer, (f"{prefix}.mlp.gate.weight",), PRODUCTS),
    ]


def _mixture(layer: int, experts: Sequence[int]) -> Stage:
    """Each expert's gate and up before its down; the shared expert as one of them."""
    networks = [
        tuple(expert_weight(layer, int(expert), f"{name}_proj") for name in ("gate", "up", "down")) for expert in experts
    ]
    shared = f"model.layers.{layer}.mlp.shared_experts"
    networks.append(tuple(f"{shared}.{name}_proj.weight" for name in ("gate", "up", "down")))
    after = tuple((down, (gate, up)) for gate, up, down in networks)
    return Stage(layer, tuple(name for network in networks for name in network), PRODUCTS, after)
