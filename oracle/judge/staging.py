"""Gate `staging`: does the device hold the checkpoint's bytes, all of them, at the end of every prompt?

Compared, byte for byte and by the judge (`resident_audit`): every tensor but the routed experts', read back from the
device after each prompt, with the checkpoint's own bytes (bf16 widened exactly where the device holds fp32); and how many
tensors and bytes of each kind were compared, with the plan that follows from the checkpoint's inventory. Exact: raw bytes,
since a read-back through fp32 once flushed subnormals and was falsely red on 350 of 350 tensors.
It cannot see copies that compute uses beside these tensors, nor which tensor an op is given: `operands` and `census` do.
"""

from __future__ import annotations

from dataclasses import replace

from oracle.judge.gate import Case, Finding, Judgement
from oracle.judge.resident_audit import plan_table, resident_plan
from oracle.subjects.run import ResidentEvidence, Run


class StagingGate:
    name = "staging"
    definition = {
        "version": 1,
        "metric": "device bytes of every resident tensor after each prompt; tensors and bytes of each kind",
        "statistic": "equality",
    }
    blind_to = "computing copies beside the resident tensors, and which tensor an op is given"
    needs_alignment = False

    def holds(self, run: Run) -> bool:
        return run.residents is not None

    def judge(self, case: Case) -> Judgement:
        seen = case.run.residents
        if seen is None:
            return Judgement(0, (Finding("the run holds no read-back of resident operands", verdict="incomplete"),))
        findings = [Finding(violation) for violation in seen.violations]
        prompts = len(case.run.prompts)
        if seen.readbacks != prompts:
            findings.append(
                Finding("not read back once after each prompt", worst=f"{seen.readbacks} read-backs", allowed=str(prompts))
            )
        planned = {kind: (tensors, size) for kind, tensors, size in planned_evidence(case, seen.readbacks).kinds}
        found = {kind: (tensors, size) for kind, tensors, size in seen.kinds}
        for kind in sorted(planned.keys() | found.keys()):
            (tensors, size), (wanted, wanted_size) = found.get(kind, (0, 0)), planned.get(kind, (0, 0))
            if (tensors, size) != (wanted, wanted_size):
                headline = f"resident tensors of kind {kind!r} are not those of the plan"
                worst, allowed = f"{tensors} tensors, {size} bytes", f"{wanted} tensors, {wanted_size} bytes"
                findings.append(Finding(headline, worst=worst, allowed=allowed))
        compared = sum(size for _, _, size in seen.kinds)
        tensors = sum(count for _, count, _ in seen.kinds)
        if compared <= 0:
            findings.append(Finding("nothing was read back", verdict="incomplete"))
        return Judgement(compared, tuple(findings), {"read-backs": seen.readbacks, "tensors": tensors, "bytes": compared})

    def honest(self, case: Case) -> Case:
        """With the evidence of one honest read-back after each prompt."""
        return case.with_run(residents=planned_evidence(case, len(case.run.prompts)))

    def plants(self, case: Case) -> dict[str, Case]:
        """A violation; a tensor that nobody read; a kind the plan has not; a prompt after which nothing was read."""
        honest = case.run.residents or planned_evidence(case, len(case.run.prompts))
        (kind, tensors, size), *rest = honest.kinds
        spoiled: dict[str, ResidentEvidence] = {
            "a violation": replace(honest, violations=("planted",)),
            "a tensor short": replace(honest, kinds=((kind, tensors - 1, size), *rest)),
            "a kind missing": replace(honest, kinds=tuple(rest)),
            "a byte short": replace(honest, kinds=((kind, tensors, size - 1), *rest)),
            "a kind too many": replace(honest, kinds=(*honest.kinds, ("routed down", 1, 1))),
            "a prompt without a read-back": planned_evidence(case, honest.readbacks - 1),
        }
        return {name: case.with_run(residents=evidence) for name, evidence in spoiled.items()}


def planned_evidence(case: Case, readbacks: int) -> ResidentEvidence:
    """The evidence of that many honest read-backs."""
    table = plan_table(resident_plan(case.checkpoint.config))
    return ResidentEvidence(readbacks, tuple((kind, readbacks * n, readbacks * size) for kind, n, size in table))
