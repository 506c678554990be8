"""The reference, by kernels and by torch, against a dense float64 computation that shares no code with it.

Bounds: float64 against float64 agrees to 1e-10 of the largest value; float32 to 2e-6 of the largest logit.
"""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from dense_model import Dense
from hypothesis import given
from hypothesis import strategies as st
from wrong_rules import WRONG_RULES

from oracle.errors import UsageError
from oracle.kolibri1.arms import ARMS
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.reference import Forward, Reference, argmax_lowest_id
from oracle.kolibri1.synthetic import TINY, write_synthetic

IDS = np.random.default_rng(11).integers(0, 96, 40).tolist()
"""Longer than four windows of the tiny checkpoint."""


def whole(reference: Reference) -> Forward:
    """One pass over all ids."""
    return reference.forward(IDS, reference.new_cache())


@pytest.fixture(scope="module")
def dense(tiny: Checkpoint) -> dict[str, np.ndarray]:
    return Dense(tiny).forward(IDS)


def error(got: Forward, expected: dict[str, np.ndarray], name: str) -> float:
    """Largest difference over the largest expected absolute value."""
    return float(np.abs(getattr(got, name).double().numpy() - expected[name]).max() / np.abs(expected[name]).max())


@pytest.mark.parametrize(
    ("arm", "bound"),
    [
        ("float64", 1e-10),
        ("float32", 2e-6),
        ("float32-blas", 2e-6),
        ("float32-permuted", 2e-6),
        ("float32-per-expert", 2e-6),
        ("float32-per-expert-permuted", 2e-6),
    ],
)
def test_the_reference_computes_what_the_facts_say(
    tiny: Checkpoint, dense: dict[str, np.ndarray], arm: str, bound: float
) -> None:
    got = whole(Reference(tiny, ARMS[arm]))
    assert np.array_equal(got.expert_ids.numpy(), dense["expert_ids"])
    for name in ("logits", "residual", "expert_weights", "router_gap"):
        assert error(got, dense, name) < bound, name
    assert np.array_equal(argmax_lowest_id(got.logits).numpy(), dense["logits"].argmax(1))
    assert torch.equal(got.layer_inputs[:, 1:], got.residual[:, :-1])


@pytest.mark.parametrize(("arm", "bound"), [("float64", 1e-10), ("float32", 2e-6)])
@pytest.mark.parametrize("kind", ["full_attention", "sliding_attention"])
def test_a_model_of_one_kind_of_layer_agrees_too(tmp_path: Path, kind: str, arm: str, bound: float) -> None:
    config = copy.deepcopy(TINY) | {"layer_types": [kind] * 3, "num_key_value_heads": 6, "rope_theta": 500.0}
    checkpoint = Checkpoint.open(write_synthetic(tmp_path / kind, config, seed=3))
    assert error(whole(Reference(checkpoint, ARMS[arm])), Dense(checkpoint).forward(IDS), "logits") < bound


@pytest.mark.parametrize("arm", ["float32", "float32-blas"])
@pytest.mark.parametrize("rule", WRONG_RULES)
def test_a_wrong_rule_is_far_outside_the_bounds(
    tiny: Checkpoint, dense: dict[str, np.ndarray], tmp_path: Path, rule: str, arm: str
) -> None:
    wrong = WRONG_RULES[rule](tiny, tmp_path / "wrong", ARMS[arm])
    assert error(whole(wrong), dense, "logits") > 1e-3
    assert error(whole(Reference(tiny, ARMS[arm])), dense, "logits") < 2e-6  # the plant stayed where it was put


def test_two_sequences_share_nothing(tiny: Checkpoint) -> None:
    reference = Reference(tiny)
    first, second = reference.new_cache(), reference.new_cache()
    reference.forward(IDS[:20], first)
    beside = reference.forward(IDS[20:25], second)
    fresh = Reference(tiny)
    assert torch.equal(beside.logits, fresh.forward(IDS[20:25], fresh.new_cache()).logits)


@given(st.lists(st.sampled_from([-1.0, 0.0, 1.0, 1.5]), min_size=1, max_size=12))
def test_the_argmax_is_the_lowest_id_among_equals(values: list[float]) -> None:
    assert argmax_lowest_id(torch.tensor([values, values[::-1]])).tolist() == [
        values.index(max(values)),
        values[::-1].index(max(values)),
    ]


@pytest.mark.parametrize("ids", [[96], [-1], [3, 10**9], [0, 95, 96]])
def test_an_id_outside_the_vocabulary_is_refused_and_nothing_cached(tiny: Checkpoint, ids: list[int]) -> None:
    reference = Reference(tiny)
    cache = reference.new_cache()
    with pytest.raises(UsageError, match="is outside the vocabulary of 96; check the tokenizer"):
        reference.forward(ids, cache)
    assert cache.length == 0
    assert reference.forward([0, 95], cache).logits.shape == (2, 96)


def test_no_ids_are_refused(tiny: Checkpoint) -> None:
    reference = Reference(tiny)
    with pytest.raises(UsageError, match="a prompt needs at least one id"):
        reference.forward([], reference.new_cache())


def test_kernels_that_may_not_be_compiled_are_refused_in_one_line(tiny: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("numba.core.config.DISABLE_JIT", 1)
    with pytest.raises(UsageError, match=r"unset NUMBA_DISABLE_JIT, or use the arm float32-blas$"):
        Reference(tiny)
