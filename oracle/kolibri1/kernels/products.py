"""Matrix products over stored weights: fp8 and bf16 bytes go in, float32 comes out, and nothing else is kept.

A *job* is one weight matrix with the tokens that use it. All jobs of a call share the threads: rows are cut into panels, and
each thread takes a run of panels of equal cost. A product of one token decodes the weights in registers; one of several tokens
decodes a panel once and multiplies from cache. Both add in the same order (`vector`), so the bits are the same.
"""

from __future__ import annotations

import numpy as np
from numba import get_num_threads, prange

from oracle.kolibri1.kernels.compiled import kernel
from oracle.kolibri1.kernels.vector import GROUP, dot_tile, unpack_row

JOB_FIELDS = (
    "fp8", "w", "w_stride", "scales", "scales_stride", "block_rows", "blocks", "groups",
    "rows", "x", "x_stride", "tokens", "out", "out_stride",
)  # fmt: skip
"""Columns of a job table, int64; addresses and strides in bytes. `fp8` is 1 for e4m3 with scales, 0 for bf16."""

PANEL = 16
"""Rows decoded at once: 16 rows of 6,144 inputs are 384 KiB, which a core's L2 cache holds."""

_DECODE_COST = 3
"""What decoding a weight costs beside one multiply-add, for sharing work between threads; measured, not critical."""

PARALLEL_COST = 20_000
"""Below this cost (some 0.1 ms) one thread does the work sooner than several can be woken."""

_dot_fp8 = dot_tile("fp8", 1, 1)
_dot_bf16 = dot_tile("bf16", 1, 1)
_dot = dot_tile("f32", 1, 1)
_dot_4x1 = dot_tile("f32", 4, 1)
_dot_4x3 = dot_tile("f32", 4, 3)
_unpack_fp8 = unpack_row("fp8")
_unpack_bf16 = unpack_row("bf16")


@kernel()
def _single(job, first, last):
    """Rows first to last of a job of one token."""
    fp8, w, w_stride, scales, scales_stride, block_rows, blocks, groups, _, x, _, _, out, _ = job
    for row in range(first, last):
        if fp8:
            scale = scales + row // block_rows * scales_stride
            _dot_fp8(w + row * w_stride, 0, scale, blocks, groups, x, 0, out + 4 * row, 0)
        else:
            _dot_bf16(w + row * w_stride, 0, 0, blocks, groups, x, 0, out + 4 * row, 0)


@kernel()
def multiply_panel(w, w_stride, rows, groups, x, x_stride, tokens, out, out_stride):
    """`rows` packed float32 rows at `w` times `tokens` packed inputs at `x`: row r of token t to out + t * out_stride + 4 r."""
    token = 0
    while token < tokens:
        step = 3 if tokens - token >= 3 else 1
        inputs, result = x + token * x_stride, out + token * out_stride
        row = 0
        while row + 4 <= rows:
            if step == 3:
                _dot_4x3(w + row * w_stride, w_stride, 0, 1, groups, inputs, x_stride, result + 4 * row, out_stride)
            else:
                _dot_4x1(w + row * w_stride, w_stride, 0, 1, groups, inputs, x_stride, result + 4 * row, out_stride)
            row += 4
        while row < rows:
            for t in range(step):
                _dot(w + row * w_stride, 0, 0, 1, groups, inputs + t * x_stride, 0, result + t * out_stride + 4 * row, 0)
            row += 1
        token += step


@kernel()
def _panel(job, first, last, panel):
    """Rows first to last of a job of several tokens; `panel` is float32 scratch [PANEL, K or more]."""
    fp8, w, w_stride, scales, scales_stride, block_rows, blocks, groups, _, x, x_stride, tokens, out, out_stride = job
    for row in range(first, last):
        to = panel.ctypes.data + (row - first) * panel.strides[0]
        if fp8:
            _unpack_fp8(w + row * w_stride, scales + row // block_rows * scales_stride, blocks, groups, to)
        else:
            _unpack_bf16(w + row * w_stride, 0, blocks, groups, to)
    result = out + 4 * first
    multiply_panel(panel.ctypes.data, panel.strides[0], last - first, blocks * groups, x, x_stride, tokens, result, out_stride)


@kernel()
def _cost(job):
    """Panels of a job, and the cost of one, in multiply-adds per row and lane group."""
    return (job[8] + PANEL - 1) // PANEL, job[6] * job[7] * (job[11] + _DECODE_COST)


@kernel()
def _share(jobs, begin, end, panel):
    """Every panel whose cost, all jobs laid end to end, begins in [begin, end)."""
    before = 0
    for job in jobs:
        panels, cost = _cost(job)
        first = max(0, (begin - before + cost - 1) // cost)
        last = min(panels, (end - before + cost - 1) // cost)
        before += panels * cost
        rows = job[8]
        if job[11] == 1:
            _single(job, first * PANEL, min(last * PANEL, rows))
        else:
            for p in range(first, last):
                _panel(job, p * PANEL, min((p + 1) * PANEL, rows), panel)


@kernel(parallel=True)
def _share_out(jobs, total, threads, panels):
    for thread in prange(threads):
        _share(jobs, total * thread // threads, total * (thread + 1) // threads, panels[thread])


def run_jobs(jobs: np.ndarray) -> None:
    """Do all jobs of a table int64 [J, 14] (`JOB_FIELDS`), on numba's current number of threads.

    The caller keeps alive what the addresses point at, and makes sure that K = blocks * groups * 32 and all sizes are true.
    """
    width = jobs[:, 6] * jobs[:, 7]
    total = int(((jobs[:, 8] + PANEL - 1) // PANEL * width * (jobs[:, 11] + _DECODE_COST)).sum())
    several = width[jobs[:, 11] > 1]
    scratch = (PANEL, GROUP * int(several.max()) if several.size else 0)
    threads = get_num_threads()
    if total < PARALLEL_COST or threads == 1:
        _share(jobs, 0, total, np.empty(scratch, np.float32))
    else:
        _share_out(jobs, total, threads, np.empty((threads, *scratch), np.float32))
