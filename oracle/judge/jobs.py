"""Jobs: one prompt, or one planted fault, as a pure function of a small serializable spec. Run on all cores.

A job opens its own subject and closes it, so results do not depend on which worker ran what before.
"""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from oracle.errors import DeviceFault, KolibriError
from oracle.golden.evidence import PromptEvidence, PromptProbes
from oracle.golden.format import Golden, load_golden
from oracle.judge.census_audit import CensusAuditor
from oracle.judge.census_watch import recorded
from oracle.judge.dequantize import DequantizedWeights
from oracle.judge.determinism import REPEAT_STEPS, position_digests
from oracle.judge.gates import GATE_NAMES
from oracle.judge.observers import Observers
from oracle.judge.operand_audit import OperandAuditor
from oracle.judge.ops_audit import audit_ops
from oracle.judge.ops_cases import MINI, REAL
from oracle.judge.ops_plans import plans
from oracle.judge.resident_audit import audit_residents
from oracle.judge.slot_audit import SlotAuditor
from oracle.judge.workers import moving, work
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.subjects.captures import CapturedRegion, RecordsCaptures, merged
from oracle.subjects.census import CensusEvidence, RecordsOps
from oracle.subjects.harness import drive, drive_beginning
from oracle.subjects.operands import OperandEvidence, ShowsOperands
from oracle.subjects.ops import OpensOps, OpsEvidence
from oracle.subjects.protocol import (
    ShowsResidents,
    StepEvidence,
    Subject,
    SubjectFactory,
    SubjectIdentity,
    SubjectRequest,
)
from oracle.subjects.registry import subject_factory
from oracle.subjects.repeats import Repeat, Repeats
from oracle.subjects.run import PromptRun, ResidentEvidence, SlotEvidence

PLANT_STEPS = 24
"""Steps a planted fault may take to be caught: all slots of the mini are filled well before."""

FEW_PLANT_STEPS = 2
"""The same of faults that are there from the first step on."""

STEP_TIMEOUT = 600.0
"""Seconds that opening a subject, closing it or any of its steps may take before it counts as hanging. A step of the port
took 3.4 s on silicon; this leaves room for staging the release's experts, and for the reference on few cores."""


@dataclass(frozen=True)
class PromptJob:
    """Drive `subject` over one prompt of the golden, or, where the request plants a fault, over its first steps only.

    Attributes:
        ops: run its device's ops, each alone, in place of the prompt; where a fault is planted, at the mini's widths only.
        plant_steps: how many steps, where a fault is planted.
    """

    subject: str
    request: SubjectRequest
    golden: Path
    prompt: str
    step_timeout: float = STEP_TIMEOUT
    ops: bool = False
    plant_steps: int = PLANT_STEPS

    @property
    def answers(self) -> bool:
        """Whether it drives the subject over a whole prompt, as it is."""
        return not self.ops and self.request.plant is None and self.request.variant is None


@dataclass(frozen=True)
class PromptOutcome:
    """What came of a job. `run` is None where `fault` ended it, where a fault was planted, and where ops ran in its place.

    `repeat` is there where the request has a variant, and `run` then is not.
    """

    job: PromptJob
    identity: SubjectIdentity
    run: PromptRun | None
    fault: DeviceFault | None
    slots: SlotEvidence | None
    stats: dict[str, int]
    residents: ResidentEvidence | None = None
    ops: OpsEvidence | None = None
    repeat: Repeat | None = None
    operands: OperandEvidence | None = None
    census: CensusEvidence | None = None
    captures: tuple[CapturedRegion, ...] = ()


