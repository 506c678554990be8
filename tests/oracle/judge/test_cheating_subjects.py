"""Subjects that lie, leave or look away: none of them is green, and none ends the session."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from judge_cases import held, with_run

import oracle.judge.jobs as jobs
from goldens import mini_checkpoint
from oracle.judge.alignment import AlignmentGate
from oracle.judge.gate import Case
from oracle.judge.jobs import PromptJob, PromptOutcome, run_job
from oracle.judge.logits import LogitsGate
from oracle.judge.slots import SlotsGate
from oracle.judge.verdict import judge_session
from oracle.subjects.perfect import FACTORY, PerfectSubject
from oracle.subjects.protocol import NumericClass, StepEvidence, SubjectIdentity, SubjectRequest
from oracle.subjects.run import SlotEvidence

GOLDEN = mini_checkpoint() / "golden"


class Cheat:
    """The perfect subject behind another factory; a test overrides what it needs."""

    arms: Mapping[str, NumericClass] = {"bf16": "bf16", "fp32": "fp32"}
    devices: tuple[str, ...] = ("sim", "card")
    plants: Mapping[str, str] = {}

    def __init__(self, **overrides: Callable[..., Any]) -> None:
        self.overrides = overrides

    def open(self, request: SubjectRequest, observer: object = None) -> PerfectSubject:
        inner = FACTORY.open(replace(request, golden=GOLDEN))
        device = {"kind": request.device or "sim"}
        told = SubjectIdentity("cheat", inner.identity.numeric_class, inner.identity.arm, inner.identity.required_gates, device)
        members = {"identity": property(lambda _self: told), **self.overrides}
        inner.__class__ = type("Cheat", (PerfectSubject,), members)
        return inner


@pytest.fixture
def outcome(monkeypatch: pytest.MonkeyPatch) -> Callable[..., PromptOutcome]:
    def run(device: str | None = None, **overrides: Callable[..., Any]) -> PromptOutcome:
        monkeypatch.setattr(jobs, "subject_factory", lambda _name: Cheat(**overrides))
        return run_job(PromptJob("cheat", SubjectRequest(mini_checkpoint(), None, device), GOLDEN, "one-id"))

    return run


def leaves(how: BaseException) -> Callable[..., Any]:
    def member(*_arguments: object) -> Any:
        raise how

    return member


def test_an_honest_subject_behind_the_same_factory_has_no_fault(outcome: Callable[..., PromptOutcome]) -> None:
    assert outcome().fault is None
    assert outcome(device="card").fault is None


@pytest.mark.parametrize("how", [SystemExit(0), KeyboardInterrupt(), MemoryError(), RuntimeError("boom")], ids=repr)
@pytest.mark.parametrize("member", ["step", "stats", "close"])
def test_a_subject_that_leaves_is_a_fault(outcome: Callable[..., PromptOutcome], member: str, how: BaseException) -> None:
    fault = outcome(**{member: leaves(how)}).fault
    assert fault is not None
    assert fault.kind == "subject-crashed"
    assert type(how).__name__ in fault.message


@pytest.mark.parametrize("stats", [{"fills": 0.5}, {3: 1}, {"fills": True}])
def test_counters_that_are_no_whole_numbers_are_a_fault(outcome: Callable[..., PromptOutcome], stats: dict) -> None:
    fault = outcome(stats=lambda _self: stats).fault
    assert fault is not None
    assert fault.kind == "evidence"


@pytest.mark.parametrize(
    "lie",
    [{"name": "other"}, {"arm": "fp32"}, {"numeric_class": "fp32"}, {"device": {"kind": "card"}}, {"device": {}}],
    ids=str,
)
def test_a_subject_other_than_the_one_asked_for_is_a_fault(outcome: Callable[..., PromptOutcome], lie: dict) -> None:
    told = SubjectIdentity("cheat", "bf16", "bf16", ("golden",), {"kind": "sim"})
    fault = outcome(identity=property(lambda _self: replace(told, **lie))).fault
    assert fault is not None
    assert fault.kind == "identity"


def test_positions_between_positions_are_a_fault(outcome: Callable[..., PromptOutcome]) -> None:
    def step(self: PerfectSubject, token: int) -> StepEvidence:
        return replace(PerfectSubject.step(self, token), position=len(self._fed) - 0.1)  # type: ignore[arg-type]

    fault = outcome(step=step).fault
    assert fault is not None
    assert fault.kind == "evidence"


def test_violations_are_judged_whether_slots_are_declared_or_not(case: Case) -> None:
    assert "slots" not in case.run.identity.required_gates
    told = with_run(case, slots=SlotEvidence(violations=("byte 3 differs",)), stats={"fills": 0})
    report = judge_session(case.golden, case.checkpoint, told.run, case.run, selected=("slots",))
    assert report.verdict == "fail"


def test_uses_of_one_expert_do_not_stand_for_all(case: Case) -> None:
    total = 2 * sum(p.expert_ids.size for p in case.golden.prompts)
    stats = {"fills": 1, "staged_bytes": 10, "verified_bytes": 10}
    one = with_run(case, slots=SlotEvidence(1, 10, 10, total, expert_uses=((0, 0, total),)), stats=stats)
    assert [f.headline for f in SlotsGate().judge(one).findings] == ["the experts used are not those the run shows"]


@pytest.mark.parametrize("wrong", [-7, 16, None], ids=["negative", "beyond the last", "twice"])
def test_experts_that_cannot_be_are_not_aligned(case: Case, wrong: int | None) -> None:
    prompt, run = case.answered()[0]
    ids = held(run.expert_ids).copy()
    ids[3, 1, 0] = ids[3, 1, 1] if wrong is None else wrong
    assert AlignmentGate().judge(case.with_prompt(prompt.name, expert_ids=ids)).verdict == "fail"


def test_logits_that_are_no_numbers_are_red_even_where_nothing_was_counted(case: Case) -> None:
    prompts = {n: replace(r, logits_at_golden=np.full_like(r.logits_at_golden, np.nan)) for n, r in case.run.prompts.items()}
    assert LogitsGate().judge(with_run(case, prompts=prompts)).verdict == "fail"
