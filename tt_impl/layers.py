"""One decoder layer: attention and mixture of experts, each between two norms, each added to the residual stream."""

from __future__ import annotations

from oracle.kolibri1.config import Kolibri1Config
from tt_impl.attention.kv_cache import PagedKvCache
from tt_impl.attention.rope import RopeTables
from tt_impl.attention.self_attention import Attention
from tt_impl.device.protocol import Device, Tensor
from tt_impl.experts.pool import ExpertPool
from tt_impl.lifetimes import Scratch
from tt_impl.moe import MixtureOfExperts
from tt_impl.router import Routing
from tt_impl.staging import Residents
from tt_impl.stats import StepStats


class DecoderLayer:
    """Layer `layer` over its resident weights and the routed experts of `pool`."""

    def __init__(
        self,
        device: Device,
        config: Kolibri1Config,
        layer: int,
        residents: Residents,
        pool: ExpertPool,
        stats: StepStats,
    ) -> None:
        self._device = device
        self._epsilon = config.rms_norm_eps
        self._weights = residents.layers[layer]
        self._attention = Attention(device, config, layer, self._weights)
        self._experts = MixtureOfExperts(device, config, layer, self._weights, pool, stats)

    def forward(self, hidden: Tensor, cache: PagedKvCache, rope: RopeTables) -> tuple[Tensor, list[Routing]]:
        """The residual stream [users, hidden] before the layer -> after its second addition; the caller frees both.
        Routings are of the users that take part, in their order.

        Args:
            rope: the rows of the cache's positions.
        """
        weights = self._weights
        with Scratch(self._device) as scratch:
            x = self._norm(scratch, hidden, weights.input_layernorm)
            attended = self._norm(scratch, self._attention.forward(scratch, x, cache, rope), weights.post_attn_norm)
            middle = scratch.own(self._device.add(hidden, attended))
            x = self._norm(scratch, middle, weights.post_attention_layernorm)
            mixed, routings = self._experts.forward(scratch, x, cache.active)
            return self._device.add(middle, self._norm(scratch, mixed, weights.post_ffn_norm)), routings

    def _norm(self, scratch: Scratch, x: Tensor, weight: Tensor) -> Tensor:
        return scratch.own(self._device.rms_norm(x, weight, epsilon=self._epsilon))
