"""Which layer is off? Two answers that need an aligned run; where alignment failed, nothing is said.

`accumulated`: from the run's own sketches, teacher-forced: the first layer at which the residual stream leaves the class's
limits over all positions, and the first position there. What is wrong may lie in any layer up to that one.
`isolated`: each layer alone, fed the golden's own hidden state at every position of the probe prompt; its output compared with
the golden's next layer input (the last layer's, with the stored sketches). An error cannot travel, so the layer that is off
is the layer that is wrong. Needs a subject that can run one layer (`IsolatesLayers`), so a stored run has `accumulated` alone.

Limits are those of the `residual` gate: for the run, of the prompts it answered, for a layer alone, of the probe prompt alone.
They hold what all layers before add too, so for one layer alone they are an upper bound: who is beyond them is off, and a
fault smaller than the floor's own spread stays unseen (on the mini, RoPE on the full layer is named in class fp32 and hides
in bf16). Honest engines stand far within: the decoder in bf16 reaches a quarter of a layer's distances and a ninth of its
slope, so that a layer whose output is 0.4 % short is named though its distance hides in the floor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from oracle.errors import DeviceFault
from oracle.golden.calibration import Limits
from oracle.golden.format import Golden
from oracle.golden.portable import quantiles
from oracle.golden.sketch import sketch
from oracle.judge.gate import Case
from oracle.subjects.protocol import Float32


@dataclass(frozen=True)
class LayerMeasure:
    """One layer's output against the golden's: relative distance over positions, and slope; each with its limit.

    Attributes:
        slope: least-squares scale of the output on the golden's, minus 1.
        non_finite: NaN or infinite numbers in the output; they are measured as 0.
    """

    layer: int
    median: float
    median_limit: float
    p90: float
    p90_limit: float
    slope: float
    slope_limit: float
    non_finite: int = 0

    @property
    def off(self) -> bool:
        beyond = self.median > self.median_limit or self.p90 > self.p90_limit or abs(self.slope) > self.slope_limit
        return beyond or self.non_finite > 0

    def __str__(self) -> str:
        if self.non_finite:
            return f"{self.non_finite} NaN or infinite numbers"
        if self.median > self.median_limit:
            return f"median {self.median:.3g}, limit {self.median_limit:.3g}"
        if self.p90 > self.p90_limit:
            return f"p90 {self.p90:.3g}, limit {self.p90_limit:.3g}"
        return f"slope {self.slope:+.3g}, limit {self.slope_limit:.3g}"


@dataclass(frozen=True)
class Accumulated:
    """What the run's own sketches say. `place` is the first position beyond the p90 limit of the first layer that is off."""

    layers: tuple[LayerMeasure, ...]
    place: str | None

    @property
    def sentence(self) -> str:
        first = next((layer for layer in self.layers if layer.off), None)
        if first is None:
            return "every layer's residual stream is within its limits: look after the last layer (final norm, head)"
        place = "" if self.place is None else f", for the first time at {self.place}"
        return f"the residual stream is off from layer {first.layer} on ({first}){place}"


@dataclass(frozen=True)
class Isolated:
    """What each layer did alone. `fault` is what ended the attempt, and then there are no layers."""

    prompt: str
    layers: tuple[LayerMeasure, ...]
    fault: str | None = None

    @property
    def sentence(self) -> str:
        if self.fault is not None:
            return f"the layers could not be run alone: {self.fault}"
        off = [layer for layer in self.layers if layer.off]
        within = [str(layer.layer) for layer in self.layers if not layer.off]
        given = "given the golden's input"
        if not off:
            return (
                f"no layer is off {given}: look before the first and after the last layer, and at what a sequence carries "
                "from step to step (KV cache, slots, memos)"
            )
        what = ", ".join(f"layer {layer.layer}{' alone' if len(off) == 1 else ''} is off ({layer})" for layer in off)
        if not within:
            return f"{what} {given}: every layer is, so look for what all share (norm, RoPE, staging)"
        are = "layers" if len(within) > 1 else "layer"
        return f"{what}; {are} {', '.join(within)} {'are' if len(within) > 1 else 'is'} within limits {given}"


