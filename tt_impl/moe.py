"""The mixture of experts of one layer: router, routed experts, shared expert, and how they are combined."""

from __future__ import annotations

from collections.abc import Sequence

from oracle.kolibri1.config import Kolibri1Config
from tt_impl.combine import combine
from tt_impl.device.protocol import Device, DType, Tensor
from tt_impl.experts.memo import FeedForwardWeights
from tt_impl.experts.pool import ExpertPool
from tt_impl.lifetimes import Scratch
from tt_impl.phases import phase
from tt_impl.router import Routing, Scored
from tt_impl.staging import LayerWeights
from tt_impl.stats import StepStats


class MixtureOfExperts:
    """routed(x) + shared(x) (facts section 5).

    Router logits are computed in fp32 from the activation and never rounded. The routed sum is fp32 over the experts'
    rounded outputs, in routing order, and rounded once to the activation dtype; the shared expert's output, rounded, is
    then added, and the sum rounded. Of several users each has its own experts, in its own order: an expert that any of them
    needs computes all rows once, and each user's sum is the one that it has alone, bit for bit (`combine`).
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

    def score(self, passing: Scratch, later: Scratch, x: Tensor) -> Scored:
        """What the host chooses the experts of x [rows, hidden], normalized, by; it lives as long as `later`."""
        with phase("router"):
            logits = later.own(self._device.linear(x, self._weights.router, dtype=DType.FLOAT32))
            return self._weights.selection.score(passing, later, logits, self._count)

    def routed(
        self, scratch: Scratch, x: Tensor, scored: Scored, users: Sequence[int], into: Tensor | None
    ) -> tuple[Tensor, list[Routing]]:
        """The routed experts' sum [rows, hidden], in `into` if that is given, and where each token of `users` went; other rows
        mean nothing."""
        device, pool = self._device, self._pool
        with phase("router"):
            routings = self._weights.selection.choose(scored, self._count, self._stats, users)
        asked = list(dict.fromkeys(expert for routing in routings for expert in routing.experts.tolist()))
        outputs: dict[int, Tensor] = {}
        with Scratch(device) as experts:
            for group in pool.groups(self._layer, asked):
                pool.make_resident(self._layer, group)
                for expert in group:
                    with Scratch(device) as passing:
                        outputs[expert] = experts.own(self._feed_forward(passing, x, pool.use(self._layer, expert)))
                pool.release(self._layer)
            routed = combine(device, experts, outputs, routings, x, into)
        return routed if into is not None else scratch.own(routed), routings

    def with_shared(self, scratch: Scratch, x: Tensor, routed: Tensor) -> Tensor:
        """`routed` and the shared expert's output for x."""
        shared = scratch.own(self._feed_forward(scratch, x, self._weights.shared))
        return scratch.own(self._device.add(routed, shared))

    def _feed_forward(self, scratch: Scratch, x: Tensor, weights: FeedForwardWeights) -> Tensor:
        """down(silu(gate x) * (up x)), [rows, hidden]; the caller frees it, and `scratch` what is on the way."""
        hidden = scratch.own(self._device.swiglu(scratch.own(self._device.linear(x, weights.up_gate))))
        return self._device.linear(hidden, weights.down)
