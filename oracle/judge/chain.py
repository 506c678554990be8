"""Gate `chain`: does the subject, fed by itself, generate the golden's chains?

Compared: every id of every free run, up to and with the first divergence of each prompt. A divergence is allowed only
where the teacher-forced pass has the same flip at the same position, recorded as a near tie: the two passes see the same
prefix, so a deterministic subject flips in both or in neither.
After a divergence the chains are about different texts; `flips` covers those positions, teacher-forced.
"""

from __future__ import annotations

import numpy as np

from oracle.golden.evidence import PromptEvidence
from oracle.golden.flip_class import classify_at
from oracle.judge.gate import Case, Finding, Judgement
from oracle.subjects.run import PromptRun


class ChainGate:
    name = "chain"
    definition = {
        "version": 1,
        "metric": "free-run ids up to the first divergence",
        "statistic": "equality or a recorded near tie",
    }
    blind_to = "faults that change no argmax, and everything after a prompt's first divergence"
    needs_alignment = True

    def judge(self, case: Case) -> Judgement:
        findings: list[Finding] = []
        compared = diverged = 0
        for prompt, run in case.each():
            expected, got = np.array(prompt.generated), run.free_generated
            wrong = expected != got
            first = int(wrong.argmax()) if wrong.any() else len(expected)
            compared += min(first + 1, len(expected))
            diverged += first < len(expected)
            findings += self._judge_prompt(case, prompt, run, first)
        return Judgement(compared, tuple(findings), {"prompts_diverged": diverged, "prompts": len(case.answered())})

    def plants(self, case: Case) -> dict[str, Case]:
        """One pass leaves alone, and both leave together, at the first prompt's widest margin."""
        prompt, run = case.answered()[0]
        start = len(prompt.prompt_ids) - 1
        widest = int(prompt.margin[start:].argmax())
        second = prompt.top_ids[start + widest, 1]
        chain, argmax = run.free_generated.copy(), run.argmax.copy()
        chain[widest], argmax[start + widest] = second, second
        return {
            "the free run alone": case.with_prompt(prompt.name, free_generated=chain),
            "the teacher-forced pass alone": case.with_prompt(prompt.name, argmax=argmax),
            "both passes": case.with_prompt(prompt.name, free_generated=chain, argmax=argmax),
        }

    def _judge_prompt(self, case: Case, prompt: PromptEvidence, run: PromptRun, first: int) -> list[Finding]:
        start = len(prompt.prompt_ids) - 1
        comparison = case.comparisons[prompt.name]
        # Up to the divergence both passes saw the golden's ids, so their argmax must be the same.
        forced = run.argmax[start : start + first + 1]
        free = run.free_generated[: first + 1]
        if (differs := forced != free).any():
            at = int(differs.argmax())
            return [
                Finding(
                    "free run and teacher-forced pass disagree on the same prefix: not deterministic",
                    f"{prompt.name}[{start + at}]",
                    f"{free[at]} free, {forced[at]} forced",
                    "equal",
                    int(differs.sum()),
                    len(differs),
                )
            ]
        if first == len(prompt.generated):
            return []
        kind = classify_at(comparison, start + first, case.calibration.bands, case.calibration.logit_dtype)
        if kind != "hard":
            return []
        return [
            Finding(
                "the free run leaves the golden's chain at a hard flip",
                f"{prompt.name}[{start + first}]",
                f"{run.free_generated[first]} for {prompt.generated[first]}, regret {comparison.regret[start + first]:.4g}",
                "a recorded near tie",
                len(prompt.generated) - first,
                len(prompt.generated),
            )
        ]
