"""Controls: each gate must pass the perfect subject and fire on every planted fault, in the same session as the judgement.

Positive: the perfect subject's run through the same harness. Negative: the gate's own `plants` in that run; for `slots` and
`staging` also faults planted in the subject's device, and in what the auditor is shown. A gate whose control misbehaves is not
believed, whatever it says about the subject: the ledger turns red.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from oracle.judge.alignment import AlignmentGate
from oracle.judge.census import undeclared
from oracle.judge.gate import Case, Gate, PlantsEvidence, holds_evidence
from oracle.judge.jobs import PromptOutcome
from oracle.judge.ops import judge_ops
from oracle.judge.ops import planned_evidence as planned_ops
from oracle.judge.ops_cases import MINI
from oracle.judge.ops_plans import planned, plans
from oracle.judge.slot_audit import SlotAuditor
from oracle.judge.slots import expected_uses
from oracle.judge.soundness import golden_findings
from oracle.judge.staging import planned_evidence
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.inventory import EXPERT_PROJECTIONS, SCALE_SUFFIX, expert_weight
from oracle.subjects.protocol import VerifiedFill


@dataclass(frozen=True)
class ControlResult:
    """One control of one gate.

    Attributes:
        name: `perfect` for the positive one, the planted fault's name for a negative one.
        expected, seen: `pass` or `fire`, or the words of a `DeviceFault`.
    """

    name: str
    expected: str
    seen: str

    @property
    def behaved(self) -> bool:
        return self.expected == self.seen


def gate_controls(gate: Gate, perfect: Case) -> tuple[ControlResult, ...]:
    """The positive control of a gate that judges runs, over all prompts, and its negative ones, planted in a few of them.

    Args:
        perfect: the perfect subject's run, judged by the class of the subject under test.
    """
    if perfect.once("golden findings", golden_findings):
        return (ControlResult("perfect", "pass", "no sound golden"), ControlResult("planted", "fire", "not run"))
    if gate.name not in ("golden", "ops") and perfect.judged(AlignmentGate()).verdict != "pass":
        # The harness fails the perfect subject: there is nothing to plant a fault in, and that is the finding.
        return (ControlResult("perfect", "pass", "not aligned"), ControlResult("planted", "fire", "not run"))
    few = perfect.narrowed(telling_prompts(perfect))
    if gate.name == "ops":
        perfect, few = (case.with_run(ops=planned_ops(case.run.identity.numeric_class)) for case in (perfect, few))
    if gate.name == "slots":
        perfect, few = _with_honest_fill(perfect), _with_honest_fill(few)
    if gate.name == "staging":
        perfect, few = (case.with_run(residents=planned_evidence(case, len(case.run.prompts))) for case in (perfect, few))
    if isinstance(gate, PlantsEvidence):
        perfect, few = gate.honest(perfect), gate.honest(few)
    if not holds_evidence(gate, perfect.run):
        return (ControlResult("perfect", "pass", "no evidence"), ControlResult("planted", "fire", "not run"))
    planted = gate.plants(few).items()
    return (
        ControlResult("perfect", "pass", _outcome(gate, perfect)),
        *(ControlResult(f"planted {name}", "fire", _outcome(gate, case)) for name, case in planted),
    )


def telling_prompts(perfect: Case) -> frozenset[str]:
    """Names of the few prompts that hold all that a gate plants its faults in: a text, a chat, the widest margin.

    What a gate compares of one prompt it compares of all, which the positive control shows; so faults can stay cheap.
    """
    # Where nothing was answered, the golden alone can still be spoiled.
    answered = [prompt for prompt, _ in perfect.answered()] or list(perfect.golden.prompts)
    chats = {spec.name for spec in perfect.golden.document.recipe.prompts if spec.messages is not None}
    kinds = (
        answered[:2],
        [prompt for prompt in answered if prompt.text is not None][:1],
        [prompt for prompt in answered if prompt.name in chats][:1],
        [max(answered, key=lambda prompt: float(prompt.margin.max()))],
        [max(answered, key=lambda prompt: float(prompt.router_gap.max()))],
    )
    return frozenset(prompt.name for kind in kinds for prompt in kind)


def device_controls(outcomes: Sequence[tuple[PromptOutcome, str]]) -> tuple[ControlResult, ...]:
    """Faults planted in the subject's own device; each with how it must be caught (`device-fault:KIND` or `gate:NAME`)."""
    results = []
    for outcome, expected in outcomes:
        audited = {"gate:slots": outcome.slots, "gate:staging": outcome.residents}
        audited |= {"gate:operands": outcome.operands, "gate:census": outcome.census}
        fired = [name for name, evidence in audited.items() if evidence is not None and evidence.violations]
        fired += ["gate:census"] if outcome.census is not None and undeclared(outcome.census) else []
        fired += ["gate:ops"] if _ops_fire(outcome) else []
        if outcome.fault is not None:
            seen = f"device-fault:{outcome.fault.kind}"
        else:
            seen = expected if expected in fired else next(iter(fired), "not caught")
        results.append(ControlResult(f"device {outcome.job.request.plant}", expected, seen))
    return tuple(results)


