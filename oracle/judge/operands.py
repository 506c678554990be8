"""Gate `operands`: are the weights that a device computes with the checkpoint's, dequantized as they must be?

Compared, bit for bit and by the judge (`operand_audit`), with its own dequantization (`dequantize`): every computing copy of
fp8 weights as it is handed to the device, and all copies that the device holds at the end of every prompt; how many there are
of each kind, and their elements, with what the checkpoint's inventory demands of residents; and the routed experts uploaded
with those that the run shows in use. An expert in a slot that takes part in compute needs a copy made from that very fill.
No calibration: dequantization is one product in fp32 and at most one rounding, so nothing but equality is right.
It cannot see a copy of which the subject neither tells nor answers, which copy an op is given (`census` does), nor whether
rows are stacked in the order that an op expects (`residual` does).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType

from oracle.judge.gate import Case, Finding, Judgement, not_held, shows
from oracle.judge.operand_audit import operand_plan, operand_table
from oracle.judge.slots import expected_uses
from oracle.kolibri1.config import Kolibri1Config
from oracle.kolibri1.inventory import inventory
from oracle.kolibri1.tensor_kind import tensor_kind
from oracle.subjects.operands import OperandEvidence
from oracle.subjects.run import Run

GATE_UP, DOWN = "routed gate, up", "routed down"


class OperandsGate:
    name = "operands"
    definition = {
        "version": 1,
        "metric": "elements of every computing copy, uploaded and held; copies of each kind; experts uploaded",
        "statistic": "equality",
    }
    blind_to = "copies that the subject does not show, which of them an op is given, and what an op takes stacked rows for"
    needs_alignment = False

    def holds(self, run: Run) -> bool:
        return run.operands is not None

    def judge(self, case: Case) -> Judgement:
        seen = case.run.operands
        if seen is None:
            return not_held("computing copies of fp8 weights")
        findings = [Finding(violation) for violation in seen.violations]
        prompts = len(case.run.prompts)
        if seen.readbacks != prompts:
            findings.append(
                Finding("not read back once after each prompt", worst=f"{seen.readbacks} read-backs", allowed=str(prompts))
            )
        for when, table in (("uploaded", seen.uploaded), ("held", seen.held)):
            findings += _count_findings(case, when, table, seen.readbacks)
        findings += _expert_findings(case, seen)
        uploaded, held = (sum(size for _, _, size in table) for table in (seen.uploaded, seen.held))
        return Judgement(
            uploaded + held,
            tuple(findings),
            {"elements uploaded": uploaded, "elements held": held, "experts": len(seen.experts)},
        )

    def honest(self, case: Case) -> Case:
        """With the evidence of a device that uploads each expert once and holds as many as a token needs."""
        return case.with_run(operands=planned_evidence(case, len(case.run.prompts)))

    def plants(self, case: Case) -> dict[str, Case]:
        """A violation; of each table a kind missing, surplus, a tensor or an element short; an expert that was never made."""
        honest = case.run.operands or planned_evidence(case, len(case.run.prompts))
        spoiled: dict[str, OperandEvidence] = {
            "a violation": replace(honest, violations=("planted",)),
            "a prompt without a read-back": planned_evidence(case, honest.readbacks - 1),
            "a prompt of which nothing was read back": replace(honest, readbacks=honest.readbacks - 1),
            "an expert never uploaded": replace(honest, experts=honest.experts[1:]),
            "no expert held": replace(honest, held=tuple(row for row in honest.held if row[0] not in (GATE_UP, DOWN))),
        }
        for when in ("uploaded", "held"):
            table = getattr(honest, when)
            (kind, tensors, size), *rest = table
            *others, (last, most, elements) = table
            each = elements // most
            changed = {
                "a tensor short": ((kind, tensors - 1, size - size // tensors), *rest),
                "a kind missing": tuple(rest),
                "an element short": ((kind, tensors, size - 1), *rest),
                "a kind too many": (*table, ("final norm", 1, 1)),
                "an expert's part short": tuple(
                    (name, n - (name == DOWN), s - each * (name == DOWN)) for name, n, s in (*others, (last, most, elements))
                ),
            }
            spoiled |= {f"{name}, {when}": replace(honest, **{when: rows}) for name, rows in changed.items()}
        return {name: case.with_run(operands=evidence) for name, evidence in spoiled.items()}


def planned_evidence(case: Case, readbacks: int) -> OperandEvidence:
    """The evidence of that many honest prompts."""
    config = case.checkpoint.config
    experts = tuple((layer, expert, 1) for layer, expert, _ in expected_uses(case))
    residents = operand_table(operand_plan(config), dict.fromkeys(operand_plan(config), readbacks))
    sizes = _sizes(config)

    def whole(count: int) -> tuple[tuple[str, int, int], ...]:
        return ((GATE_UP, 2 * count, 2 * count * sizes[GATE_UP]), (DOWN, count, count * sizes[DOWN]))

    held = whole(readbacks * config.num_experts_per_tok)
    return OperandEvidence(readbacks, (*residents, *whole(len(experts))), (*residents, *held), experts)


@lru_cache(maxsize=2)
def _sizes(config: Kolibri1Config) -> Mapping[str, int]:
    """Elements of one tensor of each kind."""
    return MappingProxyType({tensor_kind(spec.name): math.prod(spec.shape) for spec in inventory(config)})


def _count_findings(case: Case, when: str, table: tuple[tuple[str, int, int], ...], readbacks: int) -> list[Finding]:
    """What does not add up in the copies uploaded, or held."""
    plan = operand_plan(case.checkpoint.config)
    planned = {kind: tensors for kind, tensors, _ in operand_table(plan, dict.fromkeys(plan, readbacks))}
    found = {kind: tensors for kind, tensors, _ in table}
    routed = {kind: found.get(kind, 0) for kind in (GATE_UP, DOWN)}
    sizes, findings = _sizes(case.checkpoint.config), []
    for kind in sorted({*planned, *found} - {*routed}):
        if found.get(kind, 0) != planned.get(kind, 0):
            headline = f"copies {when} of kind {kind!r} are not those of the plan"
            findings.append(Finding(headline, worst=f"{found.get(kind, 0)}", allowed=f"{planned.get(kind, 0)}"))
    for kind, tensors, elements in table:
        if elements != tensors * sizes.get(kind, 0):
            headline = f"elements {when} of kind {kind!r} are not those of {tensors} tensors"
            findings.append(Finding(headline, worst=f"{elements}", allowed=f"{tensors * sizes.get(kind, 0)}"))
    if routed[GATE_UP] != 2 * routed[DOWN]:
        headline = f"experts were {when} in part"
        findings.append(Finding(headline, worst=f"{routed[GATE_UP]} gate or up, {routed[DOWN]} down"))
    if routed[DOWN] < readbacks:
        headline = f"a prompt had no copy of an expert {when}"
        findings.append(Finding(headline, worst=f"{routed[DOWN]} experts", allowed=f"{readbacks}"))
    return findings


def _expert_findings(case: Case, seen: OperandEvidence) -> list[Finding]:
    """Experts that the run shows in use, and that were never uploaded."""
    if not shows(case.run, "expert_ids"):
        return [Finding("the run does not show which experts it used", verdict="incomplete")]
    uploaded = {(layer, expert) for layer, expert, _ in seen.experts}
    missing = [(layer, expert) for layer, expert, _ in expected_uses(case) if (layer, expert) not in uploaded]
    if not missing:
        return []
    where = f"layer {missing[0][0]} expert {missing[0][1]}"
    return [Finding("experts were used of which no copy was uploaded", where, count=len(missing), of=len(expected_uses(case)))]
