"""Which tensors a Kolibri-1 checkpoint has: names, shapes and dtypes from its config. Free of torch and of arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from oracle.kolibri1.config import Kolibri1Config

EXPERT_PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
SCALE_SUFFIX = "_scale_inv"


@dataclass(frozen=True)
class TensorSpec:
    """What one tensor must be: safetensors dtype name (`BF16`, `F8_E4M3`, `F32`) and shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]


def expert_weight(layer: int, expert: int, projection: str) -> str:
    """The release's name of one routed expert's fp8 weight; `projection` is one of `EXPERT_PROJECTIONS`."""
    return f"model.layers.{layer}.mlp.experts.{expert}.{projection}.weight"


def inventory(config: Kolibri1Config) -> Iterator[TensorSpec]:
    """Every tensor of the release's on-disk format, in a fixed order (`facts`: 116,303 of them for the real config)."""
    hidden, vocabulary = config.hidden_size, config.vocab_size
    block_rows, block_columns = config.quantization_config.weight_block_size
    yield TensorSpec("model.embed_tokens.weight", "BF16", (vocabulary, hidden))
    for layer in range(config.num_hidden_layers):
        prefix = f"model.layers.{layer}"
        for norm in ("input_layernorm", "post_attn_norm", "post_attention_layernorm", "post_ffn_norm"):
            yield TensorSpec(f"{prefix}.{norm}.weight", "BF16", (hidden,))
        for norm in ("q_norm", "k_norm"):
            yield TensorSpec(f"{prefix}.self_attn.{norm}.weight", "BF16", (config.head_dim,))
        yield TensorSpec(f"{prefix}.mlp.gate.weight", "BF16", (config.num_experts, hidden))
        yield TensorSpec(f"{prefix}.moe.router.expert_bias", "BF16", (config.num_experts,))
        for kind, (rows, columns) in config.fp8_shapes().items():
            experts = range(config.num_experts) if ".E." in kind else [0]
            for expert in experts:
                name = f"{prefix}.{kind.replace('.E.', f'.{expert}.')}.weight"
                yield TensorSpec(name, "F8_E4M3", (rows, columns))
                yield TensorSpec(name + SCALE_SUFFIX, "F32", (rows // block_rows, columns // block_columns))
    yield TensorSpec("model.norm.weight", "BF16", (hidden,))
    yield TensorSpec("lm_head.weight", "BF16", (vocabulary, hidden))
