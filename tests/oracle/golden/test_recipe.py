"""Prompt files are read line by line, and a bad line is named; a recipe's digest names everything in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from oracle.errors import UsageError
from oracle.golden.recipe import PromptSpec, Recipe, read_prompts

GOOD = '{"name": "a", "ids": [1, 2], "new_tokens": 3}'


def write(folder: Path, *lines: str) -> Path:
    path = folder / "prompts.jsonl"
    path.write_bytes("\n".join(lines).encode())
    return path


def refusal(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        read_prompts(path)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message


def test_prompts_are_read_in_order_and_blank_lines_skipped(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD, "", '{"name": "b", "text": "Grüße", "new_tokens": 1}', "")
    assert read_prompts(path) == (
        PromptSpec(name="a", ids=(1, 2), new_tokens=3),
        PromptSpec(name="b", text="Grüße", new_tokens=1),
    )


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("{", "is not JSON"),
        ("[" * 200_000, "line 3"),
        ('"text"', "prompt: Input should be"),
        ('{"name": "b", "new_tokens": 3}', "give exactly one of text, messages and ids"),
        ('{"name": "b", "text": "x", "ids": [1], "new_tokens": 3}', "give exactly one of text, messages and ids"),
        ('{"name": "b", "messages": [{"role": "user", "content": "x"}], "text": "x", "new_tokens": 3}', "give exactly one of"),
        ('{"name": "b", "messages": [{"role": "user", "content": "x"}], "ids": [1], "new_tokens": 3}', "give exactly one of"),
        ('{"name": "b", "messages": [], "new_tokens": 3}', "an empty prompt has no position to judge"),
        ('{"name": "b", "messages": "x", "new_tokens": 3}', "messages"),
        ('{"name": "b", "messages": [{"role": "robot", "content": "x"}], "new_tokens": 3}', "messages.0.role"),
        ('{"name": "b", "messages": [{"role": "user", "content": ""}], "new_tokens": 3}', "messages.0.content"),
        ('{"name": "b", "messages": [{"role": "user", "content": ["x"]}], "new_tokens": 3}', "messages.0.content"),
        ('{"name": "b", "messages": [{"role": "user"}], "new_tokens": 3}', "messages.0.content"),
        ('{"name": "b", "messages": [{"role": "user", "content": "x", "name": "y"}], "new_tokens": 3}', "messages.0.name"),
        ('{"name": "b", "messages": [{"role": "user", "content": "\\ud800"}], "new_tokens": 3}', "messages.0.content"),
        (
            '{"name": "b", "messages": [{"role": "user", "content": "x"}], "reasoning_effort": "huge", "new_tokens": 3}',
            "reasoning_effort: Input should be 'none', 'minimal', 'low', 'medium', 'high', 'xhigh' or 'max'",
        ),
        ('{"name": "b", "text": "x", "reasoning_effort": "low", "new_tokens": 3}', "give it with messages only"),
        ('{"name": "b", "ids": [1], "reasoning_effort": "low", "new_tokens": 3}', "give it with messages only"),
        ('{"name": "b", "text": "", "new_tokens": 3}', "an empty prompt has no position to judge"),
        ('{"name": "b", "ids": [], "new_tokens": 3}', "an empty prompt has no position to judge"),
        ('{"name": "b", "ids": [1], "new_tokens": 0}', "new_tokens"),
        ('{"name": "b", "ids": [1]}', "new_tokens"),
        ('{"name": "b", "ids": [1.5], "new_tokens": 3}', "ids.0"),
        ('{"name": "b", "ids": ["x"], "new_tokens": 3}', "ids.0"),
        ('{"name": "B", "ids": [1], "new_tokens": 3}', "name"),
        ('{"name": "../b", "ids": [1], "new_tokens": 3}', "name"),
        ('{"name": "", "ids": [1], "new_tokens": 3}', "name"),
        ('{"name": "b", "ids": [1], "new_tokens": 3, "extra": 1}', "extra"),
        ('{"name": "b", "text": "\\ud800", "new_tokens": 3}', "text"),
    ],
)
def test_a_bad_line_is_named_with_its_number(tmp_path: Path, line: str, named: str) -> None:
    message = refusal(write(tmp_path, GOOD, "", line))
    assert "line 3" in message
    assert named in message


def test_a_file_without_prompts_is_refused(tmp_path: Path) -> None:
    for lines in ((), ("", "  ")):
        assert "holds no prompts; a golden needs at least one" in refusal(write(tmp_path, *lines))


def test_a_name_given_twice_is_refused(tmp_path: Path) -> None:
    assert "names must be unique" in refusal(write(tmp_path, GOOD, GOOD))


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    assert "cannot be read" in refusal(tmp_path / "none.jsonl")
    assert "cannot be read" in refusal(tmp_path)
    path = tmp_path / "latin.jsonl"
    path.write_bytes(b"\xff")
    assert "cannot be read" in refusal(path)


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_any_text_survives_a_prompt_file(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    line = json.dumps({"name": "a", "text": text, "new_tokens": 1}, ensure_ascii=False)
    path = write(tmp_path_factory.mktemp("prompts"), line)
    assert read_prompts(path)[0].text == text


def chat(effort: str | None = None, *turns: tuple[str, str]) -> PromptSpec:
    messages = [{"role": role, "content": content} for role, content in turns or (("user", "x"),)]
    return PromptSpec.model_validate({"name": "a", "messages": messages, "reasoning_effort": effort, "new_tokens": 3})


@pytest.mark.parametrize("effort", [None, "none", "minimal", "low", "medium", "high", "xhigh", "max"])
def test_a_chat_keeps_its_turns_and_its_effort(tmp_path: Path, effort: str | None) -> None:
    turns = (("system", "s"), ("user", "u\n"), ("assistant", "a"), ("tool", "Grüße"), ("user", "v"))
    written = chat(effort, *turns)
    [read] = read_prompts(write(tmp_path, written.model_dump_json()))
    assert read == written
    assert read.turns == [{"role": role, "content": content} for role, content in turns]
    assert read.reasoning_effort == effort


def test_only_a_chat_has_turns() -> None:
    assert PromptSpec(name="a", text="x", new_tokens=3).turns == []


def recipe(**values: Any) -> Recipe:
    base: dict[str, Any] = {
        "prompts": (PromptSpec(name="a", ids=(1, 2), new_tokens=3),),
        "truth": "float32",
        "floor_arms": {"bf16": ("x", "y")},
        "versions": {"numpy": "2"},
    }
    return Recipe(**base | values)


def test_a_recipes_digest_names_everything_in_it() -> None:
    digests = [
        recipe().digest(),
        recipe(prompts=(PromptSpec(name="a", ids=(1, 3), new_tokens=3),)).digest(),
        recipe(prompts=(PromptSpec(name="a", ids=(1, 2), new_tokens=4),)).digest(),
        recipe(prompts=(PromptSpec(name="b", ids=(1, 2), new_tokens=3),)).digest(),
        recipe(truth="float64").digest(),
        recipe(floor_arms={"bf16": ("y", "x")}).digest(),
        recipe(versions={"numpy": "1"}).digest(),
        recipe(sketch_seed=1).digest(),
        recipe(top_n=8).digest(),
        recipe(prompts=(PromptSpec(name="a", text="x", new_tokens=3),)).digest(),
        recipe(prompts=(chat(),)).digest(),
        recipe(prompts=(chat("low"),)).digest(),
        recipe(prompts=(chat("high"),)).digest(),
        recipe(prompts=(chat(None, ("system", "x")),)).digest(),
        recipe(prompts=(chat(None, ("user", "y")),)).digest(),
        recipe(stop_at_eos=True, eos_ids=(1,)).digest(),
        recipe(stop_at_eos=True, eos_ids=(1, 2)).digest(),
    ]
    assert len(set(digests)) == len(digests)
    assert recipe().digest() == recipe(versions={"numpy": "2"}).digest()


@pytest.mark.parametrize(
    "values",
    [
        {"prompts": ()},
        {"prompts": (PromptSpec(name="a", ids=(1,), new_tokens=1),) * 2},
        {"tie_rule": "any"},
        {"stop_at_eos": True},
        {"stop_at_eos": True, "eos_ids": (2, 1)},
        {"stop_at_eos": True, "eos_ids": (1, 1)},
        {"stop_at_eos": True, "eos_ids": (-1, 2)},
        {"eos_ids": (1,)},
        {"floor_arms": {"int4": ("x",)}},
        {"note": "x"},
    ],
)
def test_a_recipe_that_means_something_else_is_refused(values: dict[str, Any]) -> None:
    assert recipe().tie_rule == "lowest-id"
    with pytest.raises(ValidationError):
        recipe(**values)


def test_a_recipe_that_uses_nothing_new_is_written_and_named_as_before() -> None:
    """Goldens made before chats and eos ids were known stay readable: no empty field of those enters their digest."""
    assert recipe().model_dump(mode="json") == {
        "prompts": [{"name": "a", "text": None, "ids": [1, 2], "new_tokens": 3}],
        "truth": "float32",
        "tie_rule": "lowest-id",
        "top_n": 64,
        "sketch_rows": 32,
        "sketch_seed": recipe().sketch_seed,
        "stop_at_eos": False,
        "floor_arms": {"bf16": ["x", "y"]},
        "versions": {"numpy": "2"},
    }
    text = PromptSpec(name="a", text="x", new_tokens=3)
    assert text.model_dump(mode="json") == {"name": "a", "text": "x", "ids": None, "new_tokens": 3}
    assert Recipe.model_validate(recipe().model_dump(mode="json")) == recipe()
    newer = recipe(prompts=(chat("low"),), stop_at_eos=True, eos_ids=(1,))
    assert Recipe.model_validate(newer.model_dump(mode="json")) == newer
