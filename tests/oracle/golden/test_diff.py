"""A diff of two goldens says in one word what moved, and where, and by how much against the old one's floor."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from changed_goldens import (
    rebuilt,
    with_class,
    with_noise,
    with_other_choice,
    with_prompt,
    with_recipe,
    with_rows,
    with_tie,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from oracle.golden.diff import GoldenDiff, diff_goldens
from oracle.golden.evidence import PromptEvidence
from oracle.golden.format import Golden
from oracle.golden.history import HistoryEntry
from oracle.golden.recomputation import BOUND
from oracle.serialization import canonical_json


@pytest.fixture(scope="session")
def golden(tiny_golden: tuple[Golden, bytes]) -> Golden:
    return tiny_golden[0]


def words(diff: GoldenDiff) -> tuple[str, str]:
    canonical_json(diff.to_json())  # whatever is found can be written
    return diff.headline, diff.values


def test_a_golden_is_the_same_as_itself(golden: Golden) -> None:
    diff = diff_goldens(golden, rebuilt(golden))
    assert (words(diff), diff.line, diff.same) == (("same", "same"), "same", True)
    assert (diff.recipe, diff.classes, diff.beyond, diff.notes, diff.grown) == ((), (), (), (), ())
    assert all(m.value == 0 for m in diff.multiples)
    assert [p.movement.positions for p in diff.prompts if p.movement] == [18, 14]


def test_a_history_alone_makes_no_difference(golden: Golden) -> None:
    entry = HistoryEntry(former=golden.digest, headline="moved", reason="because it had to be")
    document = golden.document.model_copy(update={"history": (entry,)}).sealed()
    diff = diff_goldens(golden, replace(golden, document=document))
    assert diff.same
    assert diff.old != diff.new


def test_noise_of_the_floors_size_is_arithmetic(golden: Golden) -> None:
    diff = diff_goldens(golden, with_noise(golden, 1e-7))
    assert words(diff) == ("arithmetic", "arithmetic")
    by_name = {m.name: m for m in diff.multiples}
    assert set(by_name) == {
        "KL median",
        "KL p90",
        "router logit median",
        "router logit largest",
        *(f"{of} {which}, layer {layer}" for of in ("sketch", "weight") for which in ("median", "p90") for layer in range(3)),
        "sketch slope",
    }
    median = by_name["sketch median, layer 1"]
    assert median.floor == golden.document.classes["fp32"].limits.floor.sketch_median[1]
    assert median.ratio == median.value / median.floor
    assert 0.5 < median.value / median.floor < 2
    assert diff.line == "arithmetic"


def test_noise_beyond_the_floor_has_moved_and_says_how_many_times(golden: Golden) -> None:
    diff = diff_goldens(golden, with_noise(golden, 1e-5))
    assert words(diff) == ("moved", "moved")
    sketch = next(m for m in diff.multiples if m.name == "sketch median, layer 0")
    assert sketch.value > 30 * sketch.floor
    assert str(sketch) in diff.beyond
    assert f"(x{sketch.value / sketch.floor:.3g}), allowed {sketch.allowed:g} times the floor's" in str(sketch)
    assert any("first: a logit moved by" in line and f"allowed {BOUND:.0e}" in line for line in diff.beyond)


def test_the_position_that_moved_most_is_named(golden: Golden) -> None:
    def change(rows: dict[str, np.ndarray]) -> None:
        rows["top_logits"][7, 3] += 0.5
        rows["sketch"][4, 2] *= 1.5

    diff = diff_goldens(golden, with_rows(golden, 1, change))
    first, second = (p.movement for p in diff.prompts)
    assert first is not None
    assert second is not None
    assert not first.unequal
    assert (second.logit_change.position, second.kl.position, second.sketch.position) == (7, 7, 4)
    assert second.logit_change.value == pytest.approx(0.5 / np.abs(golden.prompts[1].top_logits[7]).max())
    assert second.sketch.value == pytest.approx(0.5)
    assert set(second.unequal) == {"top_logits", "sketch"}
    assert diff.headline == "moved"
    assert {line.split(" ")[0] for line in diff.beyond} == {"second:", "sketch"}  # the prompt's bounds, and the slope's limit


@pytest.mark.parametrize("at", [0, 5, 13])
def test_a_chain_that_parts_at_a_near_tie_is_a_re_roll(golden: Golden, at: int) -> None:
    position = 4 + at
    old = with_tie(golden, 0, position, 1e-6)
    new = with_other_choice(old, 0, at)
    diff = diff_goldens(old, new)
    assert words(diff) == ("tie re-roll", "tie re-roll")
    [parted, whole] = (p.divergence for p in diff.prompts)
    assert whole is None
    assert parted is not None
    assert (parted.index, parted.expected) == (at, old.prompts[0].generated[at])
    assert parted.got == new.prompts[0].generated[at] == old.prompts[0].top_ids[position, 1]
    assert parted.choice is not None
    assert parted.choice.tie
    assert parted.choice.margin == pytest.approx(1e-6, rel=0.2)
    movement = diff.prompts[0].movement
    assert movement is not None
    assert movement.positions == position + 1  # and nothing behind it, where the contexts differ
    assert diff.line == "tie re-roll; 1 of 2 chains part"


def test_a_chain_that_parts_at_no_tie_has_moved(golden: Golden) -> None:
    old = with_tie(golden, 0, 9, 0.4)
    diff = diff_goldens(old, with_other_choice(old, 0, 5))
    assert words(diff) == ("moved", "moved")
    parted = diff.prompts[0].divergence
    assert parted is not None
    assert parted.choice is not None
    assert not parted.choice.tie
    assert parted.choice.regret == pytest.approx(0.4, rel=1e-5)
    assert parted.choice.allowed < 1e-3
    assert "first: 1 argmax flips are no ties, first at [9]" in diff.beyond


def test_a_flip_in_the_prompt_is_found_though_no_chain_parts(golden: Golden) -> None:
    old = with_tie(golden, 0, 2, 0.4)

    def swap(rows: dict[str, np.ndarray]) -> None:
        for name in ("top_ids", "top_logits"):
            rows[name][2, :2] = rows[name][2, 1::-1]

    diff = diff_goldens(old, with_rows(old, 0, swap))
    assert diff.prompts[0].divergence is None
    movement = diff.prompts[0].movement
    assert movement is not None
    assert [(c.position, c.tie) for c in movement.choices] == [(2, False)]
    assert diff.headline == "moved"


def test_a_chain_that_its_stored_choices_do_not_explain_has_moved(golden: Golden) -> None:
    prompt = golden.prompts[0]
    other = next(i for i in range(96) if i not in prompt.generated)
    forged = with_prompt(golden, 0, generated=(*prompt.generated[:-1], other))
    diff = diff_goldens(golden, forged)
    assert words(diff) == ("moved", "moved")
    assert diff.beyond == ("first: the chains part at generated[13] where no stored choice differs",)


@pytest.mark.parametrize(("gap", "tie"), [(5e-5, True), (0.3, False)])
def test_an_expert_set_may_differ_at_a_router_tie_only(golden: Golden, gap: float, tie: bool) -> None:
    def with_gap(rows: dict[str, np.ndarray]) -> None:
        rows["router_gap"][6, 1] = gap

    def swap(rows: dict[str, np.ndarray]) -> None:
        unused = next(e for e in range(8) if e not in rows["expert_ids"][6, 1])
        rows["expert_ids"][6, 1, 2] = unused

    old = with_rows(golden, 0, with_gap)
    diff = diff_goldens(old, with_rows(old, 0, swap))
    movement = diff.prompts[0].movement
    assert movement is not None
    [found] = movement.sets
    assert (found.position, found.layer, found.gap, found.tie) == (6, 1, pytest.approx(gap), tie)
    assert diff.headline == ("arithmetic" if tie else "moved")


@pytest.mark.parametrize("array", [name for name in PromptEvidence.ARRAYS if name not in ("top_ids", "expert_ids")])
@pytest.mark.parametrize(("factor", "word"), [(1 + 2e-7, "arithmetic"), (1.1, "moved")])
def test_no_array_can_move_unseen(golden: Golden, array: str, factor: float, word: str) -> None:
    largest = max(np.abs(getattr(p, array)).max() for p in golden.prompts)

    def change(rows: dict[str, np.ndarray]) -> None:
        value = rows[array].reshape(-1)[:1]
        value += (largest * (factor - 1)).astype(value.dtype)

    changed = with_rows(golden, 0, change)
    assert changed.digest != golden.digest
    assert diff_goldens(golden, changed).headline == word


@pytest.mark.parametrize("probe", ["hidden", "router_logits", "layer_inputs"])
@pytest.mark.parametrize(("by", "word"), [(1e-6, "arithmetic"), (0.5, "moved")])
def test_full_values_at_the_probes_are_compared(golden: Golden, probe: str, by: float, word: str) -> None:
    values = getattr(golden.probes, probe).copy()
    values[0, 0, 0] += by
    diff = diff_goldens(golden, rebuilt(golden, probes=replace(golden.probes, **{probe: values})))
    assert diff.headline == word
    assert bool(diff.beyond) == (word == "moved")


def test_a_recipe_field_a_library_and_a_checkpoint_are_told_apart(golden: Golden) -> None:
    versions = diff_goldens(golden, with_recipe(golden, versions={"numpy": "another"}))
    assert words(versions) == ("other recipe", "same")
    assert [(c.path, c.old, c.new) for c in versions.recipe] == [(("versions", "numpy"), "any", "another")]
    moved = diff_goldens(golden, with_recipe(with_noise(golden, 1e-7), versions={"numpy": "another"}))
    assert words(moved) == ("arithmetic", "arithmetic")
    assert moved.recipe == versions.recipe
    truth = diff_goldens(golden, with_recipe(with_noise(golden, 1e-7), truth="float64"))
    assert words(truth) == ("other recipe", "arithmetic")
    assert truth.line == "other recipe; values arithmetic"
    checkpoint = diff_goldens(golden, rebuilt(golden, checkpoint_digest="sha256:0"))
    assert words(checkpoint) == ("other checkpoint", "same")
    assert checkpoint.checkpoints == (golden.document.checkpoint_digest, "sha256:0")


def subset(golden: Golden, *indices: int, **named: Any) -> Golden:
    """Some of the prompts in that order, without classes, whose counts would not fit; `named` renames by index."""
    names = [named.get(f"p{i}", golden.prompts[i].name) for i in indices]
    prompts = tuple(replace(golden.prompts[i], name=name) for i, name in zip(indices, names, strict=True))
    recipe = golden.document.recipe
    specs = tuple(recipe.prompts[i].model_copy(update={"name": name}) for i, name in zip(indices, names, strict=True))
    empty = {name: getattr(golden.probes, name)[:0] for name in ("prompts", "positions", "hidden", "router_logits")}
    return rebuilt(
        golden,
        recipe=recipe.model_copy(update={"prompts": specs}),
        prompts=prompts,
        classes={},
        probe_prompt=prompts[0].name,
        probes=replace(golden.probes, **empty, layer_inputs=golden.probes.layer_inputs[:0]),
    )


def test_prompts_that_came_went_moved_or_were_renamed_are_named(golden: Golden) -> None:
    both, one = subset(golden, 0, 1), subset(golden, 0)
    added, removed = diff_goldens(one, both), diff_goldens(both, one)
    assert (added.headline, added.added, added.removed) == ("other recipe", ("second",), ())
    assert (removed.headline, removed.added, removed.removed) == ("other recipe", (), ("second",))
    assert removed.line == "other recipe; values same; removed second"
    reordered = diff_goldens(both, subset(golden, 1, 0))
    assert (words(reordered), reordered.reordered) == (("other recipe", "same"), True)
    renamed = diff_goldens(both, subset(golden, 0, 1, p1="third"))
    assert (renamed.renamed, renamed.added, renamed.removed, renamed.reordered) == ((("second", "third"),), (), (), False)
    assert renamed.headline == "other recipe"
    assert [p.movement.positions for p in renamed.prompts if p.movement] == [18, 14]


def test_a_text_or_ids_that_changed_under_one_recipe_have_moved(golden: Golden) -> None:
    prompt = golden.prompts[0]
    changed = with_prompt(subset(golden, 0, 1), 0)
    ids = (*prompt.prompt_ids[:3], 95, *prompt.prompt_ids[4:])
    new = replace(changed, prompts=(replace(prompt, prompt_ids=ids, text="x"), changed.prompts[1]))
    diff = diff_goldens(changed, new)
    assert {"first: its text changed", "first: its ids changed"} <= set(diff.beyond)
    assert diff.values == "moved"
    movement = diff.prompts[0].movement
    assert movement is not None
    assert movement.positions == 3


def test_prompts_without_one_common_id_are_not_compared(golden: Golden) -> None:
    old = subset(golden, 0, 1)
    new = replace(old, prompts=(replace(old.prompts[0], prompt_ids=(95, *old.prompts[0].prompt_ids[1:])), old.prompts[1]))
    diff = diff_goldens(old, new)
    assert diff.prompts[0].movement is None
    assert diff.values == "moved"


def test_other_shapes_are_said_and_not_compared(golden: Golden) -> None:
    fewer = {name: getattr(golden.prompts[0], name)[:, :2] for name in ("expert_ids", "expert_weights", "router_gap", "sketch")}
    new = replace(golden, prompts=(replace(golden.prompts[0], **fewer), golden.prompts[1]))
    diff = diff_goldens(golden, new)
    assert any(note.startswith("values are not compared: layers") for note in diff.notes)
    assert not diff.same


def test_a_missing_floor_is_said(golden: Golden) -> None:
    old = rebuilt(golden, classes={"bf16": golden.document.classes["bf16"]})
    diff = diff_goldens(old, with_noise(old, 1e-7))
    assert diff.notes == ("the old golden has no floor of class fp32: values are held against recomputation's bounds alone",)
    assert (diff.multiples, diff.headline) == ((), "arithmetic")
    assert diff_goldens(old, with_noise(old, 1e-4)).headline == "moved"


def test_a_band_that_grew_is_named_with_its_factor(golden: Golden) -> None:
    old = with_class(golden, "bf16", "bands", regret=0.03)
    wider = with_class(with_noise(golden, 1e-7), "bf16", "bands", regret=0.054)
    diff = diff_goldens(old, wider)
    assert diff.grown == ("band regret of class bf16 grew from 0.03 to 0.054 (x1.8)",)
    assert diff.line == "arithmetic; band regret of class bf16 grew from 0.03 to 0.054 (x1.8)"
    shrunk = diff_goldens(wider, old)
    assert (shrunk.grown, [c.numeric_class for c in shrunk.classes]) == ((), ["bf16"])
    from_zero = diff_goldens(with_class(golden, "bf16", "bands", regret=0.0), wider)
    assert from_zero.grown == ("band regret of class bf16 grew from 0 to 0.054",)


def test_a_band_that_moved_with_the_arithmetic_is_not_named(golden: Golden) -> None:
    old = with_class(golden, "bf16", "bands", regret=0.03)
    diff = diff_goldens(old, with_class(with_noise(golden, 1e-7), "bf16", "bands", regret=0.03009))
    assert (diff.grown, len(diff.classes)) == ((), 1)


def test_a_calibration_that_changed_alone_has_moved(golden: Golden) -> None:
    diff = diff_goldens(golden, with_class(golden, "bf16", "bands", regret=0.054))
    assert words(diff) == ("moved", "moved")
    assert diff.beyond == ("the calibration changed although nothing that it is measured from did",)


def test_budgets_and_multiples_that_grew_are_named(golden: Golden) -> None:
    near = golden.document.classes["bf16"].bins.near
    limits = golden.document.classes["bf16"].limits
    more = diff_goldens(golden, with_class(golden, "bf16", "bins", near=(*near[:3], 20, *near[4:])))
    assert any(line.startswith("budget near of class bf16 grew from ") for line in more.grown)
    wide = limits.floor.model_copy(update={"sketch_median": (9.0, *limits.floor.sketch_median[1:])})
    wider = diff_goldens(golden, with_class(golden, "bf16", "limits", floor=wide))
    assert [line.split(" grew")[0] for line in wider.grown] == ["limit sketch_median.0 of class bf16"]
    narrow = with_class(golden, "bf16", "limits", multiple=limits.multiple / 2)
    expected = f"limit multiple of class bf16 grew from {limits.multiple / 2:.4g} to {limits.multiple:.4g} (x2)"
    assert diff_goldens(narrow, golden).grown == (expected,)


def test_a_class_that_went_or_came_is_named(golden: Golden) -> None:
    fewer = rebuilt(golden, classes={"fp32": golden.document.classes["fp32"]})
    assert [(c.numeric_class, c.kind) for c in diff_goldens(golden, fewer).classes] == [("bf16", "removed")]
    assert [(c.numeric_class, c.kind) for c in diff_goldens(fewer, golden).classes] == [("bf16", "added")]


def test_sensitivity_is_measured_of_both(golden: Golden) -> None:
    diff = diff_goldens(golden, subset(golden, 0))
    assert diff.sensitivity == ("38 of 38 (100.0%)", "18 of 18 (100.0%)")


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_changed_number_is_a_difference(golden: Golden, data: st.DataObject) -> None:
    """And a diff is the same each time."""
    index = data.draw(st.integers(0, 1))
    name = data.draw(st.sampled_from(["top_logits", "logsumexp", "expert_weights", "router_gap", "sketch"]))

    def change(rows: dict[str, np.ndarray]) -> None:
        flat = rows[name].reshape(-1)
        place = data.draw(st.integers(0, flat.size - 1))
        flat[place] = np.nextafter(flat[place], np.array(np.inf, dtype=flat.dtype))

    changed = with_rows(golden, index, change)
    diff = diff_goldens(golden, changed)
    assert diff.headline == "arithmetic"
    assert diff.to_json() == diff_goldens(golden, changed).to_json()
