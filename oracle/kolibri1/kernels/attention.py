"""Grouped-query attention over a KV cache, one (token, key/value head) at a time, in an order that only its window decides."""

from __future__ import annotations

import math

import numpy as np
from numba import get_num_threads, prange

from oracle.kolibri1.kernels.compiled import kernel
from oracle.kolibri1.kernels.products import multiply_panel
from oracle.kolibri1.kernels.vector import GROUP, LANES, mix_tile

SPAN = 128
"""Positions whose weighted values are summed before they are added to the total, so that rounding grows slowly."""

PARALLEL_WORK = 1_000_000
"""Multiply-adds below which one thread does the work sooner than several can be woken."""

_mix_3x4 = mix_tile(3, 4)
_mix_1x4 = mix_tile(1, 4)
_mix_1x1 = mix_tile(1, 1)


@kernel()
def _softmax(scores, scale):
    """In place, a vector of float32: softmax(scale * scores), the sum in float64 from first to last."""
    largest = np.float32(-np.inf)
    for j in range(len(scores)):
        scores[j] *= scale
        largest = max(largest, scores[j])
    total = 0.0
    for j in range(len(scores)):
        scores[j] = np.float32(math.exp(np.float64(scores[j] - largest)))
        total += np.float64(scores[j])
    for j in range(len(scores)):
        scores[j] = np.float32(np.float64(scores[j]) / total)


@kernel()
def _mix(probabilities, values, values_stride, out):
    """out [G, D] = probabilities [G, n] times the n vectors at address `values`, span by span."""
    heads, n = probabilities.shape
    width = out.shape[1]
    out[:] = 0
    for start in range(0, n, SPAN):
        length = min(SPAN, n - start)
        p = probabilities.ctypes.data + 4 * start
        v = values + start * values_stride
        head = 0
        while head < heads:
            step = 3 if heads - head >= 3 and width % (4 * LANES) == 0 else 1
            p_row, to = p + head * probabilities.strides[0], out.ctypes.data + head * out.strides[0]
            column = 0
            while column < width:
                if step == 3:
                    _mix_3x4(
                        p_row, probabilities.strides[0], v + 4 * column, values_stride, length, to + 4 * column, out.strides[0]
                    )
                    column += 4 * LANES
                elif width - column >= 4 * LANES:
                    _mix_1x4(p_row, 0, v + 4 * column, values_stride, length, to + 4 * column, 0)
                    column += 4 * LANES
                else:
                    _mix_1x1(p_row, 0, v + 4 * column, values_stride, length, to + 4 * column, 0)
                    column += LANES
            head += step


@kernel()
def _attend_head(q, keys, values, first, last, unit, out):
    """All query heads of one key/value head, for one token; `unit` counts (token, head)."""
    heads = len(keys)
    group, width = q.shape[1] // heads, q.shape[2]
    token, head = unit // heads, unit % heads
    start, n = first[token], last[token] - first[token] + 1
    scores = np.empty((group, n), np.float32)
    queries = q[token, head * group : (head + 1) * group]
    multiply_panel(
        keys[head, start:].ctypes.data,
        keys.strides[1],
        n,
        width // GROUP,
        queries.ctypes.data,
        q.strides[1],
        group,
        scores.ctypes.data,
        scores.strides[0],
    )
    for g in range(group):
        _softmax(scores[g], np.float32(1.0 / math.sqrt(width)))
    _mix(scores, values[head, start:].ctypes.data, values.strides[1], out[token, head * group : (head + 1) * group])


@kernel()
def _attend_serially(q, keys, values, first, last, out):
    for unit in range(len(q) * len(keys)):
        _attend_head(q, keys, values, first, last, unit, out)


@kernel(parallel=True)
def _attend_in_parallel(q, keys, values, first, last, out):
    for unit in prange(len(q) * len(keys)):
        _attend_head(q, keys, values, first, last, unit, out)


def attend(q: np.ndarray, keys: np.ndarray, values: np.ndarray, first: np.ndarray, last: np.ndarray, out: np.ndarray) -> None:
    """Softmax attention, on numba's current number of threads.

    Args:
        q: float32 [T, A, D], contiguous.
        keys, values: float32 [K, n, D], each head's positions contiguous; query head a reads key/value head a // (A / K).
        first, last: int64 [T], indices into n of the first and the last visible position of each token.
        out: float32 [T, A, D], contiguous, written.
    """
    work = q.shape[1] * q.shape[2] * int((last - first + 1).sum())
    run = _attend_serially if work < PARALLEL_WORK or get_num_threads() == 1 else _attend_in_parallel
    run(q, keys, values, first, last, out)
