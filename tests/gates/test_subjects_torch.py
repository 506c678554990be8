"""The positive control that needs torch: the reference and transformers, whole, through the same session as a port."""

from __future__ import annotations

import pytest

from goldens import mini_checkpoint
from oracle.judge.session import SessionOptions, run_session

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("subject", "arm", "most_flips"),
    [("reference", "float32", 0), ("transformers", "float32", 0), ("transformers", "bfloat16", None)],
)
def test_an_honest_engine_passes_every_gate(subject, arm, most_flips):
    folder = mini_checkpoint()
    report = run_session(SessionOptions(checkpoint=folder, golden=folder / "golden", subject=subject, arm=arm))
    assert report.verdict == "pass", [str(finding) for gate in report.gates for finding in gate.findings]
    assert most_flips is None or len(report.flips) <= most_flips
