"""What a golden knows of one numeric class: its floor, and the bands, budgets and limits that follow from it.

The models are stored in `golden.json`; nothing here is a free parameter of a judgement. `golden/floor.py` measures them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, model_validator

from oracle.subjects.protocol import NumericClass

MARGIN_EDGES = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
"""Lower edges of the margin bins, in nats; the last bin is open. Pooled over all positions the flip test has no power."""

BUDGET_TAIL = 1e-3
"""A count of flips fires where the floor would give as many or more with a smaller probability than this."""

NEAR_MARGIN = 3.0
"""Nats. Margin changes are a band's base where the margin is below this: beyond, nothing honest flips."""

NEAR_MULTIPLE = 1.0
"""Regret bands are this multiple of the floor's largest margin change below `NEAR_MARGIN`. A stored band beyond it is refused.

A flip of the two largest logits needs a margin change of at least its regret, and every position shows one, flip or not. The
largest regret of the flips alone does not separate: on 100 goldens of 17 prompts drawn from 120 that no multiple was set on
(2026-11-30, `training/check_bands.py`), three times it failed an honest bf16 arm on 36, since few flips have a heavy tail. Of
the largest margin change no held-out arm's regret was more than 0.66, or 0.84 where expert sets differ; with changes below 0.3
nats alone as the base it was 1.7.
"""

BAND_MULTIPLE = 3.0
"""The router band is this multiple of the floor's largest router gap at the first layer whose expert sets differ.

On the same goldens held-out arms reach 2.1 times the others' largest gap: positions where sets differ are few.
"""

LIMIT_MULTIPLE = 2.0
"""Limits on medians, p90s and slopes over all prompts are this multiple of the floor's largest. A larger one is refused.

On the same 100 goldens held-out bf16 arms stay below 1.7 times what the others give, 99 % of them below 1.33. On the shipped
golden every norm 1 % short reaches 80 times the median KL's limit and 17 times the slope's; one post norm 1 % short, 3 times
the slope's; attention scores 2 % too large, 1.6 times the median KL's. The norm before attention may be any factor off: q and
k are normed again, v behind the output projection, so that only eps tells.
"""

PART_MULTIPLE = 4.0
"""The same for part of the prompts, down to one: on one of those 120 prompts alone an honest arm reaches 3.4 times what the
others give there, on one of the shipped golden's 2.35."""

ROUTER_RESOLUTION = 1e-4
"""Router gaps below this are ties in every class: class fp32's floor has no differing set to measure a band from, and
selection scores of fp32 engines agree to about 1e-5."""

KL_RESOLUTION = 1e-13
"""A limit on a KL is never below this: float64 rounds a log-probability of 30 nats by 4e-15, and class fp32's median KL
(2e-16 on the shipped golden) is such rounding, which differs between libraries."""

ROUTING_RESOLUTION = 1e-6
"""A limit on a weight's error, or on a router logit's relative one, is never below this: a sigmoid of another library's
differs in the last two bits (1.2e-7), and in class fp32 the floor's medians (1.2e-7 and 2.8e-7) are little more."""

UNSEEN = 3
"""Added to a count of differing sets before it becomes a share: a floor that saw none in n pairs only says that fewer than
3 in n are likely (the rule of three, 95 %), and one arm's few are not a multiple of another's none."""

LogitDtype = Literal["float32", "bfloat16"]

_STRICT = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class MarginBins(BaseModel):
    """Counts over the floor's arms and positions, by margin bin, and the largest change of a margin.

    Attributes:
        positions: arms times positions in the bin.
        near, near_change: flips whose expert sets agree with the truth's; the largest margin change where they agree.
        router, router_change: the same where the sets differ. Changes in nats.
    """

    model_config = _STRICT

    positions: tuple[NonNegativeInt, ...]
    near: tuple[NonNegativeInt, ...]
    router: tuple[NonNegativeInt, ...]
    near_change: tuple[NonNegativeFloat, ...]
    router_change: tuple[NonNegativeFloat, ...]

    @model_validator(mode="after")
    def _shapes(self) -> MarginBins:
        columns = (self.positions, self.near, self.router, self.near_change, self.router_change)
        if any(len(column) != len(MARGIN_EDGES) for column in columns):
            raise ValueError(f"each column of the bins needs {len(MARGIN_EDGES)} numbers")
        if any(near + router > of for near, router, of in zip(self.near, self.router, self.positions, strict=True)):
            raise ValueError("a bin has more flips than positions")
        return self

    @property
    def largest_changes(self) -> tuple[float, float]:
        """The largest margin change below `NEAR_MARGIN` where expert sets agree, and anywhere."""
        below = [index for index, edge in enumerate(MARGIN_EDGES) if edge < NEAR_MARGIN]
        near, router = (max(changes[index] for index in below) for changes in (self.near_change, self.router_change))
        return near, max(near, router)


