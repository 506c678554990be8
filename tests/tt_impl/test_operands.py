"""Computing copies told and read back: what is handed over, what the device holds, and which fill it was made from."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from oracle.errors import DeviceFault
from oracle.judge.dequantize import DequantizedWeights
from oracle.judge.observers import Observers
from oracle.judge.operand_audit import OperandAuditor, operand_plan
from oracle.judge.slot_audit import SlotAuditor
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.subjects.operands import OperandEvidence, OperandImage, OperandObserver, ShowsOperands
from oracle.subjects.protocol import SubjectRequest
from tt_impl.decode import Decoder
from tt_impl.device.protocol import DType
from tt_impl.device.sim import SimDevice
from tt_impl.operands import expert_label, stacked_weights
from tt_impl.plants.of_operands import MisplacesDown
from tt_impl.subject import FACTORY


class Ear:
    """Keeps what it is told; arrays are valid during the call only."""

    def __init__(self) -> None:
        self.told: list[OperandImage] = []
        self.fills: list[tuple[int, int, int, int]] = []

    def uploaded(self, operand: OperandImage) -> None:
        self.told.append(OperandImage(operand.names, operand.dtype, operand.data.copy(), operand.slot, operand.generation))

    def verified(self, fill: object) -> None: ...

    def used(self, layer: int, expert: int, slot: int, generation: int, event: int) -> None:
        self.fills.append((layer, expert, slot, generation))


def audited(tiny: Checkpoint, decoder_of: Callable[[Observers], Decoder], tokens: list[int]) -> OperandEvidence:
    """A prompt as a judge's job runs it."""
    observers = Observers(SlotAuditor(tiny), OperandAuditor(DequantizedWeights(tiny)))
    decoder = decoder_of(observers)
    for token in tokens:
        decoder.step(token)
    observers.operands.read_back(decoder.operands())
    evidence = observers.operands.evidence()
    assert evidence is not None
    return evidence


@pytest.mark.parametrize("activation", [DType.BFLOAT16, DType.FLOAT32])
def test_every_copy_is_the_judge_s_own_dequantization(
    tiny: Checkpoint, open_decoder: Callable[..., Decoder], tokens: list[int], activation: DType
) -> None:
    evidence = audited(tiny, lambda ear: open_decoder(activation, observer=ear), tokens)
    assert evidence.violations == ()
    held = {kind: tensors for kind, tensors, _ in evidence.held}
    assert held["attention k, v"] == 2 * tiny.config.num_hidden_layers
    assert held["routed gate, up"] == 2 * held["routed down"] > 0


def test_memos_that_must_make_room_are_told_again_and_not_held(
    tiny: Checkpoint, open_decoder: Callable[..., Decoder], tokens: list[int]
) -> None:
    evidence = audited(tiny, lambda ear: open_decoder(observer=ear, memos=3), tokens)
    assert evidence.violations == ()
    assert {kind: tensors for kind, tensors, _ in evidence.held}["routed down"] == 3
    assert max(times for _, _, times in evidence.experts) > 1


def test_each_fill_in_use_is_told_with_its_slot_and_generation(open_decoder: Callable[..., Decoder], tokens: list[int]) -> None:
    ear = Ear()
    decoder = open_decoder(observer=ear)
    for token in tokens:
        decoder.step(token)
    told = {
        (op.names[0].split(".")[2], op.names[0].split(".")[5], op.slot, op.generation) for op in ear.told if op.slot is not None
    }
    assert told == {(str(layer), str(expert), slot, generation) for layer, expert, slot, generation in ear.fills}
    assert max(generation for *_, generation in ear.fills) > 1


def test_what_is_told_is_what_the_device_was_handed_and_what_is_read_back_is_the_device_s(
    tiny: Checkpoint, open_decoder: Callable[..., Decoder]
) -> None:
    ear, device = Ear(), SimDevice()
    decoder = open_decoder(DType.BFLOAT16, observer=ear, device=device)
    held = list(decoder.operands())
    assert [(op.names, op.data.tobytes()) for op in held] == [(op.names, op.data.tobytes()) for op in ear.told]
    assert sorted(name for op in held for name in op.names) == sorted(operand_plan(tiny.config))
    tensor = decoder._residents.layers[1].qkv
    before = device.copy_device_to_host_tensor(tensor, blocking=True).bytes()[0]
    device.poke(tensor, 0, bytes([before ^ 1]))
    changed = [op.names for op, old in zip(decoder.operands(), held, strict=True) if op.data.tobytes() != old.data.tobytes()]
    assert changed == [tuple(f"model.layers.1.self_attn.{name}_proj.weight" for name in "qkv")]


def test_a_reset_leaves_residents_alone(tiny: Checkpoint, open_decoder: Callable[..., Decoder], tokens: list[int]) -> None:
    decoder = open_decoder()
    decoder.step(tokens[0])
    assert any(op.slot is not None for op in decoder.operands())
    decoder.reset()
    assert sorted(name for op in decoder.operands() for name in op.names) == sorted(operand_plan(tiny.config))
    decoder.close()
    with pytest.raises(DeviceFault, match="closed"):
        next(iter(decoder.operands()))


def test_an_observer_of_fills_alone_is_not_told(tiny: Checkpoint, open_decoder: Callable[..., Decoder]) -> None:
    assert not isinstance(SlotAuditor(tiny), OperandObserver)
    open_decoder(observer=SlotAuditor(tiny)).step(3)


@pytest.mark.parametrize(
    ("label", "names"),
    [
        ("model.layers.3.self_attn.qkv", ["3.self_attn.q_proj", "3.self_attn.k_proj", "3.self_attn.v_proj"]),
        ("model.layers.0.self_attn.o", ["0.self_attn.o_proj"]),
        ("model.layers.12.mlp.shared_experts.up_gate", ["12.mlp.shared_experts.up_proj", "12.mlp.shared_experts.gate_proj"]),
        ("model.layers.12.mlp.shared_experts.down", ["12.mlp.shared_experts.down_proj"]),
        (f"{expert_label(2, 31, 4, 9)}.up_gate", ["2.mlp.experts.31.up_proj", "2.mlp.experts.31.gate_proj"]),
        (f"{expert_label(2, 31, 4, 9)}.down", ["2.mlp.experts.31.down_proj"]),
        ("model.layers.0.self_attn.o_proj.weight", []),
        ("layer1.slot0", []),
        ("linear", []),
    ],
)
def test_labels_name_what_copies_stack(label: str, names: list[str]) -> None:
    assert stacked_weights(label) == tuple(f"model.layers.{name}.weight" for name in names)


def test_down_projections_from_the_wrong_bytes_are_found_though_slots_are_exact(
    tiny: Checkpoint, open_decoder: Callable[..., Decoder]
) -> None:
    slots, operands = SlotAuditor(tiny), OperandAuditor(DequantizedWeights(tiny))
    decoder = open_decoder(observer=Observers(slots, operands), pool_type=MisplacesDown)
    decoder.step(5)
    assert slots.evidence().violations == ()
    evidence = operands.evidence()
    assert evidence is not None
    assert len(evidence.violations) == tiny.config.num_experts_per_tok * tiny.config.num_hidden_layers
    assert all("down_proj.weight uploaded: " in violation for violation in evidence.violations)


def test_the_subject_has_the_ability(tiny: Checkpoint) -> None:
    subject = FACTORY.open(SubjectRequest(tiny.folder))
    assert isinstance(subject, ShowsOperands)
    assert np.concatenate([op.data for op in subject.operands()]).size == 2 * sum(operand_plan(tiny.config).values())
