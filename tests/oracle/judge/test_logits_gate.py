"""Gate `logits`: the distribution over ids stays where the golden's is, beyond what the class's own arms do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from judge_cases import answer, changed, headlines, widest, with_other_experts, with_prompt, with_run

from oracle.golden.calibration import PART_MULTIPLE
from oracle.judge.gate import Case
from oracle.judge.logits import FP32_TOLERANCE, LogitsGate
from oracle.subjects.run import PromptRun

GATE = LogitsGate()
MEDIAN, P90 = "median KL above the class's limit", "p90 KL above the class's limit"
FP32 = "logits differ where expert sets agree"


def normalized(run: PromptRun, logits: np.ndarray) -> PromptRun:
    """The run with other logits at the stored ids, and the logsumexp that they then have with all others unchanged."""
    others = np.maximum(np.exp(run.logsumexp) - np.exp(run.logits_at_golden.astype(np.float64)).sum(1), 0.0)
    shown = logits.astype(np.float32)
    lse = np.log(np.exp(shown.astype(np.float64)).sum(1) + others)
    return replace(run, logits_at_golden=shown, logsumexp=lse)


def with_logits(case: Case, change: Callable[[np.ndarray], np.ndarray]) -> Case:
    prompts = {name: normalized(run, change(run.logits_at_golden)) for name, run in case.run.prompts.items()}
    return with_run(case, prompts=prompts)


def scaled(logits: np.ndarray, factor: float, share: float = 1.0) -> np.ndarray:
    """The first `share` of the positions with all logits multiplied."""
    rows = round(share * len(logits))
    return changed(logits, slice(0, rows), logits[:rows] * np.float32(factor))


@pytest.mark.parametrize("numeric_class", ["bf16", "fp32"])
def test_the_perfect_run_passes_in_every_class(case: Case, fp32_case: Case, numeric_class: str) -> None:
    judgement = GATE.judge(case if numeric_class == "bf16" else fp32_case)
    assert (judgement.verdict, judgement.findings, judgement.compared) == ("pass", (), case.golden.positions)


@pytest.mark.parametrize("numeric_class", ["bf16", "fp32"])
def test_its_planted_fault_is_found_in_every_class(case: Case, fp32_case: Case, numeric_class: str) -> None:
    judged = case if numeric_class == "bf16" else fp32_case
    found = {name: headlines(GATE.judge(planted)) for name, planted in GATE.plants(judged).items()}
    assert MEDIAN in found["a head 5 % too large"]
    assert found["one NaN"] == ["NaN or infinite numbers"]
    assert "logits and their logsumexp contradict each other" in found["a logsumexp of other logits"]
    if judged.calibration.numeric_class == "fp32":
        assert found["one logit at one position"] == ["logits differ where expert sets agree"]


def test_one_non_finite_number_is_counted_with_its_place(case: Case) -> None:
    prompt = case.golden.prompts[2]
    spoiled = with_prompt(case, prompt, non_finite=changed(answer(case, prompt).non_finite, 5, 3))
    [finding] = GATE.judge(spoiled).findings
    assert (finding.headline, finding.where) == ("NaN or infinite numbers", f"{prompt.name}[5]")
    assert (finding.worst, finding.allowed, finding.count) == ("3 in one step", "0", 1)


def test_logits_two_percent_too_large_everywhere_move_the_median(case: Case) -> None:
    judgement = GATE.judge(with_logits(case, lambda logits: scaled(logits, 1.02)))
    assert MEDIAN in headlines(judgement)
    finding = judgement.findings[0]
    assert float(finding.worst.split()[0]) > float(finding.allowed)
    assert finding.where


def test_a_fault_at_one_position_in_five_moves_the_p90_and_not_the_median(case: Case) -> None:
    assert headlines(GATE.judge(with_logits(case, lambda logits: scaled(logits, 1.3, share=0.2)))) == [P90]


def test_noise_of_a_fifth_of_the_floor_stays_green_and_thirty_times_as_much_does_not(case: Case) -> None:
    """KL grows with the square of the noise, and no faster at the positions that are nearly certain."""
    for factor, verdict in ((1.0, "pass"), (30.0, "fail")):
        rng = np.random.default_rng(5)
        size = factor * 0.2 * float(np.sqrt(2 * case.calibration.limits.kl[1]))
        noisy = with_logits(case, lambda logits, r=rng, s=size: logits + r.normal(0, s, logits.shape))
        assert GATE.judge(noisy).verdict == verdict


def test_a_single_bad_position_is_printed_and_not_judged(case: Case) -> None:
    prompt, position = widest(case)
    logits = answer(case, prompt).logits_at_golden
    flat = changed(logits, position, logits[position] * 0.01)
    judgement = GATE.judge(with_prompt(case, prompt, logits_at_golden=flat))
    assert judgement.verdict == "pass"
    assert float(judgement.measured["kl max"]) > case.calibration.limits.kl[1]


def test_part_of_the_prompts_is_judged_by_their_own_floor(case: Case) -> None:
    """Noise that is honest on `copying`, whose floor is wide, is none under the floor of `chat`, which is narrow."""
    floors = case.calibration.prompt_floors
    alone = case.with_run(prompts={"copying": case.run.prompts["copying"]})
    rng = np.random.default_rng(5)
    size = float(np.sqrt(floors["copying"].kl[1]))
    noisy = with_logits(alone, lambda logits: logits + rng.normal(0, size, logits.shape))
    narrow = case.calibration.model_copy(update={"prompt_floors": {**floors, "copying": floors["chat"]}})
    for judged, verdict in ((noisy, "pass"), (replace(noisy, calibration=narrow), "fail")):
        judgement = GATE.judge(judged)
        assert judgement.verdict == verdict
        assert judgement.measured["kl median allowed"] == PART_MULTIPLE * judged.calibration.prompt_floors["copying"].kl[0]


@pytest.mark.parametrize("off", [-0.5, 0.5])
def test_logits_that_do_not_belong_to_their_logsumexp_are_found(case: Case, off: float) -> None:
    """With the sum too small the probabilities add to 1.6: no distribution, whatever a clipped divergence says."""
    runs = {name: replace(run, logsumexp=run.logsumexp + off) for name, run in case.run.prompts.items()}
    assert GATE.judge(with_run(case, prompts=runs)).verdict == "fail"


def test_probability_that_the_golden_has_outside_its_stored_ids_is_not_given_away(case: Case) -> None:
    """A subject without any mass outside the stored ids is infinitely far from a golden that has 39 % there."""
    prompts = tuple(replace(p, logsumexp=p.logsumexp + 0.5) for p in case.golden.prompts)
    inside = {
        name: replace(run, logsumexp=np.log(np.exp(run.logits_at_golden.astype(np.float64)).sum(1)))
        for name, run in case.run.prompts.items()
    }
    spoiled = replace(with_run(case, prompts=inside), golden=replace(case.golden, prompts=prompts))
    assert GATE.judge(spoiled).verdict == "fail"


def test_fp32_sees_one_logit_at_one_position(fp32_case: Case) -> None:
    prompt, position = widest(fp32_case)
    logits, largest = answer(fp32_case, prompt).logits_at_golden, float(np.abs(prompt.top_logits[position]).max())
    for factor, expected in ((0.5, []), (3.0, [FP32])):
        wrong = changed(logits, (position, 7), logits[position, 7] + np.float32(factor * FP32_TOLERANCE * largest))
        judgement = GATE.judge(with_prompt(fp32_case, prompt, logits_at_golden=wrong))
        assert headlines(judgement) == expected
        if expected:
            [finding] = judgement.findings
            assert (finding.where, finding.count, finding.allowed) == (f"{prompt.name}[{position}]", 1, "1e-05")


def test_fp32_leaves_positions_with_other_experts_to_the_router_s_band(fp32_case: Case) -> None:
    prompt, position = widest(fp32_case)
    logits = answer(fp32_case, prompt).logits_at_golden
    wrong = with_prompt(fp32_case, prompt, logits_at_golden=changed(logits, (position, 7), logits[position, 7] + 1))
    assert FP32 in headlines(GATE.judge(wrong))
    assert FP32 not in headlines(GATE.judge(with_other_experts(wrong, prompt, position, layer=0)))


def test_the_fp32_tolerance_is_not_asked_of_bf16(case: Case) -> None:
    prompt, position = widest(case)
    logits = answer(case, prompt).logits_at_golden
    off = with_prompt(case, prompt, logits_at_golden=changed(logits, (position, 7), logits[position, 7] + 1))
    assert GATE.judge(off).verdict == "pass"