@dataclass(frozen=True)
class Localisation:
    """Where a red run went wrong. `isolated` is None where the subject cannot run one layer, or was not there to ask."""

    accumulated: Accumulated | None
    isolated: Isolated | None = None

    def to_json(self) -> dict[str, Any]:
        """The report's entry: each mode's sentence and numbers, or null."""
        accumulated, isolated = self.accumulated, self.isolated
        return {
            "accumulated": accumulated
            and {"sentence": accumulated.sentence, "place": accumulated.place, "layers": _rows(accumulated.layers)},
            "isolated": isolated
            and {
                "sentence": isolated.sentence,
                "prompt": isolated.prompt,
                "fault": isolated.fault,
                "layers": _rows(isolated.layers),
            },
        }


def accumulate(case: Case) -> Accumulated | None:
    """Where the run's own residual stream leaves the class's limits; None where the run shows none.

    Args:
        case: of an aligned run.
    """
    comparison, limits = case.comparison, case.limits
    distance = comparison.sketch_distance
    if distance is None:
        return None
    layers = _measure(distance, comparison.slope(), limits, np.zeros(distance.shape[1], dtype=np.int64))
    first = next((layer.layer for layer in layers if layer.off), None)
    if first is None:
        return Accumulated(layers, None)
    beyond = np.flatnonzero(distance[:, first] > limits.sketch_p90[first])
    return Accumulated(layers, case.place(int(beyond[0])) if len(beyond) else None)


def compare_layers(golden: Golden, outputs: list[Float32], limits: Limits) -> Isolated:
    """Measure what each layer gave for the golden's own input.

    Args:
        outputs: per layer, float32 [T, H], the residual stream after it at every position of the probe prompt.

    Raises:
        DeviceFault: `evidence`, an output has another shape.
    """
    prompt = next(p for p in golden.prompts if p.name == golden.document.probe_prompt)
    inputs = golden.probes.layer_inputs
    distances, slopes, non_finite = [], [], []
    for layer, output in enumerate(outputs):
        if output.shape != inputs[:, layer].shape:
            raise DeviceFault("evidence", f"layer {layer} gave {list(output.shape)} for inputs {list(inputs[:, layer].shape)}")
        bad = ~np.isfinite(output)
        shown = np.where(bad, 0.0, output.astype(np.float64))
        last = layer == inputs.shape[1] - 1
        expected = (prompt.sketch[:, layer] if last else inputs[:, layer + 1]).astype(np.float64)
        got = sketch(shown).astype(np.float64) if last else shown
        square = (expected**2).sum(axis=1)
        distances.append(np.sqrt(((got - expected) ** 2).sum(axis=1) / square))
        slopes.append(float((got * expected).sum() / square.sum()) - 1.0)
        non_finite.append(int(bad.sum()))
    measured = _measure(np.stack(distances, axis=1), np.array(slopes), limits, np.array(non_finite))
    return Isolated(prompt.name, measured)


def _measure(
    distance: npt.NDArray[np.float64],
    slope: npt.NDArray[np.float64],
    limits: Limits,
    non_finite: npt.NDArray[np.int64],
) -> tuple[LayerMeasure, ...]:
    """`distance` [T, L], `slope` and `non_finite` [L]."""
    median, p90 = quantiles(distance, [0.5, 0.9])
    columns = zip(median, limits.sketch_median, p90, limits.sketch_p90, slope, non_finite, strict=True)
    return tuple(
        LayerMeasure(layer, float(m), m_limit, float(p), p_limit, float(s), limits.sketch_slope, int(bad))
        for layer, (m, m_limit, p, p_limit, s, bad) in enumerate(columns)
    )


def _rows(layers: tuple[LayerMeasure, ...]) -> list[dict[str, Any]]:
    return [{**layer.__dict__, "off": layer.off} for layer in layers]
