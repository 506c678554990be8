"""One decoder layer: attention and mixture of experts, each between two norms, each added to the residual stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from oracle.kolibri1.config import Kolibri1Config
from tt_impl.attention.kv_cache import PagedKvCache
from tt_impl.attention.rope import RopeTables
from tt_impl.attention.self_attention import Attention
from tt_impl.device.protocol import Device, Tensor
from tt_impl.experts.pool import ExpertPool
from tt_impl.lifetimes import Scratch
from tt_impl.moe import MixtureOfExperts
from tt_impl.router import Routing, Scored
from tt_impl.staging import Residents
from tt_impl.stats import StepStats
from tt_impl.stretches import Scopes


class Entered(NamedTuple):
    """A layer before its experts: the residual stream after its first addition, that normalized, and its router's scores."""

    middle: Tensor
    x: Tensor
    scored: Scored


class DecoderLayer:
    """Layer `layer` over its resident weights and the routed experts of `pool`: `enter`, `route`, `leave`."""

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

    def enter(self, scopes: Scopes, hidden: Tensor, cache: PagedKvCache, rope: RopeTables) -> Entered:
        """From the residual stream [users, hidden] before the layer to its router's scores; these live to the next stretch.

        Args:
            rope: the rows of the cache's positions.
        """
        weights, stretch, later = self._weights, scopes.stretch, scopes.next
        x = self._norm(stretch, hidden, weights.input_layernorm)
        attended = self._norm(stretch, self._attention.forward(stretch, x, cache, rope), weights.post_attn_norm)
        middle = later.own(self._device.add(hidden, attended))
        x = self._norm(later, middle, weights.post_attention_layernorm)
        return Entered(middle, x, self._experts.score(stretch, later, x))

    def route(
        self, scratch: Scratch, entered: Entered, users: Sequence[int], into: Tensor | None = None
    ) -> tuple[Tensor, list[Routing]]:
        """The routed experts' sum, in `into` if that is given, and where each token of `users` went, in their order: what
        depends on data, so the host waits, and part of no stretch."""
        return self._experts.routed(scratch, entered.x, entered.scored, users, into)

    def leave(self, scopes: Scopes, entered: Entered, routed: Tensor) -> Tensor:
        """The residual stream after the layer's second addition; it lives to the next stretch."""
        mixed = self._experts.with_shared(scopes.stretch, entered.x, routed)
        return scopes.next.own(self._device.add(entered.middle, self._norm(scopes.stretch, mixed, self._weights.post_ffn_norm)))

    def _norm(self, scratch: Scratch, x: Tensor, weight: Tensor) -> Tensor:
        return scratch.own(self._device.rms_norm(x, weight, epsilon=self._epsilon))
