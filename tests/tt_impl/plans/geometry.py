"""The release's geometry, for plans."""

from __future__ import annotations

from oracle.kolibri1.config import Kolibri1Config
from oracle.kolibri1.synthetic import TINY

RELEASE = Kolibri1Config.model_validate(
    {
        **TINY,
        "hidden_size": 2560,
        "num_hidden_layers": 50,
        "num_attention_heads": 48,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "vocab_size": 128000,
        "num_experts": 384,
        "num_experts_per_tok": 6,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "sliding_window": 513,
        "max_position_embeddings": 262144,
        "layer_types": ["full_attention" if i % 5 == 4 else "sliding_attention" for i in range(50)],
        "quantization_config": {**TINY["quantization_config"], "weight_block_size": [128, 128]},
    }
)
