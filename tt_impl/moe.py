"""The mixture of experts of one layer: router, routed experts, shared expert, and how they are combined."""

from __future__ import annotations

import numpy as np

from oracle.kolibri1.config import Kolibri1Config
from tt_impl.device.protocol import Device, DType, Layout, Tensor
from tt_impl.expert_pool import ExpertPool
from tt_impl.lifetimes import Scratch
from tt_impl.memo import FeedForwardWeights, upload
from tt_impl.phases import phase
from tt_impl.router import Routing, route
from tt_impl.staging import LayerWeights
from tt_impl.stats import StepStats


class MixtureOfExperts:
    """routed(x) + shared(x) (facts section 5).

    Router logits are computed in fp32 from the activation and read back unrounded. The routed sum is fp32 over the experts'
    rounded outputs, in routing order, and rounded once to the activation dtype; the shared expert's output, rounded, is
    then added, and the sum rounded.
    """

    def __init__(
        self, device: Device, config: Kolibri1Config, layer: int, weights: LayerWeights, pool: ExpertPool, stats: StepStats
    ) -> None:
        self._device = device
        self._count = config.num_experts_per_tok
        self._layer = layer
        self._weights = weights
        self._pool = pool
        self._stats = stats

    def forward(self, scratch: Scratch, x: Tensor) -> tuple[Tensor, Routing]:
        """x [1, hidden], normalized -> [1, hidden], and where the token went."""
        device = self._device
        routing = self._route(scratch, x)
        experts = routing.experts.tolist()
        self._pool.make_resident(self._layer, experts)
        outputs = [scratch.own(self._feed_forward(x, self._pool.use(self._layer, expert))) for expert in experts]
        self._pool.release(self._layer)
        weights = scratch.own(upload(device, "expert_weights", routing.weights[None], DType.FLOAT32, Layout.TILE))
        stacked = scratch.own(device.concat_rows(outputs))
        routed = scratch.own(device.matmul(weights, stacked, dtype=x.dtype))
        shared = scratch.own(self._feed_forward(x, self._weights.shared))
        return scratch.own(device.add(routed, shared)), routing

    @phase("router")
    def _route(self, scratch: Scratch, x: Tensor) -> Routing:
        logits = scratch.own(self._device.linear(x, self._weights.router, dtype=DType.FLOAT32))
        read = self._device.copy_device_to_host_tensor(logits, blocking=True)
        self._stats.round_trips += 1
        return route(np.asarray(read.array()[0], np.float32), self._weights.router_bias.values(self._stats), self._count)

    def _feed_forward(self, x: Tensor, weights: FeedForwardWeights) -> Tensor:
        """down(silu(gate x) * (up x)), [1, hidden]; the caller frees it."""
        with Scratch(self._device) as scratch:
            hidden = scratch.own(self._device.swiglu(scratch.own(self._device.linear(x, weights.up_gate))))
            return self._device.linear(hidden, weights.down)
