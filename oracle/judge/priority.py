"""Which prompts tell most for their time: the order in which a session with a budget runs them.

From the golden alone, so that every machine chooses alike. A prompt's worth is the sum of three shares of the golden's:
its near ties (positions with a margin below `NARROW_MARGIN`), its router near ties (positions with a layer whose gap is
below `NARROW_GAP`), and the (layer, expert) pairs it is the first to use after those already chosen. Its price is its
positions: each is a step of the device. The next prompt is the one with the most worth per price, and among equals the
golden's first: greedy set cover, which no order chosen in advance betters by more than a logarithm (Chvatal 1979).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from oracle.golden.evidence import PromptEvidence

NARROW_MARGIN = 0.1
"""Nats. All flips of the shipped golden's bf16 floor lie below 0.03, of its other floors but one below this."""

NARROW_GAP = 0.003
"""Of selection scores. A tenth of the shipped golden's positions have such a layer."""

Pair = tuple[int, int]


def most_telling_first(prompts: Sequence[PromptEvidence]) -> list[PromptEvidence]:
    """The prompts in the order of their worth per position; see the header."""
    close_calls = [_shares(prompts, [int((p.margin < NARROW_MARGIN).sum()) for p in prompts])]
    close_calls.append(_shares(prompts, [int((p.router_gap < NARROW_GAP).any(axis=1).sum()) for p in prompts]))
    pairs = {p.name: _pairs(p) for p in prompts}
    everywhere = len(set().union(*pairs.values()))
    covered: set[Pair] = set()
    left, order = list(prompts), []
    while left:
        worth = [
            (sum(share[p.name] for share in close_calls) + len(pairs[p.name] - covered) / everywhere) / len(p.fed) for p in left
        ]
        chosen = left.pop(int(np.argmax(worth)))
        covered |= pairs[chosen.name]
        order.append(chosen)
    return order


def _shares(prompts: Sequence[PromptEvidence], counts: Sequence[int]) -> dict[str, float]:
    total = max(1, sum(counts))
    return {p.name: count / total for p, count in zip(prompts, counts, strict=True)}


def _pairs(prompt: PromptEvidence) -> set[Pair]:
    """(layer, expert) of all that the prompt's positions select."""
    ids = prompt.expert_ids
    return {(layer, expert) for layer in range(ids.shape[1]) for expert in np.unique(ids[:, layer]).tolist()}
