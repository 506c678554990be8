"""The plans of this decoder for one P150 and for meshes of them, as `kolibri-oracle doctor --plan` shows them."""

from __future__ import annotations

from oracle.kolibri1.config import Kolibri1Config
from oracle.planning import Plan, PlannedTensor, PlanRequest, PlanSection
from tt_impl.device.protocol import TILE_SIDE, DType
from tt_impl.plans.budget import P150_DRAM_BYTES, PlanError
from tt_impl.plans.kv_plan import KvPlan, longest_context, plan_kv
from tt_impl.plans.mesh_plan import MOST_CHIPS, MeshPlan, plan_mesh, require_fit
from tt_impl.plans.staging_plan import StagingPlan, plan_staging
from tt_impl.plans.streaming_plan import (
    HOST_LINK_BYTES_PER_SECOND,
    StreamingPlan,
    expert_bytes,
    plan_streaming,
)

BYTES = "bytes"


class P150Planner:
    """See `oracle.planning.Planner`."""

    def plan(self, config: Kolibri1Config, request: PlanRequest) -> Plan:
        """Staging, KV cache, streaming on one card, and the whole model on meshes; in bf16, with blocks of 32."""
        dtype = DType.BFLOAT16
        context = longest_context(config) if request.context is None else request.context
        staging = plan_staging(config, dtype, context)
        kv = plan_kv(config, dtype, sequences=request.sequences, context=context, block_size=TILE_SIDE)
        streaming = plan_streaming(config, staging, kv, dtype, P150_DRAM_BYTES)
        held = staging.device_bytes + kv.device_bytes
        meshes = [
            plan_mesh(config, held, streaming.slot_bytes, streaming.memo_bytes, P150_DRAM_BYTES, chips)
            for chips in range(1, MOST_CHIPS + 1)
        ]
        refused = []
        try:
            require_fit(meshes[0], P150_DRAM_BYTES)
        except PlanError as error:
            refused.append(str(error))
        sections = (_staging(staging), _kv(kv), _experts(config, streaming), _streaming(streaming), _meshes(meshes))
        return Plan(sections, tuple(refused), _tensors(staging))


def _tensors(plan: StagingPlan) -> tuple[PlannedTensor, ...]:
    return tuple(PlannedTensor(o.name, o.shape, o.dtype.label, o.layout.value, o.nbytes, o.device_bytes) for o in plan.operands)


def _staging(plan: StagingPlan) -> PlanSection:
    kinds = {"fp8": "fp8 weights, verbatim", "grid": "fp32 scale grids", "plain": "bf16 tensors", "bias": "fp32 router biases"}
    return PlanSection(
        "resident",
        (
            *((f"{what} ({plan.count(kind)})", plan.nbytes(kind), BYTES) for kind, what in kinds.items()),
            (f"operands of the checkpoint ({plan.count(*kinds)})", plan.resident_bytes, BYTES),
            ("dequantized copies for compute", plan.computing_bytes, BYTES),
            ("RoPE tables", plan.nbytes("table"), BYTES),
            ("DRAM for all of it, tiles padded", plan.device_bytes, BYTES),
        ),
    )


def _kv(plan: KvPlan) -> PlanSection:
    return PlanSection(
        f"KV cache, {plan.sequences} x {plan.context} positions in blocks of {plan.block_size}",
        (
            ("blocks of a full layer, a sequence", plan.full_blocks, ""),
            ("blocks of a sliding layer, a sequence", plan.sliding_blocks, ""),
            ("DRAM", plan.device_bytes, BYTES),
        ),
    )


def _experts(config: Kolibri1Config, plan: StreamingPlan) -> PlanSection:
    return PlanSection(
        "routed experts",
        (
            ("one expert as fp8 with its grids", plan.expert_bytes, BYTES),
            ("one expert dequantized", plan.copy_bytes, BYTES),
            ("all of them as fp8 with grids", expert_bytes(config), BYTES),
        ),
    )


def _streaming(plan: StreamingPlan) -> PlanSection:
    times = (
        (f"fills alone at {speed / 1e9:.0f} GB/s (modelled)", round(plan.fill_milliseconds(speed), 2), "ms")
        for speed in HOST_LINK_BYTES_PER_SECOND
    )
    return PlanSection(
        f"streaming on one P150 of {P150_DRAM_BYTES:,} bytes",
        (
            ("slots a layer", plan.slots_per_layer, ""),
            ("memos, over all layers", plan.memos, ""),
            ("DRAM of a slot, over all banks", plan.slot_bytes, BYTES),
            ("DRAM of a memo, over all banks", plan.memo_bytes, BYTES),
            ("DRAM to spare", plan.spare_bytes, BYTES),
            ("host memory: experts and shadows", plan.host_bytes, BYTES),
            ("experts filled in one step, at most", plan.step_experts, ""),
            ("fills of one step, at most; read back as many", plan.step_bytes, BYTES),
            *times,
            ("memos of one step, at most", plan.step_experts * plan.copy_bytes, BYTES),
            ("expected share of a layer's experts a step touches", round(plan.touched_fraction, 4), ""),
        ),
    )


def _meshes(meshes: list[MeshPlan]) -> PlanSection:
    rows = []
    for mesh in meshes:
        if mesh.fits:
            says = f"fits; {mesh.copied_experts} of {mesh.experts_per_layer} experts a layer with a copy for compute"
        else:
            says = f"{mesh.deficit_bytes:,} bytes short on the fullest card"
        rows.append((f"{mesh.chips} x P150, {mesh.experts_per_layer} experts a layer each", says, ""))
    return PlanSection("the whole model on a mesh, expert parallel", tuple(rows))


PLANNER = P150Planner()
"""The entry point's value."""
