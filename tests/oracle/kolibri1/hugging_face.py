"""transformers' Kolibri-1 as the tests compare with it: eager attention, the head in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

BOUND = 2e-6
"""Of the largest logit, between two float32 computations. Measured: below 1e-6 everywhere."""


def load(folder: Path, dtype: torch.dtype = torch.float32, experts: str = "eager") -> Any:
    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager", experts_implementation=experts
    )


@torch.no_grad()
def hugging_face_logits(model: Any, ids: list[int], cache: Any = None) -> torch.Tensor:
    """[T, V]; the head in float32, as the checkpoint's `head_dtype` says and transformers does not do.

    With a `DynamicCache` the ids follow what it holds, and it grows by them.
    """
    hidden = model.model(torch.tensor([ids]), cache=cache, use_cache=cache is not None).last_hidden_state[0]
    return hidden.float() @ model.lm_head.weight.float().T


def error(got: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest difference over the largest expected absolute value."""
    return float((got.double() - expected.double()).abs().max() / expected.double().abs().max())
