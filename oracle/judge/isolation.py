"""The job that runs each of a subject's layers alone on the golden's own hidden states, in a worker process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from oracle.errors import DeviceFault
from oracle.golden.format import load_golden
from oracle.judge.jobs import STEP_TIMEOUT, crash
from oracle.judge.localise import Isolated, compare_layers
from oracle.judge.workers import moving, work
from oracle.subjects.protocol import IsolatesLayers, SubjectRequest
from oracle.subjects.registry import subject_factory


@dataclass(frozen=True)
class IsolationJob:
    """Run every layer of `subject` alone over the golden's probe prompt."""

    subject: str
    request: SubjectRequest
    golden: Path
    step_timeout: float = STEP_TIMEOUT
    """Seconds that a layer may take for each of its positions."""


def isolate(job: IsolationJob) -> Isolated | None:
    """Do the job in a worker process; None where the subject cannot run one layer. Never raises for what a subject did."""
    positions = len(load_golden(job.golden).probes.layer_inputs)
    ((_, _, answer),) = work(run_isolation, [job], 1, lambda job: job.step_timeout * positions)
    return Isolated("", (), str(answer)) if isinstance(answer, DeviceFault) else answer


def run_isolation(job: IsolationJob) -> Isolated | None:
    """Do the job in this process."""
    golden = load_golden(job.golden)
    inputs = golden.probes.layer_inputs
    try:
        subject = subject_factory(job.subject).open(job.request)
        try:
            if not isinstance(subject, IsolatesLayers):
                return None
            outputs = []
            for layer in range(inputs.shape[1]):
                outputs.append(subject.layer(layer, inputs[:, layer].copy()))
                moving()
        finally:
            subject.close()
        calibration = golden.document.classes[subject.identity.numeric_class]
        return compare_layers(golden, outputs, calibration.limits_for([golden.document.probe_prompt]))
    except DeviceFault as fault:
        return Isolated(golden.document.probe_prompt, (), str(fault))
    except BaseException as error:  # the verdict stands without a localisation: a subject that crashes here cannot undo it
        return Isolated(golden.document.probe_prompt, (), str(crash(error)))
