"""Gate `routing`: does each token go to the golden's experts, with the golden's weights, by a router that computes in fp32?

Compared at every position and layer: the expert sets, and the weights by expert id; at the golden's probe positions all
router logits. Fires on
- a set that differs where the golden's router gap is outside the class's band (three times the largest gap at which a floor
  arm's set differed), and on more differing sets than twice the floor's share. Only the first differing layer of a
  position is held against the band: later ones compute on another residual stream. They are counted, and in the share;
- weights whose median or p90 error at a layer is above twice the floor's, where no set differed before;
- router logits whose median or largest error is above twice the floor's, or that contradict themselves
  (`shown_router`): all on the bf16 grid, or not those that the ids and weights follow from;
- in class `fp32`, any weight more than 1e-5 off; any NaN; with forced routing, any difference of sets or weights.

On the shipped golden (2026-11-30) bf16 arms' weights are off by 1.7e-3 in the median and 3.4e-3 at p90 at the worst layer, and
differ by 20 % between arms; 1.3 to 1.9 % of their sets differ; router logits are off by 0.4 % in the median, 3 % at most.
The order of ids is not compared: weights are matched by id, and an engine may combine experts in any order.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from oracle.golden.calibration import LIMIT_MULTIPLE, PART_MULTIPLE, ROUTER_RESOLUTION, ROUTING_RESOLUTION, UNSEEN
from oracle.golden.routing_statistics import router_logit_extent, weight_quantiles
from oracle.judge.gate import Case, Finding, Judgement, not_held, shows
from oracle.judge.logits import FP32_TOLERANCE
from oracle.judge.routing_plants import routing_plants
from oracle.judge.shown_router import CONSISTENCY, judge_shown_router, probe_place
from oracle.subjects.run import Run


class RoutingGate:
    name = "routing"
    definition = {
        "version": 1,
        "metric": "expert sets, weights by id, router logits at probes and what follows from them",
        "statistic": "first differing set in the router band; share of sets; median, p90, largest errors; fp32, not bf16",
        "multiple": LIMIT_MULTIPLE,
        "multiple on part of the prompts": PART_MULTIPLE,
        "router_resolution": ROUTER_RESOLUTION,
        "resolution": ROUTING_RESOLUTION,
        "unseen": UNSEEN,
        "fp32_tolerance": FP32_TOLERANCE,
        "consistency": CONSISTENCY,
    }
    blind_to = (
        "a set that is wrong only after another layer's near tie at the same position; weights wrong at fewer than one "
        "position in ten (class fp32 sees each), and router logits off the probes; the experts' order; what they compute"
    )
    needs_alignment = True

    def holds(self, run: Run) -> bool:
        return shows(run, "expert_ids")

    def judge(self, case: Case) -> Judgement:
        if not self.holds(case.run):
            return not_held("expert ids")
        parts = [_finite(case), _sets(case), _weights(case), _router_logits(case), judge_shown_router(case)]
        measured: dict[str, float | int | str] = {}
        for part in parts:
            measured |= part.measured
        return Judgement(sum(p.compared for p in parts), tuple(f for p in parts for f in p.findings), measured)

    def plants(self, case: Case) -> dict[str, Case]:
        """One prompt's routing spoiled, one thing after the other."""
        return routing_plants(case)


def _finite(case: Case) -> Judgement:
    counts = [run.non_finite_routing for _, run in case.each() if run.non_finite_routing is not None]
    count = np.concatenate(counts) if counts else np.zeros(0, dtype=np.int32)
    if not (bad := count != 0).any():
        return Judgement(0)
    place = case.place(int(bad.argmax()))
    worst = f"{count.max()} in one step"
    headline = "NaN or infinite weights or router logits"
    return Judgement(0, (Finding(headline, place, worst, "0", int(bad.sum()), len(count)),))


