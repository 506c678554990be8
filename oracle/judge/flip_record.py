"""Flip records: one typed entry per flip, with the numbers that its label follows from, and the signature over them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
from pydantic import Field, model_validator

from oracle.golden.flip_class import FlipClass, ulp
from oracle.judge.blame import FlipNumbers, explain, numbers_at
from oracle.judge.gate import Case


class FlipRecord(FlipNumbers):
    """One teacher-forced position where the subject's argmax is not the golden's.

    A record that contradicts itself is refused, on load too: label and explanation must follow from its numbers.

    Attributes:
        prompt, position: where; position p predicts id p + 1.
        expected, got: the golden's id and the subject's.
        golden_margin, subject_margin: top-1 minus top-2, nats; the same in bf16 ULPs at the top logit's size in `*_ulps`.
        label: the class of the flip.
        explanation: the sentence that the blame chain adds up to.
    """

    prompt: str
    position: int = Field(ge=0)
    expected: int
    got: int
    golden_margin: float
    subject_margin: float
    golden_margin_ulps: float
    subject_margin_ulps: float
    label: FlipClass
    explanation: str

    @model_validator(mode="after")
    def _contradicts_nothing(self) -> FlipRecord:
        if self.expected == self.got or self.rank == 0:
            raise ValueError("a flip whose two ids are equal is none")
        if self.regret < self.golden_margin or (self.rank == 1 and self.regret != self.golden_margin):
            raise ValueError(f"regret {self.regret:.6g} contradicts the margin {self.golden_margin:.6g} to the second id")
        step = ulp(self.top, "bfloat16")
        if (self.golden_margin_ulps, self.subject_margin_ulps) != (self.golden_margin / step, self.subject_margin / step):
            raise ValueError("margins in ULPs contradict those in nats")
        if self.kind != self.label:
            raise ValueError(f"label {self.label!r} contradicts the numbers, which make it {self.kind!r}")
        if (computed := explain(self)) != self.explanation:
            raise ValueError(f"the explanation contradicts the numbers, which say {computed!r}")
        return self


def flip_records(case: Case) -> tuple[FlipRecord, ...]:
    """Every flip of an aligned run, in the golden's order of prompts and positions."""
    records = []
    for prompt, run in case.each():
        comparison = case.comparisons[prompt.name]
        for position in np.flatnonzero(comparison.flip).tolist():
            shown = run.expert_ids is not None
            numbers = numbers_at(comparison, position, case.calibration, case.limits, experts_shown=shown)
            golden_margin = float(comparison.margin[position])
            subject_margin = float(run.top_logits[position, 0]) - float(run.top_logits[position, 1])
            step = ulp(numbers.top, "bfloat16")
            records.append(
                FlipRecord(
                    **dict(numbers),
                    prompt=prompt.name,
                    position=position,
                    expected=int(prompt.argmax[position]),
                    got=int(run.argmax[position]),
                    golden_margin=golden_margin,
                    subject_margin=subject_margin,
                    golden_margin_ulps=golden_margin / step,
                    subject_margin_ulps=subject_margin / step,
                    label=numbers.kind,
                    explanation=explain(numbers),
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
