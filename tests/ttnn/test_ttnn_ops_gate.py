"""What gate `ops` asks of a device is accepted by ttnn, op by op: on silicon it is the first thing to run."""

from __future__ import annotations

from oracle.judge.ops_audit import audit_ops
from oracle.judge.ops_cases import plans
from oracle.subjects.protocol import SubjectIdentity
from tt_impl.device.ttnn.device import TtnnDevice
from tt_impl.run_ops import OpRunner


def test_every_case_of_the_ops_gate_is_accepted(device: TtnnDevice) -> None:
    """Its values are the mock device's zeros, so that most cases are wrong, and none may be a fault."""
    identity = SubjectIdentity("tt", "bf16", "bf16", ("ops",), {"kind": "ttnn"})
    found = audit_ops(OpRunner(device, identity), plans())
    assert {case.case: case.fault for case in found.cases if case.fault} == {}
    assert any(case.unequal for case in found.cases)
