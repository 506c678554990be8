"""The Kolibri-1 forward pass: the truth that goldens are made from. Read it top to bottom.

Shapes: T tokens, H hidden, A query heads, K key/value heads, D head_dim, E experts, k experts per token, L layers.
Source of every formula: the public facts on Kolibri-1 (transformers 5.24 `models/kolibri1`, cross-checked in fp32).

`self.m` is the arm's arithmetic (`Arithmetic`): it owns every rounding and order of summation; the model's rules are here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from oracle.errors import UsageError
from oracle.kolibri1.arithmetic import Arithmetic
from oracle.kolibri1.arms import TRUTH, Arm
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.kv_cache import KVCache
from oracle.kolibri1.torch_arithmetic import TorchArithmetic

CHUNK = 256
"""Tokens per pass of a long prefill: bounds the memory of what is computed at once, and changes no bit of the default arm."""


@dataclass(frozen=True)
class Taps:
    """What a forward pass records beside logits and routing.

    Attributes:
        hidden: the residual stream, L + 1 vectors of H per token.
        router_logits: E numbers per token and layer.
    """

    hidden: bool = True
    router_logits: bool = True


ALL_TAPS, NO_TAPS = Taps(), Taps(hidden=False, router_logits=False)


@dataclass(frozen=True)
class Forward:
    """What one forward call computed for its T tokens.

    Attributes:
        logits: float32 [T, V] (float64 in the float64 arm).
        expert_ids: int64 [T, L, k], by falling selection score, equal scores by rising id.
        expert_weights: [T, L, k], sigmoid of the selected router logits.
        router_gap: [T, L], the k-th selection score minus the next one; 0 means an exact tie at the edge.
        router_logits: [T, L, E], without the bias; [T, L, 0] where not tapped.
        hidden: [T, L + 1, H], the residual stream before the first layer and after each layer's second addition;
            [T, L + 1, 0] where not tapped.
    """

    logits: torch.Tensor
    expert_ids: torch.Tensor
    expert_weights: torch.Tensor
    router_gap: torch.Tensor
    router_logits: torch.Tensor
    hidden: torch.Tensor

    @property
    def layer_inputs(self) -> torch.Tensor:
        """[T, L, H], the residual stream before each layer."""
        return self.hidden[:, :-1]

    @property
    def residual(self) -> torch.Tensor:
        """[T, L, H], the residual stream after each layer."""
        return self.hidden[:, 1:]

    def __len__(self) -> int:
        return len(self.logits)

    def __getitem__(self, tokens: slice) -> Forward:
        """The same for some of the tokens."""
        return Forward(**{name: getattr(self, name)[tokens] for name in Forward.__dataclass_fields__})

    @staticmethod
    def concatenate(parts: Sequence[Forward]) -> Forward:
        """Several passes over one sequence as one."""
        return Forward(**{name: torch.cat([getattr(p, name) for p in parts]) for name in Forward.__dataclass_fields__})


@dataclass(frozen=True)
class Routing:
    """Which experts T tokens use, and how: `ids` int64 [T, k] and `weights` [T, k]; of all layers when forced: [T, L, k]."""

    ids: torch.Tensor
    weights: torch.Tensor

    def layer(self, layer: int) -> Routing:
        return Routing(self.ids[:, layer], self.weights[:, layer])


@dataclass(frozen=True)
class Segment:
    """One sequence's part of a pass.

    Attributes:
        ids: the next token ids, at least one.
        cache: the sequence's cache; it grows by the ids.
        routing: expert sets and weights to use in place of the router's own, [T, L, k], or None.
    """

    ids: Sequence[int]
    cache: KVCache
    routing: Routing | None = None


class Reference:
    """Kolibri-1 in one arm.

    Args:
        checkpoint: an opened checkpoint.
        arm: precision and summation orders; the truth by default.

    Raises:
        UsageError: the arm's kernels cannot take this geometry, or numba is missing.
    """

    def __init__(self, checkpoint: Checkpoint, arm: Arm = TRUTH) -> None:
        self.config = checkpoint.config
        self.arm = arm
        self.m: Arithmetic = _kernels(checkpoint) if arm.kernels else TorchArithmetic(checkpoint, arm)
        bias = (checkpoint.raw(f"model.layers.{i}.moe.router.expert_bias") for i in range(self.config.num_hidden_layers))
        self._bias = [torch.from_numpy(raw.copy()).view(torch.bfloat16).to(self.m.dtype) for raw in bias]

    def new_cache(self) -> KVCache:
        """An empty cache for one sequence."""
        return KVCache(self.config, self.m.dtype)

    def forward(self, ids: Sequence[int], cache: KVCache, *, taps: Taps = ALL_TAPS, routing: Routing | None = None) -> Forward:
        """Feed `ids` at the cache's next positions and return everything computed for them, in one pass.

        Raises:
            UsageError: an id outside the vocabulary, or none at all; nothing is cached then.
        """
        return self.forward_batch([Segment(ids, cache, routing)], taps=taps)[0]

    def stream(
        self, ids: Sequence[int], cache: KVCache, *, chunk: int = CHUNK, taps: Taps = ALL_TAPS, routing: Routing | None = None
    ) -> Iterator[Forward]:
        """Feed `ids` in passes of `chunk` tokens: memory stays bounded, however many there are."""
        check_ids(ids, self.config.vocab_size)
        for start in range(0, len(ids), chunk):
            span = slice(start, start + chunk)
            forced = routing and Routing(routing.ids[span], routing.weights[span])
            yield self.forward(ids[span], cache, taps=taps, routing=forced)

    @torch.no_grad()
    def forward_batch(self, segments: Sequence[Segment], *, taps: Taps = ALL_TAPS) -> list[Forward]:
        """One pass over parts of several sequences, each with its own cache; one result per segment.

        A pass that ends in an error or an interruption leaves every cache as it was for the next one.

        Raises:
            UsageError: a segment without ids or with one outside the vocabulary, forced routing of another shape, or one
                cache in two segments; nothing is cached then.
        """
        config, m = self.config, self.m
        self._check(segments)
        for segment in segments:
            segment.cache.rewind()
        ids = [i for segment in segments for i in segment.ids]
        tokens, layers = len(ids), config.num_hidden_layers
        expert_ids = torch.empty(tokens, layers, config.num_experts_per_tok, dtype=torch.int64)
        weights = torch.empty(expert_ids.shape, dtype=m.dtype)
        gap = torch.empty(tokens, layers, dtype=m.dtype)
        router_logits = torch.empty(tokens, layers, config.num_experts if taps.router_logits else 0, dtype=m.dtype)
        hidden = torch.empty(tokens, layers + 1, config.hidden_size if taps.hidden else 0, dtype=m.dtype)

        h = unrounded = m.embed(ids)  # no scale
        angles = [m.rope_angles(range(s.cache.length, s.cache.length + len(s.ids))) for s in segments]
        rope = torch.cat([cos for cos, _ in angles]), torch.cat([sin for _, sin in angles])
        for layer in range(layers):
            if taps.hidden:
                hidden[:, layer] = h
            h, unrounded, routing, logits, gap[:, layer] = self._layer(h, unrounded, layer, segments, rope)
            expert_ids[:, layer], weights[:, layer] = routing.ids, routing.weights
            if taps.router_logits:
                router_logits[:, layer] = logits
        if taps.hidden:
            hidden[:, layers] = h
        logits = m.product(m.norm(unrounded, "model.norm.weight"), "lm_head.weight")
        for segment in segments:
            segment.cache.advance(len(segment.ids))
        whole = Forward(logits, expert_ids, weights, gap, router_logits, hidden)
        return [whole[span] for span in _spans(segments)]

    @torch.no_grad()
    def layer(self, layer: int, inputs: torch.Tensor) -> torch.Tensor:
        """One layer alone at the first T positions of a sequence: [T, H], the stream before it, to [T, H], after it."""
        h = inputs.to(self.m.dtype)
        segment = Segment([0] * len(h), self.new_cache())  # ids that nothing reads
        return self._layer(h, h, layer, [segment], self.m.rope_angles(range(len(h))))[0]

    def _layer(
        self,
        h: torch.Tensor,
        unrounded: torch.Tensor,
        layer: int,
        segments: Sequence[Segment],
        rope: tuple[torch.Tensor, torch.Tensor],
    ) -> tuple[torch.Tensor, torch.Tensor, Routing, torch.Tensor, torch.Tensor]:
        """The stream [T, H] and the value the next norm reads, after the layer; and its routing, router logits and gap."""
        m, prefix = self.m, f"model.layers.{layer}"
        x = m.norm(unrounded, f"{prefix}.input_layernorm.weight")
        attended = self._attention(x, layer, segments, rope)
        h, unrounded = m.add(h, m.norm(attended, f"{prefix}.post_attn_norm.weight"))
        x = m.norm(unrounded, f"{prefix}.post_attention_layernorm.weight")  # the norm before the experts
        routing, logits, gap = self._route(x, layer, segments)
        outputs, shared = m.experts(x, routing.ids, f"{prefix}.mlp")
        mixed = m.combine(outputs, routing.ids, routing.weights, shared)
        h, unrounded = m.add(h, m.norm(mixed, f"{prefix}.post_ffn_norm.weight"))
        return h, unrounded, routing, logits, gap

    def _attention(
        self, x: torch.Tensor, layer: int, segments: Sequence[Segment], rope: tuple[torch.Tensor, torch.Tensor]
    ) -> torch.Tensor:
        """Grouped-query attention over each sequence's cache and new tokens: [T, H] to [T, H]."""
        config, m, prefix = self.config, self.m, f"model.layers.{layer}.self_attn"

        def heads(which: str) -> torch.Tensor:
            return m.linear(x, f"{prefix}.{which}_proj.weight").reshape(len(x), -1, config.head_dim)

        q = m.norm(heads("q"), f"{prefix}.q_norm.weight")  # [T, A, D]; per head, before RoPE
        k = m.norm(heads("k"), f"{prefix}.k_norm.weight")  # [T, K, D]
        v = heads("v")  # [T, K, D], not normed
        if config.is_sliding(layer):  # full layers have no position encoding at all
            q, k = m.rotate(q, *rope), m.rotate(k, *rope)
        k, v = m.cached(k), m.cached(v)
        mixed = []
        for segment, span in zip(segments, _spans(segments), strict=True):
            cache, position = segment.cache.layers[layer], segment.cache.length
            cache.append(k[span].transpose(0, 1), v[span].transpose(0, 1))
            last = torch.arange(position, position + len(segment.ids))
            window = config.sliding_window if config.is_sliding(layer) else position + len(segment.ids)
            first = (last - (window - 1)).clamp(min=0)  # the query's own position and window - 1 before it
            mixed.append(m.attend(q[span], cache.keys, cache.values, first - cache.first, last - cache.first))
        return m.linear(torch.cat(mixed), f"{prefix}.o_proj.weight")

    def _route(self, x: torch.Tensor, layer: int, segments: Sequence[Segment]) -> tuple[Routing, torch.Tensor, torch.Tensor]:
        """Top-k by `logits + bias`, lowest id first among equals; weights are `sigmoid(logits)`, not renormalized.

        Router logits are never rounded: fp32 in every bf16 arm too. Returns what is used, all logits [T, E], and the gap [T].
        """
        top_k = self.config.num_experts_per_tok
        logits = self.m.product(x, f"model.layers.{layer}.mlp.gate.weight")
        # torch.topk does not keep the order of equal scores; a stable sort does.
        ordered, order = torch.sort(logits + self._bias[layer], dim=-1, descending=True, stable=True)
        ids = order[:, :top_k]
        weights = self.m.sigmoid(logits.gather(1, ids))
        following = ordered[:, top_k] if top_k < logits.shape[1] else torch.full_like(ordered[:, 0], float("-inf"))
        gap = (ordered[:, top_k - 1] - following).clamp(max=1e30)  # finite even where every expert is selected
        for segment, span in zip(segments, _spans(segments), strict=True):
            if segment.routing is not None:
                forced = segment.routing.layer(layer)
                ids[span], weights[span] = forced.ids, forced.weights.to(weights.dtype)
        return Routing(ids, weights), logits, gap

    def _check(self, segments: Sequence[Segment]) -> None:
        if not segments:
            raise UsageError("a batch of no sequences computes nothing; pass at least one segment")
        if len({id(segment.cache) for segment in segments}) != len(segments):
            raise UsageError("two segments of a batch share a cache; give each sequence its own")
        layers, top_k = self.config.num_hidden_layers, self.config.num_experts_per_tok
        for segment in segments:
            check_ids(segment.ids, self.config.vocab_size)
            if (forced := segment.routing) is None:
                continue
            expected = (len(segment.ids), layers, top_k)
            if tuple(forced.ids.shape) != expected or tuple(forced.weights.shape) != expected:
                raise UsageError(
                    f"forced routing has ids {list(forced.ids.shape)} and weights {list(forced.weights.shape)}, "
                    f"expected {list(expected)} (tokens, layers, experts per token)"
                )
            if forced.ids.min() < 0 or forced.ids.max() >= self.config.num_experts:
                raise UsageError(f"forced routing names an expert outside [0, {self.config.num_experts}); check its checkpoint")


