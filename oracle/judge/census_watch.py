"""A subject whose ops are recorded in the teacher-forced pass of each prompt, for an auditor; all else is its own."""

from __future__ import annotations

from typing import Any

from oracle.errors import DeviceFault
from oracle.judge.census_audit import CensusAuditor
from oracle.subjects.census import RecordsOps
from oracle.subjects.protocol import StepEvidence, Subject


def recorded(subject: Subject, auditor: CensusAuditor) -> Any:
    """The subject, watched by `auditor` if it can record its ops."""
    return _Recorded(subject, subject, auditor) if isinstance(subject, RecordsOps) else subject


class _Recorded:
    """Records from the first `start` after a `reset` to the second: the pass in which the golden's ids are fed."""

    def __init__(self, subject: Subject, records: RecordsOps, auditor: CensusAuditor) -> None:
        self._subject = subject
        self._records = records
        self._auditor = auditor
        self._starts = 0
        auditor.declare(records.declared_ops())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._subject, name)

    def reset(self) -> None:
        self._subject.reset()
        self._starts = 0

    def start(self) -> None:
        self._subject.start()
        self._starts += 1
        self._records.record_ops(self._starts == 1)

    def step(self, *arguments: Any, **named: Any) -> StepEvidence:
        evidence = self._subject.step(*arguments, **named)
        if self._starts == 1:
            if evidence.expert_ids is None:
                raise DeviceFault("evidence", "a subject that records its ops must show the experts of each step")
            self._auditor.step(evidence.position, self._records.recorded_ops(), evidence.expert_ids.tolist())
        return evidence
