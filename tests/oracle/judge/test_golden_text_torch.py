"""The golden's texts through the checkpoint's own tokenizer, its chats through transformers and the checkpoint's template."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from judge_cases import headlines, with_chat, with_evidence, without_chats

import oracle.judge.golden_gate as golden_gate
import oracle.judge.session as session
from goldens import mini_checkpoint
from oracle.errors import CheckpointError
from oracle.golden.recipe import Message, ReasoningEffort
from oracle.judge.controls import gate_controls
from oracle.judge.gate import Case
from oracle.judge.golden_gate import GoldenGate
from oracle.judge.session import SessionOptions, open_session
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.tokenizer import CHAT_TEMPLATE
from oracle.kolibri1.transformers_tokenizer import TransformersTokenizer

GATE = GoldenGate()
TURNS = (
    Message(role="user", content="Was ist die Hauptstadt von Italien?"),
    Message(role="assistant", content="<think>\nRom.\n</think>\n\nDie Hauptstadt von Italien ist Rom."),
    Message(role="user", content="What is the capital of Spain?"),
)
NOT_ITS_IDS = "a prompt's text no longer gives its ids"
NOT_ITS_TEXT = "a chat prompt's messages no longer give its text"


@pytest.fixture(scope="module")
def chat(case: Case) -> Case:
    """The shipped golden with a chat in place of its first prompt, and no other."""
    tokenizer = TransformersTokenizer(mini_checkpoint())
    text = tokenizer.render([turn.model_dump() for turn in TURNS], "none")
    return with_chat(without_chats(case), TURNS, "none", text, list(tokenizer.encode(text)))


def test_each_shipped_text_gives_its_ids(case: Case) -> None:
    judgement = GATE.judge(case)
    texts = [p for p in case.golden.prompts if p.text is not None]
    assert (judgement.verdict, judgement.measured["texts_tokenized"]) == ("pass", len(texts))
    assert texts


def test_one_letter_more_in_a_text_is_found(case: Case) -> None:
    prompt = next(p for p in case.golden.prompts if p.text is not None)
    judgement = GATE.judge(with_evidence(case, prompt, text=f"{prompt.text}x"))
    assert headlines(judgement) == [NOT_ITS_IDS]


def test_a_chat_is_rendered_again_and_counted(chat: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    judgement = GATE.judge(chat)
    assert judgement.findings == ()
    assert (
        judgement.measured.items()
        >= {
            "texts_tokenized": len(chat.golden.prompts),
            "tokenizer": "present",
            "chats_rendered": 1,
            "chat_template": "present",
        }.items()
    )
    monkeypatch.setattr(golden_gate, "transformers_available", lambda: False)
    assert judgement.compared == GATE.judge(chat).compared + 1


def test_messages_or_an_effort_that_give_another_text_are_found_though_every_digest_holds(chat: Case) -> None:
    first = chat.golden.prompts[0]
    text, ids = str(first.text), list(first.prompt_ids)
    forgeries: list[tuple[tuple[Message, ...], ReasoningEffort | None]] = [
        ((*TURNS[:2], Message(role="user", content="What is the capital of Spain")), "none"),
        (TURNS[2:], "none"),
        (TURNS, "low"),
        (TURNS, None),
    ]
    for messages, effort in forgeries:
        forged = with_chat(chat, messages, effort, text, ids)
        [finding] = GATE.judge(forged).findings
        assert (finding.headline, finding.where, finding.count, finding.of) == (NOT_ITS_TEXT, first.name, 1, 1)


def test_a_changed_rendered_text_is_found_by_its_ids_and_by_its_messages(chat: Case) -> None:
    first = chat.golden.prompts[0]
    assert headlines(GATE.judge(with_evidence(chat, first, text=f"{first.text}x"))) == [NOT_ITS_IDS, NOT_ITS_TEXT]


def test_a_fault_planted_in_texts_and_one_in_chats_are_each_found_by_their_own_comparison(chat: Case) -> None:
    found = {name: headlines(GATE.judge(planted)) for name, planted in GATE.plants(chat).items()}
    assert found["ids that their texts do not give"] == [NOT_ITS_IDS]
    assert found["messages that do not give their texts"] == [NOT_ITS_TEXT]
    assert all(control.behaved for control in gate_controls(GATE, chat))


def mini_without(folder: Path, file: str) -> Path:
    return shutil.copytree(mini_checkpoint(), folder / "mini", ignore=shutil.ignore_patterns(file))


def test_another_chat_template_is_found(chat: Case, tmp_path: Path) -> None:
    folder = mini_without(tmp_path, "golden")
    template = (folder / CHAT_TEMPLATE).read_text()
    (folder / CHAT_TEMPLATE).write_text(template.replace("disabled", "off"))
    assert headlines(GATE.judge(replace(chat, checkpoint=Checkpoint.open(folder)))) == [NOT_ITS_TEXT]


def test_chats_that_cannot_be_rendered_are_incomplete_and_not_green(chat: Case, tmp_path: Path) -> None:
    folder = mini_without(tmp_path, CHAT_TEMPLATE)
    judgement = GATE.judge(replace(chat, checkpoint=Checkpoint.open(folder)))
    assert judgement.verdict == "incomplete"
    assert judgement.measured["chats_rendered"] == 0
    assert "the chat prompts cannot be rendered" in judgement.findings[0].headline
    assert "has no chat template" in judgement.findings[0].headline


def test_a_golden_of_ids_alone_needs_neither_tokenizer_nor_template(case: Case, tmp_path: Path) -> None:
    folder = mini_without(tmp_path, "tokenizer.json")
    plain = without_chats(case)
    golden = replace(plain.golden, prompts=tuple(replace(p, text=None) for p in plain.golden.prompts))
    judgement = GATE.judge(replace(plain, golden=golden, checkpoint=Checkpoint.open(folder)))
    assert (judgement.verdict, judgement.measured["texts_tokenized"]) == ("pass", 0)


def test_a_missing_tokenizer_is_an_error_and_no_text_that_was_not_compared(tmp_path: Path) -> None:
    folder = mini_without(tmp_path, "tokenizer.json")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json cannot be read"):
        open_session(SessionOptions(folder, folder / "golden", "perfect"))


def test_a_missing_chat_template_is_an_error_only_where_the_golden_has_chats(
    case: Case, chat: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = mini_without(tmp_path, CHAT_TEMPLATE)
    options = SessionOptions(folder, folder / "golden", "perfect")
    with pytest.raises(CheckpointError, match="has no chat template"):
        open_session(options)
    document = case.golden.document
    texts = tuple(spec for spec in document.recipe.prompts if spec.messages is None)
    recipe = document.recipe.model_copy(update={"prompts": texts})
    plain = replace(without_chats(case).golden, document=document.model_copy(update={"recipe": recipe}))
    monkeypatch.setattr(session, "load_golden", lambda _folder: plain)
    assert open_session(options).golden.digest == case.golden.digest
    monkeypatch.setattr(session, "load_golden", lambda _folder: chat.golden)
    with pytest.raises(CheckpointError, match="has no chat template"):
        open_session(options)
    monkeypatch.setattr(session, "transformers_available", lambda: False)
    assert open_session(options).golden.digest == chat.golden.digest
