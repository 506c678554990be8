"""Gate `operands`: every violation of the auditor, counts against the plan, and experts against those in use."""

from __future__ import annotations

from dataclasses import replace

import pytest
from judge_cases import headlines, with_run

from oracle.judge.gate import Case
from oracle.judge.operands import OperandsGate
from oracle.subjects.operands import OperandEvidence

GATE = OperandsGate()


@pytest.fixture(scope="module")
def shown(case: Case) -> Case:
    """The perfect run with the evidence of an honest device."""
    return GATE.honest(case)


def seen(case: Case, **changes: object) -> Case:
    assert case.run.operands is not None
    return with_run(case, operands=replace(case.run.operands, **changes))


def test_an_honest_device_passes_and_every_element_is_counted(shown: Case) -> None:
    judgement = GATE.judge(shown)
    assert (judgement.verdict, judgement.findings) == ("pass", ())
    prompts, resident, expert = len(shown.golden.prompts), 5 * (196_608 + 2 * 65_536 + 196_608 + 3 * 65_536), 3 * 65_536
    assert judgement.measured["experts"] == 80
    assert judgement.compared == 2 * prompts * resident + 80 * expert + 6 * prompts * expert


def test_each_planted_fault_is_found(shown: Case, case: Case) -> None:
    plants = GATE.plants(shown)
    found = {name: headlines(GATE.judge(planted)) for name, planted in plants.items()}
    assert all(GATE.judge(planted).verdict == "fail" for planted in (*plants.values(), *GATE.plants(case).values()))
    for name, part in {
        "a violation": "planted",
        "a prompt without a read-back": "not read back once after each prompt",
        "an expert never uploaded": "experts were used of which no copy was uploaded",
        "no expert held": "a prompt had no copy of an expert held",
        "a tensor short, held": "copies held of kind 'attention q' are not those of the plan",
        "a kind missing, uploaded": "copies uploaded of kind 'attention q' are not those of the plan",
        "an element short, held": "elements held of kind 'attention q' are not those of 85 tensors",
        "a kind too many, uploaded": "copies uploaded of kind 'final norm' are not those of the plan",
        "an expert's part short, held": "experts were held in part",
        "an expert's part short, uploaded": "experts were uploaded in part",
    }.items():
        assert part in found[name], (name, found[name])


@pytest.mark.parametrize("when", ["uploaded", "held"])
@pytest.mark.parametrize("index", range(7))
def test_a_count_of_any_kind_off_by_one_tensor_or_element_is_found(shown: Case, when: str, index: int) -> None:
    rows = list(getattr(shown.run.operands, when))
    assert len(rows) == 7
    kind, tensors, size = rows[index]
    for off in ((-1, 0), (1, 0), (0, -1), (0, 1)):
        rows[index] = (kind, tensors + off[0], size + off[1])
        assert GATE.judge(seen(shown, **{when: tuple(rows)})).verdict == "fail", (kind, off)


def test_every_expert_in_use_was_uploaded_and_more_may_be(shown: Case) -> None:
    assert shown.run.operands is not None
    experts = shown.run.operands.experts
    [finding] = GATE.judge(seen(shown, experts=(*experts[:7], *experts[8:]))).findings
    assert (finding.where, finding.count, finding.of) == (f"layer {experts[7][0]} expert {experts[7][1]}", 1, len(experts))
    assert GATE.judge(seen(shown, experts=tuple((layer, expert, 5) for layer, expert, _ in experts))).verdict == "pass"


def test_violations_and_read_backs_are_findings_of_their_own(shown: Case) -> None:
    assert headlines(GATE.judge(seen(shown, violations=("one", "another")))) == ["one", "another"]
    prompts = len(shown.golden.prompts)
    judgement = GATE.judge(GATE.honest(shown).with_run(prompts=dict(list(shown.run.prompts.items())[1:])))
    assert headlines(judgement) == ["not read back once after each prompt"]
    assert (judgement.findings[0].worst, judgement.findings[0].allowed) == (f"{prompts} read-backs", str(prompts - 1))


def test_no_evidence_is_incomplete_and_evidence_of_nothing_never_green(case: Case, shown: Case) -> None:
    assert (GATE.judge(case).verdict, GATE.judge(case).compared) == ("incomplete", 0)
    assert GATE.judge(with_run(shown, operands=OperandEvidence())).verdict == "fail"
    nothing = with_run(shown, prompts={}, operands=OperandEvidence())
    assert (GATE.judge(nothing).verdict, GATE.judge(nothing).compared) == ("incomplete", 0)


def test_a_run_that_does_not_show_its_experts_is_incomplete(shown: Case) -> None:
    blind = shown.with_prompts(lambda run: replace(run, expert_ids=None, free_expert_ids=None))
    assert headlines(GATE.judge(blind)) == ["the run does not show which experts it used"]
    assert GATE.judge(blind).verdict == "incomplete"
