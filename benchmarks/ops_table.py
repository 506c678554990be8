"""Print the tables of docs/ops.md: each op's measured error, and which ops each quirk of the simulated card turns red.

python benchmarks/ops_table.py              # the subject tt on its first device, in the arms bf16 and exact
python benchmarks/ops_table.py ttnn bf16    # on another, in the arms named
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from goldens import mini_checkpoint
from oracle.judge.ops import BIAS_SIGMAS, BIAS_UNITS, judge_ops
from oracle.judge.ops_audit import audit_ops
from oracle.judge.ops_plans import planned, plans
from oracle.subjects.ops import OpensOps, OpsEvidence
from oracle.subjects.protocol import SubjectRequest
from oracle.subjects.registry import subject_factory


def main(device: str | None, arms: Sequence[str]) -> None:
    factory = subject_factory("tt")
    assert isinstance(factory, OpensOps)

    def measured(arm: str, plant: str | None = None) -> OpsEvidence:
        opened = factory.open_ops(SubjectRequest(mini_checkpoint(), device=device, arm=arm, plant=plant))
        try:
            return audit_ops(opened, plans(factory.arms[arm]))
        finally:
            opened.close()

    print("| op | elements | largest error | of its bound | mean error | of magnitudes | allowed mean |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for each in {each.case: each for arm in arms for each in measured(arm).cases}.values():
        row = f"| {each.case} | {each.compared:,} |"
        if each.fault:
            print(f"{row} {each.fault.replace('|', ' ')} | | | | |")
        elif not each.error:
            print(f"{row} {f'{each.unequal} bits differ' if each.unequal else 'equal'} | | | | |")
        else:
            allowed = max(BIAS_UNITS, BIAS_SIGMAS * each.standard_error)
            print(f"{row} {each.error:.2g} | {each.worst:.2g} | {each.bias:+.1g} | {each.growth:+.1g} | {allowed:.2g} |")
    print("\n| quirk | arm | red ops | of cases | what is seen |\n|---|---|---|---:|---|")
    for plant in (name for name, caught_by in factory.plants.items() if caught_by == "gate:ops"):
        for arm in arms:
            findings = judge_ops(measured(arm, plant), planned(plans(factory.arms[arm]))).findings
            ops = ", ".join(f"`{op}`" for op in dict.fromkeys(finding.where.split()[0] for finding in findings))
            seen = ", ".join(dict.fromkeys(finding.headline for finding in findings))
            cases = len({finding.where for finding in findings})
            print(f"| `{plant.removeprefix('quirk-')}` | `{arm}` | {ops or 'none'} | {cases} | {seen} |")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None, sys.argv[2:] or ("bf16", "exact"))
