"""Flip records: numbers from which the label follows, and a signature that anyone can recompute."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from flip_cases import numbers, record
from hypothesis import assume, given
from hypothesis import strategies as st
from judge_cases import answer, changed, flipped, narrowest, sketch_of, widest, with_bands, with_other_experts, with_prompt
from pydantic import ValidationError

from oracle.golden.calibration import Bands
from oracle.judge.flip_record import FlipRecord, flip_records, signature
from oracle.judge.gate import Case

LABELS = ("near-tie", "router-near-tie", "hard")


def label_of(n: dict[str, Any]) -> str:
    """The rule in words: outside the stored ids is hard; an exact tie is not; then the bands, with one ULP as the least."""
    if n["rank"] == -1:
        return "hard"
    kind = "near-tie" if n["set_layer"] is None else "router-near-tie"
    bits = {"float32": 23, "bfloat16": 7}[n["logit_dtype"]]
    size = max(abs(n["top"]), abs(n["top"] - n["regret"]))
    step = 2.0 ** (max(np.floor(np.log2(size)), -126) - bits) if size else 2.0 ** (-126 - bits)
    band = n["bands"]["regret" if kind == "near-tie" else "router_regret"]
    exact = n["regret"] == 0 or (kind == "router-near-tie" and n["set_gap"] == 0)
    within = exact or (n["regret"] <= max(band, step) and (kind == "near-tie" or n["set_gap"] <= n["bands"]["router_gap"]))
    return kind if within else "hard"


@given(numbers())
def test_only_the_label_that_follows_from_the_numbers_is_accepted(n: dict[str, Any]) -> None:
    for label in LABELS:
        if label == label_of(n):
            assert record(**n, label=label).label == label
        else:
            with pytest.raises(ValidationError, match=f"label '{label}' contradicts the numbers"):
                record(**n, label=label)


@given(numbers())
def test_a_record_survives_json_whole(n: dict[str, Any]) -> None:
    before = record(**n, label=label_of(n))
    assert FlipRecord.model_validate_json(before.model_dump_json()) == before
    assert FlipRecord.model_validate(json.loads(json.dumps(before.model_dump(mode="json")))) == before


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("label", "hard"),
        ("explanation", "explained by a near tie: regret 0.001 nats, band 0.02"),
        ("regret", 5.0),
        ("regret", 0.001),
        ("rank", -1),
        ("rank", 0),
        ("set_layer", 2),
        ("sketch_layer", 2),
        ("golden_margin", 0.001),
        ("golden_margin_ulps", 0.5),
        ("subject_margin_ulps", 0.5),
        ("bands", {"regret": 0.0}),
    ],
)
def test_a_stored_record_edited_in_one_field_is_refused_on_load(name: str, value: Any) -> None:
    stored = record().model_dump(mode="json")
    stored[name] = {**stored[name], **value} if isinstance(value, dict) else value
    with pytest.raises(ValidationError):
        FlipRecord.model_validate_json(json.dumps(stored))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["regret", "top", "set_gap", "golden_margin", "subject_margin"])
def test_numbers_that_are_not_finite_are_refused(name: str, value: float) -> None:
    with pytest.raises(ValidationError, match="finite"):
        record(**{name: value})


def test_bands_beyond_the_floor_s_multiple_are_refused_so_no_record_can_buy_itself_a_label() -> None:
    bands = record().bands.model_dump()
    with pytest.raises(ValidationError, match="inflated"):
        record(regret=5.0, bands={**bands, "regret": 6.0})


def test_a_flip_of_an_id_to_itself_is_none() -> None:
    with pytest.raises(ValidationError, match="equal is none"):
        record(got=5)


def test_a_negative_regret_is_refused() -> None:
    """The golden's own choice has its largest logit, so no other can beat it."""
    with pytest.raises(ValidationError):
        record(regret=-0.01)


def test_an_unknown_logit_type_is_refused_as_bad_input() -> None:
    with pytest.raises(ValidationError):
        record(logit_dtype="float16")


def test_unknown_and_missing_fields_are_refused() -> None:
    stored = record().model_dump(mode="json")
    with pytest.raises(ValidationError, match="Extra inputs"):
        FlipRecord.model_validate({**stored, "note": "fine"})
    del stored["rank"]
    with pytest.raises(ValidationError, match="rank"):
        FlipRecord.model_validate(stored)


def recomputed(golden_digest: str, flips: Sequence[tuple[str, int, int, int]]) -> str:
    lines = [f"{golden_digest} {prompt} {position} {expected} {got}\n" for prompt, position, expected, got in flips]
    return "sha256:" + hashlib.sha256("".join(lines).encode("utf-8")).hexdigest()


FLIPS = [("count", 9, 17, 4), ("count", 10, 3, 260), ("über", 0, 5, 7)]


