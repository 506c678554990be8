"""A lever that is parsed and then ignored: the arm's own counters show it, to gate `determinism` and to a bench."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from oracle.bench.session import BenchOptions, run_bench
from oracle.kolibri1.config import Kolibri1Config
from tt_impl.arms import ARMS, Arm
from tt_impl.settings import DecoderSettings
from tt_impl.subject import FACTORY

SINGLES = [name for name, arm in ARMS.items() if len(arm.levers) == 1 and arm.base == "bf16"]


def benched(folder: Path, *arms: str) -> tuple[str, list[str]]:
    """The verdict, and each difference as a line."""
    options = BenchOptions(folder, folder / "golden", arms=arms, prompt_ids=7, steps=3, runs=1)
    document = run_bench(options, lambda *_: None)
    return document.verdict, [f"{found.kind}: {found.where} {found.what}" for found in document.differences]


@pytest.fixture(autouse=True)
def _short_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oracle.bench.machine._SECONDS", 0.01)


@pytest.mark.parametrize("name", SINGLES)
def test_a_bench_is_red_where_an_arm_s_lever_is_ignored_and_only_there(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    assert benched(tiny_folder, name) == ("pass", [])
    [(ignored, _)], honest = ARMS[name].levers, Arm.settings

    def settings(arm: Arm, config: Kolibri1Config) -> DecoderSettings:
        return honest(replace(arm, levers=tuple(said for said in arm.levers if said[0] != ignored)), config)

    monkeypatch.setattr(Arm, "settings", settings)
    [counter] = FACTORY.effects(name)
    assert benched(tiny_folder, name) == ("fail", [f"effect: arm {name} took no effect: {counter} never moved"])


def test_a_pair_names_the_lever_that_is_ignored(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Arm.settings
    monkeypatch.setattr(Arm, "settings", lambda arm, config: replace(honest(arm, config), bias="cached"))
    verdict, found = benched(tiny_folder, "bf16", "bf16,drain=fill,bias=fetched")
    assert (verdict, found) == ("fail", ["effect: arm bf16,drain=fill,bias=fetched took no effect: bias_reads never moved"])
