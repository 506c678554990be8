"""The ids that a bench feeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from goldens import mini_checkpoint
from oracle.bench.prompt import bench_prompt
from oracle.errors import CheckpointError, GoldenError, UsageError
from oracle.golden.format import Golden, load_golden


def test_they_are_the_first_prompt_that_is_long_enough_with_its_chain(
    tiny_folder: Path, tiny_golden_folder: Path, tiny_golden: tuple[Golden, bytes]
) -> None:
    first = tiny_golden[0].prompts[0]
    prompt = bench_prompt(tiny_folder, tiny_golden_folder, 17, 4)
    assert prompt.ids == (first.prompt_ids + first.generated)[:17]
    assert prompt.source == f"prompt 'first' and its chain, of golden {tiny_golden[0].digest}"


def test_where_none_is_they_are_all_prompts_joined_and_again_from_the_first(
    tiny_folder: Path, tiny_golden_folder: Path, tiny_golden: tuple[Golden, bytes]
) -> None:
    first, second = tiny_golden[0].prompts
    one, other = first.prompt_ids + first.generated, second.prompt_ids + second.generated
    assert bench_prompt(tiny_folder, tiny_golden_folder, 40, 4).ids == (one + other + one)[:40]


def test_the_minis_are_real_text_that_is_no_short_cycle() -> None:
    prompt = bench_prompt(mini_checkpoint(), mini_checkpoint() / "golden", 128, 64)
    story = next(p for p in load_golden(mini_checkpoint() / "golden").prompts if p.name == "story-en-1")
    assert prompt.ids == (story.prompt_ids + story.generated)[:128]
    assert len(set(prompt.ids)) > 40


def test_without_a_golden_they_follow_the_ports_rule(tiny_folder: Path, tmp_path: Path) -> None:
    prompt = bench_prompt(tiny_folder, tmp_path / "none", 128, 64)
    assert prompt.ids == tuple((i * 7919 + 13) % 96 for i in range(128))
    assert prompt.source == "(7919 i + 13) mod 96, for want of a golden"


def test_a_damaged_golden_is_refused_and_not_passed_over(tiny_folder: Path, golden_copy: Path) -> None:
    (golden_copy / "golden.json").write_bytes(b"{}\n")
    with pytest.raises(GoldenError):
        bench_prompt(tiny_folder, golden_copy, 8, 4)


def test_a_golden_folder_without_a_golden_is_refused_and_not_passed_over(tiny_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(GoldenError):
        bench_prompt(tiny_folder, tmp_path, 8, 4)


def test_more_positions_than_the_checkpoint_has_are_refused(tiny_folder: Path, tmp_path: Path) -> None:
    assert len(bench_prompt(tiny_folder, tmp_path / "none", 500, 12).ids) == 500
    with pytest.raises(UsageError, match="500 prompt ids and 13 steps are more than the 512 positions"):
        bench_prompt(tiny_folder, tmp_path / "none", 500, 13)


def test_a_folder_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        bench_prompt(tmp_path, tmp_path / "golden", 8, 4)
