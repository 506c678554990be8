"""Gate `flips`: no hard flip anywhere, and no more near ties than the class's floor makes likely."""

from __future__ import annotations

from functools import reduce

import numpy as np
import pytest
from judge_cases import (
    answer,
    changed,
    flipped,
    headlines,
    narrowest,
    outside_stored,
    widest,
    with_bands,
    with_evidence,
    with_other_experts,
    with_prompt,
)

from oracle.golden.calibration import BUDGET_TAIL, MARGIN_EDGES
from oracle.golden.evidence import PromptEvidence
from oracle.judge.flips import FlipsGate
from oracle.judge.gate import Case

GATE = FlipsGate()
TOO_MANY = "more {}s than the floor of class bf16 allows"


def places_by_margin(case: Case) -> list[tuple[PromptEvidence, int]]:
    """Every prompt and position, the smallest margin first."""
    places = [(float(p.margin[i]), index, i) for index, p in enumerate(case.golden.prompts) for i in range(len(p.fed))]
    return [(case.golden.prompts[index], i) for _, index, i in sorted(places)]


def with_flips(case: Case, count: int) -> Case:
    """`count` positions, from the smallest margin on, answered with the golden's second choice."""
    for prompt, position in places_by_margin(case)[:count]:
        case = flipped(case, prompt, position)
    return case


def tail(case: Case, counts: tuple[int, ...], at_least: int) -> float:
    """P(X >= at_least) by multiplying out every position's coin, with the floor's chance of its margin bin."""
    margins = np.concatenate([p.margin for p in case.golden.prompts]).astype(np.float64)
    in_bin = np.array([max(i for i, edge in enumerate(MARGIN_EDGES) if edge <= m) for m in margins])
    chance = (np.array(counts) + 0.5) / (np.array(case.calibration.bins.positions) + 1)
    coins = [np.array([1 - p, p]) for p in chance[in_bin]]
    return float(reduce(np.convolve, coins)[at_least:].sum())


def test_the_perfect_run_has_no_flip_at_any_position(case: Case) -> None:
    judgement = GATE.judge(case)
    assert (judgement.verdict, judgement.findings, judgement.compared) == ("pass", (), case.golden.positions)
    assert (judgement.measured["flips"], judgement.measured["hard"]) == (0, 0)


def test_its_planted_fault_is_found(case: Case) -> None:
    found = {name: headlines(GATE.judge(planted)) for name, planted in GATE.plants(case).items()}
    assert found == {
        "a hard flip": ["hard flips"],
        "an id outside the stored ones": ["hard flips"],
        "too many near ties": ["more near-ties than the floor of class bf16 allows"],
        "too many router near ties": ["more router-near-ties than the floor of class bf16 allows"],
    }


def test_a_hard_flip_is_red_with_its_place_and_regret(case: Case) -> None:
    prompt, position = widest(case)
    [finding] = GATE.judge(flipped(case, prompt, position)).findings
    assert (finding.headline, finding.where) == ("hard flips", f"{prompt.name}[{position}]")
    assert finding.worst == (
        f"{prompt.top_ids[position, 1]} for {prompt.argmax[position]}, regret {prompt.margin[position]:.4g} nats"
    )
    assert finding.allowed == f"{case.calibration.bands.regret:.4g} nats"
    assert (finding.count, finding.of) == (1, case.golden.positions)


def test_the_first_position_of_a_prompt_is_judged_too(case: Case) -> None:
    prompt = case.golden.prompts[0]
    outside = with_prompt(
        case, prompt, argmax=changed(answer(case, prompt).argmax, 0, outside_stored(case, prompt, position=0))
    )
    [finding] = GATE.judge(outside).findings
    assert finding.where == f"{prompt.name}[0]"


def test_a_token_outside_the_stored_ids_is_hard_whatever_the_band(case: Case) -> None:
    prompt, position = narrowest(case)
    token = outside_stored(case, prompt, position)
    banded = with_bands(case, regret=1e3, router_gap=1e3, router_regret=1e3)
    judgement = GATE.judge(with_prompt(banded, prompt, argmax=changed(answer(case, prompt).argmax, position, token)))
    [finding] = judgement.findings
    assert finding.worst == f"{token} for {prompt.argmax[position]}, outside the stored ids"
    assert judgement.measured["smallest band"] == "none"


def test_one_near_tie_is_green(case: Case) -> None:
    prompt, position = narrowest(case)
    judgement = GATE.judge(flipped(with_bands(case, regret=float(prompt.margin[position])), prompt, position))
    assert judgement.verdict == "pass"
    assert (judgement.measured["near-tie"], judgement.measured["hard"]) == (1, 0)


def test_the_shipped_band_leaves_room_for_a_near_tie(case: Case) -> None:
    prompt, position = narrowest(case)
    assert GATE.judge(flipped(case, prompt, position)).verdict == "pass"


def test_near_ties_are_red_from_the_count_that_the_floor_makes_unlikely(case: Case) -> None:
    banded = with_bands(case, regret=1e3)
    allowed = int(GATE.judge(banded).measured["near-tie allowed"])
    assert tail(case, case.calibration.bins.near, allowed + 1) < BUDGET_TAIL <= tail(case, case.calibration.bins.near, allowed)
    assert GATE.judge(with_flips(banded, allowed)).verdict == "pass"
    [finding] = GATE.judge(with_flips(banded, allowed + 1)).findings
    assert finding.headline == TOO_MANY.format("near-tie")
    assert (finding.worst, finding.allowed, finding.count) == (str(allowed + 1), str(allowed), allowed + 1)


