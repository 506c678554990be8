"""Position by position, how far a run is from the golden: the one set of measures that floors and gates both use."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from oracle.golden.evidence import PromptEvidence, PromptProbes
from oracle.golden.portable import exp, log
from oracle.subjects.run import PromptRun

_NO_MASS = 1e-12
_SKETCHES_AT_ONCE = 16
"""Positions whose float64 copies a processor's cache holds: all at once take five times as long. The numbers are the same."""
NOT_COMPARED = -1.0
"""A `weight_error` or `router_logit_error` downstream of a differing set."""

OUTSIDE = -1
"""`rank` of a token that is not among the golden's stored ids."""


@dataclass(frozen=True)
class Comparison:
    """Measures over T positions and L layers. Logits in nats. What the run does not show is None.

    Attributes:
        top: float64 [T], the golden's top-1 logit.
        margin: float64 [T], the golden's top-1 minus top-2.
        flip: bool [T], the run's argmax is not the golden's.
        margin_change: float64 [T], how far the run's difference of the golden's two largest logits is from the margin.
        regret: float64 [T], the golden's top-1 minus its logit of the run's argmax; 0 without a flip. For a token
            outside the stored ids, the regret of the last stored one: a lower bound.
        rank: int64 [T], place of the run's argmax among the golden's stored ids, or `OUTSIDE`.
        kl: float64 [T], KL(golden || run) over the stored ids and one bin for all others. Never negative: merging
            outcomes can only lower a KL divergence.
        mass: float64 [T], the run's probability of the stored ids together; above 1 its logits and logsumexp contradict.
        logit_error: float64 [T], largest difference over the stored ids, over the golden's largest absolute stored logit.
        set_differs: bool [T, L], the run's expert set is not the golden's. False where the run shows no experts: a flip
            is then judged as if all sets agreed, which is the strict way.
        first_set_difference: int64 [T], first layer whose expert sets differ, or L where none does.
        set_gap: float64 [T], the golden's router gap at that layer, or 0 where none differs.
        weight_error: float64 [T, L], largest |run - golden| of an expert's weight, by expert id; `NOT_COMPARED` from the
            position's first differing set on, since what follows computes on another residual stream.
        router_logit_error: float64 [N, L], at the golden's probes: largest |run - golden| over the golden's largest absolute
            router logit there; `NOT_COMPARED` after the first differing set.
        sketch_distance: float64 [T, L], |run - golden| / |golden| of the sketches.
        sketch_dot, sketch_square: float64 [T, L], run . golden and golden . golden, for the slope.
    """

    top: npt.NDArray[np.float64]
    margin: npt.NDArray[np.float64]
    flip: npt.NDArray[np.bool_]
    margin_change: npt.NDArray[np.float64]
    regret: npt.NDArray[np.float64]
    rank: npt.NDArray[np.int64]
    kl: npt.NDArray[np.float64]
    mass: npt.NDArray[np.float64]
    logit_error: npt.NDArray[np.float64]
    set_differs: npt.NDArray[np.bool_]
    first_set_difference: npt.NDArray[np.int64]
    set_gap: npt.NDArray[np.float64]
    weight_error: npt.NDArray[np.float64] | None
    router_logit_error: npt.NDArray[np.float64] | None
    sketch_distance: npt.NDArray[np.float64] | None
    sketch_dot: npt.NDArray[np.float64] | None
    sketch_square: npt.NDArray[np.float64] | None

    @property
    def sets_agree(self) -> npt.NDArray[np.bool_]:
        """bool [T], every layer selected the golden's set of experts."""
        return self.first_set_difference == self.layers

    @property
    def layers(self) -> int:
        return self.set_differs.shape[1]

    def slope(self) -> npt.NDArray[np.float64]:
        """float64 [L], least-squares scale of the run's sketches on the golden's, minus 1: a norm 1 % short gives -0.01.

        Raises:
            ValueError: the run shows no sketches.
        """
        if self.sketch_dot is None or self.sketch_square is None:
            raise ValueError("a run without sketches has no slope")
        return self.sketch_dot.sum(axis=0) / self.sketch_square.sum(axis=0) - 1.0


class Shown(NamedTuple):
    """What is compared of one prompt: a `PromptRun` has it, and so has a pass that is not stored. Shapes as there."""

    argmax: npt.NDArray[np.int32]
    logits_at_golden: npt.NDArray[np.float32]
    logsumexp: npt.NDArray[np.float64]
    sketch: npt.NDArray[np.float32]
    expert_ids: npt.NDArray[np.int32]
    expert_weights: npt.NDArray[np.float32]
    router_logits: npt.NDArray[np.float32]


