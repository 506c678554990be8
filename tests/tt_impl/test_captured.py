"""What a judge is told of a capture, from the labels that the device noted."""

from __future__ import annotations

from tt_impl.captured import captured_region
from tt_impl.device.protocol import CaptureRecord
from tt_impl.operands import expert_label


def test_experts_are_counted_and_of_what_was_written_weights_alone_are_named() -> None:
    expert = f"{expert_label(3, 17, 2, 5)}.down"
    qkv, norm = "model.layers.0.self_attn.qkv", "model.norm.weight"
    record = CaptureRecord((("op.linear", 3),), 4, ("ids", expert, qkv, norm), ("ids", expert, qkv, norm), alike=2)
    region = captured_region(record)
    assert (region.calls, region.replays, region.alike, region.experts) == ((("op.linear", 3),), 4, 2, 1)
    assert region.changed == (
        "model.layers.0.self_attn.k_proj.weight",
        "model.layers.0.self_attn.q_proj.weight",
        "model.layers.0.self_attn.v_proj.weight",
        "model.layers.3.mlp.experts.17.down_proj.weight",
        "model.norm.weight",
    )
