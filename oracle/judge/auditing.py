"""The gates whose evidence an auditor gathers while the subject runs, and the controls of those auditors.

To add one: a line of `AUDITED`. Its `controls` show the auditor honest and dishonest evidence; faults that a subject plants in
its own device under the gate's name (`gate:NAME`) run in every session, and `red` says whether what was gathered there fires.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from oracle.judge.capture import region_findings
from oracle.judge.capture_controls import capture_controls
from oracle.judge.census import undeclared
from oracle.judge.census_controls import census_controls
from oracle.judge.control_result import ControlResult
from oracle.judge.jobs import PromptOutcome
from oracle.judge.operand_controls import operand_controls
from oracle.judge.ops import judge_ops
from oracle.judge.ops_cases import MINI
from oracle.judge.ops_controls import ops_controls
from oracle.judge.ops_plans import planned, plans
from oracle.judge.resident_controls import resident_controls
from oracle.judge.slot_controls import slot_controls
from oracle.kolibri1.checkpoint import Checkpoint


@dataclass(frozen=True)
class Auditing:
    """How one gate's auditor is controlled.

    Attributes:
        controls: of the auditor alone.
        red: whether the evidence in an outcome fires; False where there is none.
    """

    controls: Callable[[Checkpoint], tuple[ControlResult, ...]]
    red: Callable[[PromptOutcome], bool]


def _slots_red(outcome: PromptOutcome) -> bool:
    return outcome.slots is not None and bool(outcome.slots.violations)


def _residents_red(outcome: PromptOutcome) -> bool:
    return outcome.residents is not None and bool(outcome.residents.violations)


def _operands_red(outcome: PromptOutcome) -> bool:
    return outcome.operands is not None and bool(outcome.operands.violations)


def _ops_red(outcome: PromptOutcome) -> bool:
    if outcome.ops is None:
        return False
    return judge_ops(outcome.ops, planned(plans(outcome.identity.numeric_class, (MINI,)))).verdict == "fail"


def _census_red(outcome: PromptOutcome) -> bool:
    return outcome.census is not None and bool(outcome.census.violations or undeclared(outcome.census))


def _captures_red(outcome: PromptOutcome) -> bool:
    return bool(region_findings(outcome.captures))


AUDITED: Mapping[str, Auditing] = {
    "slots": Auditing(slot_controls, _slots_red),
    "staging": Auditing(resident_controls, _residents_red),
    "operands": Auditing(operand_controls, _operands_red),
    "ops": Auditing(lambda _: ops_controls(), _ops_red),
    "census": Auditing(census_controls, _census_red),
    "capture": Auditing(lambda _: capture_controls(), _captures_red),
}
"""By gate."""

GATE = "gate:"
"""What the answer of a planted fault begins with that only a gate can catch; any other is a `device-fault:KIND`."""


def session_plants(plants: Mapping[str, str]) -> dict[str, str]:
    """Of a subject's planted faults, with their answers, those that every session plants: what an auditor or a check sees."""
    return {
        plant: answer for plant, answer in sorted(plants.items()) if not answer.startswith(GATE) or _gate_of(answer) in AUDITED
    }


def device_controls(outcomes: Sequence[tuple[PromptOutcome, str]]) -> tuple[ControlResult, ...]:
    """Faults planted in the subject's own device; each with how it must be caught (`device-fault:KIND` or `gate:NAME`)."""
    results = []
    for outcome, expected in outcomes:
        fired = [GATE + name for name, auditing in AUDITED.items() if auditing.red(outcome)]
        if outcome.fault is not None:
            seen = f"device-fault:{outcome.fault.kind}"
        else:
            seen = expected if expected in fired else next(iter(fired), "not caught")
        results.append(ControlResult(f"device {outcome.job.request.plant}", expected, seen))
    return tuple(results)


def controls_of_auditing(gate: str, checkpoint: Checkpoint, device: Iterable[ControlResult]) -> tuple[ControlResult, ...]:
    """What a gate's auditor is controlled by, beside the gate itself; nothing for a gate without one.

    What a check of the subject's or its device's must catch stands with the gate whose evidence relies on that check.

    Args:
        device: all results of `device_controls`.
    """
    if gate not in AUDITED:
        return ()
    own = [result for result in device if _gate_of(result.expected) == gate]
    return (*AUDITED[gate].controls(checkpoint), *own)


_CAPTURE_CHECKS = frozenset({"device-fault:trace-capture"})


def _gate_of(answer: str) -> str:
    """The gate that a planted fault with this answer is a control of: the drain's checks are those of `slots`."""
    if answer.startswith(GATE):
        return answer[len(GATE) :]
    return "capture" if answer in _CAPTURE_CHECKS else "slots"
