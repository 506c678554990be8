"""What kind of flip a flip is. One rule, used for floors, for gates and when a stored flip record is read."""

from __future__ import annotations

import math
from typing import Literal

from oracle.golden.calibration import Bands
from oracle.golden.compare import OUTSIDE, Comparison

FlipClass = Literal["near-tie", "router-near-tie", "hard"]

_MANTISSA_BITS = {"float32": 23, "bfloat16": 7}


def ulp(value: float, dtype: str) -> float:
    """Distance between neighbouring values of `dtype` (`float32` or `bfloat16`) at the size of `value`."""
    exponent = math.frexp(abs(value))[1] - 1 if value else -126
    return math.ldexp(1.0, max(exponent, -126) - _MANTISSA_BITS[dtype])


def least_band(top: float, regret: float, logit_dtype: str) -> float:
    """One ULP of `logit_dtype` at the larger of the two logits, `top` and `top - regret`.

    They differ in size by a binade where two negative logits round to one power of two: -31.9375 and -32.125 are both -32 in
    bf16, 0.19 apart, and an ULP is 0.125 above -32 and 0.25 below.
    """
    return max(ulp(top, logit_dtype), ulp(top - regret, logit_dtype))


def classify(
    *, regret: float, rank: int, top: float, sets_agree: bool, set_gap: float, bands: Bands, logit_dtype: str
) -> FlipClass:
    """The class of one flip.

    Args:
        regret: the golden's top-1 logit minus its logit of the subject's token, nats.
        rank: that token's place among the golden's stored ids, or `OUTSIDE`.
        top: the golden's top-1 logit; the band is never below one ULP of `logit_dtype` at the two logits' size.
        sets_agree: every layer selected the golden's experts at this position.
        set_gap: the golden's router gap at the first layer that did not.
        bands: of the subject's numeric class.

    An exact tie is never hard, at the top (regret 0) or at the router's edge (gap 0 where sets differ: then both sets are
    right, and nothing bounds what the other one does to the logits). A token outside the stored ids always is.
    """
    if rank == OUTSIDE:
        return "hard"
    if regret == 0.0:
        return "near-tie" if sets_agree else "router-near-tie"
    least = least_band(top, regret, logit_dtype)
    if sets_agree:
        return "near-tie" if regret <= max(bands.regret, least) else "hard"
    near = set_gap <= bands.router_gap and regret <= max(bands.router_regret, least)
    return "router-near-tie" if near or set_gap == 0.0 else "hard"


def classify_at(comparison: Comparison, position: int, bands: Bands, logit_dtype: str) -> FlipClass:
    """The class of the flip at `position` of a comparison."""
    return classify(
        regret=float(comparison.regret[position]),
        rank=int(comparison.rank[position]),
        top=float(comparison.top[position]),
        sets_agree=bool(comparison.sets_agree[position]),
        set_gap=float(comparison.set_gap[position]),
        bands=bands,
        logit_dtype=logit_dtype,
    )
