"""The weighted sums of routed experts' outputs: fp32, each token's over its own experts in its own routing order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tt_impl.device.protocol import Device, DType, Layout, Tensor
from tt_impl.experts.memo import upload
from tt_impl.lifetimes import Scratch
from tt_impl.router import Routing


def combine(
    device: Device,
    scratch: Scratch,
    outputs: Mapping[int, Tensor],
    routings: Sequence[Routing],
    x: Tensor,
    into: Tensor | None = None,
) -> Tensor:
    """[rows, hidden], rounded once to x's dtype; rows without a routing are zeros.

    One row takes its sum of the stacked outputs. Of several, each token's outputs are first picked from the stack by a product
    with ones and zeros, which is exact for numbers, in routing order; the sum then runs over all picked rows with zero weights
    for other tokens', which adds zeros before and behind its own terms and changes no bit of it (a sum of nothing but -0 gets
    the other sign).

    Args:
        scratch: what is on the way.
        outputs: of every expert that a routing names, [rows, hidden]; for one row in routing order. All numbers: one that is
            none would spread.
        routings: of the tokens that there are.
        x: the experts' input [rows, hidden].
        into: where the sum goes; None for a new tensor, which the caller frees.
    """
    rows, stacked = x.shape[0], scratch.own(device.concat_rows(list(outputs.values())))
    if rows > 1:
        pick = _picks(list(outputs), routings, rows).astype(x.dtype.host)
        picked = scratch.own(upload(device, "expert_picks", pick, x.dtype, Layout.TILE))
        stacked = scratch.own(device.matmul(picked, stacked, dtype=x.dtype))
    weights = np.zeros((rows, stacked.shape[0]), np.float32)
    first = 0
    for routing in routings:
        weights[routing.row, first : first + routing.weights.size] = routing.weights
        first += routing.weights.size
    held = scratch.own(upload(device, "expert_weights", weights, DType.FLOAT32, Layout.TILE))
    return device.matmul(held, stacked, dtype=x.dtype, output=into)


def _picks(experts: Sequence[int], routings: Sequence[Routing], rows: int) -> np.ndarray:
    """Ones and zeros [tokens x experts of each, experts x rows]: which row of which expert's output."""
    wanted = [(expert, routing.row) for routing in routings for expert in routing.experts.tolist()]
    picks = np.zeros((len(wanted), len(experts) * rows), np.float32)
    for at, (expert, row) in enumerate(wanted):
        picks[at, experts.index(expert) * rows + row] = 1
    return picks