def test_the_signature_is_the_documented_one_for_a_literal_example() -> None:
    flips = [record(prompt=p, position=i, expected=e, got=g) for p, i, e, g in FLIPS]
    assert signature("sha256:abc", flips) == "sha256:faf9ee70d06f8cfdba23b572b0ae49e9a9a79b14f89f1ebcc2b7c5e43c9a3fe0"
    assert signature("sha256:abc", flips) == recomputed("sha256:abc", FLIPS)


def test_a_run_without_flips_has_the_signature_of_no_lines() -> None:
    empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert signature("sha256:abc", ()) == signature("sha256:def", ()) == empty


def test_the_signature_does_not_depend_on_the_order_of_the_records() -> None:
    flips = [record(prompt=p, position=i, expected=e, got=g) for p, i, e, g in FLIPS]
    assert len({signature("sha256:abc", order) for order in permutations(flips)}) == 1


@pytest.mark.parametrize("change", [{"prompt": "q"}, {"position": 4}, {"expected": 6}, {"got": 8}])
def test_the_signature_differs_where_what_it_covers_differs(change: dict[str, Any]) -> None:
    assert signature("sha256:abc", [record(**change)]) != signature("sha256:abc", [record()])


def test_the_signature_differs_between_goldens() -> None:
    assert signature("sha256:abc", [record()]) != signature("sha256:abd", [record()])


def test_the_signature_does_not_depend_on_what_it_does_not_cover() -> None:
    """Two machines that flip alike with other margins are the same red."""
    other = record(regret=0.0101, subject_margin=0.5, sketch_layer=2, sketch_distance=0.5, sketch_limit=0.25)
    assert signature("sha256:abc", [other]) == signature("sha256:abc", [record()])


@given(st.integers(1, 3), st.integers(0, 99), st.integers(1, 3))
def test_signatures_of_two_flips_and_of_one_are_never_the_same(a: int, b: int, c: int) -> None:
    assume(a != c)
    one, two = record(position=a, expected=500, got=b), record(position=c, expected=500, got=b)
    assert len({signature("g", flips) for flips in ([one], [two], [one, two], [])}) == 4


def test_the_perfect_run_has_no_records(case: Case) -> None:
    assert flip_records(case) == ()


def test_a_record_holds_what_golden_and_subject_say_of_its_position(case: Case) -> None:
    prompt, position = narrowest(case)
    run = answer(case, prompt)
    top_logits = changed(run.top_logits, (position, slice(0, 2)), (12.5, 12.25))
    [flip] = flip_records(with_prompt(flipped(case, prompt, position), prompt, top_logits=top_logits))
    top, second = (float(v) for v in prompt.top_logits[position, :2])
    ulp = 2.0 ** (np.floor(np.log2(abs(top))) - 7)
    assert (flip.prompt, flip.position) == (prompt.name, position)
    assert (flip.expected, flip.got, flip.rank) == (*prompt.top_ids[position, :2], 1)
    assert (flip.regret, flip.golden_margin, flip.top) == (top - second, top - second, top)
    assert flip.subject_margin == 0.25
    assert (flip.golden_margin_ulps, flip.subject_margin_ulps) == ((top - second) / ulp, 0.25 / ulp)
    assert (flip.set_layer, flip.set_gap, flip.sketch_layer) == (None, 0.0, None)
    assert flip.bands == case.calibration.bands


def test_a_record_names_the_first_layer_whose_experts_and_whose_sketch_are_off(case: Case) -> None:
    prompt, position = narrowest(case)
    spoiled = with_other_experts(flipped(case, prompt, position), prompt, position, layer=3)
    spoiled = with_other_experts(spoiled, prompt, position, layer=2)
    sketch = sketch_of(case, prompt)
    off = changed(sketch, (position, slice(1, None)), sketch[position, 1:] * 1.5)
    [flip] = flip_records(with_prompt(spoiled, prompt, sketch=off))
    assert (flip.set_layer, flip.sketch_layer) == (2, 1)
    assert flip.set_gap == float(prompt.router_gap[position, 2])


def test_records_come_in_the_golden_s_order_of_prompts_and_positions(case: Case) -> None:
    (first, a), (second, b) = narrowest(case), widest(case)
    spoiled = flipped(flipped(case, second, b), first, a)
    names = [p.name for p in case.golden.prompts]
    places = [(names.index(flip.prompt), flip.position) for flip in flip_records(spoiled)]
    assert places == sorted([(names.index(first.name), a), (names.index(second.name), b)])


def test_the_label_of_a_record_is_the_case_s_own_bands_label(case: Case) -> None:
    prompt, position = widest(case)
    spoiled = flipped(case, prompt, position)
    wide: Bands = with_bands(case, regret=1e3).calibration.bands
    banded = replace(spoiled, calibration=spoiled.calibration.model_copy(update={"bands": wide}))
    assert [f.label for f in flip_records(spoiled)] == ["hard"]
    assert [f.label for f in flip_records(banded)] == ["near-tie"]
