"""Each fault planted in a subject's device stands with one gate's controls, and every auditor is controlled."""

from __future__ import annotations

from collections import Counter

import pytest

from goldens import mini_checkpoint
from oracle.judge.auditing import AUDITED, controls_of_auditing, session_plants
from oracle.judge.control_result import ControlResult
from oracle.judge.gate import PlantsEvidence
from oracle.judge.gates import GATES
from oracle.kolibri1.checkpoint import Checkpoint

OWN_CHECKS = {"slots": {"device-fault:slot-verification", "device-fault:non-finite"}, "capture": {"device-fault:trace-capture"}}
ANSWERS = (*(f"gate:{name}" for name in AUDITED), *sorted(set().union(*OWN_CHECKS.values())))
DEVICE = tuple(ControlResult(f"device {answer}", answer, "not caught") for answer in ANSWERS)


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return Checkpoint.open(mini_checkpoint())


def test_every_audited_gate_exists_and_knows_what_an_honest_device_shows() -> None:
    gates = {gate.name: gate for gate in GATES}
    assert AUDITED.keys() <= gates.keys()
    assert all(isinstance(gates[name], PlantsEvidence) for name in AUDITED)


def test_no_fault_planted_in_a_device_is_lost_or_told_twice(checkpoint: Checkpoint) -> None:
    shown = Counter(
        control for gate in GATES for control in controls_of_auditing(gate.name, checkpoint, DEVICE) if control in DEVICE
    )
    assert shown == Counter(DEVICE)


def test_a_fault_stands_with_the_gate_that_must_catch_it(checkpoint: Checkpoint) -> None:
    for name in AUDITED:
        answers = {c.expected for c in controls_of_auditing(name, checkpoint, DEVICE) if c in DEVICE}
        assert answers == {f"gate:{name}", *OWN_CHECKS.get(name, ())}


@pytest.mark.parametrize("name", AUDITED)
def test_every_auditor_is_shown_honest_and_dishonest_evidence(checkpoint: Checkpoint, name: str) -> None:
    expected = [control.expected for control in controls_of_auditing(name, checkpoint, ())]
    assert {"pass", "fire"} == set(expected)


def test_a_session_plants_what_its_auditors_or_the_subject_s_own_checks_must_catch() -> None:
    plants = {"b": "gate:staging", "a": "device-fault:x", "c": "gate:residual", "d": "gate:ops"}
    assert session_plants(plants) == {"a": "device-fault:x", "b": "gate:staging", "d": "gate:ops"}