def compare(golden: PromptEvidence, run: PromptRun | Shown, probes: PromptProbes | None = None) -> Comparison:
    """Measure one prompt. Shapes must have been checked (gate `alignment`): nothing is broadcast here.

    Args:
        probes: the golden's own of this prompt; None leaves router logits uncompared.
    """
    stored = golden.top_logits.astype(np.float64)
    shown = run.logits_at_golden.astype(np.float64)
    pairs = (
        (stored, shown),
        (golden.logsumexp, run.logsumexp),
        (golden.argmax, run.argmax),
        (golden.sketch, run.sketch),
        (golden.expert_ids, run.expert_ids),
        (golden.expert_weights, run.expert_weights),
        *([] if probes is None else [(probes.router_logits, run.router_logits)]),
    )
    if any(other is not None and mine.shape != other.shape for mine, other in pairs):
        raise ValueError(f"{golden.name}: the run's arrays do not have the golden's shapes")
    matches = golden.top_ids == run.argmax[:, None]
    rank = np.where(matches.any(axis=1), matches.argmax(axis=1), OUTSIDE)
    chosen = np.take_along_axis(stored, np.where(rank == OUTSIDE, stored.shape[1] - 1, rank)[:, None], axis=1)[:, 0]
    differs = _sets_differ(golden, run)
    layers = differs.shape[1]
    first = np.where(differs.any(axis=1), differs.argmax(axis=1), layers)
    gap = np.take_along_axis(golden.router_gap, np.minimum(first, layers - 1)[:, None], axis=1)[:, 0].astype(np.float64)
    distance, dot, square = _sketches(golden, run)
    return Comparison(
        top=stored[:, 0],
        margin=stored[:, 0] - stored[:, 1],
        flip=rank != 0,
        margin_change=np.abs((shown[:, 0] - shown[:, 1]) - (stored[:, 0] - stored[:, 1])),
        regret=stored[:, 0] - chosen,
        rank=rank,
        kl=_divergence(stored, golden.logsumexp, shown, run.logsumexp),
        mass=exp(shown - run.logsumexp[:, None]).sum(axis=1),
        logit_error=np.abs(shown - stored).max(axis=1) / np.abs(stored).max(axis=1),
        set_differs=differs,
        first_set_difference=first,
        set_gap=np.where(first < layers, gap, 0.0),
        weight_error=_weight_error(golden, run, first),
        router_logit_error=_router_logit_error(probes, run, first),
        sketch_distance=distance,
        sketch_dot=dot,
        sketch_square=square,
    )


def concatenate(parts: Iterable[Comparison]) -> Comparison:
    """Join comparisons of several prompts along the positions.

    Raises:
        ValueError: there are none.
    """
    parts = list(parts)
    columns: dict[str, list[Any]] = {f.name: [getattr(part, f.name) for part in parts] for f in fields(Comparison)}
    joined: dict[str, Any] = {
        name: None if any(array is None for array in arrays) else np.concatenate(arrays) for name, arrays in columns.items()
    }
    return Comparison(**joined)


def _sets_differ(golden: PromptEvidence, run: PromptRun | Shown) -> npt.NDArray[np.bool_]:
    if run.expert_ids is None:
        return np.zeros(golden.router_gap.shape, dtype=np.bool_)
    differs = (golden.expert_ids != run.expert_ids).any(axis=2)
    differs[differs] = (np.sort(golden.expert_ids[differs], axis=1) != np.sort(run.expert_ids[differs], axis=1)).any(axis=1)
    return differs


def _weight_error(
    golden: PromptEvidence, run: PromptRun | Shown, first: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64] | None:
    if run.expert_ids is None or run.expert_weights is None:
        return None
    error = np.abs(run.expert_weights.astype(np.float64) - golden.expert_weights).max(axis=2)
    if (moved := (golden.expert_ids != run.expert_ids).any(axis=2)).any():  # only there is the order another
        mine, other = (
            np.take_along_axis(weights[moved], ids[moved].argsort(axis=1), axis=1).astype(np.float64)
            for ids, weights in ((golden.expert_ids, golden.expert_weights), (run.expert_ids, run.expert_weights))
        )
        error[moved] = np.abs(other - mine).max(axis=1)
    compared = np.arange(error.shape[1]) < first[:, None]
    return np.where(compared, error, NOT_COMPARED)


def _router_logit_error(
    probes: PromptProbes | None, run: PromptRun | Shown, first: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64] | None:
    if probes is None or run.router_logits is None:
        return None
    stored = probes.router_logits.astype(np.float64)
    error = np.abs(run.router_logits - stored).max(axis=2) / np.maximum(np.abs(stored).max(axis=2), _NO_MASS)
    compared = np.arange(stored.shape[1]) <= first[list(probes.positions), None]
    return np.where(compared, error, NOT_COMPARED)


def _sketches(golden: PromptEvidence, run: PromptRun | Shown) -> tuple[npt.NDArray[np.float64] | None, ...]:
    """Distances, and the two sums for slopes."""
    if run.sketch is None:
        return None, None, None
    distance, dot, square = (np.empty(golden.sketch.shape[:2]) for _ in range(3))
    for start in range(0, len(distance), _SKETCHES_AT_ONCE):
        rows = slice(start, start + _SKETCHES_AT_ONCE)
        reference, sketched = golden.sketch[rows].astype(np.float64), run.sketch[rows].astype(np.float64)
        square[rows] = (reference**2).sum(axis=2)
        distance[rows] = np.sqrt(((sketched - reference) ** 2).sum(axis=2) / square[rows])
        dot[rows] = (sketched * reference).sum(axis=2)
    return distance, dot, square


def _divergence(
    stored: npt.NDArray[np.float64],
    stored_lse: npt.NDArray[np.float64],
    shown: npt.NDArray[np.float64],
    shown_lse: npt.NDArray[np.float64],
) -> npt.NDArray[np.float64]:
    log_p, log_q = stored - stored_lse[:, None], shown - shown_lse[:, None]
    p, q = exp(log_p), exp(log_q)
    head = (p * (log_p - log_q)).sum(axis=1)
    # Below 1e-12 the rest is rounding of the sum to 1, not probability.
    p_rest, q_rest = np.maximum(1.0 - p.sum(axis=1), _NO_MASS), np.maximum(1.0 - q.sum(axis=1), _NO_MASS)
    # Negative only by rounding, or where logits and logsumexp contradict: that is a distance too, and not zero.
    return np.abs(head + p_rest * log(p_rest / q_rest))
