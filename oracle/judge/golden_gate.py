"""Gate `golden`: is the golden itself fit to judge by?

Compared: its digests again, the checkpoint's digest, every generated id with the lowest-id argmax of its stored logits,
the order of the stored logits, text with ids where the tokenizers library is installed, chains for short periods, and
the simulated index faults its chains must expose.
Exact. It cannot see a reference that is wrong in itself: goldens are only as right as `oracle/kolibri1`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from oracle.errors import KolibriError
from oracle.golden.evidence import PromptEvidence
from oracle.golden.format import GoldenDocument
from oracle.golden.sensitivity import measure, short_period
from oracle.judge.gate import Case, Finding, Judgement
from oracle.kolibri1.tokenizer import open_tokenizer, tokenizer_available


class GoldenGate:
    name = "golden"
    definition = {
        "version": 1,
        "metric": "digests, stored argmax, order of logits, ids of text, regularity",
        "statistic": "equality",
    }
    blind_to = "a reference that computes Kolibri-1 wrongly; text and ids where the tokenizers library is missing"
    needs_alignment = False

    def judge(self, case: Case) -> Judgement:
        document = case.golden.document
        findings: list[Finding] = []
        for what, expected, got in (
            ("digest", document.digest, document.content_digest()),
            ("recipe digest", document.recipe_digest, document.recipe.digest()),
            ("checkpoint digest", document.checkpoint_digest, case.checkpoint.digest()),
            ("digest that the run names", document.digest, case.run.golden_digest),
        ):
            if expected != got:
                findings.append(Finding(f"the golden's {what} does not hold", worst=got, allowed=expected))
        compared = 4
        for prompt in case.golden.prompts:
            findings += _chain_findings(prompt)
            compared += len(prompt.fed)
        sensitivity = measure({p.name: (p.prompt_ids, p.generated) for p in case.golden.prompts})
        compared += sensitivity.faults
        if sensitivity.hidden:
            hidden, faults = len(sensitivity.hidden), sensitivity.faults
            findings.append(
                Finding("the chains would not expose an index fault", sensitivity.hidden[0], count=hidden, of=faults)
            )
        read, texts = _text_findings(case)
        return Judgement(
            compared + texts,
            (*findings, *read),
            {
                "texts_tokenized": texts,
                "tokenizer": "present" if tokenizer_available() else "not installed: texts not compared",
            },
        )

    def plants(self, case: Case) -> dict[str, Case]:
        """The first prompt recorded off by one, out of order, too regular; the document edited, or another checkpoint's."""
        golden = case.golden
        first = golden.prompts[0]
        document = golden.document

        def with_first(**changes: Any) -> Case:
            return replace(case, golden=replace(golden, prompts=(replace(first, **changes), *golden.prompts[1:])))

        def with_document(edited: GoldenDocument) -> Case:
            return replace(case, golden=replace(golden, document=edited))

        constant = np.repeat(first.top_ids[-1:], len(first.fed), axis=0)
        swapped = [0, 2, 1, *range(3, first.top_ids.shape[1])]
        return {
            "a chain one late": with_first(generated=(*first.generated[1:], first.generated[0])),
            "stored logits out of order": with_first(top_logits=first.top_logits[:, swapped]),
            "a constant chain": with_first(generated=(int(constant[0, 0]),) * len(first.generated), top_ids=constant),
            "an edited document": with_document(document.model_copy(update={"probe_prompt": "another"})),
            "another checkpoint's": with_document(document.model_copy(update={"checkpoint_digest": "sha256:0"}).sealed()),
            "another golden's run": case.with_run(golden_digest="sha256:0"),
        }


def _chain_findings(prompt: PromptEvidence) -> list[Finding]:
    findings = []
    chain, start = np.array(prompt.generated), len(prompt.prompt_ids) - 1
    predicted = prompt.argmax[start:]
    if (wrong := predicted != chain).any():
        first = int(wrong.argmax())
        findings.append(
            Finding(
                "a generated id is not the argmax of its stored logits",
                f"{prompt.name}[{start + first}]",
                f"{chain[first]} for {predicted[first]}",
                "equal",
                int(wrong.sum()),
                len(wrong),
            )
        )
    falling = np.diff(prompt.top_logits, axis=1)
    rising_ids = np.diff(prompt.top_ids, axis=1) > 0
    if (wrong := (falling > 0) | ((falling == 0) & ~rising_ids)).any():
        row = int(wrong.any(axis=1).argmax())
        findings.append(
            Finding(
                "stored logits are not in falling order, lowest id first",
                f"{prompt.name}[{row}]",
                count=int(wrong.sum()),
                of=wrong.size,
            )
        )
    if period := short_period(prompt.generated):
        findings.append(Finding(f"the chain has period {period} and can show no index fault", prompt.name))
    return findings


def _text_findings(case: Case) -> tuple[list[Finding], int]:
    texts = [p for p in case.golden.prompts if p.text is not None]
    if not texts or not tokenizer_available():
        return [], 0
    try:
        encode = open_tokenizer(case.checkpoint.folder)
    except KolibriError as error:
        return [Finding(f"the tokenizer cannot be read: {error}", verdict="incomplete")], 0
    wrong = [p.name for p in texts if p.text is not None and encode(p.text) != p.prompt_ids]
    findings = [Finding("a prompt's text no longer gives its ids", wrong[0], count=len(wrong), of=len(texts))] if wrong else []
    return findings, len(texts)
