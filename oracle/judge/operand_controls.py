"""Negative controls of the operand auditor: honest copies of a resident stack and of one expert, and dishonest ones.

The faults are those of a port, its neighbours', and what an auditor could overlook. Two experts and two projections of one
layer serve for all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from ml_dtypes import bfloat16, float8_e4m3fn

from oracle.judge.control_result import ControlResult
from oracle.judge.dequantize import DequantizedWeights
from oracle.judge.operand_audit import OperandAuditor
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.inventory import SCALE_SUFFIX, expert_weight
from oracle.subjects.operands import OperandImage
from oracle.subjects.protocol import Bytes

_STACK = tuple(f"model.layers.0.self_attn.{name}_proj.weight" for name in "kv")
_UP, _GATE, _DOWN, _OTHER_DOWN = (
    expert_weight(0, expert, f"{name}_proj") for expert, name in ((0, "up"), (0, "gate"), (0, "down"), (1, "down"))
)
_SLOT, _GENERATION = 2, 3

FAULTS = {
    "down at the bf16 offset": "elements differ from",
    "grid transposed": "elements differ from",
    "scale missing": "elements differ from",
    "scale divided": "elements differ from",
    "truncated": "elements differ from",
    "an element off": "1 of",
    "gate and up swapped": "elements differ from",
    "another expert's": "elements differ from",
    "an old generation's": "no copy of that fill",
    "never uploaded": "no copy of that fill",
    "a part missing": "uploaded with",
    "copy missing": "0 copies were read back",
    "copy twice": "2 copies were read back",
    "uploaded twice": "2 copies were uploaded",
    "changed on the device": "held: 1 of",
    "held in part": "held with",
    "held, not uploaded": "never uploaded",
    "no expert held": "holds no copy of any",
    "no fp8 weight": "no fp8 weight",
    "another type": "no type to compute with",
    "an element short": "bytes of uint8",
    "judge's own memory": "judge's own memory",
    "host's memory": "the host's memory",
    "shared memory": "shares memory",
}
"""Each fault with words of the violation that must report it: one check must not stand in for another that is gone."""


def operand_controls(checkpoint: Checkpoint) -> tuple[ControlResult, ...]:
    """The auditor shown honest copies, and one of each kind of fault."""
    weights = DequantizedWeights(checkpoint)

    def show(fault: str) -> str:
        violations = _audited(weights, fault)
        if fault in FAULTS:
            return "fire" if any(FAULTS[fault] in violation for violation in violations) else "pass"
        return "fire" if violations else "pass"

    return (
        ControlResult("operands honest", "pass", show("none")),
        *(ControlResult(f"operands {fault}", "fire", show(fault)) for fault in FAULTS),
    )


def _audited(weights: DequantizedWeights, fault: str) -> tuple[str, ...]:
    """What an auditor of only these residents says."""
    auditor = OperandAuditor(weights, residents=_STACK)
    uploads = _uploads(weights, fault)
    for operand in uploads:
        auditor.uploaded(operand)
    auditor.used(0, 0, _SLOT, _GENERATION)
    auditor.read_back(_read_back(uploads, fault))
    evidence = auditor.evidence()
    return () if evidence is None else evidence.violations


def _uploads(weights: DequantizedWeights, fault: str) -> list[OperandImage]:
    def image(names: tuple[str, ...], make: Callable[[str], Bytes] = lambda name: weights.bytes(name, "BF16").copy()):
        return OperandImage(names, "BF16", np.concatenate([make(name) for name in names]))

    stack = image(_STACK)
    up_gate, down = (replace(image(names), slot=_SLOT, generation=_GENERATION) for names in ((_UP, _GATE), (_DOWN,)))
    if fault in _DEQUANTIZED:
        down = replace(down, data=_spoiled(weights.checkpoint, _DOWN, fault))
    elif fault == "an element off":
        stack.data[-2] ^= 1
    elif fault == "gate and up swapped":
        up_gate = replace(up_gate, names=(_GATE, _UP))
    elif fault == "another expert's":
        down = replace(down, data=weights.bytes(_OTHER_DOWN, "BF16").copy())
    elif fault == "an old generation's":
        up_gate, down = (replace(each, generation=_GENERATION - 1) for each in (up_gate, down))
    elif fault == "no fp8 weight":
        stack = replace(stack, names=("model.norm.weight",))
    elif fault == "another type":
        stack = replace(stack, dtype="F16")  # type: ignore[arg-type]
    elif fault == "an element short":
        stack = replace(stack, data=stack.data[:-2])
    elif fault == "judge's own memory":
        down = replace(down, data=weights.bytes(_DOWN, "BF16"))
    elif fault == "never uploaded":
        return [stack]
    elif fault == "a part missing":
        return [stack, up_gate]
    elif fault == "uploaded twice":
        return [stack, up_gate, down, stack]
    return [stack, up_gate, down]


def _read_back(uploads: list[OperandImage], fault: str) -> list[OperandImage]:
    held = [replace(each, data=each.data.copy()) for each in uploads]
    if fault == "copy missing":
        return held[1:]
    if fault == "copy twice":
        return [*held, replace(held[0], data=held[0].data.copy())]
    if fault == "changed on the device":
        held[-1].data[0] ^= 1
    elif fault == "held in part":
        return held[:-1]
    elif fault == "held, not uploaded":
        return [held[0], *(replace(each, generation=_GENERATION + 1) for each in held[1:])]
    elif fault == "no expert held":
        return held[:1]
    elif fault == "host's memory":
        return [replace(held[0], data=uploads[0].data[:]), *held[1:]]
    elif fault == "shared memory":
        return [*held, held[0]]
    return held


_DEQUANTIZED = ("down at the bf16 offset", "grid transposed", "scale missing", "scale divided", "truncated")


def _spoiled(checkpoint: Checkpoint, name: str, fault: str) -> Bytes:
    """A weight dequantized wrongly, as the fault says."""
    shape, grid_shape = checkpoint.spec(name).shape, checkpoint.spec(name + SCALE_SUFFIX).shape
    quantized = checkpoint.raw(name)
    if fault == "down at the bf16 offset":  # an element's place in bf16 is twice its place in fp8
        quantized = np.roll(quantized, -(quantized.size // 2))
    grid = checkpoint.raw(name + SCALE_SUFFIX).view(np.float32).reshape(grid_shape)
    if fault == "grid transposed":
        grid = np.ascontiguousarray(grid.T).reshape(grid_shape)
    if fault == "scale missing":
        grid = np.ones_like(grid)
    values = quantized.view(float8_e4m3fn).astype(np.float32).reshape(shape)
    scales = np.repeat(np.repeat(grid, shape[0] // grid_shape[0], axis=0), shape[1] // grid_shape[1], axis=1)
    products = np.ascontiguousarray(values / scales if fault == "scale divided" else values * scales)
    if fault == "truncated":
        return np.ascontiguousarray((products.view(np.uint32) >> np.uint32(16)).astype(np.uint16)).reshape(-1).view(np.uint8)
    return products.astype(bfloat16).reshape(-1).view(np.uint8)
