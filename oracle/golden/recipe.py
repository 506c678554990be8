"""The recipe: everything that decides a golden's bytes, besides the checkpoint. Its digest names it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from oracle.errors import UsageError
from oracle.golden.evidence import TOP_N
from oracle.golden.sketch import SKETCH_ROWS, SKETCH_SEED
from oracle.serialization import canonical_json, digest
from oracle.subjects.protocol import NumericClass

_STRICT = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class PromptSpec(BaseModel):
    """One prompt to make a golden of: text, or ids, and how many ids to generate."""

    model_config = _STRICT

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,63}$")
    text: str | None = None
    ids: tuple[int, ...] | None = None
    new_tokens: int = Field(ge=1)

    @field_validator("text")
    @classmethod
    def _encodable(cls, text: str | None) -> str | None:
        if text is not None and any("\ud800" <= character <= "\udfff" for character in text):
            raise ValueError("it holds a lone surrogate, which no encoding has")
        return text

    @model_validator(mode="after")
    def _text_or_ids(self) -> PromptSpec:
        if (self.text is None) == (self.ids is None):
            raise ValueError("give either text or ids")
        if self.text == "" or self.ids == ():
            raise ValueError("an empty prompt has no position to judge")
        return self


class Recipe(BaseModel):
    """How a golden was made.

    Attributes:
        prompts: in order; their names are the golden's.
        truth: the reference's arm whose values are stored.
        tie_rule: which id wins among equal logits, and which expert among equal scores.
        top_n: logits stored per position.
        sketch_rows, sketch_seed: of the residual sketch.
        stop_at_eos: whether chains end at the checkpoint's eos ids.
        floor_arms: by class, the arms its floor is measured on.
        versions: of the libraries whose arithmetic made the values.
    """

    model_config = _STRICT

    prompts: tuple[PromptSpec, ...] = Field(min_length=1)
    truth: str
    tie_rule: Literal["lowest-id"] = "lowest-id"
    top_n: int = TOP_N
    sketch_rows: int = SKETCH_ROWS
    sketch_seed: int = SKETCH_SEED
    stop_at_eos: Literal[False] = False
    floor_arms: Mapping[NumericClass, tuple[str, ...]]
    versions: Mapping[str, str]

    @model_validator(mode="after")
    def _unique_names(self) -> Recipe:
        names = [prompt.name for prompt in self.prompts]
        if len(set(names)) != len(names):
            raise ValueError("prompt names must be unique")
        return self

    def digest(self) -> str:
        """`sha256:` over the canonical JSON."""
        return digest(canonical_json(self.model_dump(mode="json")))


def read_prompts(path: Path) -> tuple[PromptSpec, ...]:
    """Read a JSON Lines file of prompts: `{"name": ..., "text": ... or "ids": [...], "new_tokens": N}` per line.

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
