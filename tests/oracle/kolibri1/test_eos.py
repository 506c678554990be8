"""A chain may stop at every eos id that the checkpoint's two configs name, and at no other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from goldens import mini_checkpoint
from oracle.errors import CheckpointError
from oracle.kolibri1.config import Kolibri1Config, read_config
from oracle.kolibri1.eos import eos_ids
from oracle.kolibri1.synthetic import TINY


def config(eos: Any) -> Kolibri1Config:
    return Kolibri1Config.model_validate({**TINY, "eos_token_id": eos})


def generation(folder: Path, content: Any) -> Path:
    (folder / "generation_config.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def test_the_mini_stops_at_the_end_of_a_turn_and_at_the_end_of_a_text() -> None:
    assert eos_ids(mini_checkpoint(), read_config(mini_checkpoint())) == (504, 509)


@pytest.mark.parametrize(
    ("eos", "more", "ids"),
    [
        (7, [7, 3], (3, 7)),
        (7, 3, (3, 7)),
        ([9, 7], [3, 9], (3, 7, 9)),
        (None, [0], (0,)),
        (7, None, (7,)),
        (7, [], (7,)),
        (None, None, ()),
    ],
)
def test_the_ids_of_both_configs_count_once_each(tmp_path: Path, eos: Any, more: Any, ids: tuple[int, ...]) -> None:
    assert eos_ids(generation(tmp_path, {"eos_token_id": more}), config(eos)) == ids


def test_a_generation_config_that_names_none_or_is_absent_adds_none(tmp_path: Path) -> None:
    assert eos_ids(tmp_path, config(7)) == (7,)
    assert eos_ids(generation(tmp_path, {"bos_token_id": 1}), config([7, 3])) == (3, 7)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("{", "generation_config.json is damaged"),
        ("[7]", "generation_config.json is damaged"),
        ("", "generation_config.json is empty"),
        ("version https://git-lfs", "git lfs pull"),
        ({"eos_token_id": "7"}, "'7' is no id"),
        ({"eos_token_id": [7, 1.5]}, "1.5 is no id"),
        ({"eos_token_id": True}, "True is no id"),
        ({"eos_token_id": [7, 96]}, "names the eos id 96, outside its vocabulary of 96"),
        ({"eos_token_id": -1}, "names the eos id -1, outside its vocabulary of 96"),
    ],
)
def test_a_damaged_generation_config_is_refused(tmp_path: Path, content: Any, named: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        eos_ids(generation(tmp_path, content), config(7))
    assert named in str(caught.value)
    assert str(tmp_path) in str(caught.value)
