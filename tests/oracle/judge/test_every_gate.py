"""Red conditions of every gate: nothing to compare, other shapes, numbers that are not finite, measures that cannot be.

Each kind of damage is done to a run, a golden or a measure that is otherwise perfect, and each gate is asked alone, as
`--only` does: its verdict is `fail` or `incomplete`, and nothing is raised. Statistics would miss most of these: a median
does not feel one NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from judge_cases import with_a_device

import oracle.judge.gate as gate_module
from oracle.golden.compare import Comparison, compare
from oracle.golden.evidence import PromptEvidence, PromptProbes
from oracle.golden.format import Golden
from oracle.judge.gate import Case, Judgement, PlantsEvidence, gate_id
from oracle.judge.gates import GATE_NAMES, GATES
from oracle.judge.verdict import Report, judge_session
from oracle.subjects.run import PromptRun, ResidentEvidence, SlotEvidence

GATES_OF_RUNS = [gate.name for gate in GATES if gate.needs_alignment]
MEASURED = [
    gate.name
    for gate in GATES
    if gate.name not in ("golden", "staging", "slots", "ops") and not isinstance(gate, PlantsEvidence)
]
RUN_ARRAYS = [f.name for f in fields(PromptRun)]
RUN_FLOATS = ("logits_at_golden", "top_logits", "logsumexp", "expert_weights", "sketch")
GOLDEN_FLOATS = ("top_logits", "logsumexp", "expert_weights", "router_gap", "sketch")


@pytest.fixture(scope="module")
def whole(case: Case) -> Case:
    """Two short prompts answered perfectly by a subject that shows everything a gate can ask for."""
    prompts = tuple(sorted(case.golden.prompts, key=lambda p: len(p.fed))[:2])
    small = replace(case, golden=replace(case.golden, prompts=prompts))
    small = small.with_run(prompts={p.name: case.run.prompts[p.name] for p in prompts})
    identity = replace(case.run.identity, required_gates=GATE_NAMES, device={"kind": "sim"})
    shown = with_a_device(small.with_run(identity=identity))
    return replace(shown, base=None)


def judged(case: Case, perfect: Case, gate: str) -> Report:
    """One gate's session; the perfect run is controlled by the same golden."""
    return judge_session(case.golden, case.checkpoint, case.run, perfect.run, selected=(gate,), partial=True)


def red(case: Case, perfect: Case, gate: str) -> None:
    report = judged(case, perfect, gate)
    result = next(r for r in report.gates if r.name == gate)
    assert result.verdict in ("fail", "incomplete"), result
    assert result.findings
    assert report.verdict in ("fail", "incomplete")
    report.to_json()


@pytest.mark.parametrize("gate", [gate.name for gate in GATES if gate.name != "golden"])
def test_without_damage_each_gate_passes_alone(whole: Case, gate: str) -> None:
    """But for the golden's own: two of its prompts are not what its digest is of."""
    report = judged(whole, whole, gate)
    assert (report.verdict, report.gates[0].name, report.gates[0].verdict) == ("pass", gate, "pass")


# Nothing to compare.


@pytest.mark.parametrize("compared", [0, -1])
def test_a_gate_that_compared_nothing_or_less_is_incomplete_even_where_it_found_nothing(compared: int) -> None:
    assert Judgement(compared).verdict == "incomplete"
    assert Judgement(1).verdict == "pass"


@pytest.mark.parametrize("gate", [gate.name for gate in GATES])
def test_a_golden_without_prompts_is_red(whole: Case, gate: str) -> None:
    empty = whole.with_golden(prompts=()).with_run(prompts={}, slots=SlotEvidence(), residents=ResidentEvidence(), stats={})
    red(empty, whole, gate)


@pytest.mark.parametrize("gate", [gate.name for gate in GATES])
def test_a_golden_whose_prompt_has_no_positions_is_red(whole: Case, gate: str) -> None:
    first, *rest = whole.golden.prompts
    none = {name: getattr(first, name)[:0] for name in PromptEvidence.ARRAYS}
    gone = replace(first, prompt_ids=(), generated=(), **none)
    red(whole.with_golden(prompts=(gone, *rest)), whole, gate)


@pytest.mark.parametrize("gate", [gate.name for gate in GATES if gate.name not in ("golden", "ops")])
def test_a_run_without_prompts_is_red(whole: Case, gate: str) -> None:
    red(whole.with_run(prompts={}, slots=SlotEvidence(), residents=ResidentEvidence(), stats={}), whole, gate)


@pytest.mark.parametrize("gate", MEASURED)
def test_a_prompt_of_zero_positions_in_the_run_is_red(whole: Case, gate: str) -> None:
    name = whole.golden.prompts[0].name
    none = {array: getattr(whole.run.prompts[name], array)[:0] for array in RUN_ARRAYS}
    red(whole.with_prompt(name, **none), whole, gate)


# Other shapes: nothing is broadcast.

