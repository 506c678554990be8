"""Choose the mini golden's prompts: `python training/choose_prompts.py CHECKPOINT OUT.jsonl` (about 6 minutes on one core).

Candidates are beginnings of texts that the checkpoint was not trained on. Each is continued by the reference and compared
with the bf16 floor's arms. From every kind of document the candidates with the most near ties are taken, so that the floor
is measured where port and reference may really disagree. Kept out: chains with a short period, and flips whose regret
stands alone (above `LARGEST_REGRET`): one such flip would widen the band for all others.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import corpus
import numpy as np
import torch
from tokenizers import Tokenizer

from oracle.golden.passes import TruthPass, compare_arm, truth_pass
from oracle.golden.prompts import prepare_prompts
from oracle.golden.recipe import PromptSpec
from oracle.golden.regularity import regular
from oracle.kolibri1.arms import floor_arms
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.reference import Reference

SEED = 777
CANDIDATES = 300
NEAR = 0.02
LARGEST_REGRET = 0.0215
# Kind of document, how many prompts of it, ids to generate.
KINDS: tuple[tuple[str, int, int], ...] = (
    ("one-id", 1, 64),
    ("two-ids", 1, 48),
    ("story-en", 2, 64),
    ("story-de", 1, 64),
    ("coin-en", 1, 64),
    ("coin-de", 2, 64),
    ("sums-en", 1, 48),
    ("sums-de", 1, 64),
    ("digits", 1, 40),
    ("counting", 1, 56),
    ("copying", 1, 32),
    ("proverb", 1, 96),
    ("chat", 1, 32),
)
BEGINNINGS = {
    "Sums:": "sums-en",
    "Summen:": "sums-de",
    "Reihe:": "digits",
    "Zählen:": "counting",
    "Copy:": "copying",
    "The early": "proverb",
    "All that": "proverb",
    "A journey": "proverb",
    corpus.START_OF_TURN: "chat",
}
NAMES = ["Anna", "Ben", "Clara", "David", "Emma", "Felix", "Greta", "Hugo", "Ida", "Jonas"]


@dataclass(frozen=True)
class Candidate:
    """One continued beginning: near ties below `NEAR` nats, and the largest regret of a floor arm's flip."""

    text: str
    length: int
    near: int
    largest_regret: float


def beginnings(tokenizer: Tokenizer, seed: int = SEED, count: int = CANDIDATES) -> Iterator[str]:
    """Texts cut at a random id, one to three documents long."""
    rng = random.Random(seed)
    documents = list(corpus.documents(seed, 4 * count))
    for index in range(count):
        text = corpus.END_OF_TURN.join(documents[4 * index : 4 * index + rng.choice([1, 1, 1, 2, 3])])
        ids = tokenizer.encode(text).ids
        # Every tenth is one or two ids long.
        cut = index // 10 % 2 + 1 if index % 10 == 0 else rng.randrange(3, max(4, min(len(ids), 90)))
        beginning = tokenizer.decode(ids[:cut], skip_special_tokens=False)
        if tokenizer.encode(beginning).ids == ids[:cut]:
            yield beginning


def continued(checkpoint: Checkpoint, texts: list[str], new_tokens: int) -> list[TruthPass]:
    """The reference's evidence on each beginning, without those whose chain is too regular."""
    reference = Reference(checkpoint)
    out = []
    for index, text in enumerate(texts):
        name = f"candidate-{index}"
        ids = prepare_prompts(checkpoint, [PromptSpec(name=name, text=text, new_tokens=new_tokens)])[0].ids
        truth = truth_pass(reference, name, text, ids, new_tokens)
        if regular(truth.evidence.generated) is None:
            out.append(truth)
        if index % 25 == 0:
            print(f"{index} of {len(texts)} candidates", file=sys.stderr, flush=True)
    return out


def measure(checkpoint: Checkpoint, truths: list[TruthPass]) -> list[Candidate]:
    """Near ties and the floor's largest regret of each."""
    largest = np.zeros(len(truths))
    for arm in floor_arms("bf16"):
        print(f"arm {arm.name}", file=sys.stderr, flush=True)
        reference = Reference(checkpoint, arm)
        largest = np.maximum(largest, [compare_arm(reference, t.evidence, t.probes).regret.max() for t in truths])
    return [
        Candidate(str(e.text), len(e.prompt_ids), int(np.count_nonzero(e.margin < NEAR)), float(regret))
        for e, regret in zip((truth.evidence for truth in truths), largest, strict=True)
    ]


def kind_of(candidate: Candidate) -> str:
    """The kind of document a candidate begins with."""
    if candidate.length <= 2:
        return "one-id" if candidate.length == 1 else "two-ids"
    words = candidate.text.split()
    if words[0] in NAMES and len(words) > 3:
        return {"throws": "coin-en", "wirft": "coin-de"}.get(words[1], "story-de" if words[2] == "den" else "story-en")
    return next((kind for beginning, kind in BEGINNINGS.items() if candidate.text.startswith(beginning)), "other")


def main() -> None:
    parser = argparse.ArgumentParser(description="Choose the prompts of the mini golden.")
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    checkpoint = Checkpoint.open(options.checkpoint)
    tokenizer = Tokenizer.from_file(str(options.checkpoint / "tokenizer.json"))
    candidates = measure(checkpoint, continued(checkpoint, list(beginnings(tokenizer)), 64))
    pool = [c for c in candidates if c.largest_regret <= LARGEST_REGRET]
    lines: list[str] = []
    texts: list[str] = []
    for kind, count, new_tokens in KINDS:
        # A beginning of another prompt would only repeat its contexts.
        fitting = [c for c in pool if kind_of(c) == kind and not any(c.text.startswith(taken) for taken in texts)]
        fitting.sort(key=lambda c: (-c.near - 4 * (c.largest_regret > NEAR / 2), c.text))
        for number, chosen in enumerate(fitting[:count], 1):
            texts.append(chosen.text)
            name = f"{kind}-{number}" if count > 1 else kind
            lines.append(json.dumps({"name": name, "text": chosen.text, "new_tokens": new_tokens}, ensure_ascii=False))
            print(f"{name}: {chosen.length} ids, {chosen.near} near ties, largest regret {chosen.largest_regret:.4f}")
        if len(fitting) < count:
            raise SystemExit(f"only {len(fitting)} candidates of kind {kind}; raise CANDIDATES")
    options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
