"""Gate `slots`: did every expert that took part in compute hold the checkpoint's bytes, verified before use?

Compared, byte for byte and by the judge (`slot_audit`): each fill's read-back with the shadow, and with the checkpoint's
bytes of that (layer, expert, projection); the counts of fills, staged and verified bytes that the subject states with
those the auditor saw; and the number of uses with what the schedule must give (two passes, k experts per layer and
position). Exact.
It cannot see what the subject computes with if that is not what it read back: `operands` looks there.
"""

from __future__ import annotations

from dataclasses import replace

from oracle.judge.gate import Case, Finding, Judgement
from oracle.subjects.run import SlotEvidence

PASSES = 2
"""A prompt is walked twice: teacher-forced and free."""


class SlotsGate:
    name = "slots"
    definition = {
        "version": 1,
        "metric": "device bytes of every fill; counts of fills, bytes and uses",
        "statistic": "equality",
    }
    blind_to = "compute over bytes other than those read back"
    needs_alignment = False

    def judge(self, case: Case) -> Judgement:
        seen = case.run.slots
        if seen is None:
            return Judgement(0, (Finding("the run holds no evidence of fills", verdict="incomplete"),))
        findings = [Finding(violation) for violation in seen.violations]
        expected_uses = PASSES * sum(p.expert_ids[..., 0].size * p.expert_ids.shape[2] for p, _ in case.answered())
        stats = case.run.stats
        counts = [
            ("fills", stats.get("fills"), seen.fills),
            ("staged bytes", stats.get("staged_bytes"), seen.verified_bytes),
            ("verified bytes", stats.get("verified_bytes"), seen.verified_bytes),
            ("bytes compared with the checkpoint", seen.checkpoint_bytes, seen.verified_bytes),
        ]
        if not case.run.faults:  # a prompt that ended early has fewer uses than positions
            counts.append(("uses", seen.uses, expected_uses))
        for what, stated, counted in counts:
            if stated != counted:
                findings.append(Finding(f"{what} disagree", worst=f"{stated} stated", allowed=f"{counted} counted"))
        if seen.fills == 0 or seen.uses == 0:
            findings.append(Finding("no fill was ever verified, or no slot used", verdict="incomplete"))
        return Judgement(
            seen.verified_bytes,
            tuple(findings),
            {"fills": seen.fills, "verified bytes": seen.verified_bytes, "uses": seen.uses},
        )

    def plant(self, case: Case) -> Case:
        """A subject that states twice the bytes it verified, as a tautological verification once did."""
        seen = case.run.slots or SlotEvidence()
        stats = {**case.run.stats, "verified_bytes": 2 * seen.verified_bytes + 1}
        return replace(case, run=replace(case.run, stats=stats))
