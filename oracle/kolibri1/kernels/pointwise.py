"""Norms, RoPE angles, and the functions with an exponential: each value from its own inputs, by one scalar rule.

A vector library may round the tail of an array otherwise than its body, and then a value depends on where it lies. So
exponentials, sines and cosines are taken in float64, one by one, and rounded once to float32.
"""

from __future__ import annotations

import math

import numpy as np

from oracle.kolibri1.kernels.compiled import kernel
from oracle.kolibri1.kernels.vector import GROUP, dot_tile

_dot = dot_tile("f32", 1, 1)


@kernel()
def rms_norm(x, weight, eps, out):
    """RMSNorm of each row: `weight * (x / sqrt(mean(x^2) + eps))`. x and out float32 [N, H] contiguous, weight float32 [H]."""
    rows, width = x.shape
    squares = np.empty(1, np.float32)
    for row in range(rows):
        address = x[row].ctypes.data
        _dot(address, 0, 0, 1, width // GROUP, address, 0, squares.ctypes.data, 0)
        inverse = np.float32(1) / np.sqrt(squares[0] / np.float32(width) + eps)
        for i in range(width):
            out[row, i] = weight[i] * (x[row, i] * inverse)


@kernel()
def _sigmoid(x):
    return np.float32(1) / (np.float32(1) + np.float32(math.exp(-np.float64(x))))


@kernel()
def sigmoid(x, out):
    """float32 [N] to [N]."""
    for i in range(len(x)):
        out[i] = _sigmoid(x[i])


@kernel()
def swiglu(gate, up, out):
    """`silu(gate) * up`, float32 [N, I] each; `out` packed for the next product."""
    rows, width = gate.shape
    for row in range(rows):
        for i in range(width):
            g = gate[row, i]
            silu = g / (np.float32(1) + np.float32(math.exp(-np.float64(g))))
            out[row, i // GROUP * GROUP + (i % 2) * (GROUP // 2) + i % GROUP // 2] = silu * up[row, i]


@kernel()
def rope_angles(positions, inverse_frequencies, cos, sin):
    """float32 cos and sin [T, D / 2] of the float32 products position * frequency; positions int64 [T]."""
    for t in range(len(positions)):
        for j in range(len(inverse_frequencies)):
            angle = np.float64(np.float32(positions[t]) * inverse_frequencies[j])
            cos[t, j] = np.float32(math.cos(angle))
            sin[t, j] = np.float32(math.sin(angle))
