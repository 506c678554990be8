"""The benchmark of the controls' cost: it names every gate, and its exit code is its mark."""

from __future__ import annotations

from pathlib import Path

import controls
import pytest

from oracle.judge.gates import GATES


@pytest.fixture
def spent(monkeypatch: pytest.MonkeyPatch) -> controls.Spent:
    spent = controls.Spent({"subject": 80.0, **{gate.name: 2.5 for gate in GATES}}, {gate.name: 1.0 for gate in GATES})
    monkeypatch.setattr(controls, "measure", lambda _options: spent)
    return spent


def test_the_share_is_of_the_session_without_its_controls(spent: controls.Spent, capsys: pytest.CaptureFixture[str]) -> None:
    assert spent.share == pytest.approx(1.0 * len(GATES) / (80 + 2.5 * len(GATES)))
    assert controls.main([]) == 0
    printed = capsys.readouterr().out
    assert all(f"| {gate.name} " in printed for gate in GATES)
    assert "NOT met" not in printed
    spent.own["subject"] = 20.0
    assert controls.main([]) == 1
    assert "NOT met" in capsys.readouterr().out
    assert controls.main(["--small"]) == 0


@pytest.mark.slow
def test_it_measures_a_real_session(tiny_folder: Path, tiny_golden_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert controls.main(["--checkpoint", str(tiny_folder), "--golden", str(tiny_golden_folder), "--small"]) == 0
    rows = {line.split("|")[1].strip(): line.split("|")[2:4] for line in capsys.readouterr().out.splitlines() if "|" in line}
    assert {gate.name for gate in GATES} <= rows.keys()
    assert float(rows["subject"][0]) > 0
    assert float(rows["faults planted in the device"][1]) > 0
    assert float(rows["perfect subject"][1]) > 0
    assert float(rows["auditors"][1]) > 0
