"""Full values at the probes of two goldens, where both were fed the same ids up to there and selected the same experts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from oracle.golden.format import Golden
from oracle.golden.recomputation import VALUE_BOUND, near, same_bits


def probe_differences(
    old: Golden, new: Golden, comparable: Mapping[tuple[str, str], int]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """A line for each probe array that is off by more than `VALUE_BOUND` of the largest value; and names of the unequal ones.

    Args:
        comparable: by a prompt's old and new name, how many of its leading positions can be compared.
    """
    unequal, off = [], []
    for name, before, after in _arrays(old, new, comparable):
        if not same_bits(before, after):
            unequal.append(name)
        if not near(before, after):
            off.append(f"more than {VALUE_BOUND:.0e} of the largest value off: {name}")
    return tuple(off), tuple(unequal)


def _arrays(
    old: Golden, new: Golden, comparable: Mapping[tuple[str, str], int]
) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    rows, others = _rows(old), _rows(new)
    shared = [
        (rows[before, position], others[after, position])
        for (before, after), count in comparable.items()
        for name, position in rows
        if name == before and position < count and (after, position) in others
    ]
    if shared:
        mine, theirs = (np.array(side) for side in zip(*shared, strict=True))
        yield "probe hidden states", old.probes.hidden[mine], new.probes.hidden[theirs]
        yield "probe router logits", old.probes.router_logits[mine], new.probes.router_logits[theirs]
    names = old.document.probe_prompt, new.document.probe_prompt
    if count := comparable.get(names, 0):
        yield "layer inputs of the probe prompt", old.probes.layer_inputs[:count], new.probes.layer_inputs[:count]


def _rows(golden: Golden) -> dict[tuple[str, int], int]:
    """Row of each probe by prompt name and position."""
    places = zip(golden.probes.prompts.tolist(), golden.probes.positions.tolist(), strict=True)
    return {(golden.prompts[prompt].name, position): row for row, (prompt, position) in enumerate(places)}
