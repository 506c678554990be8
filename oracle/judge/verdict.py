"""The verdict of a session: gates judged, controls run, the ledger drawn up, one word at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from oracle.errors import GoldenError
from oracle.golden.calibration import ClassCalibration
from oracle.golden.format import Golden
from oracle.judge.auditing import controls_of_auditing
from oracle.judge.control_result import ControlResult
from oracle.judge.controls import gate_controls
from oracle.judge.facts import SessionFacts
from oracle.judge.flip_record import FlipRecord, flip_records, signature
from oracle.judge.gate import Case, Finding, Gate, Judgement, Verdict, gate_id, holds_evidence
from oracle.judge.gates import GATE_NAMES, GATES, LEDGER, REQUIRED_OF_ALL
from oracle.judge.ledger import BLIND_TO, DEFINITION, LedgerEntry, judge_ledger, ledger_controls
from oracle.judge.localise import Localisation, accumulate
from oracle.judge.soundness import golden_findings, impossible_measures, non_finite_findings
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.subjects.protocol import NumericClass
from oracle.subjects.run import Run

REPORT_SCHEMA = "kolibri-gate/1"
LOCALISED = ("flips", "logits", "residual")
"""Gates whose red asks which layer is off."""
_WITHOUT_PROMPTS = ("golden", "ops")
"""Gates that see all they compare whatever prompts were run."""


@dataclass(frozen=True)
class GateResult:
    """One gate's line of the verdict table."""

    id: str
    name: str
    verdict: Verdict
    compared: int
    findings: tuple[Finding, ...]
    controls: tuple[ControlResult, ...]
    measured: Mapping[str, float | int | str]
    blind_to: str


@dataclass(frozen=True)
class Report:
    """A whole session's outcome.

    Attributes:
        verdict: `fail` over `incomplete` over `pass`.
        partial: the user narrowed the set of gates, or the time for prompts.
        ledger: an entry for every gate, also for those that did not run, with the reason.
        facts: what the session ran on and how far it came.
        localisation: which layer is off, where the run is aligned and a gate of its numbers is red; else None.
        aligned: the run was fed what the golden was; if not, no flip was looked for.
    """

    verdict: Verdict
    partial: bool
    golden_digest: str
    run: Run
    gates: tuple[GateResult, ...]
    flips: tuple[FlipRecord, ...]
    flip_signature: str
    ledger: tuple[LedgerEntry, ...]
    facts: SessionFacts
    aligned: bool
    localisation: Localisation | None = None

    @property
    def exit_code(self) -> int:
        return {"pass": 0, "fail": 1, "incomplete": 3}[self.verdict]

    def to_json(self) -> dict[str, Any]:
        """The document that `gate --json` writes."""
        identity = self.run.identity
        return {
            "schema": REPORT_SCHEMA,
            "verdict": self.verdict,
            "partial": self.partial,
            "left_out": list(self.run.left_out),
            "golden": {"digest": self.golden_digest},
            "subject": {**asdict(identity), "device": dict(identity.device)},
            "environment": dict(self.run.environment),
            "gates": [
                {
                    "id": gate.id,
                    "verdict": gate.verdict,
                    "compared": gate.compared,
                    "findings": [{**asdict(f), "text": str(f)} for f in gate.findings],
                    "controls": [{**asdict(c), "behaved": c.behaved} for c in gate.controls],
                    "measured": dict(gate.measured),
                    "blind_to": gate.blind_to,
                }
                for gate in self.gates
            ],
            "flips": [flip.model_dump(mode="json") for flip in self.flips],
            "flip_signature": self.flip_signature,
            "ledger": [asdict(entry) for entry in self.ledger],
            "session": self.facts.to_json(),
            "localisation": self.localisation and self.localisation.to_json(),
        }


def require_class(golden: Golden, numeric_class: NumericClass) -> ClassCalibration:
    """The golden's calibration of a class.

    Raises:
        GoldenError: the golden has none for that class.
    """
    try:
        return golden.document.classes[numeric_class]
    except KeyError:
        known = ", ".join(golden.document.classes) or "none"
        raise GoldenError(f"the golden has no floor for class {numeric_class}; it has {known}: make one that has") from None


