"""Controls: each gate must pass the perfect subject and fire on every planted fault, in the same session as the judgement.

Positive: the perfect subject's run through the same harness. Negative: the gate's own `plants` in that run; and for a gate
whose evidence an auditor gathers, those of `auditing`. A gate whose control misbehaves is not believed, whatever it says about
the subject: the ledger turns red.
"""

from __future__ import annotations

from oracle.judge.alignment import AlignmentGate
from oracle.judge.control_result import ControlResult
from oracle.judge.gate import Case, Gate, PlantsEvidence, holds_evidence
from oracle.judge.soundness import golden_findings


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


def _outcome(gate: Gate, case: Case) -> str:
    verdict = case.judged(gate).verdict
    return {"pass": "pass", "fail": "fire"}.get(verdict, verdict)
