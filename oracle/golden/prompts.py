"""From the recipe's prompts to ids: texts are tokenized, chats rendered and tokenized, by the checkpoint's own files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from oracle.errors import KolibriError, UsageError
from oracle.golden.recipe import PromptSpec
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.eos import eos_ids
from oracle.kolibri1.reference import check_ids
from oracle.kolibri1.transformers_tokenizer import TransformersTokenizer


@dataclass(frozen=True)
class PreparedPrompt:
    """What a prompt's golden begins with.

    Attributes:
        text: what the ids were made from, a chat as it was rendered; None where the prompt gives ids.
        ids: at least one, all of the vocabulary.
    """

    text: str | None
    ids: tuple[int, ...]


def prepare_prompts(checkpoint: Checkpoint, prompts: Sequence[PromptSpec]) -> list[PreparedPrompt]:
    """Each prompt's text and ids, checked against vocabulary and context.

    Raises:
        UsageError: ids outside the vocabulary or beyond the context, messages that the chat template refuses, or texts
            without transformers; the message names the prompt.
        CheckpointError: the tokenizer or the chat template is missing or damaged.
    """
    tokenizer = TransformersTokenizer(checkpoint.folder) if any(prompt.ids is None for prompt in prompts) else None
    prepared = []
    for prompt in prompts:
        try:
            ready = _prepare(tokenizer, prompt)
            check_ids(list(ready.ids), checkpoint.config.vocab_size)
        except KolibriError as error:
            raise type(error)(f"prompt {prompt.name}: {error}") from None
        if len(ready.ids) + prompt.new_tokens > checkpoint.config.max_position_embeddings:
            raise UsageError(
                f"prompt {prompt.name}: {len(ready.ids)} ids and {prompt.new_tokens} new ones exceed the context of "
                f"{checkpoint.config.max_position_embeddings}; ask for fewer"
            )
        prepared.append(ready)
    return prepared


def stop_ids(checkpoint: Checkpoint, stop_at_eos: bool) -> tuple[int, ...]:
    """The ids that chains end at: the checkpoint's eos ids if that is asked for, else none.

    Raises:
        UsageError: it is asked for, and the checkpoint names no eos id.
    """
    ids = eos_ids(checkpoint.folder, checkpoint.config) if stop_at_eos else ()
    if stop_at_eos and not ids:
        raise UsageError(
            f"{checkpoint.folder} names no eos id in config.json or generation_config.json; leave out --stop-at-eos"
        )
    return ids


def _prepare(tokenizer: TransformersTokenizer | None, prompt: PromptSpec) -> PreparedPrompt:
    if tokenizer is None or prompt.ids is not None:
        return PreparedPrompt(None, prompt.ids or ())
    text = prompt.text or tokenizer.render(prompt.turns, prompt.reasoning_effort)
    return PreparedPrompt(text, tokenizer.encode(text))
