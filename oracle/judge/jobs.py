"""Jobs: one prompt, or one planted fault, as a pure function of a small serializable spec. Run on all cores.

A job opens its own subject and closes it, so results do not depend on which worker ran what before.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from oracle.errors import DeviceFault, KolibriError
from oracle.golden.format import Golden, load_golden
from oracle.judge.gates import GATE_NAMES
from oracle.judge.slot_audit import SlotAuditor
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.subjects.harness import drive
from oracle.subjects.protocol import SubjectFactory, SubjectIdentity, SubjectRequest
from oracle.subjects.registry import subject_factory
from oracle.subjects.run import PromptRun, SlotEvidence

PLANT_STEPS = 24
"""Steps a planted fault may take to be caught: all slots of the mini are filled well before."""

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


@dataclass(frozen=True)
class PromptJob:
    """Drive `subject` over one prompt of the golden, or, where the request plants a fault, over its first steps only."""

    subject: str
    request: SubjectRequest
    golden: Path
    prompt: str


@dataclass(frozen=True)
class PromptOutcome:
    """What came of a job. `run` is None where `fault` ended it, and where a fault was planted."""

    job: PromptJob
    identity: SubjectIdentity
    run: PromptRun | None
    fault: DeviceFault | None
    slots: SlotEvidence | None
    stats: dict[str, int]


def run_job(job: PromptJob) -> PromptOutcome:
    """Do one job, in this process. Whatever the subject raises is its fault, recorded and never an absence.

    Raises:
        KolibriError: bad input, as a checkpoint that the subject cannot open.
    """
    golden = _golden(job.golden)
    prompt = next(p for p in golden.prompts if p.name == job.prompt)
    auditor = SlotAuditor(_checkpoint(job.request.checkpoint))
    factory = subject_factory(job.subject)
    identity = _assumed_identity(job, factory)
    run, fault, stats = None, None, {}
    subject = None
    try:
        subject = factory.open(job.request, auditor)
        identity = subject.identity
        if job.request.plant is None:
            run = drive(subject, prompt)
        else:
            subject.reset()
            subject.start()
            for token in prompt.fed[:PLANT_STEPS]:
                subject.step(token)
    except DeviceFault as caught:
        fault = caught
    except KolibriError:
        raise
    except Exception as error:
        fault = _crash(error)
    if subject is not None:
        stats = dict(subject.stats())
        with contextlib.suppress(DeviceFault):  # closing a device that already faulted tells nothing new
            subject.close()
    slots = auditor.evidence()
    streams = slots != SlotEvidence() or "fills" in stats
    return PromptOutcome(job, identity, run, fault, slots if streams else None, stats)


def _assumed_identity(job: PromptJob, factory: SubjectFactory) -> SubjectIdentity:
    """Who a subject is that faulted before it could say so; every gate is then required."""
    arm = job.request.arm or next(iter(factory.arms))
    return SubjectIdentity(job.subject, factory.arms[arm], arm, GATE_NAMES)


def _crash(error: Exception) -> DeviceFault:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(frame.filename).name}:{frame.lineno}"
    return DeviceFault("subject-crashed", f"{type(error).__name__} in {frame.name} ({where}): {error}")


Done = Callable[[int], None]
T = TypeVar("T")


def run_jobs(jobs: Sequence[PromptJob], workers: int | None = None, done: Done | None = None) -> list[PromptOutcome]:
    """Do all jobs on `workers` processes (all cores by default); outcomes come in the order of the jobs.

    Raises:
        DeviceFault: a worker process died, as from a crash of a native library.
        SubjectError, CheckpointError: a subject could not be opened.
    """
    if not jobs:
        return []
    with _single_threaded_children():
        # Always in child processes, one job or many: in this process arithmetic may use more threads, and give other bits.
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(min(workers or _cores(), len(jobs)), context, initializer=_leave_interrupts_to_the_parent)
        try:
            futures = [pool.submit(run_job, job) for job in jobs]
            return [_counted(future.result(), index, done) for index, future in enumerate(futures)]
        except KeyboardInterrupt:
            for child in multiprocessing.active_children():
                child.terminate()
            raise
        except BrokenProcessPool:
            raise DeviceFault(
                "worker-died", "a worker process died while it ran the subject, as from a crash of a native library"
            ) from None
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _counted(value: T, index: int, done: Done | None) -> T:
    if done is not None:
        done(index + 1)
    return value


def _leave_interrupts_to_the_parent() -> None:
    """Ctrl-C reaches the whole process group; only the parent answers it, by ending the workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def _single_threaded_children() -> Iterator[None]:
    """Children start with one arithmetic thread each: as many processes as cores, and bits that depend on neither."""
    saved = {name: os.environ.get(name) for name in _THREAD_VARIABLES}
    os.environ.update(dict.fromkeys(_THREAD_VARIABLES, "1"))
    try:
        yield
    finally:
        for name, value in saved.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@lru_cache(maxsize=2)
def _golden(folder: Path) -> Golden:
    return load_golden(folder)


@lru_cache(maxsize=2)
def _checkpoint(folder: Path) -> Checkpoint:
    return Checkpoint.open(folder)
