"""Gate `routing`: each token goes to the golden's experts, with the golden's weights, by a router that computes in fp32."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from judge_cases import (
    answer,
    changed,
    headlines,
    mini_golden,
    with_bands,
    with_evidence,
    with_other_experts,
    with_prompt,
    with_run,
)

from goldens import mini_checkpoint
from oracle.golden.calibration import ROUTER_RESOLUTION
from oracle.golden.evidence import PromptEvidence
from oracle.golden.format import Golden
from oracle.judge.controls import gate_controls
from oracle.judge.gate import Case
from oracle.judge.routing import RoutingGate
from oracle.judge.shown_router import selection_bias
from oracle.subjects.harness import drive
from oracle.subjects.perfect import FACTORY, PerfectSubject
from oracle.subjects.protocol import StepEvidence, SubjectRequest
from oracle.subjects.run import PromptRun

GATE = RoutingGate()
OUTSIDE_BAND = "expert sets differ outside the router band"
TOO_MANY = "more expert sets differ than the class's limit"
ON_GRID = "router logits lie on the bf16 grid"
NOT_TOP_K = "the ids are not the largest of router logits plus bias"
NOT_SIGMOID = "the weights are not the sigmoids of their router logits"


def kinds(case: Case) -> set[str]:
    """Headlines without the layer that some end with."""
    return {line.split(", first at")[0] for line in headlines(GATE.judge(case))}


def routed(case: Case, change: Callable[[PromptRun], dict[str, np.ndarray | None]]) -> Case:
    """Every prompt's run with other routing."""
    return case.with_prompts(lambda run: replace(run, **change(run)))


def in_class(case: Case, name: str) -> Case:
    identity = replace(case.run.identity, numeric_class=name)
    return replace(with_run(case, identity=identity), calibration=case.golden.document.classes[name])  # type: ignore[index]


def gaps(case: Case) -> list[tuple[float, PromptEvidence, int, int]]:
    """(gap, prompt, position, layer) of every router decision off the probes, the narrowest first."""
    places = [
        (float(p.router_gap[i, j]), n, i, j)
        for n, p in enumerate(case.golden.prompts)
        for i in range(len(p.fed))
        if i not in case.golden.probes_of(p.name).positions
        for j in range(p.router_gap.shape[1])
    ]
    return [(gap, case.golden.prompts[n], i, j) for gap, n, i, j in sorted(places)]


@pytest.mark.parametrize("numeric_class", ["fp32", "bf16", "w8a8", "fp8-kv"])
def test_the_perfect_run_passes_in_every_class(case: Case, numeric_class: str) -> None:
    judgement = GATE.judge(in_class(case, numeric_class))
    layers, probes = case.golden.prompts[0].router_gap.shape[1], len(case.golden.probes.positions)
    assert (judgement.verdict, judgement.findings) == ("pass", ())
    assert judgement.compared == 2 * case.golden.positions * layers + 2 * probes * layers


@pytest.mark.parametrize("numeric_class", ["fp32", "bf16", "w8a8", "fp8-kv"])
def test_each_planted_fault_is_found_by_its_own_comparison(case: Case, numeric_class: str) -> None:
    """In class fp32 limits are so narrow that a second comparison may see it too."""
    found = {name: kinds(planted) for name, planted in GATE.plants(in_class(case, numeric_class)).items()}
    expected = {
        "an expert at a wide gap": OUTSIDE_BAND,
        "too many near ties": TOO_MANY,
        "weights a little off everywhere": "expert weights: median error above the class's limit",
        "weights wrong at every sixth position": "expert weights: p90 error above the class's limit",
        "router logits a little off": "router logits: median error above the class's limit",
        "one row of router logits off": "router logits: largest error above the class's limit",
        "weights that their logits do not give": NOT_SIGMOID,
        "router logits on the bf16 grid": ON_GRID,
        "ids that their logits do not give": NOT_TOP_K,
        "one NaN": "NaN or infinite weights or router logits",
        "an expert that was not forced": "expert sets differ although routing was forced",
        "a weight that was not forced": "expert weights are not those forced",
    }
    if numeric_class == "fp32":
        expected["one weight at one position"] = "expert weights differ where sets agree"
        assert found["one weight at one position"] == {expected["one weight at one position"]}
    assert {name for name in expected if expected[name] in found[name]} == found.keys()
    if numeric_class != "fp32":
        assert {name: lines for name, lines in found.items() if lines != {expected[name]}} == {}


