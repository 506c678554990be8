"""The blame chain: one sentence for any numbers, "explained" exactly where the flip is a near tie, the first cause first."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from flip_cases import NUMBERS, numbers, record
from hypothesis import given
from judge_cases import changed, flipped, narrowest, sketch_of, with_bands, with_other_experts, with_prompt
from pydantic import ValidationError

from oracle.judge.blame import FlipNumbers, explain
from oracle.judge.flip_record import flip_records
from oracle.judge.gate import Case

AT_LAYER_0 = {"set_layer": 0, "set_after": 0.3, "set_after_limit": 0.4}
AT_LAYER_3 = {"set_layer": 3, "set_before": 0.01, "set_before_limit": 0.02, "set_after": 0.3, "set_after_limit": 0.4}
OFF_AT_1 = {"sketch_layer": 1, "sketch_distance": 0.031, "sketch_limit": 0.004}
AROUND = "; sketch distance 0.01 before it (limit 0.02), 0.3 after it (limit 0.4)"


def sentence(**changes: Any) -> str:
    return explain(FlipNumbers.model_validate({**NUMBERS, **changes}))


@given(numbers())
def test_there_is_one_sentence_for_any_numbers_and_it_says_explained_exactly_where_the_flip_is_not_hard(
    n: dict[str, Any],
) -> None:
    flip = FlipNumbers.model_validate(n)
    text = explain(flip)
    assert re.match("not explained: |explained by ", text)
    assert text.startswith("explained by ") == (flip.kind != "hard")
    assert text.count("explained") == 1
    assert "\n" not in text
    assert "None" not in text


@given(numbers())
def test_the_layer_named_first_is_the_first_at_which_anything_differs(n: dict[str, Any]) -> None:
    flip = FlipNumbers.model_validate(n)
    named = [int(layer) for layer in re.findall(r"layer (\d+)", explain(flip))]
    differing = [layer for layer in (flip.set_layer, flip.sketch_layer) if layer is not None]
    if flip.kind == "hard":
        assert named[:1] == sorted(differing)[:1]
    elif flip.set_layer is not None:
        assert named[0] == flip.set_layer


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "explained by a near tie: regret 0.01 nats, band 0.02"),
        ({"regret": 0.0}, "explained by an exact tie: the golden gives both ids the same logit"),
        (
            {"regret": 0.05, "top": 12.0, "logit_dtype": "bfloat16"},
            "explained by a near tie: regret 0.05 nats, band 0.0625, one bfloat16 ULP at that logit's size",
        ),
        (
            {**OFF_AT_1},
            "explained by a near tie: regret 0.01 nats, band 0.02; hidden state already differs at layer 1 "
            "(sketch distance 0.031, limit 0.004)",
        ),
        (
            {**AT_LAYER_3, "set_gap": 0.0004},
            f"explained by a router near tie at layer 3, gap 0.0004 (band 0.1); regret 0.01 nats, band 0.05{AROUND}",
        ),
        (
            {**AT_LAYER_0, "set_gap": 0.0004},
            "explained by a router near tie at layer 0, gap 0.0004 (band 0.1); regret 0.01 nats, band 0.05; "
            "sketch distance 0.3 after it (limit 0.4)",
        ),
        ({**AT_LAYER_3, "regret": 9.0}, f"explained by an exact router tie at layer 3: regret 9 nats{AROUND}"),
        (
            {**AT_LAYER_3, "set_gap": 0.12, "regret": 0.0},
            "explained by an exact tie: the golden gives both ids the same logit; expert sets differ at layer 3, gap 0.12",
        ),
        (
            {**AT_LAYER_3, "set_gap": 0.12},
            f"not explained: expert set differs at layer 3 across a gap of 0.12 (band 0.1){AROUND}",
        ),
        (
            {**AT_LAYER_3, **OFF_AT_1, "set_gap": 0.12},
            "not explained: hidden state already differs at layer 1 (sketch distance 0.031, limit 0.004), "
            "before any expert set",
        ),
        (
            {**OFF_AT_1, "regret": 0.5},
            "not explained: hidden state already differs at layer 1 (sketch distance 0.031, limit 0.004), "
            "while every expert set agrees",
        ),
        (
            {**AT_LAYER_3, "set_gap": 0.05, "regret": 0.5},
            "not explained: a router near tie at layer 3, gap 0.05 (band 0.1), does not account for regret 0.5 nats, "
            f"band 0.05{AROUND}",
        ),
        (
            {**AT_LAYER_3, "set_gap": 0.1, "regret": 0.5},
            "not explained: a router near tie at layer 3, gap 0.1 (band 0.1), does not account for regret 0.5 nats, "
            f"band 0.05{AROUND}",
        ),
        (
            {"regret": 0.5},
            "not explained: every layer within its limits; the head or final norm differs (regret 0.5 nats, band 0.02)",
        ),
        (
            {"set_layer": 3, "set_gap": 0.12, "sketches_shown": False},
            "not explained: expert set differs at layer 3 across a gap of 0.12 (band 0.1); no residual stream was shown",
        ),
        (
            {**OFF_AT_1, "regret": 0.5, "experts_shown": False},
            "not explained: hidden state already differs at layer 1 (sketch distance 0.031, limit 0.004), "
            "and the run shows no expert sets",
        ),
        (
            {"regret": 0.5, "sketches_shown": False},
            "not explained: every expert set agrees, and no residual stream was shown (regret 0.5 nats, band 0.02)",
        ),
        (
            {"regret": 0.5, "sketches_shown": False, "experts_shown": False},
            "not explained: the run shows no expert sets, and no residual stream was shown (regret 0.5 nats, band 0.02)",
        ),
        (
            {"regret": 0.5, "rank": -1},
            "not explained: every layer within its limits; the head or final norm differs (regret at least 0.5 nats, "
            "band 0.02); the token is outside the golden's stored ids",
        ),
    ],
)
def test_the_sentences(changes: dict[str, Any], expected: str) -> None:
    assert sentence(**changes) == expected


@pytest.mark.parametrize(
    "changes",
    [
        {**AT_LAYER_3, "set_before": None},
        {**AT_LAYER_3, "set_before_limit": None},
        {**AT_LAYER_3, "set_after": None},
        {**AT_LAYER_0, "set_before": 0.1, "set_before_limit": 0.2},
        {"set_after": 0.1, "set_after_limit": 0.2},
        {"set_gap": 0.1},
        {**AT_LAYER_3, "experts_shown": False},
        {**AT_LAYER_3, "sketches_shown": False},
        {**OFF_AT_1, "sketches_shown": False},
        {"sketch_layer": 1},
        {**OFF_AT_1, "sketch_layer": None},
        {**OFF_AT_1, "sketch_distance": 0.004},
        {**AT_LAYER_3, "set_before": 0.03},
        {**AT_LAYER_3, "set_after": 0.5},
        {**AT_LAYER_3, "sketch_layer": 2, "sketch_distance": 0.03, "sketch_limit": 0.02},
        {**AT_LAYER_3, "sketch_layer": 3, "sketch_distance": 0.5, "sketch_limit": 0.4},
        {"sketch_layer": -1, "sketch_distance": 0.5, "sketch_limit": 0.4},
        {"regret": 0.0, "rank": -2},
    ],
)
def test_a_chain_that_contradicts_itself_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        FlipNumbers.model_validate({**NUMBERS, **changes})


def test_a_record_s_explanation_is_the_sentence_of_its_numbers_and_no_other() -> None:
    stored = record(**AT_LAYER_3, set_gap=0.0004).model_dump(mode="json")
    assert stored["explanation"].startswith("explained by a router near tie at layer 3, gap 0.0004")
    with pytest.raises(ValidationError, match="explanation contradicts the numbers, which say 'explained by a router near"):
        record(**{**stored, "explanation": stored["explanation"].replace("0.0004", "0.0005")})


def test_a_run_s_records_hold_the_distances_before_and_after_the_first_differing_set(case: Case) -> None:
    prompt, position = narrowest(case)
    limits = case.calibration.limits.sketch_p90
    sketch = sketch_of(case, prompt)
    off = changed(sketch, (position, 1), sketch[position, 1] * (1 + 0.5 * limits[1]))
    off = changed(off, (position, 2), sketch[position, 2] * (1 + 2 * limits[2]))
    spoiled = with_other_experts(
        flipped(with_bands(case, regret=9, router_gap=9, router_regret=9), prompt, position), prompt, position, 2
    )
    [flip] = flip_records(with_prompt(spoiled, prompt, sketch=off))
    assert (flip.set_layer, flip.sketch_layer) == (2, 2)
    assert (flip.set_before_limit, flip.set_after_limit, flip.sketch_limit) == (limits[1], limits[2], limits[2])
    assert flip.set_before == pytest.approx(0.5 * limits[1], rel=1e-3)
    assert flip.set_after == flip.sketch_distance == pytest.approx(2 * limits[2], rel=1e-3)
    assert flip.explanation.startswith(f"explained by a router near tie at layer 2, gap {flip.set_gap:.4g} (band 9)")


def test_a_sketch_exactly_at_its_limit_is_within_it(case: Case) -> None:
    prompt, position = narrowest(case)
    sketch = sketch_of(case, prompt)
    spoiled = with_prompt(
        flipped(case, prompt, position), prompt, sketch=changed(sketch, (position, 0), sketch[position, 0] * 1.5)
    )
    measured = spoiled.comparisons[prompt.name].sketch_distance
    assert measured is not None
    distance = float(measured[position, 0])
    limits = spoiled.calibration.limits
    exactly = (distance, *limits.floor.sketch_p90[1:])
    floor = limits.floor.model_copy(update={"sketch_p90": exactly})
    calibration = spoiled.calibration.model_copy(update={"limits": limits.model_copy(update={"floor": floor, "multiple": 1.0})})
    assert flip_records(spoiled)[0].sketch_layer == 0
    assert flip_records(replace(spoiled, calibration=calibration))[0].sketch_layer is None