class Bands(BaseModel):
    """Up to where a flip may be a near tie; from the floor alone, never from a subject. Nats of regret, or of router gap.

    Attributes:
        regret: flips whose expert sets agree.
        router_gap: the gap at the first layer whose sets differ.
        router_regret: flips whose sets differ within `router_gap`.
        floor_regret, floor_router_regret: the floor's largest margin change below `NEAR_MARGIN`, where expert sets agree, and
            anywhere.
        floor_router_gap: its largest gap at the first layer whose sets differ.
        near_multiple: the declared multiple of `regret` and `router_regret`; `multiple` that of `router_gap`.
    """

    model_config = _STRICT

    regret: float = Field(ge=0)
    router_gap: float = Field(ge=0)
    router_regret: float = Field(ge=0)
    floor_regret: float = Field(ge=0)
    floor_router_gap: float = Field(ge=0)
    floor_router_regret: float = Field(ge=0)
    near_multiple: float = Field(ge=1, le=NEAR_MULTIPLE)
    multiple: float = Field(ge=1, le=BAND_MULTIPLE)

    @model_validator(mode="after")
    def _within_multiple(self) -> Bands:
        for name in ("regret", "router_gap", "router_regret"):
            band, floor = getattr(self, name), getattr(self, f"floor_{name}")
            multiple = self.multiple if name == "router_gap" else self.near_multiple
            if band > multiple * floor * (1 + 1e-12):
                raise ValueError(f"band {name} {band:.6g} is beyond {multiple} times the floor's {floor:.6g}: inflated")
        return self


class Statistics(BaseModel):
    """What limits are set on, of one run or the largest over several.

    Attributes:
        kl: [median, p90] over positions, nats.
        sketch_median, sketch_p90: per layer, relative distance.
        sketch_slope: absolute slope, the largest over layers: an arm's slope at one layer can be near zero by chance.
        sets_differ: share of positions and layers whose expert set differs, `UNSEEN` added to the count.
        weight_median, weight_p90: per layer, of the largest error of an expert's weight at a position, before its first
            differing set. Absolute: weights are sigmoids.
        router_logit: [median, maximum] over probe positions and layers of the largest error of a router logit, over the
            largest router logit.
    """

    model_config = _STRICT

    kl: tuple[NonNegativeFloat, NonNegativeFloat]
    sketch_median: tuple[NonNegativeFloat, ...]
    sketch_p90: tuple[NonNegativeFloat, ...]
    sketch_slope: NonNegativeFloat
    sets_differ: NonNegativeFloat
    weight_median: tuple[NonNegativeFloat, ...]
    weight_p90: tuple[NonNegativeFloat, ...]
    router_logit: tuple[NonNegativeFloat, NonNegativeFloat]

    @classmethod
    def largest(cls, each: Iterable[Statistics]) -> Statistics:
        """Number by number the largest of `each`."""
        rows = [one.model_dump() for one in each]
        return cls.model_validate({name: np.max([row[name] for row in rows], axis=0).tolist() for name in cls.model_fields})


