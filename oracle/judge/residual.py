"""Gate `residual`: does the residual stream stay where the golden's is, layer by layer?

Compared: 32-number sketches after each layer; median and p90 of the relative distance over positions, and the slope (the
least-squares scale of the subject's sketches on the golden's, minus 1), each against twice the largest of the
class's floor arms. A norm whose sum is 1 % off flips no more tokens than honest arms do; its slope stands out.
It cannot see an error that lies in the sketch's null space at every position, or one confined to few positions.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from oracle.golden.calibration import LIMIT_MULTIPLE, PART_MULTIPLE
from oracle.golden.portable import quantiles
from oracle.judge.gate import Case, Finding, Judgement, not_held, shows
from oracle.subjects.run import PromptRun, Run


class ResidualGate:
    name = "residual"
    definition = {
        "version": 1,
        "metric": "relative distance and slope of 32-number sketches per layer",
        "statistic": "median and p90 over positions; least-squares slope",
        "multiple": LIMIT_MULTIPLE,
        "multiple on part of the prompts": PART_MULTIPLE,
    }
    blind_to = "faults at fewer than one position in ten, and what comes after the last layer"
    needs_alignment = True

    def holds(self, run: Run) -> bool:
        return shows(run, "sketch")

    def judge(self, case: Case) -> Judgement:
        comparison, limits = case.comparison, case.limits
        if (distance := comparison.sketch_distance) is None:
            return not_held("residual sketches")
        positions, layers = distance.shape
        median, p90 = quantiles(distance, [0.5, 0.9])
        slope = comparison.slope()
        findings: list[Finding] = []
        for name, values, allowed in (
            ("median distance", median, np.array(limits.sketch_median)),
            ("p90 distance", p90, np.array(limits.sketch_p90)),
            ("slope", slope, np.full(layers, limits.sketch_slope)),
        ):
            if (wrong := ~(np.abs(values) <= allowed)).any():  # NaN fires
                first = int(wrong.argmax())
                findings.append(
                    Finding(
                        f"residual stream: {name} above the class's limit, first at layer {first}",
                        f"layer {first}",
                        f"{values[first]:+.3g}",
                        f"{allowed[first]:.3g}",
                        int(wrong.sum()),
                        layers,
                    )
                )
        ratio = float(max((median / limits.sketch_median).max(), (p90 / limits.sketch_p90).max()))
        worst = int(np.abs(slope).argmax())
        return Judgement(
            positions * layers,
            tuple(findings),
            {
                "largest distance over its limit": ratio,
                "largest slope": float(slope[worst]),
                "slope allowed": limits.sketch_slope,
            },
        )

    def plants(self, case: Case) -> dict[str, Case]:
        """The stream after layer 0 one per cent short, as from a norm that sums in bf16; and noise that has no slope."""

        def shorten(run: PromptRun) -> PromptRun:
            assert run.sketch is not None
            sketch = run.sketch.copy()
            sketch[:, 0] *= np.float32(1 - max(0.01, 2 * case.limits.sketch_slope))  # of few prompts more is allowed
            return replace(run, sketch=sketch)

        def shake(run: PromptRun) -> PromptRun:
            assert run.sketch is not None
            sketch = run.sketch.astype(np.float64)
            square = (sketch**2).sum(axis=2, keepdims=True)
            noise = np.where(np.arange(sketch.size).reshape(sketch.shape) % 2, 1.0, -1.0)
            noise -= (noise * sketch).sum(axis=2, keepdims=True) / square * sketch  # no part along the sketch: no slope
            noise *= np.sqrt(square / (noise**2).sum(axis=2, keepdims=True))
            size = 3 * np.array(case.limits.sketch_p90)[:, None]
            return replace(run, sketch=(sketch + size * noise).astype(np.float32))

        return {"a norm one per cent short": case.with_prompts(shorten), "noise": case.with_prompts(shake)}
