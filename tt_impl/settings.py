"""How a decoder is set up: its numeric arm, its levers, its budgets, its pages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from oracle.errors import UsageError
from oracle.kolibri1.config import Kolibri1Config
from tt_impl.device.protocol import DType
from tt_impl.experts.layout import ExpertLayout
from tt_impl.plans.kv_plan import longest_context

READ_BACK_LIMIT = 32
"""Read-backs of fills that may be outstanding at once. A declared number, not a measured one: what a card's queue takes is
not known. A step of the release asks for 6 a layer, so one token alone never reaches it."""

BLOCKS = ("32", "16")
"""Positions of a KV block, the default first. It is our choice, not the checkpoint's: ttnn takes both, no silicon showed 16."""

MAX_USERS = 8
"""Sequences of one step. Their rows share a tile of 32; what bounds them is the experts that they touch together."""


@dataclass(frozen=True)
class DecoderSettings:
    """The levers of one arm; what each does is told in `arms.LEVERS`.

    Attributes:
        activation: BFLOAT16, or FLOAT32 for the `exact` arm; activations, KV cache and every operand of a matmul have it.
        slots_per_layer: experts of one layer that device memory holds as fp8.
        memo_bytes: device bytes for dequantized experts, over all layers.
        max_positions: of a sequence, and rows of the RoPE tables; a multiple of a KV block, at most `longest_context`.
        users: sequences that a step decodes side by side, 1 to `MAX_USERS`.
        page_seed: of the permutation that places logical blocks.
        read_back_limit: read-backs of fills outstanding at once; where one more would be, the drain comes earlier.
        drain: wait for read-backs once per layer, or behind each fill.
        dequant: from the verified shadow, or from the slot, read again.
        verify: every fill, or only the first one of each expert. The latter **no longer sees a later fill of that expert
            that lands wrong**: it is used as it is.
        bias: router biases kept until the device's tensor changes, or fetched each step; moot where the device adds them.
        topk: who chooses a token's experts. The device's choice is **no longer held to the rule that of equal scores the
            lowest id wins**.
        policy: who is evicted, by the names of `policy.POLICIES`.
        block: positions of a KV block.
        dispatch: each op of a step enqueued anew, or the stretches between the host's waits captured and replayed.
    """

    activation: DType
    slots_per_layer: int
    memo_bytes: int
    max_positions: int
    users: int = 1
    page_seed: int = 20
    read_back_limit: int = READ_BACK_LIMIT
    drain: Literal["layer", "fill"] = "layer"
    dequant: Literal["shadow", "reread"] = "shadow"
    verify: Literal["always", "first"] = "always"
    bias: Literal["cached", "fetched"] = "cached"
    policy: Literal["hotness", "lru"] = "hotness"
    topk: Literal["host", "device"] = "host"
    block: Literal["32", "16"] = "32"
    dispatch: Literal["eager", "captured"] = "eager"

    @property
    def block_size(self) -> int:
        """`block` as a number."""
        return int(self.block)


def default_settings(config: Kolibri1Config, activation: DType) -> DecoderSettings:
    """Slots for seven eighths of the experts (14 of the mini's 16), so that a varied text must evict; a memo for each."""
    slots = max(config.num_experts_per_tok, config.num_experts * 7 // 8)
    memos = slots * config.num_hidden_layers * ExpertLayout.of(config).memo_bytes(activation)
    return DecoderSettings(activation, slots, memos, longest_context(config))


def check_settings(settings: DecoderSettings, config: Kolibri1Config) -> None:
    """Refuse settings that cannot work.

    Raises:
        UsageError: too few or too many slots, no room for a memo, a limit of no read-back, no users or too many, a block of
            another size than 32 and 16, or positions that do not divide into blocks or are too many.
    """
    if not config.num_experts_per_tok <= settings.slots_per_layer <= config.num_experts:
        raise UsageError(
            f"slots_per_layer is {settings.slots_per_layer}; a step pins {config.num_experts_per_tok} experts of a layer's "
            f"{config.num_experts}, so use a number between the two"
        )
    if settings.memo_bytes < (one := ExpertLayout.of(config).memo_bytes(settings.activation)):
        raise UsageError(f"memo_bytes is {settings.memo_bytes}; compute needs one dequantized expert, {one} bytes")
    if settings.read_back_limit < 1:
        raise UsageError(f"read_back_limit is {settings.read_back_limit}; a fill that is verified needs at least 1")
    if not 1 <= settings.users <= MAX_USERS:
        raise UsageError(f"users is {settings.users}; a step decodes 1 to {MAX_USERS} sequences")
    if settings.block not in BLOCKS:
        raise UsageError(f"block is {settings.block!r}; a KV block has {' or '.join(BLOCKS)} positions")
    longest = longest_context(config)
    if settings.max_positions % settings.block_size or not 0 < settings.max_positions <= longest:
        raise UsageError(
            f"max_positions is {settings.max_positions}; use a multiple of the {settings.block_size} positions of a KV block, "
            f"at most {longest}"
        )
