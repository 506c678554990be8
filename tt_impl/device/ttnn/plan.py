"""What a decoder holds on a card for the whole run, allocated for real and in full, and what is left for experts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from oracle.errors import DeviceFault
from oracle.kolibri1.config import Kolibri1Config
from tt_impl.device.protocol import Device, DType, Layout, Tensor
from tt_impl.experts.layout import ExpertLayout
from tt_impl.plans.kv_plan import cache_shape, layer_blocks
from tt_impl.plans.staging_plan import plan_staging
from tt_impl.settings import DecoderSettings, default_settings


@dataclass(frozen=True)
class Held:
    """One tensor that stays: as `Device.allocate_tensor_on_device` takes it."""

    label: str
    shape: tuple[int, ...]
    dtype: DType
    layout: Layout


@dataclass(frozen=True)
class MemoryAccepted:
    """Bytes of DRAM, summed over banks, each taking what the fullest takes.

    Attributes:
        tensors: residents, computing copies, RoPE tables and KV caches.
        taken_bytes: by them.
        experts: routed experts that there are.
        slots: how many of them then fit, `slot_bytes` each, with nothing left for dequantized copies.
        copies: how many dequantized ones fit instead.
        refusal: what the card said to the first slot too many; empty where all experts fit.
    """

    total_bytes: int
    tensors: int
    taken_bytes: int
    experts: int
    slots: int
    slot_bytes: int
    copies: int
    refusal: str


def residents(config: Kolibri1Config, settings: DecoderSettings) -> Iterator[Held]:
    """All that `staging.stage` and `PagedKvCache` allocate, in no particular order, by shapes alone."""
    dtype, context = settings.activation, settings.max_positions
    for operand in plan_staging(config, dtype, context, topk=settings.topk, users=settings.users).operands:
        yield Held(operand.name, operand.shape, operand.dtype, operand.layout)
    for layer in range(config.num_hidden_layers):
        blocks = settings.users * layer_blocks(config, layer, context=context, block_size=settings.block_size)
        cache = cache_shape(config, blocks, settings.block_size)
        for side in ("k", "v"):
            yield Held(f"layer{layer}.{side}_cache", cache, dtype, Layout.TILE)


def accept_memory(device: Device, config: Kolibri1Config) -> MemoryAccepted:
    """Allocate the residents, then slots for all experts or as many as fit, then copies instead; free everything.

    Raises:
        DeviceFault: `out-of-memory` where the residents alone do not fit.
    """
    settings = default_settings(config, DType.BFLOAT16)
    total = device.get_memory_view().total_bytes
    held = [_allocate(device, tensor) for tensor in residents(config, settings)]
    taken = device.get_memory_view().allocated_bytes
    slot = Held("slot", (ExpertLayout.of(config).nbytes,), DType.UINT8, Layout.ROW_MAJOR)
    experts = config.num_hidden_layers * config.num_experts
    slots, refusal = _fill(device, (slot,), experts)
    width, hidden = config.moe_intermediate_size, config.hidden_size
    copy = (
        Held("up_gate", (2 * width, hidden), settings.activation, Layout.TILE),
        Held("down", (hidden, width), settings.activation, Layout.TILE),
    )
    copies, _ = _fill(device, copy, experts)
    for tensor in held:
        device.deallocate(tensor)
    return MemoryAccepted(total, len(held), taken, experts, slots, slot.shape[0], copies, refusal)


def _fill(device: Device, one: tuple[Held, ...], wanted: int) -> tuple[int, str]:
    """How often all of `one` fits beside what is there, at most `wanted` times, and the refusal that ended it, if any."""
    held: list[Tensor] = []
    refusal = ""
    try:
        while len(held) < wanted * len(one):
            held.extend([_allocate(device, part) for part in one])
    except DeviceFault as fault:
        if fault.kind != "out-of-memory":
            raise
        refusal = str(fault)
    for tensor in held:
        device.deallocate(tensor)
    return len(held) // len(one), refusal


def _allocate(device: Device, held: Held) -> Tensor:
    return device.allocate_tensor_on_device(held.shape, held.dtype, held.layout, held.label)