def run_job(job: PromptJob) -> PromptOutcome:
    """Do one job, in this process. Whatever the subject raises is its fault, recorded and never an absence.

    Raises:
        KolibriError: bad input, as a checkpoint that the subject cannot open.
    """
    golden = _golden(job.golden)
    prompt = next(p for p in golden.prompts if p.name == job.prompt)
    auditor = SlotAuditor(_checkpoint(job.request.checkpoint))
    operands = OperandAuditor(_dequantized(job.request.checkpoint))
    factory = subject_factory(job.subject)
    session = _SubjectSession(job, _assumed_identity(job, factory))
    try:
        if job.ops:
            session.work_ops(factory)
        else:
            session.work(factory, prompt, golden.probes_of(prompt.name), Observers(auditor, operands))
    except DeviceFault as caught:
        session.fault = caught
    except KolibriError:
        raise
    except BaseException as error:  # SystemExit and KeyboardInterrupt too: a subject cannot leave the session
        session.fault = crash(error)
    slots = auditor.evidence()
    streams = slots != SlotEvidence() or "fills" in session.stats
    run = session.run if session.fault is None else None
    held = slots if streams else None
    return PromptOutcome(
        job,
        session.identity,
        run,
        session.fault,
        held,
        session.stats,
        session.residents,
        session.ops,
        session.repeated(factory),
        operands=operands.evidence(),
        census=session.census,
        captures=session.captures,
    )


class _SubjectSession:
    """One subject from opening to closing, and what is known of it should it end in between."""

    def __init__(self, job: PromptJob, assumed: SubjectIdentity) -> None:
        self.job, self.identity = job, assumed
        self.run: PromptRun | None = None
        self.fault: DeviceFault | None = None
        self.stats: dict[str, int] = {}
        self.residents: ResidentEvidence | None = None
        self.ops: OpsEvidence | None = None
        self._digests: tuple[tuple[str, str], ...] = ()
        self.census: CensusEvidence | None = None
        self.captures: tuple[CapturedRegion, ...] = ()

    def work(self, factory: SubjectFactory, prompt: PromptEvidence, probes: PromptProbes, observers: Observers) -> None:
        subject = factory.open(self.job.request, observers)
        assumed, self.identity = self.identity, subject.identity
        _check_identity(self.job, factory, assumed, self.identity)
        census = CensusAuditor(_checkpoint(self.job.request.checkpoint).config, prompt.name)
        paced = cast(Subject, _Paced(recorded(subject, census)))
        try:
            if self.job.request.variant is not None:
                self._digests = position_digests(drive_beginning(paced, prompt, REPEAT_STEPS))
            elif self.job.request.plant is None:
                self.run = drive(paced, prompt, probes.positions)
            else:
                paced.reset()
                paced.start()
                for token in prompt.fed[: self.job.plant_steps]:
                    paced.step(token)
        except DeviceFault as caught:
            self.fault = caught  # its counters still tell how far it came
        if isinstance(subject, RecordsOps):
            self.census = census.evidence() if self.fault is None else CensusEvidence(violations=census.evidence().violations)
        if isinstance(subject, RecordsCaptures):
            self.captures = merged(subject.captured_regions())
        self.stats = _checked_stats(subject.stats())
        if self.fault is None and self.job.request.variant is None and isinstance(subject, ShowsResidents):
            # Last, so that a byte that changed under way shows, and so that the counters are those of decoding alone.
            self.residents = audit_residents(_checkpoint(self.job.request.checkpoint), subject.residents())
        if self.fault is None and self.job.request.variant is None and isinstance(subject, ShowsOperands):
            observers.operands.read_back(subject.operands())
        with contextlib.suppress(DeviceFault):  # closing a device that already faulted tells nothing new
            subject.close()

    def repeated(self, factory: SubjectFactory) -> Repeat | None:
        """What a variant's job gives."""
        name = self.job.request.variant
        if name is None:
            return None
        assert isinstance(factory, Repeats), "asked for a variant of a subject that has none"
        counters = tuple((counter, self.stats.get(counter, 0)) for counter in factory.variants[name].moves)
        return Repeat(name, self._digests, counters, "" if self.fault is None else str(self.fault))

    def work_ops(self, factory: SubjectFactory) -> None:
        assert isinstance(factory, OpensOps), "asked for the ops of a subject that opens no device for them"
        device = factory.open_ops(self.job.request)
        assumed, self.identity = self.identity, device.identity
        _check_identity(self.job, factory, assumed, self.identity)
        geometries = (MINI, REAL) if self.job.request.plant is None else (MINI,)
        self.ops = audit_ops(device, plans(self.identity.numeric_class, geometries), moving)
        with contextlib.suppress(DeviceFault):
            device.close()


