"""The shipped golden, at every position: predicted by transformers and by the reference, in one pass and token by token."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hugging_face import BOUND, error, hugging_face_logits, load
from transformers import DynamicCache

from goldens import mini_checkpoint
from oracle.golden.format import Golden, load_golden
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.reference import NO_TAPS, Forward, Reference, argmax_lowest_id


@pytest.fixture(scope="module")
def golden() -> Golden:
    return load_golden(mini_checkpoint() / "golden")


@pytest.fixture(scope="module")
def mini() -> Checkpoint:
    return Checkpoint.open(mini_checkpoint())


@pytest.fixture(scope="module")
def model() -> Any:
    return load(mini_checkpoint())


def test_transformers_predicts_every_id_of_the_golden(model: Any, mini: Checkpoint, golden: Golden) -> None:
    reference = Reference(mini)
    compared = 0
    for prompt in golden.prompts:
        ids = list(prompt.fed)
        theirs = hugging_face_logits(model, ids)
        ours = reference.forward(ids, reference.new_cache()).logits
        assert error(ours, theirs) <= BOUND, prompt.name
        for logits in (theirs, ours):
            assert np.array_equal(argmax_lowest_id(logits).numpy(), prompt.argmax), prompt.name
            stored = np.take_along_axis(logits.numpy(), prompt.top_ids.astype(np.int64), 1)
            assert np.abs(stored - prompt.top_logits).max() <= BOUND * np.abs(prompt.top_logits).max(), prompt.name
        assert prompt.argmax[len(prompt.prompt_ids) - 1 :].tolist() == list(prompt.generated)
        compared += len(ids)
    assert compared == golden.positions > 1000


@pytest.mark.slow
def test_decode_has_the_bits_of_prefill_at_every_position_of_the_golden(mini: Checkpoint, golden: Golden) -> None:
    reference = Reference(mini)
    for prompt in golden.prompts:
        ids, cache = list(prompt.fed), reference.new_cache()
        steps = Forward.concatenate([reference.forward([i], cache, taps=NO_TAPS) for i in ids])
        assert torch.equal(steps.logits, reference.forward(ids, reference.new_cache(), taps=NO_TAPS).logits), prompt.name
        assert np.array_equal(argmax_lowest_id(steps.logits).numpy(), prompt.argmax), prompt.name


def test_transformers_cached_decode_agrees_on_the_longest_prompt(model: Any, mini: Checkpoint, golden: Golden) -> None:
    prompt = max(golden.prompts, key=lambda p: len(p.fed))
    assert len(prompt.fed) > 2 * mini.config.sliding_window
    cache, reference = DynamicCache(config=model.config), Reference(mini)
    decoded = torch.cat([hugging_face_logits(model, [i], cache) for i in prompt.fed])
    ours = reference.forward(list(prompt.fed), reference.new_cache()).logits
    assert error(ours, decoded) <= BOUND
    assert np.array_equal(argmax_lowest_id(decoded).numpy(), prompt.argmax)


def test_the_golden_belongs_to_the_mini_and_names_the_experts_the_reference_selects(mini: Checkpoint, golden: Golden) -> None:
    assert golden.document.checkpoint_digest == mini.digest()
    prompt = max(golden.prompts, key=lambda p: len(p.fed))
    reference = Reference(mini)
    got = reference.forward(list(prompt.fed), reference.new_cache())
    assert np.array_equal(got.expert_ids.numpy(), prompt.expert_ids)
    assert np.allclose(got.expert_weights.numpy(), prompt.expert_weights, rtol=1e-5)
