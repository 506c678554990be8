"""The shipped prompts' texts through the checkpoint's own tokenizer; the tokenizers library comes with transformers."""

from __future__ import annotations

from judge_cases import headlines, with_evidence

from oracle.judge.gate import Case
from oracle.judge.golden_gate import GoldenGate


def test_each_shipped_text_gives_its_ids(case: Case) -> None:
    judgement = GoldenGate().judge(case)
    texts = [p for p in case.golden.prompts if p.text is not None]
    assert (judgement.verdict, judgement.measured["texts_tokenized"]) == ("pass", len(texts))
    assert texts


def test_one_letter_more_in_a_text_is_found(case: Case) -> None:
    prompt = next(p for p in case.golden.prompts if p.text is not None)
    judgement = GoldenGate().judge(with_evidence(case, prompt, text=f"{prompt.text}x"))
    assert headlines(judgement) == ["a prompt's text no longer gives its ids"]
