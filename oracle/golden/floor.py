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
    NEAR_MULTIPLE,
    PART_MULTIPLE,
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
from oracle.golden.compare import Comparison, concatenate
from oracle.golden.flip_class import classify_at
from oracle.golden.portable import quantiles
from oracle.golden.routing_statistics import router_logit_extent, share_of_sets, weight_quantiles
from oracle.subjects.protocol import NumericClass

LOGIT_DTYPE = "float32"
"""Kolibri-1's `head_dtype` is float32 in every class, so no class may hide behind a coarser ULP."""


def calibrate(numeric_class: NumericClass, measured: Mapping[str, Mapping[str, Comparison]]) -> ClassCalibration:
    """The calibration of one class.

    Args:
        numeric_class: the class.
        measured: by arm name and prompt name, the arm's comparison with the truth; prompts in the golden's order.

    Raises:
        GoldenError: fewer than three arms, or an arm does not pass what the others allow.
    """
    if len(measured) < 3:
        raise GoldenError(f"class {numeric_class} has {len(measured)} floor arms; leave-one-out needs at least 3")
    arms = {name: concatenate(parts.values()) for name, parts in measured.items()}
    by_prompt = {arm: {p: statistics(part, upper=True) for p, part in parts.items()} for arm, parts in measured.items()}
    whole = {name: statistics(arm) for name, arm in arms.items()}
    held_out = [_hold_out(name, arms, whole, by_prompt) for name in arms]
    if failed := [entry for entry in held_out if not entry.passed]:
        worst = failed[0]
        raise GoldenError(
            f"class {numeric_class}: arm {worst.arm} does not pass the floor of the other arms (hard flips {worst.hard_flips}, "
            f"sets outside the router band {worst.sets_outside}, near {worst.near_flips} of {worst.near_budget}, "
            f"router {worst.router_flips} of {worst.router_budget}, largest statistic {worst.worst_ratio:.2f} of its limit, "
            f"on prompt {worst.worst_prompt} alone {worst.worst_prompt_ratio:.2f}); add prompts or arms so that the floor is "
            f"wide enough, or make prompt {worst.worst_prompt} longer"
        )
    everything = list(arms.values())
    bins = _bins(everything)
    return ClassCalibration(
        numeric_class=numeric_class,
        logit_dtype=LOGIT_DTYPE,
        arms=tuple(arms),
        positions=len(everything[0].margin),
        bins=bins,
        bands=_bands(everything, bins),
        limits=Limits(floor=Statistics.largest(whole.values()), multiple=LIMIT_MULTIPLE),
        prompt_floors=_prompt_floors(by_prompt),
        held_out=tuple(held_out),
    )


def statistics(comparison: Comparison, *, upper: bool = False) -> Statistics:
    """The statistics that limits are set on, of one run: medians and p90s over positions, slopes over all of them.

    Args:
        upper: take each quantile at the position at or above it, instead of between two. Of these only is it true that a
            union's is never above the largest of its parts': interpolated, the p90 of {0, 1} is 0.9 and that of two of
            them together is 1.

    Raises:
        ValueError: the run does not show all evidence, as every arm of the reference does.
    """
    if comparison.sketch_distance is None or comparison.weight_error is None or comparison.router_logit_error is None:
        raise ValueError("a floor needs sketches, expert weights and router logits of every arm")
    weight_median, weight_p90 = weight_quantiles(comparison.weight_error, upper=upper)
    sketch_median, sketch_p90 = quantiles(comparison.sketch_distance, [0.5, 0.9], upper=upper)
    return Statistics(
        kl=_pair(quantiles(comparison.kl, [0.5, 0.9], upper=upper)),
        sketch_median=_floats(sketch_median),
        sketch_p90=_floats(sketch_p90),
        sketch_slope=float(np.abs(comparison.slope()).max()),
        sets_differ=share_of_sets(comparison),
        weight_median=_floats(weight_median),
        weight_p90=_floats(weight_p90),
        router_logit=router_logit_extent(comparison.router_logit_error, upper=upper),
    )


