"""Asks a device for each op alone, and measures what it gave from the raw results: the evidence of gate `ops`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from oracle.errors import DeviceFault
from oracle.judge.ops_cases import OpCase
from oracle.judge.ops_exact import Exact
from oracle.judge.ops_plans import OpPlan
from oracle.subjects.ops import HostArray, OpsEvidence, OpStatistics, RunsOps, array_dtype

_DIGITS = 4
"""Significant digits of a stored statistic: the last ones depend on the machine that measured."""


def audit_ops(device: RunsOps, plans: Iterable[OpPlan], moved: Callable[[], None] = lambda: None) -> OpsEvidence:
    """Run each plan's op and measure it. What a device raises is its fault for that op; the next is asked all the same.

    Args:
        moved: told after each op.
    """
    found = []
    for plan in plans:
        found.append(_audited(device, plan))
        moved()
    return OpsEvidence(tuple(found))


def _audited(device: RunsOps, plan: OpPlan) -> OpStatistics:
    case = plan.case()
    operands = {name: array.copy() for name, array in case.operands.items()}
    try:
        results = device.run_op(plan.op, operands, case.parameters)
    except DeviceFault as fault:
        return OpStatistics(plan.name, plan.dtype, fault=str(fault))
    except Exception as error:
        return OpStatistics(plan.name, plan.dtype, fault=f"subject-crashed: {type(error).__name__}: {error!s:.200}")
    return measure(plan, case, results)


def measure(plan: OpPlan, case: OpCase, results: Sequence[HostArray]) -> OpStatistics:
    """The statistics of an op's results; never raises for what they are."""
    if fault := _misshapen(case, results):
        return OpStatistics(plan.name, plan.dtype, fault=fault)
    if case.exact[0].equal:
        unequal = sum(_unequal(exact.value, found) for exact, found in zip(case.exact, results, strict=True))
        size = sum(exact.value.size for exact in case.exact)
        return OpStatistics(plan.name, plan.dtype, compared=size, unequal=unequal)
    (exact,), (found,) = case.exact, results
    return _measured(plan, exact, found)


def _misshapen(case: OpCase, results: Sequence[HostArray]) -> str:
    if not isinstance(results, tuple | list) or len(results) != len(case.exact):
        return f"evidence: {len(case.exact)} results were expected"
    for index, (exact, found) in enumerate(zip(case.exact, results, strict=True)):
        wanted = (array_dtype(exact.dtype), exact.value.shape)
        if not isinstance(found, np.ndarray) or (found.dtype, found.shape) != wanted:
            shown = f"{found.dtype} {list(found.shape)}" if isinstance(found, np.ndarray) else type(found).__name__
            return f"evidence: result {index} is {shown}, expected {exact.dtype} {list(exact.value.shape)}"
    return ""


def _unequal(expected: HostArray, found: HostArray) -> int:
    """Elements whose bits differ."""
    size = f"u{expected.itemsize}"
    return int((np.ascontiguousarray(expected).view(size) != np.ascontiguousarray(found).view(size)).sum())


def _measured(plan: OpPlan, exact: Exact, found: HostArray) -> OpStatistics:
    specified = np.isfinite(exact.value)
    values = found.astype(np.float64)
    finite = specified & np.isfinite(values)
    true, got = exact.value[finite], values[finite]
    error = got - true
    unit = exact.unit[finite]
    signed = error / unit
    count = max(error.size, 1)
    variance = (signed * signed).sum() / count**2
    if exact.shared:
        rows_seen = max(int(_by_row(finite).any(axis=1).sum()), 1)
        variance += ((np.broadcast_to(exact.noise, finite.shape)[finite] / unit) ** 2).sum() / count / rows_seen
    rows = [row[mask] for row, mask in zip(_by_row(values), _by_row(specified), strict=True) if mask.all()]
    grid = found[finite].astype(array_dtype("bfloat16")).astype(np.float64) == got if exact.dtype == "float32" else ()
    return OpStatistics(
        plan.name,
        plan.dtype,
        compared=int(specified.sum()),
        error=_kept(np.abs(signed)),
        worst=_kept(np.abs(error) / exact.limit[finite]),
        bias=_short(signed.sum() / count),
        growth=_short((signed * np.sign(true)).sum() / count),
        standard_error=_short(np.sqrt(variance)),
        non_finite=int((specified & ~np.isfinite(values)).sum()),
        constant_rows=sum(bool((row == row[0]).all()) for row in rows),
        on_grid=int(np.sum(grid)),
    )


def _by_row(array: Any) -> Any:
    return array.reshape(-1, array.shape[-1])


def _kept(values: HostArray) -> float:
    return _short(values.max(initial=0.0))


def _short(value: float) -> float:
    """Rounded for keeping; capped, since a wrong result can be as far off as float32 reaches."""
    return float(f"{min(max(float(value), -1e30), 1e30):.{_DIGITS}g}")


def rounded_exactly(case: OpCase) -> tuple[HostArray, ...]:
    """What a perfect device answers: the true results, rounded once; nothing in particular where nothing is specified."""
    return tuple(
        exact.value.copy() if exact.equal else np.nan_to_num(exact.value).astype(np.float32).astype(array_dtype(exact.dtype))
        for exact in case.exact
    )
