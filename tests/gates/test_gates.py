"""Every gate as a test, on the subject that `--kolibri-subject` names (the decoder under test on the simulated device)."""

import pytest

from oracle.judge.gates import GATE_NAMES


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.kolibri_gate(name)) for name in GATE_NAMES])
def test_gate(name, gate):
    assert gate["id"].split("@")[0] == name
    assert gate["verdict"] in ("pass", "not applicable")
    assert all(control["behaved"] for control in gate["controls"])
