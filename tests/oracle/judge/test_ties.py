"""Exact ties: the lowest id wins wherever something is chosen, and who chooses otherwise is never hard for it.

At the top of the logits, at the edge of the stored ones, at the router's edge; in float32 and in bf16, within binades and
across their borders, for positive and for negative logits. No band helps here: every band of the floor is 0.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import assume, example, given
from hypothesis import strategies as st

from oracle.golden.calibration import Bands
from oracle.golden.compare import Shown, compare
from oracle.golden.evidence import PromptEvidence, log_sum_exp, top_logits
from oracle.golden.flip_class import FlipClass, classify, classify_at, ulp
from oracle.subjects.harness import argmax_lowest_id

VOCABULARY, STORED, LAYERS, EXPERTS, CHOSEN = 12, 8, 3, 6, 2
_ZEROS = dict.fromkeys(("regret", "router_gap", "router_regret", "floor_regret", "floor_router_gap", "floor_router_regret"), 0)
NO_BANDS = Bands.model_validate({**_ZEROS, "near_multiple": 1, "multiple": 2})
BORDERS = (31.875, 31.9375, 32.0, 32.125, 32.25, 0.99609375, 1.0, 1.0078125, 0.0, -0.0)
"""Neighbours and midpoints in bf16 on both sides of a power of two, where one ULP doubles."""

sizes = st.sampled_from(BORDERS) | st.floats(-64, 64, width=32)
tied_rows = st.lists(sizes, min_size=1, max_size=4).flatmap(
    lambda few: st.lists(st.sampled_from(few + [-value for value in few]), min_size=VOCABULARY, max_size=VOCABULARY)
)
"""A row of logits with few different values, so that many are equal."""


def rounded(values: np.ndarray) -> np.ndarray:
    """To bf16 and back, ties to even."""
    return values.astype(ml_dtypes.bfloat16).astype(np.float32)


def evidence(rows: np.ndarray, gap: float = 0.5) -> PromptEvidence:
    """A golden's evidence of these logits float32 [T, V], every router gap the same."""
    ids, values = top_logits(rows, STORED)
    assume(values.any())  # a golden whose logits are all zero is refused
    positions = len(rows)
    experts = np.broadcast_to(np.arange(CHOSEN, dtype=np.int32), (positions, LAYERS, CHOSEN))
    return PromptEvidence(
        name="p",
        text=None,
        prompt_ids=(1,),
        generated=(0,) * positions,
        top_ids=ids,
        top_logits=values,
        logsumexp=log_sum_exp(rows),
        expert_ids=experts.copy(),
        expert_weights=np.full((positions, LAYERS, CHOSEN), 0.5, np.float32),
        router_gap=np.full((positions, LAYERS), gap, np.float32),
        sketch=np.ones((positions, LAYERS, 32), np.float32),
    )


def answering(golden: PromptEvidence, argmax: list[int], **changes: Any) -> Shown:
    """A run with the golden's numbers and these choices."""
    shown = Shown(
        argmax=np.array(argmax, dtype=np.int32),
        logits_at_golden=golden.top_logits,
        logsumexp=golden.logsumexp,
        sketch=golden.sketch,
        expert_ids=golden.expert_ids,
        expert_weights=golden.expert_weights,
        router_logits=np.zeros((0, LAYERS, EXPERTS), np.float32),
    )
    return shown._replace(**changes)


def kind_at(golden: PromptEvidence, shown: Shown, dtype: str = "float32") -> FlipClass:
    return classify_at(compare(golden, shown), 0, NO_BANDS, dtype)


def by_hand(row: np.ndarray) -> list[int]:
    """Ids by falling logit, equal logits by rising id."""
    return sorted(range(len(row)), key=lambda i: (-row[i], i))


