"""What a subject's router logits say of themselves, at the golden's probe positions, whatever the golden's are.

Router logits are fp32 in every numeric class, and no floor arm rounds them: a row that lies on the bf16 grid was rounded (a
port once rounded 384 of 384, and explained the flips away as near ties; by chance a row of 16 does so once in 10^77).
The selected ids must be the k largest of logits plus the checkpoint's `expert_bias`, and each weight the sigmoid of its own
logit, without bias and not renormalized. Both within `CONSISTENCY`, so that an engine's own fp32 rounding, and the order of
exact ties, are not held against it. With forced routing neither follows from the logits, and neither is asked.
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np
import numpy.typing as npt

from oracle.golden.portable import exp
from oracle.judge.gate import Case, Finding, Judgement
from oracle.kolibri1.checkpoint import Checkpoint

CONSISTENCY = 1e-6
"""Room between a logit and what follows from it in fp32. Measured over all arms: sigmoids 9e-8 off, sets always the top-k."""


@dataclass(frozen=True)
class ShownProbes:
    """A run's router at N probes, prompts in the golden's order.

    Attributes:
        places: `prompt[position]` of each.
        logits: float64 [N, L, E]; on_grid: bool [N, L], all E of them lie on the bf16 grid.
        ids, weights: int32 and float64 [N, L, k]; weights None where not shown.
    """

    places: tuple[str, ...]
    logits: npt.NDArray[np.float64]
    on_grid: npt.NDArray[np.bool_]
    ids: npt.NDArray[np.int32]
    weights: npt.NDArray[np.float64] | None


def judge_shown_router(case: Case) -> Judgement:
    """Findings of a run's router logits; nothing compared where it shows none."""
    shown = _shown(case)
    if shown is None:
        return Judgement(0)
    findings = [_finding("router logits lie on the bf16 grid", shown, shown.on_grid, "all of a row", "fp32")]
    if not case.run.forced:
        findings += _consistency(case.checkpoint, shown)
    return Judgement(shown.on_grid.size, tuple(f for f in findings if f is not None))


def selection_bias(checkpoint: Checkpoint) -> npt.NDArray[np.float64]:
    """float64 [L, E], the bias that selects and does not weigh."""
    layers = range(checkpoint.config.num_hidden_layers)
    rows = [checkpoint.raw(f"model.layers.{layer}.moe.router.expert_bias").view(ml_dtypes.bfloat16) for layer in layers]
    return np.stack([row.reshape(-1).astype(np.float64) for row in rows])


def probe_place(case: Case, index: int) -> str:
    """`prompt[position]` of a row of `Comparison.router_logit_error`."""
    places = [f"{p.name}[{position}]" for p, _ in case.answered() for position in case.golden.probes_of(p.name).positions]
    return places[index]


def _consistency(checkpoint: Checkpoint, shown: ShownProbes) -> list[Finding | None]:
    scores = shown.logits + selection_bias(checkpoint)
    chosen = np.take_along_axis(scores, shown.ids, axis=2)
    others = scores.copy()
    np.put_along_axis(others, shown.ids.astype(np.int64), -np.inf, axis=2)
    excess = others.max(axis=2) - chosen.min(axis=2)
    room = CONSISTENCY * np.maximum(1.0, np.abs(scores).max(axis=2))
    at = np.unravel_index(int(excess.argmax()), excess.shape)
    findings = [
        _finding(
            "the ids are not the largest of router logits plus bias",
            shown,
            excess > room,
            f"one left out is {excess[at]:.3g} above one chosen",
            f"{room[at]:.2g}",
        )
    ]
    if shown.weights is not None:
        sigmoid = 1.0 / (1.0 + exp(-np.take_along_axis(shown.logits, shown.ids, axis=2)))
        off = np.abs(shown.weights - sigmoid).max(axis=2)
        headline = "the weights are not the sigmoids of their router logits"
        findings.append(_finding(headline, shown, ~(off <= CONSISTENCY), f"{off.max():.3g}", f"{CONSISTENCY:g}"))
    return findings


def _finding(headline: str, shown: ShownProbes, wrong: npt.NDArray[np.bool_], worst: str, allowed: str) -> Finding | None:
    if not wrong.any():
        return None
    at, layer = np.argwhere(wrong)[0]
    return Finding(headline, f"{shown.places[at]}, layer {layer}", worst, allowed, int(wrong.sum()), wrong.size)


def _shown(case: Case) -> ShownProbes | None:
    places: list[str] = []
    rows: list[tuple[np.ndarray, np.ndarray, np.ndarray | None]] = []
    for prompt, run in case.each():
        if run.router_logits is None or run.expert_ids is None:
            return None
        positions = list(case.golden.probes_of(prompt.name).positions)
        places += [f"{prompt.name}[{position}]" for position in positions]
        weights = None if run.expert_weights is None else run.expert_weights[positions]
        rows.append((run.router_logits, run.expert_ids[positions], weights))
    if not places:
        return None
    logits = np.concatenate([row[0] for row in rows])
    shown_weights = [row[2] for row in rows if row[2] is not None]
    return ShownProbes(
        places=tuple(places),
        logits=logits.astype(np.float64),
        on_grid=(np.ascontiguousarray(logits).view(np.uint32) & np.uint32(0xFFFF) == 0).all(axis=2),
        ids=np.concatenate([row[1] for row in rows]),
        weights=np.concatenate(shown_weights).astype(np.float64) if len(shown_weights) == len(rows) else None,
    )