def _sets(case: Case) -> Judgement:
    comparison, forced = case.comparison, case.run.forced
    differs, first = comparison.set_differs, comparison.first_set_difference
    positions, layers = differs.shape
    allowed = max(case.calibration.bands.router_gap, ROUTER_RESOLUTION)
    apart = first < layers
    wrong = apart & _unexcused(case, allowed)
    findings: list[Finding] = []
    if wrong.any():
        at = int(np.where(wrong, comparison.set_gap, -1.0).argmax())
        where = f"{case.place(at)}, layer {first[at]}"
        headline = "expert sets differ " + ("although routing was forced" if forced else "outside the router band")
        gap, most = f"gap {comparison.set_gap[at]:.4g}", "none" if forced else f"{allowed:.4g}"
        findings.append(Finding(headline, where, gap, most, int(wrong.sum()), positions))
    share, most_share = float(differs.mean()), case.limits.sets_differ
    if not share <= most_share:
        layer = int(differs.sum(axis=0).argmax())
        findings.append(
            Finding(
                "more expert sets differ than the class's limit",
                f"layer {layer}",
                f"share {share:.4g}",
                f"{most_share:.4g}",
                int(differs.sum()),
                differs.size,
            )
        )
    measured: dict[str, float | int | str] = {
        "sets differing": int(differs.sum()),
        "by layer": " ".join(str(n) for n in differs.sum(axis=0)),
        "downstream of another": int(differs.sum() - apart.sum()),
        "largest gap of a first one": float(comparison.set_gap.max()),
        "gap allowed": allowed,
        "outside by first layer": " ".join(str(n) for n in np.bincount(first[wrong], minlength=layers)),
        "share": share,
        "share allowed": most_share,
    }
    return Judgement(differs.size, tuple(findings), measured)


def _unexcused(case: Case, allowed: float) -> npt.NDArray[np.bool_]:
    """bool [T], no near tie explains a set that differs; nothing does where routing was forced."""
    return case.run.forced | ~(case.comparison.set_gap <= allowed)


def _weights(case: Case) -> Judgement:
    if (error := case.comparison.weight_error) is None:
        return _not_shown(case, "expert weights")
    limits = case.limits
    layers = error.shape[1]
    quantiles = weight_quantiles(error)
    findings: list[Finding] = []
    for name, values, allowed in zip(
        ("median", "p90"), quantiles, (np.array(limits.weight_median), np.array(limits.weight_p90)), strict=True
    ):
        if (wrong := ~(values <= allowed)).any():
            first = int(wrong.argmax())
            findings.append(
                Finding(
                    f"expert weights: {name} error above the class's limit, first at layer {first}",
                    f"layer {first}",
                    f"{values[first]:.3g}",
                    f"{allowed[first]:.3g}",
                    int(wrong.sum()),
                    layers,
                )
            )
    exact = _exact_weights(case)
    if (wrong := error > exact).any():
        at, layer = np.unravel_index(int(error.argmax()), error.shape)
        headline = "expert weights are not those forced" if case.run.forced else "expert weights differ where sets agree"
        where = f"{case.place(int(at))}, layer {layer}"
        findings.append(Finding(headline, where, f"{error.max():.3g}", f"{exact:g}", int(wrong.sum()), error.size))
    if (none := ~(error >= 0).any(axis=0)).any():
        where = f"layer {int(none.argmax())}"
        findings.append(Finding("no position's weights could be compared", where, verdict="incomplete"))
    ratio = max(float((quantiles[0] / limits.weight_median).max()), float((quantiles[1] / limits.weight_p90).max()))
    measured = {"largest weight error over its limit": ratio, "largest weight error": float(error.max())}
    return Judgement(int((error >= 0).sum()), tuple(findings), measured)


def _exact_weights(case: Case) -> float:
    """What one weight at one position may be off."""
    if case.run.forced:
        return CONSISTENCY
    return FP32_TOLERANCE if case.calibration.numeric_class == "fp32" else np.inf


def _router_logits(case: Case) -> Judgement:
    if (error := case.comparison.router_logit_error) is None:
        return _not_shown(case, "router logits")
    extent, limits = router_logit_extent(error), case.limits.router_logit
    at, layer = np.unravel_index(int(error.argmax()), error.shape)
    where = f"{probe_place(case, int(at))}, layer {layer}"
    findings = [
        Finding(f"router logits: {name} error above the class's limit", where, f"{value:.3g}", f"{allowed:.3g}", of=error.size)
        for name, value, allowed in zip(("median", "largest"), extent, limits, strict=True)
        if not value <= allowed
    ]
    measured = {
        "router logit error median": extent[0],
        "median allowed": limits[0],
        "router logit error largest": extent[1],
        "largest allowed": limits[1],
    }
    return Judgement(int((error >= 0).sum()), tuple(findings), measured)


def _not_shown(case: Case, what: str) -> Judgement:
    """Half of the evidence: a subject that declares the gate owes it, any other is judged by what it shows."""
    owed = RoutingGate.name in case.run.identity.required_gates
    findings = (Finding(f"the run shows no {what}", verdict="incomplete"),) if owed else ()
    return Judgement(0, findings, {what: "not shown"})
