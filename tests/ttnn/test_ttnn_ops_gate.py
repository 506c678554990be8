"""What gate `ops` asks of a device is accepted by ttnn, op by op: on silicon it is the first thing to run."""

from __future__ import annotations

from oracle.judge.ops_audit import audit_ops
from oracle.judge.ops_cases import plans
from oracle.subjects.protocol import SubjectIdentity
from tt_impl.device.ttnn.device import TtnnDevice
from tt_impl.run_ops import OpRunner

_ATTENTION = "paged_scaled_dot_product_attention_decode"

FLOAT32_REFUSED = {
    "embedding": "Weights tensor must have BFLOAT16 dtype",
    _ATTENTION: "Unsupported data type DataType::FLOAT32",
}
"""What ttnn has no float32 form of: gate `ops` is red there on a card, by these words, and the arm `exact` is refused."""


def test_every_case_of_the_ops_gate_is_accepted_but_what_ttnn_has_no_float32_form_of(device: TtnnDevice) -> None:
    """Its values are the mock device's zeros, so that most cases are wrong, and no other may be a fault."""
    identity = SubjectIdentity("tt", "bf16", "bf16", ("ops",), {"kind": "ttnn"})
    found = audit_ops(OpRunner(device, identity), plans())
    refused = {(case.case.split()[0], case.dtype): case.fault for case in found.cases if case.fault}
    assert set(refused) == {(op, "float32") for op in FLOAT32_REFUSED}
    assert all(words in refused[op, "float32"] for op, words in FLOAT32_REFUSED.items())
    assert any(case.unequal for case in found.cases)
