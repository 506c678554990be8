"""What gate `ops` asks of a device is accepted by ttnn, op by op: on silicon it is the first thing to run."""

from __future__ import annotations

from oracle.judge.ops_audit import audit_ops
from oracle.judge.ops_plans import plans
from oracle.subjects.protocol import SubjectIdentity
from tt_impl.device.ttnn.device import TtnnDevice
from tt_impl.run_ops import OpRunner

IDENTITY = SubjectIdentity("tt", "bf16", "bf16", ("ops",), {"kind": "ttnn"})

FLOAT32_REFUSED = {
    "embedding mini float32": "Weights tensor must have BFLOAT16 dtype",
    "paged_scaled_dot_product_attention_decode window mini float32": "Unsupported data type DataType::FLOAT32",
}
"""Some of what ttnn has no float32 form of, in its words: no arm of the class `fp32` is judged there."""


def test_every_case_of_the_ops_gate_in_bf16_is_accepted(device: TtnnDevice) -> None:
    """Its values are the mock device's zeros, so that most cases are wrong; none may be a fault."""
    found = audit_ops(OpRunner(device, IDENTITY), plans("bf16"))
    assert {case.case: case.fault for case in found.cases if case.fault} == {}
    assert any(case.unequal for case in found.cases)


def test_float32_activations_are_refused_which_is_why_no_such_arm_is_judged_there(device: TtnnDevice) -> None:
    cases = [plan for plan in plans("fp32") if plan.name in FLOAT32_REFUSED]
    found = audit_ops(OpRunner(device, IDENTITY), cases)
    assert len(found.cases) == len(FLOAT32_REFUSED)
    assert all(FLOAT32_REFUSED[case.case] in case.fault for case in found.cases)
