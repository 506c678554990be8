"""The reference's layers alone: the same bits as within a pass, and a wrong rule found in the layer that has it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from changed_checkpoints import Read
from wrong_rules import WRONG_RULES, WrongRule, other_step, other_values

from goldens import mini_checkpoint
from oracle.golden.format import Golden, load_golden
from oracle.judge.localise import Isolated, compare_layers
from oracle.kolibri1.arms import ARMS
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.reference import Reference, Segment
from oracle.subjects.protocol import IsolatesLayers
from oracle.subjects.reference import ReferenceSubject

IDS = [5, 17, 80, 3, 3, 41, 66, 90, 12, 7, 7, 59, 33, 28, 71, 2]


@pytest.mark.parametrize("arm", ["float32", "bfloat16", "fp8-kv"])
def test_each_layer_alone_gives_the_bits_that_it_gave_within_a_pass(tiny: Checkpoint, arm: str) -> None:
    reference = Reference(tiny, ARMS[arm])
    hidden = reference.forward(IDS, reference.new_cache()).hidden
    for layer in range(tiny.config.num_hidden_layers):
        assert torch.equal(reference.layer(layer, hidden[:, layer].float()), hidden[:, layer + 1])


@pytest.fixture(scope="module")
def golden() -> Golden:
    return load_golden(mini_checkpoint() / "golden")


@pytest.fixture(scope="module")
def mini() -> Checkpoint:
    return Checkpoint.open(mini_checkpoint())


def isolated(golden: Golden, reference: Reference, checkpoint: Checkpoint) -> Isolated:
    subject = ReferenceSubject(reference, checkpoint)
    assert isinstance(subject, IsolatesLayers)
    inputs = golden.probes.layer_inputs
    outputs = [subject.layer(layer, inputs[:, layer].copy()) for layer in range(inputs.shape[1])]
    limits = golden.document.classes[reference.arm.numeric_class].limits_for([golden.document.probe_prompt])
    return compare_layers(golden, outputs, limits)


def off(found: Isolated) -> list[int]:
    return [layer.layer for layer in found.layers if layer.off]


def norm_of_layer_2(name: str, read: Read) -> np.ndarray | None:
    return read(name)[::-1] if name == "model.layers.2.post_ffn_norm.weight" else None


def expert_halved(name: str, read: Read) -> np.ndarray | None:
    return 0.5 * read(name) if name == "model.layers.3.mlp.shared_experts.down_proj.weight_scale_inv" else None


def attends_short_in_layer_0(reference: Reference) -> None:
    honest = reference._attention

    def attention(x: torch.Tensor, layer: int, segments: list[Segment], rope: tuple) -> torch.Tensor:
        window = reference.config.sliding_window
        if layer == 0:
            reference.config = reference.config.model_copy(update={"sliding_window": window - 1})
        try:
            return honest(x, layer, segments, rope)
        finally:
            reference.config = reference.config.model_copy(update={"sliding_window": window})

    reference._attention = attention  # type: ignore[method-assign]


@pytest.mark.slow
@pytest.mark.parametrize("arm", ["float32", "float32-permuted", "bfloat16", "bfloat16-fused", "w8a8-per-expert", "fp8-kv-once"])
def test_no_layer_of_an_honest_arm_is_named(golden: Golden, mini: Checkpoint, arm: str) -> None:
    assert off(isolated(golden, Reference(mini, ARMS[arm]), mini)) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "arm", "layers"),
    [
        pytest.param(other_values(norm_of_layer_2), "bfloat16", [2], id="a norm reversed in layer 2"),
        pytest.param(other_values(expert_halved), "bfloat16", [3], id="the shared expert halved in layer 3"),
        pytest.param(other_step(attends_short_in_layer_0), "float32-blas", [0], id="a window one short in layer 0"),
        pytest.param(WRONG_RULES["rope on full layers"], "float32-blas", [4], id="rope on the full layer"),
        pytest.param(WRONG_RULES["another theta"], "float32-blas", [0, 1, 2, 3], id="another theta"),
        pytest.param(WRONG_RULES["two norms swapped"], "bfloat16", [0, 1, 2, 3, 4], id="norms swapped in every layer"),
    ],
)
def test_a_wrong_rule_is_found_in_the_layers_that_have_it(
    golden: Golden, mini: Checkpoint, tmp_path: Path, rule: WrongRule, arm: str, layers: list[int]
) -> None:
    assert off(isolated(golden, rule(mini, tmp_path / "rewritten", ARMS[arm]), mini)) == layers
