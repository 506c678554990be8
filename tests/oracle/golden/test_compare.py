"""The measures between a golden and a run: zero for the same, never broadcast, blind to nothing they name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracle.golden.compare import NOT_COMPARED, OUTSIDE, Comparison, compare, concatenate
from oracle.golden.evidence import PromptEvidence, log_sum_exp, top_logits
from oracle.golden.format import Golden
from oracle.subjects.run import PromptRun

Perturb = Callable[..., PromptRun]


@pytest.fixture(scope="module")
def prompt(tiny_golden: tuple[Golden, bytes]) -> PromptEvidence:
    return tiny_golden[0].prompts[0]


@pytest.fixture(scope="module")
def same(prompt: PromptEvidence, perturbed_run: Perturb) -> PromptRun:
    """A run that shows exactly what the golden holds."""
    return replace(perturbed_run(prompt, np.random.default_rng(0), 0.0), logsumexp=prompt.logsumexp)


def held(array: np.ndarray | None) -> np.ndarray:
    """Evidence that must be there."""
    assert array is not None
    return array


def test_a_run_equal_to_the_golden_is_at_distance_zero(prompt: PromptEvidence, same: PromptRun) -> None:
    result = compare(prompt, same)
    assert not result.flip.any()
    assert not result.rank.any()
    for name in ("regret", "kl", "logit_error", "set_gap", "sketch_distance"):
        assert not getattr(result, name).any(), name
    assert result.sets_agree.all()
    assert (result.first_set_difference == 3).all()
    assert not result.slope().any()
    assert np.array_equal(result.margin, prompt.top_logits[:, 0].astype(float) - prompt.top_logits[:, 1])
    assert np.array_equal(result.top, prompt.top_logits[:, 0])


@given(st.integers(0, 2**32 - 1), st.floats(1e-7, 3.0))
def test_kl_is_never_negative_and_grows_from_zero(
    prompt: PromptEvidence, perturbed_run: Perturb, seed: int, noise: float
) -> None:
    result = compare(prompt, perturbed_run(prompt, np.random.default_rng(seed), noise))
    assert (result.kl >= 0).all()
    assert result.kl.max() > 0


def two_logits(first: float, second: float, rest: float, others: int = 2) -> np.ndarray:
    return np.array([[first, second] + [rest] * others], dtype=np.float32)


def evidence(logits: np.ndarray, stored: int = 64) -> PromptEvidence:
    """One position with these logits; everything else trivial."""
    ids, values = top_logits(logits, stored)
    ones = np.ones((1, 1), np.float32)
    experts = np.zeros((1, 1, 1), np.int32)
    return PromptEvidence(
        "one",
        None,
        (0,),
        (int(ids[0, 0]),),
        ids,
        values,
        log_sum_exp(logits),
        experts,
        ones[..., None],
        ones,
        np.ones((1, 1, 32), np.float32),
    )


def shown(golden: PromptEvidence, logits: np.ndarray) -> PromptRun:
    ids, values = top_logits(logits, golden.top_ids.shape[1])
    zeros = np.zeros(1, np.int32)
    return PromptRun(
        consumed=zeros,
        positions=zeros,
        embedding_digest=np.zeros((1, 16), np.uint8),
        argmax=ids[:, 0],
        logits_at_golden=np.take_along_axis(logits, golden.top_ids.astype(np.int64), axis=1),
        top_ids=ids,
        top_logits=values,
        logsumexp=log_sum_exp(logits),
        non_finite=zeros,
        free_consumed=zeros,
        free_generated=zeros,
        sketch=golden.sketch,
    )


logit_rows = st.tuples(st.floats(0.5, 20, width=32), st.lists(st.floats(-20, 20, width=32), min_size=5, max_size=5)).map(
    lambda values: np.array([[values[0], *values[1]]], dtype=np.float32)
)


@given(logit_rows, logit_rows)
def test_kl_is_that_of_the_distributions_where_every_logit_is_stored(a: np.ndarray, b: np.ndarray) -> None:
    golden = evidence(a)
    log_p, log_q = (x.astype(float) - log_sum_exp(x) for x in (a, b))
    expected = (np.exp(log_p) * (log_p - log_q)).sum()
    assert compare(golden, shown(golden, b)).kl[0] == pytest.approx(expected, rel=1e-6, abs=1e-9)


@given(logit_rows, logit_rows)
def test_kl_over_fewer_ids_is_a_lower_bound(a: np.ndarray, b: np.ndarray) -> None:
    whole, part = evidence(a), evidence(a, stored=3)
    # 1 - (1 - 1e-9) keeps seven digits, so the mass outside the stored ids is only known that well.
    assert compare(part, shown(part, b)).kl[0] <= compare(whole, shown(whole, b)).kl[0] + 1e-6


@given(logit_rows, logit_rows)
def test_all_ids_that_are_not_stored_count_as_one_outcome(a: np.ndarray, b: np.ndarray) -> None:
    a, b = a / 10, b / 10
    golden = evidence(a, stored=3)
    p, q = (np.exp(x[0].astype(float) - log_sum_exp(x)[0]) for x in (a, b))
    stored = golden.top_ids[0]
    p, q = (np.append(x[stored], 1 - x[stored].sum()) for x in (p, q))
    assert compare(golden, shown(golden, b)).kl[0] == pytest.approx((p * np.log(p / q)).sum(), rel=1e-6, abs=1e-9)


@given(logit_rows, st.integers(-3, 3))
def test_rounding_of_a_logsumexp_never_makes_a_kl_negative(a: np.ndarray, steps: int) -> None:
    golden = evidence(a)
    off = golden.logsumexp + steps * np.spacing(golden.logsumexp)
    assert 0 <= compare(golden, replace(shown(golden, a), logsumexp=off)).kl[0] < 1e-12


def test_mass_that_a_run_takes_from_the_unstored_ids_is_seen() -> None:
    logits = two_logits(1.0, 0.0, -0.5)
    golden = evidence(logits, stored=2)
    masked = logits.copy()
    masked[0, 2:] = -80.0
    unstored = np.exp(logits[0, 2:] - golden.logsumexp[0]).sum()
    assert unstored > 0.2
    assert compare(golden, shown(golden, masked)).kl[0] > 2.0


def test_a_logsumexp_that_contradicts_the_logits_is_not_a_distance_of_zero() -> None:
    logits = two_logits(5.0, 0.0, -9.0)
    golden = evidence(logits, stored=2)
    run = replace(shown(golden, logits + np.float32(1)), logsumexp=golden.logsumexp)
    assert compare(golden, run).kl[0] > 0.1


def test_a_flip_has_the_goldens_regret_and_rank() -> None:
    logits = two_logits(5.0, 4.75, 0.0)
    golden = evidence(logits)
    flipped = logits.copy()
    flipped[0, 1] = 6.0
    result = compare(golden, shown(golden, flipped))
    assert result.flip.tolist() == [True]
    assert result.rank.tolist() == [1]
    assert result.regret.tolist() == [0.25]
    assert result.logit_error.tolist() == [1.25 / 5.0]


def test_a_token_outside_the_stored_ids_has_no_rank_and_at_least_the_last_regret() -> None:
    logits = two_logits(5.0, 4.0, 0.0)
    golden = evidence(logits, stored=2)
    flipped = logits.copy()
    flipped[0, 3] = 9.0
    result = compare(golden, shown(golden, flipped))
    assert (result.rank[0], result.flip[0], result.regret[0]) == (OUTSIDE, True, 1.0)


def test_an_exact_tie_that_goes_to_the_higher_id_is_a_flip_without_regret() -> None:
    logits = two_logits(5.0, 5.0, 0.0)
    golden = evidence(logits)
    result = compare(golden, replace(shown(golden, logits), argmax=np.array([1], np.int32)))
    assert (result.flip[0], result.regret[0], result.margin[0]) == (True, 0.0, 0.0)


def test_the_order_of_experts_within_a_set_does_not_matter(prompt: PromptEvidence, same: PromptRun) -> None:
    reversed_sets = replace(same, expert_ids=prompt.expert_ids[:, :, ::-1].copy())
    assert compare(prompt, reversed_sets).sets_agree.all()


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_the_first_layer_whose_set_differs_is_found_with_its_gap(prompt: PromptEvidence, same: PromptRun, layer: int) -> None:
    experts = prompt.expert_ids.copy()
    for later in range(layer, 3):
        experts[4, later, 0] = next(e for e in range(8) if e not in prompt.expert_ids[4, later])
    result = compare(prompt, replace(same, expert_ids=experts))
    expected = np.full(len(prompt.fed), 3)
    expected[4] = layer
    assert np.array_equal(result.first_set_difference, expected)
    assert np.flatnonzero(~result.sets_agree).tolist() == [4]
    assert result.set_gap[4] == prompt.router_gap[4, layer]
    assert np.count_nonzero(result.set_gap) == 1


def test_a_norm_one_percent_short_has_a_slope_of_minus_one_percent(prompt: PromptEvidence, same: PromptRun) -> None:
    sketch = prompt.sketch.copy()
    sketch[:, 1] *= np.float32(0.99)
    result = compare(prompt, replace(same, sketch=sketch))
    assert np.allclose(result.slope(), [0, -0.01, 0], atol=1e-6)
    assert np.allclose(held(result.sketch_distance), [0, 0.01, 0], atol=1e-6)


def test_weights_are_matched_by_expert_and_not_by_place(prompt: PromptEvidence, same: PromptRun) -> None:
    reversed_order = replace(
        same, expert_ids=prompt.expert_ids[:, :, ::-1].copy(), expert_weights=prompt.expert_weights[:, :, ::-1].copy()
    )
    assert not held(compare(prompt, reversed_order).weight_error).any()
    swapped = compare(prompt, replace(reversed_order, expert_weights=prompt.expert_weights)).weight_error
    assert np.allclose(held(swapped), np.abs(prompt.expert_weights[..., 0] - prompt.expert_weights[..., 2]), atol=1e-7)


@given(st.integers(0, 2**32 - 1), st.floats(0, 1))
def test_weights_are_matched_by_expert_whichever_sets_are_in_another_order(
    prompt: PromptEvidence, same: PromptRun, seed: int, share: float
) -> None:
    rng = np.random.default_rng(seed)
    weights = (prompt.expert_weights * (1 + 0.1 * rng.normal(size=prompt.expert_weights.shape))).astype(np.float32)
    keys = rng.random(weights.shape)
    keys[rng.random(weights.shape[:2]) >= share] = np.arange(weights.shape[2])
    order = keys.argsort(axis=2)
    experts, moved = (np.take_along_axis(array, order, axis=2) for array in (prompt.expert_ids, weights))
    result = compare(prompt, replace(same, expert_ids=experts, expert_weights=moved))
    assert not result.set_differs.any()
    assert np.array_equal(held(result.weight_error), np.abs(weights.astype(float) - prompt.expert_weights).max(axis=2))


@pytest.mark.parametrize("positions", [1, 15, 16, 17, 33])
def test_sketches_are_measured_alike_at_every_position(prompt: PromptEvidence, same: PromptRun, positions: int) -> None:
    """To the bit, however many positions are taken at once."""
    rows = np.arange(positions) % len(prompt.fed)
    golden = {name: getattr(prompt, name)[rows] for name in PromptEvidence.ARRAYS}
    names = ("argmax", "logits_at_golden", "logsumexp", "expert_ids", "expert_weights")
    run = {name: getattr(same, name)[rows] for name in names}
    shown = golden["sketch"] * np.random.default_rng(0).normal(1, 0.1, (positions, *prompt.sketch.shape[1:])).astype(np.float32)
    result = compare(replace(prompt, **golden), replace(same, **run | {"sketch": shown}))
    reference, sketched = golden["sketch"].astype(float), shown.astype(float)
    square = (reference**2).sum(axis=2)
    assert np.array_equal(held(result.sketch_square), square)
    assert np.array_equal(held(result.sketch_dot), (sketched * reference).sum(axis=2))
    assert np.array_equal(held(result.sketch_distance), np.sqrt(((sketched - reference) ** 2).sum(axis=2) / square))


def test_weights_and_router_logits_are_compared_up_to_the_first_differing_set(
    tiny_golden: tuple[Golden, bytes], perturbed_run: Perturb
) -> None:
    """At that layer the router still saw the golden's stream, up to noise; below it another one."""
    prompt = tiny_golden[0].prompts[0]
    probes = tiny_golden[0].probes_of(prompt.name)
    run = perturbed_run(prompt, np.random.default_rng(0), 0.0, probes)
    experts, weights, logits = prompt.expert_ids.copy(), prompt.expert_weights + 0.125, probes.router_logits.copy()
    experts[4, 1, 0] = next(e for e in range(8) if e not in prompt.expert_ids[4, 1])
    logits[:, :, 3] += 0.5
    result = compare(prompt, replace(run, expert_ids=experts, expert_weights=weights, router_logits=logits), probes)
    assert np.argwhere(result.set_differs).tolist() == [[4, 1]]
    assert held(result.weight_error)[4] == pytest.approx([0.125, NOT_COMPARED, NOT_COMPARED])
    assert held(result.weight_error)[5] == pytest.approx([0.125] * 3)
    expected = 0.5 / np.abs(probes.router_logits).max(axis=2)
    assert held(result.router_logit_error)[0] == pytest.approx([*expected[0, :2], NOT_COMPARED])
    assert held(result.router_logit_error)[1] == pytest.approx(expected[1])


