"""The blame chain of a flip: where it began, by the golden's and the run's own numbers, as one sentence.

In a mixture of experts a token may flip because a router that was near a tie chose another expert, or because the hidden
state was off before any router looked at it. So the chain follows the layers: the first whose expert sets differ, the
golden's router gap there against the router band, and the sketch distances after the layer before it and after it against
the class's p90 limits. The sentence follows from the numbers alone: it begins with "explained" where the flip is a near
tie, and with "not explained" where it is hard. It is no second judgement: `oracle.golden.flip_class` alone decides that.
"""

from __future__ import annotations

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from oracle.golden.calibration import Bands, ClassCalibration, Limits, LogitDtype
from oracle.golden.compare import OUTSIDE, Comparison
from oracle.golden.flip_class import FlipClass, classify, least_band


class FlipNumbers(BaseModel):
    """What a flip's class and its explanation follow from.

    Attributes:
        regret: nats; a lower bound where `rank` is -1.
        rank: place of the subject's token among the golden's stored ids, -1 if it is not among them.
        top: the golden's top-1 logit.
        experts_shown, sketches_shown: whether the run shows its expert sets and its residual stream at all.
        set_layer: first layer whose expert sets differ, None where all agree; `set_gap` is the golden's router gap there.
        set_before, set_before_limit: sketch distance after the layer before `set_layer`, and the class's p90 limit there;
            None at layer 0, whose input is the embedding's row, and where no sketches are shown.
        set_after, set_after_limit: the same after `set_layer`.
        sketch_layer: first layer whose sketch is further off than the class's p90 limit, None where none is.
        sketch_distance, sketch_limit: the distance after it, and the limit.
        bands, logit_dtype: what the flip is classified with.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    regret: float = Field(ge=0)
    rank: int = Field(ge=OUTSIDE)
    top: float
    experts_shown: bool
    sketches_shown: bool
    set_layer: int | None = Field(ge=0)
    set_gap: float = Field(ge=0)
    set_before: float | None
    set_before_limit: float | None
    set_after: float | None
    set_after_limit: float | None
    sketch_layer: int | None = Field(ge=0)
    sketch_distance: float | None
    sketch_limit: float | None
    bands: Bands
    logit_dtype: LogitDtype

    @property
    def kind(self) -> FlipClass:
        """The class that these numbers make it."""
        return classify(
            regret=self.regret,
            rank=self.rank,
            top=self.top,
            sets_agree=self.set_layer is None,
            set_gap=self.set_gap,
            bands=self.bands,
            logit_dtype=self.logit_dtype,
        )

    @model_validator(mode="after")
    def _layers_fit(self) -> FlipNumbers:
        before, after = (self.set_before, self.set_before_limit), (self.set_after, self.set_after_limit)
        off = (self.sketch_distance, self.sketch_limit)
        for what, pair, expected in (
            ("set_before", before, self.sketches_shown and bool(self.set_layer)),
            ("set_after", after, self.sketches_shown and self.set_layer is not None),
            ("sketch_distance", off, self.sketch_layer is not None),
        ):
            if [value is not None for value in pair] != [expected, expected]:
                raise ValueError(f"{what} and its limit do not fit the layers named")
        if (self.set_layer is None and self.set_gap) or (self.set_layer is not None and not self.experts_shown):
            raise ValueError("a router gap or a layer without expert sets that differ")
        if self.sketch_layer is not None and not self.sketches_shown:
            raise ValueError("a sketch that is off in a run that shows none")
        if not _beyond(*off) and self.sketch_layer is not None:
            raise ValueError("the sketch at sketch_layer is within its limit")
        for layer, pair in (((self.set_layer or 0) - 1, before), (self.set_layer, after)):
            if layer is None or pair[0] is None:
                continue
            first_off = float("inf") if self.sketch_layer is None else self.sketch_layer
            if (layer < first_off and _beyond(*pair)) or (layer == first_off and pair != off):
                raise ValueError(f"the sketch after layer {layer} contradicts sketch_layer")
        return self


def numbers_at(
    comparison: Comparison, position: int, calibration: ClassCalibration, limits: Limits, *, experts_shown: bool
) -> FlipNumbers:
    """The numbers of the flip at `position` of a comparison.

    Args:
        limits: of the prompts judged.
        experts_shown: whether the run compared shows its expert sets.
    """
    allowed = np.array(limits.sketch_p90)
    first_set = int(comparison.first_set_difference[position])
    set_layer = None if first_set == len(allowed) else first_set
    sketches_shown = comparison.sketch_distance is not None
    distance = np.zeros(len(allowed)) if comparison.sketch_distance is None else comparison.sketch_distance[position]
    diverged = distance > allowed
    sketch_layer = int(diverged.argmax()) if diverged.any() else None

    def after(layer: int | None) -> tuple[float, float] | tuple[None, None]:
        shown = layer is not None and sketches_shown
        return (float(distance[layer]), float(allowed[layer])) if shown else (None, None)

    set_before, set_before_limit = after(set_layer - 1 if set_layer else None)
    set_after, set_after_limit = after(set_layer)
    sketch_distance, sketch_limit = after(sketch_layer)
    return FlipNumbers(
        regret=float(comparison.regret[position]),
        rank=int(comparison.rank[position]),
        top=float(comparison.top[position]),
        experts_shown=experts_shown,
        sketches_shown=sketches_shown,
        set_layer=set_layer,
        set_gap=float(comparison.set_gap[position]),
        set_before=set_before,
        set_before_limit=set_before_limit,
        set_after=set_after,
        set_after_limit=set_after_limit,
        sketch_layer=sketch_layer,
        sketch_distance=sketch_distance,
        sketch_limit=sketch_limit,
        bands=calibration.bands,
        logit_dtype=calibration.logit_dtype,
    )


def explain(flip: FlipNumbers) -> str:
    """The sentence that a flip's numbers add up to: "explained by ..." or, where it is hard, "not explained: ..."."""
    if flip.kind == "hard":
        outside = "; the token is outside the golden's stored ids" if flip.rank == OUTSIDE else ""
        return f"not explained: {_first_cause(flip)}{outside}"
    if flip.regret == 0.0:
        sets = "" if flip.set_layer is None else f"; expert sets differ at layer {flip.set_layer}, gap {flip.set_gap:.4g}"
        return f"explained by an exact tie: the golden gives both ids the same logit{sets}{_already_off(flip)}"
    if flip.set_layer is None:
        return f"explained by a near tie: {_regret(flip)}{_already_off(flip)}"
    if flip.set_gap == 0.0:
        return f"explained by an exact router tie at layer {flip.set_layer}: regret {flip.regret:.4g} nats{_around_set(flip)}"
    return f"explained by {_router_tie(flip)}; {_regret(flip)}{_around_set(flip)}{_already_off(flip)}"