def _prompt_floors(arms: Mapping[str, Mapping[str, Statistics]]) -> dict[str, Statistics]:
    first = next(iter(arms.values()))
    return {prompt: Statistics.largest(arm[prompt] for arm in arms.values()) for prompt in first}


def _bins(arms: Sequence[Comparison]) -> MarginBins:
    def count(select: list[np.ndarray]) -> tuple[int, ...]:
        return tuple(np.bincount(np.concatenate(select), minlength=len(MARGIN_EDGES)).tolist())

    in_bin = np.concatenate([margin_bin(arm.margin) for arm in arms])
    agree = np.concatenate([arm.sets_agree for arm in arms])
    change = np.concatenate([arm.margin_change for arm in arms])

    def largest(chosen: np.ndarray) -> tuple[float, ...]:
        return tuple(float(change[chosen & (in_bin == index)].max(initial=0.0)) for index in range(len(MARGIN_EDGES)))

    return MarginBins(
        positions=count([margin_bin(arm.margin) for arm in arms]),
        near=count([margin_bin(arm.margin[arm.flip & arm.sets_agree]) for arm in arms]),
        router=count([margin_bin(arm.margin[arm.flip & ~arm.sets_agree]) for arm in arms]),
        near_change=largest(agree),
        router_change=largest(~agree),
    )


def _bands(arms: Sequence[Comparison], bins: MarginBins) -> Bands:
    regret, router_regret = bins.largest_changes
    router_gap = float(max(arm.set_gap.max(initial=0.0, where=~arm.sets_agree) for arm in arms))
    return Bands(
        regret=NEAR_MULTIPLE * regret,
        router_gap=BAND_MULTIPLE * router_gap,
        router_regret=NEAR_MULTIPLE * router_regret,
        floor_regret=regret,
        floor_router_gap=router_gap,
        floor_router_regret=router_regret,
        near_multiple=NEAR_MULTIPLE,
        multiple=BAND_MULTIPLE,
    )


def _hold_out(
    name: str,
    arms: Mapping[str, Comparison],
    whole: Mapping[str, Statistics],
    by_prompt: Mapping[str, Mapping[str, Statistics]],
) -> HeldOut:
    arm, others = arms[name], [other for key, other in arms.items() if key != name]
    bins = _bins(others)
    bands = _bands(others, bins)
    largest = Statistics.largest(own for key, own in whole.items() if key != name)
    limits = Limits(floor=largest, multiple=LIMIT_MULTIPLE)
    classes = [classify_at(arm, int(p), bands, LOGIT_DTYPE) for p in np.flatnonzero(arm.flip)]
    in_bin = margin_bin(arm.margin)
    near_budget = budget(flip_probability(bins.near, bins.positions)[in_bin])
    router_budget = budget(flip_probability(bins.router, bins.positions)[in_bin])
    near, router, hard = (classes.count(kind) for kind in ("near-tie", "router-near-tie", "hard"))
    sets_outside = int((arm.set_gap > max(bands.router_gap, ROUTER_RESOLUTION)).sum())
    ratio = worst_ratio(whole[name], limits)
    floors = _prompt_floors({key: parts for key, parts in by_prompt.items() if key != name})
    ratios = {p: worst_ratio(own, Limits(floor=floors[p], multiple=PART_MULTIPLE)) for p, own in by_prompt[name].items()}
    worst = max(ratios, key=lambda prompt: ratios[prompt])
    within = max(ratio, ratios[worst]) <= 1.0
    passed = hard == 0 and sets_outside == 0 and near < near_budget and router < router_budget and within
    return HeldOut(
        arm=name,
        near_flips=near,
        near_budget=near_budget,
        router_flips=router,
        router_budget=router_budget,
        hard_flips=hard,
        sets_outside=sets_outside,
        worst_ratio=ratio,
        worst_prompt=worst,
        worst_prompt_ratio=ratios[worst],
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
