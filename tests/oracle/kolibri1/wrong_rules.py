"""Kolibri-1 computed by wrong rules, each on any arm: what a comparison with the reference must tell from the right ones.

To add one: a function of (honest checkpoint, folder that does not exist yet, arm) that returns a reference. It changes what
belongs to the rule: the config, the checkpoint's bytes, or one step of one reference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from changed_checkpoints import Read, Rewrite, reread, rewritten

from oracle.kolibri1.arms import Arm
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.config import Kolibri1Config
from oracle.kolibri1.reference import Reference, Routing, Segment

WrongRule = Callable[[Checkpoint, Path, Arm], Reference]


def other_config(values: Callable[[Kolibri1Config], dict[str, Any]]) -> WrongRule:
    def rule(checkpoint: Checkpoint, _: Path, arm: Arm) -> Reference:
        return Reference(reread(checkpoint, **values(checkpoint.config)), arm)

    return rule


def other_values(rewrite: Rewrite) -> WrongRule:
    def rule(checkpoint: Checkpoint, folder: Path, arm: Arm) -> Reference:
        return Reference(rewritten(checkpoint, folder, rewrite), arm)

    return rule


def other_step(replace: Callable[[Reference], None]) -> WrongRule:
    def rule(checkpoint: Checkpoint, _: Path, arm: Arm) -> Reference:
        reference = Reference(checkpoint, arm)
        replace(reference)
        return reference

    return rule


def rope_on_full_layers(config: Kolibri1Config) -> dict[str, Any]:
    """Every layer rotates, the formerly full ones in a window that nothing outgrows; sliding layers then see too much."""
    return {"layer_types": ("sliding_attention",) * config.num_hidden_layers, "sliding_window": 1 << 20}


def rope_on_full_layers_alone(reference: Reference) -> None:
    """Full layers rotate too, and every window stays."""
    honest = reference._attention

    def attention(x: torch.Tensor, layer: int, segments: Sequence[Segment], rope: Any) -> torch.Tensor:
        if reference.config.is_sliding(layer):
            return honest(x, layer, segments, rope)
        norm = reference.m.norm

        def norm_and_rotate(x: torch.Tensor, name: str) -> torch.Tensor:
            return reference.m.rotate(norm(x, name), *rope) if "q_norm" in name or "k_norm" in name else norm(x, name)

        reference.m.norm = norm_and_rotate
        try:
            return honest(x, layer, segments, rope)
        finally:
            reference.m.norm = norm

    reference._attention = attention


def rotates_neighbours(reference: Reference) -> None:
    def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        swapped = torch.stack([-x[..., 1::2], x[..., 0::2]], -1).flatten(-2)
        return x * cos[:, None] + swapped * sin[:, None]

    reference.m.rotate = rotate


def selects_by_sigmoid(reference: Reference) -> None:
    honest = reference._route

    def route(x: torch.Tensor, layer: int, segments: Sequence[Segment]) -> tuple[Routing, torch.Tensor, torch.Tensor]:
        _, logits, gap = honest(x, layer, segments)
        selection = torch.sigmoid(logits) + reference._bias[layer]
        ids = selection.sort(dim=-1, descending=True, stable=True).indices[:, : reference.config.num_experts_per_tok]
        return Routing(ids, torch.sigmoid(logits.gather(1, ids))), logits, gap

    reference._route = route


def renormalizes(reference: Reference) -> None:
    honest = reference.m.combine

    def combine(outputs: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, shared: torch.Tensor) -> torch.Tensor:
        return honest(outputs, ids, weights / weights.sum(-1, keepdim=True), shared)

    reference.m.combine = combine


def one_plus_norms(name: str, read: Read) -> np.ndarray | None:
    return 1 + read(name) if "norm" in name else None


def inverse_scales(name: str, read: Read) -> np.ndarray | None:
    """The scales' inverses, brought back to the scales' size."""
    return read(name).mean() ** 2 / read(name) if name.endswith("_scale_inv") else None


def scaled_embeddings(name: str, read: Read) -> np.ndarray | None:
    return 8 * read(name) if "embed_tokens" in name else None


def norms_swapped(name: str, read: Read) -> np.ndarray | None:
    for one, other in (("post_attn_norm", "post_attention_layernorm"), ("post_attention_layernorm", "post_attn_norm")):
        if f".{one}." in name:
            return read(name.replace(one, other))
    return None


WRONG_RULES: dict[str, WrongRule] = {
    "window one too small": other_config(lambda c: {"sliding_window": c.sliding_window - 1}),
    "window one too large": other_config(lambda c: {"sliding_window": c.sliding_window + 1}),
    "another theta": other_config(lambda c: {"rope_theta": 1.1 * c.rope_theta}),
    "another eps": other_config(lambda _: {"rms_norm_eps": 1e-3}),
    "one expert fewer": other_config(lambda c: {"num_experts_per_tok": c.num_experts_per_tok - 1}),
    "all layers sliding in an endless window": other_config(rope_on_full_layers),
    "rope on full layers": other_step(rope_on_full_layers_alone),
    "rope by neighbours": other_step(rotates_neighbours),
    "selection by sigmoid plus bias": other_step(selects_by_sigmoid),
    "renormalized weights": other_step(renormalizes),
    "norms of one plus w": other_values(one_plus_norms),
    "two norms swapped": other_values(norms_swapped),
    "inverse scales": other_values(inverse_scales),
    "scaled embeddings": other_values(scaled_embeddings),
}
