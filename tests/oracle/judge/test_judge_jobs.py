"""Jobs: results do not depend on how many workers ran them, and whatever a subject does wrong is its fault, recorded."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from judge_cases import mini_golden

from goldens import mini_checkpoint
from oracle.errors import CheckpointError, SubjectError
from oracle.golden.format import Golden
from oracle.judge.jobs import PLANT_STEPS, PromptJob, PromptOutcome, run_job, run_jobs
from oracle.subjects.protocol import SubjectRequest
from oracle.subjects.run import PromptRun

SUBJECT = '''
import os
import time
from dataclasses import replace

from oracle.errors import DeviceFault, SubjectError
from oracle.subjects import perfect
from oracle.subjects.protocol import ResidentImage, SubjectRequest, VerifiedFill


class Wrapped:
    """The perfect subject until its fifth step."""

    def __init__(self, arm, request, observer):
        golden = request.checkpoint / "golden"
        self._arm, self._observer = arm, observer
        self._inner = perfect.FACTORY.open(SubjectRequest(request.checkpoint, golden))
        self._steps = 0
        if arm == "opening":
            raise DeviceFault("out-of-memory", "7 bytes short")
        if arm == "refusing":
            raise SubjectError("no card in this machine; leave out --device")

    @property
    def identity(self):
        return replace(self._inner.identity, name="wrapped", arm=self._arm)

    def reset(self):
        self._inner.reset()

    def start(self):
        self._inner.start()

    def step(self, token):
        self._steps += 1
        if self._arm == "slow" and self._steps <= 8:
            time.sleep(0.5)
        if self._steps == 5:
            if self._arm == "dying":
                os._exit(7)
            if self._arm == "hanging":
                time.sleep(600)
            if self._arm == "leaving":
                raise SystemExit(0)
            if self._arm == "faulting":
                raise DeviceFault("slot-verification", "byte 3 of slot 1")
            if self._arm == "crashing":
                raise IndexError("no such tile")
        return self._inner.step(token)

    def stats(self):
        return {"steps": self._steps}

    def close(self):
        if self._arm == "faulting":
            raise DeviceFault("close", "it is gone already")


class Resident(Wrapped):
    """It holds one tensor, which it cannot read in the arm `losing`; what it counts after its last step is not decoding."""

    def residents(self):
        if self._arm == "losing":
            raise DeviceFault("use-after-free", "the head is gone")
        self._steps += 1000
        yield ResidentImage("no such tensor", "F32", None)


class Factory:
    names = "honest dying hanging slow leaving faulting crashing opening refusing showing losing"
    arms = dict.fromkeys(names.split(), "bf16")
    devices = ()
    plants = {"rust": "device-fault:rust"}

    def open(self, request, observer=None):
        arm = request.arm or "honest"
        return (Resident if arm in ("showing", "losing") else Wrapped)(arm, request, observer)


FACTORY = Factory()
'''


@pytest.fixture
def wrapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A subject installed as a package of its own, so that worker processes find it too."""
    (tmp_path / "wrapped_subject.py").write_text(SUBJECT)
    info = tmp_path / "wrapped_subject-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: wrapped-subject\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[kolibri_oracle.subjects]\nwrapped = wrapped_subject:FACTORY\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def job(golden: Golden, subject: str = "wrapped", arm: str | None = None, plant: str | None = None, at: int = 0) -> PromptJob:
    folder = mini_golden() if subject == "perfect" else None
    return PromptJob(
        subject, SubjectRequest(mini_checkpoint(), folder, None, arm, plant), mini_golden(), golden.prompts[at].name
    )


def same(a: PromptOutcome, b: PromptOutcome) -> bool:
    assert a.run is not None
    assert b.run is not None
    arrays = [(getattr(a.run, f.name), getattr(b.run, f.name)) for f in fields(PromptRun)]
    return (a.job, a.identity, a.slots, a.stats) == (b.job, b.identity, b.slots, b.stats) and all(
        x.dtype == y.dtype and np.array_equal(x, y) for x, y in arrays
    )


def test_one_worker_and_two_give_the_same_results_in_the_order_of_the_jobs(golden: Golden) -> None:
    jobs = [job(golden, "perfect", at=at) for at in (2, 0, 1)]
    done: list[int] = []
    one, two = run_jobs(jobs, workers=1), run_jobs(jobs, workers=2, done=done.append)
    assert [outcome.job for outcome in one] == jobs
    assert all(same(a, b) and same(a, run_job(c)) for a, b, c in zip(one, two, jobs, strict=True))
    assert done == [1, 2, 3]


def test_no_jobs_are_no_outcomes() -> None:
    assert run_jobs([]) == []


