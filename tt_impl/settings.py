"""How a decoder is set up: its numeric arm, its budgets, its pages."""

from __future__ import annotations

from dataclasses import dataclass

from oracle.errors import UsageError
from oracle.kolibri1.config import Kolibri1Config
from tt_impl.device.protocol import TILE_SIDE, DType


@dataclass(frozen=True)
class DecoderSettings:
    """The levers of one arm.

    Attributes:
        activation: BFLOAT16, or FLOAT32 for the `exact` arm; activations, KV cache and every operand of a matmul have it.
        slots_per_layer: experts of one layer that device memory holds as fp8.
        memo_experts: dequantized experts kept on the device, over all layers.
        max_positions: length of the KV cache and the RoPE tables; a multiple of `block_size`.
        block_size: positions per KV block; a multiple of 32.
        page_seed: of the permutation that places logical blocks.
    """

    activation: DType
    slots_per_layer: int
    memo_experts: int
    max_positions: int
    block_size: int = TILE_SIDE
    page_seed: int = 20


def default_settings(config: Kolibri1Config, activation: DType) -> DecoderSettings:
    """Slots for seven eighths of the experts (14 of the mini's 16), so that a varied text must evict; a memo for each."""
    slots = max(config.num_experts_per_tok, config.num_experts * 7 // 8)
    positions = min(config.max_position_embeddings, 1024) // TILE_SIDE * TILE_SIDE
    return DecoderSettings(activation, slots, slots * config.num_hidden_layers, max(positions, TILE_SIDE))


def check_settings(settings: DecoderSettings, config: Kolibri1Config) -> None:
    """Refuse settings that cannot work.

    Raises:
        UsageError: too few or too many slots, no memo, or positions that do not divide into blocks.
    """
    if not config.num_experts_per_tok <= settings.slots_per_layer <= config.num_experts:
        raise UsageError(
            f"slots_per_layer is {settings.slots_per_layer}; a step pins {config.num_experts_per_tok} experts of a layer's "
            f"{config.num_experts}, so use a number between the two"
        )
    if settings.memo_experts < 1:
        raise UsageError(f"memo_experts is {settings.memo_experts}; compute needs at least 1")
    if settings.block_size % TILE_SIDE or settings.max_positions % settings.block_size:
        raise UsageError(
            f"block_size {settings.block_size} must be a multiple of {TILE_SIDE}, and max_positions "
            f"{settings.max_positions} a multiple of it"
        )
