"""Gate `chain`: a free run may leave the golden's chain only at a near tie that the teacher-forced pass recorded too."""

from __future__ import annotations

import numpy as np
from judge_cases import (
    answer,
    changed,
    flipped,
    headlines,
    narrowest,
    outside_stored,
    widest,
    with_bands,
    with_other_experts,
    with_prompt,
)

from oracle.golden.evidence import PromptEvidence
from oracle.judge.chain import ChainGate
from oracle.judge.gate import Case

GATE = ChainGate()
HARD = "the free run leaves the golden's chain at a hard flip"
NOT_DETERMINISTIC = "free run and teacher-forced pass disagree on the same prefix: not deterministic"


def diverging(case: Case, prompt: PromptEvidence, position: int, token: int | None = None) -> Case:
    """Both passes choose `token` (the golden's second choice by default) at `position`; the free run goes its way after."""
    token = int(prompt.top_ids[position, 1]) if token is None else token
    run, index = answer(case, prompt), position - len(prompt.prompt_ids) + 1
    chain = run.free_generated.copy()
    chain[index] = token
    chain[index + 1 :] ^= 1
    return with_prompt(case, prompt, argmax=changed(run.argmax, position, token), free_generated=chain)


def test_the_perfect_run_follows_every_chain_to_its_end(case: Case) -> None:
    judgement = GATE.judge(case)
    assert (judgement.verdict, judgement.findings) == ("pass", ())
    assert judgement.compared == sum(len(p.generated) for p in case.golden.prompts)
    assert judgement.measured == {"prompts_diverged": 0, "prompts": len(case.golden.prompts)}


def test_its_planted_fault_is_found(case: Case) -> None:
    found = {name: [f.headline for f in GATE.judge(planted).findings] for name, planted in GATE.plants(case).items()}
    assert found == {
        "the free run alone": ["free run and teacher-forced pass disagree on the same prefix: not deterministic"],
        "the teacher-forced pass alone": ["free run and teacher-forced pass disagree on the same prefix: not deterministic"],
        "both passes": ["the free run leaves the golden's chain at a hard flip"],
    }


def test_a_divergence_at_a_hard_flip_is_red_with_its_place(case: Case) -> None:
    prompt, position = widest(case, generated_only=True)
    judgement = GATE.judge(diverging(case, prompt, position))
    [finding] = judgement.findings
    index = position - len(prompt.prompt_ids) + 1
    assert (finding.headline, finding.where) == (HARD, f"{prompt.name}[{position}]")
    assert finding.worst.startswith(f"{prompt.top_ids[position, 1]} for {prompt.generated[index]}, regret ")
    assert finding.allowed == "a recorded near tie"
    assert (finding.count, finding.of) == (len(prompt.generated) - index, len(prompt.generated))
    assert judgement.measured["prompts_diverged"] == 1


def test_a_divergence_at_a_near_tie_is_green_and_counts_only_up_to_it(case: Case) -> None:
    prompt, position = narrowest(case, generated_only=True)
    judgement = GATE.judge(diverging(with_bands(case, regret=float(prompt.margin[position])), prompt, position))
    assert (judgement.verdict, judgement.measured["prompts_diverged"]) == ("pass", 1)
    after = len(prompt.generated) - (position - len(prompt.prompt_ids) + 1) - 1
    assert judgement.compared == sum(len(p.generated) for p in case.golden.prompts) - after


def test_the_same_divergence_is_red_where_the_band_is_a_little_smaller(case: Case) -> None:
    prompt, position = narrowest(case, generated_only=True)
    banded = with_bands(case, regret=0.99 * float(prompt.margin[position]))
    assert headlines(GATE.judge(diverging(banded, prompt, position))) == [HARD]


def test_a_divergence_outside_the_stored_ids_is_red_whatever_the_band(case: Case) -> None:
    prompt, position = narrowest(case, generated_only=True)
    token = outside_stored(case, prompt, position)
    assert headlines(GATE.judge(diverging(with_bands(case, regret=1e3), prompt, position, token))) == [HARD]


def test_where_expert_sets_differ_the_router_s_band_decides(case: Case) -> None:
    prompt, position = narrowest(case, generated_only=True)
    margin, gap = float(prompt.margin[position]), float(prompt.router_gap[position, 2])
    spoiled = with_other_experts(diverging(case, prompt, position), prompt, position, layer=2)
    assert GATE.judge(with_bands(spoiled, router_gap=gap, router_regret=margin)).verdict == "pass"
    assert headlines(GATE.judge(with_bands(spoiled, router_gap=0.99 * gap, router_regret=margin))) == [HARD]
    assert headlines(GATE.judge(with_bands(spoiled, router_gap=gap, regret=margin))) == [HARD]


def test_a_free_run_that_flips_where_the_forced_pass_does_not_is_red_even_at_a_near_tie(case: Case) -> None:
    prompt, position = narrowest(case, generated_only=True)
    banded = with_bands(case, regret=1e3)
    index, token = position - len(prompt.prompt_ids) + 1, prompt.top_ids[position, 1]
    free_only = with_prompt(banded, prompt, free_generated=changed(answer(case, prompt).free_generated, index, token))
    [finding] = GATE.judge(free_only).findings
    assert (finding.headline, finding.where) == (NOT_DETERMINISTIC, f"{prompt.name}[{position}]")
    assert finding.worst == f"{token} free, {prompt.argmax[position]} forced"


def test_a_forced_pass_that_flips_where_the_free_run_does_not_is_red_even_at_a_near_tie(case: Case) -> None:
    prompt, position = narrowest(case, generated_only=True)
    forced_only = flipped(with_bands(case, regret=1e3), prompt, position)
    assert headlines(GATE.judge(forced_only)) == [NOT_DETERMINISTIC]


def test_a_flip_in_the_prompt_is_not_a_matter_of_chains(case: Case) -> None:
    prompt = max(case.golden.prompts, key=lambda p: len(p.prompt_ids))
    assert GATE.judge(flipped(case, prompt, position=0)).verdict == "pass"


def test_each_prompt_that_leaves_its_chain_is_reported(case: Case) -> None:
    spoiled = case
    for prompt in case.golden.prompts:
        start = len(prompt.prompt_ids) - 1
        spoiled = diverging(spoiled, prompt, start + int(np.argmax(prompt.margin[start:])))
    judgement = GATE.judge(spoiled)
    assert headlines(judgement) == [HARD] * len(case.golden.prompts)
    assert judgement.measured["prompts_diverged"] == len(case.golden.prompts)
