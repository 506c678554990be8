"""Gate `logits`: how far are the subject's logits from the golden's, over all positions?

Compared: KL(golden || subject) per position over the golden's 64 ids and one bin for all others; its median and p90
against twice the largest of the class's floor arms. In class `fp32` also the largest difference of a logit,
relative to the position's largest, wherever expert sets agree: at most 1e-5 (transformers and this reference agree to
2e-6 in fp32). Any NaN or infinite number fires. The maximum is printed and not judged: on a floor of honest bf16 arms
one position was 77 % of the mean.
It cannot see a fault at fewer than one position in ten; `flips` and `residual` look at those.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from oracle.golden.calibration import LIMIT_MULTIPLE, PART_MULTIPLE
from oracle.golden.portable import quantiles
from oracle.judge.gate import Case, Finding, Judgement
from oracle.judge.soundness import MASS_TOLERANCE
from oracle.subjects.run import PromptRun

FP32_TOLERANCE = 1e-5


class LogitsGate:
    name = "logits"
    definition = {
        "version": 1,
        "metric": "KL(golden || subject) in nats",
        "statistic": "median and p90 over positions",
        "multiple": LIMIT_MULTIPLE,
        "multiple on part of the prompts": PART_MULTIPLE,
        "fp32_tolerance": FP32_TOLERANCE,
        "mass_tolerance": MASS_TOLERANCE,
    }
    blind_to = "faults at under one position in ten that change no argmax (class fp32 sees each whose expert sets agree)"
    needs_alignment = True

    def judge(self, case: Case) -> Judgement:
        comparison, limits = case.comparison, case.limits
        positions = len(comparison.kl)
        findings: list[Finding] = []
        if (wrong := ~(comparison.mass <= 1.0 + MASS_TOLERANCE)).any():
            at = int(comparison.mass.argmax())
            worst = f"probabilities add to {comparison.mass[at]:.6g}"
            headline = "logits and their logsumexp contradict each other"
            findings.append(Finding(headline, case.place(at), worst, "1", int(wrong.sum()), positions))
        non_finite = np.concatenate([run.non_finite for _, run in case.each()])
        if (bad := non_finite != 0).any():
            findings.append(
                Finding(
                    "NaN or infinite numbers",
                    case.place(int(bad.argmax())),
                    f"{non_finite.max()} in one step",
                    "0",
                    int(bad.sum()),
                    positions,
                )
            )
        median, p90 = (float(v) for v in quantiles(comparison.kl, [0.5, 0.9]))
        for name, value, allowed in (("median", median, limits.kl[0]), ("p90", p90, limits.kl[1])):
            if not value <= allowed:  # NaN fires
                worst = case.place(int(comparison.kl.argmax()))
                findings.append(
                    Finding(
                        f"{name} KL above the class's limit", worst, f"{value:.3g} nats", f"{allowed:.3g}", positions, positions
                    )
                )
        measured: dict[str, float | int | str] = {
            "kl median": median,
            "kl median allowed": limits.kl[0],
            "kl p90": p90,
            "kl p90 allowed": limits.kl[1],
            "kl max": float(comparison.kl.max()),
        }
        if case.calibration.numeric_class == "fp32":
            error = np.where(comparison.sets_agree, comparison.logit_error, 0.0)
            measured["largest relative error"] = float(error.max())
            if (wrong := ~(error <= FP32_TOLERANCE)).any():
                at = case.place(int(error.argmax()))
                findings.append(
                    Finding(
                        "logits differ where expert sets agree",
                        at,
                        f"{error.max():.3g} of the largest",
                        f"{FP32_TOLERANCE:g}",
                        int(wrong.sum()),
                        positions,
                    )
                )
        return Judgement(positions, tuple(findings), measured)

    def plants(self, case: Case) -> dict[str, Case]:
        """A head 5 % too large, one NaN, a logsumexp of other logits; in class fp32 one logit at one position."""
        prompt, run = case.answered()[0]
        non_finite, logits, logsumexp = run.non_finite.copy(), run.logits_at_golden.copy(), run.logsumexp.copy()
        non_finite[0] = 1
        logsumexp[0] -= 0.1  # at one position, where neither median nor p90 sees it
        logits[0, 0] -= np.float32(10 * FP32_TOLERANCE * np.abs(logits[0]).max())
        cases = {
            "a head 5 % too large": case.with_prompts(_sharpen),
            "one NaN": case.with_prompt(prompt.name, non_finite=non_finite),
            "a logsumexp of other logits": case.with_prompt(prompt.name, logsumexp=logsumexp),
        }
        if case.calibration.numeric_class == "fp32":
            cases["one logit at one position"] = case.with_prompt(prompt.name, logits_at_golden=logits)
        return cases


def _sharpen(run: PromptRun) -> PromptRun:
    logits = run.logits_at_golden.astype(np.float64) * 1.05
    # The stored ids hold nearly all of the mass; their own sum is close enough for a fault.
    lse = np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1)) + logits.max(1)
    return replace(run, logits_at_golden=logits.astype(np.float32), logsumexp=np.maximum(lse, run.logsumexp))
