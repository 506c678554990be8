"""Negative controls of what measures ops: a device that answers exactly, and ones that are wrong in one way each.

At the mini's widths, in the process that judges: what is controlled is the measuring, not a device.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from oracle.judge.control_result import ControlResult
from oracle.judge.ops import judge_ops
from oracle.judge.ops_audit import measure, rounded_exactly
from oracle.judge.ops_cases import MINI
from oracle.judge.ops_plans import OpPlan, planned, plans
from oracle.subjects.ops import HostArray, OpsEvidence, array_dtype

_LINEAR, _ROUTER, _NORM = "linear qkv mini bfloat16", "linear router mini float32", "rms_norm q heads mini bfloat16"
_HEAD, _EXACT_NORM = "linear head mini float32", "rms_norm q heads mini float32"
_ATTENTION = "paged_scaled_dot_product_attention_decode window mini bfloat16"
_TOPK, _CACHE, _CAST = "topk mini float32", "paged_update_cache mini bfloat16", "typecast to mini float32"

Spoil = Callable[[tuple[HostArray, ...]], object]


def _cut(results: tuple[HostArray, ...]) -> tuple[HostArray, ...]:
    """One ulp towards zero where the last bit is set: half of all elements, as truncation would."""
    return tuple((array.view(np.uint16) - (array.view(np.uint16) & 1)).view(array.dtype) for array in results)


def _on_grid(results: tuple[HostArray, ...]) -> tuple[HostArray, ...]:
    return tuple(array.astype(array_dtype("bfloat16")).astype(np.float32) for array in results)


def _scaled_by(part: float) -> Spoil:
    return lambda results: tuple((array.astype(np.float64) * (1 + part)).astype(array.dtype) for array in results)


def _set(value: float, *, rows: bool = False) -> Spoil:
    def spoil(results: tuple[HostArray, ...]) -> tuple[HostArray, ...]:
        changed = results[0].copy()
        changed[0][(slice(None) if rows else 0)] = value
        return (changed, *results[1:])

    return spoil


def _turned(results: tuple[HostArray, ...]) -> tuple[HostArray, ...]:
    """Positions changed places."""
    return tuple(array[::-1].copy() for array in results)


FAULTS: dict[str, tuple[str, Spoil, str]] = {
    "truncated": (_LINEAR, _cut, "lean to one side"),
    "half a percent too large": (_NORM, _scaled_by(0.005), "lean to one side"),
    "a tenth of the noise too large": (_HEAD, _scaled_by(1.5e-6), "lean to one side"),
    "bf16 logits": (_ROUTER, _on_grid, "bf16 grid"),
    "an element off": (_LINEAR, _set(9.0), "above its bound"),
    "NaN": (_ROUTER, _set(np.nan), "NaN"),
    "a head of zeros": (_NORM, _set(0.0, rows=True), "rows of one value"),
    "users swapped": (_ATTENTION, _turned, "above its bound"),
    "another column": (_TOPK, lambda r: (r[0], r[1] ^ np.uint32(1)), "changed bits"),
    "pages swapped": (_CACHE, _turned, "changed bits"),
    "subnormals flushed": (_CAST, lambda r: (np.where(np.abs(r[0]) < 2.0**-126, r[0] * 0, r[0]),), "changed bits"),
    "another dtype": (_LINEAR, lambda r: (r[0].astype(np.float32),), "no result to compare"),
    "a list": (_ROUTER, lambda r: (r[0].tolist(),), "no result to compare"),
    "a row short": (_LINEAR, lambda r: (r[0][1:],), "no result to compare"),
    "no results": (_LINEAR, lambda _: (), "no result to compare"),
}
"""By name: the case it is planted in, what it does to exact results, and words of the finding that must report it."""


def ops_controls() -> tuple[ControlResult, ...]:
    """The measuring shown exact answers to every case of the mini in either dtype, and one of each kind of fault."""
    small = {plan.name: plan for plan in (*plans("bf16", (MINI,)), *plans("fp32", (MINI,)))}
    honest = OpsEvidence(tuple(_measured(plan, lambda results: results) for plan in small.values()))
    results = [ControlResult("ops answered exactly", "pass", judge_ops(honest, planned(tuple(small.values()))).verdict)]
    # What the elements of a row have in common, as the float32 root of a norm, is no bias.
    norm = small[_EXACT_NORM]
    noisy = judge_ops(OpsEvidence((_measured(norm, _scaled_by(4e-7)),)), planned([norm]))
    results.append(ControlResult("ops with the noise of a root", "pass", noisy.verdict))
    for name, (case, spoil, words) in FAULTS.items():
        plan = small[case]
        judged = judge_ops(OpsEvidence((_measured(plan, spoil),)), planned([plan]))
        fired = any(words in str(finding) for finding in judged.findings)
        results.append(ControlResult(f"ops {name}", "fire", "fire" if fired else "pass"))
    return tuple(results)


def _measured(plan: OpPlan, spoil: Spoil):
    case = plan.case()
    return measure(plan, case, spoil(rounded_exactly(case)))  # type: ignore[arg-type]
