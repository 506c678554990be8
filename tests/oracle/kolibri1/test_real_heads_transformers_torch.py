"""The reference against transformers with the release's heads (48 on 4, 128 wide), its window of 513, and its 384 experts.

544 tokens, so that the window is outgrown. With 24 experts in every run, with all 384 in the slow one. Measured there with
transformers 5.24 on one thread: 4.7e-7 of the largest logit from each other, and 9e-7 both from the float64 arm.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from geometries import REAL_HEADS
from hugging_face import BOUND, error, hugging_face_logits, load
from transformers import DynamicCache
from wrong_rules import WRONG_RULES

from oracle.kolibri1.arms import TRUTH
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.reference import NO_TAPS, Forward, Reference, argmax_lowest_id
from oracle.kolibri1.synthetic import write_synthetic

IDS: list[int] = np.random.default_rng(5).integers(0, 512, 544).tolist()
CACHED = 500
"""Ids that are in the cache before decoding one by one across the window's edge."""


@dataclass(frozen=True)
class Pair:
    """A checkpoint, transformers' model of it, and both sides' logits of `IDS` in one pass."""

    checkpoint: Checkpoint
    model: Any
    theirs: torch.Tensor
    ours: torch.Tensor


@pytest.fixture(scope="module", params=[24, pytest.param(384, marks=pytest.mark.slow)], ids="{} experts".format)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("real-heads") / "checkpoint"
    checkpoint = Checkpoint.open(write_synthetic(folder, REAL_HEADS | {"num_experts": request.param}, seed=5))
    assert checkpoint.spec("model.layers.1.mlp.experts.23.down_proj.weight_scale_inv").shape == (2, 2)
    model = load(folder)
    return Pair(checkpoint, model, hugging_face_logits(model, IDS), one_pass(Reference(checkpoint)))


def one_pass(reference: Reference) -> torch.Tensor:
    return reference.forward(IDS, reference.new_cache(), taps=NO_TAPS).logits


def first_difference(logits: torch.Tensor, expected: torch.Tensor) -> int:
    """The first position whose logits are off by more than the bound."""
    off = (logits - expected).abs().amax(1) > BOUND * expected.abs().max()
    return int(off.nonzero()[0])


def test_prefill_agrees_at_every_position(pair: Pair) -> None:
    assert error(pair.ours, pair.theirs) <= BOUND
    assert torch.equal(argmax_lowest_id(pair.ours), argmax_lowest_id(pair.theirs))


def test_decode_agrees_at_every_position_and_has_the_bits_of_prefill(pair: Pair) -> None:
    reference = Reference(pair.checkpoint)
    cache = reference.new_cache()
    steps = Forward.concatenate([reference.forward([i], cache, taps=NO_TAPS) for i in IDS])
    assert torch.equal(steps.logits, pair.ours)
    assert error(steps.logits, pair.theirs) <= BOUND
    assert torch.equal(argmax_lowest_id(steps.logits), argmax_lowest_id(pair.theirs))


def test_transformers_cached_decode_agrees_across_the_windows_edge(pair: Pair) -> None:
    cache = DynamicCache(config=pair.model.config)
    parts = [hugging_face_logits(pair.model, IDS[:CACHED], cache)]
    parts += [hugging_face_logits(pair.model, [i], cache) for i in IDS[CACHED:]]
    decoded = torch.cat(parts)
    assert cache.get_seq_length() == len(IDS)
    assert error(pair.ours, decoded) <= BOUND
    assert torch.equal(argmax_lowest_id(pair.ours), argmax_lowest_id(decoded))


@pytest.mark.parametrize(("rule", "first"), [("window one too small", 512), ("window one too large", 513)])
def test_a_window_off_by_one_differs_from_its_edge_on(pair: Pair, tmp_path: Path, rule: str, first: int) -> None:
    wrong = one_pass(WRONG_RULES[rule](pair.checkpoint, tmp_path / "wrong", TRUTH))
    assert first_difference(wrong, pair.theirs) == first
    assert error(wrong, pair.theirs) > 50 * BOUND
    assert torch.equal(wrong[:first], pair.ours[:first])


@pytest.mark.parametrize(
    "rule",
    [
        "selection by sigmoid plus bias",
        "rope on full layers",
        "norms of one plus w",
        "inverse scales",
        "renormalized weights",
        "two norms swapped",
    ],
)
def test_a_wrong_rule_exceeds_the_bound_by_far(pair: Pair, tmp_path: Path, rule: str) -> None:
    wrong = one_pass(WRONG_RULES[rule](pair.checkpoint, tmp_path / "wrong", TRUTH))
    assert error(wrong, pair.theirs) > 500 * BOUND
