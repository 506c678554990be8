"""When the device works changes nothing that a decode shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from schedules import PROMPT, STEPS, decode, main, two_layers

from oracle.kolibri1.checkpoint import Checkpoint


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return two_layers(tmp_path_factory.mktemp("schedules") / "two-layers")


def test_every_named_schedule_gives_the_same_bytes(checkpoint: Checkpoint) -> None:
    chain, digest = decode(checkpoint, "lazy")
    assert len(chain) == STEPS + 1
    assert tuple(chain[: len(PROMPT)]) == PROMPT
    for schedule in ("eager", "reuse", "random:0"):
        assert decode(checkpoint, schedule) == (chain, digest)


@pytest.mark.slow
def test_so_do_many_seeds(checkpoint: Checkpoint) -> None:
    """200 in `benchmarks/schedules.py`."""
    assert {decode(checkpoint, f"random:{seed}")[1] for seed in range(30)} == {decode(checkpoint, "lazy")[1]}


def test_the_benchmark_names_a_seed_that_differs(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("schedules.two_layers", lambda _: checkpoint)
    assert main(["--seeds", "1"]) == 0
    monkeypatch.setattr("schedules.decode", lambda _, schedule: ([], schedule))
    assert main(["--seeds", "2"]) == 1
    assert "random:1 differs from lazy" in capsys.readouterr().out