def test_one_expert_exchanged_at_a_wide_gap_is_red_with_its_place_and_gap(case: Case) -> None:
    gap, prompt, position, layer = gaps(case)[-1]
    judgement = GATE.judge(with_other_experts(case, prompt, position, layer))
    [finding] = judgement.findings
    assert (finding.headline, finding.where) == (OUTSIDE_BAND, f"{prompt.name}[{position}], layer {layer}")
    assert (finding.worst, finding.allowed) == (f"gap {gap:.4g}", f"{case.calibration.bands.router_gap:.4g}")
    assert (finding.count, finding.of) == (1, case.golden.positions)
    assert judgement.measured["outside by first layer"] == " ".join("1" if i == layer else "0" for i in range(5))


def test_the_band_ends_where_the_golden_says(case: Case) -> None:
    gap, prompt, position, layer = gaps(case)[-1]
    swapped = with_other_experts(case, prompt, position, layer)
    assert GATE.judge(with_bands(swapped, router_gap=gap)).verdict == "pass"
    assert kinds(with_bands(swapped, router_gap=0.999 * gap)) == {OUTSIDE_BAND}


def test_a_gap_below_what_fp32_resolves_is_a_tie_in_every_class(case: Case) -> None:
    gap, prompt, position, layer = gaps(case)[0]
    assert gap < ROUTER_RESOLUTION
    assert GATE.judge(with_bands(with_other_experts(case, prompt, position, layer))).verdict == "pass"


def test_only_the_first_differing_layer_of_a_position_is_held_against_the_band(case: Case) -> None:
    """What follows a near tie computes on another stream; what precedes one has no excuse."""
    _, prompt, position, later = next(g for g in reversed(gaps(case)) if g[3] > 0)
    wide = with_other_experts(case, prompt, position, later)
    assert kinds(wide) == {OUTSIDE_BAND}
    excused = with_evidence(wide, prompt, router_gap=changed(prompt.router_gap, (position, 0), 1e-5))
    both = with_other_experts(excused, prompt, position, 0)
    judgement = GATE.judge(both)
    assert (judgement.verdict, judgement.measured["sets differing"]) == ("pass", 2)
    assert judgement.measured["downstream of another"] == 1
    assert judgement.measured["by layer"] == " ".join("1" if layer in (0, later) else "0" for layer in range(5))


def test_near_ties_are_red_from_three_times_the_floor_s_share_on(case: Case) -> None:
    """Each is within the band; together they are more than any arm shows."""
    allowed = int(case.calibration.limits.sets_differ * case.golden.positions * 5)
    assert 100 < allowed < case.golden.positions
    places = [g for g in gaps(case) if g[3] == 4][: allowed + 1]
    banded = with_bands(case, router_gap=10.0)
    for last, expected in ((allowed, set()), (allowed + 1, {TOO_MANY})):
        spoiled = banded
        for prompt in case.golden.prompts:
            ids = answer(case, prompt).expert_ids
            assert ids is not None
            ids = ids.copy()
            for _, _, position, layer in (g for g in places[:last] if g[1] is prompt):
                ids[position, layer, 0] = next(e for e in range(16) if e not in ids[position, layer])
            spoiled = with_prompt(spoiled, prompt, expert_ids=ids)
        assert kinds(spoiled) == expected


def test_the_order_of_a_set_is_free(case: Case) -> None:
    def reversed_order(run: PromptRun) -> dict[str, np.ndarray | None]:
        assert run.expert_ids is not None
        assert run.expert_weights is not None
        return {"expert_ids": run.expert_ids[..., ::-1].copy(), "expert_weights": run.expert_weights[..., ::-1].copy()}

    assert GATE.judge(routed(case, reversed_order)).verdict == "pass"


def softmax(run: PromptRun) -> np.ndarray:
    """Over the selected experts' logits, which the weights give back."""
    assert run.expert_weights is not None
    odds = run.expert_weights / (1 - run.expert_weights)
    return odds / odds.sum(axis=2, keepdims=True)


