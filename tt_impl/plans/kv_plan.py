"""The KV cache's blocks: full layers hold the whole context, sliding layers what the window can still see."""

from __future__ import annotations

from dataclasses import dataclass

from oracle.errors import UsageError
from oracle.kolibri1.config import Kolibri1Config
from tt_impl.device.dram_bytes import dram_bytes
from tt_impl.device.protocol import TILE_SIDE, DType, Layout

MAX_CONTEXT = 4096
"""Positions of the longest sequence that the decoder is built for."""


@dataclass(frozen=True)
class KvPlan:
    """Blocks of `block_size` positions for each of `sequences`.

    Attributes:
        full_blocks, sliding_blocks: of one sequence in one layer.
        device_bytes: of DRAM that keys and values of all layers and sequences take; a block of 16 takes a tile of 32 rows.
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


def layer_blocks(config: Kolibri1Config, layer: int, *, context: int, block_size: int) -> int:
    """Blocks of one sequence in one layer."""
    full = -(-context // block_size)
    return min(full, sliding_blocks(config.sliding_window, block_size)) if config.is_sliding(layer) else full


def cache_shape(config: Kolibri1Config, blocks: int, block_size: int) -> tuple[int, int, int, int]:
    """Of the keys, and of the values, in `blocks` blocks of one layer."""
    return (blocks, config.num_key_value_heads, block_size, config.head_dim)


def longest_context(config: Kolibri1Config) -> int:
    """Positions that the decoder takes of a sequence: the checkpoint's, in whole tiles, at most `MAX_CONTEXT`."""
    return max(min(config.max_position_embeddings, MAX_CONTEXT) // TILE_SIDE, 1) * TILE_SIDE


def plan_kv(config: Kolibri1Config, activation: DType, *, sequences: int, context: int, block_size: int) -> KvPlan:
    """Count the blocks, and the bytes as `kv_cache.PagedKvCache` allocates them.

    Raises:
        UsageError: no sequence, or a context outside 1 to `longest_context`.
    """
    if sequences < 1:
        raise UsageError(f"a plan for {sequences} sequences; ask for 1 or more")
    longest = longest_context(config)
    if not 1 <= context <= longest:
        raise UsageError(f"a context of {context} positions; the decoder takes 1 to {longest} of this checkpoint's")
    full = -(-context // block_size)
    sliding = min(full, sliding_blocks(config.sliding_window, block_size))
    total = 0
    for layer in range(config.num_hidden_layers):
        blocks = sequences * layer_blocks(config, layer, context=context, block_size=block_size)
        total += 2 * dram_bytes(cache_shape(config, blocks, block_size), activation, Layout.TILE)
    return KvPlan(sequences, context, block_size, full, sliding, total)
