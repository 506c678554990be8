"""The ledger: a required gate that did not run, compared nothing or was not controlled is never green."""

from __future__ import annotations

from dataclasses import replace

import pytest
from judge_cases import headlines

import oracle.judge.ledger as ledger
from oracle.judge.control_result import ControlResult
from oracle.judge.facts import SessionFacts
from oracle.judge.gate import Judgement
from oracle.judge.ledger import LedgerEntry, judge_ledger, ledger_controls
from oracle.subjects.protocol import LibraryRecord

BOTH = (ControlResult("perfect", "pass", "pass"), ControlResult("planted", "fire", "fire"))
FLIPS = LedgerEntry("flips", True, True, 12, "pass", BOTH)
CHAIN = LedgerEntry("chain", True, True, 5, "pass", BOTH)
ABSENT = LedgerEntry("slots", False, False, 0, "not applicable", (), "the subject does not declare it")
REQUIRED = ("flips", "chain")
HOST = SessionFacts((2, 2), (12, 12), {}, {}, (), {})
SIM = replace(HOST, device={"kind": "sim"})
STALE = LibraryRecord("libnorm.so", built=1_700_000_000 * 10**9, newest_source=1_700_000_060 * 10**9)


def test_gates_that_ran_compared_and_were_controlled_pass() -> None:
    judgement = judge_ledger([FLIPS, CHAIN, ABSENT], REQUIRED, HOST)
    assert (judgement.verdict, judgement.findings, judgement.compared) == ("pass", (), 3)


def test_a_required_gate_without_an_entry_is_incomplete() -> None:
    judgement = judge_ledger([FLIPS], REQUIRED, HOST)
    assert judgement.verdict == "incomplete"
    assert headlines(judgement) == ["required gate chain did not run"]


def test_a_required_gate_that_did_not_run_is_incomplete_with_its_reason() -> None:
    judgement = judge_ledger([FLIPS, replace(ABSENT, gate="chain", reason="no card")], REQUIRED, HOST)
    assert judgement.verdict == "incomplete"
    assert (judgement.findings[0].headline, judgement.findings[0].worst) == ("required gate chain did not run", "no card")


def test_a_required_gate_that_compared_nothing_is_incomplete() -> None:
    judgement = judge_ledger([FLIPS, replace(CHAIN, compared=0)], REQUIRED, HOST)
    assert (judgement.verdict, headlines(judgement)) == ("incomplete", ["required gate chain compared nothing"])


@pytest.mark.parametrize("controls", [(), BOTH[:1], BOTH[1:]])
def test_a_gate_without_both_controls_is_incomplete(controls: tuple[ControlResult, ...]) -> None:
    judgement = judge_ledger([FLIPS, replace(CHAIN, controls=controls)], REQUIRED, HOST)
    assert (judgement.verdict, headlines(judgement)) == ("incomplete", ["gate chain ran without both controls"])


@pytest.mark.parametrize(("expected", "seen"), [("fire", "pass"), ("pass", "fire"), ("pass", "incomplete"), ("fire", "")])
def test_a_control_that_misbehaved_is_a_failure_whatever_its_gate_says(expected: str, seen: str) -> None:
    dead = ControlResult("third", expected, seen)
    judgement = judge_ledger([FLIPS, replace(CHAIN, controls=(*BOTH, dead))], REQUIRED, HOST)
    assert judgement.verdict == "fail"
    assert headlines(judgement) == ["control 'third' of gate chain misbehaved"]
    assert (judgement.findings[0].worst, judgement.findings[0].allowed) == (seen, expected)


def test_a_device_fault_must_be_the_one_that_was_planted() -> None:
    other = ControlResult("device slot-byte", "device-fault:slot-verification", "device-fault:out-of-memory")
    assert not other.behaved
    assert judge_ledger([FLIPS, replace(CHAIN, controls=(*BOTH, other))], REQUIRED, HOST).verdict == "fail"


def test_a_control_of_a_gate_that_is_not_required_counts_too() -> None:
    dead = replace(CHAIN, required=False, controls=(BOTH[0], ControlResult("planted", "fire", "pass")))
    assert judge_ledger([FLIPS, dead], ("flips",), HOST).verdict == "fail"


def test_a_subject_with_slots_must_say_which_device_it_ran_on() -> None:
    slots = replace(FLIPS, gate="slots")
    assert headlines(judge_ledger([slots], ("slots",), HOST)) == ["the subject does not say which device it ran on"]
    assert judge_ledger([slots], ("slots",), HOST).verdict == "incomplete"
    assert judge_ledger([slots], ("slots",), SIM).verdict == "pass"
    assert judge_ledger([FLIPS], ("flips",), HOST).verdict == "pass"