RESHAPED: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "one row": lambda a: a[:1],
    "a row short": lambda a: a[:-1],
    "a row too many": lambda a: np.concatenate([a, a[-1:]]),
    "another axis": lambda a: a[..., None],
    "flat": lambda a: a.reshape(-1) if a.ndim > 1 else a[None],
}


@pytest.mark.parametrize("how", RESHAPED)
@pytest.mark.parametrize("array", RUN_ARRAYS)
def test_an_array_of_another_shape_is_red_in_every_gate(whole: Case, array: str, how: str) -> None:
    name = whole.golden.prompts[0].name
    reshaped = whole.with_prompt(name, **{array: RESHAPED[how](getattr(whole.run.prompts[name], array))})
    report = judge_session(whole.golden, whole.checkpoint, reshaped.run, whole.run, selected=MEASURED)
    verdicts = {result.name: result.verdict for result in report.gates if result.name in MEASURED}
    assert verdicts == {"alignment": "fail", **dict.fromkeys(GATES_OF_RUNS, "incomplete")}


def changed_golden(whole: Case, array: str, change: Callable[[np.ndarray], Any]) -> Case:
    first, *rest = whole.golden.prompts
    return whole.with_golden(prompts=(replace(first, **{array: change(getattr(first, array))}), *rest))


@pytest.mark.parametrize("how", RESHAPED)
@pytest.mark.parametrize("array", PromptEvidence.ARRAYS)
def test_an_array_of_the_golden_of_another_shape_is_red_in_every_gate(whole: Case, array: str, how: str) -> None:
    damaged = changed_golden(whole, array, RESHAPED[how])
    report = judge_session(damaged.golden, whole.checkpoint, damaged.run, whole.run, selected=GATE_NAMES)
    verdicts = {result.name: result.verdict for result in report.gates if result.name != "ledger"}
    assert verdicts == {"golden": "fail", **dict.fromkeys([g.name for g in GATES if g.name != "golden"], "incomplete")}
    assert report.verdict == "fail"


# Numbers that are not finite.


