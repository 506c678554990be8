"""Which bytes one decoded token must read, from the config alone."""

from __future__ import annotations

from oracle.kolibri1.config import Kolibri1Config
from oracle.kolibri1.inventory import inventory
from oracle.kolibri1.synthetic import tensor_bytes


def touched_bytes(config: Kolibri1Config) -> dict[str, int]:
    """Bytes a token must read, by part: every layer's fp8 weights with as many experts as it selects, scales, routers, head.

    Norms, biases, one embedding row and the KV cache are left out: together under a thousandth at the real geometry.
    """
    parts = {"attention and shared expert, fp8": 0, "selected experts, fp8": 0, "scales, fp32": 0, "routers, bf16": 0}
    parts["head, bf16"] = 0
    for spec in inventory(config):
        words = spec.name.split(".")
        routed = "experts" in words
        if routed and int(words[words.index("experts") + 1]) >= config.num_experts_per_tok:
            continue
        if spec.dtype == "F32":
            parts["scales, fp32"] += tensor_bytes(spec)
        elif spec.dtype == "F8_E4M3":
            parts["selected experts, fp8" if routed else "attention and shared expert, fp8"] += tensor_bytes(spec)
        elif spec.name.endswith("mlp.gate.weight"):
            parts["routers, bf16"] += tensor_bytes(spec)
        elif spec.name == "lm_head.weight":
            parts["head, bf16"] += tensor_bytes(spec)
    return parts


def kv_bytes_per_token(config: Kolibri1Config, *, sliding: bool) -> int:
    """fp32 keys and values of one position in all layers of one kind."""
    layers = sum(config.is_sliding(layer) == sliding for layer in range(config.num_hidden_layers))
    return layers * 2 * config.key_value_width * 4


def parameters(config: Kolibri1Config) -> int:
    """Weights in the checkpoint, scales not counted."""
    width = {"F8_E4M3": 1, "BF16": 2}
    return sum(tensor_bytes(spec) // width[spec.dtype] for spec in inventory(config) if spec.dtype in width)
