"""What an op moves and computes, reckoned from the shapes that the host knows when it enqueues it.

An op reads its operands from DRAM once, whole tiles, and writes its output. Of an operand that it only looks into, it moves
what it could touch: of an embedding table the rows asked for, of a paged cache the rows written, or for attention every
block that the page table names (positions are the device's to know, so an early step is charged like the last).
Multiplications and additions count as one flop each, over whole tiles, as the matrix engine computes them; only products of
matrices and attention have any, the rest is bound by memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

from tt_impl.device.protocol import Layout
from tt_impl.device.sim.layout import padded_shape
from tt_impl.device.sim.tensor import SimTensor

_ATTENTION = "paged_scaled_dot_product_attention_decode"
LOOKS_INTO = frozenset({"embedding", "paged_update_cache", "paged_fill_cache", _ATTENTION})
WITH_FLOPS = frozenset({"linear", "matmul", _ATTENTION})


def dram_bytes(op: str, operands: Sequence[SimTensor], written: int) -> int:
    """Bytes that an op of `LOOKS_INTO` over `operands`, in the protocol's order, moves.

    Its TILE output takes `written` of them (0: in place). What any other op moves is the sum of its operands and its output.
    """
    if op == "embedding":
        return operands[0].buffer.nbytes + 2 * written
    if op != _ATTENTION:
        return sum(x.buffer.nbytes for x in operands[1:]) + operands[1].buffer.nbytes
    q, k_cache, v_cache, page_table, positions = operands
    named = math.prod(page_table.shape)
    pages = sum(cache.buffer.nbytes // cache.shape[0] * named for cache in (k_cache, v_cache))
    return pages + q.buffer.nbytes + page_table.buffer.nbytes + positions.buffer.nbytes + written


def flops(op: str, operands: Sequence[SimTensor], shape: tuple[int, ...]) -> int:
    """Of one op of `WITH_FLOPS` with an output of `shape`."""
    first = operands[0].shape
    if op != _ATTENTION:
        return _matrix_flops(first[-1], shape)
    heads, width = padded_shape(first, Layout.TILE)[-2:]
    return 2 * 2 * heads * width * math.prod(operands[3].shape) * operands[1].shape[2]


@lru_cache(maxsize=4096)
def _matrix_flops(inner: int, shape: tuple[int, ...]) -> int:
    return 2 * padded_shape((1, inner), Layout.TILE)[-1] * math.prod(padded_shape(shape, Layout.TILE))
