"""A session from options to report: the subject, its controls and the replay of what it showed, in this process."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from judge_cases import HOST_GATES, mini_golden

import oracle.judge.session as session
import oracle.subjects.registry as registry
from goldens import mini_checkpoint
from oracle.errors import CheckpointError, DeviceFault, GoldenError, RunError, SubjectError, UsageError
from oracle.judge.auditing import device_controls
from oracle.judge.gate import Case, gate_id
from oracle.judge.gates import GATE_NAMES, GATES
from oracle.judge.jobs import PromptJob, PromptOutcome, run_job
from oracle.judge.session import SessionOptions, judge_recorded, record_session, run_session
from oracle.judge.verdict import Report
from oracle.subjects.perfect import FACTORY as PERFECT_FACTORY
from oracle.subjects.protocol import SubjectRequest
from oracle.subjects.registry import subject_factory
from oracle.subjects.run import ResidentEvidence, SlotEvidence, save_run

FLIPS_ID = next(gate_id(gate.name, gate.definition) for gate in GATES if gate.name == "flips")
OPTIONS = SessionOptions(mini_checkpoint(), mini_golden(), "perfect")


@pytest.fixture(autouse=True)
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[PromptJob]:
    """All jobs in this process; the list holds what was run."""
    seen: list[PromptJob] = []

    def serially(jobs: Sequence[PromptJob], _workers: int | None = None, done: Any = None) -> list[PromptOutcome]:
        seen.extend(jobs)
        outcomes = []
        for index, job in enumerate(jobs):
            outcomes.append(run_job(job))
            if done is not None:
                done(index + 1)
        return outcomes

    monkeypatch.setattr(session, "run_jobs", serially)
    return seen


def test_the_perfect_subject_is_green_and_progress_reaches_the_end(jobs: list[PromptJob]) -> None:
    steps: list[tuple[int, int]] = []
    report = run_session(OPTIONS, lambda done, of: steps.append((done, of)))
    assert (report.verdict, report.partial) == ("pass", False)
    assert steps[-1] == (len(jobs), len(jobs))
    assert {r.name for r in report.gates if r.verdict == "pass"} == set(HOST_GATES)


def test_named_prompts_are_run_alone_and_the_report_says_that_it_is_partial(jobs: list[PromptJob]) -> None:
    report = run_session(replace(OPTIONS, prompts=("digits", "copying")))
    assert {job.prompt for job in jobs} == {"digits", "copying"}
    assert (report.verdict, report.partial, len(report.run.left_out)) == ("pass", True, 15)


@pytest.mark.parametrize("only", ["flips", "fl*", FLIPS_ID])
def test_only_narrows_the_gates_and_says_so(only: str) -> None:
    report = run_session(replace(OPTIONS, only=only))
    assert (report.verdict, report.partial) == ("pass", True)
    assert [r.name for r in report.gates] == ["flips", "ledger"]


def test_only_without_a_match_names_the_gates_before_anything_runs(jobs: list[PromptJob]) -> None:
    with pytest.raises(UsageError, match="matches no gate; the gates are golden, alignment"):
        run_session(replace(OPTIONS, only="flip"))
    assert jobs == []


def test_the_arm_chooses_the_class_it_is_judged_by() -> None:
    report = run_session(replace(OPTIONS, arm="fp32"))
    assert (report.verdict, report.run.identity.numeric_class) == ("pass", "fp32")
    assert "largest relative error" in next(r for r in report.gates if r.name == "logits").measured


def test_a_replayed_run_gives_the_verdict_it_gave_live(tmp_path: Path, jobs: list[PromptJob]) -> None:
    recorded = record_session(OPTIONS)
    live = judge_recorded(recorded, GATE_NAMES, partial=False)
    save_run(recorded.run, tmp_path / "run", control=recorded.perfect)
    jobs.clear()
    replayed = run_session(replace(OPTIONS, subject="no-such-subject", replay=tmp_path / "run"))
    assert without_texts(replayed) == without_texts(live)
    assert live.verdict == "pass"
    assert jobs == []


def without_texts(report: Report) -> dict[str, Any]:
    """All but the golden's own gate: its texts are tokenized again in a live session, where the libraries are installed."""
    document = report.to_json()
    return document | {
        "gates": [gate for gate in document["gates"] if not gate["id"].startswith("golden@")],
        "ledger": [entry for entry in document["ledger"] if entry["gate"] != "golden"],
    }


def test_a_run_without_a_control_run_by_its_dumper_is_never_green(tmp_path: Path, case: Case) -> None:
    save_run(case.run, tmp_path / "run")
    report = run_session(replace(OPTIONS, replay=tmp_path / "run"))
    assert report.verdict == "incomplete"
    [finding] = next(gate for gate in report.gates if gate.name == "ledger").findings
    assert finding.headline == "the run comes without a control run by the same dumper"


def test_a_run_of_another_golden_is_refused(tmp_path: Path, case: Case, jobs: list[PromptJob]) -> None:
    save_run(replace(case.run, golden_digest="sha256:" + "1" * 64), tmp_path / "run")
    with pytest.raises(RunError, match="answers another golden"):
        run_session(replace(OPTIONS, replay=tmp_path / "run"))
    assert jobs == []