def _first_cause(flip: FlipNumbers) -> str:
    """What came first, layer by layer: the hidden state, the router, or, where no layer is off, what follows the last."""
    if flip.sketch_layer is not None and (flip.set_layer is None or flip.sketch_layer < flip.set_layer):
        agreeing = "while every expert set agrees" if flip.experts_shown else "and the run shows no expert sets"
        sets = agreeing if flip.set_layer is None else "before any expert set"
        return f"hidden state already differs at layer {flip.sketch_layer} ({_off(flip)}), {sets}"
    if flip.set_layer is None and not flip.sketches_shown:
        agreeing = "every expert set agrees, and" if flip.experts_shown else "the run shows no expert sets, and"
        return f"{agreeing} no residual stream was shown ({_regret(flip)})"
    if flip.set_layer is None:
        return f"every layer within its limits; the head or final norm differs ({_regret(flip)})"
    if flip.set_gap > flip.bands.router_gap:
        gap = f"expert set differs at layer {flip.set_layer} across a gap of {flip.set_gap:.4g}"
        return f"{gap} (band {flip.bands.router_gap:.4g}){_around_set(flip)}"
    return f"{_router_tie(flip)}, does not account for {_regret(flip)}{_around_set(flip)}"


def _router_tie(flip: FlipNumbers) -> str:
    return f"a router near tie at layer {flip.set_layer}, gap {flip.set_gap:.4g} (band {flip.bands.router_gap:.4g})"


def _regret(flip: FlipNumbers) -> str:
    """Regret and the band that holds for it, which is one ULP of the logit type where the floor's is less."""
    band = flip.bands.regret if flip.set_layer is None else flip.bands.router_regret
    least = least_band(flip.top, flip.regret, flip.logit_dtype)
    at_least = "at least " if flip.rank == OUTSIDE else ""
    unit = f", one {flip.logit_dtype} ULP at that logit's size" if band < least else ""
    return f"regret {at_least}{flip.regret:.4g} nats, band {max(band, least):.4g}{unit}"


def _around_set(flip: FlipNumbers) -> str:
    if not flip.sketches_shown:
        return "; no residual stream was shown"
    before = "" if flip.set_before is None else f"{flip.set_before:.4g} before it (limit {flip.set_before_limit:.4g}), "
    return f"; sketch distance {before}{flip.set_after:.4g} after it (limit {flip.set_after_limit:.4g})"


def _already_off(flip: FlipNumbers) -> str:
    """Said of a near tie too: it is no reproach to the flip, but the place to look should there be more of them."""
    before_sets = flip.sketch_layer is not None and (flip.set_layer is None or flip.sketch_layer < flip.set_layer)
    return f"; hidden state already differs at layer {flip.sketch_layer} ({_off(flip)})" if before_sets else ""


def _off(flip: FlipNumbers) -> str:
    return f"sketch distance {flip.sketch_distance:.4g}, limit {flip.sketch_limit:.4g}"


def _beyond(distance: float | None, limit: float | None) -> bool:
    return distance is not None and limit is not None and distance > limit
