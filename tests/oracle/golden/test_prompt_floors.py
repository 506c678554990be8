"""Limits for part of the prompts: no arm of the floor is above them on any set of prompts, and nobody else's are used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from floor_arms import PROMPTS, by_prompt, measured
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oracle.errors import GoldenError
from oracle.golden.calibration import PART_MULTIPLE, ClassCalibration, Limits, Statistics
from oracle.golden.compare import NOT_COMPARED, Comparison, compare, concatenate
from oracle.golden.floor import calibrate, statistics, worst_ratio
from oracle.golden.format import Golden
from oracle.subjects.run import PromptRun

LAYERS = 2
ROUNDING = 1 + 1e-12

numbers = st.floats(0, 1e6)
pair = st.lists(numbers, min_size=LAYERS, max_size=LAYERS)
positions = st.lists(
    st.tuples(
        numbers,
        pair,
        pair,
        st.lists(st.floats(0.5, 1e3), min_size=LAYERS, max_size=LAYERS),
        st.lists(st.booleans(), min_size=LAYERS, max_size=LAYERS),
        st.lists(st.just(NOT_COMPARED) | st.floats(0, 1), min_size=LAYERS, max_size=LAYERS),
    ),
    min_size=1,
)


def comparison(rows: Sequence[tuple]) -> Comparison:
    """Positions of (kl, sketch distances, products, squares, sets that differ, weight errors); each is a probe too."""
    count, zeros = len(rows), np.zeros(len(rows))
    kl, distance, dot, square, differs, weights = (np.array([row[i] for row in rows], dtype=np.float64) for i in range(6))
    return Comparison(
        top=zeros,
        margin=zeros,
        margin_change=zeros,
        flip=np.zeros(count, dtype=bool),
        regret=zeros,
        rank=np.zeros(count, dtype=np.int64),
        kl=kl,
        mass=zeros,
        logit_error=zeros,
        first_set_difference=np.full(count, LAYERS),
        set_gap=zeros,
        set_differs=differs.astype(bool),
        weight_error=weights,
        router_logit_error=weights,
        sketch_distance=distance,
        sketch_dot=dot,
        sketch_square=square,
    )


def exceeds(own: Statistics, floor: Statistics) -> list[str]:
    """The statistics that are larger than the floor's, but for rounding."""
    return [
        name
        for name in Statistics.model_fields
        if (np.asarray(getattr(own, name)) > np.asarray(getattr(floor, name)) * ROUNDING + 1e-9).any()
    ]


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(positions.map(comparison), min_size=1, max_size=6))
def test_no_statistic_of_a_union_is_above_the_largest_upper_one_of_its_parts(parts: list[Comparison]) -> None:
    floor = Statistics.largest(statistics(part, upper=True) for part in parts)
    whole = concatenate(parts)
    assert exceeds(statistics(whole, upper=True), floor) == []
    assert exceeds(statistics(whole), floor) == []


def test_interpolated_quantiles_would_not_do() -> None:
    """Why the floors of prompts are upper quantiles: two equal prompts have a larger p90 than either."""
    part = comparison(
        [(kl, [0.0] * LAYERS, [1.0] * LAYERS, [1.0] * LAYERS, [False] * LAYERS, [0.0] * LAYERS) for kl in (0.0, 1.0)]
    )
    both = concatenate([part, part])
    assert (statistics(part).kl[1], statistics(both).kl[1]) == (0.9, 1.0)
    assert statistics(part, upper=True).kl[1] == 1.0


@pytest.fixture(scope="module")
def arms(tiny_golden: tuple[Golden, bytes], perturbed_run: Callable[..., PromptRun]) -> dict[str, Comparison]:
    """Eight honest arms of one noise."""
    return {
        f"arm-{index}": concatenate(
            compare(p, perturbed_run(p, np.random.default_rng([7, index]), 1e-3, probes), probes)
            for p, probes in ((p, tiny_golden[0].probes_of(p.name)) for p in tiny_golden[0].prompts)
        )
        for index in range(8)
    }