def check_ids(ids: Sequence[int], vocab_size: int) -> None:
    """Raise `UsageError` unless `ids` is non-empty and every id lies in [0, vocab_size)."""
    if not ids:
        raise UsageError("no ids to compute; a prompt needs at least one id")
    if bad := [i for i in ids if not 0 <= i < vocab_size]:
        raise UsageError(f"id {bad[0]} is outside the vocabulary of {vocab_size}; check the tokenizer against the checkpoint")


def argmax_lowest_id(logits: torch.Tensor) -> torch.Tensor:
    """Index of the largest logit, the lowest id among equals: [..., V] to int64 [...]. (Ours: torch promises no order.)"""
    is_top = logits == logits.max(-1, keepdim=True).values
    return is_top.to(torch.int8).argmax(-1)


def _spans(segments: Sequence[Segment]) -> list[slice]:
    """Each segment's rows in the pass."""
    spans, start = [], 0
    for segment in segments:
        spans.append(slice(start, start + len(segment.ids)))
        start += len(segment.ids)
    return spans


def _kernels(checkpoint: Checkpoint) -> Arithmetic:
    try:
        from numba.core import config

        if config.DISABLE_JIT:  # pyright: ignore[reportAttributeAccessIssue]
            raise UsageError(
                "the default arm's kernels run compiled only; unset NUMBA_DISABLE_JIT, or use the arm float32-blas"
            )
        from oracle.kolibri1.kernels.arithmetic import KernelArithmetic
    except ImportError as error:
        raise UsageError(
            f"the default arm needs numba ({error}); install it with `pip install 'kolibri-oracle[reference]'`"
        ) from None
    return KernelArithmetic(checkpoint)
