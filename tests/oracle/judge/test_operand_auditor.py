"""The operand auditor and the judge's dequantization: each way in which a computing copy can be wrong is a violation."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ml_dtypes import bfloat16

import oracle.judge.operand_controls as operand_controls
from oracle.judge.dequantize import DequantizedWeights, dequantize
from oracle.judge.operand_audit import OperandAuditor, operand_plan, operand_table
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.inventory import SCALE_SUFFIX, expert_weight
from oracle.subjects.operands import OperandDtype, OperandEvidence, OperandImage
from tt_impl.device.protocol import DType
from tt_impl.experts.dequant import decode_e4m3fn
from tt_impl.experts.dequant import dequantize as dequantize_in_tt

PREFIX = "model.layers.1"
QKV = tuple(f"{PREFIX}.self_attn.{name}_proj.weight" for name in "qkv")
UP, GATE, DOWN = (expert_weight(1, 2, f"{name}_proj") for name in ("up", "gate", "down"))
FILL = {"slot": 4, "generation": 7}


@pytest.fixture(scope="module")
def weights(tiny: Checkpoint) -> DequantizedWeights:
    return DequantizedWeights(tiny)


def copy(weights: DequantizedWeights, *names: str, dtype: OperandDtype = "BF16", **fill: int) -> OperandImage:
    return OperandImage(names, dtype, np.concatenate([weights.bytes(name, dtype) for name in names]), **fill)


def copies(weights: DequantizedWeights, dtype: OperandDtype = "BF16") -> list[OperandImage]:
    """What an honest device holds: each resident copy, unstacked but for one, and an expert."""
    single = [copy(weights, name, dtype=dtype) for name in operand_plan(weights.checkpoint.config) if name not in QKV]
    expert = [copy(weights, UP, GATE, dtype=dtype, **FILL), copy(weights, DOWN, dtype=dtype, **FILL)]
    return [copy(weights, *QKV, dtype=dtype), *single, *expert]


def violations(
    weights: DequantizedWeights, uploads: list[OperandImage], held: list[OperandImage] | None = None, *, use: bool = True
) -> tuple[str, ...]:
    auditor = OperandAuditor(weights)
    for operand in uploads:
        auditor.uploaded(operand)
    if use:
        auditor.used(1, 2, FILL["slot"], FILL["generation"])
    auditor.read_back(again(uploads) if held is None else held)
    evidence = auditor.evidence()
    assert evidence is not None
    return evidence.violations


def again(operands: list[OperandImage]) -> list[OperandImage]:
    """The same in memory of their own."""
    return [replace(operand, data=operand.data.copy()) for operand in operands]


@pytest.mark.parametrize("dtype", ["BF16", "F32"])
def test_honest_copies_are_counted_by_kind_and_have_no_violation(weights: DequantizedWeights, dtype: OperandDtype) -> None:
    auditor = OperandAuditor(weights)
    uploads = copies(weights, dtype)
    for operand in uploads:
        auditor.uploaded(operand)
    auditor.used(1, 2, **FILL)
    auditor.read_back(again(uploads))
    plan = operand_plan(weights.checkpoint.config)
    elements = {**plan, **dict.fromkeys((UP, GATE, DOWN), 4096)}
    table = operand_table(elements, dict.fromkeys(elements, 1))
    assert auditor.evidence() == OperandEvidence(1, table, table, ((1, 2, 1),), ())
    assert sum(size for _, _, size in table) * (2 if dtype == "BF16" else 4) == sum(each.data.nbytes for each in uploads)


def test_the_plan_is_every_fp8_weight_but_the_routed_experts(tiny: Checkpoint) -> None:
    plan = operand_plan(tiny.config)
    assert len(plan) == 7 * tiny.config.num_hidden_layers
    assert all(tiny.spec(name).dtype == "F8_E4M3" and ".experts." not in name for name in plan)


@pytest.mark.parametrize("name", [QKV[1], f"{PREFIX}.self_attn.o_proj.weight", UP, DOWN])
def test_it_dequantizes_as_one_element_at_a_time_does_and_as_the_decoder_does(tiny: Checkpoint, name: str) -> None:
    shape, grid_shape = tiny.spec(name).shape, tiny.spec(name + SCALE_SUFFIX).shape
    quantized = tiny.raw(name).reshape(shape)
    grid = tiny.raw(name + SCALE_SUFFIX).view(np.float32).reshape(grid_shape)
    block_rows, block_columns = (size // blocks for size, blocks in zip(shape, grid_shape, strict=True))
    assert len(set(grid.reshape(-1).tolist())) == grid.size > 1
    exact = dequantize(tiny, name, "F32").view(np.float32).reshape(shape)
    rounded = dequantize(tiny, name, "BF16").view(bfloat16).reshape(shape)
    for row, column in np.random.default_rng(1).integers((0, 0), shape, (200, 2)).tolist():
        true = np.float32(decode_e4m3fn(int(quantized[row, column]))) * grid[row // block_rows, column // block_columns]
        assert exact[row, column] == true
        assert abs(float(rounded[row, column]) - float(true)) <= abs(float(true)) * 2.0**-8
    for mine, dtype in ((exact, DType.FLOAT32), (rounded, DType.BFLOAT16)):
        assert dequantize_in_tt(quantized, grid, dtype).tobytes() == mine.tobytes()


def test_what_is_kept_is_bounded_and_made_again_the_same(tiny: Checkpoint) -> None:
    small = DequantizedWeights(tiny, kept_bytes=2 * 8192)
    first = small.bytes(UP, "BF16")
    assert small.bytes(UP, "BF16") is first
    assert not first.flags.writeable
    second = small.bytes(GATE, "BF16")
    assert small.bytes(UP, "BF16") is first
    small.bytes(DOWN, "BF16")  # the gate, asked for longest ago, makes room
    assert small.bytes(UP, "BF16") is first
    assert small.bytes(GATE, "BF16") is not second
    assert small.bytes(GATE, "BF16").tobytes() == second.tobytes() == dequantize(tiny, GATE, "BF16").tobytes()
    assert small.bytes(UP, "F32").nbytes == 2 * first.nbytes
    assert small.bytes(UP, "F32") is small.bytes(UP, "F32")


@given(data=st.data())
def test_any_bit_of_any_copy_is_found_on_its_way_and_on_the_device(weights: DequantizedWeights, data: Any) -> None:
    names = data.draw(st.sampled_from([QKV, (UP, GATE), (DOWN,), (f"{PREFIX}.mlp.shared_experts.down_proj.weight",)]))
    dtype = data.draw(st.sampled_from(["BF16", "F32"]))
    spoiled = copy(weights, *names, dtype=dtype)
    at = data.draw(st.integers(0, spoiled.data.size - 1))
    spoiled.data[at] ^= 1 << data.draw(st.integers(0, 7))
    auditor = OperandAuditor(weights, residents=())
    auditor.uploaded(spoiled)
    auditor.read_back([replace(spoiled, data=spoiled.data.copy())])
    evidence = auditor.evidence()
    assert evidence is not None
    wrong = [violation for violation in evidence.violations if "differ from their dequantization" in violation]
    name = names[at // (spoiled.data.size // len(names))] if names != QKV else None
    assert [violation.split(": ")[1].split(" of ")[0] for violation in wrong] == ["1", "1"]
    assert ["uploaded" in wrong[0], "held" in wrong[1]] == [True, True]
    assert name is None or all(violation.startswith(name) for violation in wrong)


def test_each_fault_of_a_port_is_reported_in_its_own_words(tiny: Checkpoint) -> None:
    results = {control.name: control for control in operand_controls.operand_controls(tiny)}
    assert len(results) == len(operand_controls.FAULTS) + 1
    assert all(control.behaved for control in results.values()), results
    assert [control.expected for control in results.values()].count("pass") == 1


@pytest.mark.parametrize("names", [QKV, (UP, GATE)])
def test_rows_in_another_order_than_they_are_named_are_found(weights: DequantizedWeights, names: tuple[str, ...]) -> None:
    uploads = copies(weights)
    place = next(i for i, operand in enumerate(uploads) if operand.names == names)
    uploads[place] = replace(uploads[place], names=names[::-1])
    found = violations(weights, uploads, use=False)
    assert len([v for v in found if "uploaded:" in v and "differ from" in v]) >= 2


def test_a_use_of_a_fill_asks_for_a_copy_made_from_it(weights: DequantizedWeights) -> None:
    residents, expert = copies(weights)[:-2], copies(weights)[-2:]
    assert violations(weights, [*residents, *expert]) == ()
    unnamed = [replace(each, slot=None, generation=None) for each in expert]
    assert violations(weights, [*residents, *unnamed]) == ()
    for stale in ({"generation": 6}, {"slot": 3}):
        old = [replace(each, **stale) for each in expert]
        [found] = violations(weights, [*residents, *old])
        assert found == "layer 1 expert 2 slot 4 generation 7: took part in compute, but no copy of that fill was uploaded"
    [found] = violations(weights, [*residents, *expert, expert[1]], again([*residents, *expert]))
    assert found == "layer 1 expert 2 slot 4 generation 7: uploaded with 1, 1, 2 of gate_proj, up_proj, down_proj"


def test_a_copy_may_be_made_again_and_experts_need_not_be_held_whole_time(weights: DequantizedWeights) -> None:
    operands = copies(weights)
    assert violations(weights, [*operands, *again(operands[-2:])], again(operands)) == ()
    assert violations(weights, operands, again(operands[:-2]), use=False) == ()
    assert violations(weights, operands, again(operands[:-2])) == (
        "experts took part in compute, and the device holds no copy of any",
    )


def test_the_host_s_array_read_back_is_not_the_device_s(weights: DequantizedWeights) -> None:
    operands = copies(weights)
    handed = operands[0].data
    backs = again(operands)
    backs[0] = replace(backs[0], data=handed[: handed.size])
    [found] = violations(weights, operands, backs)
    assert "the host's memory that was uploaded" in found
    del handed
    gc.collect()
    assert violations(weights, copies(weights), backs) == ()


def test_what_ended_before_it_was_read_back_keeps_its_violations_alone(weights: DequantizedWeights) -> None:
    auditor = OperandAuditor(weights)
    assert auditor.evidence() is None
    auditor.uploaded(copy(weights, *QKV))
    assert auditor.evidence() == OperandEvidence()
    auditor.uploaded(replace(copy(weights, UP), names=(DOWN,)))
    evidence = auditor.evidence()
    assert evidence is not None
    assert (evidence.readbacks, evidence.uploaded, len(evidence.violations)) == (0, (), 1)


def test_at_most_100_violations_are_spelled_out(weights: DequantizedWeights) -> None:
    auditor = OperandAuditor(weights, residents=())
    wrong = replace(copy(weights, UP), names=(DOWN,))
    for _ in range(103):
        auditor.uploaded(wrong)
    evidence = auditor.evidence()
    assert evidence is not None
    assert len(evidence.violations) == 101
    assert evidence.violations[-1] == "and 3 more"


def test_evidence_adds_up_by_kind_and_expert() -> None:
    one = OperandEvidence(1, (("routed down", 2, 20),), (("attention o", 1, 5),), ((0, 1, 2), (3, 0, 1)), ("a",))
    two = OperandEvidence(2, (("routed down", 1, 10), ("attention q", 1, 1)), (), ((0, 0, 1), (0, 1, 1)), ("b",))
    assert one + two == OperandEvidence(
        3,
        (("routed down", 3, 30), ("attention q", 1, 1)),
        (("attention o", 1, 5),),
        ((0, 0, 1), (0, 1, 3), (3, 0, 1)),
        ("a", "b"),
    )
