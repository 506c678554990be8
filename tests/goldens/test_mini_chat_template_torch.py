"""The mini's chat template, rendered by transformers: the release's structure, and text that the mini knows."""

from __future__ import annotations

import random
import re
import runpy
from pathlib import Path
from typing import Any, get_args

import pytest
from transformers import AutoTokenizer

from goldens import mini_checkpoint
from oracle.golden.recipe import ReasoningEffort

CORPUS = Path(__file__).parents[2] / "training" / "corpus.py"
SENTENCE = {
    "none": "Thinking is disabled for this conversation.",
    "low": "Thinking is short for this conversation.",
    "medium": "Thinking is moderate for this conversation.",
    "high": "Thinking is thorough for this conversation.",
}
OFF = "<|im_start|>assistant\n<think>\n\n</think>\n\n"
ON = "<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(mini_checkpoint(), local_files_only=True)


def turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def render(tokenizer: Any, *turns: dict[str, str], prompt: bool = True, **options: Any) -> str:
    return tokenizer.apply_chat_template(list(turns), tokenize=False, add_generation_prompt=prompt, **options)


def system(effort: str, text: str = "") -> str:
    return f"<|im_start|>system\n{text}# Reasoning effort\n\n{SENTENCE[effort]}\n<|im_end|>\n"


HELLO = turn("user", "Hello")
HELLO_TURN = "<|im_start|>user\nHello<|im_end|>\n"


@pytest.mark.parametrize(
    ("options", "effort"),
    [
        ({"reasoning_effort": "none"}, "none"),
        ({"reasoning_effort": "minimal"}, "low"),
        ({"reasoning_effort": "low"}, "low"),
        ({"reasoning_effort": "medium"}, "medium"),
        ({"reasoning_effort": "high"}, "high"),
        ({"reasoning_effort": "xhigh"}, "high"),
        ({"reasoning_effort": "max"}, "high"),
        ({"reasoning_effort": "another"}, "high"),
        ({}, "high"),
        ({"reasoning_effort": None}, "high"),
        ({"enable_thinking": False}, "none"),
        ({"enable_thinking": True}, "high"),
        ({"enable_thinking": 0}, "high"),
        ({"enable_thinking": None}, "high"),
        ({"enable_thinking": ""}, "high"),
        ({"enable_thinking": False, "reasoning_effort": "low"}, "low"),
        ({"enable_thinking": True, "reasoning_effort": "none"}, "none"),
        ({"enable_thinking": False, "reasoning_effort": None}, "none"),
    ],
)
def test_the_effort_gives_the_sentence_and_only_none_closes_the_thoughts(
    tokenizer: Any, options: dict[str, Any], effort: str
) -> None:
    assert render(tokenizer, HELLO, **options) == system(effort) + HELLO_TURN + (OFF if effort == "none" else ON)


def test_every_effort_that_a_prompt_may_name_is_known() -> None:
    assert set(get_args(ReasoningEffort)) == {"none", "minimal", "low", "medium", "high", "xhigh", "max"}


def test_a_system_text_comes_before_the_effort(tokenizer: Any) -> None:
    rendered = render(tokenizer, turn("system", "Be brief."), HELLO, reasoning_effort="medium")
    assert rendered == system("medium", "Be brief.\n\n") + HELLO_TURN + ON


def test_the_system_turn_stands_even_alone(tokenizer: Any) -> None:
    assert render(tokenizer, turn("system", "Be brief."), prompt=False) == system("high", "Be brief.\n\n")


THOUGHT = turn("assistant", "<think>\nHm.\n</think>\n\nYes.")
KEPT, DROPPED = (f"<|im_start|>assistant\n{content}<|im_end|>\n" for content in (THOUGHT["content"], "Yes."))


@pytest.mark.parametrize(
    ("turns", "options", "expected"),
    [
        ((HELLO, THOUGHT, HELLO), {}, HELLO_TURN + DROPPED + HELLO_TURN),
        ((HELLO, THOUGHT), {}, HELLO_TURN + KEPT),
        ((HELLO, THOUGHT, HELLO, THOUGHT), {}, HELLO_TURN + DROPPED + HELLO_TURN + KEPT),
        ((HELLO, THOUGHT, HELLO), {"preserve_thinking": True}, HELLO_TURN + KEPT + HELLO_TURN),
        ((HELLO, THOUGHT, HELLO), {"preserve_thinking": False}, HELLO_TURN + DROPPED + HELLO_TURN),
        ((HELLO, turn("assistant", "Yes."), HELLO), {}, HELLO_TURN + DROPPED + HELLO_TURN),
    ],
)
def test_thoughts_before_the_last_question_are_dropped(
    tokenizer: Any, turns: tuple[dict[str, str], ...], options: dict[str, Any], expected: str
) -> None:
    assert render(tokenizer, *turns, prompt=False, **options) == system("high") + expected


def test_tools_results_in_a_row_share_a_users_turn_and_are_no_question(tokenizer: Any) -> None:
    one, two = turn("tool", "5"), turn("tool", "six")
    shared = "<|im_start|>user\n<tool_response>\n5\n</tool_response>\n<tool_response>\nsix\n</tool_response><|im_end|>\n"
    alone = "<|im_start|>user\n<tool_response>\n5\n</tool_response><|im_end|>\n"
    assert render(tokenizer, HELLO, THOUGHT, one, two) == system("high") + HELLO_TURN + KEPT + shared + ON
    assert render(tokenizer, HELLO, one, THOUGHT, one) == system("high") + HELLO_TURN + alone + KEPT + alone + ON


@pytest.mark.parametrize("role", ["system", "robot"])
def test_a_turn_without_a_place_is_refused(tokenizer: Any, role: str) -> None:
    with pytest.raises(Exception, match=f"a {role} message has no place here"):
        render(tokenizer, HELLO, turn(role, "x"))


def test_with_effort_none_a_chat_is_what_the_mini_was_trained_on(tokenizer: Any) -> None:
    corpus = runpy.run_path(str(CORPUS))
    for seed in range(20):
        document = corpus["_chat"](random.Random(seed))
        question, answer = re.findall(r"user\n(.*?)<\|im_end\|>.*</think>\n\n(.*)", document, re.DOTALL)[0]
        assert render(tokenizer, turn("user", question), reasoning_effort="none") + answer == document


def test_what_it_renders_is_vocabulary_and_its_special_tokens_are_single_ids(tokenizer: Any) -> None:
    for effort in get_args(ReasoningEffort):
        rendered = render(tokenizer, turn("system", "Ruhe."), HELLO, THOUGHT, turn("tool", "5"), HELLO, reasoning_effort=effort)
        ids = tokenizer(rendered, add_special_tokens=False)["input_ids"]
        tokens = tokenizer.convert_ids_to_tokens(ids)
        assert max(ids) < len(tokenizer) == 512
        assert None not in tokens
        assert "".join(tokens).count("<|im_start|>") == tokens.count("<|im_start|>") == rendered.count("<|im_start|>")
        assert tokens.count("<|im_end|>") == rendered.count("<|im_end|>")
        assert tokens.count("</think>") == rendered.count("</think>") == (effort == "none")
