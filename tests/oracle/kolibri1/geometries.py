"""Small geometries that between them take every path of the kernels, and the real one's heads. Each a whole `config.json`."""

from __future__ import annotations

import copy
from typing import Any

from oracle.kolibri1.synthetic import TINY


def geometry(*, block: int = 32, **values: Any) -> dict[str, Any]:
    """`TINY` with other values and fp8 blocks of `block` x `block`."""
    config = copy.deepcopy(TINY) | values
    config["quantization_config"]["weight_block_size"] = [block, block]
    return config


ODD = geometry(
    num_attention_heads=5,
    num_key_value_heads=1,
    head_dim=96,
    vocab_size=101,
    num_experts=11,
    moe_intermediate_size=96,
    sliding_window=7,
)
"""Nothing divides: 5 heads on one key head, 96 wide (four vectors and two), 101 and 11 rows, a window of 7."""

GROUPED = geometry(num_attention_heads=14, num_key_value_heads=2, head_dim=64, shared_expert_intermediate_size=128)
"""7 heads a key head, 64 wide: threes of heads and one left over."""

WIDE = geometry(
    block=128,
    hidden_size=256,
    num_hidden_layers=2,
    layer_types=["sliding_attention", "full_attention"],
    num_attention_heads=24,
    num_key_value_heads=2,
    head_dim=128,
    moe_intermediate_size=256,
    shared_expert_intermediate_size=256,
)
"""Wide enough that a few dozen tokens are worth several threads."""

REAL_HEADS = geometry(
    block=128,
    hidden_size=256,
    num_hidden_layers=2,
    layer_types=["sliding_attention", "full_attention"],
    num_attention_heads=48,
    num_key_value_heads=4,
    head_dim=128,
    vocab_size=512,
    num_experts_per_tok=6,
    moe_intermediate_size=256,
    shared_expert_intermediate_size=256,
    sliding_window=513,
    max_position_embeddings=16384,
    eos_token_id=511,
    pad_token_id=510,
)
"""The release's heads, window and top-6, in narrow layers: 2 x 2 scales for every weight of an expert; 8 experts."""
