"""Prompts become ids by the checkpoint's own files: texts are tokenized, chats rendered first, ids taken as they are."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from goldens import mini_checkpoint
from oracle.errors import CheckpointError, UsageError
from oracle.golden import prompts as module
from oracle.golden.prompts import PreparedPrompt, prepare_prompts, stop_ids
from oracle.golden.recipe import Message, PromptSpec
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.tokenizer import CHAT_TEMPLATE, open_tokenizer

CHAT = PromptSpec(name="chat", messages=(Message(role="user", content="Hallo"),), reasoning_effort="none", new_tokens=4)
TEXT = PromptSpec(name="text", text="<|im_start|>user\nHallo", new_tokens=4)
IDS = PromptSpec(name="ids", ids=(3, 509), new_tokens=4)


@pytest.fixture(scope="module")
def mini() -> Checkpoint:
    return Checkpoint.open(mini_checkpoint())


@pytest.fixture
def mini_copy(tmp_path: Path) -> Path:
    """The mini without its golden, for a test that changes a file."""
    return shutil.copytree(mini_checkpoint(), tmp_path / "mini", ignore=shutil.ignore_patterns("golden"))


def test_each_kind_becomes_its_text_and_its_ids_in_order(mini: Checkpoint) -> None:
    encode = open_tokenizer(mini_checkpoint())
    rendered = (
        "<|im_start|>system\n# Reasoning effort\n\nThinking is disabled for this conversation.\n<|im_end|>\n"
        "<|im_start|>user\nHallo<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    text = "<|im_start|>user\nHallo"
    assert prepare_prompts(mini, [IDS, CHAT, TEXT]) == [
        PreparedPrompt(None, (3, 509)),
        PreparedPrompt(rendered, encode(rendered)),
        PreparedPrompt(text, encode(text)),
    ]


def test_the_effort_reaches_the_template(mini: Checkpoint) -> None:
    efforts = ("none", "low", "medium", "high", None)
    chats = [CHAT.model_copy(update={"reasoning_effort": effort}) for effort in efforts]
    texts = [prompt.text for prompt in prepare_prompts(mini, chats)]
    assert len(set(texts)) == 4
    assert texts[3] == texts[4]


def test_ids_alone_need_no_tokenizer(tiny: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(folder: Path) -> None:
        raise AssertionError(folder)

    monkeypatch.setattr(module, "TransformersTokenizer", refuse)
    ids = PromptSpec(name="ids", ids=(3, 95), new_tokens=4)
    assert prepare_prompts(tiny, [ids]) == [PreparedPrompt(None, (3, 95))]


def test_text_without_a_tokenizer_is_refused(tiny: Checkpoint) -> None:
    for prompt in (TEXT, CHAT):
        with pytest.raises(CheckpointError, match=r"tokenizer\.json cannot be read"):
            prepare_prompts(tiny, [prompt])


def test_a_chat_without_a_template_is_refused_with_its_prompt(mini_copy: Path) -> None:
    (mini_copy / CHAT_TEMPLATE).unlink()
    checkpoint = Checkpoint.open(mini_copy)
    assert prepare_prompts(checkpoint, [TEXT])
    with pytest.raises(CheckpointError, match=r"prompt chat: .* has no chat template"):
        prepare_prompts(checkpoint, [TEXT, CHAT])


def test_messages_that_the_template_refuses_are_refused_with_their_prompt(mini: Checkpoint) -> None:
    turns = (Message(role="user", content="a"), Message(role="system", content="b"))
    with pytest.raises(UsageError, match=r"prompt late: the chat template of .* refuses the messages .*a system message"):
        prepare_prompts(mini, [CHAT.model_copy(update={"name": "late", "messages": turns})])


def test_a_rendered_chat_that_outgrows_the_context_is_refused(mini: Checkpoint) -> None:
    length = len(prepare_prompts(mini, [CHAT])[0].ids)
    assert prepare_prompts(mini, [CHAT.model_copy(update={"new_tokens": 4096 - length})])
    with pytest.raises(UsageError, match=f"prompt chat: {length} ids and {4097 - length} new ones exceed the context of 4096"):
        prepare_prompts(mini, [CHAT.model_copy(update={"new_tokens": 4097 - length})])


def test_chains_stop_at_the_checkpoints_eos_ids_only_where_that_is_asked(mini: Checkpoint) -> None:
    assert stop_ids(mini, False) == ()
    assert stop_ids(mini, True) == (504, 509)


def test_stopping_is_refused_where_the_checkpoint_names_no_eos_id(tiny: Checkpoint) -> None:
    nameless = Checkpoint(tiny.folder, tiny.config.model_copy(update={"eos_token_id": None}), {})
    assert stop_ids(nameless, False) == ()
    with pytest.raises(
        UsageError, match=r"names no eos id in config\.json or generation_config\.json; leave out --stop-at-eos"
    ):
        stop_ids(nameless, True)