def judge_session(
    golden: Golden,
    checkpoint: Checkpoint,
    run: Run,
    perfect: Run,
    *,
    selected: Sequence[str],
    device: Sequence[ControlResult] = (),
    partial: bool = False,
    controlled: bool = True,
    texts: bool = True,
) -> Report:
    """Judge a run by the selected gates, each with its controls, and draw up the ledger.

    Args:
        perfect: the perfect subject's run on the same golden, through the same harness.
        selected: gate names to judge.
        device: results of faults planted in the subject's own device.
        partial: whether `selected` was narrowed by the user.
        controlled: whether `perfect` came through the same dumper as `run`; if not, the verdict is never green.
        texts: as in `Case`.
    """
    calibration = require_class(golden, run.identity.numeric_class)
    case = Case(golden, run, checkpoint, calibration, texts)
    # A forced run is judged more strictly: its controls too must behave by that rule.
    control_case = case.with_run_of(replace(perfect, forced=run.forced))
    sound = not case.once("golden findings", golden_findings)
    aligned = sound and case.judged(next(g for g in GATES if g.name == "alignment")).verdict == "pass"
    impossible = impossible_measures(case) if aligned else ()
    declared = run.identity.required_gates
    required = tuple(name for name in declared if name in selected or name not in GATE_NAMES)
    facts = SessionFacts.of(golden, run)
    results, entries, narrowed = [], [], []
    for gate in GATES:
        if gate.name not in selected:
            narrowed.append(LedgerEntry(gate.name, gate.name in declared, False, 0, "not applicable", (), "narrowed by --only"))
            continue
        result = _judge_gate(gate, case, control_case, sound, aligned, impossible, tuple(device))
        results.append(result)
        entries.append(
            _entry(result, gate.name in required, _left_out(golden, run) if gate.name not in _WITHOUT_PROMPTS else "")
        )
    # The ledger judges in every session, however narrowed: without it a dead control would go unnoticed.
    results.append(_judge_ledger(entries, [n for n in required if n != LEDGER], run, facts, controlled))
    entries.append(_entry(results[-1], required=True))
    flips = flip_records(case) if aligned and not impossible else ()
    return Report(
        verdict=_overall(results),
        partial=partial or bool(run.left_out),
        golden_digest=golden.digest,
        run=run,
        gates=tuple(results),
        flips=flips,
        flip_signature=signature(golden.digest, flips),
        ledger=tuple(sorted((*entries, *narrowed), key=lambda entry: GATE_NAMES.index(entry.gate))),
        facts=facts,
        aligned=aligned,
        localisation=_localised(case, results) if aligned else None,
    )


def _judge_gate(
    gate: Gate,
    case: Case,
    control_case: Case,
    sound: bool,
    aligned: bool,
    impossible: tuple[Finding, ...],
    device: tuple[ControlResult, ...],
) -> GateResult:
    # Evidence that a run holds is judged, declared or not.
    if not holds_evidence(gate, case.run) and gate.name not in case.run.identity.required_gates:
        return GateResult(gate_id(gate.name, gate.definition), gate.name, "not applicable", 0, (), (), {}, gate.blind_to)
    controls = (*gate_controls(gate, control_case), *controls_of_auditing(gate.name, case.checkpoint, device))
    if not sound and gate.name != "golden":
        judgement = Judgement(0, (Finding("not compared: the golden is not sound", verdict="incomplete"),))
    elif gate.needs_alignment and not aligned:
        judgement = Judgement(0, (Finding("not compared: the run is not aligned with the golden", verdict="incomplete"),))
    elif gate.needs_alignment and impossible:
        judgement = Judgement(0, impossible)
    else:
        judgement = case.judged(gate)
        if gate.needs_alignment and gate.name != "logits":  # which counts them itself
            judgement = replace(judgement, findings=judgement.findings + non_finite_findings(case))
    return GateResult(
        gate_id(gate.name, gate.definition),
        gate.name,
        judgement.verdict,
        judgement.compared,
        judgement.findings,
        controls,
        judgement.measured,
        gate.blind_to,
    )


def _judge_ledger(
    entries: list[LedgerEntry], required: list[str], run: Run, facts: SessionFacts, controlled: bool
) -> GateResult:
    identity = gate_id(LEDGER, DEFINITION)
    if not entries:
        finding = Finding("no gate was selected that the ledger could look at", verdict="incomplete")
        return GateResult(identity, LEDGER, "incomplete", 0, (finding,), (), {}, BLIND_TO)
    judgement = judge_ledger(entries, required, facts)
    controls = ledger_controls(entries, required, facts)
    undeclared = [name for name in REQUIRED_OF_ALL if name not in run.identity.required_gates]
    findings = judgement.findings + tuple(
        Finding(f"the subject does not declare gate {name}, which every subject must answer", verdict="incomplete")
        for name in undeclared
    )
    if not controlled:
        findings += (Finding("the run comes without a control run by the same dumper", verdict="incomplete"),)
    findings += tuple(
        Finding(f"control {c.name!r} of the ledger misbehaved", worst=c.seen, allowed=c.expected)
        for c in controls
        if not c.behaved
    )
    judged = replace(judgement, findings=findings)
    return GateResult(identity, LEDGER, judged.verdict, judged.compared, judged.findings, controls, {}, BLIND_TO)


def _left_out(golden: Golden, run: Run) -> str:
    """Why a gate saw only part of the golden, or nothing where it saw all."""
    return f"{len(run.left_out)} of {len(golden.prompts)} prompts were left out" if run.left_out else ""


def _entry(result: GateResult, required: bool, narrowed: str = "") -> LedgerEntry:
    ran = result.verdict != "not applicable"
    reason = narrowed if ran else "the subject does not declare it, and its evidence is not in the run"
    if ran and result.compared <= 0:
        reason = result.findings[0].headline if result.findings else "there was nothing to compare"
    return LedgerEntry(result.name, required, ran, result.compared, result.verdict, result.controls, reason)


def _localised(case: Case, results: Sequence[GateResult]) -> Localisation | None:
    red = any(result.verdict == "fail" and result.name in LOCALISED for result in results)
    return Localisation(accumulate(case)) if red else None


def _overall(results: Sequence[GateResult]) -> Verdict:
    verdicts = {result.verdict for result in results}
    if "fail" in verdicts:
        return "fail"
    # The ledger's own pass is not enough: some gate must have compared the subject with the golden.
    compared = any(result.verdict == "pass" for result in results if result.name != LEDGER)
    return "pass" if compared and "incomplete" not in verdicts else "incomplete"
