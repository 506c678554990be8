"""Gate `flips`: every teacher-forced position, the prompt's too; how many flips, and of what kind?

Compared: the subject's argmax with the golden's at each position. Fires on a hard flip (outside the class's band, or a
token outside the stored ids), and on more near ties or router near ties than the class's floor makes likely: flip
probabilities per margin bin from the floor's arms, count fires where the Poisson-binomial tail is below 1e-3.
Bands are twice the floor's largest regret (calibration in the golden; the floor's leave-one-out passes them).
It cannot see a fault that moves logits but no argmax: the mini's wide margins hide many; `logits` and `residual` look there.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from oracle.golden.calibration import (
    BAND_MULTIPLE,
    BUDGET_TAIL,
    MARGIN_EDGES,
    budget,
    expected_flips,
    flip_probability,
    margin_bin,
)
from oracle.judge.flip_record import FlipRecord, flip_records
from oracle.judge.gate import Case, Finding, Judgement


class FlipsGate:
    name = "flips"
    definition = {
        "version": 1,
        "metric": "argmax at every teacher-forced position",
        "statistic": "no hard flip; Poisson-binomial tail within margin bins",
        "band_multiple": BAND_MULTIPLE,
        "tail": BUDGET_TAIL,
        "margin_edges": list(MARGIN_EDGES),
    }
    blind_to = "faults that move logits but no argmax"
    needs_alignment = True

    def judge(self, case: Case) -> Judgement:
        records = flip_records(case)
        calibration = case.calibration
        in_bin = margin_bin(case.comparison.margin)
        positions = len(in_bin)
        findings = list(_hard_findings([r for r in records if r.label == "hard"], positions))
        measured: dict[str, float | int | str] = {"flips": len(records)}
        for label, counts in (("near-tie", calibration.bins.near), ("router-near-tie", calibration.bins.router)):
            probability = flip_probability(counts, calibration.bins.positions)[in_bin]
            allowed = budget(probability) - 1
            count = sum(r.label == label for r in records)
            measured |= {label: count, f"{label} expected": round(expected_flips(probability), 2), f"{label} allowed": allowed}
            if count > allowed:
                findings.append(
                    Finding(
                        f"more {label}s than the floor of class {calibration.numeric_class} allows",
                        "",
                        str(count),
                        str(allowed),
                        count,
                        positions,
                    )
                )
        measured["hard"] = sum(r.label == "hard" for r in records)
        measured |= _smallest_bands(records)
        return Judgement(positions, tuple(findings), measured)

    def plant(self, case: Case) -> Case:
        """At the position with the widest margin, the golden's second choice."""
        widest = max(case.answered(), key=lambda pair: float(pair[0].margin.max()))
        prompt, run = widest
        position = int(prompt.margin.argmax())
        argmax = run.argmax.copy()
        argmax[position] = prompt.top_ids[position, 1]
        return replace(case, run=replace(case.run, prompts={**case.run.prompts, prompt.name: replace(run, argmax=argmax)}))


def _hard_findings(hard: list[FlipRecord], positions: int) -> list[Finding]:
    if not hard:
        return []
    worst = max(hard, key=lambda r: (r.rank < 0, r.regret))
    what = "outside the stored ids" if worst.rank < 0 else f"regret {worst.regret:.4g} nats"
    allowed = worst.bands.regret if worst.set_layer is None else worst.bands.router_regret
    return [
        Finding(
            "hard flips",
            f"{worst.prompt}[{worst.position}]",
            f"{worst.got} for {worst.expected}, {what}",
            f"{allowed:.4g} nats",
            len(hard),
            positions,
        )
    ]


def _smallest_bands(records: tuple[FlipRecord, ...]) -> dict[str, float | str]:
    """The smallest bands that would have passed, or `none` where a token lies outside the stored ids."""
    out: dict[str, float | str] = {}
    for name, chosen in (
        ("smallest band", [r for r in records if r.set_layer is None]),
        ("smallest router band", [r for r in records if r.set_layer is not None]),
    ):
        outside = any(r.rank < 0 for r in chosen)
        out[name] = "none" if outside else float(np.max([r.regret for r in chosen], initial=0.0))
    return out