def weights_of(case: Case, rule: str) -> Case:
    bias = selection_bias(case.checkpoint)
    layers = np.arange(len(bias))[:, None]

    def change(run: PromptRun) -> dict[str, np.ndarray | None]:
        ids, weights = run.expert_ids, run.expert_weights
        assert ids is not None
        assert weights is not None
        logits = np.log(weights / (1 - weights.astype(np.float64)))
        others = {
            "renormalized": weights / weights.sum(axis=2, keepdims=True),
            "with bias inside": 1 / (1 + np.exp(-(logits + bias[layers, ids]))),
            "with bias added": np.clip(weights + bias[layers, ids], 0, 1),
            "softmax": softmax(run),
            "against the wrong ids": weights[..., ::-1],
            "of the experts before": np.roll(weights, 1, axis=2),
            "all one half": np.full_like(weights, 0.5),
            "one layer off": np.roll(weights, 1, axis=1),
        }
        return {"expert_weights": np.ascontiguousarray(others[rule], dtype=np.float32)}

    return routed(case, change)


RULES = (
    "renormalized",
    "with bias inside",
    "with bias added",
    "softmax",
    "against the wrong ids",
    "of the experts before",
    "all one half",
    "one layer off",
)


@pytest.mark.parametrize("numeric_class", ["bf16", "w8a8", "fp8-kv"])
@pytest.mark.parametrize("rule", RULES)
def test_weights_by_another_rule_are_found_with_and_without_router_logits(case: Case, rule: str, numeric_class: str) -> None:
    spoiled = weights_of(in_class(case, numeric_class), rule)
    assert NOT_SIGMOID in kinds(spoiled)
    unshown = routed(spoiled, lambda _run: {"router_logits": None})
    assert "expert weights: median error above the class's limit" in kinds(unshown)


def test_router_logits_rounded_to_bf16_are_found_though_everything_follows_from_them(case: Case) -> None:
    """384 of 384 on the grid: the errors it makes are within bf16's floor, so only the grid tells."""
    bias = selection_bias(case.checkpoint)

    def rounds(prompt: PromptEvidence) -> Case:
        run = answer(case, prompt)
        assert run.router_logits is not None
        assert run.expert_ids is not None
        assert run.expert_weights is not None
        rounded = run.router_logits.astype(ml_dtypes.bfloat16).astype(np.float32)
        at = list(case.golden.probes_of(prompt.name).positions)
        ids = np.argsort(-(rounded + bias), axis=2, kind="stable")[..., :6].astype(np.int32)
        weights = 1 / (1 + np.exp(-np.take_along_axis(rounded, ids, axis=2).astype(np.float64)))
        return with_prompt(
            case,
            prompt,
            router_logits=rounded,
            expert_ids=changed(run.expert_ids, at, ids),
            expert_weights=changed(run.expert_weights, at, weights),
        )

    for prompt in case.golden.prompts:
        judgement = GATE.judge(rounds(prompt))
        assert headlines(judgement) == [ON_GRID], prompt.name
        assert (judgement.findings[0].count, judgement.findings[0].of) == (10, 5 * len(case.golden.probes.positions))


def test_one_layer_s_rounded_logits_are_found_and_one_value_on_the_grid_is_chance(case: Case) -> None:
    prompt = case.golden.prompts[3]
    logits = answer(case, prompt).router_logits
    assert logits is not None
    rounded = changed(logits, (1, 2), logits[1, 2].astype(ml_dtypes.bfloat16))
    [finding] = [f for f in GATE.judge(with_prompt(case, prompt, router_logits=rounded)).findings if f.headline == ON_GRID]
    assert finding.where == f"{prompt.name}[{case.golden.probes_of(prompt.name).positions[1]}], layer 2"
    left_out = next(e for e in range(16) if e not in prompt.expert_ids[case.golden.probes_of(prompt.name).positions[1], 2])
    single = changed(logits, (1, 2, left_out), logits[1, 2, left_out].astype(ml_dtypes.bfloat16))
    assert GATE.judge(with_prompt(case, prompt, router_logits=single)).verdict == "pass"


@pytest.mark.parametrize("value", [0.0, 0.7, -3.3])
def test_constant_router_logits_are_found(case: Case, value: float) -> None:
    def constant(run: PromptRun) -> dict[str, np.ndarray | None]:
        assert run.router_logits is not None
        return {"router_logits": np.full_like(run.router_logits, value)}

    found = kinds(routed(case, constant))
    assert {NOT_TOP_K, NOT_SIGMOID, "router logits: median error above the class's limit"} <= found
    assert (ON_GRID in found) == (value == 0)


