"""Gate `alignment`: was the subject fed what the golden was, at the positions the golden means?

Compared: ids and positions consumed in the teacher-forced pass, ids consumed in the free run, the shapes of everything
that is compared later, and each consumed embedding row (by digest) against the checkpoint's row of that id.
Exact, since nothing here is arithmetic. No other comparison speaks without it: a port's gate once read the golden at
`prompt_len + d`, was red for weeks, and four kernels were blamed.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from oracle.golden.evidence import PromptEvidence
from oracle.judge.gate import Case, Finding, Judgement
from oracle.subjects.harness import digest_embedding
from oracle.subjects.run import EMBEDDING_DIGEST_BYTES, PromptRun


class AlignmentGate:
    name = "alignment"
    definition = {"version": 1, "metric": "ids, positions, embedding rows, shapes", "statistic": "equality"}
    blind_to = "a subject that reports an id, position or row other than the one it computes with"
    needs_alignment = False

    def judge(self, case: Case) -> Judgement:
        findings: list[Finding] = []
        compared = 0
        embedding = case.checkpoint.raw("model.embed_tokens.weight").reshape(case.checkpoint.config.vocab_size, -1)
        for prompt in case.golden.prompts:
            if fault := case.run.faults.get(prompt.name):
                findings.append(Finding(f"a device fault ended the prompt: {fault}", where=prompt.name))
                continue
            run = case.run.prompts.get(prompt.name)
            if run is None:
                findings.append(Finding("the prompt was not run", where=prompt.name, verdict="incomplete"))
                continue
            if shape := _shape_finding(prompt, run):
                findings.append(shape)
                continue
            expected_rows = np.stack([digest_embedding(embedding[i]) for i in prompt.fed])
            free = [*prompt.prompt_ids, *run.free_generated.tolist()][:-1]
            for what, expected, got in (
                ("id consumed", np.array(prompt.fed), run.consumed),
                ("position computed", np.arange(len(prompt.fed)), run.positions),
                ("embedding row", expected_rows, run.embedding_digest),
                ("id consumed in the free run", np.array(free), run.free_consumed),
            ):
                wrong = (expected != got).reshape(len(expected), -1).any(axis=1)
                compared += len(wrong)
                if wrong.any():
                    first = int(wrong.argmax())
                    worst = "" if expected.ndim > 1 else f"{got[first]} for {expected[first]}"
                    findings.append(
                        Finding(
                            f"{what} is not the golden's",
                            f"{prompt.name}[{first}]",
                            worst,
                            "equal",
                            int(wrong.sum()),
                            len(wrong),
                        )
                    )
        return Judgement(compared, tuple(findings))

    def plant(self, case: Case) -> Case:
        """Positions counted from 1 in the first prompt."""
        prompt, run = case.answered()[0]
        shifted = replace(run, positions=run.positions + np.int32(1))
        return replace(case, run=replace(case.run, prompts={**case.run.prompts, prompt.name: shifted}))


def _shape_finding(prompt: PromptEvidence, run: PromptRun) -> Finding | None:
    positions, stored = prompt.top_ids.shape
    expected = {
        "consumed": (positions,),
        "positions": (positions,),
        "argmax": (positions,),
        "non_finite": (positions,),
        "logsumexp": (positions,),
        "free_consumed": (positions,),
        "free_generated": (len(prompt.generated),),
        "embedding_digest": (positions, EMBEDDING_DIGEST_BYTES),
        "logits_at_golden": (positions, stored),
        "top_ids": (positions, stored),
        "top_logits": (positions, stored),
        "expert_ids": prompt.expert_ids.shape,
        "expert_weights": prompt.expert_weights.shape,
        "sketch": prompt.sketch.shape,
    }
    for name, shape in expected.items():
        got = getattr(run, name).shape
        if got != shape:
            return Finding(f"array {name} has the wrong shape", prompt.name, str(list(got)), str(list(shape)))
    return None
