"""The ids that a bench feeds: real text where a golden is at hand, and the same on every machine."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, cycle, islice
from pathlib import Path

from oracle.errors import UsageError
from oracle.golden.format import load_golden
from oracle.kolibri1.config import read_config
from oracle.serialization import canonical_json, digest

DEFAULT_IDS = 128
STRIDE, OFFSET, MODULUS = 7919, 13, 128_000
"""Of the ids for a checkpoint without a golden: those of the decode bench of a Kolibri-1 port to a P150."""


@dataclass(frozen=True)
class BenchPrompt:
    """Ids, and in words where they are from."""

    ids: tuple[int, ...]
    source: str

    @property
    def digest(self) -> str:
        return ids_digest(self.ids)


def ids_digest(ids: tuple[int, ...]) -> str:
    """sha256 of the ids as a JSON array without spaces and one newline: `printf '[3,1,2]\\n' | sha256sum`."""
    return digest(canonical_json(list(ids)))


IDS_SERIALIZATION = "sha256 of the ids as a JSON array of decimal numbers without spaces, then one newline, in UTF-8"


def bench_prompt(checkpoint: Path, golden: Path, count: int, steps: int) -> BenchPrompt:
    """`count` ids, and room for `steps` more.

    Of a golden: the beginning of its first prompt that is long enough together with its chain; where none is, all of them
    joined in their order, and again from the first.

    Raises:
        UsageError: the sequence outgrows the positions that the checkpoint declares.
        GoldenError: the golden is damaged.
        CheckpointError: no checkpoint there.
    """
    config = read_config(checkpoint)
    if count + steps > config.max_position_embeddings:
        raise UsageError(
            f"{count} prompt ids and {steps} steps are more than the {config.max_position_embeddings} positions of "
            f"{checkpoint}; use a smaller --prompt-ids or --steps"
        )
    if not golden.is_dir():
        modulus = min(MODULUS, config.vocab_size)
        ids = tuple((index * STRIDE + OFFSET) % modulus for index in range(count))
        return BenchPrompt(ids, f"({STRIDE} i + {OFFSET}) mod {modulus}, for want of a golden")
    loaded = load_golden(golden)
    for prompt in loaded.prompts:
        if len(whole := prompt.prompt_ids + prompt.generated) >= count:
            return BenchPrompt(whole[:count], f"prompt {prompt.name!r} and its chain, of golden {loaded.digest}")
    joined = chain.from_iterable(prompt.prompt_ids + prompt.generated for prompt in cycle(loaded.prompts))
    return BenchPrompt(tuple(islice(joined, count)), f"all prompts and their chains, joined, of golden {loaded.digest}")
