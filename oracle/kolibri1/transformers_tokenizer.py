"""The checkpoint's tokenizer and chat template as transformers reads them: what users of the release are given.

Needed to make goldens from texts and chats, and to render a chat again. Judging does without: a golden stores the rendered
text, and `oracle.kolibri1.tokenizer` gives that text's ids by the `tokenizers` library alone. Both must agree on every text
that a golden holds, so `encode` asks both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from oracle.errors import CheckpointError, UsageError
from oracle.kolibri1.tokenizer import open_tokenizer, require_chat_template, transformers_available


class TransformersTokenizer:
    """transformers' `AutoTokenizer` of one folder, from its own files alone: nothing is fetched and no code of it is run."""

    def __init__(self, folder: Path) -> None:
        """Open the tokenizer of `folder`.

        Raises:
            UsageError: transformers is not installed.
            CheckpointError: a tokenizer file is missing or damaged, or the tokenizer adds ids to what it is given.
        """
        if not transformers_available():
            raise UsageError("texts and chats need transformers; install it with `pip install 'kolibri-oracle[reference]'`")
        self._folder = folder
        self._library = open_tokenizer(folder)
        from transformers import AutoTokenizer

        try:
            # `fix_mistral_regex` stays unset: transformers' advice to set it is meant for other models and changes ids.
            self._tokenizer: Any = AutoTokenizer.from_pretrained(
                str(folder.absolute()), local_files_only=True, trust_remote_code=False
            )
        except Exception as error:  # bare errors of many kinds, some over several lines
            raise CheckpointError(f"transformers cannot read the tokenizer of {folder} ({_line(error)}); restore it") from None
        if added := self._tokenizer("")["input_ids"]:
            raise CheckpointError(
                f"the tokenizer of {folder} adds ids to every text ({added}), Kolibri-1's adds none and has no BOS; restore it"
            )

    def encode(self, text: str) -> tuple[int, ...]:
        """The ids of `text` and nothing else.

        Raises:
            CheckpointError: the ids do not decode to `text`, or the `tokenizers` library alone gives other ids.
        """
        ids = tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"])
        if self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False) != text:
            raise CheckpointError(
                f"the tokenizer of {self._folder} changes a text: its ids do not decode to what it was given; restore it"
            )
        if ids != self._library(text):
            raise CheckpointError(
                f"transformers and the tokenizers library read {self._folder / 'tokenizer.json'} differently; restore the "
                "tokenizer's files, or install the versions that constraints.txt pins"
            )
        return ids

    def render(self, messages: Sequence[Mapping[str, str]], reasoning_effort: str | None) -> str:
        """The text that the checkpoint's chat template makes of `messages`, up to where the assistant's turn begins.

        Args:
            messages: role and content of each turn.
            reasoning_effort: None leaves it to the template.

        Raises:
            CheckpointError: the folder has no chat template.
            UsageError: the template refuses the messages.
        """
        require_chat_template(self._folder)
        effort = {} if reasoning_effort is None else {"reasoning_effort": reasoning_effort}
        turns = [dict(message) for message in messages]
        try:
            return self._tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True, **effort)
        except Exception as error:  # jinja2's errors, and whatever a template's expressions raise
            raise UsageError(
                f"the chat template of {self._folder} refuses the messages ({_line(error)}); change them, or restore the file"
            ) from None


def _line(error: Exception) -> str:
    """The first line of an error's message, or its name."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