class Limits(BaseModel):
    """The floor's largest statistics over its arms, and the declared multiple of them that a subject may reach.

    The limits themselves are not stored, so that none can be written larger than the floor allows.
    """

    model_config = _STRICT

    floor: Statistics
    multiple: float = Field(ge=1, le=PART_MULTIPLE)

    @property
    def kl(self) -> tuple[float, float]:
        """[median, p90] in nats, at least `KL_RESOLUTION`."""
        median, p90 = self.floor.kl
        return max(self.multiple * median, KL_RESOLUTION), max(self.multiple * p90, KL_RESOLUTION)

    @property
    def sketch_median(self) -> tuple[float, ...]:
        """Per layer."""
        return tuple(self.multiple * value for value in self.floor.sketch_median)

    @property
    def sketch_p90(self) -> tuple[float, ...]:
        """Per layer."""
        return tuple(self.multiple * value for value in self.floor.sketch_p90)

    @property
    def sketch_slope(self) -> float:
        """For every layer."""
        return self.multiple * self.floor.sketch_slope

    @property
    def sets_differ(self) -> float:
        """Share of positions and layers."""
        return self.multiple * self.floor.sets_differ

    @property
    def weight_median(self) -> tuple[float, ...]:
        """Per layer, at least `ROUTING_RESOLUTION`."""
        return tuple(max(self.multiple * value, ROUTING_RESOLUTION) for value in self.floor.weight_median)

    @property
    def weight_p90(self) -> tuple[float, ...]:
        """Per layer, at least `ROUTING_RESOLUTION`."""
        return tuple(max(self.multiple * value, ROUTING_RESOLUTION) for value in self.floor.weight_p90)

    @property
    def router_logit(self) -> tuple[float, float]:
        """[median, maximum], relative, at least `ROUTING_RESOLUTION`."""
        median, largest = self.floor.router_logit
        return max(self.multiple * median, ROUTING_RESOLUTION), max(self.multiple * largest, ROUTING_RESOLUTION)


class HeldOut(BaseModel):
    """One floor arm judged by the bands, budgets and limits that the other arms alone would give.

    Attributes:
        arm: the arm left out.
        near_flips, near_budget: its near-tie flips and the count at which the budget would have fired; same for `router_`.
        hard_flips: flips outside the others' bands.
        sets_outside: positions whose first differing expert set is outside the others' router band.
        worst_ratio: its largest statistic over the others' limit; above 1 it would have failed.
        worst_prompt, worst_prompt_ratio: the same on a prompt alone, where it is largest.
        passed: whether an honest arm passes; a class with one False is refused.
    """

    model_config = _STRICT

    arm: str
    near_flips: int
    near_budget: int
    router_flips: int
    router_budget: int
    hard_flips: int
    sets_outside: int
    worst_ratio: float
    worst_prompt: str
    worst_prompt_ratio: float
    passed: bool