@pytest.mark.parametrize(
    ("gone", "measures"),
    [
        (("expert_ids", "expert_weights"), {"weight_error"}),
        (("expert_weights",), {"weight_error"}),
        (("router_logits",), {"router_logit_error"}),
        (("sketch",), {"sketch_distance", "sketch_dot", "sketch_square"}),
    ],
)
def test_what_a_run_does_not_show_is_not_measured_and_no_flip_is_excused_by_it(
    tiny_golden: tuple[Golden, bytes], perturbed_run: Perturb, gone: tuple[str, ...], measures: set[str]
) -> None:
    parts = []
    for prompt in tiny_golden[0].prompts:
        probes = tiny_golden[0].probes_of(prompt.name)
        run = perturbed_run(prompt, np.random.default_rng(0), 1e-3, probes)
        parts.append(compare(prompt, replace(run, **dict.fromkeys(gone)), probes))
    for result in (*parts, concatenate(parts)):
        assert {f.name for f in fields(Comparison) if getattr(result, f.name) is None} == measures
        assert result.sets_agree.all()
        assert not result.set_differs.any()


@pytest.mark.parametrize("name", ["logits_at_golden", "sketch", "expert_ids", "expert_weights", "argmax", "logsumexp"])
@pytest.mark.parametrize("cut", ["one position", "one position too few"])
def test_nothing_is_broadcast(prompt: PromptEvidence, same: PromptRun, name: str, cut: str) -> None:
    array = getattr(same, name)
    with pytest.raises(ValueError, match="do not have the golden's shapes"):
        compare(prompt, replace(same, **{name: array[:1] if cut == "one position" else array[:-1]}))


def test_comparisons_join_along_the_positions(tiny_golden: tuple[Golden, bytes], perturbed_run: Perturb) -> None:
    rng = np.random.default_rng(1)
    pairs = [(p, tiny_golden[0].probes_of(p.name)) for p in tiny_golden[0].prompts]
    parts = [compare(p, perturbed_run(p, rng, 0.01, probes), probes) for p, probes in pairs]
    joined = concatenate(iter(parts))
    for field in fields(Comparison):
        first, second = (getattr(part, field.name) for part in parts)
        assert np.array_equal(getattr(joined, field.name), np.concatenate([first, second]))
    with pytest.raises(ValueError, match="concatenate"):
        concatenate([])


@given(st.lists(st.sampled_from([-1.0, 0.0, 0.5, 2.0]), min_size=1, max_size=8), st.integers(1, 8))
def test_the_largest_logits_are_stored_falling_and_lowest_id_first(values: list[float], count: int) -> None:
    ids, stored = top_logits(np.array([values], np.float32), count)
    expected = sorted(range(len(values)), key=lambda i: (-values[i], i))[:count]
    assert ids[0].tolist() == expected
    assert stored[0].tolist() == [values[i] for i in expected]