@given(tied_rows, st.booleans())
@example([32.0] * VOCABULARY, False)
@example([0.0, -0.0] * (VOCABULARY // 2), True)
def test_the_lowest_ids_of_equal_logits_are_stored_and_come_first(row: list[float], bf16: bool) -> None:
    """At the top and at the edge of what is stored: zeros of both signs are equal too."""
    rows = np.array([row], np.float32)
    rows = rounded(rows) if bf16 else rows
    ids, values = top_logits(rows, STORED)
    assert ids[0].tolist() == by_hand(rows[0])[:STORED]
    assert np.array_equal(values, rows[:, ids[0]])
    assert argmax_lowest_id(rows[0]) == ids[0, 0]


@given(tied_rows, st.sampled_from(["float32", "bfloat16"]), st.data())
def test_whoever_chooses_another_of_the_golden_s_largest_is_never_hard(
    row: list[float], dtype: str, data: st.DataObject
) -> None:
    rows = np.array([row], np.float32)
    golden = evidence(rows)
    tied = [i for i in golden.top_ids[0].tolist() if rows[0, i] == rows[0].max()]
    token = data.draw(st.sampled_from(tied))
    comparison = compare(golden, answering(golden, [token]))
    assert comparison.regret[0] == 0
    assert comparison.flip[0] == (token != min(tied))
    assert kind_at(golden, answering(golden, [token]), dtype) == "near-tie"


@given(st.lists(sizes, min_size=VOCABULARY, max_size=VOCABULARY))
@example([-32.0 + 2**-4, -32.0 - 2**-3] + [-64.0] * 10)
@example([32.0 + 2**-3, 32.0 - 2**-4] + [-64.0] * 10)
def test_a_tie_that_rounding_to_bf16_makes_is_never_hard_where_the_logits_are_bf16(row: list[float]) -> None:
    """Across a power of two as well: what rounds to -32 lies within 1.5 of the ULPs just above it, and 0.75 below."""
    rows = np.array([row], np.float32)
    golden = evidence(rows)
    shown = rounded(rows[0])
    for token in np.flatnonzero(shown == shown.max()).tolist():
        assume(token in golden.top_ids[0])
        assert kind_at(golden, answering(golden, [token]), "bfloat16") != "hard"


@given(sizes, st.sampled_from(["float32", "bfloat16"]), st.integers(1, 3))
def test_the_band_is_one_ulp_at_the_larger_of_the_two_logits_and_no_more(top: float, dtype: str, layer: int) -> None:
    step = ulp(top, dtype)
    values = {"rank": 1, "top": top, "set_gap": 0.0, "bands": NO_BANDS, "logit_dtype": dtype, "sets_agree": True}
    assert classify(regret=step, **values) == "near-tie"
    larger = max(step, ulp(top - 2.001 * step, dtype))
    assert classify(regret=2.001 * step, **values) == ("near-tie" if larger >= 2.001 * step else "hard")


@given(tied_rows, st.data())
def test_an_exact_tie_at_the_router_s_edge_is_never_hard_whatever_follows_from_it(
    row: list[float], data: st.DataObject
) -> None:
    rows = np.array([row], np.float32)
    layer, expert = data.draw(st.integers(0, LAYERS - 1)), data.draw(st.integers(CHOSEN, EXPERTS - 1))
    token = data.draw(st.sampled_from(evidence(rows).top_ids[0].tolist()))
    experts = evidence(rows).expert_ids.copy()
    experts[0, layer, -1] = expert
    tied, apart = evidence(rows, gap=0.0), evidence(rows, gap=2**-20)
    assert kind_at(tied, answering(tied, [token], expert_ids=experts)) == "router-near-tie"
    tied_at_the_top = rows[0, token] == rows.max()
    expected = "router-near-tie" if tied_at_the_top else "hard"
    assert kind_at(apart, answering(apart, [token], expert_ids=experts)) == expected


@given(tied_rows, st.permutations(range(CHOSEN)), st.data())
def test_the_order_of_equal_elements_changes_no_class(row: list[float], order: list[int], data: st.DataObject) -> None:
    """Of equal stored logits, and of the experts of a set."""
    golden = evidence(np.array([row], np.float32))
    values = golden.top_logits[0].tolist()
    shuffled = sorted(range(STORED), key=lambda i: (-values[i], data.draw(st.integers(0, 9))))
    other = replace(golden, top_ids=golden.top_ids[:, shuffled], top_logits=golden.top_logits[:, shuffled])
    assert np.array_equal(other.top_logits, golden.top_logits)
    token = data.draw(st.integers(0, VOCABULARY - 1))
    mine = compare(golden, answering(golden, [token]))
    theirs = compare(other, answering(other, [token], expert_ids=golden.expert_ids[:, :, order]))
    assert (theirs.regret[0], theirs.sets_agree[0]) == (mine.regret[0], True)
    for dtype in ("float32", "bfloat16"):
        assert classify_at(theirs, 0, NO_BANDS, dtype) == classify_at(mine, 0, NO_BANDS, dtype)
