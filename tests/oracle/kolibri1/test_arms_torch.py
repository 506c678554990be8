"""The arms: found by name, different from each other, and rounded where their class says."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from oracle.errors import UsageError
from oracle.kolibri1.arms import ARMS, TRUTH, arm_named, floor_arms
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.reference import Forward, Reference
from oracle.kolibri1.weights import round_bf16
from oracle.subjects.protocol import NumericClass

IDS = np.random.default_rng(11).integers(0, 96, 40).tolist()
BF16_ARMS = [arm.name for arm in floor_arms("bf16")]


def whole(checkpoint: Checkpoint, arm: str) -> Forward:
    reference = Reference(checkpoint, ARMS[arm])
    return reference.forward(IDS, reference.new_cache())


def off_grid(values: torch.Tensor) -> float:
    """Share of the values that are no bf16 values."""
    return float((round_bf16(values) != values).double().mean())


@pytest.mark.parametrize("arm", BF16_ARMS)
def test_a_bf16_arm_rounds_the_residual_and_not_the_router_or_the_head(tiny: Checkpoint, arm: str) -> None:
    got = whole(tiny, arm)
    assert off_grid(got.residual) == 0
    assert off_grid(got.layer_inputs) == 0
    assert off_grid(got.router_logits) > 0.9
    assert off_grid(got.expert_weights) > 0.9
    assert off_grid(got.logits) > 0.9


def test_the_arms_of_a_class_differ_from_the_truth_and_from_each_other(tiny: Checkpoint) -> None:
    truth = whole(tiny, TRUTH.name)
    bounds: dict[NumericClass, float] = {"fp32": 2e-6, "bf16": 0.5}
    for numeric_class, bound in bounds.items():
        seen = [whole(tiny, arm.name).logits.double() for arm in floor_arms(numeric_class)]
        for index, logits in enumerate(seen):
            assert 0 < (logits - truth.logits).abs().max() / truth.logits.abs().max() < bound
            assert not any(torch.equal(logits, other) for other in seen[:index])


def test_arms_are_found_by_name() -> None:
    assert arm_named("float32") is TRUTH
    assert TRUTH not in floor_arms("fp32")
    assert all(arm.name == name for name, arm in ARMS.items())
    with pytest.raises(UsageError, match="the reference has no arm 'int8'; it has float32, "):
        arm_named("int8")
