"""Gate `staging`: every violation of the auditor, and counts against the plan that the checkpoint's inventory gives."""

from __future__ import annotations

from dataclasses import replace

import pytest
from judge_cases import headlines, with_run

from oracle.judge.gate import Case
from oracle.judge.staging import StagingGate, planned_evidence
from oracle.subjects.run import ResidentEvidence

GATE = StagingGate()


@pytest.fixture(scope="module")
def staged(case: Case) -> Case:
    """The perfect run with the evidence of an honest device."""
    return with_run(case, residents=planned_evidence(case, len(case.golden.prompts)))


def seen(case: Case, **changes: object) -> Case:
    assert case.run.residents is not None
    return with_run(case, residents=replace(case.run.residents, **changes))


def test_an_honest_device_passes_and_every_byte_of_every_read_back_is_counted(staged: Case) -> None:
    judgement = GATE.judge(staged)
    assert (judgement.verdict, judgement.findings) == ("pass", ())
    resident = staged.checkpoint.total_bytes() - 5 * 16 * (3 * 65_536 + 3 * 16)
    assert judgement.compared == len(staged.golden.prompts) * resident


def test_each_planted_fault_is_found(staged: Case, case: Case) -> None:
    found = {name: headlines(GATE.judge(planted)) for name, planted in GATE.plants(staged).items()}
    assert found == {
        "a violation": ["planted"],
        "a tensor short": ["resident tensors of kind 'embedding' are not those of the plan"],
        "a kind missing": ["resident tensors of kind 'embedding' are not those of the plan"],
        "a byte short": ["resident tensors of kind 'embedding' are not those of the plan"],
        "a kind too many": ["resident tensors of kind 'routed down' are not those of the plan"],
        "a prompt without a read-back": ["not read back once after each prompt"],
    }
    assert all(GATE.judge(planted).verdict == "fail" for planted in GATE.plants(case).values())


def test_each_violation_is_a_finding_of_its_own(staged: Case) -> None:
    assert headlines(GATE.judge(seen(staged, violations=("one byte", "another")))) == ["one byte", "another"]


@pytest.mark.parametrize("index", range(17))
@pytest.mark.parametrize("off", [(-1, 0), (1, 0), (0, -1), (0, 1)])
def test_a_count_of_any_kind_off_by_one_tensor_or_byte_is_found(staged: Case, index: int, off: tuple[int, int]) -> None:
    assert staged.run.residents is not None
    kinds = list(staged.run.residents.kinds)
    assert len(kinds) == 17
    kind, tensors, size = kinds[index]
    kinds[index] = (kind, tensors + off[0], size + off[1])
    [finding] = GATE.judge(seen(staged, kinds=tuple(kinds))).findings
    assert repr(kind) in finding.headline
    assert finding.worst == f"{tensors + off[0]} tensors, {size + off[1]} bytes"
    assert finding.allowed == f"{tensors} tensors, {size} bytes"


@pytest.mark.parametrize("index", range(17))
def test_a_kind_that_is_missing_whole_is_found(staged: Case, index: int) -> None:
    assert staged.run.residents is not None
    kinds = staged.run.residents.kinds
    [finding] = GATE.judge(seen(staged, kinds=(*kinds[:index], *kinds[index + 1 :]))).findings
    assert (repr(kinds[index][0]) in finding.headline, finding.worst) == (True, "0 tensors, 0 bytes")


def test_a_read_back_after_all_prompts_but_one_is_not_enough(staged: Case) -> None:
    prompts = len(staged.golden.prompts)
    judgement = GATE.judge(with_run(staged, residents=planned_evidence(staged, prompts - 1)))
    assert headlines(judgement) == ["not read back once after each prompt"]
    assert (judgement.findings[0].worst, judgement.findings[0].allowed) == (f"{prompts - 1} read-backs", str(prompts))


def test_a_prompt_that_a_fault_ended_has_no_read_back(staged: Case) -> None:
    gone = staged.golden.prompts[0].name
    rest = {name: run for name, run in staged.run.prompts.items() if name != gone}
    ended = with_run(staged, prompts=rest, faults={gone: "hang: 1"}, residents=planned_evidence(staged, len(rest)))
    assert GATE.judge(ended).verdict == "pass"


def test_no_evidence_at_all_is_incomplete(case: Case) -> None:
    judgement = GATE.judge(case)
    assert (judgement.verdict, judgement.compared) == ("incomplete", 0)


def test_evidence_of_nothing_is_never_green(staged: Case) -> None:
    assert GATE.judge(with_run(staged, residents=ResidentEvidence())).verdict == "fail"
    nothing = with_run(staged, prompts={}, residents=ResidentEvidence())
    assert (GATE.judge(nothing).verdict, GATE.judge(nothing).compared) == ("incomplete", 0)


def test_evidence_adds_up_by_kind(case: Case) -> None:
    one = planned_evidence(case, 1)
    assert one + one + one == planned_evidence(case, 3)
    assert (one + ResidentEvidence(1, (), ("wrong",))).violations == ("wrong",)
    assert ResidentEvidence() + one == one
