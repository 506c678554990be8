"""A decoder set up as a plan says takes of the card what the plan says, to the byte, and leaves what it says is spare."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from oracle.kolibri1.checkpoint import Checkpoint
from tt_impl.decode import Decoder
from tt_impl.device.dram_bytes import dram_bytes
from tt_impl.device.protocol import DType, Layout
from tt_impl.device.sim import DramGeometry, SimDevice
from tt_impl.plans.kv_plan import plan_kv
from tt_impl.plans.staging_plan import plan_staging
from tt_impl.plans.streaming_plan import SCRATCH_BYTES, plan_streaming

CONTEXT = 64
INPUTS = 6 * dram_bytes((1, 1), DType.UINT32, Layout.ROW_MAJOR)
"""What a step is told, a part of the plan's scratch: ids, positions, and of each kind of layer a page table and positions."""


@pytest.mark.parametrize("activation", [DType.BFLOAT16, DType.FLOAT32])
@pytest.mark.parametrize(
    ("slots", "memos"),
    [
        pytest.param(3, 5, id="what a step pins, and not a memo for each"),
        pytest.param(5, 15, id="a memo for each slot"),
    ],
)
def test_slots_and_memos_are_what_the_plan_makes_room_for(
    tiny: Checkpoint, open_decoder: Callable[..., Decoder], tokens: list[int], activation: DType, slots: int, memos: int
) -> None:
    layers = tiny.config.num_hidden_layers
    staging = plan_staging(tiny.config, activation, CONTEXT)
    kv = plan_kv(tiny.config, activation, sequences=1, context=CONTEXT, block_size=32)
    held = staging.device_bytes + kv.device_bytes
    one = plan_streaming(tiny.config, staging, kv, activation, 2 * SCRATCH_BYTES)
    assert one.slot_bytes > one.expert_bytes, "a slot that takes no more than its bytes shows nothing here"
    banks, spare = 8, 512
    dram = held + SCRATCH_BYTES + layers * slots * one.slot_bytes + memos * one.memo_bytes + spare
    plan = plan_streaming(tiny.config, staging, kv, activation, dram)
    assert (plan.slots_per_layer, plan.memos, plan.spare_bytes) == (slots, memos, spare)
    device = SimDevice(dram=DramGeometry(banks, dram // banks))
    assert device.get_memory_view().total_bytes == dram
    decoder = open_decoder(
        activation,
        device=device,
        slots_per_layer=plan.slots_per_layer,
        memo_bytes=plan.memos * plan.memo_bytes,
        max_positions=CONTEXT,
    )
    for token in tokens:
        decoder.step(token)
    stats = decoder.stats()
    assert stats["memory_before"] == held + layers * slots * one.slot_bytes + INPUTS
    assert stats["memo_bytes_peak"] == memos * one.memo_bytes
    assert dram - stats["memory_before"] - stats["memo_bytes_peak"] == SCRATCH_BYTES + spare - INPUTS