class ClassCalibration(BaseModel):
    """The whole calibration of one class.

    Attributes:
        numeric_class: the class.
        logit_dtype: the type of its logits; a band is never below one ULP of it at the logit's size.
        arms: the floor's arms.
        positions: teacher-forced positions per arm.
        bins, bands, limits, held_out: see their types.
        prompt_floors: by prompt, the floor's largest statistics on that prompt alone (`floor.statistics`, `upper`).
    """

    model_config = _STRICT

    numeric_class: NumericClass
    logit_dtype: LogitDtype
    arms: tuple[str, ...] = Field(min_length=3)
    positions: int = Field(gt=0)
    bins: MarginBins
    bands: Bands
    limits: Limits
    prompt_floors: Mapping[str, Statistics] = Field(min_length=1)
    held_out: tuple[HeldOut, ...]

    @model_validator(mode="after")
    def _floor_fits_bins(self) -> ClassCalibration:
        if sum(self.bins.positions) != len(self.arms) * self.positions:
            raise ValueError(
                f"the bins hold {sum(self.bins.positions)} positions, {len(self.arms)} arms have {self.positions} each"
            )
        for name, shown in zip(("regret", "router_regret"), self.bins.largest_changes, strict=True):
            if (stated := getattr(self.bands, f"floor_{name}")) != shown:
                raise ValueError(f"bands.floor_{name} is {stated:.6g}, but the bins show a margin change of {shown:.6g}")
        if self.limits.multiple > LIMIT_MULTIPLE:
            raise ValueError(f"limits of {self.limits.multiple} times the floor, allowed are {LIMIT_MULTIPLE}: inflated")
        return self

    @model_validator(mode="after")
    def _every_arm_held_out(self) -> ClassCalibration:
        if tuple(entry.arm for entry in self.held_out) != self.arms:
            raise ValueError("every arm needs its leave-one-out result")
        if failed := [entry.arm for entry in self.held_out if not entry.passed]:
            raise ValueError(f"arm {failed[0]} does not pass the floor of the others: the floor is too narrow to judge by")
        return self

    def limits_for(self, prompts: Collection[str]) -> Limits:
        """The limits for a run that answered these of the golden's prompts; for all of them, `limits`.

        On few prompts an honest run may well exceed the limits of all. What it may reach there is the multiple of the
        largest, over those prompts, of each prompt's own floor. No arm of the floor is above that floor on any set of
        prompts: an upper quantile of a union is at most the largest of its parts' (of each part at least a share p lies
        at or below its own, so of the union at least a share p lies at or below the largest of them), and the slope of a
        union is a weighted mean of its parts'. For the same reason an arm that passes on every prompt alone what the
        others give there (`HeldOut.worst_prompt_ratio`) passes on every set of prompts.

        Raises:
            ValueError: there are none, or one that the golden has not.
        """
        if unknown := set(prompts) - self.prompt_floors.keys():
            raise ValueError(f"no floor for prompt {min(unknown)}")
        if len(set(prompts)) == len(self.prompt_floors):
            return self.limits
        if not prompts:
            raise ValueError("no prompt, no limits")
        return Limits(floor=Statistics.largest(self.prompt_floors[name] for name in prompts), multiple=PART_MULTIPLE)


def margin_bin(margin: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Index of each margin's bin in `MARGIN_EDGES`."""
    return np.searchsorted(np.asarray(MARGIN_EDGES), np.asarray(margin), side="right") - 1


def flip_probability(flips: tuple[int, ...], positions: tuple[int, ...]) -> npt.NDArray[np.float64]:
    """Per margin bin, the floor's chance of a flip: Jeffreys' estimate `(flips + 1/2) / (positions + 1)`, never 0.

    A bin the floor never saw gives 1/2 per position, which is honest: nothing is known there.
    """
    return (np.asarray(flips, dtype=np.float64) + 0.5) / (np.asarray(positions, dtype=np.float64) + 1.0)


def budget(probabilities: npt.NDArray[np.float64], tail: float = BUDGET_TAIL) -> int:
    """The smallest count n >= 1 with P(X >= n) < `tail`, X the sum of independent coins (Poisson-binomial).

    Args:
        probabilities: float64 [N], each position's chance of a flip.

    The distribution comes from plain convolution, so that it does not depend on any library's version.
    """
    most = len(probabilities) + 1
    kept = min(most, int(expected_flips(probabilities)) + 32)
    while (count := _smallest(_distribution(probabilities, kept), tail)) is None and kept < most:
        kept = min(2 * kept, most)
    return count or most


def _distribution(probabilities: npt.NDArray[np.float64], kept: int) -> npt.NDArray[np.float64]:
    """P(X = n) for n below `kept`: none of these depends on the others, which are left out."""
    distribution, moved = np.zeros(kept), np.empty(kept - 1)
    distribution[0] = 1.0
    none, some, fewer = distribution[:1], distribution[1:], distribution[:-1]
    for p in probabilities.tolist():  # in place: `some * (1 - p) + fewer * p` makes three arrays a position
        np.multiply(fewer, p, out=moved)
        np.multiply(some, 1.0 - p, out=some)
        np.add(some, moved, out=some)
        none *= 1.0 - p
    return distribution


def _smallest(distribution: npt.NDArray[np.float64], tail: float) -> int | None:
    """The smallest count n >= 1 that leaves less than `tail` to n and more; None where that lies beyond the distribution."""
    remaining = 1.0
    for count, chance in enumerate(distribution.tolist(), 1):
        remaining -= chance
        if remaining < tail:
            return count
    return None


def expected_flips(probabilities: npt.NDArray[np.float64]) -> float:
    """Mean of the same sum."""
    return float(probabilities.sum())
