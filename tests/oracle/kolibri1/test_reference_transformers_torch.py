"""The reference against transformers' own Kolibri-1 in fp32, on the tiny checkpoint and on the shipped mini as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hugging_face import BOUND, error, hugging_face_logits, load
from transformers import Kolibri1ForCausalLM
from wrong_rules import WRONG_RULES

from goldens import mini_checkpoint
from oracle.kolibri1.arms import ARMS
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.reference import Reference, argmax_lowest_id

PASSES = {"tiny": 40, "mini": 120}
"""Ids per pass: more than three windows of either checkpoint."""


@pytest.fixture(scope="module")
def folders(tiny_folder: Path) -> dict[str, Path]:
    return {"tiny": tiny_folder, "mini": mini_checkpoint()}


@pytest.fixture(scope="module")
def checkpoints(folders: dict[str, Path]) -> dict[str, Checkpoint]:
    return {name: Checkpoint.open(folder) for name, folder in folders.items()}


@pytest.fixture(scope="module")
def ids(checkpoints: dict[str, Checkpoint]) -> dict[str, list[int]]:
    rng = np.random.default_rng(17)
    return {name: rng.integers(0, checkpoints[name].config.vocab_size, count).tolist() for name, count in PASSES.items()}


@pytest.fixture(scope="module")
def theirs(folders: dict[str, Path], ids: dict[str, list[int]]) -> dict[str, torch.Tensor]:
    models: dict[str, Any] = {name: load(folder) for name, folder in folders.items()}
    assert all(isinstance(model, Kolibri1ForCausalLM) for model in models.values())
    return {name: hugging_face_logits(model, ids[name]) for name, model in models.items()}


def logits(reference: Reference, ids: list[int]) -> torch.Tensor:
    return reference.forward(ids, reference.new_cache()).logits


@pytest.mark.parametrize("arm", ["float32", "float32-blas", "float64"])
@pytest.mark.parametrize("name", PASSES)
def test_fp32_logits_agree_and_so_does_every_argmax(
    name: str, arm: str, theirs: dict[str, torch.Tensor], checkpoints: dict[str, Checkpoint], ids: dict[str, list[int]]
) -> None:
    got = logits(Reference(checkpoints[name], ARMS[arm]), ids[name])
    assert error(got, theirs[name]) <= BOUND
    assert torch.equal(argmax_lowest_id(got), argmax_lowest_id(theirs[name]))


@pytest.mark.parametrize("rule", WRONG_RULES)
@pytest.mark.parametrize("name", PASSES)
def test_a_wrong_rule_exceeds_the_bound_by_far(
    name: str,
    rule: str,
    theirs: dict[str, torch.Tensor],
    checkpoints: dict[str, Checkpoint],
    ids: dict[str, list[int]],
    tmp_path: Path,
) -> None:
    wrong = WRONG_RULES[rule](checkpoints[name], tmp_path / "wrong", ARMS["float32"])
    assert error(logits(wrong, ids[name]), theirs[name]) > 500 * BOUND
