"""`golden make` as a command: bad input is one line and leaves nothing, good input gives the library's golden."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from making import Made, command, files

from oracle import cli
from oracle.golden.format import load_golden

BAD_MAKES = {
    "an existing folder": ({"--golden": "existing"}, "existing exists already and is never overwritten"),
    "a missing parent": ({"--golden": "nowhere/golden"}, "nowhere does not exist; create it first"),
    "no such prompts": ({"--prompts": "none.jsonl"}, "none.jsonl cannot be read"),
    "no prompts": ({"--prompts": "empty.jsonl"}, "empty.jsonl holds no prompts"),
    "a broken line": ({"--prompts": "broken.jsonl"}, "broken.jsonl, line 1 is not JSON"),
    "an id outside": ({"--prompts": "outside.jsonl"}, "prompt bad: id 96 is outside the vocabulary of 96"),
    "text without tokenizer": ({"--prompts": "text.jsonl"}, "tokenizer.json cannot be read"),
    "chat without tokenizer": ({"--prompts": "chat.jsonl"}, "tokenizer.json cannot be read"),
    "no checkpoint": ({"--checkpoint": "existing"}, "existing is no checkpoint"),
}


@pytest.mark.parametrize("case", BAD_MAKES)
def test_a_golden_that_cannot_be_made_is_refused_in_one_line(
    workplace: Path, folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    changed, named = BAD_MAKES[case]
    before = files(workplace)
    monkeypatch.setattr(sys, "argv", ["kolibri-oracle", *command(folder, **changed)])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    out, err = capfd.readouterr()
    assert caught.value.code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert named in err
    assert files(workplace) == before


def test_a_golden_made_by_the_command_is_the_librarys(
    workplace: Path, folder: Path, made: Made, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["kolibri-oracle", *command(folder)])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert not caught.value.code
    assert f"wrote made: 3 prompts, {made.golden.positions} positions, {made.golden.digest}" in capfd.readouterr().out
    assert load_golden(workplace / "made").document == made.golden.document


def test_the_command_passes_on_that_chains_stop(
    workplace: Path, folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = json.loads((folder / "config.json").read_text())
    silent = shutil.copytree(folder, workplace / "silent")
    (silent / "config.json").write_text(json.dumps({**config, "eos_token_id": None}))
    monkeypatch.setattr(sys, "argv", ["kolibri-oracle", *command(silent), "--stop-at-eos"])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2
    assert "silent names no eos id in config.json or generation_config.json; leave out --stop" in capfd.readouterr().err
    assert not (workplace / "made").exists()
