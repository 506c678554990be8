"""The release's `config.json`, and how another one differs from it. Free of torch and of arithmetic."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

RELEASE_CONFIG: dict[str, Any] = {
    "architectures": ["Kolibri1ForCausalLM"],
    "model_type": "kolibri1",
    "hidden_size": 2560,
    "num_hidden_layers": 50,
    "num_attention_heads": 48,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "hidden_act": "silu",
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-06,
    "vocab_size": 128000,
    "rope_theta": 10000.0,
    "num_experts": 384,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "norm_topk_prob": False,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "tie_word_embeddings": False,
    "use_cache": True,
    "use_sliding_window": True,
    "sliding_window": 513,
    "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 10,
    "bos_token_id": None,
    "eos_token_id": 127906,
    "pad_token_id": 127901,
    "dtype": "bfloat16",
    "head_dtype": "float32",
    "quantization_config": {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
        "modules_to_not_convert": [f"model.layers.{layer}.mlp.gate" for layer in range(50)],
    },
}
"""The released FP8 checkpoint's `config.json`, as several independent ports quote it.

Its inventory has the totals of the release's shard headers: 57,950 fp8 weights, 57,950 scales and 403 bf16 tensors, 116,303
in all, with 78,827,029,120 data bytes. That `modules_to_not_convert` names exactly the 50 routers is inferred from the file's
size of 3904 bytes.
"""

RELEASE_SHARDS = 32
"""Files that the released FP8 checkpoint is spread over."""

GEOMETRY_KEYS = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "num_experts",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
    "quantization_config.weight_block_size",
)
"""The keys that an inventory follows from; every other key leaves names, shapes and dtypes as they are."""

ABSENT = "absent"


@dataclass(frozen=True)
class ConfigDifference:
    """A key of `config.json` (dotted below the top) whose value is not the release's; values as JSON text, or `ABSENT`."""

    key: str
    here: str
    release: str

    @property
    def is_geometry(self) -> bool:
        """Whether the inventory follows from this key."""
        return self.key in GEOMETRY_KEYS


def config_differences(
    config: Mapping[str, Any], release: Mapping[str, Any] = RELEASE_CONFIG, prefix: str = ""
) -> list[ConfigDifference]:
    """Where `config`, a `config.json` as read, differs from the release's, in the release's order; its own keys come last."""
    differences: list[ConfigDifference] = []
    for key in (*release, *(key for key in config if key not in release)):
        here, there = config.get(key, ...), release.get(key, ...)
        if isinstance(here, dict) and isinstance(there, dict):
            differences += config_differences(here, there, f"{prefix}{key}.")
        elif here != there:
            differences.append(ConfigDifference(f"{prefix}{key}", _json_text(here), _json_text(there)))
    return differences


def _json_text(value: Any) -> str:
    try:
        return ABSENT if value is ... else json.dumps(value)
    except RecursionError:
        return "nested beyond reason"
