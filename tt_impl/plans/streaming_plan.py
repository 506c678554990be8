"""How routed experts stream through what the residents leave of a card's DRAM.

The rule of the split. A slot holds an expert's fp8 bytes and grids; a memo its dequantized copy, good only while its expert
sits in the slot it was made from. So memos beyond slots are worthless, and a slot without a memo costs a dequantization and
an upload at every use. What residents and KV cache leave goes first into the slots that one step pins, then into slots with a
memo each, equally many in every layer; where the pinned slots have not all a memo, into memos; and what then remains, too
little for one more pair in every layer, into slots alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from oracle.kolibri1.config import Kolibri1Config
from tt_impl.device.protocol import DType
from tt_impl.experts.layout import ExpertLayout
from tt_impl.plans.budget import PlanError, require
from tt_impl.plans.kv_plan import KvPlan
from tt_impl.plans.staging_plan import StagingPlan

HOST_LINK_BYTES_PER_SECOND = (25e9, 60e9)
"""What a host link moves: from a busy x16 PCIe 4.0 to an idle 5.0 (guesses from the links' 31.5 and 63 GB/s, none measured)."""

CROWDED_FRACTION = 0.5
"""Share of a layer's experts that a step may be expected to touch. Beyond it streaming moves most of the model at every
step, and slots hold little that the next step can use: place the experts on more cards instead."""

SCRATCH_BYTES = 256 << 20
"""Kept free for activations, logits in fp32 (512 kB a sequence) and traces; a guess until silicon shows the peak."""


@dataclass(frozen=True)
class StreamingPlan:
    """Bytes of device memory and of traffic.

    Attributes:
        slots_per_layer: experts of one layer held as fp8.
        memos: of all layers' slots, those whose expert is held as a copy for compute too.
        expert_bytes, copy_bytes: of one expert's elements: as fp8 with its grids, and dequantized. What transfers move.
        slot_bytes, memo_bytes: of DRAM that one takes: in pages and tiles over all banks, each taking as much as the fullest.
        spare_bytes: of the DRAM that neither takes.
        host_bytes: the host tier: every routed expert's fp8 bytes and grids, and the shadows of all slots.
        step_experts: experts that one step fills at most: top-k of every layer, of every sequence, at most all of them.
        step_bytes: of their fills. As many come back for verification, and `copy_bytes` of each go up for compute.
        touched_fraction: share of a layer's experts that a step is expected to touch, if sequences choose evenly and
            independently: 1 - (1 - k / experts) ^ sequences.
    """

    slots_per_layer: int
    memos: int
    expert_bytes: int
    copy_bytes: int
    slot_bytes: int
    memo_bytes: int
    spare_bytes: int
    host_bytes: int
    step_experts: int
    step_bytes: int
    touched_fraction: float

    def fill_milliseconds(self, bytes_per_second: float) -> float:
        """Of one step that fills as much as it can, over a host link of that speed; verification and memos not included."""
        return self.step_bytes / bytes_per_second * 1e3


def expert_bytes(config: Kolibri1Config) -> int:
    """Of all routed experts as slots hold them: fp8 and grids."""
    return config.num_hidden_layers * config.num_experts * ExpertLayout.of(config).nbytes


def touched_fraction(config: Kolibri1Config, sequences: int) -> float:
    """Expected share of a layer's experts that a step of so many sequences touches."""
    return 1.0 - (1.0 - config.num_experts_per_tok / config.num_experts) ** sequences


def plan_streaming(
    config: Kolibri1Config, staging: StagingPlan, kv: KvPlan, activation: DType, dram_bytes: int
) -> StreamingPlan:
    """Split what residents and KV cache leave.

    Raises:
        PlanError: residents and KV cache do not fit; experts must stream and a step of so many sequences is expected to touch
            more than `CROWDED_FRACTION` of them; or fewer slots are left than one step pins.
    """
    fraction = touched_fraction(config, kv.sequences)
    layers, layout = config.num_hidden_layers, ExpertLayout.of(config)
    slot, memo = layout.slot_bytes, layout.memo_bytes(activation)
    held = staging.device_bytes + kv.device_bytes + SCRATCH_BYTES
    pinned = min(config.num_experts_per_tok * kv.sequences, config.num_experts)
    left = room = dram_bytes - held
    slots = min(config.num_experts, max(pinned, room // (layers * (slot + memo))))
    left -= layers * slots * slot
    memos = min(layers * slots, left // memo)
    left -= memos * memo
    more = min(config.num_experts - slots, left // (layers * slot)) if memos == layers * slots else 0
    slots, left = slots + more, left - more * layers * slot
    streams = slots < config.num_experts or layers * slots * slot > room
    if room >= 0 and streams and fraction > CROWDED_FRACTION:
        raise PlanError(
            f"streaming for {kv.sequences} sequences: a step is expected to touch {fraction:.0%} of a layer's experts, above "
            f"{CROWDED_FRACTION:.0%}; decode fewer at once, or place the experts on more cards"
        )
    require(
        f"one step of {kv.sequences} sequences beside residents and KV cache",
        held + layers * pinned * slot + pinned * memo,
        dram_bytes,
        "decode fewer sequences or shorter contexts, or place the model on more cards",
    )
    step_experts = layers * pinned
    return StreamingPlan(
        slots_per_layer=slots,
        memos=memos,
        expert_bytes=layout.nbytes,
        copy_bytes=activation.item_bytes * sum(math.prod(segment.shape) for segment in layout.segments),
        slot_bytes=slot,
        memo_bytes=memo,
        spare_bytes=left,
        host_bytes=expert_bytes(config) + layers * slots * layout.nbytes,
        step_experts=step_experts,
        step_bytes=step_experts * layout.nbytes,
        touched_fraction=fraction,
    )