def test_selection_without_the_bias_is_found_at_the_probes(case: Case) -> None:
    """Shown consistently but for the bias: ids by falling logits, and their sigmoids."""
    spoiled = case
    for prompt in case.golden.prompts:
        run = answer(case, prompt)
        assert run.router_logits is not None
        at = list(case.golden.probes_of(prompt.name).positions)
        ids = np.argsort(-run.router_logits, axis=2, kind="stable")[..., :6].astype(np.int32)
        weights = 1 / (1 + np.exp(-np.take_along_axis(run.router_logits, ids, axis=2)))
        spoiled = with_prompt(
            spoiled,
            prompt,
            expert_ids=changed(run.expert_ids, at, ids),  # type: ignore[arg-type]
            expert_weights=changed(run.expert_weights, at, weights),  # type: ignore[arg-type]
        )
    assert {NOT_TOP_K, OUTSIDE_BAND} <= kinds(spoiled)
    assert NOT_SIGMOID not in kinds(spoiled)


@pytest.mark.parametrize("steps", [0, 1, 2, 40])
def test_a_tie_at_the_router_s_edge_may_be_decided_either_way(case: Case, steps: int) -> None:
    """By fp32 rounding, not further: the best expert left out is `steps` times 2^-22 above the last one selected."""
    prompt = case.golden.prompts[0]
    position = case.golden.probes_of(prompt.name).positions[0]
    logits = answer(case, prompt).router_logits
    assert logits is not None
    scores = logits[0, 0] + selection_bias(case.checkpoint)[0]
    last, best_out = np.argsort(-scores, kind="stable")[5:7]
    assert set(prompt.expert_ids[position, 0].tolist()) >= {last}
    lifted = logits[0, 0, best_out] + (scores[last] - scores[best_out]) + steps * 2.0**-22
    tied = changed(logits, (0, 0, best_out), lifted)
    assert (NOT_TOP_K in kinds(with_prompt(case, prompt, router_logits=tied))) == (steps == 40)


def test_honest_noise_at_the_floor_s_level_stays_green(case: Case) -> None:
    rng = np.random.default_rng(3)
    limits = case.calibration.limits
    size = np.array(limits.weight_median)[:, None] / limits.multiple / 2

    def jitter(prompt: PromptEvidence) -> np.ndarray:
        weights = answer(case, prompt).expert_weights
        assert weights is not None
        noisy = np.clip(weights + size * rng.normal(size=weights.shape), 0, 1)
        at = list(case.golden.probes_of(prompt.name).positions)
        return changed(noisy, at, weights[at]).astype(np.float32)

    noisy = case
    for prompt in case.golden.prompts:
        noisy = with_prompt(noisy, prompt, expert_weights=jitter(prompt))
    judgement = GATE.judge(noisy)
    assert (judgement.verdict, judgement.findings) == ("pass", ())
    assert 0.1 < float(judgement.measured["largest weight error over its limit"]) < 1


def test_one_wrong_weight_is_found_in_class_fp32_wherever_it_is(case: Case, fp32_case: Case) -> None:
    prompt = case.golden.prompts[5]
    weights = answer(case, prompt).expert_weights
    assert weights is not None
    for judged, expected in ((case, set()), (fp32_case, {"expert weights differ where sets agree"})):
        off = changed(weights, (7, 3, 2), weights[7, 3, 2] + 2e-5)
        assert kinds(with_prompt(judged, prompt, expert_weights=off)) == expected
        assert kinds(with_prompt(judged, prompt, expert_weights=changed(weights, (7, 3, 2), weights[7, 3, 2] + 2e-6))) == set()


