"""The benchmark of a step at the release's widths: it runs, its checkpoint is as said, and too much of anything is no pass."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import real_geometry
from real_geometry import FOUR_LAYERS, Step, report

from oracle.kolibri1.config import Kolibri1Config
from oracle.kolibri1.release import RELEASE_CONFIG


def test_the_geometry_is_the_releases_in_all_but_its_layers() -> None:
    config, release = Kolibri1Config.model_validate(FOUR_LAYERS), Kolibri1Config.model_validate(RELEASE_CONFIG)
    assert [config.is_sliding(layer) for layer in range(4)] == [True, True, True, False]
    assert (config.num_experts, config.vocab_size, config.hidden_size) == (384, 128_000, 2560)
    assert config.fp8_shapes() == release.fp8_shapes()


@pytest.mark.parametrize(
    ("cpu", "slower", "anonymous", "met"),
    [
        ([1.0, 1.9], 1.0, 7e9, [True, True]),
        ([1.0, 2.1], 1.0, 7e9, [False, True]),  # the worst step counts, not the median
        ([1.0, 2.1], 2.0, 7e9, [True, True]),
        ([1.0, 1.9], 1.0, 9e9, [True, False]),
    ],
)
def test_marks(cpu: Sequence[float], slower: float, anonymous: float, met: list[bool]) -> None:
    steps = [Step(wall=9.0, cpu=seconds, counts={"fills": 3}) for seconds in cpu]
    peak = {"RssAnon": int(anonymous), "RssFile": 0, "VmHWM": 0}
    assert [mark.met for mark in report(steps, peak, slower, "invented")] == met


@pytest.mark.slow
def test_the_small_one_runs_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert real_geometry.main(["--small", "--steps", "2", "--warm-up", "1"]) == 0
    out = capsys.readouterr().out
    assert "| fills" in out
    assert "| RssAnon" in out
    assert not list(tmp_path.iterdir())