@pytest.mark.parametrize("name", ["slots", "staging", "ops", "capture"])
def test_each_gate_of_a_device_asks_for_its_identity(name: str) -> None:
    assert judge_ledger([replace(FLIPS, gate=name)], (name,), HOST).verdict == "incomplete"


@pytest.mark.parametrize("compared", [0, -1])
def test_a_required_gate_that_compared_nothing_says_why(compared: int) -> None:
    unaligned = replace(CHAIN, compared=compared, reason="not compared: the run is not aligned with the golden")
    [finding] = judge_ledger([FLIPS, unaligned], REQUIRED, HOST).findings
    assert (finding.headline, finding.worst) == ("required gate chain compared nothing", unaligned.reason)


def test_every_device_fault_is_a_failure_with_its_prompt() -> None:
    faulted = replace(HOST, faults={"counting": "hang: layer 3", "story": "out-of-memory: 5 bytes"})
    judgement = judge_ledger([FLIPS, CHAIN], REQUIRED, faulted)
    assert judgement.verdict == "fail"
    assert [(f.headline, f.where) for f in judgement.findings] == [
        ("a device fault ended the prompt: hang: layer 3", "counting"),
        ("a device fault ended the prompt: out-of-memory: 5 bytes", "story"),
    ]


def test_a_library_older_than_its_newest_source_is_a_failure_with_both_dates() -> None:
    fresh = replace(STALE, name="libmatmul.so", built=STALE.newest_source)  # a build may take no time at all
    judgement = judge_ledger([FLIPS, CHAIN], REQUIRED, replace(HOST, libraries=(fresh, STALE)))
    assert judgement.verdict == "fail"
    [finding] = judgement.findings
    assert finding.headline == "native library libnorm.so is older than its sources; build it again"
    assert (finding.worst, finding.allowed) == ("built 2023-11-14 22:13:20Z", "newest source 2023-11-14 22:14:20Z")
    assert judge_ledger([FLIPS, CHAIN], REQUIRED, replace(HOST, libraries=(fresh,))).verdict == "pass"


@pytest.mark.parametrize("facts", [replace(HOST, prompts=(0, 2)), replace(HOST, positions=(0, 12))])
def test_a_session_in_which_nothing_was_answered_is_incomplete(facts: SessionFacts) -> None:
    assert judge_ledger([FLIPS, CHAIN], REQUIRED, facts).verdict == "incomplete"


@pytest.mark.parametrize(
    "facts", [replace(HOST, libraries=(STALE,)), replace(HOST, faults={"p": "hang: 1"}), replace(HOST, prompts=(0, 0))]
)
def test_its_own_controls_do_not_depend_on_what_is_wrong_with_the_session(facts: SessionFacts) -> None:
    assert all(result.behaved for result in ledger_controls([FLIPS, CHAIN, ABSENT], REQUIRED, facts))


def test_facts_that_nobody_looks_at_are_found_by_the_ledger_s_own_controls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SessionFacts, "findings", lambda _self: ())
    missed = {result.name for result in ledger_controls([FLIPS, CHAIN], REQUIRED, HOST) if not result.behaved}
    assert missed == {"device fault", "stale library", "nothing answered"}


def test_an_empty_ledger_is_not_green() -> None:
    assert judge_ledger([], (), HOST).verdict == "incomplete"


def test_its_own_controls_behave() -> None:
    results = ledger_controls([FLIPS, CHAIN, ABSENT], REQUIRED, HOST)
    assert all(result.behaved for result in results)
    assert {
        *("whole ledger", "gate left out", "compared nothing", "dead control", "no control"),
        *("device fault", "stale library", "nothing answered"),
    } == {r.name for r in results}


def test_its_own_controls_behave_with_a_single_gate() -> None:
    assert all(result.behaved for result in ledger_controls([FLIPS], ("flips",), HOST))
    assert all(result.behaved for result in ledger_controls([replace(FLIPS, gate="slots")], ("slots",), SIM))


@pytest.mark.parametrize("compared", [0, 3])
def test_a_ledger_that_says_nothing_is_found_by_its_own_controls(monkeypatch: pytest.MonkeyPatch, compared: int) -> None:
    monkeypatch.setattr(ledger, "judge_ledger", lambda *_: Judgement(compared))
    assert not all(result.behaved for result in ledger_controls([FLIPS, CHAIN], REQUIRED, HOST))
