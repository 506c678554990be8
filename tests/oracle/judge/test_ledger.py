"""The ledger: a required gate that did not run, compared nothing or was not controlled is never green."""

from __future__ import annotations

from dataclasses import replace

import pytest
from judge_cases import headlines

import oracle.judge.ledger as ledger
from oracle.judge.controls import ControlResult
from oracle.judge.gate import Judgement
from oracle.judge.ledger import LedgerEntry, judge_ledger, ledger_controls

BOTH = (ControlResult("perfect", "pass", "pass"), ControlResult("planted", "fire", "fire"))
FLIPS = LedgerEntry("flips", True, True, 12, "pass", BOTH)
CHAIN = LedgerEntry("chain", True, True, 5, "pass", BOTH)
ABSENT = LedgerEntry("slots", False, False, 0, "not applicable", (), "the subject does not declare it")
REQUIRED = ("flips", "chain")
SIM = {"kind": "sim"}


def test_gates_that_ran_compared_and_were_controlled_pass() -> None:
    judgement = judge_ledger([FLIPS, CHAIN, ABSENT], REQUIRED, {})
    assert (judgement.verdict, judgement.findings, judgement.compared) == ("pass", (), 3)


def test_a_required_gate_without_an_entry_is_incomplete() -> None:
    judgement = judge_ledger([FLIPS], REQUIRED, {})
    assert judgement.verdict == "incomplete"
    assert headlines(judgement) == ["required gate chain did not run"]


def test_a_required_gate_that_did_not_run_is_incomplete_with_its_reason() -> None:
    judgement = judge_ledger([FLIPS, replace(ABSENT, gate="chain", reason="no card")], REQUIRED, {})
    assert judgement.verdict == "incomplete"
    assert (judgement.findings[0].headline, judgement.findings[0].worst) == ("required gate chain did not run", "no card")


def test_a_required_gate_that_compared_nothing_is_incomplete() -> None:
    judgement = judge_ledger([FLIPS, replace(CHAIN, compared=0)], REQUIRED, {})
    assert (judgement.verdict, headlines(judgement)) == ("incomplete", ["required gate chain compared nothing"])


@pytest.mark.parametrize("controls", [(), BOTH[:1], BOTH[1:]])
def test_a_gate_without_both_controls_is_incomplete(controls: tuple[ControlResult, ...]) -> None:
    judgement = judge_ledger([FLIPS, replace(CHAIN, controls=controls)], REQUIRED, {})
    assert (judgement.verdict, headlines(judgement)) == ("incomplete", ["gate chain ran without both controls"])


@pytest.mark.parametrize(("expected", "seen"), [("fire", "pass"), ("pass", "fire"), ("pass", "incomplete"), ("fire", "")])
def test_a_control_that_misbehaved_is_a_failure_whatever_its_gate_says(expected: str, seen: str) -> None:
    dead = ControlResult("third", expected, seen)
    judgement = judge_ledger([FLIPS, replace(CHAIN, controls=(*BOTH, dead))], REQUIRED, {})
    assert judgement.verdict == "fail"
    assert headlines(judgement) == ["control 'third' of gate chain misbehaved"]
    assert (judgement.findings[0].worst, judgement.findings[0].allowed) == (seen, expected)


def test_a_device_fault_must_be_the_one_that_was_planted() -> None:
    other = ControlResult("device slot-byte", "device-fault:slot-verification", "device-fault:out-of-memory")
    assert not other.behaved
    assert judge_ledger([FLIPS, replace(CHAIN, controls=(*BOTH, other))], REQUIRED, {}).verdict == "fail"


def test_a_control_of_a_gate_that_is_not_required_counts_too() -> None:
    dead = replace(CHAIN, required=False, controls=(BOTH[0], ControlResult("planted", "fire", "pass")))
    assert judge_ledger([FLIPS, dead], ("flips",), {}).verdict == "fail"


def test_a_subject_with_slots_must_say_which_device_it_ran_on() -> None:
    slots = replace(FLIPS, gate="slots")
    assert headlines(judge_ledger([slots], ("slots",), {})) == ["the subject does not say which device it ran on"]
    assert judge_ledger([slots], ("slots",), {}).verdict == "incomplete"
    assert judge_ledger([slots], ("slots",), SIM).verdict == "pass"
    assert judge_ledger([FLIPS], ("flips",), {}).verdict == "pass"


def test_an_empty_ledger_is_not_green() -> None:
    assert judge_ledger([], (), {}).verdict == "incomplete"


def test_its_own_controls_behave() -> None:
    results = ledger_controls([FLIPS, CHAIN, ABSENT], REQUIRED, {})
    assert all(result.behaved for result in results)
    assert {"whole ledger", "gate left out", "compared nothing", "dead control", "no control"} == {r.name for r in results}


def test_its_own_controls_behave_with_a_single_gate() -> None:
    assert all(result.behaved for result in ledger_controls([FLIPS], ("flips",), {}))
    assert all(result.behaved for result in ledger_controls([replace(FLIPS, gate="slots")], ("slots",), SIM))


@pytest.mark.parametrize("compared", [0, 3])
def test_a_ledger_that_says_nothing_is_found_by_its_own_controls(monkeypatch: pytest.MonkeyPatch, compared: int) -> None:
    monkeypatch.setattr(ledger, "judge_ledger", lambda *_: Judgement(compared))
    assert not all(result.behaved for result in ledger_controls([FLIPS, CHAIN], REQUIRED, {}))