@pytest.mark.usefixtures("wrapped")
def test_a_subject_that_dies_hangs_or_leaves_faults_its_own_prompt_and_no_other(golden: Golden) -> None:
    arms = ("honest", "dying", "leaving", "hanging", "honest")
    jobs = [job(golden, arm=arm, at=at) for at, arm in enumerate(arms)]
    jobs[3] = replace(jobs[3], step_timeout=3.0)
    done: list[int] = []
    outcomes = run_jobs(jobs, workers=1, done=done.append)
    assert [outcome.job for outcome in outcomes] == jobs
    kinds = [None if outcome.fault is None else outcome.fault.kind for outcome in outcomes]
    assert kinds == [None, "worker-died", "subject-crashed", "timeout", None]
    assert [outcome.run is not None for outcome in outcomes] == [True, False, False, False, True]
    assert {(outcome.identity.name, outcome.identity.numeric_class) for outcome in outcomes} == {("wrapped", "bf16")}
    assert done == [1, 2, 3, 4, 5]


@pytest.mark.usefixtures("wrapped")
def test_the_time_limit_is_for_a_step_and_not_for_a_prompt(golden: Golden) -> None:
    """Eight steps of half a second, three seconds allowed."""
    [outcome] = run_jobs([replace(job(golden, arm="slow"), step_timeout=3.0)])
    assert (outcome.fault, outcome.run is not None) == (None, True)


@pytest.mark.usefixtures("wrapped")
@pytest.mark.parametrize(
    ("arm", "kind", "message"),
    [
        ("faulting", "slot-verification", "byte 3 of slot 1"),
        ("crashing", "subject-crashed", "no such tile"),
        ("opening", "out-of-memory", "7 bytes short"),
    ],
)
def test_what_a_subject_raises_is_recorded_as_its_fault(golden: Golden, arm: str, kind: str, message: str) -> None:
    outcome = run_job(job(golden, arm=arm))
    assert outcome.run is None
    assert outcome.fault is not None
    assert outcome.fault.kind == kind
    assert message in outcome.fault.message
    assert (outcome.identity.name, outcome.identity.arm) == ("wrapped", arm)


@pytest.mark.usefixtures("wrapped")
def test_a_fault_comes_back_whole_from_a_worker(golden: Golden) -> None:
    faulted, honest = run_jobs([job(golden, arm="faulting"), job(golden, arm="honest")], workers=1)
    assert faulted.fault is not None
    assert (faulted.fault.kind, str(faulted.fault)) == ("slot-verification", "slot-verification: byte 3 of slot 1")
    assert faulted.stats == {"steps": 5}
    assert honest.fault is None
    assert honest.run is not None


@pytest.mark.usefixtures("wrapped")
def test_a_planted_fault_takes_a_few_steps_and_gives_no_run(golden: Golden) -> None:
    outcome = run_job(job(golden, arm="honest", plant="rust"))
    assert outcome.run is None
    assert outcome.stats == {"steps": min(PLANT_STEPS, len(golden.prompts[0].fed))}


@pytest.mark.usefixtures("wrapped")
def test_residents_are_read_back_once_after_the_last_step_and_after_the_counters(golden: Golden) -> None:
    outcome = run_job(job(golden, arm="showing"))
    assert outcome.residents is not None
    assert outcome.residents.readbacks == 1
    assert outcome.residents.violations[0] == "no such tensor: no resident tensor of the checkpoint has this name"
    assert outcome.stats == {"steps": 2 * len(golden.prompts[0].fed)}
    assert run_job(job(golden, arm="showing", plant="rust")).residents is not None
    assert run_job(job(golden, arm="honest")).residents is None


@pytest.mark.usefixtures("wrapped")
def test_a_fault_of_the_read_back_ends_the_prompt(golden: Golden) -> None:
    outcome = run_job(job(golden, arm="losing"))
    assert outcome.fault is not None
    assert (outcome.fault.kind, outcome.run, outcome.residents) == ("use-after-free", None, None)


@pytest.mark.usefixtures("wrapped")
def test_a_subject_without_fills_shows_no_evidence_of_slots(golden: Golden) -> None:
    assert run_job(job(golden)).slots is None


def test_bad_input_is_not_the_subject_s_fault(golden: Golden, tmp_path: Path) -> None:
    request = SubjectRequest(tmp_path, mini_golden())
    with pytest.raises(CheckpointError):
        run_job(PromptJob("perfect", request, mini_golden(), golden.prompts[0].name))


@pytest.mark.usefixtures("wrapped")
def test_a_subject_that_is_not_available_here_is_not_a_fault_either(golden: Golden) -> None:
    with pytest.raises(SubjectError, match="no card in this machine"):
        run_job(job(golden, arm="refusing"))
