"""The checkpoint's tokenizer: transformers' ids, no BOS, and damage refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from goldens import mini_checkpoint
from oracle.errors import CheckpointError
from oracle.golden.format import load_golden
from oracle.kolibri1.tokenizer import open_tokenizer


def test_the_minis_tokenizer_is_transformers() -> None:
    golden = load_golden(mini_checkpoint() / "golden")
    theirs = AutoTokenizer.from_pretrained(mini_checkpoint())
    encode = open_tokenizer(mini_checkpoint())
    texts = ["Hallo", "Grüße, 12 + 3 = 15\n\n", "", *(p.text for p in golden.prompts if p.text is not None)]
    assert len(texts) > 10
    for text in texts:
        assert list(encode(text)) == theirs(text, add_special_tokens=False)["input_ids"] == theirs(text)["input_ids"]
    for prompt in golden.prompts:
        if prompt.text is not None:
            assert encode(prompt.text) == prompt.prompt_ids


@pytest.mark.parametrize("content", [None, "", "{}", "version https://git-lfs"])
def test_a_damaged_tokenizer_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json cannot be read .*; restore it from the release"):
        open_tokenizer(tmp_path)
