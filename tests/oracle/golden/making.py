"""Prompts and a made golden that several modules' tests share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from oracle.errors import GoldenError
from oracle.golden.format import Golden
from oracle.golden.recipe import Message, PromptSpec
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.synthetic import write_synthetic

_RNG = np.random.default_rng(0)
PROMPTS = tuple(
    PromptSpec(name=f"p{index}", ids=tuple(_RNG.integers(0, 96, length).tolist()), new_tokens=20)
    for index, length in enumerate((7, 3, 1))
)
QUESTION = (Message(role="user", content="Was ist die Hauptstadt von Spanien?"),)
CHAT = PromptSpec(name="chat", messages=QUESTION, reasoning_effort="none", new_tokens=16)
TEXT = PromptSpec(name="text", text="Sums: 5 + 0 = 5, 7 +", new_tokens=16)
SEEDS = range(16)


@dataclass(frozen=True)
class Made:
    """A checkpoint, and the golden made of it."""

    folder: Path
    checkpoint: Checkpoint
    golden: Golden
    packed: bytes


def make_first(parent: Path) -> Made:
    """The golden of the first seed that gives one: of random weights some chains repeat, and some floors are too narrow."""
    from oracle.golden import make

    refusals = []
    for seed in SEEDS:
        folder = write_synthetic(parent / str(seed), seed=seed)
        checkpoint = Checkpoint.open(folder)
        try:
            return Made(folder, checkpoint, *make.make_golden(make.plan(checkpoint, PROMPTS)))
        except GoldenError as error:
            refusals.append(str(error))
    raise AssertionError(refusals)


def write_prompts(path: Path, prompts: Sequence[PromptSpec] = PROMPTS) -> Path:
    path.write_text("".join(p.model_dump_json(exclude_none=True) + "\n" for p in prompts))
    return path


def files(folder: Path) -> dict[str, bytes | None]:
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


def command(folder: Path, **changed: str) -> list[str]:
    options = {"--golden": "made", "--checkpoint": str(folder), "--prompts": "good.jsonl"} | changed
    return ["golden", "make", *(word for pair in options.items() for word in pair)]
