"""The negative controls of gate `routing`: the perfect subject's answer to one prompt, with one thing spoiled at a time.

One prompt is enough, and cheap: the perfect subject's errors are zero, so the fault alone decides. Each fault is such that
one comparison alone can find it, so that none can be lost unseen; in class fp32 a second may see it too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from oracle.golden.calibration import ROUTER_RESOLUTION
from oracle.judge.gate import Case
from oracle.judge.logits import FP32_TOLERANCE
from oracle.judge.shown_router import CONSISTENCY, selection_bias
from oracle.subjects.run import PromptRun


def routing_plants(case: Case) -> dict[str, Case]:
    """The spoiled copies, by what is wrong; those that the run does not show cannot be spoiled."""
    prompt, run = case.answered()[0]
    assert run.expert_ids is not None
    alone = replace(
        case,
        golden=replace(case.golden, prompts=(prompt,)),
        run=replace(case.run, prompts={prompt.name: run}),
    )
    shown, experts = run.expert_ids, case.checkpoint.config.num_experts
    swapped = _swapped(shown, experts)
    place = next((p, 0) for p in range(len(shown)) if p not in _probes(alone))
    beyond = 2 * max(case.calibration.bands.router_gap, ROUTER_RESOLUTION)
    wide = _golden(alone, router_gap=_set(prompt.router_gap, place, beyond))
    tied = _golden(alone, router_gap=np.zeros_like(prompt.router_gap))
    off_probes = swapped.copy()
    off_probes[list(_probes(alone))] = shown[list(_probes(alone))]
    planted = {
        "an expert at a wide gap": _run(wide, expert_ids=_set(shown, place, swapped[place])),
        "too many near ties": _run(tied, expert_ids=off_probes),
        "an expert that was not forced": _forced(_run(tied, expert_ids=_set(shown, place, swapped[place]))),
    }
    if run.expert_weights is not None:
        planted |= _weight_plants(alone, run)
    if run.router_logits is not None and run.expert_weights is not None:
        planted |= _logit_plants(alone, run)
    if run.non_finite_routing is not None:
        planted["one NaN"] = _run(alone, non_finite_routing=_set(run.non_finite_routing, 0, 1))
    return planted


def _weight_plants(alone: Case, run: PromptRun) -> dict[str, Case]:
    """Off the probes, where only the golden's weights can tell."""
    assert run.expert_weights is not None
    probed, weights = list(_probes(alone)), run.expert_weights
    step = 1.5 * np.array(alone.limits.weight_median, dtype=np.float32)[:, None]
    little, hidden = np.where(weights > 0.5, weights - step, weights + step), weights.copy()
    hidden[::6] = 1 - weights[::6]  # more than one in ten, and not every second
    for spoiled in (little, hidden):
        spoiled[probed] = weights[probed]
    planted = {
        "weights a little off everywhere": _run(alone, expert_weights=little),
        "weights wrong at every sixth position": _run(alone, expert_weights=hidden),
    }
    free = next(p for p in range(len(weights)) if p not in probed)
    hair = np.float32(np.sqrt(CONSISTENCY * FP32_TOLERANCE))  # allowed in every class unless it was forced
    planted["a weight that was not forced"] = _forced(
        _run(alone, expert_weights=_set(weights, (free, 0, 0), weights[free, 0, 0] + hair))
    )
    if alone.calibration.numeric_class == "fp32":
        planted["one weight at one position"] = _run(alone, expert_weights=_set(weights, (free, 0, 0), 0.5))
    return planted


def _logit_plants(alone: Case, run: PromptRun) -> dict[str, Case]:
    """At the probes. Where the golden's logits are to tell, those of experts left out sink: ids and weights still follow."""
    logits, ids, weights = run.router_logits, run.expert_ids, run.expert_weights
    assert logits is not None
    assert ids is not None
    assert weights is not None
    probed = list(_probes(alone))
    left_out = np.ones(logits.shape, dtype=np.bool_)
    np.put_along_axis(left_out, ids[probed].astype(np.int64), False, axis=2)
    size = np.abs(logits).max(axis=2, keepdims=True) * left_out
    median, largest = alone.limits.router_logit
    one_row = logits.copy()
    one_row[0, 0] -= np.float32(2 * largest) * size[0, 0]
    planted = {
        "router logits a little off": _run(alone, router_logits=logits - np.float32(np.sqrt(median * largest)) * size),
        "one row of router logits off": _run(alone, router_logits=one_row),
        "weights that their logits do not give": _run(
            alone, expert_weights=_set(weights, (probed[0], 0), weights[probed[0], 0] * np.float32(0.9))
        ),
    }
    return planted | _row_plants(alone, logits, ids, weights)


def _row_plants(alone: Case, logits: np.ndarray, ids: np.ndarray, weights: np.ndarray) -> dict[str, Case]:
    """The probe and layer with the widest router gap: on the bf16 grid; and with the best of those left out in place of the
    last selected, at a gap of the golden that excuses it. Weights follow from the logits."""
    prompt = alone.golden.prompts[0]
    probed = list(_probes(alone))
    row, layer = np.unravel_index(int(prompt.router_gap[probed].argmax()), (len(probed), logits.shape[1]))
    place = (probed[row], layer)
    rounded = (logits[row, layer].view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    scores = logits[row, layer] + selection_bias(alone.checkpoint)[layer]
    count = ids.shape[2]
    other = ids[place].copy()
    other[scores[other].argmin()] = np.argsort(-scores, kind="stable")[count]
    tied = _golden(alone, router_gap=_set(prompt.router_gap, place, 0))
    return {
        "router logits on the bf16 grid": _run(
            alone,
            router_logits=_set(logits, (row, layer), rounded),
            expert_weights=_set(weights, place, _sigmoid(rounded[ids[place]])),
        ),
        "ids that their logits do not give": _run(
            tied,
            expert_ids=_set(ids, place, other),
            expert_weights=_set(weights, place, _sigmoid(logits[row, layer][other])),
        ),
    }


def _swapped(shown: np.ndarray, experts: int) -> np.ndarray:
    """The ids shown, but for one expert of every set that was left out."""
    free = np.ones((*shown.shape[:2], experts), dtype=np.bool_)
    np.put_along_axis(free, shown.astype(np.int64), False, axis=2)
    ids = shown.copy()
    ids[..., -1] = free.argmax(axis=2)
    return ids


def _probes(alone: Case) -> tuple[int, ...]:
    return alone.golden.probes_of(alone.golden.prompts[0].name).positions


def _run(alone: Case, **changes: Any) -> Case:
    return alone.with_prompt(alone.golden.prompts[0].name, **changes)


def _forced(alone: Case) -> Case:
    """The same, as a run would say it whose experts and weights were given to it."""
    return alone.with_run(forced=True)


def _golden(alone: Case, **changes: Any) -> Case:
    prompt = replace(alone.golden.prompts[0], **changes)
    return replace(alone, golden=replace(alone.golden, prompts=(prompt,)))


def _sigmoid(logits: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-logits.astype(np.float64)))


def _set(array: np.ndarray, at: Any, value: Any) -> np.ndarray:
    out = array.copy()
    out[at] = value
    return out