def test_a_golden_of_another_checkpoint_is_refused(tmp_path: Path, jobs: list[PromptJob]) -> None:
    other = tmp_path / "other"
    shutil.copytree(mini_checkpoint(), other, ignore=shutil.ignore_patterns("golden"))
    shard = min(other.glob("*.safetensors"))
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    with pytest.raises(GoldenError, match="was made from another checkpoint"):
        run_session(replace(OPTIONS, checkpoint=other))
    assert jobs == []


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"subject": "nope"}, SubjectError),
        ({"arm": "nope"}, SubjectError),
        ({"device": "nope"}, SubjectError),
        ({"golden": Path("nowhere")}, GoldenError),
        ({"checkpoint": Path("nowhere")}, CheckpointError),
        ({"replay": Path("nowhere")}, RunError),
    ],
)
def test_options_that_do_not_fit_are_refused_in_one_line_before_anything_runs(
    change: dict[str, Any], error: type[Exception], jobs: list[PromptJob]
) -> None:
    with pytest.raises(error) as caught:
        run_session(replace(OPTIONS, **change))
    assert "\n" not in str(caught.value)
    assert jobs == []


def test_the_recorded_run_holds_the_golden_s_prompts_in_order_and_what_it_ran_on() -> None:
    recorded = record_session(OPTIONS)
    names = [p.name for p in recorded.golden.prompts]
    assert list(recorded.run.prompts) == list(recorded.perfect.prompts) == names
    assert recorded.run.golden_digest == recorded.golden.digest
    assert {"numpy", "python", "kolibri-oracle"} <= recorded.run.environment.keys()


def test_the_subject_s_device_is_given_every_fault_that_it_or_an_auditor_must_catch(monkeypatch: pytest.MonkeyPatch) -> None:
    class EnoughError(Exception):
        pass

    seen: list[str | None] = []

    def look(jobs: Sequence[PromptJob], *_: Any) -> list[PromptOutcome]:
        seen.extend(job.request.plant for job in jobs)
        raise EnoughError

    monkeypatch.setattr(session, "run_jobs", look)
    with pytest.raises(EnoughError):
        record_session(replace(OPTIONS, subject="tt"))
    planted = [plant for plant in seen if plant is not None]
    own = ["capture-reads", "missing-drain", "norm-byte-late", "resident-byte", "slot-byte", "wrong-expert"]
    watched = ("gate:ops", "gate:operands", "gate:census", "gate:capture")
    assert planted == sorted((*own, *(name for name, caught in subject_factory("tt").plants.items() if caught in watched)))


def planted(
    fault: DeviceFault | None, violations: tuple[str, ...] = (), residents: tuple[str, ...] | None = None
) -> PromptOutcome:
    held = None if residents is None else ResidentEvidence(1, (), residents)
    job = PromptJob("tt", SubjectRequest(mini_checkpoint(), plant="slot-byte"), mini_golden(), "p")
    return PromptOutcome(job, None, None, fault, SlotEvidence(violations=violations), {}, held)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("outcome", "expected", "seen", "behaved"),
    [
        (planted(DeviceFault("slot-verification", "x")), "device-fault:slot-verification", None, True),
        (planted(DeviceFault("out-of-memory", "x")), "device-fault:slot-verification", "device-fault:out-of-memory", False),
        (planted(None, ("a violation",)), "gate:slots", None, True),
        (planted(None, ("a violation",)), "device-fault:slot-verification", "gate:slots", False),
        (planted(DeviceFault("slot-verification", "x")), "gate:slots", "device-fault:slot-verification", False),
        (planted(None), "gate:slots", "not caught", False),
        (planted(None, (), ("a byte",)), "gate:staging", None, True),
        (planted(None, ("a violation",), ("a byte",)), "gate:staging", None, True),
        (planted(None, ("a violation",), ("a byte",)), "gate:slots", None, True),
        (planted(None, (), ("a byte",)), "gate:slots", "gate:staging", False),
        (planted(None, ("a violation",), ()), "gate:staging", "gate:slots", False),
        (planted(None, (), ()), "gate:staging", "not caught", False),
    ],
)
def test_a_fault_planted_in_the_device_must_be_caught_as_declared(
    outcome: PromptOutcome, expected: str, seen: str | None, behaved: bool
) -> None:
    [result] = device_controls([(outcome, expected)])
    assert (result.name, result.seen, result.behaved) == ("device slot-byte", seen or expected, behaved)


class Asked(Exception):  # noqa: N818 - ends the session where its jobs would begin
    """How many workers were asked for."""


@pytest.mark.parametrize(("exclusive", "workers"), [((), 3), (("other",), 3), (("card",), 1)])
def test_a_device_that_one_process_can_open_gets_one(
    monkeypatch: pytest.MonkeyPatch, exclusive: tuple[str, ...], workers: int
) -> None:
    def ask(jobs: Sequence[PromptJob], count: int | None = None, done: Any = None) -> list[PromptOutcome]:
        raise Asked(count)

    factory = type(PERFECT_FACTORY)()
    factory.devices, factory.exclusive_devices = ("card",), exclusive  # type: ignore[attr-defined]
    monkeypatch.setattr(session, "run_jobs", ask)
    for module in (session, registry):
        monkeypatch.setattr(module, "subject_factory", lambda _: factory)
    with pytest.raises(Asked) as asked:
        record_session(replace(OPTIONS, workers=3))
    assert asked.value.args == (workers,)
