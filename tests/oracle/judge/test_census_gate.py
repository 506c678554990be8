"""Gate `census`: violations, counts against what is declared, and what is declared against the model."""

from __future__ import annotations

from dataclasses import replace

import pytest
from judge_cases import headlines, with_run

from oracle.judge.census import CensusGate, undeclared
from oracle.judge.gate import Case
from oracle.subjects.census import CensusEvidence

GATE = CensusGate()


@pytest.fixture(scope="module")
def shown(case: Case) -> Case:
    """The perfect run with the evidence of an honest decoder."""
    return GATE.honest(case)


def seen(case: Case, **changes: object) -> Case:
    assert case.run.census is not None
    return with_run(case, census=replace(case.run.census, **changes))


def test_an_honest_decoder_passes_and_every_use_of_a_weight_is_counted(shown: Case) -> None:
    judgement = GATE.judge(shown)
    assert (judgement.verdict, judgement.findings) == ("pass", ())
    a_step = 3 + 5 * (6 + 3 + 1 + 1 + 3 * (6 + 1))
    assert judgement.compared == shown.golden.positions * a_step
    assert judgement.measured["steps"] == shown.golden.positions


def test_each_planted_fault_is_found(shown: Case, case: Case) -> None:
    plants = GATE.plants(shown)
    assert all(GATE.judge(planted).verdict == "fail" for planted in (*plants.values(), *GATE.plants(case).values()))
    found = {name: headlines(GATE.judge(planted)) for name, planted in plants.items()}
    for name, part in {
        "a violation": "planted",
        "a step not recorded": "steps recorded are not those of the run",
        "a step too many": "steps recorded are not those of the run",
        "a weight short": "uses of weights recorded are not those of the run",
        "a weight too many": "uses of weights recorded are not those of the run",
        "nothing declared": "rms_norm declared in a full layer is not what the model has",
        "two declarations": "ops in a full layer are not those declared",
        "an op too many in a full layer": "ops in a full layer are not those declared",
        "one differs in a sliding layer": "ops in a sliding layer are not those declared",
        "an op short outside the layers": "ops outside the layers are not those declared",
        "one not counted in a sliding layer": "counts of ops in a sliding layer are not one for each",
        "one counted twice outside the layers": "counts of ops outside the layers are not one for each",
        "an add short, as declared": "fewer additions declared in a full layer than the residual stream has",
        "RoPE on full layers, as declared": "rotary_embedding_hf declared in a full layer is not what the model has",
        "RoPE of keys alone, as declared": "rotary_embedding_hf declared in a sliding layer is not what the model has",
        "a norm more, as declared": "rms_norm declared outside the layers is not what the model has",
    }.items():
        assert part in found[name], (name, found[name])


def test_a_differing_count_says_where_and_what(shown: Case) -> None:
    assert shown.run.census is not None
    *others, last = shown.run.census.tallies
    ops = tuple((op, n + (op == "add")) for op, n in last.ops)
    some = replace(last, times=3, ops=ops, first="copying[7] layer 4")
    changed = seen(shown, tallies=(*others, replace(last, times=last.times - 3), some))
    [finding] = GATE.judge(changed).findings
    assert (finding.where, finding.worst, finding.allowed, finding.count) == ("copying[7] layer 4", "add 3", "add 2", 3)
    assert changed.run.census is not None
    assert undeclared(changed.run.census) == [(some, "add 3", "add 2")]
    assert undeclared(shown.run.census) == []


def test_a_subject_may_have_more_ops_than_the_model_asks_for_where_it_says_so(shown: Case) -> None:
    assert shown.run.census is not None
    more = (*shown.run.census.declared, ("layer", "swiglu", 7), ("step", "typecast", 1))
    extra = {"step": (("typecast", 1),), "layer": (("swiglu", 7),), "sliding": (("swiglu", 7),)}
    tallies = tuple(replace(t, ops=tuple(sorted((*t.ops, *extra[t.where])))) for t in shown.run.census.tallies)
    assert GATE.judge(seen(shown, declared=more, tallies=tallies)).verdict == "pass"
    assert GATE.judge(seen(shown, declared=more)).verdict == "fail"


def test_a_router_s_bias_in_each_layer_of_each_step_may_be_used_besides(shown: Case) -> None:
    assert shown.run.census is not None
    steps, weights = shown.run.census.steps, shown.run.census.weights
    assert GATE.judge(seen(shown, weights=weights + 5 * steps)).verdict == "pass"
    assert GATE.judge(seen(shown, weights=weights + 5 * steps + 1)).verdict == "fail"


def test_no_evidence_is_incomplete_and_evidence_of_nothing_never_green(case: Case, shown: Case) -> None:
    assert (GATE.judge(case).verdict, GATE.judge(case).compared) == ("incomplete", 0)
    assert GATE.judge(with_run(shown, census=CensusEvidence())).verdict == "fail"
    nothing = with_run(GATE.honest(with_run(shown, prompts={})), prompts={})
    assert (GATE.judge(nothing).verdict, GATE.judge(nothing).compared) == ("incomplete", 0)