@pytest.fixture(scope="module")
def calibration(arms: dict[str, Comparison]) -> ClassCalibration:
    return calibrate("bf16", measured(arms))


def test_each_prompt_has_the_floor_of_its_own_positions(calibration: ClassCalibration, arms: dict[str, Comparison]) -> None:
    parts = {name: by_prompt(arm) for name, arm in arms.items()}
    for prompt in PROMPTS:
        each = [np.sort(part[prompt].kl) for part in parts.values()]
        count = len(each[0])
        p90 = max(kl[int(np.ceil(0.9 * (count - 1)))] for kl in each)
        assert calibration.prompt_floors[prompt].kl == (max(kl[count // 2] for kl in each), p90)
        slope = max(np.abs(part[prompt].slope()).max() for part in parts.values())
        assert calibration.prompt_floors[prompt].sketch_slope == slope


def test_limits_are_those_of_the_prompts_that_were_answered(calibration: ClassCalibration) -> None:
    assert calibration.limits_for(["second", "first"]) is calibration.limits
    for prompt in PROMPTS:
        limits = calibration.limits_for([prompt])
        assert limits.kl[1] == PART_MULTIPLE * calibration.prompt_floors[prompt].kl[1]
        assert limits != calibration.limits


def test_the_limits_of_several_prompts_are_number_by_number_the_largest(calibration: ClassCalibration) -> None:
    def made(kl: tuple[float, float], median: tuple[float, float], p90: tuple[float, float], rest: float) -> Statistics:
        return Statistics(
            kl=kl,
            sketch_median=median,
            sketch_p90=p90,
            sketch_slope=rest,
            sets_differ=rest,
            weight_median=median,
            weight_p90=p90,
            router_logit=kl,
        )

    one = made((1.0, 5.0), (1.0, 2.0), (3.0, 3.0), 0.1)
    two = made((2.0, 4.0), (2.0, 1.0), (3.0, 4.0), 0.2)
    three = calibration.model_copy(update={"prompt_floors": {"a": one, "b": two, "c": one}})
    assert three.limits_for(["a", "b"]).floor == made((2.0, 5.0), (2.0, 2.0), (3.0, 4.0), 0.2)
    assert three.limits_for(["a", "c"]).floor == one
    assert three.limits_for(["a", "a"]).floor == one


def test_no_prompt_and_an_unknown_prompt_have_no_limits(calibration: ClassCalibration) -> None:
    with pytest.raises(ValueError, match="no prompt, no limits"):
        calibration.limits_for([])
    with pytest.raises(ValueError, match="no floor for prompt third"):
        calibration.limits_for(["first", "third"])


def test_held_out_arms_show_the_prompt_on_which_they_are_furthest_off(
    calibration: ClassCalibration, arms: dict[str, Comparison]
) -> None:
    parts = {name: by_prompt(arm) for name, arm in arms.items()}
    for entry in calibration.held_out:
        ratios = {}
        for prompt in PROMPTS:
            others = [statistics(part[prompt], upper=True) for name, part in parts.items() if name != entry.arm]
            limits = Limits(floor=Statistics.largest(others), multiple=PART_MULTIPLE)
            ratios[prompt] = worst_ratio(statistics(parts[entry.arm][prompt], upper=True), limits)
        assert entry.worst_prompt_ratio == ratios[entry.worst_prompt] == max(ratios.values())


def test_an_arm_that_fails_on_one_prompt_alone_is_refused_with_its_name(arms: dict[str, Comparison]) -> None:
    """Three positions of the shorter prompt at fifty times the KL: nothing over all 32 positions, its p90 alone."""
    kl = arms["arm-2"].kl.copy()
    kl[-3:] = 50 * max(arm.kl.max() for arm in arms.values())
    spoiled = arms | {"arm-2": replace(arms["arm-2"], kl=kl)}
    with pytest.raises(GoldenError, match=r"arm arm-2 does not .* on prompt second alone [\d.]+\); .* prompt second longer"):
        calibrate("bf16", measured(spoiled))
