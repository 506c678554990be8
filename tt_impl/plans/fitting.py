"""Settings that fit a card: as many slots and memos as asked for, or as the plan for its DRAM has room for."""

from __future__ import annotations

from dataclasses import replace

from oracle.kolibri1.config import Kolibri1Config
from tt_impl.experts.layout import ExpertLayout
from tt_impl.plans.kv_plan import plan_kv
from tt_impl.plans.staging_plan import plan_staging
from tt_impl.plans.streaming_plan import SCRATCH_BYTES, plan_streaming
from tt_impl.settings import DecoderSettings


def fitted(settings: DecoderSettings, config: Kolibri1Config, dram_bytes: int) -> DecoderSettings:
    """`settings`, with slots and memos by the plan for `dram_bytes` where what they ask for does not fit.

    Raises:
        PlanError: no plan fits either; says what is short, and by how much.
    """
    dtype, layout = settings.activation, ExpertLayout.of(config)
    staging = plan_staging(config, dtype, settings.max_positions, topk=settings.topk, users=settings.users)
    kv = plan_kv(config, dtype, sequences=settings.users, context=settings.max_positions, block_size=settings.block_size)
    slots = config.num_hidden_layers * settings.slots_per_layer * layout.slot_bytes
    if staging.device_bytes + kv.device_bytes + slots + settings.memo_bytes + SCRATCH_BYTES <= dram_bytes:
        return settings
    plan = plan_streaming(config, staging, kv, dtype, dram_bytes)
    return replace(
        settings,
        slots_per_layer=min(settings.slots_per_layer, plan.slots_per_layer),
        memo_bytes=min(settings.memo_bytes, plan.memos * plan.memo_bytes),
    )
