"""Random checkpoints in the release's exact on-disk format, at any geometry. Needs no torch.

For unit tests and benchmarks: every tensor has its own seeded stream, so every expert's bytes differ, every norm weight
is distinct, and router biases are non-zero.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from oracle.kolibri1.config import Kolibri1Config
from oracle.kolibri1.inventory import TensorSpec, inventory
from oracle.kolibri1.scan import INDEX_FILE

TINY: dict[str, Any] = {
    "architectures": ["Kolibri1ForCausalLM"],
    "model_type": "kolibri1",
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-06,
    "vocab_size": 96,
    "rope_theta": 10000.0,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
    "norm_topk_prob": False,
    "attention_bias": False,
    "tie_word_embeddings": False,
    "use_sliding_window": True,
    "sliding_window": 9,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "bos_token_id": None,
    "eos_token_id": 95,
    "pad_token_id": 94,
    "dtype": "bfloat16",
    "head_dtype": "float32",
    "quantization_config": {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": [32, 32],
        "modules_to_not_convert": [],
    },
}
"""A geometry that a unit test runs in milliseconds: 3 layers, GQA 3:1, 8 experts top-3, 2x2 scale grids, window 9."""


def write_synthetic(folder: Path, config: dict[str, Any] | None = None, *, seed: int = 0, shards: int = 2) -> Path:
    """Write a random checkpoint and return its folder.

    Args:
        folder: created if need be.
        config: the dictionary for `config.json`; `TINY` when None.
        seed: of every stream; tensors depend on (seed, name) only, never on their order.
        shards: number of shard files; layers are spread over them in order.

    Raises:
        pydantic.ValidationError: `config` is not a Kolibri-1's.
    """
    config = TINY if config is None else config
    parsed = Kolibri1Config.model_validate(config)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    parts: list[dict[str, np.ndarray]] = [{} for _ in range(shards)]
    for spec in inventory(parsed):
        layer = int(spec.name.split(".")[2]) if spec.name.startswith("model.layers.") else 0
        parts[layer * shards // parsed.num_hidden_layers][spec.name] = _random_tensor(spec, seed)
    weight_map: dict[str, str] = {}
    for index, part in enumerate(parts):
        file = f"model-{index + 1:05d}-of-{shards:05d}.safetensors"
        save_file(part, folder / file)
        weight_map |= dict.fromkeys(part, file)
    total = sum(tensor.nbytes for part in parts for tensor in part.values())
    text = json.dumps({"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}, indent=2)
    (folder / INDEX_FILE).write_text(text + "\n", encoding="utf-8")
    return folder


def _random_tensor(spec: TensorSpec, seed: int) -> np.ndarray:
    rng = np.random.default_rng([seed, zlib.crc32(spec.name.encode())])
    if spec.dtype == "F8_E4M3":
        # Normal weights at full fp8 range: a third of the codes near the top, some subnormal, none NaN.
        return np.clip(rng.normal(0, 120, spec.shape), -448, 448).astype(ml_dtypes.float8_e4m3fn)
    if spec.dtype == "F32":
        # Scales that bring the weights to a standard deviation near 0.1, each block's its own and no power of two.
        return rng.uniform(0.0005, 0.0012, spec.shape).astype(np.float32)
    if spec.name.endswith("expert_bias"):
        values = rng.normal(0, 0.5, spec.shape)
    elif len(spec.shape) == 1:
        centre = 0.3 if "post_attn_norm" in spec.name or "post_ffn_norm" in spec.name else 1.0
        values = centre * np.exp(rng.normal(0, 0.2, spec.shape))
    else:
        scale = 1.0 if "embed_tokens" in spec.name else 2.0 / np.sqrt(spec.shape[-1])
        values = rng.normal(0, scale, spec.shape)
    return values.astype(ml_dtypes.bfloat16)
