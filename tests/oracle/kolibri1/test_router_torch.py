"""Selection among router scores: ties, their order and the gap, on both backends."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from changed_checkpoints import Read, rewritten

from oracle.kolibri1.arms import ARMS
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.reference import Reference
from oracle.kolibri1.synthetic import TINY, write_synthetic


@pytest.mark.parametrize("arm", ["float32", "float32-blas", "bfloat16"])
@pytest.mark.parametrize(
    ("bias", "ids", "gap"),
    [
        ([0, 0, 0, 0, 0, 0, 0, 0], [0, 1, 2], 0.0),
        ([0, 0, 0, 0, 0, 0, 0, 1], [7, 0, 1], 0.0),
        ([0, 1, 0, 1, 0, 1, 0, 1], [1, 3, 5], 0.0),
        ([0, 0, 0, 0, 0, 2, 2, 2], [5, 6, 7], 2.0),
        ([3, 0, 0, 2, 0, 0, 2, 0], [0, 3, 6], 2.0),
    ],
)
def test_equal_router_scores_go_to_the_lowest_expert(
    tiny: Checkpoint, tmp_path: Path, bias: list[int], ids: list[int], gap: float, arm: str
) -> None:
    def biases_alone(name: str, _: Read) -> np.ndarray | None:
        return np.zeros(1) if "mlp.gate.weight" in name else np.array(bias) if name.endswith("expert_bias") else None

    reference = Reference(rewritten(tiny, tmp_path / "tied", biases_alone), ARMS[arm])
    got = reference.forward([5, 17], reference.new_cache())
    assert got.expert_ids.tolist() == [[ids] * 3] * 2
    assert (got.router_gap == gap).all()
    assert (got.expert_weights == 0.5).all()  # sigmoid of the logit, without the bias


@pytest.mark.parametrize("arm", ["float64", "float32"])
def test_a_model_that_selects_every_expert_has_a_finite_gap(tmp_path: Path, arm: str) -> None:
    checkpoint = Checkpoint.open(write_synthetic(tmp_path / "all", TINY | {"num_experts_per_tok": 8}))
    reference = Reference(checkpoint, ARMS[arm])
    got = reference.forward([1, 2, 3, 4], reference.new_cache())
    assert torch.isfinite(got.router_gap).all()
    assert (got.expert_ids.sort(-1).values == torch.arange(8)).all()
