"""How far one prompt's evidence moved between two goldens, position by position, where both were fed the same ids.

Two questions are asked. Per prompt, what `golden verify --recompute` asks: logits within 2e-6 of the largest, other arrays
near, expert sets apart only at router ties. Over all prompts, what a subject of class fp32 is asked: medians, p90s and
slopes within that class's limits. What either refuses has moved beyond the floor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from oracle.golden.calibration import ROUTER_RESOLUTION, Bands, ClassCalibration
from oracle.golden.compare import OUTSIDE, Comparison, Shown, compare
from oracle.golden.evidence import PromptEvidence, PromptProbes
from oracle.golden.flip_class import classify, ulp
from oracle.golden.recomputation import BOUND, VALUE_BOUND, compare_recomputed

NO_BANDS = Bands(
    regret=0,
    router_gap=0,
    router_regret=0,
    floor_regret=0,
    floor_router_gap=0,
    floor_router_regret=0,
    near_multiple=1,
    multiple=1,
)
"""Of a golden without a floor of class fp32: only what no fp32 engine can decide is a tie."""


@dataclass(frozen=True)
class MovedChoice:
    """A position whose argmax is another one.

    Attributes:
        position: teacher-forced; id `position + 1` is predicted there.
        expected, got: the old and the new id.
        margin: the old golden's top-1 logit minus its top-2, nats.
        regret: the old golden's top-1 logit minus its logit of the new id, nats; a lower bound outside its stored ids.
        rank: the new id's place among the old golden's, or -1.
        allowed: the regret up to which it is a tie, nats.
        tie: whether it is a near tie of the old golden.
    """

    position: int
    expected: int
    got: int
    margin: float
    regret: float
    rank: int
    allowed: float
    tie: bool


@dataclass(frozen=True)
class MovedSet:
    """A position whose expert sets differ: the first such layer, and the old golden's router gap there."""

    position: int
    layer: int
    gap: float
    allowed: float
    tie: bool


@dataclass(frozen=True)
class Largest:
    """The greatest value of a measure and the position that has it."""

    value: float
    position: int


@dataclass(frozen=True)
class Movement:
    """One prompt, compared over the common beginning of what the two goldens were fed.

    Attributes:
        positions: compared; 0 where not even the first id is the same.
        choices: argmax flips. One at the last position may be where the chains part.
        sets: positions whose expert sets differ.
        logit_change: largest difference of a logit over the largest logit there.
        kl: largest KL(old || new), nats.
        sketch: largest relative distance of a sketch.
        unequal: arrays whose bits differ.
        beyond: what moved further than the floor allows, a line each.
    """

    positions: int
    choices: tuple[MovedChoice, ...]
    sets: tuple[MovedSet, ...]
    logit_change: Largest
    kl: Largest
    sketch: Largest
    unequal: tuple[str, ...]
    beyond: tuple[str, ...]


def common_beginning(old: Sequence[int], new: Sequence[int]) -> int:
    """How many leading ids agree."""
    return next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))


def move(
    old: PromptEvidence, new: PromptEvidence, probes: tuple[PromptProbes, PromptProbes], floor: ClassCalibration | None
) -> tuple[Movement, Comparison] | None:
    """Measure one prompt; None where nothing can be compared.

    Args:
        probes: the old and the new golden's of this prompt.
        floor: the old golden's calibration of class fp32.
    """
    count = common_beginning(old.fed, new.fed)
    if not count:
        return None
    before, after = _beginning(old, count), _beginning(new, count)
    mine, other = _shared(*probes, count)
    comparison = compare(before, _shown(before, after, other), mine)
    bands = floor.bands if floor is not None else NO_BANDS
    choices = tuple(moved_choice(old, new, comparison, int(p), bands) for p in np.flatnonzero(comparison.flip))
    sets = tuple(_moved_set(comparison, int(p), bands) for p in np.flatnonzero(~comparison.sets_agree))
    recomputed = compare_recomputed(before, after, {})
    logits = np.maximum(comparison.logit_error, _risen(before, after))
    beyond = [f"{len(hard)} argmax flips are no ties, first at [{hard[0].position}]"] if (hard := _hard(choices)) else []
    if not sets and recomputed.logit_error > BOUND:
        beyond.append(f"a logit moved by {recomputed.logit_error:.1e} of the largest, allowed {BOUND:.0e}")
    if apart := [s for s in sets if not s.tie]:
        first = apart[0]
        beyond.append(
            f"expert sets differ at no router tie at {len(apart)} positions, first [{first.position}] layer {first.layer}"
        )
    if recomputed.off:
        beyond.append(f"more than {VALUE_BOUND:.0e} of the largest value off: {', '.join(recomputed.off)}")
    movement = Movement(
        positions=count,
        choices=choices,
        sets=sets,
        logit_change=_largest(logits),
        kl=_largest(comparison.kl),
        sketch=_largest(cast(np.ndarray, comparison.sketch_distance).max(axis=1)),  # every golden has sketches
        unequal=recomputed.unequal,
        beyond=tuple(beyond),
    )
    return movement, comparison