def with_value(value: float) -> Callable[[np.ndarray], np.ndarray]:
    def change(array: np.ndarray) -> np.ndarray:
        out = array.copy()
        out.reshape(-1)[out.size // 2] = value
        return out

    return change


@pytest.mark.parametrize("value", [np.nan, -np.inf])
@pytest.mark.parametrize("array", RUN_FLOATS)
def test_one_number_of_the_run_that_is_not_finite_is_red_in_every_gate(whole: Case, array: str, value: float) -> None:
    name = whole.golden.prompts[0].name
    damaged = whole.with_prompt(name, **{array: with_value(value)(getattr(whole.run.prompts[name], array))})
    report = judge_session(whole.golden, whole.checkpoint, damaged.run, whole.run, selected=MEASURED)
    assert all(result.verdict != "pass" for result in report.gates if result.name in MEASURED)
    assert report.verdict == "fail"


@pytest.mark.parametrize("value", [np.nan, -np.inf])
@pytest.mark.parametrize("array", GOLDEN_FLOATS)
def test_one_number_of_the_golden_that_is_not_finite_is_red_in_every_gate(whole: Case, array: str, value: float) -> None:
    damaged = changed_golden(whole, array, with_value(value))
    report = judge_session(damaged.golden, whole.checkpoint, damaged.run, whole.run, selected=GATE_NAMES)
    assert all(result.verdict != "pass" for result in report.gates)
    report.to_json()


@pytest.mark.parametrize(("array", "zeroed"), [("top_logits", np.s_[3]), ("sketch", np.s_[3, 1])])
def test_a_golden_to_which_no_distance_can_be_taken_is_red_in_every_gate(whole: Case, array: str, zeroed: Any) -> None:
    def blank(values: np.ndarray) -> np.ndarray:
        out = values.copy()
        out[zeroed] = 0
        return out

    damaged = changed_golden(whole, array, blank)
    report = judge_session(damaged.golden, whole.checkpoint, damaged.run, whole.run, selected=GATE_NAMES)
    assert all(result.verdict != "pass" for result in report.gates)


@pytest.mark.parametrize("gate", GATES_OF_RUNS)
def test_one_nan_that_the_harness_counted_and_stored_as_0_is_red_in_every_gate_that_measures(whole: Case, gate: str) -> None:
    name = whole.golden.prompts[1].name
    counts = whole.run.prompts[name].non_finite.copy()
    counts[-1] = 1
    red(whole.with_prompt(name, non_finite=counts), whole, gate)


# Measures that cannot be, as from a broken comparison.

IMPOSSIBLE = [
    ("kl", -1e-9),
    ("kl", np.nan),
    ("mass", 1.01),
    ("mass", -0.1),
    ("rank", 64),
    ("rank", -2),
    ("regret", -1.0),
    ("margin", -1e-6),
    ("logit_error", -1.0),
    ("logit_error", np.inf),
    ("set_gap", -0.1),
    ("first_set_difference", 6),
    ("first_set_difference", -1),
    ("sketch_distance", -1e-9),
    ("sketch_distance", np.nan),
    ("sketch_dot", np.inf),
    ("sketch_square", -1.0),
    ("top", np.nan),
]


@pytest.mark.parametrize(("measure", "value"), IMPOSSIBLE)
def test_a_measure_outside_its_range_is_red_in_every_gate_that_measures(
    whole: Case, monkeypatch: pytest.MonkeyPatch, measure: str, value: float
) -> None:
    name = whole.golden.prompts[1].name

    def broken(prompt: PromptEvidence, run: PromptRun, probes: PromptProbes) -> Comparison:
        honest = compare(prompt, run, probes)
        if prompt.name != name or run is not whole.run.prompts[name]:
            return honest
        return replace(honest, **{measure: with_value(value)(getattr(honest, measure))})

    monkeypatch.setattr(gate_module, "compare", broken)
    control = whole.with_prompts(lambda run: replace(run))  # the same answers, compared honestly
    report = judge_session(whole.golden, whole.checkpoint, whole.run, control.run, selected=MEASURED)
    verdicts = {result.name: result.verdict for result in report.gates if result.name in MEASURED}
    assert verdicts == {"alignment": "pass", **dict.fromkeys(GATES_OF_RUNS, "fail")}
    finding = next(result for result in report.gates if result.name == "flips").findings[0]
    assert finding.headline == f"measure {measure} is outside its range"
    assert finding.where.startswith(f"{name}[")
    report.to_json()


@pytest.mark.parametrize("measure", [f.name for f in fields(Comparison) if f.name != "flip"])  # that is `rank != 0`
def test_a_measure_of_another_shape_is_red_in_every_gate_that_measures(
    whole: Case, monkeypatch: pytest.MonkeyPatch, measure: str
) -> None:
    def broken(prompt: PromptEvidence, run: PromptRun, probes: PromptProbes) -> Comparison:
        honest = compare(prompt, run, probes)
        if run is not whole.run.prompts[prompt.name]:
            return honest
        return replace(honest, **{measure: getattr(honest, measure)[:1]})

    monkeypatch.setattr(gate_module, "compare", broken)
    control = whole.with_prompts(lambda run: replace(run))
    report = judge_session(whole.golden, whole.checkpoint, whole.run, control.run, selected=MEASURED)
    assert {r.verdict for r in report.gates if r.name in GATES_OF_RUNS} == {"fail"}


# Evidence of a device that cannot be.


@pytest.mark.parametrize("fill", [-1, 0])
def test_slots_of_which_nothing_or_less_was_seen_are_red(whole: Case, fill: int) -> None:
    assert whole.run.slots is not None
    stats = {"fills": fill, "staged_bytes": fill, "verified_bytes": fill}
    seen = replace(whole.run.slots, fills=fill, verified_bytes=fill, checkpoint_bytes=fill)
    red(whole.with_run(slots=seen, stats=stats), whole, "slots")


@pytest.mark.parametrize("evidence", [ResidentEvidence(), ResidentEvidence(2), ResidentEvidence(-2)])
def test_residents_of_which_nothing_or_less_was_seen_are_red(whole: Case, evidence: ResidentEvidence) -> None:
    red(whole.with_run(residents=evidence), whole, "staging")


# What plants cost: only what they changed is measured anew.


def test_a_changed_copy_of_a_case_measures_only_the_prompts_that_changed(whole: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    base = replace(whole)
    expected = {name: base.comparisons[name] for name in base.comparisons}
    measured: list[str] = []

    def counted(prompt: PromptEvidence, run: PromptRun, probes: PromptProbes) -> Comparison:
        measured.append(prompt.name)
        return compare(prompt, run, probes)

    monkeypatch.setattr(gate_module, "compare", counted)
    first, second = base.golden.prompts
    argmax = base.run.prompts[first.name].argmax.copy()
    argmax[3] ^= 1
    spoiled = base.with_prompt(first.name, argmax=argmax)
    assert spoiled.comparisons[second.name] is expected[second.name]
    assert spoiled.comparisons[first.name].flip[3]
    assert not expected[first.name].flip[3]
    assert measured == [first.name]
    other = base.with_golden(prompts=(first, replace(second, top_logits=second.top_logits * 2)))
    assert other.with_prompt(first.name, argmax=argmax).comparisons[second.name].kl.max() > 0
    assert measured == [first.name, first.name, second.name]
    assert base.with_prompts(lambda run: run).comparisons == expected


def test_gate_ids_are_those_of_their_definitions(whole: Case) -> None:
    report = judge_session(whole.golden, whole.checkpoint, whole.run, whole.run, selected=GATE_NAMES)
    assert [r.id for r in report.gates[:-1]] == [gate_id(gate.name, gate.definition) for gate in GATES]


def test_the_damage_reaches_every_array(golden: Golden) -> None:
    floats = [f for f in RUN_ARRAYS if f in RUN_FLOATS]
    assert len(floats) == len(RUN_FLOATS)
    kinds = {name: getattr(golden.prompts[0], name).dtype.kind for name in PromptEvidence.ARRAYS}
    assert {name for name, kind in kinds.items() if kind == "f"} == set(GOLDEN_FLOATS)