def _ops_fire(outcome: PromptOutcome) -> bool:
    """Whether the ops of a device with a planted fault are red, each of them measured."""
    cases = planned(plans(outcome.identity.numeric_class, (MINI,)))
    return outcome.ops is not None and judge_ops(outcome.ops, cases).verdict == "fail"


def auditor_controls(checkpoint: Checkpoint) -> tuple[ControlResult, ...]:
    """The auditor shown one honest fill, and five dishonest ones."""

    def show(fault: str) -> str:
        auditor = SlotAuditor(checkpoint)
        for projection in EXPERT_PROJECTIONS:
            image = _image(checkpoint, 1 if fault == "wrong expert" else 0, projection)
            read_back = image if fault == "shared memory" else image.copy()
            if fault == "flipped byte" and projection == "down_proj":
                read_back[-1] ^= 1
            if fault == "copied shadow":  # both images corrupted alike: only the checkpoint's bytes show it
                image = image.copy()
                image[7] ^= 0x10
                read_back = image.copy()
            if fault != "unverified use" or projection != "up_proj":
                auditor.verified(VerifiedFill(0, 0, projection, 3, 1, image, read_back, event=10))
        auditor.used(0, 0, 3, 1, event=11)
        return "fire" if auditor.evidence().violations else "pass"

    honest = ControlResult("auditor honest", "pass", show("none"))
    faults = ("flipped byte", "copied shadow", "wrong expert", "shared memory", "unverified use")
    return (honest, *(ControlResult(f"auditor {fault}", "fire", show(fault)) for fault in faults))


def _outcome(gate: Gate, case: Case) -> str:
    verdict = case.judged(gate).verdict
    return {"pass": "pass", "fail": "fire"}.get(verdict, verdict)


def _image(checkpoint: Checkpoint, expert: int, projection: str) -> np.ndarray:
    name = expert_weight(0, expert, projection)
    return np.concatenate([checkpoint.raw(name), checkpoint.raw(name + SCALE_SUFFIX)])


def _with_honest_fill(case: Case) -> Case:
    """The perfect subject has no slots; give its run the evidence of one honest fill, and every use."""
    auditor = SlotAuditor(case.checkpoint)
    for projection in EXPERT_PROJECTIONS:
        image = _image(case.checkpoint, 0, projection)
        auditor.verified(VerifiedFill(0, 0, projection, 0, 1, image, image.copy(), event=1))
    seen = auditor.evidence()
    uses = expected_uses(case)
    stats = {"fills": seen.fills, "staged_bytes": seen.verified_bytes, "verified_bytes": seen.verified_bytes}
    slots = replace(seen, uses=sum(times for _, _, times in uses), expert_uses=uses)
    return case.with_run(slots=slots, stats=stats)
