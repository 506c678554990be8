"""A checkpoint with chats to judge has a chat template in one of the two places where transformers looks for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from goldens import mini_checkpoint
from oracle.errors import CheckpointError
from oracle.kolibri1.tokenizer import CHAT_TEMPLATE, require_chat_template


def test_the_mini_has_one() -> None:
    require_chat_template(mini_checkpoint())


def test_a_template_inside_the_tokenizers_config_counts(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    require_chat_template(tmp_path)


@pytest.mark.parametrize("config", [None, {}, {"chat_template": None}, {"chat_template": ""}])
def test_a_folder_without_one_is_refused(tmp_path: Path, config: dict | None) -> None:
    if config is not None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(
        CheckpointError, match=r"has no chat template, neither chat_template\.jinja nor one in tokenizer_config"
    ):
        require_chat_template(tmp_path)
    (tmp_path / CHAT_TEMPLATE).write_text("x")
    require_chat_template(tmp_path)


def test_a_damaged_tokenizer_config_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json is damaged .*; restore it from the release"):
        require_chat_template(tmp_path)
