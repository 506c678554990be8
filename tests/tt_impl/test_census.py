"""The decoder's ops by its device's own record: as declared, each weight once, and each plant seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from oracle.judge.census import undeclared
from oracle.judge.census_audit import CensusAuditor
from oracle.judge.census_watch import recorded
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.subjects.census import CensusEvidence, RecordsOps
from oracle.subjects.protocol import SubjectRequest
from tt_impl.decode import Decoder
from tt_impl.device.passing import Passing
from tt_impl.device.protocol import Device, DType, Layout, Tensor
from tt_impl.device.sim import SimDevice
from tt_impl.subject import FACTORY


def audited(folder: Path, tokens: list[int], arm: str | None = None, plant: str | None = None) -> CensusEvidence:
    subject = FACTORY.open(SubjectRequest(folder, arm=arm, plant=plant))
    assert isinstance(subject, RecordsOps)
    auditor = CensusAuditor(Checkpoint.open(folder).config, "prompt")
    watched = recorded(subject, auditor)
    watched.reset()
    watched.start()
    for token in tokens:
        watched.step(token)
    return auditor.evidence()


@pytest.mark.parametrize("arm", ["bf16", "exact", "bf16,topk=device"])
def test_every_step_is_as_declared_and_uses_each_weight_once(
    tiny: Checkpoint, tiny_folder: Path, tokens: list[int], arm: str
) -> None:
    evidence = audited(tiny_folder, tokens[:5], arm)
    assert (evidence.steps, evidence.violations, undeclared(evidence)) == (5, (), [])
    assert [tally.where for tally in evidence.tallies] == ["step", "sliding", "layer"]
    config = tiny.config
    fixed = 12 if "topk=device" in arm else 11  # with the router's bias
    assert evidence.weights == 5 * (3 + config.num_hidden_layers * (fixed + 3 * (config.num_experts_per_tok + 1)))


@pytest.mark.parametrize(
    ("plant", "words"),
    [
        (
            "norms-crossed",
            "layer 0: model.layers.1.post_attn_norm.weight used where model.layers.0.post_attn_norm.weight belongs",
        ),
        ("expert-repeated", "layer 0: not used: model.layers.0.mlp.experts."),
        ("expert-repeated", "layer 0: used besides, or once too often: model.layers.0.mlp.experts."),
    ],
)
def test_a_weight_that_is_not_the_one_is_named(tiny_folder: Path, tokens: list[int], plant: str, words: str) -> None:
    evidence = audited(tiny_folder, tokens[:2], plant=plant)
    assert sum(words in violation for violation in evidence.violations) == 2
    assert undeclared(evidence) == []


@pytest.mark.parametrize(
    ("plant", "counted", "declared"),
    [("add-doubled", "add 4", "add 3"), ("full-layer-turned", "rotary_embedding_hf 2", "rotary_embedding_hf 0")],
)
def test_an_op_too_many_is_counted(
    tiny: Checkpoint, tiny_folder: Path, tokens: list[int], plant: str, counted: str, declared: str
) -> None:
    evidence = audited(tiny_folder, tokens[:2], plant=plant)
    [(tally, shown, wanted)] = undeclared(evidence)
    assert (tally.times, shown, wanted) == (2, counted, declared)
    assert evidence.violations == ()


def test_where_the_device_chooses_its_own_add_is_declared_and_one_more_is_not(tiny_folder: Path, tokens: list[int]) -> None:
    evidence = audited(tiny_folder, tokens[:2], arm="bf16,topk=device", plant="add-doubled")
    [(tally, shown, wanted)] = undeclared(evidence)
    assert (tally.times, shown, wanted) == (2, "add 5", "add 4")


class CrossesBiases(Passing):
    """Adds the first two layers' router biases to each other's logits."""

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        first, second = (f"model.layers.{layer}.moe.router.expert_bias" for layer in (0, 1))
        self._other = {first: second, second: first}
        self._biases: dict[str, Tensor] = {}

    def allocate_tensor_on_device(self, shape: Sequence[int], dtype: DType, layout: Layout, label: str) -> Tensor:
        tensor = self._device.allocate_tensor_on_device(shape, dtype, layout, label)
        if label in self._other:
            self._biases[label] = tensor
        return tensor

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        return self._device.add(a, self._biases.get(self._other.get(b.label, ""), b))


def test_a_bias_that_the_device_adds_in_another_layer_is_named(
    tiny: Checkpoint, open_decoder: Callable[..., Decoder], tokens: list[int]
) -> None:
    """Each bias is used once, and as many ops as declared: only its place tells."""
    decoder = open_decoder(device=CrossesBiases(cast(Device, SimDevice())), topk="device")
    auditor = CensusAuditor(tiny.config, "prompt")
    auditor.declare(decoder.declared_ops())
    decoder.record_ops(True)
    for position, token in enumerate(tokens[:2]):
        step = decoder.step(token)
        assert step.expert_ids is not None
        auditor.step(position, decoder.recorded_ops(), step.expert_ids.tolist())
    evidence = auditor.evidence()
    assert undeclared(evidence) == []
    assert evidence.violations[0] == (
        "prompt[0]: model.layers.1.moe.router.expert_bias used behind model.layers.0.mlp.gate.weight, and not behind a "
        "weight of model.layers.1"
    )
    assert len(evidence.violations) == 2 * 2


def test_the_device_keeps_names_and_labels_only_while_it_is_asked_to() -> None:
    device = SimDevice()

    def tensor(label: str):
        made = device.allocate_tensor_on_device((1, 32), DType.FLOAT32, Layout.TILE, label)
        device.copy_host_to_device_tensor(np.ones((1, 32), np.float32), made)
        return made

    a, b = tensor("a"), tensor("b")
    device.add(a, b)
    assert device.recorded_ops() == []
    device.record_ops(True)
    device.mul(b, device.add(a, b))
    device.rms_norm(a, b, epsilon=1e-6)
    assert device.recorded_ops() == [("add", ("a", "b")), ("mul", ("b", "add")), ("rms_norm", ("a", "b"))]
    assert device.recorded_ops() == []
    device.silu(a)
    device.record_ops(True)
    assert device.recorded_ops() == []
    device.record_ops(False)
    device.silu(a)
    assert device.recorded_ops() == []


def test_a_replayed_trace_is_kept_as_it_runs_and_not_as_it_is_captured() -> None:
    device = SimDevice()
    a = device.allocate_tensor_on_device((1, 32), DType.FLOAT32, Layout.TILE, "a")
    device.copy_host_to_device_tensor(np.ones((1, 32), np.float32), a)
    device.record_ops(True)
    trace = device.begin_trace_capture()
    device.add(a, a)
    device.end_trace_capture(trace)
    assert device.recorded_ops() == []
    for _ in range(2):
        device.execute_trace(trace, blocking=True)
    assert device.recorded_ops() == [("add", ("a", "a"))] * 2


def test_every_op_of_the_record_is_counted_by_the_device_too(open_decoder: Callable[..., Decoder], tokens: list[int]) -> None:
    decoder = open_decoder()
    decoder.record_ops(True)
    for token in tokens[:2]:
        decoder.step(token)
    kept = [op.name for op in decoder.recorded_ops()]
    counts = decoder.stats()
    assert {f"device.op.{name}": kept.count(name) for name in set(kept)} == {
        name: n for name, n in counts.items() if name.startswith("device.op.")
    }
    assert len(kept) == counts["device.ops"]
