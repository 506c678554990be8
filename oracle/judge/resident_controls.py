"""Negative controls of the resident auditor: one honest read-back, and dishonest ones that it must refuse.

A few tensors of every dtype serve for all: what is controlled is the comparison, and the whole of a large checkpoint would
cost more than the comparison itself.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from oracle.judge.control_result import ControlResult
from oracle.judge.resident_audit import audit_residents, resident_plan
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.inventory import SCALE_SUFFIX
from oracle.subjects.protocol import ResidentImage

_PREFIX = "model.layers.0"
_WEIGHT = f"{_PREFIX}.self_attn.k_proj.weight"
_NORMS = (f"{_PREFIX}.post_attn_norm.weight", f"{_PREFIX}.post_ffn_norm.weight")
_BIAS = f"{_PREFIX}.moe.router.expert_bias"
_NAMES = (*_NORMS, _BIAS, _WEIGHT, _WEIGHT + SCALE_SUFFIX)

FAULTS = {
    "flipped byte": "1 of",
    "missing tensor": "not read back",
    "surplus tensor": "no resident tensor of the checkpoint",
    "tensor twice": "read back twice",
    "tensors swapped": "differ from the checkpoint",
    "a byte short": "bytes of uint8",
    "checkpoint's own memory": "map of a file",
    "shared memory": "shares memory",
    "inexact dtype": "nothing was compared",
}
"""Each fault with words of the violation that must report it: one check must not stand in for another that is gone."""


def resident_controls(checkpoint: Checkpoint) -> tuple[ControlResult, ...]:
    """The auditor shown an honest read-back of some residents, and one of each kind of fault."""
    whole = resident_plan(checkpoint.config)
    plan = {name: whole[name] for name in _NAMES}

    def show(fault: str) -> str:
        violations = audit_residents(checkpoint, _images(checkpoint, fault), plan).violations
        if fault in FAULTS:
            return "fire" if any(FAULTS[fault] in violation for violation in violations) else "pass"
        return "fire" if violations else "pass"

    honest = ControlResult("residents honest", "pass", show("none"))
    return (honest, *(ControlResult(f"residents {fault}", "fire", show(fault)) for fault in FAULTS))


def _images(checkpoint: Checkpoint, fault: str) -> list[ResidentImage]:
    """Copies of the checkpoint's bytes as a device would give them back; the router bias as fp32."""
    images = {
        name: ResidentImage(name, checkpoint.spec(name).dtype, checkpoint.raw(name).copy()) for name in _NAMES if name != _BIAS
    }
    bias = checkpoint.raw(_BIAS)
    widened = np.zeros((bias.size // 2, 4), np.uint8)
    widened[:, 2:] = bias.reshape(-1, 2)
    images[_BIAS] = ResidentImage(_BIAS, "F32", widened.reshape(-1))
    first, second = (images[name] for name in _NORMS)
    if fault == "flipped byte":
        images[_WEIGHT].data[-1] ^= 1
    elif fault == "missing tensor":
        del images[_WEIGHT + SCALE_SUFFIX]
    elif fault == "surplus tensor":
        images["surplus"] = replace(first, name=f"{_PREFIX}.qkv", data=first.data.copy())
    elif fault == "tensor twice":
        images["again"] = replace(first, data=first.data.copy())
    elif fault == "tensors swapped":
        images[first.name], images[second.name] = replace(first, data=second.data), replace(second, data=first.data)
    elif fault == "a byte short":
        images[_WEIGHT] = replace(images[_WEIGHT], data=images[_WEIGHT].data[:-1])
    elif fault == "checkpoint's own memory":
        images[_WEIGHT] = replace(images[_WEIGHT], data=checkpoint.raw(_WEIGHT))
    elif fault == "shared memory":
        both = np.concatenate([first.data, second.data])
        half = first.data.size
        # One byte in common.
        images[first.name] = replace(first, data=both[:half])
        images[second.name] = replace(second, data=both[half - 1 : -1])
    elif fault == "inexact dtype":
        images[first.name] = replace(first, dtype="F16")
    return list(images.values())
