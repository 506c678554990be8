"""A floor comes from its arms alone, and every arm must pass what the others allow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from floor_arms import measured

from oracle.errors import GoldenError
from oracle.golden.calibration import (
    BAND_MULTIPLE,
    LIMIT_MULTIPLE,
    MARGIN_EDGES,
    NEAR_MARGIN,
    NEAR_MULTIPLE,
    UNSEEN,
    Limits,
    margin_bin,
)
from oracle.golden.compare import OUTSIDE, Comparison, compare, concatenate
from oracle.golden.floor import calibrate, statistics, worst_ratio
from oracle.golden.format import Golden
from oracle.subjects.run import PromptRun

Arms = dict[str, Comparison]
CHANGE = 0.05
"""Of a margin, in nats, by every honest arm."""


@pytest.fixture(scope="module")
def arms(tiny_golden: tuple[Golden, bytes], perturbed_run: Callable[..., PromptRun]) -> Arms:
    """Five honest arms of one noise; each flips one close call and swaps one expert at a narrow gap."""
    made = {}
    for index in range(5):
        rng = np.random.default_rng([7, index])
        golden = tiny_golden[0]
        pairs = [(p, golden.probes_of(p.name)) for p in golden.prompts]
        noisy = concatenate(compare(p, perturbed_run(p, rng, 1e-3, probes), probes) for p, probes in pairs)
        made[f"arm-{index}"] = flipped(noisy, {index: 0.03 + index / 1000, 10 + index: 0.04}, router={10 + index: 0.011})
    return made


def flipped(arm: Comparison, regrets: dict[int, float], router: dict[int, float] | None = None, rank: int = 1) -> Comparison:
    """The arm with flips of these regrets at these positions, all at near ties whose margin changed by as much, and `CHANGE`.

    At those in `router`, layer 1's set differs by that gap.
    """
    margin, change = arm.margin.copy(), arm.margin_change.copy()
    flip, regret, ranks = arm.flip.copy(), arm.regret.copy(), arm.rank.copy()
    first, gap = arm.first_set_difference.copy(), arm.set_gap.copy()
    for position, value in regrets.items():
        flip[position], regret[position], ranks[position] = True, value, rank
        margin[position], change[position] = NEAR_MARGIN / 2, max(value, CHANGE)
    for position, value in (router or {}).items():
        first[position], gap[position] = 1, value
    return replace(
        arm, margin=margin, margin_change=change, flip=flip, regret=regret, rank=ranks, first_set_difference=first, set_gap=gap
    )


def held(array: np.ndarray | None) -> np.ndarray:
    """Evidence that must be there."""
    assert array is not None
    return array


def test_honest_arms_give_a_floor_that_all_of_them_pass(arms: Arms) -> None:
    made = calibrate("bf16", measured(arms))
    assert made.arms == tuple(arms)
    assert made.positions == 32
    assert [entry.arm for entry in made.held_out] == list(arms)
    assert all(entry.passed for entry in made.held_out)
    assert all((entry.near_flips, entry.router_flips, entry.hard_flips) == (1, 1, 0) for entry in made.held_out)
    assert all(0 < entry.worst_ratio < 1 for entry in made.held_out)


def test_bands_are_the_declared_multiple_of_the_largest_regret_and_gap(arms: Arms) -> None:
    bands = calibrate("bf16", measured(arms)).bands
    assert (bands.floor_regret, bands.regret) == (CHANGE, NEAR_MULTIPLE * CHANGE)
    assert (bands.floor_router_regret, bands.router_regret) == (CHANGE, NEAR_MULTIPLE * CHANGE)
    assert (bands.floor_router_gap, bands.router_gap) == (0.011, BAND_MULTIPLE * 0.011)


def test_a_set_that_differs_without_a_flip_widens_only_the_router_gap(arms: Arms) -> None:
    wider = arms | {"arm-0": flipped(arms["arm-0"], {}, router={20: 0.02})}
    before, after = calibrate("bf16", measured(arms)).bands, calibrate("bf16", measured(wider)).bands
    assert after.floor_router_gap == 0.02
    assert (after.regret, after.router_regret) == (before.regret, before.router_regret)


def test_limits_are_the_declared_multiple_of_the_largest_statistic(arms: Arms) -> None:
    limits = calibrate("bf16", measured(arms)).limits
    each = [statistics(arm) for arm in arms.values()]
    assert limits.kl == tuple(LIMIT_MULTIPLE * max(s.kl[i] for s in each) for i in range(2))
    assert limits.sketch_p90 == tuple(LIMIT_MULTIPLE * max(s.sketch_p90[i] for s in each) for i in range(3))
    assert limits.sketch_median == tuple(LIMIT_MULTIPLE * max(s.sketch_median[i] for s in each) for i in range(3))
    assert limits.weight_median == tuple(LIMIT_MULTIPLE * max(s.weight_median[i] for s in each) for i in range(3))
    assert limits.router_logit == tuple(LIMIT_MULTIPLE * max(s.router_logit[i] for s in each) for i in range(2))
    assert limits.sets_differ == LIMIT_MULTIPLE * UNSEEN / (32 * 3)
    assert limits.sketch_slope == LIMIT_MULTIPLE * max(s.sketch_slope for s in each)


def near(values: npt.ArrayLike) -> Any:
    """Equal but for the rounding of an interpolation."""
    return pytest.approx(tuple(np.asarray(values)), rel=1e-12, abs=0)


def test_statistics_are_medians_p90s_and_the_largest_slope(arms: Arms) -> None:
    arm = arms["arm-0"]
    own = statistics(arm)
    assert own.kl == near(np.quantile(arm.kl, [0.5, 0.9]))
    assert own.sketch_median == near(np.median(held(arm.sketch_distance), axis=0))
    assert own.sketch_slope == np.abs(arm.slope()).max()
    assert own.sets_differ == UNSEEN / (32 * 3)
    assert own.weight_p90 == near(np.quantile(held(arm.weight_error), 0.9, axis=0))
    assert own.router_logit == near([np.median(held(arm.router_logit_error)), held(arm.router_logit_error).max()])
    assert worst_ratio(own, Limits(floor=own, multiple=1.0)) == 1.0


def test_bins_count_every_position_of_every_arm_once(arms: Arms) -> None:
    bins = calibrate("bf16", measured(arms)).bins
    margins = np.concatenate([arm.margin for arm in arms.values()])
    assert bins.positions == tuple(np.bincount(margin_bin(margins), minlength=len(MARGIN_EDGES)))
    assert (sum(bins.near), sum(bins.router)) == (5, 5)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_fewer_than_three_arms_are_refused(arms: Arms, count: int) -> None:
    with pytest.raises(GoldenError, match=f"class bf16 has {count} floor arms; leave-one-out needs at least 3"):
        calibrate("bf16", measured(dict(list(arms.items())[:count])))


def test_three_arms_are_enough(arms: Arms) -> None:
    assert len(calibrate("bf16", measured(dict(list(arms.items())[:3]))).arms) == 3


def scaled(arm: Comparison, **factors: float) -> Comparison:
    return replace(arm, **{name: getattr(arm, name) * factor for name, factor in factors.items()})


FAULTS: dict[str, Callable[[Comparison], Comparison]] = {
    "a regret beyond the others' band": lambda arm: flipped(arm, {20: 0.2}),
    "a token outside the stored ids": lambda arm: flipped(arm, {20: 0.01}, rank=OUTSIDE),
    "a set that differs at a wide gap": lambda arm: flipped(arm, {20: 0.01}, router={20: 0.05}),
    "more flips than the others allow": lambda arm: flipped(arm, dict.fromkeys(range(16, 32), 0.03)),
    "more router flips than the others allow": lambda arm: flipped(
        arm, dict.fromkeys(range(16, 32), 0.03), router=dict.fromkeys(range(16, 32), 0.01)
    ),
    "four times the KL": lambda arm: scaled(arm, kl=40.0),
    "a sketch further off": lambda arm: scaled(arm, sketch_distance=40.0),
    "a norm one percent off": lambda arm: scaled(arm, sketch_dot=0.99),
    "weights further off": lambda arm: scaled(arm, weight_error=40.0),
    "router logits further off": lambda arm: scaled(arm, router_logit_error=40.0),
    "a set at a wide gap without a flip": lambda arm: flipped(arm, {}, router={20: 0.05}),
    "many more differing sets": lambda arm: replace(arm, set_differs=~arm.set_differs),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("which", ["arm-0", "arm-4"])
def test_an_arm_that_does_not_pass_what_the_others_allow_is_refused_by_name(arms: Arms, fault: str, which: str) -> None:
    with pytest.raises(GoldenError, match=f"class bf16: arm {which} does not pass the floor of the other arms.*add prompts"):
        calibrate("bf16", measured(arms | {which: FAULTS[fault](arms[which])}))
