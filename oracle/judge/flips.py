"""Gate `flips`: every teacher-forced position, the prompt's too; how many flips, and of what kind?

Compared: the subject's argmax with the golden's at each position. Fires on a hard flip (outside the class's band, or a
token outside the stored ids), and on more near ties or router near ties than the class's floor makes likely: flip
probabilities per margin bin from the floor's arms, count fires where the Poisson-binomial tail is below 1e-3.
Bands are multiples of what honest arms change margins by near ties (calibration in the golden; leave-one-out passes them).
Where a run shows no experts, none is excused by the router: a flip beyond the regret band is hard.
It cannot see a fault that moves logits but no argmax: the mini's wide margins hide many; `logits` and `residual` look there.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from oracle.golden.calibration import (
    BAND_MULTIPLE,
    BUDGET_TAIL,
    MARGIN_EDGES,
    NEAR_MULTIPLE,
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
        "version": 3,
        "metric": "argmax at every teacher-forced position",
        "statistic": "no hard flip; Poisson-binomial tail within margin bins",
        "near_multiple": NEAR_MULTIPLE,
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
        hard = [r for r in records if r.label == "hard"]
        findings = _hard_findings(hard, positions)
        measured: dict[str, float | int | str] = {"flips": len(records)}
        for label, counts in (("near-tie", calibration.bins.near), ("router-near-tie", calibration.bins.router)):
            probability = flip_probability(counts, calibration.bins.positions)[in_bin]
            allowed = case.once_for_margins(f"budget of {label}s", partial(budget, probability)) - 1
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
        measured["hard"] = len(hard)
        measured |= _smallest_bands(records)
        return Judgement(positions, tuple(findings), measured)

    def plants(self, case: Case) -> dict[str, Case]:
        """A second choice, an unlikely id, and exact ties decided otherwise too often, by the router too."""
        prompt, run = max(case.answered(), key=lambda pair: float(pair[0].margin.max()))
        position = int(prompt.margin.argmax())
        second, outside = run.argmax.copy(), run.argmax.copy()
        second[position] = prompt.top_ids[position, 1]
        outside[position] = next(i for i in range(case.checkpoint.config.vocab_size) if i not in prompt.top_ids[position])
        logits = prompt.top_logits.copy()
        logits[:, 1] = logits[:, 0]
        prompts = tuple(replace(p, top_logits=logits) if p is prompt else p for p in case.golden.prompts)
        tied = case.with_golden(prompts=prompts)
        otherwise = tied.with_prompt(prompt.name, argmax=prompt.top_ids[:, 1].copy())
        planted = {
            "a hard flip": case.with_prompt(prompt.name, argmax=second),
            "an id outside the stored ones": case.with_prompt(prompt.name, argmax=outside),
            "too many near ties": otherwise,
        }
        if run.expert_ids is not None:
            experts = _other_experts(run.expert_ids, case.checkpoint.config.num_experts)
            planted["too many router near ties"] = otherwise.with_prompt(prompt.name, expert_ids=experts)
        return planted


def _other_experts(ids: np.ndarray, experts: int) -> np.ndarray:
    """At every position, another expert in the last place of the first layer."""
    out = ids.copy()
    for chosen in out:
        chosen[0, -1] = next(expert for expert in range(experts) if expert not in chosen[0])
    return out


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
