"""The recipe: everything that decides a golden's bytes, besides the checkpoint. Its digest names it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)

from oracle.errors import UsageError
from oracle.golden.evidence import TOP_N
from oracle.golden.sketch import SKETCH_ROWS, SKETCH_SEED
from oracle.serialization import canonical_json, digest
from oracle.subjects.protocol import NumericClass

_STRICT = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""The efforts the release's chat template distinguishes; it takes any other for `high`, so others are refused here."""


class _Recorded(BaseModel):
    """A part of the recipe whose digest does not change when this project learns to record more.

    Attributes:
        ADDED: fields younger than the first goldens; they are left out of the JSON where nothing is in them.
    """

    model_config = _STRICT

    ADDED: ClassVar[tuple[str, ...]] = ()

    @model_serializer(mode="wrap")
    def _without_unused(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in serialize(self).items() if value or name not in self.ADDED}


class Message(BaseModel):
    """One turn of a chat."""

    model_config = _STRICT

    role: Literal["system", "user", "assistant", "tool"]
    content: str

    @field_validator("content")
    @classmethod
    def _some_encodable(cls, content: str) -> str:
        if not content:
            raise ValueError("an empty message says nothing; leave it out")
        return _encodable(content)


class PromptSpec(_Recorded):
    """One prompt to make a golden of: a text, chat messages or ids, and how many ids to generate.

    Attributes:
        text: given to the tokenizer as it is; special tokens in it count as such, and none is added.
        messages: rendered to a text by the checkpoint's chat template, up to where the assistant's turn begins.
        reasoning_effort: for the chat template; None leaves it to the template.
        ids: fed as they are.
        new_tokens: ids to generate; fewer only where the recipe stops at eos ids.
    """

    ADDED = ("messages", "reasoning_effort")

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,63}$")
    text: str | None = None
    messages: tuple[Message, ...] | None = None
    reasoning_effort: ReasoningEffort | None = None
    ids: tuple[int, ...] | None = None
    new_tokens: int = Field(ge=1)

    @field_validator("text")
    @classmethod
    def _encodable(cls, text: str | None) -> str | None:
        return None if text is None else _encodable(text)

    @model_validator(mode="after")
    def _of_one_kind(self) -> PromptSpec:
        given = [value for value in (self.text, self.messages, self.ids) if value is not None]
        if len(given) != 1:
            raise ValueError("give exactly one of text, messages and ids")
        if not given[0]:
            raise ValueError("an empty prompt has no position to judge")
        if self.reasoning_effort is not None and self.messages is None:
            raise ValueError("reasoning_effort is for the chat template; give it with messages only")
        return self

    @property
    def turns(self) -> list[dict[str, str]]:
        """The messages as a chat template takes them; none where the prompt is no chat."""
        return [message.model_dump() for message in self.messages or ()]


class Recipe(_Recorded):
    """How a golden was made.

    Attributes:
        prompts: in order; their names are the golden's.
        truth: the reference's arm whose values are stored.
        tie_rule: which id wins among equal logits, and which expert among equal scores.
        top_n: logits stored per position.
        sketch_rows, sketch_seed: of the residual sketch.
        stop_at_eos: whether a chain ends with the first eos id in it; otherwise eos ids are ids like any other.
        eos_ids: the checkpoint's, rising, where chains stop at them; empty where they do not.
        floor_arms: by class, the arms its floor is measured on.
        versions: of the libraries whose arithmetic made the values.
    """

    ADDED = ("eos_ids",)

    prompts: tuple[PromptSpec, ...] = Field(min_length=1)
    truth: str
    tie_rule: Literal["lowest-id"] = "lowest-id"
    top_n: int = TOP_N
    sketch_rows: int = SKETCH_ROWS
    sketch_seed: int = SKETCH_SEED
    stop_at_eos: bool = False
    eos_ids: tuple[int, ...] = ()
    floor_arms: Mapping[NumericClass, tuple[str, ...]]
    versions: Mapping[str, str]

    @model_validator(mode="after")
    def _unique_names(self) -> Recipe:
        names = [prompt.name for prompt in self.prompts]
        if len(set(names)) != len(names):
            raise ValueError("prompt names must be unique")
        return self

    @model_validator(mode="after")
    def _eos_ids_where_chains_stop(self) -> Recipe:
        if self.stop_at_eos != bool(self.eos_ids):
            raise ValueError("eos_ids must name the ids that chains stop at, and be empty where they do not stop")
        if self.eos_ids != tuple(sorted({i for i in self.eos_ids if i >= 0})):
            raise ValueError("eos_ids must be rising and not negative")
        return self

    def digest(self) -> str:
        """`sha256:` over the canonical JSON."""
        return digest(canonical_json(self.model_dump(mode="json")))


def read_prompts(path: Path) -> tuple[PromptSpec, ...]:
    """Read a JSON Lines file of prompts, one `PromptSpec` per line.

    `{"name": ..., "new_tokens": N, ...}` with one of `"text": "..."`, `"ids": [...]` and
    `"messages": [{"role": ..., "content": ...}, ...]`, the last optionally with `"reasoning_effort": "..."`.

    Raises:
        UsageError: the file is missing or empty, or a line is no prompt; the message names the line.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # splitlines would also split inside texts
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read ({error}); pass a JSON Lines file of prompts") from None
    prompts: list[PromptSpec] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value: Any = json.loads(line)
            prompts.append(PromptSpec.model_validate(value))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "prompt"
            raise UsageError(f"{path}, line {number}: {where}: {first['msg']}") from None
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{path}, line {number} is not JSON ({error})") from None
    if not prompts:
        raise UsageError(f"{path} holds no prompts; a golden needs at least one")
    if len({prompt.name for prompt in prompts}) != len(prompts):
        raise UsageError(f"{path}: prompt names must be unique")
    return tuple(prompts)


def _encodable(text: str) -> str:
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError("it holds a lone surrogate, which no encoding has")
    return text
