"""What the controls of a gate session cost, beside the session itself: CPU seconds, in one process.

A gate counts only if it was seen to fire in the same run, so controls run every time and must stay cheap: under a fifth of
what the session costs without them. Measured: driving the subject over every prompt and judging its run, against the
perfect subject's run, the faults planted in the subject's own device, and each gate's controls. Exit code 1 above the mark.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from unittest import mock

from tables import Mark, print_marks, print_table

import oracle.judge.session as session
from goldens import mini_checkpoint
from oracle.judge.auditing import AUDITED
from oracle.judge.controls import gate_controls
from oracle.judge.gate import Case
from oracle.judge.gates import GATES
from oracle.judge.jobs import PromptJob, PromptOutcome, run_job
from oracle.judge.session import DEFAULT_SUBJECT, PERFECT, SessionOptions, record_session
from oracle.judge.verdict import require_class
from oracle.kolibri1.checkpoint import Checkpoint

MOST = 0.2
T = TypeVar("T")


@dataclass(frozen=True)
class Spent:
    """CPU seconds: of the session's own work by name, and of its controls by name."""

    own: dict[str, float]
    controls: dict[str, float]

    @property
    def share(self) -> float:
        return sum(self.controls.values()) / sum(self.own.values())


def measure(options: SessionOptions) -> Spent:
    """One session of a subject other than the perfect one; its jobs run one after the other in this process."""
    spent = Spent({"subject": 0.0}, {"perfect subject": 0.0, "faults planted in the device": 0.0})

    def in_this_process(jobs: Sequence[PromptJob], *_: object) -> list[PromptOutcome]:
        return [timed(job) for job in jobs]

    def timed(job: PromptJob) -> PromptOutcome:
        outcome, seconds = _timed(lambda: run_job(job))
        if job.request.plant is not None:
            spent.controls["faults planted in the device"] += seconds
        elif job.subject == PERFECT:
            spent.controls["perfect subject"] += seconds
        else:
            spent.own["subject"] += seconds
        return outcome

    with mock.patch.object(session, "run_jobs", in_this_process):
        recorded = record_session(options)
    calibration = require_class(recorded.golden, recorded.run.identity.numeric_class)
    case = Case(recorded.golden, recorded.run, recorded.checkpoint, calibration)
    perfect = Case(recorded.golden, recorded.perfect, recorded.checkpoint, calibration)
    for gate in GATES:
        _, spent.own[gate.name] = _timed(lambda gate=gate: gate.judge(case))
        _, spent.controls[gate.name] = _timed(lambda gate=gate: gate_controls(gate, perfect))
    _, spent.controls["auditors"] = _timed(lambda: _audit(recorded.checkpoint))
    return spent


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--subject", default=DEFAULT_SUBJECT, help="what to judge (default: %(default)s)")
    parser.add_argument("--checkpoint", type=Path, default=mini_checkpoint(), help="default: the shipped mini checkpoint")
    parser.add_argument("--golden", type=Path, help="default: `golden` inside the checkpoint folder")
    parser.add_argument("--small", action="store_true", help="the figures mean nothing and fail no mark")
    given = parser.parse_args(arguments)
    spent = measure(SessionOptions(given.checkpoint, given.golden or given.checkpoint / "golden", given.subject))
    names = [*spent.own, *(name for name in spent.controls if name not in spent.own)]
    rows = [[name, _seconds(spent.own.get(name)), _seconds(spent.controls.get(name))] for name in names]
    total = ["all", _seconds(sum(spent.own.values())), _seconds(sum(spent.controls.values()))]
    print_table(["CPU seconds", "own", "controls"], [*rows, total])
    mark = Mark("controls, share of a session's own work", spent.share, MOST, at_most=True)
    print_marks([mark], small=given.small)
    return 0 if mark.met or given.small else 1


def _audit(checkpoint: Checkpoint) -> None:
    for auditing in AUDITED.values():
        auditing.controls(checkpoint)


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    begun = time.process_time()
    result = work()
    return result, time.process_time() - begun


if __name__ == "__main__":
    sys.exit(main())
