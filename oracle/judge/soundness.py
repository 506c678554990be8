"""What no gate may compare with: a golden that is not whole, numbers that are not finite, measures outside their range.

Garbage once passed for agreement: NaN masked to zero before the comparison, [1, 2] broadcast against [2, 2], a "KL" that was
none. So before any gate speaks, the golden's arrays must have their shapes and be finite, and what was measured must be
possible. A gate that finds it otherwise is red, whatever its own statistic says: a median does not feel one NaN.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from oracle.golden.compare import NOT_COMPARED, OUTSIDE, Comparison
from oracle.golden.evidence import PromptEvidence
from oracle.judge.gate import Case, Finding
from oracle.mapped_pages import give_back

MASS_TOLERANCE = 1e-5
"""Room for a logsumexp stored in fp32 by a foreign engine; this harness computes it in float64 from the same logits."""


def golden_findings(case: Case) -> tuple[Finding, ...]:
    """Why the golden cannot be compared with, at most one finding for each prompt; none for a sound golden."""
    if not case.golden.prompts:
        return (Finding("the golden has no prompt"),)
    found = [_once(case, prompt) for prompt in case.golden.prompts]
    return tuple(finding for finding in found if finding is not None)


def non_finite_findings(case: Case) -> tuple[Finding, ...]:
    """NaN and infinity that an aligned run showed, one finding for each prompt.

    The harness counts them and stores 0 in their place, so that a run can be written and read.
    """
    return tuple(
        _finding("NaN or infinite numbers in the run", prompt, run.non_finite != 0, "none")
        for prompt, run in case.each()
        if run.non_finite.any()
    )


def impossible_measures(case: Case) -> tuple[Finding, ...]:
    """What was measured of an aligned run and cannot be, at most one finding for each prompt; no statistic may use it."""
    found = [
        _impossible(prompt, case.comparisons[prompt.name], len(case.golden.probes_of(prompt.name).positions))
        for prompt, _ in case.answered()
    ]
    return tuple(finding for finding in found if finding is not None)


def _once(case: Case, prompt: PromptEvidence) -> Finding | None:
    """The prompt's own finding, made once for all cases that ask this very prompt."""

    def make() -> Finding | None:
        found = _prompt_finding(prompt)
        give_back(vars(prompt).values())
        return found

    return case.once_for_prompt(prompt, "soundness", make)


def _prompt_finding(prompt: PromptEvidence) -> Finding | None:
    positions, stored = len(prompt.fed), prompt.top_ids.shape[-1]
    if positions == 0 or not prompt.generated or not prompt.prompt_ids:
        return Finding("the golden's prompt has no positions", prompt.name)
    layers = prompt.router_gap.shape[-1]
    shapes = {
        "top_ids": (positions, stored),
        "top_logits": (positions, stored),
        "logsumexp": (positions,),
        "expert_ids": (positions, layers, prompt.expert_ids.shape[-1]),
        "expert_weights": (positions, layers, prompt.expert_ids.shape[-1]),
        "router_gap": (positions, layers),
        "sketch": (positions, layers, prompt.sketch.shape[-1]),
    }
    for name, shape in shapes.items():
        got = getattr(prompt, name).shape
        if got != shape or 0 in got:
            return Finding(f"the golden's array {name} has the wrong shape", prompt.name, str(list(got)), str(list(shape)))
    for name in shapes:
        if (wrong := ~np.isfinite(getattr(prompt, name))).any():
            return _finding(f"the golden's array {name} holds NaN or infinity", prompt, wrong, "finite")
    flat: tuple[tuple[str, Any], ...] = (
        ("its stored logits are all zero", ~prompt.top_logits.any(axis=1)),
        ("its sketch of a layer is all zero", ~prompt.sketch.any(axis=2)),
        ("a router gap is negative", prompt.router_gap < 0),
        ("an expert's weight is no sigmoid", (prompt.expert_weights < 0) | (prompt.expert_weights > 1)),
    )
    for what, where in flat:
        if (wrong := np.asarray(where)).any():
            return _finding(f"the golden cannot be compared with: {what}", prompt, wrong, "none")
    return None


def _impossible(prompt: PromptEvidence, measured: Comparison, probes: int) -> Finding | None:
    positions, layers = len(prompt.fed), prompt.router_gap.shape[1]
    whole, per_layer = (positions,), (positions, layers)
    top = np.inf
    ranges: dict[str, tuple[tuple[int, ...], float, float]] = {
        "top": (whole, -top, top),
        "margin": (whole, 0, top),
        "regret": (whole, 0, top),
        "rank": (whole, OUTSIDE, prompt.top_ids.shape[1] - 1),
        "kl": (whole, 0, top),
        "mass": (whole, 0, 1 + MASS_TOLERANCE),
        "logit_error": (whole, 0, top),
        "margin_change": (whole, 0, top),
        "set_differs": (per_layer, 0, 1),
        "first_set_difference": (whole, 0, layers),
        "set_gap": (whole, 0, top),
        "weight_error": (per_layer, NOT_COMPARED, 1),
        "router_logit_error": ((probes, layers), NOT_COMPARED, top),
        "sketch_distance": (per_layer, 0, top),
        "sketch_dot": (per_layer, -top, top),
        "sketch_square": (per_layer, 0, top),
    }
    for name, (shape, low, high) in ranges.items():
        values = getattr(measured, name)
        if values is None:  # the run does not show it
            continue
        if values.shape != shape:
            return Finding(f"measure {name} has the wrong shape", prompt.name, str(list(values.shape)), str(list(shape)))
        if (wrong := ~(np.isfinite(values) & (values >= low) & (values <= high))).any():
            return _finding(f"measure {name} is outside its range", prompt, wrong, f"{low:g} to {high:g}", values)
    return None


def _finding(
    headline: str, prompt: PromptEvidence, wrong: np.ndarray, allowed: str, values: np.ndarray | None = None
) -> Finding:
    """At the first wrong place of an array whose first axis is the positions."""
    first = np.unravel_index(int(wrong.argmax()), wrong.shape)
    worst = "" if values is None else f"{values[first]:.6g}"
    return Finding(headline, f"{prompt.name}[{first[0]}]", worst, allowed, int(wrong.sum()), wrong.size)
