"""Gate `slots`: stated counts against what the auditor saw, and every violation it reported."""

from __future__ import annotations

from dataclasses import replace

import pytest
from judge_cases import headlines, with_run

from oracle.judge.gate import Case
from oracle.judge.slots import SlotsGate, expected_uses
from oracle.subjects.run import SlotEvidence

GATE = SlotsGate()
FILLS, BYTES = 40, 40 * 3 * 65_552


@pytest.fixture(scope="module")
def streamed(case: Case) -> Case:
    """The perfect run with the evidence and the counters of an honest streaming subject."""
    layers, k = case.golden.prompts[0].expert_ids.shape[1:]
    uses = 2 * case.golden.positions * layers * k
    stats = {"fills": FILLS, "staged_bytes": BYTES, "verified_bytes": BYTES}
    return with_run(case, slots=SlotEvidence(FILLS, BYTES, BYTES, uses, expert_uses=expected_uses(case)), stats=stats)


def seen(case: Case, **changes: object) -> Case:
    assert case.run.slots is not None
    return with_run(case, slots=replace(case.run.slots, **changes))


def stated(case: Case, **changes: int) -> Case:
    return with_run(case, stats={**case.run.stats, **changes})


def test_an_honest_streaming_run_passes(streamed: Case) -> None:
    judgement = GATE.judge(streamed)
    assert (judgement.verdict, judgement.findings, judgement.compared) == ("pass", (), BYTES)


def test_its_planted_fault_is_found(streamed: Case, case: Case) -> None:
    found = {name: headlines(GATE.judge(planted)) for name, planted in GATE.plants(streamed).items()}
    assert found == {
        "twice the verified bytes": ["verified bytes disagree"],
        "a violation": ["planted"],
        "another expert used": ["the experts used are not those the run shows"],
    }
    assert all(GATE.judge(planted).verdict != "pass" for planted in GATE.plants(case).values())


@pytest.mark.parametrize("off", [-1, 1])
@pytest.mark.parametrize(
    ("counter", "headline"),
    [
        ("fills", "fills disagree"),
        ("staged_bytes", "staged bytes disagree"),
        ("verified_bytes", "verified bytes disagree"),
    ],
)
def test_a_stated_counter_off_by_one_is_found(streamed: Case, counter: str, headline: str, off: int) -> None:
    [finding] = GATE.judge(stated(streamed, **{counter: streamed.run.stats[counter] + off})).findings
    assert finding.headline == headline
    assert finding.worst == f"{streamed.run.stats[counter] + off} stated"
    assert finding.allowed == f"{streamed.run.stats[counter]} counted"


@pytest.mark.parametrize("counter", ["fills", "staged_bytes", "verified_bytes"])
def test_a_counter_that_is_not_stated_is_found(streamed: Case, counter: str) -> None:
    rest = {name: value for name, value in streamed.run.stats.items() if name != counter}
    [finding] = GATE.judge(with_run(streamed, stats=rest)).findings
    assert finding.worst == "None stated"


def test_twice_the_staged_bytes_verified_is_found_as_a_tautology_would_state_them(streamed: Case) -> None:
    judgement = GATE.judge(stated(streamed, verified_bytes=2 * BYTES))
    assert headlines(judgement) == ["verified bytes disagree"]


def test_bytes_that_were_never_compared_with_the_checkpoint_are_found(streamed: Case) -> None:
    assert headlines(GATE.judge(seen(streamed, checkpoint_bytes=BYTES - 1))) == ["bytes compared with the checkpoint disagree"]


@pytest.mark.parametrize("off", [-1, 1])
def test_a_use_missing_or_surplus_is_found(streamed: Case, off: int) -> None:
    assert streamed.run.slots is not None
    uses = streamed.run.slots.uses
    [finding] = GATE.judge(seen(streamed, uses=uses + off)).findings
    assert (finding.headline, finding.worst, finding.allowed) == ("uses disagree", f"{uses + off} stated", f"{uses} counted")


def test_a_single_pass_over_the_prompts_has_too_few_uses(streamed: Case) -> None:
    assert streamed.run.slots is not None
    assert headlines(GATE.judge(seen(streamed, uses=streamed.run.slots.uses // 2))) == ["uses disagree"]


def test_each_violation_is_a_finding_of_its_own(streamed: Case) -> None:
    assert headlines(GATE.judge(seen(streamed, violations=("one byte", "another")))) == ["one byte", "another"]


def test_no_evidence_at_all_is_incomplete(case: Case) -> None:
    judgement = GATE.judge(case)
    assert (judgement.verdict, judgement.compared) == ("incomplete", 0)


def test_a_streaming_subject_that_never_filled_a_slot_is_not_green(streamed: Case) -> None:
    nothing = with_run(streamed, slots=SlotEvidence(), stats=dict.fromkeys(streamed.run.stats, 0))
    judgement = GATE.judge(nothing)
    assert "no fill was ever verified, or no slot used" in headlines(judgement)
    assert (judgement.verdict, judgement.compared) == ("fail", 0)


def test_no_fill_in_a_run_that_a_fault_ended_is_incomplete(streamed: Case) -> None:
    """Then even the missing uses prove nothing."""
    nothing = with_run(
        streamed, slots=SlotEvidence(), stats=dict.fromkeys(streamed.run.stats, 0), faults={"x": "out-of-memory: 1 byte"}
    )
    judgement = GATE.judge(nothing)
    assert judgement.verdict == "incomplete"
    assert headlines(judgement) == ["no fill was ever verified, or no slot used"]


@pytest.mark.parametrize("what", ["fills", "uses"])
def test_fills_without_uses_and_uses_without_fills_are_not_green(streamed: Case, what: str) -> None:
    emptied = seen(streamed, **{what: 0})
    judgement = GATE.judge(stated(emptied, fills=0) if what == "fills" else emptied)
    assert "no fill was ever verified, or no slot used" in headlines(judgement)


def test_a_prompt_that_a_fault_ended_excuses_its_uses_and_nothing_else(streamed: Case) -> None:
    ended = with_run(seen(streamed, uses=7), faults={"p": "out-of-memory: 1 byte"})
    assert GATE.judge(ended).findings == ()
    assert headlines(GATE.judge(stated(ended, fills=FILLS + 1))) == ["fills disagree"]
