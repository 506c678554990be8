"""The order of a session with a budget: what tells most per position comes first, and every machine chooses alike."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracle.golden.evidence import PromptEvidence
from oracle.golden.format import Golden
from oracle.judge.priority import NARROW_GAP, NARROW_MARGIN, most_telling_first

LAYERS = 2


def prompt(
    name: str, positions: int = 10, close: int = 0, narrow: int = 0, experts: tuple[int, ...] = (0, 1)
) -> PromptEvidence:
    """A prompt with so many narrow margins and positions with a narrow gap, that uses these experts on every layer."""
    logits = np.zeros((positions, 2), dtype=np.float32)
    logits[:, 0] = NARROW_MARGIN
    logits[:close, 0] = NARROW_MARGIN / 2
    gap = np.full((positions, LAYERS), NARROW_GAP, dtype=np.float32)
    gap[:narrow, 1] = NARROW_GAP / 2
    return PromptEvidence(
        name=name,
        text=None,
        prompt_ids=(1,),
        generated=tuple(range(positions)),
        top_ids=np.zeros((positions, 2), dtype=np.int32),
        top_logits=logits,
        logsumexp=np.zeros(positions),
        expert_ids=np.broadcast_to(np.array(experts, dtype=np.int32), (positions, LAYERS, len(experts))),
        expert_weights=np.zeros((positions, LAYERS, len(experts)), dtype=np.float32),
        router_gap=gap,
        sketch=np.ones((positions, LAYERS, 32), dtype=np.float32),
    )


def order(*prompts: PromptEvidence) -> str:
    return " ".join(p.name for p in most_telling_first(prompts))


def test_near_ties_come_first() -> None:
    assert order(prompt("a"), prompt("b", close=2), prompt("c", close=1)) == "b c a"


def test_router_near_ties_come_first() -> None:
    assert order(prompt("a"), prompt("b", narrow=2), prompt("c", narrow=1)) == "b c a"


def test_a_position_with_several_narrow_layers_counts_once() -> None:
    wide = prompt("b", narrow=1)
    both = replace(wide, router_gap=np.where(np.arange(10)[:, None] == 0, 0.0, wide.router_gap))
    assert order(prompt("a", narrow=2), both) == "a b"


def test_a_shorter_prompt_that_tells_as_much_comes_first() -> None:
    assert order(prompt("a", positions=20, close=2), prompt("b", positions=10, close=2)) == "b a"


def test_experts_that_a_chosen_prompt_has_used_already_tell_nothing_more() -> None:
    most, same, rest = prompt("a", experts=(0, 1, 2, 3)), prompt("b", experts=(0, 1, 2)), prompt("c", experts=(4, 5))
    assert order(rest, same, most) == "a c b"


def test_equals_keep_the_golden_s_order() -> None:
    assert order(prompt("b"), prompt("a"), prompt("c")) == "b a c"


@given(st.permutations(range(6)))
def test_every_prompt_comes_once_and_the_choice_does_not_depend_on_the_golden_s_order(indices: list[int]) -> None:
    prompts = [prompt(f"p{i}", positions=10 + i, close=i % 4, narrow=i % 3, experts=(i, 0)) for i in range(6)]
    expected = most_telling_first(prompts)
    assert sorted(p.name for p in expected) == [f"p{i}" for i in range(6)]
    assert most_telling_first([prompts[i] for i in indices]) == expected


@pytest.mark.parametrize("share", [0.25, 0.5])
def test_the_first_prompts_of_the_shipped_golden_hold_more_near_ties_than_their_time(golden: Golden, share: float) -> None:
    ordered = most_telling_first(golden.prompts)
    spent = np.cumsum([len(p.fed) for p in ordered]) / golden.positions
    ties = np.cumsum([(p.margin < NARROW_MARGIN).sum() for p in ordered])
    count = int(np.searchsorted(spent, share, side="right"))
    assert ties[count - 1] / ties[-1] > 1.1 * spent[count - 1]
