"""The whole model resident on a mesh: expert parallel, everything else on every card.

A card holds all residents and the KV cache, and of every layer its share of the routed experts, by id: as fp8 slots that are
filled once, and dequantized copies of as many of them as fit. Nothing streams. Traffic between cards is not planned.
"""

from __future__ import annotations

from dataclasses import dataclass

from oracle.kolibri1.config import Kolibri1Config
from tt_impl.plans.budget import require
from tt_impl.plans.streaming_plan import SCRATCH_BYTES

MOST_CHIPS = 32


@dataclass(frozen=True)
class MeshPlan:
    """One card of the mesh, the fullest.

    Attributes:
        experts_per_layer: routed experts of one layer on it.
        needed_bytes: residents, KV cache, scratch and its experts as fp8.
        deficit_bytes: by which that exceeds the card's DRAM; 0 where it fits.
        copied_experts: of `experts_per_layer`, those whose dequantized copies fit beside.
    """

    chips: int
    experts_per_layer: int
    needed_bytes: int
    deficit_bytes: int
    copied_experts: int

    @property
    def fits(self) -> bool:
        return self.deficit_bytes == 0


def plan_mesh(
    config: Kolibri1Config, held_bytes: int, slot_bytes: int, memo_bytes: int, dram_bytes: int, chips: int
) -> MeshPlan:
    """Place the whole model on `chips` cards.

    Args:
        held_bytes: residents and KV cache of one card, padded.
        slot_bytes, memo_bytes: of DRAM that one expert takes, as fp8 and dequantized.
    """
    share = -(-config.num_experts // chips)
    layers = config.num_hidden_layers
    needed = held_bytes + SCRATCH_BYTES + layers * share * slot_bytes
    left = dram_bytes - needed
    copied = 0 if left < 0 else min(share, left // (layers * memo_bytes))
    return MeshPlan(chips, share, needed, max(0, -left), copied)


def require_fit(plan: MeshPlan, dram_bytes: int) -> None:
    """Raise `PlanError` for a mesh that cannot hold the model, naming the deficit of its fullest card."""
    cards = "1 card" if plan.chips == 1 else f"{plan.chips} cards"
    advice = "stream the experts, or take more cards"
    require(f"the whole model on {cards}, {plan.experts_per_layer} experts a layer each", plan.needed_bytes, dram_bytes, advice)
