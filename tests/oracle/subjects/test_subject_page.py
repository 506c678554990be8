"""The subject of `docs/subjects.md`, the very block of the page: installed, found by its entry point, judged."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from oracle import cli

PAGE = Path(__file__).resolve().parents[3] / "docs" / "subjects.md"

# An engine with the interface that the page uses. It knows the tiny golden's answers by the ids it is fed, and gives for
# each layer a residual stream that has the golden's sketch.
PORT = """
from types import SimpleNamespace
import numpy as np
from oracle.golden.sketch import sketch_signs
from oracle.subjects.perfect import FACTORY
from oracle.subjects.protocol import SubjectRequest

class Engine:
    firmware = "1.2"

    def __init__(self, checkpoint):
        self.inner = FACTORY.open(SubjectRequest(checkpoint, checkpoint.parent / "golden"))
        self.new_sequence, self.close = self.inner.start, self.inner.close
        self.drop_caches()

    def drop_caches(self):
        self.inner.reset()
        self.steps = 0

    def decode(self, token):
        e = self.inner.step(token)
        self.steps += 1
        residual = np.linalg.lstsq(sketch_signs(64), e.sketch.T.astype(np.float64), rcond=None)[0].T
        out = SimpleNamespace(token=e.token, position=e.position, logits=e.logits, embedding_row=e.embedding,
                              experts=e.expert_ids, weights=e.expert_weights, residual=residual.astype(np.float32),
                              router_logits=e.router_logits)
        FAULT
        return out
"""


def block() -> str:
    [found] = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return found


@pytest.fixture
def judged(tiny_folder: Path, tiny_golden_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Install the page's subject over an engine with a fault, and judge it: exit code and each gate's verdict."""

    def judge(fault: str = "pass") -> tuple[int, dict[str, str], dict[str, Any]]:
        (tmp_path / "golden").symlink_to(tiny_golden_folder)
        (tmp_path / "checkpoint").symlink_to(tiny_folder)
        packages = tmp_path / "packages"
        info = packages / "my_port-1.0.dist-info"
        info.mkdir(parents=True)
        (packages / "my_port_subject.py").write_text(block())
        (packages / "my_port.py").write_text(PORT.replace("FAULT", fault))
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-port\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[kolibri_oracle.subjects]\nmine = my_port_subject:FACTORY\n")
        monkeypatch.syspath_prepend(packages)
        out = tmp_path / "verdict.json"
        options = ("--subject", "mine", "--checkpoint", tmp_path / "checkpoint", "--golden", tmp_path / "golden", "--json", out)
        monkeypatch.setattr(sys, "argv", ["kolibri-oracle", "gate", "--jobs", "1", *map(str, options)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        for name in ("my_port", "my_port_subject"):
            sys.modules.pop(name, None)
        document = json.loads(out.read_bytes())
        return int(caught.value.code or 0), {g["id"].split("@")[0]: g["verdict"] for g in document["gates"]}, document

    return judge


def test_the_page_shows_a_whole_subject_in_30_lines() -> None:
    assert len(block().splitlines()) <= 30


def test_it_is_found_and_judged_green(judged: Any) -> None:
    code, verdicts, document = judged()
    assert (code, document["verdict"]) == (0, "pass")
    assert {name for name, verdict in verdicts.items() if verdict != "pass"} <= {
        "slots",
        "staging",
        "operands",
        "ops",
        "census",
        "counters",
        "determinism",
        "capture",
    }
    assert document["subject"]["device"] == {"kind": "card", "firmware": "1.2"}
    compared = {gate["id"].split("@")[0]: gate["compared"] for gate in document["gates"]}
    assert compared["flips"] == 32
    assert all(control["behaved"] for gate in document["gates"] for control in gate["controls"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "gate"),
    [
        ("out.position += 1", "alignment"),
        ("out.logits = out.logits * np.float32(1.05)", "logits"),
        ("out.residual = out.residual * np.float32(0.99)", "residual"),
        ("out.experts = out.experts[:, ::-1].copy(); out.experts[0, 0] = 9", "alignment"),
    ],
    ids=["position", "head", "residual", "expert that is none"],
)
def test_what_its_engine_does_wrong_shows_through_it(judged: Any, fault: str, gate: str) -> None:
    code, verdicts, _ = judged(fault)
    assert (code, verdicts[gate]) == (1, "fail")
