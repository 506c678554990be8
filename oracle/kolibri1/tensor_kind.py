"""The kinds of tensor that a Kolibri-1 checkpoint has, by name: what one kind shares is its dtype and its shape."""

from __future__ import annotations

import re
from typing import Literal

from oracle.kolibri1.inventory import SCALE_SUFFIX

UNKNOWN_KIND = "not Kolibri-1's"
"""The kind of a tensor whose name is of no kind."""

DtypeGroup = Literal["fp8", "scales", "bf16"]

_LAYER = "model.layers.N."
_BF16_KINDS: dict[str, tuple[str, ...]] = {
    "embedding": ("model.embed_tokens.weight",),
    "layer norms": tuple(
        f"{_LAYER}{norm}.weight" for norm in ("input_layernorm", "post_attn_norm", "post_attention_layernorm", "post_ffn_norm")
    ),
    "q and k norms": (f"{_LAYER}self_attn.q_norm.weight", f"{_LAYER}self_attn.k_norm.weight"),
    "router": (f"{_LAYER}mlp.gate.weight",),
    "router bias": (f"{_LAYER}moe.router.expert_bias",),
    "final norm": ("model.norm.weight",),
    "head": ("lm_head.weight",),
}
_FP8_KINDS: dict[str, tuple[str, ...]] = {
    "attention q": (f"{_LAYER}self_attn.q_proj.weight",),
    "attention k, v": (f"{_LAYER}self_attn.k_proj.weight", f"{_LAYER}self_attn.v_proj.weight"),
    "attention o": (f"{_LAYER}self_attn.o_proj.weight",),
    "routed gate, up": (f"{_LAYER}mlp.experts.N.gate_proj.weight", f"{_LAYER}mlp.experts.N.up_proj.weight"),
    "routed down": (f"{_LAYER}mlp.experts.N.down_proj.weight",),
    "shared gate, up": (f"{_LAYER}mlp.shared_experts.gate_proj.weight", f"{_LAYER}mlp.shared_experts.up_proj.weight"),
    "shared down": (f"{_LAYER}mlp.shared_experts.down_proj.weight",),
}
_SCALE_KINDS = {f"{kind}, scales": tuple(name + SCALE_SUFFIX for name in names) for kind, names in _FP8_KINDS.items()}

KINDS: dict[str, DtypeGroup] = {
    **dict.fromkeys(_BF16_KINDS, "bf16"),
    **dict.fromkeys(_FP8_KINDS, "fp8"),
    **dict.fromkeys(_SCALE_KINDS, "scales"),
}
"""Every kind, in the order of reports, with the group of dtypes that it counts under."""

_NUMBER = re.compile(r"\.(?:0|[1-9][0-9]*)(?=\.)")
_KIND_OF_PATTERN = {
    pattern: kind for kinds in (_BF16_KINDS, _FP8_KINDS, _SCALE_KINDS) for kind, names in kinds.items() for pattern in names
}


def tensor_kind(name: str) -> str:
    """The key of `KINDS` that this name belongs to, whatever the layer's and the expert's number, or `UNKNOWN_KIND`."""
    return _KIND_OF_PATTERN.get(_NUMBER.sub(".N", name), UNKNOWN_KIND)
