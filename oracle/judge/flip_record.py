"""Flip records: one typed entry per flip, with the numbers that its label follows from, and the signature over them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from oracle.golden.calibration import Bands, LogitDtype
from oracle.golden.flip_class import FlipClass, classify, ulp
from oracle.judge.gate import Case


class FlipRecord(BaseModel):
    """One teacher-forced position where the subject's argmax is not the golden's.

    Attributes:
        prompt, position: where; position p predicts id p + 1.
        expected, got: the golden's id and the subject's.
        regret: nats; a lower bound where `rank` is -1.
        rank: place of `got` among the golden's stored ids, -1 if it is not among them.
        top: the golden's top-1 logit.
        golden_margin, subject_margin: top-1 minus top-2, nats; the same in bf16 ULPs at the top logit's size in `*_ulps`.
        set_layer: first layer whose expert sets differ, None where all agree or the run shows no experts; `set_gap` is the
            golden's router gap there.
        sketch_layer: first layer whose sketch is further off than the class's p90 limit, None where none is.
        label: the class of the flip; it must follow from the numbers and `bands`.
        bands, logit_dtype: what it was classified with.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    prompt: str
    position: int
    expected: int
    got: int
    regret: float = Field(ge=0)
    rank: int
    top: float
    golden_margin: float
    subject_margin: float
    golden_margin_ulps: float
    subject_margin_ulps: float
    set_layer: int | None
    set_gap: float
    sketch_layer: int | None
    label: FlipClass
    bands: Bands
    logit_dtype: LogitDtype

    @model_validator(mode="after")
    def _label_follows(self) -> FlipRecord:
        if self.expected == self.got:
            raise ValueError("a flip whose two ids are equal is none")
        computed = classify(
            regret=self.regret,
            rank=self.rank,
            top=self.top,
            sets_agree=self.set_layer is None,
            set_gap=self.set_gap,
            bands=self.bands,
            logit_dtype=self.logit_dtype,
        )
        if computed != self.label:
            raise ValueError(f"label {self.label!r} contradicts the numbers, which make it {computed!r}")
        return self


def flip_records(case: Case) -> tuple[FlipRecord, ...]:
    """Every flip of an aligned run, in the golden's order of prompts and positions."""
    calibration = case.calibration
    limits = np.array(calibration.limits.sketch_p90)
    records = []
    for prompt, run in case.answered():
        comparison = case.comparisons[prompt.name]
        layers = comparison.layers
        for position in np.flatnonzero(comparison.flip).tolist():
            first_set = int(comparison.first_set_difference[position])
            distance = comparison.sketch_distance  # None where the run shows none: then no layer is said to differ
            diverged = np.zeros(layers, dtype=np.bool_) if distance is None else distance[position] > limits
            top, regret = float(comparison.top[position]), float(comparison.regret[position])
            golden_margin = float(comparison.margin[position])
            subject_margin = float(run.top_logits[position, 0]) - float(run.top_logits[position, 1])
            step = ulp(top, "bfloat16")
            set_layer = None if first_set == layers else first_set
            set_gap = float(comparison.set_gap[position])
            rank = int(comparison.rank[position])
            records.append(
                FlipRecord(
                    prompt=prompt.name,
                    position=position,
                    expected=int(prompt.argmax[position]),
                    got=int(run.argmax[position]),
                    regret=regret,
                    rank=rank,
                    top=top,
                    golden_margin=golden_margin,
                    subject_margin=subject_margin,
                    golden_margin_ulps=golden_margin / step,
                    subject_margin_ulps=subject_margin / step,
                    set_layer=set_layer,
                    set_gap=set_gap,
                    sketch_layer=int(diverged.argmax()) if diverged.any() else None,
                    label=classify(
                        regret=regret,
                        rank=rank,
                        top=top,
                        sets_agree=set_layer is None,
                        set_gap=set_gap,
                        bands=calibration.bands,
                        logit_dtype=calibration.logit_dtype,
                    ),
                    bands=calibration.bands,
                    logit_dtype=calibration.logit_dtype,
                )
            )
    return tuple(records)


def signature(golden_digest: str, records: Iterable[FlipRecord]) -> str:
    """`sha256:` over one line per flip: `golden-digest prompt position expected got`, single spaces, LF at each end.

    Lines are sorted by (prompt, position, expected, got), positions and ids as numbers.
    Two red runs with one signature are the same red. A run without flips has the signature of no lines.
    """
    lines = sorted((r.prompt, r.position, r.expected, r.got) for r in records)
    text = "".join(f"{golden_digest} {prompt} {position} {expected} {got}\n" for prompt, position, expected, got in lines)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