def test_the_budget_is_a_small_part_of_all_positions(case: Case) -> None:
    measured = GATE.judge(case).measured
    assert 1 <= int(measured["near-tie allowed"]) < case.golden.positions / 20
    assert 0 <= int(measured["router-near-tie allowed"]) < case.golden.positions / 20


def test_router_near_ties_have_a_budget_of_their_own(case: Case) -> None:
    banded = with_bands(case, regret=1e3, router_gap=1e3, router_regret=1e3)
    allowed = int(GATE.judge(banded).measured["router-near-tie allowed"])
    counts = case.calibration.bins.router
    assert tail(case, counts, allowed + 1) < BUDGET_TAIL <= tail(case, counts, allowed)
    spoiled = with_flips(banded, allowed + 1)
    for prompt, position in places_by_margin(case)[: allowed + 1]:
        spoiled = with_other_experts(spoiled, prompt, position, layer=0)
    judgement = GATE.judge(spoiled)
    assert headlines(judgement) == [TOO_MANY.format("router-near-tie")]
    assert (judgement.measured["router-near-tie"], judgement.measured["near-tie"]) == (allowed + 1, 0)


def test_differing_expert_sets_excuse_a_flip_only_within_the_router_s_gap_and_regret(case: Case) -> None:
    prompt, position = narrowest(case)
    margin, gap = float(prompt.margin[position]), float(prompt.router_gap[position, 1])
    spoiled = with_other_experts(flipped(case, prompt, position), prompt, position, layer=1)
    assert GATE.judge(with_bands(spoiled, router_gap=gap, router_regret=margin)).verdict == "pass"
    beyond_the_gap = GATE.judge(with_bands(spoiled, regret=1e3, router_gap=0.99 * gap, router_regret=margin))
    assert headlines(beyond_the_gap) == ["hard flips"]
    beyond_the_regret = GATE.judge(with_bands(spoiled, regret=1e3, router_gap=gap, router_regret=0.99 * margin))
    assert headlines(beyond_the_regret) == ["hard flips"]


@pytest.mark.parametrize("sets_agree", [True, False])
def test_an_exact_tie_is_never_hard(case: Case, sets_agree: bool) -> None:
    prompt, position = widest(case)
    tied = changed(prompt.top_logits, (position, 0), prompt.top_logits[position, 1])
    spoiled = flipped(with_bands(with_evidence(case, prompt, top_logits=tied), router_gap=1e3), prompt, position)
    if not sets_agree:
        spoiled = with_other_experts(spoiled, prompt, position, layer=0)
    judgement = GATE.judge(spoiled)
    assert (judgement.measured["flips"], judgement.measured["hard"]) == (1, 0)
    assert judgement.measured["near-tie" if sets_agree else "router-near-tie"] == 1
    assert judgement.verdict == "pass"


def test_one_ulp_of_the_logit_s_type_is_never_hard(case: Case) -> None:
    prompt, position = widest(case)
    top = prompt.top_logits[position, 0]
    for steps, hard in ((1, 0), (3, 1)):
        below = top
        for _ in range(steps):
            below = np.nextafter(below, np.float32(-np.inf))
        near = with_evidence(case, prompt, top_logits=changed(prompt.top_logits, (position, 1), below))
        assert GATE.judge(flipped(with_bands(near), prompt, position)).measured["hard"] == hard


@pytest.mark.parametrize("with_sets", [slice(0, 2), slice(2, 4)])
def test_the_smallest_bands_printed_are_the_largest_regrets_of_their_kind(case: Case, with_sets: slice) -> None:
    places = [places_by_margin(case)[i] for i in (3, 8, 21, 34)]
    spoiled = case
    for prompt, position in places:
        spoiled = flipped(spoiled, prompt, position)
    for prompt, position in places[with_sets]:
        spoiled = with_other_experts(spoiled, prompt, position, layer=3)
    measured = GATE.judge(spoiled).measured
    regrets = [float(p.top_logits[i, 0]) - float(p.top_logits[i, 1]) for p, i in places]
    router = regrets[with_sets]
    assert measured["smallest router band"] == max(router)
    assert measured["smallest band"] == max(r for r in regrets if r not in router)


def test_the_worst_hard_flip_is_named_and_all_are_counted(case: Case) -> None:
    (mild, at), (worst, place) = places_by_margin(case)[-200], widest(case)
    [finding] = GATE.judge(flipped(flipped(with_bands(case), mild, at), worst, place)).findings
    assert (finding.where, finding.count) == (f"{worst.name}[{place}]", 2)


def test_a_regret_is_the_golden_s_loss_and_not_the_subject_s(case: Case) -> None:
    """The band is about the golden's logits: a subject cannot earn a near tie by flattening its own."""
    prompt, position = widest(case)
    run = answer(case, prompt)
    flat = with_prompt(case, prompt, logits_at_golden=run.logits_at_golden * 0, top_logits=run.top_logits * 0)
    assert headlines(GATE.judge(flipped(flat, prompt, position))) == ["hard flips"]
