"""Gate `slots`: did every expert that took part in compute hold the checkpoint's bytes, verified before use?

Compared, byte for byte and by the judge (`slot_audit`): each fill's read-back with the shadow, and with the checkpoint's
bytes of that (layer, expert, projection); the counts of fills, staged and verified bytes that the subject states with
those the auditor saw; and how often each expert was used with the expert ids that the run shows of both passes. Exact.
It cannot see what the subject computes with if that is not what it read back: `operands` looks there.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from oracle.judge.gate import Case, Finding, Judgement, not_held, shows
from oracle.judge.slot_controls import one_honest_fill
from oracle.subjects.run import Run, SlotEvidence, use_table

PASSES = 2
"""A prompt is walked twice: teacher-forced and free."""


class SlotsGate:
    name = "slots"
    definition = {
        "version": 2,
        "metric": "device bytes of every fill; counts of fills, bytes, and uses of each expert",
        "statistic": "equality",
    }
    blind_to = "compute over bytes other than those read back"
    needs_alignment = False

    def holds(self, run: Run) -> bool:
        return run.slots is not None

    def judge(self, case: Case) -> Judgement:
        seen = case.run.slots
        if seen is None:
            return not_held("evidence of fills")
        findings = [Finding(violation) for violation in seen.violations]
        stats = case.run.stats
        counts = [
            ("fills", stats.get("fills"), seen.fills),
            ("staged bytes", stats.get("staged_bytes"), seen.verified_bytes),
            ("verified bytes", stats.get("verified_bytes"), seen.verified_bytes),
            ("bytes compared with the checkpoint", seen.checkpoint_bytes, seen.verified_bytes),
        ]
        if not shows(case.run, "expert_ids"):
            findings.append(Finding("the run does not show which experts it used", verdict="incomplete"))
        elif not case.run.faults:  # a prompt that ended early has fewer uses than positions
            counts.append(
                ("uses", seen.uses, PASSES * sum(p.expert_ids.size for _, p in case.answered() if p.expert_ids is not None))
            )
            if seen.expert_uses != (expected := expected_uses(case)):
                wrong = sorted(set(seen.expert_uses) ^ set(expected))
                where = f"layer {wrong[0][0]} expert {wrong[0][1]}"
                findings.append(
                    Finding("the experts used are not those the run shows", where, count=len(wrong), of=len(expected))
                )
        for what, stated, counted in counts:
            if stated != counted:
                findings.append(Finding(f"{what} disagree", worst=f"{stated} stated", allowed=f"{counted} counted"))
        if seen.fills <= 0 or seen.uses <= 0:
            findings.append(Finding("no fill was ever verified, or no slot used", verdict="incomplete"))
        return Judgement(
            seen.verified_bytes,
            tuple(findings),
            {"fills": seen.fills, "verified bytes": seen.verified_bytes, "uses": seen.uses},
        )

    def honest(self, case: Case) -> Case:
        """With the evidence of one honest fill, and every use."""
        seen, uses = one_honest_fill(case.checkpoint), expected_uses(case)
        stats = {"fills": seen.fills, "staged_bytes": seen.verified_bytes, "verified_bytes": seen.verified_bytes}
        slots = replace(seen, uses=sum(times for _, _, times in uses), expert_uses=uses)
        return case.with_run(slots=slots, stats=stats)

    def plants(self, case: Case) -> dict[str, Case]:
        """Twice the verified bytes, as a tautological verification once stated; a violation; uses that are not the run's."""
        seen = case.run.slots or SlotEvidence()
        (layer, expert, times), *rest = seen.expert_uses or ((0, 0, 0),)
        moved = ((layer, expert + 1, times), *rest)
        return {
            "twice the verified bytes": case.with_run(stats={**case.run.stats, "verified_bytes": 2 * seen.verified_bytes + 1}),
            "a violation": case.with_run(slots=replace(seen, violations=("planted",))),
            "another expert used": case.with_run(slots=replace(seen, expert_uses=moved)),
        }


def expected_uses(case: Case) -> tuple[tuple[int, int, int], ...]:
    """How often each expert must have been used, by the expert ids that the run shows of its two passes."""
    used: Counter[tuple[int, int]] = Counter()
    for _, run in case.each():
        for ids in (run.expert_ids, run.free_expert_ids):
            if ids is None:
                continue
            for layer in range(ids.shape[1]):
                experts, times = np.unique(ids[:, layer], return_counts=True)
                used.update({(layer, int(expert)): int(n) for expert, n in zip(experts, times, strict=True)})
    return use_table(used)
