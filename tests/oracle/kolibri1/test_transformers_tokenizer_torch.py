"""transformers and the tokenizers library give every text the same ids, and neither adds one; chats need a chat template."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, normalizers, processors
from transformers import AutoTokenizer

import oracle.kolibri1.transformers_tokenizer as module
from goldens import mini_checkpoint
from oracle.errors import CheckpointError, UsageError
from oracle.kolibri1.tokenizer import CHAT_TEMPLATE, open_tokenizer
from oracle.kolibri1.transformers_tokenizer import TransformersTokenizer

FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", CHAT_TEMPLATE)
ADDED = ["<|text|>", "<|endoftext|>", "<|pad|>", "<|chat|>", "<|im_start|>", "<|/role|>", "<|im_end|>", "<think>", "</think>"]
PIECES = [
    *ADDED,
    "<|im_",
    "end|>",
    " ",
    "  ",
    "\n",
    "\r\n",
    "\n\n",
    "\t",
    "'s",
    "'LL",
    " .",
    " ,",
    "12 + 3",
    "Grüße",
    "é",
    "\u00a0",
    "😀",
]
LIBRARY = open_tokenizer(mini_checkpoint())
PLAIN = AutoTokenizer.from_pretrained(mini_checkpoint(), local_files_only=True)
HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def theirs() -> TransformersTokenizer:
    return TransformersTokenizer(mini_checkpoint())


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The mini's tokenizer files, which the test may change."""
    for file in FILES:
        shutil.copy(mini_checkpoint() / file, tmp_path / file)
    return tmp_path


def change(path: Path, edit: Any) -> None:
    """Edit a JSON file."""
    value = json.loads(path.read_text())
    edit(value)
    path.write_text(json.dumps(value))


def save(folder: Path, edit: Any) -> None:
    """Edit the tokenizer of a folder."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    edit(tokenizer)
    tokenizer.save(str(folder / "tokenizer.json"))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=8), st.from_regex(r"[0-9 .,+=-]{1,9}", fullmatch=True))))
@example(["<|im_start|>user\n", "Hi there , you 's .", "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"])
@example(["\x00", "\ufeff", "\ufffd", "\u2028", "\u0301"])
def test_judging_needs_no_transformers_to_get_the_ids_that_the_golden_was_made_with(
    theirs: TransformersTokenizer, pieces: list[str]
) -> None:
    text = "".join(pieces)
    ids = theirs.encode(text)
    assert ids == LIBRARY(text)
    assert list(ids) == PLAIN(text)["input_ids"]


def test_no_text_gets_a_bos_and_special_tokens_in_a_text_count_once(theirs: TransformersTokenizer) -> None:
    assert theirs.encode("") == ()
    assert theirs.encode("<|im_start|><|im_end|>") == (507, 509)
    assert theirs.encode("B") == (33,)


def test_a_tokenizer_that_adds_a_bos_is_refused(copy: Path) -> None:
    bos = processors.TemplateProcessing(single="<|text|> $A", special_tokens=[("<|text|>", 503)])
    save(copy, lambda tokenizer: setattr(tokenizer, "post_processor", bos))
    with pytest.raises(CheckpointError, match=r"adds ids to every text \(\[503\]\), Kolibri-1's adds none and has no BOS"):
        TransformersTokenizer(copy)


def test_a_tokenizer_that_changes_a_text_is_refused(copy: Path) -> None:
    save(copy, lambda tokenizer: setattr(tokenizer, "normalizer", normalizers.Lowercase()))
    tokenizer = TransformersTokenizer(copy)
    assert tokenizer.encode("hello")
    with pytest.raises(CheckpointError, match="changes a text: its ids do not decode to what it was given"):
        tokenizer.encode("Hello")


def test_a_tokenizer_that_the_two_libraries_read_differently_is_refused(copy: Path) -> None:
    """transformers adds tokens that only its own config names; a host that judges without it would not know them."""
    token = {"content": "Hello", "special": False, "normalized": False, "lstrip": False, "rstrip": False, "single_word": False}
    change(copy / "tokenizer_config.json", lambda config: config.update(added_tokens_decoder={"512": token}))
    tokenizer = TransformersTokenizer(copy)
    assert tokenizer.encode("other") == open_tokenizer(copy)("other")
    with pytest.raises(CheckpointError, match=r"transformers and the tokenizers library read .*tokenizer\.json differently"):
        tokenizer.encode("Hello")


@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json"])
def test_a_damaged_file_is_refused_in_one_line(copy: Path, file: str) -> None:
    (copy / file).write_text("{")
    with pytest.raises(CheckpointError) as caught:
        TransformersTokenizer(copy)
    assert str(copy) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_tokenizer_that_brings_code_is_refused_and_not_asked_about(copy: Path) -> None:
    change(copy / "tokenizer_config.json", lambda config: config.update(auto_map={"AutoTokenizer": ["code.Mine", "code.Mine"]}))
    (copy / "code.py").write_text("raise SystemExit('ran')\n")
    change(copy / "tokenizer_config.json", lambda config: config.update(tokenizer_class="Mine"))
    with pytest.raises(CheckpointError, match="transformers cannot read the tokenizer"):
        TransformersTokenizer(copy)


def test_without_transformers_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "transformers_available", lambda: False)
    with pytest.raises(UsageError, match=r"need transformers; install it with `pip install 'kolibri-oracle\[reference\]'`"):
        TransformersTokenizer(mini_checkpoint())


def test_a_chat_is_rendered_by_the_folders_own_template(copy: Path) -> None:
    (copy / CHAT_TEMPLATE).write_text(
        "{{ messages[0].role }}:{{ messages[0].content }}:{{ reasoning_effort is defined }}:"
        "{{ reasoning_effort }}:{{ add_generation_prompt }}"
    )
    tokenizer = TransformersTokenizer(copy)
    assert tokenizer.render(HELLO, None) == "user:Hello:False::True"
    assert tokenizer.render(HELLO, "low") == "user:Hello:True:low:True"


def test_a_template_inside_the_tokenizers_config_is_rendered_too(copy: Path) -> None:
    (copy / CHAT_TEMPLATE).unlink()
    change(copy / "tokenizer_config.json", lambda config: config.update(chat_template="inside: {{ messages[0].content }}"))
    assert TransformersTokenizer(copy).render(HELLO, None) == "inside: Hello"


def test_a_chat_without_a_template_is_refused_and_a_text_is_not(copy: Path) -> None:
    (copy / CHAT_TEMPLATE).unlink()
    tokenizer = TransformersTokenizer(copy)
    assert tokenizer.encode("Hello")
    with pytest.raises(CheckpointError, match=r"has no chat template, neither chat_template\.jinja nor one in"):
        tokenizer.render(HELLO, None)


@pytest.mark.parametrize(
    ("template", "named"),
    [
        ("{{ raise_exception('no such role\\nhere') }}", "no such role"),
        ("{{ messages[7].content }}", "has no element 7"),
        ("{{ messages[0].content + 1 }}", "can only concatenate str"),
        ("{% if %}", "Expected an expression"),
    ],
)
def test_messages_that_the_template_refuses_are_refused_in_one_line(copy: Path, template: str, named: str) -> None:
    (copy / CHAT_TEMPLATE).write_text(template)
    with pytest.raises(UsageError) as caught:
        TransformersTokenizer(copy).render(HELLO, None)
    message = str(caught.value)
    assert f"the chat template of {copy} refuses the messages (" in message
    assert named in message
    assert "\n" not in message
