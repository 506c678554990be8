"""The shipped checkpoint and golden are what the gates need: nothing in them may hide a fault by symmetry or regularity."""

from __future__ import annotations

import hashlib
from collections import Counter
from itertools import combinations

import ml_dtypes
import numpy as np
import pytest

from goldens import mini_checkpoint
from oracle.golden.format import Golden, load_golden
from oracle.golden.regularity import regular
from oracle.golden.sensitivity import LEAST_SHARE, exposures, weakest
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.inventory import EXPERT_PROJECTIONS, expert_weight, inventory
from oracle.report.golden_summary import summarize


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return Checkpoint.open(mini_checkpoint())


@pytest.fixture(scope="module")
def golden() -> Golden:
    return load_golden(mini_checkpoint() / "golden")


def bf16(checkpoint: Checkpoint, name: str) -> np.ndarray:
    return checkpoint.raw(name).view(ml_dtypes.bfloat16).astype(np.float32)


def test_the_geometry_is_small_but_has_every_feature_of_the_release(checkpoint):
    config = checkpoint.config
    assert config.hidden_size >= 256
    assert set(config.layer_types) == {"sliding_attention", "full_attention"}
    assert config.num_attention_heads > config.num_key_value_heads
    assert config.num_experts >= 16
    assert config.num_experts_per_tok == 6
    assert config.query_width != config.hidden_size
    assert checkpoint.total_bytes() < 21_000_000


def test_every_scale_grid_has_more_than_one_block_each_way(checkpoint):
    grids = [spec.shape for spec in inventory(checkpoint.config) if spec.dtype == "F32"]
    assert min(min(grid) for grid in grids) >= 2


def test_no_two_blocks_of_a_grid_share_a_scale(checkpoint):
    for spec in inventory(checkpoint.config):
        if spec.dtype == "F32":
            scales = checkpoint.raw(spec.name).view(np.float32)
            assert len(set(scales.tolist())) == scales.size, spec.name


def test_router_biases_are_non_zero_and_differ_per_layer(checkpoint):
    biases = [bf16(checkpoint, f"model.layers.{i}.moe.router.expert_bias") for i in range(checkpoint.config.num_hidden_layers)]
    assert all(np.abs(bias).max() > 0.1 and np.count_nonzero(bias) == bias.size for bias in biases)
    assert all(np.abs(a - b).max() > 0.1 for a, b in combinations(biases, 2))


def test_router_biases_decide_which_experts_are_selected(golden, checkpoint):
    """At the probes the biased and the unbiased top-6, and the top-6 of sigmoid + bias, are three different things."""
    top_k = checkpoint.config.num_experts_per_tok
    differs = Counter()
    for logits in golden.probes.router_logits:
        for layer, row in enumerate(logits):
            bias = bf16(checkpoint, f"model.layers.{layer}.moe.router.expert_bias")
            sets = [
                frozenset(np.argsort(-score, kind="stable")[:top_k].tolist())
                for score in (row + bias, row, 1 / (1 + np.exp(-row)) + bias)
            ]
            differs["unbiased"] += sets[0] != sets[1]
            differs["sigmoid"] += sets[0] != sets[2]
            differs["rows"] += 1
    assert differs["unbiased"] > 0.2 * differs["rows"]
    assert differs["sigmoid"] > 0.2 * differs["rows"]


def test_every_norm_weight_is_distinct(checkpoint):
    norms = {spec.name: bf16(checkpoint, spec.name) for spec in inventory(checkpoint.config) if "norm" in spec.name}
    for (first, a), (second, b) in combinations(norms.items(), 2):
        if a.shape == b.shape:
            assert np.abs(a - b).max() > 0.05, (first, second)


def test_the_full_layers_q_norm_stands_apart_from_its_k_norm(checkpoint):
    full = checkpoint.config.layer_types.index("full_attention")
    q, k = (bf16(checkpoint, f"model.layers.{full}.self_attn.{which}_norm.weight") for which in ("q", "k"))
    assert np.median(np.abs(q - k) / np.abs(k)) > 0.02


def test_every_experts_bytes_are_its_own(checkpoint):
    config = checkpoint.config
    digests = {
        hashlib.sha256(checkpoint.raw(expert_weight(layer, expert, projection)).data).digest()
        for layer in range(config.num_hidden_layers)
        for expert in range(config.num_experts)
        for projection in EXPERT_PROJECTIONS
    }
    assert len(digests) == config.num_hidden_layers * config.num_experts * len(EXPERT_PROJECTIONS)


def test_the_golden_has_prompts_of_both_languages_from_one_id_to_past_the_window(golden, checkpoint):
    lengths = [len(p.prompt_ids) for p in golden.prompts]
    assert len(golden.prompts) >= 12
    assert min(lengths) == 1
    assert max(lengths) > 2 * checkpoint.config.sliding_window
    assert all(24 <= len(p.generated) <= 96 for p in golden.prompts)
    kinds = {spec.reasoning_effort for spec in golden.document.recipe.prompts if spec.messages is not None}
    assert kinds == {"none", "high"}
    texts = " ".join(str(p.text) for p in golden.prompts)
    assert "zieht eine Karte" in texts
    assert "draws a card" in texts or "throws a coin" in texts


def test_margins_are_wide_and_near_ties_are_many(golden):
    summary = summarize(golden)
    assert summary["margins"]["share above 2 nats"] >= 0.30
    assert summary["classes"]["bf16"]["contexts_below_largest_regret"] >= 50


def test_the_chains_expose_every_simulated_index_fault(golden):
    sensitivity = golden.document.sensitivity
    assert sensitivity.faults > 0
    assert sensitivity.exposed == sensitivity.faults
    assert sensitivity.hidden == ()
    found = exposures({p.name: (p.prompt_ids, p.generated) for p in golden.prompts})
    assert len(found) == 602
    assert weakest(found).share == 2 * LEAST_SHARE


def test_no_chain_is_regular(golden):
    assert [p.name for p in golden.prompts if regular(p.generated)] == []


def test_every_floor_arm_passes_what_the_others_allow(golden):
    for calibration in golden.document.classes.values():
        assert len(calibration.held_out) >= 3
        assert all(entry.passed and entry.worst_ratio < 1 for entry in calibration.held_out)
        assert max(entry.worst_prompt_ratio for entry in calibration.held_out) < 0.8
