"""The shipped prompts' texts through the checkpoint's own tokenizer; the tokenizers library comes with transformers."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from judge_cases import headlines, with_evidence

from goldens import mini_checkpoint
from oracle.errors import CheckpointError
from oracle.judge.gate import Case
from oracle.judge.golden_gate import GoldenGate
from oracle.judge.session import SessionOptions, open_session


def test_each_shipped_text_gives_its_ids(case: Case) -> None:
    judgement = GoldenGate().judge(case)
    texts = [p for p in case.golden.prompts if p.text is not None]
    assert (judgement.verdict, judgement.measured["texts_tokenized"]) == ("pass", len(texts))
    assert texts


def test_one_letter_more_in_a_text_is_found(case: Case) -> None:
    prompt = next(p for p in case.golden.prompts if p.text is not None)
    judgement = GoldenGate().judge(with_evidence(case, prompt, text=f"{prompt.text}x"))
    assert headlines(judgement) == ["a prompt's text no longer gives its ids"]


def test_a_missing_tokenizer_is_an_error_and_no_text_that_was_not_compared(tmp_path: Path) -> None:
    folder = tmp_path / "mini"
    shutil.copytree(mini_checkpoint(), folder, ignore=shutil.ignore_patterns("tokenizer.json"))
    with pytest.raises(CheckpointError, match=r"tokenizer\.json cannot be read"):
        open_session(SessionOptions(folder, folder / "golden", "perfect"))
