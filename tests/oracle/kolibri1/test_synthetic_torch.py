"""A random checkpoint of real widths computes something: finite logits of a usable size, and a router that chooses."""

from __future__ import annotations

from pathlib import Path

import torch

from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.reference import Reference
from oracle.kolibri1.synthetic import geometry, write_synthetic


def test_a_forward_pass_at_the_real_width_is_healthy(tmp_path: Path) -> None:
    config = geometry(
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        num_attention_heads=4,
        num_key_value_heads=1,
        num_experts=24,
        moe_intermediate_size=128,
        shared_expert_intermediate_size=128,
        vocab_size=500,
    )
    reference = Reference(Checkpoint.open(write_synthetic(tmp_path / "wide", config, shards=3)))
    got = reference.forward([(37 * i) % 500 for i in range(40)], reference.new_cache())
    assert torch.isfinite(got.logits).all()
    assert 0.5 < got.logits.std() < 8
    assert got.logits.argmax(-1).unique().numel() > 20  # not one token for all
    growth = got.residual.std((0, 2)) / got.layer_inputs.std((0, 2))
    assert ((growth > 1) & (growth < 1.5)).all()  # every layer adds to the stream, and none drowns it
    for layer in range(3):
        chosen = got.expert_ids[:, layer]
        assert chosen.unique().numel() >= 20
        assert len({tuple(sorted(row)) for row in chosen.tolist()}) > 30
        assert 0.05 < got.expert_weights[:, layer].std() < 0.45  # sigmoids neither all a half nor all at their ends
