"""Evidence that a subject may leave out: what is missing is never compared, never excuses anything, and never looks green."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from judge_cases import flipped, headlines, narrowest, with_bands, with_other_experts, with_run

from oracle.judge.alignment import AlignmentGate
from oracle.judge.flip_record import flip_records
from oracle.judge.flips import FlipsGate
from oracle.judge.gate import Case
from oracle.judge.gates import GATE_NAMES, REQUIRED_OF_ALL
from oracle.judge.session import SessionOptions, run_session
from oracle.judge.verdict import Report, judge_session
from oracle.subjects.run import PromptRun, SlotEvidence, save_run

ROUTING = ("expert_ids", "expert_weights", "free_expert_ids", "router_logits", "non_finite_routing")
TOKEN_ONLY = (*REQUIRED_OF_ALL, "logits", "ledger")


def without(case: Case, *arrays: str, declared: tuple[str, ...] = TOKEN_ONLY) -> Case:
    """The case's run without those arrays, of a subject that declares those gates."""
    bare: Callable[[PromptRun], PromptRun] = lambda run: replace(run, **dict.fromkeys(arrays))  # noqa: E731
    return with_run(case.with_prompts(bare), identity=replace(case.run.identity, required_gates=declared))


def judged(case: Case, perfect: Case) -> Report:
    return judge_session(case.golden, case.checkpoint, case.run, perfect.run, selected=GATE_NAMES)


def verdicts(report: Report) -> dict[str, str]:
    return {gate.name: gate.verdict for gate in report.gates}


@pytest.fixture(scope="module")
def few(case: Case) -> Case:
    prompts = tuple(sorted(case.golden.prompts, key=lambda p: len(p.fed))[:4])
    runs = {p.name: case.run.prompts[p.name] for p in prompts}
    return replace(case, golden=replace(case.golden, prompts=prompts), run=replace(case.run, prompts=runs))


def test_an_engine_of_tokens_and_logits_alone_is_green_by_the_gates_it_declares(few: Case) -> None:
    report = judged(without(few, "sketch", *ROUTING), few)
    assert report.verdict == "pass", [str(f) for g in report.gates for f in g.findings]
    missing = {gate.name: gate for gate in report.gates if gate.verdict == "not applicable"}
    of_a_device = {"staging", "slots", "operands", "ops", "census", "counters", "determinism", "capture"}
    assert missing.keys() == {"residual", "routing", *of_a_device}
    assert all((gate.compared, gate.controls) == (0, ()) for gate in missing.values())


@pytest.mark.parametrize(("gate", "arrays"), [("residual", ("sketch",)), ("routing", ROUTING)])
def test_a_gate_that_is_declared_and_whose_evidence_is_missing_is_incomplete(
    few: Case, gate: str, arrays: tuple[str, ...]
) -> None:
    report = judged(without(few, *arrays, declared=few.run.identity.required_gates), few)
    assert (report.verdict, report.exit_code, verdicts(report)[gate]) == ("incomplete", 3, "incomplete")
    [result] = [g for g in report.gates if g.name == gate]
    assert result.compared == 0
    assert all(control.behaved for control in result.controls)
    assert {name for name, verdict in verdicts(report).items() if verdict == "incomplete"} == {gate, "ledger"}


@pytest.mark.parametrize("arrays", [("sketch",), ROUTING, ("sketch", *ROUTING)])
def test_evidence_that_one_prompt_alone_leaves_out_is_not_aligned(few: Case, arrays: tuple[str, ...]) -> None:
    for prompt in few.golden.prompts:
        half = few.with_prompt(prompt.name, **dict.fromkeys(arrays))
        judgement = AlignmentGate().judge(half)
        assert judgement.verdict == "fail"
        assert {f.where for f in judgement.findings} == {prompt.name}
        assert set(headlines(judgement)) == {f"array {name} is missing, other prompts have it" for name in arrays}
        report = judged(half, few)
        assert (report.verdict, verdicts(report)["flips"]) == ("fail", "incomplete")


@pytest.mark.parametrize(
    ("gone", "said"),
    [
        ("expert_ids", "free_expert_ids is there without expert_ids"),
        ("expert_ids", "expert_weights is there without expert_ids"),
        ("free_expert_ids", "expert_ids is there without free_expert_ids"),
        ("non_finite_routing", "expert_weights is there without non_finite_routing"),
        ("non_finite_routing", "router_logits is there without non_finite_routing"),
    ],
)
def test_an_array_without_the_one_it_is_judged_with_is_not_aligned(few: Case, gone: str, said: str) -> None:
    judgement = AlignmentGate().judge(without(few, gone))
    assert judgement.verdict == "fail"
    assert f"array {said}" in headlines(judgement)


def test_a_flip_that_the_router_would_excuse_is_hard_where_no_experts_are_shown(few: Case) -> None:
    """Unknown sets count as agreeing: no router near tie without its evidence."""
    prompt, position = narrowest(few)
    margin = float(prompt.margin[position])
    banded = with_bands(few, router_gap=10.0, router_regret=2 * margin)
    excused = with_other_experts(flipped(banded, prompt, position), prompt, position, layer=1)
    assert [r.label for r in flip_records(excused)] == ["router-near-tie"]
    bare = without(excused, *ROUTING)
    [record] = flip_records(bare)
    assert (record.label, record.set_layer, record.set_gap) == ("hard", None, 0.0)
    assert headlines(FlipsGate().judge(bare)) == ["hard flips"]
    near = with_bands(bare, regret=margin)
    assert FlipsGate().judge(near).measured["near-tie"] == 1


def test_a_flip_of_a_run_without_sketches_names_no_layer(few: Case) -> None:
    prompt, position = narrowest(few)
    [record] = flip_records(without(flipped(few, prompt, position), "sketch", *ROUTING))
    assert (record.sketch_layer, record.label) == (None, "near-tie")


def test_uses_of_slots_cannot_be_told_without_the_experts_that_were_used(few: Case) -> None:
    stats = {"fills": 1, "staged_bytes": 10, "verified_bytes": 10}
    slots = SlotEvidence(1, 10, 10, 5, expert_uses=((0, 0, 5),))
    report = judged(with_run(without(few, *ROUTING), slots=slots, stats=stats), few)
    [gate] = [g for g in report.gates if g.name == "slots"]
    assert (gate.verdict, [f.headline for f in gate.findings]) == (
        "incomplete",
        ["the run does not show which experts it used"],
    )


@pytest.mark.parametrize("arrays", [("sketch",), ROUTING])
def test_a_control_run_without_the_evidence_of_the_run_is_red(few: Case, arrays: tuple[str, ...]) -> None:
    report = judged(few, without(few, *arrays))
    gate = "residual" if arrays == ("sketch",) else "routing"
    assert report.verdict == "fail"
    assert [c.seen for g in report.gates if g.name == gate for c in g.controls] == ["no evidence", "not run"]


def test_a_stored_run_of_tokens_and_logits_alone_is_judged_by_a_control_of_the_same_kind(case: Case, tmp_path: Path) -> None:
    from goldens import mini_checkpoint

    bare = without(case, "sketch", *ROUTING)
    save_run(bare.run, tmp_path / "run", control=bare.run)
    report = run_session(SessionOptions(mini_checkpoint(), mini_checkpoint() / "golden", replay=tmp_path / "run"))
    assert report.verdict == "pass"
    assert {name for name, verdict in verdicts(report).items() if verdict == "not applicable"} == {
        "staging",
        "residual",
        "routing",
        "slots",
        "operands",
        "ops",
        "census",
        "counters",
        "determinism",
        "capture",
    }