class _Paced:
    """A subject that tells after each step that it moves; all else is its own."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject

    def __getattr__(self, name: str) -> Any:
        return getattr(self._subject, name)

    def step(self, *arguments: Any, **named: Any) -> StepEvidence:
        evidence = self._subject.step(*arguments, **named)
        moving()
        return evidence


def _assumed_identity(job: PromptJob, factory: SubjectFactory) -> SubjectIdentity:
    """Who a subject should be, by what was asked for; every gate is required of one that faults before it says more."""
    arm = job.request.arm or next(iter(factory.arms))
    device = job.request.device or next(iter(factory.devices), None)
    return SubjectIdentity(job.subject, factory.arms[arm], arm, GATE_NAMES, {} if device is None else {"kind": device})


def _check_identity(job: PromptJob, factory: SubjectFactory, asked: SubjectIdentity, stated: SubjectIdentity) -> None:
    """A subject that fell back to another arm, class or device than was asked for is not the one to be judged."""
    kinds = (asked.device.get("kind"), stated.device.get("kind")) if factory.devices else (None, None)
    for what, wanted, got in (
        ("name", asked.name, stated.name),
        ("arm", asked.arm, stated.arm),
        ("class", asked.numeric_class, stated.numeric_class),
        ("device kind", *kinds),
    ):
        if wanted != got:
            raise DeviceFault("identity", f"the subject's {what} is {got!r}, asked for was {wanted!r}")


def _checked_stats(stats: Mapping[str, int]) -> dict[str, int]:
    if not all(isinstance(k, str) and isinstance(v, int) and not isinstance(v, bool) for k, v in stats.items()):
        raise DeviceFault("evidence", f"stats() must map names to whole numbers, got {dict(stats)!r:.100}")
    return dict(stats)


def crash(error: BaseException) -> DeviceFault:
    """What a subject raised, as the fault it is recorded as."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(frame.filename).name}:{frame.lineno}"
    try:
        text = str(error)
    except Exception:
        text = "its message cannot be shown"
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return DeviceFault("subject-crashed", f"{type(error).__name__} in {frame.name} ({where}): {text}")


Done = Callable[[int], None]


def run_jobs(jobs: Sequence[PromptJob], workers: int | None = None, done: Done | None = None) -> list[PromptOutcome]:
    """Do all jobs on `workers` processes (all cores by default); outcomes come in the order of the jobs.

    Raises:
        SubjectError, CheckpointError: a subject could not be opened.
    """
    outcomes: dict[int, PromptOutcome] = {}
    with contextlib.closing(finished_jobs(jobs, workers)) as finished:
        for index, outcome in finished:
            outcomes[index] = outcome
            if done is not None:
                done(len(outcomes))
    return [outcomes[index] for index in range(len(jobs))]


def finished_jobs(jobs: Iterable[PromptJob], workers: int | None = None) -> Generator[tuple[int, PromptOutcome], None, None]:
    """Yield each job's number and outcome as it is done. A job that hangs or dies ends with that fault; the others go on.

    Always in child processes, one job or many: in this process arithmetic may use more threads, and give other bits.

    Raises:
        SubjectError, CheckpointError: a subject could not be opened.
    """
    with contextlib.closing(work(run_job, jobs, workers or _cores(), lambda job: job.step_timeout)) as answers:
        for index, job, answer in answers:
            yield index, _lost(job, answer) if isinstance(answer, DeviceFault) else answer


def _lost(job: PromptJob, fault: DeviceFault) -> PromptOutcome:
    """What is known of a job whose process ended before it answered."""
    return PromptOutcome(job, _assumed_identity(job, subject_factory(job.subject)), None, fault, None, {})


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@lru_cache(maxsize=2)
def _golden(folder: Path) -> Golden:
    return load_golden(folder)


@lru_cache(maxsize=2)
def _checkpoint(folder: Path) -> Checkpoint:
    return Checkpoint.open(folder)


@lru_cache(maxsize=2)
def _dequantized(folder: Path) -> DequantizedWeights:
    return DequantizedWeights(_checkpoint(folder))