def moved_choice(old: PromptEvidence, new: PromptEvidence, comparison: Comparison, position: int, bands: Bands) -> MovedChoice:
    """The flip at `position`.

    A tie is what the band calls one, and what recomputation could not decide: two logits that may each be off by `BOUND`.
    """
    regret, rank, top = (float(getattr(comparison, name)[position]) for name in ("regret", "rank", "top"))
    undecided = 2 * BOUND * float(np.abs(old.top_logits[position]).max())
    agree = bool(comparison.sets_agree[position])
    label = classify(
        regret=regret,
        rank=int(rank),
        top=top,
        sets_agree=agree,
        set_gap=float(comparison.set_gap[position]),
        bands=bands,
        logit_dtype="float32",
    )
    return MovedChoice(
        position=position,
        expected=int(old.argmax[position]),
        got=int(new.argmax[position]),
        margin=float(comparison.margin[position]),
        regret=regret,
        rank=int(rank),
        allowed=max(bands.regret if agree else bands.router_regret, ulp(top, "float32"), undecided),
        tie=label != "hard" or (int(rank) != OUTSIDE and regret <= undecided),
    )


def _moved_set(comparison: Comparison, position: int, bands: Bands) -> MovedSet:
    gap = float(comparison.set_gap[position])
    allowed = max(bands.router_gap, ROUTER_RESOLUTION)
    return MovedSet(position, int(comparison.first_set_difference[position]), gap, allowed, gap <= allowed)


def _hard(choices: Sequence[MovedChoice]) -> list[MovedChoice]:
    return [choice for choice in choices if not choice.tie]


def _beginning(evidence: PromptEvidence, count: int) -> PromptEvidence:
    """The first `count` positions, as if all their ids were given."""
    rows = {name: getattr(evidence, name)[:count] for name in PromptEvidence.ARRAYS}
    return replace(evidence, prompt_ids=evidence.fed[:count], generated=(), **rows)


def _shared(old: PromptProbes, new: PromptProbes, count: int) -> tuple[PromptProbes, np.ndarray]:
    """The old probes at positions that both have and that were fed the same ids, and the new router logits there."""
    rows = [(i, new.positions.index(p)) for i, p in enumerate(old.positions) if p < count and p in new.positions]
    mine, other = np.array(rows, dtype=np.int64).reshape(-1, 2).T
    return PromptProbes(tuple(old.positions[i] for i in mine), old.router_logits[mine]), new.router_logits[other]


def _shown(old: PromptEvidence, new: PromptEvidence, router_logits: np.ndarray) -> Shown:
    """What the new golden shows of the old one's ids.

    An id that it does not store has at most its last stored logit: the nearest value to the old one that fits is taken, so
    that distances are never overstated.
    """
    same = old.top_ids[:, :, None] == new.top_ids[:, None, :]
    found = np.take_along_axis(new.top_logits, same.argmax(axis=2), axis=1)
    logits = np.where(same.any(axis=2), found, np.minimum(old.top_logits, new.top_logits[:, -1:]))
    return Shown(
        argmax=new.argmax,
        logits_at_golden=logits,
        logsumexp=new.logsumexp,
        sketch=new.sketch,
        expert_ids=new.expert_ids,
        expert_weights=new.expert_weights,
        router_logits=router_logits,
    )


def _risen(old: PromptEvidence, new: PromptEvidence) -> np.ndarray:
    """float64 [T]: by how much an id that the old golden does not store rose above its last stored one, over the largest."""
    stored = (new.top_ids[:, :, None] == old.top_ids[:, None, :]).any(axis=2)
    rise = np.where(stored, 0.0, np.maximum(new.top_logits.astype(np.float64) - old.top_logits[:, -1:], 0.0))
    return rise.max(axis=1) / np.abs(old.top_logits.astype(np.float64)).max(axis=1)


def _largest(values: np.ndarray) -> Largest:
    position = int(values.argmax())
    return Largest(float(values[position]), position)
