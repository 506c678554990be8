"""The ops of a decode step as a judge counts them: how many the decoder means to have, and which weights each was given."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from oracle.kolibri1.config import Kolibri1Config
from oracle.subjects.census import DeclaredOps, OpUse
from tt_impl.device.protocol import DType
from tt_impl.operands import stacked_weights
from tt_impl.settings import DecoderSettings


def declared_ops(config: Kolibri1Config, settings: DecoderSettings) -> DeclaredOps:
    """As `decode`, `layers`, `attention` and `moe` are written."""
    networks = config.num_experts_per_tok + 1  # the shared expert
    step = {"embedding": 3, "rms_norm": 1, "linear": 1}  # the token's row, and cos and sin
    if settings.activation is not DType.BFLOAT16:
        step["typecast"] = 1  # of the token's row
    layer = {
        "rms_norm": 6,
        "linear": 3 + 2 * networks,  # q, k and v stacked, o, router; up and gate stacked, down
        "nlp_create_qkv_heads_decode": 1,
        "paged_update_cache": 2,
        "paged_scaled_dot_product_attention_decode": 1,
        "nlp_concat_heads_decode": 1,
        "swiglu": networks,
        "concat": 1,  # the routed experts' outputs
        "matmul": 1,  # and their weighted sum
        "add": 3,  # of the shared expert, and two to the residual stream
    }
    if settings.topk == "device":
        layer["add"] += 1  # of the bias
        layer |= {"topk": 1, "gather": 1}
    return DeclaredOps(step, layer, {"rotary_embedding_hf": 2})


def named_ops(recorded: Iterable[tuple[str, tuple[str, ...]]]) -> list[OpUse]:
    """A device's record, with the checkpoint's names of weights in place of labels."""
    return [OpUse(name, tuple(weight for label in labels for weight in weights_of(label))) for name, labels in recorded]


@lru_cache(maxsize=1 << 16)
def weights_of(label: str) -> tuple[str, ...]:
    """The checkpoint's names of what an operand of that label is, or stacks; none if it is no weight."""
    if label == "lm_head.weight" or label.startswith("model."):
        return stacked_weights(label) or (label,)
    return stacked_weights(label)
