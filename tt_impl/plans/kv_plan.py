"""The KV cache's blocks: full layers hold the whole context, sliding layers what the window can still see."""

from __future__ import annotations

from dataclasses import dataclass

from oracle.errors import UsageError
from oracle.kolibri1.config import Kolibri1Config
from tt_impl.device.protocol import DType

MAX_CONTEXT = 4096
"""Positions of the longest sequence that the decoder is built for."""


@dataclass(frozen=True)
class KvPlan:
    """Blocks of `block_size` positions for each of `sequences`.

    Attributes:
        full_blocks, sliding_blocks: of one sequence in one layer.
        device_bytes: keys and values of all layers and sequences.
    """

    sequences: int
    context: int
    block_size: int
    full_blocks: int
    sliding_blocks: int
    device_bytes: int


def sliding_blocks(window: int, block_size: int) -> int:
    """Blocks that hold a window wherever it begins: its positions may start at the last of one block."""
    return -(-(window - 1) // block_size) + 1


def plan_kv(config: Kolibri1Config, activation: DType, *, sequences: int, context: int, block_size: int) -> KvPlan:
    """Count the blocks.

    Raises:
        UsageError: no sequence, or a context outside 1 to `MAX_CONTEXT`.
    """
    if sequences < 1:
        raise UsageError(f"a plan for {sequences} sequences; ask for 1 or more")
    if not 1 <= context <= MAX_CONTEXT:
        raise UsageError(f"a context of {context} positions; the decoder takes 1 to {MAX_CONTEXT}")
    full = -(-context // block_size)
    sliding = min(full, sliding_blocks(config.sliding_window, block_size))
    of_layer = [sliding if config.is_sliding(layer) else full for layer in range(config.num_hidden_layers)]
    position = 2 * config.num_key_value_heads * config.head_dim * activation.item_bytes
    return KvPlan(sequences, context, block_size, full, sliding, sequences * sum(of_layer) * block_size * position)
