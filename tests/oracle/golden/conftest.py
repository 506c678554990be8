"""One made golden for all modules: making it takes seconds. Its fixtures need torch; the modules that ask for them say so."""

from __future__ import annotations

from pathlib import Path

import pytest
from making import CHAT, Made, make_first, write_prompts

from oracle.golden.recipe import PromptSpec
from oracle.kolibri1.checkpoint import Checkpoint


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_first(tmp_path_factory.mktemp("make"))


@pytest.fixture(scope="session")
def folder(made: Made) -> Path:
    return made.folder


@pytest.fixture(scope="session")
def checkpoint(made: Made) -> Checkpoint:
    return made.checkpoint


@pytest.fixture
def workplace(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with prompt files, and one that must survive."""
    write_prompts(tmp_path / "good.jsonl")
    write_prompts(tmp_path / "outside.jsonl", [PromptSpec(name="bad", ids=(96,), new_tokens=4)])
    write_prompts(tmp_path / "text.jsonl", [PromptSpec(name="text", text="Hallo", new_tokens=4)])
    write_prompts(tmp_path / "chat.jsonl", [CHAT])
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "broken.jsonl").write_text("{\n")
    (tmp_path / "existing").mkdir()
    (tmp_path / "existing" / "kept").write_text("kept")
    monkeypatch.chdir(tmp_path)
    return tmp_path