class Shows(PerfectSubject):
    """The perfect subject with one number of one step replaced, in the evidence it gives."""

    name, value, at = "expert_weights", np.nan, 0

    def step(self, token: int) -> StepEvidence:
        step = super().step(token)
        if step.position != self.at:
            return step
        array = getattr(step, self.name).copy()
        array[1, 2] = self.value
        return replace(step, **{self.name: array})


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["expert_weights", "router_logits"])
def test_numbers_that_are_not_finite_are_found_and_told_apart_from_the_head_s(
    case: Case, golden: Golden, name: str, value: float
) -> None:
    prompt = golden.prompts[0]
    probes = golden.probes_of(prompt.name).positions
    subject = FACTORY.open(SubjectRequest(mini_checkpoint(), mini_golden()))
    subject.__class__ = type("Spoiled", (Shows,), {"name": name, "value": value, "at": probes[0]})
    run = drive(subject, prompt, probes)
    assert np.flatnonzero(run.non_finite).tolist() == [probes[0]]
    assert "NaN or infinite weights or router logits" in kinds(case.with_run(prompts={**case.run.prompts, prompt.name: run}))
    head = with_prompt(case, prompt, non_finite=changed(answer(case, prompt).non_finite, 3, 1))
    assert GATE.judge(head).verdict == "pass"


@pytest.mark.parametrize(("array", "what"), [("expert_weights", "expert weights"), ("router_logits", "router logits")])
def test_half_of_the_evidence_is_owed_by_a_subject_that_declares_the_gate(case: Case, array: str, what: str) -> None:
    half = routed(case, lambda _run: {array: None})
    declared = GATE.judge(half)
    assert (declared.verdict, headlines(declared)) == ("incomplete", [f"the run shows no {what}"])
    others = tuple(g for g in case.run.identity.required_gates if g != "routing")
    undeclared = GATE.judge(with_run(half, identity=replace(half.run.identity, required_gates=others)))
    assert (undeclared.verdict, undeclared.measured[what]) == ("pass", "not shown")
    assert undeclared.compared < GATE.judge(case).compared


def test_a_layer_at_which_no_weight_could_be_compared_is_not_green(case: Case) -> None:
    """Every position's sets differ within the band, from layer 2 on."""
    banded = with_bands(case, router_gap=10.0)
    floor = banded.calibration.limits.floor.model_copy(update={"sets_differ": 1.0})
    limits = banded.calibration.limits.model_copy(update={"floor": floor})
    banded = replace(banded, calibration=banded.calibration.model_copy(update={"limits": limits}))

    def others(run: PromptRun) -> dict[str, np.ndarray | None]:
        assert run.expert_ids is not None
        ids = run.expert_ids.copy()
        free = np.ones((*ids.shape[:2], 16), dtype=bool)
        np.put_along_axis(free, ids.astype(np.int64), False, axis=2)
        ids[:, 2, 0] = free[:, 2].argmax(axis=1)
        return {"expert_ids": ids, "router_logits": None}

    identity = replace(case.run.identity, required_gates=("golden",))
    judgement = GATE.judge(with_run(routed(banded, others), identity=identity))
    assert judgement.verdict == "incomplete"
    assert [(f.headline, f.where) for f in judgement.findings] == [("no position's weights could be compared", "layer 2")]


def test_with_forced_routing_no_set_and_no_weight_may_differ_however_near_the_tie(case: Case) -> None:
    free, forced = case, with_run(case, forced=True)
    assert GATE.judge(forced).verdict == "pass"
    _, prompt, position, layer = gaps(case)[0]
    for judged, expected in ((free, set()), (forced, {"expert sets differ although routing was forced"})):
        assert kinds(with_other_experts(judged, prompt, position, layer)) == expected
    weights = answer(case, prompt).expert_weights
    assert weights is not None
    off = changed(weights, (position, layer, 0), weights[position, layer, 0] + 1e-4)
    for judged, expected in ((free, set()), (forced, {"expert weights are not those forced"})):
        assert kinds(with_prompt(judged, prompt, expert_weights=off)) == expected


def test_forced_experts_need_not_follow_from_the_router_s_own_logits(case: Case) -> None:
    prompt = case.golden.prompts[0]
    logits = answer(case, prompt).router_logits
    assert logits is not None
    lifted = changed(logits, (0, 0), logits[0, 0] + np.linspace(0, 0.04, 16))
    other = with_prompt(case, prompt, router_logits=lifted)
    assert NOT_SIGMOID in kinds(other)
    assert kinds(with_run(other, forced=True)) == set()


def test_a_forced_run_s_controls_behave(case: Case) -> None:
    results = gate_controls(GATE, with_run(case, forced=True))
    assert [c.name for c in results if not c.behaved] == []
