"""The released FP8 checkpoint's `config.json`, from the public facts. Free of torch and of arithmetic."""

from __future__ import annotations

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
"""Every key of the file. `modules_to_not_convert` is inferred from its size: the 50 gates fit it."""

RELEASE_SHARDS = 32
"""Files that the released FP8 checkpoint is spread over."""
