"""From what the reference's own arms do to the bands, budgets and limits a subject of that class is judged by.

Per class and never pooled over classes: pooling hides faults and fails honest arms. Every number here comes from the
class's arms against the truth; leave-one-out judges each arm by what the others alone would have allowed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from oracle.errors import GoldenError
from oracle.golden.calibration import (
    BAND_MULTIPLE,
    LIMIT_MULTIPLE,
    MARGIN_EDGES,
    ROUTER_RESOLUTION,
    Bands,
    ClassCalibration,
    HeldOut,
    Limits,
    MarginBins,
    Statistics,
    budget,
    flip_probability,
    margin_bin,
)
from oracle.golden.compare import Comparison
from oracle.golden.flip_class import classify_at
from oracle.golden.portable import quantiles
from oracle.golden.routing_statistics import router_logit_extent, share_of_sets, weight_quantiles
from oracle.subjects.protocol import NumericClass

LOGIT_DTYPE = "float32"
"""Kolibri-1's `head_dtype` is float32 in every class, so no class may hide behind a coarser ULP."""


def calibrate(numeric_class: NumericClass, arms: Mapping[str, Comparison]) -> ClassCalibration:
    """The calibration of one class.

    Args:
        numeric_class: the class.
        arms: by arm name, its comparison with the truth over all positions of all prompts, in prompt order.

    Raises:
        GoldenError: fewer than three arms, or an arm does not pass what the others allow.
    """
    if len(arms) < 3:
        raise GoldenError(f"class {numeric_class} has {len(arms)} floor arms; leave-one-out needs at least 3")
    held_out = [_hold_out(name, arms) for name in arms]
    if failed := [entry for entry in held_out if not entry.passed]:
        worst = failed[0]
        raise GoldenError(
            f"class {numeric_class}: arm {worst.arm} does not pass the floor of the other arms (hard flips {worst.hard_flips}, "
            f"sets outside the router band {worst.sets_outside}, near {worst.near_flips} of {worst.near_budget}, "
            f"router {worst.router_flips} of {worst.router_budget}, largest statistic {worst.worst_ratio:.2f} of its limit); "
            "add prompts or arms so that the floor is wide enough"
        )
    everything = list(arms.values())
    return ClassCalibration(
        numeric_class=numeric_class,
        logit_dtype=LOGIT_DTYPE,
        arms=tuple(arms),
        positions=len(everything[0].margin),
        bins=_bins(everything),
        bands=_bands(everything),
        limits=_limits(everything),
        held_out=tuple(held_out),
    )


def statistics(comparison: Comparison) -> Statistics:
    """The statistics that limits are set on, of one run: medians and p90s over positions, slopes over all of them.

    Raises:
        ValueError: the run does not show all evidence, as every arm of the reference does.
    """
    if comparison.sketch_distance is None or comparison.weight_error is None or comparison.router_logit_error is None:
        raise ValueError("a floor needs sketches, expert weights and router logits of every arm")
    weight_median, weight_p90 = weight_quantiles(comparison.weight_error)
    sketch_median, sketch_p90 = quantiles(comparison.sketch_distance, [0.5, 0.9])
    return Statistics(
        kl=_pair(quantiles(comparison.kl, [0.5, 0.9])),
        sketch_median=_floats(sketch_median),
        sketch_p90=_floats(sketch_p90),
        sketch_slope=float(np.abs(comparison.slope()).max()),
        sets_differ=share_of_sets(comparison),
        weight_median=_floats(weight_median),
        weight_p90=_floats(weight_p90),
        router_logit=router_logit_extent(comparison.router_logit_error),
    )


def _bins(arms: Sequence[Comparison]) -> MarginBins:
    def count(select: list[np.ndarray]) -> tuple[int, ...]:
        return tuple(np.bincount(np.concatenate(select), minlength=len(MARGIN_EDGES)).tolist())

    return MarginBins(
        positions=count([margin_bin(arm.margin) for arm in arms]),
        near=count([margin_bin(arm.margin[arm.flip & arm.sets_agree]) for arm in arms]),
        router=count([margin_bin(arm.margin[arm.flip & ~arm.sets_agree]) for arm in arms]),
    )


def _bands(arms: Sequence[Comparison]) -> Bands:
    def largest(values: list[np.ndarray]) -> float:
        return float(max((v.max() for v in values if v.size), default=0.0))

    regret = largest([arm.regret[arm.flip & arm.sets_agree] for arm in arms])
    router_regret = largest([arm.regret[arm.flip & ~arm.sets_agree] for arm in arms])
    router_gap = largest([arm.set_gap[~arm.sets_agree] for arm in arms])
    return Bands(
        regret=BAND_MULTIPLE * regret,
        router_gap=BAND_MULTIPLE * router_gap,
        router_regret=BAND_MULTIPLE * router_regret,
        floor_regret=regret,
        floor_router_gap=router_gap,
        floor_router_regret=router_regret,
        multiple=BAND_MULTIPLE,
    )


def _limits(arms: Sequence[Comparison]) -> Limits:
    each = [statistics(arm) for arm in arms]

    def largest(name: str) -> np.ndarray:
        return np.max([getattr(s, name) for s in each], axis=0)

    floor = Statistics(
        kl=_pair(largest("kl")),
        sketch_median=_floats(largest("sketch_median")),
        sketch_p90=_floats(largest("sketch_p90")),
        sketch_slope=float(largest("sketch_slope")),
        sets_differ=float(largest("sets_differ")),
        weight_median=_floats(largest("weight_median")),
        weight_p90=_floats(largest("weight_p90")),
        router_logit=_pair(largest("router_logit")),
    )
    return Limits(floor=floor, multiple=LIMIT_MULTIPLE)


def _hold_out(name: str, arms: Mapping[str, Comparison]) -> HeldOut:
    arm, others = arms[name], [other for key, other in arms.items() if key != name]
    bins, bands, limits, own = _bins(others), _bands(others), _limits(others), statistics(arm)
    classes = [classify_at(arm, int(p), bands, LOGIT_DTYPE) for p in np.flatnonzero(arm.flip)]
    in_bin = margin_bin(arm.margin)
    near_budget = budget(flip_probability(bins.near, bins.positions)[in_bin])
    router_budget = budget(flip_probability(bins.router, bins.positions)[in_bin])
    near, router, hard = (classes.count(kind) for kind in ("near-tie", "router-near-tie", "hard"))
    sets_outside = int((arm.set_gap > max(bands.router_gap, ROUTER_RESOLUTION)).sum())
    ratio = worst_ratio(own, limits)
    passed = hard == 0 and sets_outside == 0 and near < near_budget and router < router_budget and ratio <= 1.0
    return HeldOut(
        arm=name,
        near_flips=near,
        near_budget=near_budget,
        router_flips=router,
        router_budget=router_budget,
        hard_flips=hard,
        sets_outside=sets_outside,
        worst_ratio=ratio,
        passed=passed,
    )


def worst_ratio(own: Statistics, limits: Limits) -> float:
    """The largest of a run's statistics over its limit."""
    ratios = [
        np.max(np.asarray(getattr(own, name)) / np.maximum(np.asarray(getattr(limits, name)), np.finfo(np.float64).tiny))
        for name in Statistics.model_fields
    ]
    return float(max(ratios))


def _pair(values: np.ndarray) -> tuple[float, float]:
    return float(values[0]), float(values[1])


def _floats(values: np.ndarray) -> tuple[float, ...]:
    return tuple(float(v) for v in values)
