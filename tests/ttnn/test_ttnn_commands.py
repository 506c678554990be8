"""The command line where ttnn is installed and no card is: what is refused, and what doctor shows."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from ttnn_process import RunsPython

CLI = ("-c", "from oracle.cli import main; main()")


def test_no_gate_is_judged_on_the_mock_device(run: RunsPython) -> None:
    done = run(*CLI, "gate", "--device", "ttnn", mock=True)
    assert done.returncode == 2
    assert "ttnn's mock device reads back zeros, so no gate can be judged on it" in done.stderr
    assert not done.stdout


def test_without_a_card_the_one_error_says_why_and_points_to_doctor(run: RunsPython) -> None:
    done = run(*CLI, "gate", "--device", "ttnn", mock=False)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert re.search(
        r"no card: /dev/tenstorrent is empty or missing; no SFPI cross compiler .*`kolibri-oracle doctor`", done.stderr
    )


@pytest.mark.parametrize("mock", [False, True])
def test_doctor_names_ttnn_its_build_and_each_level(run: RunsPython, tmp_path: Path, mock: bool) -> None:
    file = tmp_path / "doctor.json"
    done = run(*CLI, "doctor", "--json", str(file), mock=mock)
    assert done.returncode == 0, done.stderr
    found = json.loads(file.read_text(encoding="utf-8"))
    assert found["environment"]["ttnn"] == "0.81.1"
    assert re.fullmatch(r"[A-Z][a-z]{2} [ \d]\d 20\d\d, build id [0-9a-f]{16}", found["environment"]["ttnn build"])
    assert found["environment"]["ttnn library"] == "as packaged in 0.81.1"
    assert found["environment"]["compiler"].startswith("placeholder: not a compiler" if mock else "no SFPI cross compiler")
    levels = {level["name"]: level["available"] for level in found["levels"]}
    assert levels == {"host tensors": True, "mock": mock, "ttsim": False, "silicon": False}
    assert "host tensors" in done.stdout
