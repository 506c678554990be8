"""What `benchmarks/arm_sessions.py` makes of all arms' sessions: nothing wrong where all is well, and each fault named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import arm_sessions
import pytest
from arm_sessions import ArmSession, Kept, wrong

from oracle.judge.gates import GATE_NAMES
from tt_impl.arms import ARMS, LEVERS, Arm
from tt_impl.opening import REQUIRED_GATES


def honest(arm: Arm) -> ArmSession:
    """As it must come out: each lever that does not idle moves a counter of its own."""
    verdicts = dict.fromkeys(GATE_NAMES, "pass")
    if ("verify", "first") in arm.levers:
        verdicts["slots"] = "fail"
    counters = dict.fromkeys(arm.effects, 1)
    return ArmSession(arm.name, verdicts, {}, f"chain of {arm.base}", f"arrays of {arm.base}", {}, counters)


ALL = {name: honest(arm) for name, arm in ARMS.items()}


def spoiled(name: str, **changes: Any) -> list[str]:
    return wrong({**ALL, name: replace(ALL[name], **changes)}, list(ARMS.values()))


def test_all_arms_as_they_must_be_are_right_and_every_gate_is_one_that_the_decoder_must_pass() -> None:
    assert wrong(ALL, list(ARMS.values())) == []
    assert set(GATE_NAMES) == set(REQUIRED_GATES)


@pytest.mark.parametrize("gate", GATE_NAMES)
@pytest.mark.parametrize("verdict", ["fail", "incomplete", "not applicable"])
def test_a_gate_that_does_not_pass_is_named_with_its_finding(gate: str, verdict: str) -> None:
    name = "exact,drain=fill"
    found = spoiled(name, verdicts={**ALL[name].verdicts, gate: verdict}, findings={gate: "the finding"})
    assert found == [f"{name}: {gate} {verdict}, not pass: the finding"]


def test_slots_must_be_red_where_it_is_red_by_design_and_nowhere_else() -> None:
    name = "bf16,verify=first,bias=fetched"
    assert spoiled(name, verdicts=dict.fromkeys(GATE_NAMES, "pass")) == [f"{name}: slots pass, not fail: "]
    assert spoiled(name, verdicts={**ALL[name].verdicts, "slots": "incomplete"}) == [f"{name}: slots incomplete, not fail: "]


@pytest.mark.parametrize("what", ["chain", "shown"])
def test_an_arm_that_shows_anything_but_its_base_s_is_wrong(what: str) -> None:
    assert spoiled("bf16,policy=lru", **{what: "another"}) == [f"bf16,policy=lru: {what} is not that of bf16"]
    assert len(spoiled("exact", **{what: "another"})) == len(ARMS) / 2 - 1


def test_a_lever_that_moved_nothing_is_wrong_alone_and_beside_another() -> None:
    assert spoiled("bf16,drain=fill", counters={})[:2] == [
        "bf16,drain=fill: drain=fill had no effect: its counters beside those of bf16",
        "bf16,drain=fill: single_drains is 0, and 0 without drain=fill",
    ]
    assert spoiled("bf16,drain=fill,policy=lru", counters={"single_drains": 1}) == [
        "bf16,drain=fill,policy=lru: policy=lru had no effect: its counters beside those of bf16,drain=fill",
        "bf16,drain=fill,policy=lru: lru_swaps is 0, and 0 without policy=lru",
    ]


def test_a_lever_that_moved_another_counter_than_its_own_is_wrong_and_so_is_one_that_its_base_moves() -> None:
    assert spoiled("bf16,drain=fill,policy=lru", counters={"single_drains": 1, "fills": 9}) == [
        "bf16,drain=fill,policy=lru: lru_swaps is 0, and 0 without policy=lru"
    ]
    found = spoiled("bf16", counters={"rereads": 5})
    assert found == ["bf16,dequant=reread: rereads is 1, and 5 without dequant=reread"]


def test_a_lever_that_is_said_to_idle_and_does_not_is_wrong() -> None:
    name = "bf16,bias=fetched,topk=device"
    assert spoiled(name, counters={"device_topks": 1, "bias_reads": 1}) == [
        f"{name}: bias=fetched had an effect, and should idle: its counters beside those of bf16,topk=device",
        f"{name}: bias_reads is 1, and 0 without bias=fetched",
    ]


def test_an_arm_without_a_session_is_wrong() -> None:
    missing = {name: session for name, session in ALL.items() if name != "exact,verify=first"}
    found = wrong(missing, list(ARMS.values()))
    assert found[0] == "exact,verify=first: no session"
    assert len(found) == 1 + (len(LEVERS) - 1), "its pairs have nothing to compare with"


def test_kept_outcomes_are_found_again_but_for_a_cut_line_and_another_code_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "kept"
    assert Kept(None).read() == Kept(file).read() == {}
    for name in ("bf16", "exact"):
        Kept(file).add(ALL[name])
    assert Kept(file).read() == {name: ALL[name] for name in ("bf16", "exact")}
    file.write_text(file.read_text("utf-8")[:-9], encoding="utf-8")
    assert Kept(file).read() == {"bf16": ALL["bf16"]}
    monkeypatch.setattr(arm_sessions, "_code_and_golden", lambda: "another")
    assert Kept(file).read() == {}


def test_a_choice_of_arms_brings_those_they_are_compared_with() -> None:
    chosen = arm_sessions._chosen("bf16,drain=fill,topk=*")
    assert [arm.name for arm in chosen] == ["bf16", "bf16,drain=fill", "bf16,topk=device", "bf16,drain=fill,topk=device"]
