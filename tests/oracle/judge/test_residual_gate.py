"""Gate `residual`: the residual stream keeps its size and direction, layer by layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from judge_cases import changed, held, with_prompt, with_run

from oracle.golden.calibration import PART_MULTIPLE
from oracle.judge.gate import Case, Judgement
from oracle.judge.residual import ResidualGate

GATE = ResidualGate()


def sketched(case: Case, change: Callable[[np.ndarray], np.ndarray]) -> Case:
    runs = {name: replace(run, sketch=change(held(run.sketch)).astype(np.float32)) for name, run in case.run.prompts.items()}
    return with_run(case, prompts=runs)


def kinds(judgement: Judgement) -> set[str]:
    """`slope`, `median` and `p90`: what was found."""
    return {finding.headline.removeprefix("residual stream: ").split()[0] for finding in judgement.findings}


@pytest.mark.parametrize("numeric_class", ["bf16", "fp32"])
def test_the_perfect_run_passes_in_every_class(case: Case, fp32_case: Case, numeric_class: str) -> None:
    judgement = GATE.judge(case if numeric_class == "bf16" else fp32_case)
    layers = case.golden.prompts[0].sketch.shape[1]
    assert (judgement.verdict, judgement.findings, judgement.compared) == ("pass", (), case.golden.positions * layers)


def test_its_planted_fault_is_found(case: Case) -> None:
    planted = {name: kinds(GATE.judge(spoiled)) for name, spoiled in GATE.plants(case).items()}
    assert "slope" in planted["a norm one per cent short"]
    assert "slope" not in planted["noise"]
    assert {"median", "p90"} <= set(planted["noise"])


@pytest.mark.parametrize("layer", [0, 2, -1])
@pytest.mark.parametrize("ratio", [0.99, 1.01])
def test_a_norm_one_percent_off_on_one_layer_shows_in_its_slope(case: Case, layer: int, ratio: float) -> None:
    layers = case.golden.prompts[0].sketch.shape[1]
    judgement = GATE.judge(sketched(case, lambda s: changed(s, (slice(None), layer), s[:, layer] * ratio)))
    [finding] = [f for f in judgement.findings if "slope" in f.headline]
    assert finding.where == f"layer {layer % layers}"
    assert float(finding.worst) == pytest.approx(ratio - 1, rel=1e-3)
    assert (finding.count, finding.of) == (1, layers)
    assert finding.allowed == f"{case.calibration.limits.sketch_slope:.3g}"


def test_part_of_the_prompts_is_held_to_their_own_floor(case: Case) -> None:
    """Scale is off by what the floor allows on `chat-high` alone, and would not allow over all prompts."""
    floors, limits = case.calibration.prompt_floors, case.calibration.limits
    scale = 1 + 2 * floors["chat-high"].sketch_slope
    assert scale - 1 > limits.sketch_slope
    for name, slopes in (("chat-high", 0), ("digits", 1)):
        alone = case.with_run(prompts={name: case.run.prompts[name]})
        judgement = GATE.judge(sketched(alone, lambda sketch: sketch * np.float32(scale)))
        assert judgement.measured["slope allowed"] == PART_MULTIPLE * floors[name].sketch_slope
        assert len([f for f in judgement.findings if "slope" in f.headline]) == slopes


def test_honest_noise_at_the_floor_s_level_stays_green(case: Case) -> None:
    rng = np.random.default_rng(11)
    floor = np.array(case.calibration.limits.sketch_median) / case.calibration.limits.multiple

    def jitter(sketch: np.ndarray) -> np.ndarray:
        noise = rng.normal(size=sketch.shape)
        size = np.linalg.norm(sketch, axis=2) / np.linalg.norm(noise, axis=2) * floor
        return sketch + noise * size[..., None]

    judgement = GATE.judge(sketched(case, jitter))
    assert (judgement.verdict, judgement.findings) == ("pass", ())
    assert float(judgement.measured["largest distance over its limit"]) > 0.2


def test_noise_ten_times_the_floor_s_is_found_without_any_slope(case: Case) -> None:
    rng = np.random.default_rng(11)
    floor = np.array(case.calibration.limits.sketch_median) / case.calibration.limits.multiple

    def jitter(sketch: np.ndarray) -> np.ndarray:
        noise = rng.normal(size=sketch.shape)
        # Without its part along the sketch, so that it lengthens nothing on average.
        noise -= sketch * ((noise * sketch).sum(2) / (sketch.astype(np.float64) ** 2).sum(2))[..., None]
        size = np.linalg.norm(sketch, axis=2) / np.linalg.norm(noise, axis=2) * 10 * floor
        return sketch + noise * size[..., None]

    assert kinds(GATE.judge(sketched(case, jitter))) == {"median", "p90"}


def test_a_fault_at_one_position_in_five_shows_in_the_p90_only(case: Case) -> None:
    """Signs alternate, so that no slope gives it away."""
    limit = np.array(case.calibration.limits.sketch_p90)

    def every_fifth(sketch: np.ndarray) -> np.ndarray:
        out = sketch.astype(np.float64)
        for row, sign in zip(range(0, len(out), 5), np.tile([1, -1], len(out)), strict=False):
            swapped = np.empty_like(out[row])  # a quarter turn within pairs of numbers: orthogonal, and of the same length
            swapped[:, 0::2], swapped[:, 1::2] = -out[row, :, 1::2], out[row, :, 0::2]
            out[row] += sign * 3 * limit[:, None] * swapped
        return out

    assert kinds(GATE.judge(sketched(case, every_fifth))) == {"p90"}


def test_the_first_layer_that_is_off_is_named_and_all_are_counted(case: Case) -> None:
    judgement = GATE.judge(sketched(case, lambda s: changed(s, (slice(None), slice(3, None)), s[:, 3:] * 0.9)))
    layers = case.golden.prompts[0].sketch.shape[1]
    assert kinds(judgement) == {"slope", "median", "p90"}
    assert {(f.where, f.count) for f in judgement.findings} == {("layer 3", layers - 3)}


def test_layers_in_the_wrong_order_are_found(case: Case) -> None:
    assert GATE.judge(sketched(case, lambda s: s[:, ::-1])).verdict == "fail"


def test_a_stream_of_zeros_is_found(case: Case) -> None:
    judgement = GATE.judge(sketched(case, np.zeros_like))
    [slope] = [f for f in judgement.findings if "slope" in f.headline]
    assert float(slope.worst) == -1


def test_positions_shifted_by_one_are_found(case: Case) -> None:
    assert GATE.judge(sketched(case, lambda s: np.roll(s, 1, axis=0))).verdict == "fail"


def test_fp32_is_held_to_its_own_floor(case: Case, fp32_case: Case) -> None:
    """A jitter far below bf16's noise is a wrong rule in fp32."""
    rng = np.random.default_rng(2)
    noise = {p.name: rng.normal(0, 1e-4, p.sketch.shape) for p in case.golden.prompts}
    for judged, verdict in ((case, "pass"), (fp32_case, "fail")):
        spoiled = judged
        for prompt in case.golden.prompts:
            sketch = (prompt.sketch * (1 + noise[prompt.name])).astype(np.float32)
            spoiled = with_prompt(spoiled, prompt, sketch=sketch)
        assert GATE.judge(spoiled).verdict == verdict
