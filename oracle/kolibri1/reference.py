"""The Kolibri-1 forward pass in torch: the truth that goldens are made from. Read it top to bottom.

Shapes: T tokens of one sequence, H hidden, A query heads, K key/value heads, D head_dim, E experts, k experts per token.
Source of every formula: the public facts on Kolibri-1 (transformers 5.24 `models/kolibri1`, cross-checked in fp32).

`r(...)` marks the points where a bf16 run rounds; in the fp32 and fp64 arms it does nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from oracle.errors import UsageError
from oracle.kolibri1.arms import TRUTH, Arm
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.config import Kolibri1Config
from oracle.kolibri1.weights import Weights, round_bf16, working_dtype


@dataclass(frozen=True)
class Forward:
    """What one forward call computed for its T tokens. L layers.

    Attributes:
        logits: float32 [T, V] (float64 in the float64 arm).
        expert_ids: int64 [T, L, k], by falling selection score, equal scores by rising id.
        expert_weights: [T, L, k], sigmoid of the selected router logits.
        router_logits: [T, L, E], without the bias.
        router_gap: [T, L], the k-th selection score minus the next one; 0 means an exact tie at the edge.
        layer_inputs: [T, L, H], the residual stream before each layer.
        residual: [T, L, H], the residual stream after each layer's second addition.
    """

    logits: torch.Tensor
    expert_ids: torch.Tensor
    expert_weights: torch.Tensor
    router_logits: torch.Tensor
    router_gap: torch.Tensor
    layer_inputs: torch.Tensor
    residual: torch.Tensor


@dataclass
class LayerCache:
    """Keys and values of one layer for the positions `first`, `first + 1`, ...: [K, n, D] each, keys after norm and RoPE."""

    keys: torch.Tensor
    values: torch.Tensor
    first: int = 0


class KVCache:
    """One sequence's cache; sliding layers hold only what their window can still see."""

    def __init__(self, config: Kolibri1Config, dtype: torch.dtype) -> None:
        empty = torch.empty(config.num_key_value_heads, 0, config.head_dim, dtype=dtype)
        self.layers = [LayerCache(empty, empty) for _ in range(config.num_hidden_layers)]
        self.length = 0


@dataclass(frozen=True)
class _Routing:
    ids: torch.Tensor
    weights: torch.Tensor
    logits: torch.Tensor
    gap: torch.Tensor


class Reference:
    """Kolibri-1 in one arm.

    Args:
        checkpoint: an opened checkpoint.
        arm: precision and summation orders; the truth's by default.
    """

    def __init__(self, checkpoint: Checkpoint, arm: Arm = TRUTH) -> None:
        self.config = checkpoint.config
        self.arm = arm
        self.dtype = working_dtype(arm)
        self.weights = Weights(checkpoint, arm)
        self.r = round_bf16 if arm.dtype == "bfloat16" else _exactly

    def new_cache(self) -> KVCache:
        """An empty cache for one sequence."""
        return KVCache(self.config, self.dtype)

    @torch.no_grad()
    def forward(self, ids: list[int], cache: KVCache) -> Forward:
        """Continue the sequence in `cache` by `ids` (prefill and decode are the same call).

        Args:
            ids: the T >= 1 next ids, each in [0, vocab_size).
            cache: from `new_cache`; extended in place.

        Raises:
            UsageError: no ids, or one outside the vocabulary.
        """
        check_ids(ids, self.config.vocab_size)
        w, positions = self.weights, torch.arange(cache.length, cache.length + len(ids))
        h = w["model.embed_tokens.weight"][torch.tensor(ids)]  # [T, H]; no embedding scale
        unrounded = h  # what a fused add-and-norm would normalize
        inputs, residuals, routings = [], [], []
        for layer in range(self.config.num_hidden_layers):
            inputs.append(h)
            prefix = f"model.layers.{layer}"
            x = self._norm(unrounded, f"{prefix}.input_layernorm.weight")
            attended = self._attention(x, layer, positions, cache.layers[layer])
            h, unrounded = self._add(h, self._norm(attended, f"{prefix}.post_attn_norm.weight"))
            x = self._norm(unrounded, f"{prefix}.post_attention_layernorm.weight")  # the norm before the experts
            routing = self._route(x, prefix)
            mixed = self._experts(x, routing, prefix)
            h, unrounded = self._add(h, self._norm(mixed, f"{prefix}.post_ffn_norm.weight"))
            residuals.append(h)
            routings.append(routing)
        cache.length += len(ids)
        final = self._norm(unrounded, "model.norm.weight")
        return Forward(
            logits=self._product(final, w["lm_head.weight"]),  # head_dtype is float32: never rounded
            expert_ids=torch.stack([routing.ids for routing in routings], 1),
            expert_weights=torch.stack([routing.weights for routing in routings], 1),
            router_logits=torch.stack([routing.logits for routing in routings], 1),
            router_gap=torch.stack([routing.gap for routing in routings], 1),
            layer_inputs=torch.stack(inputs, 1),
            residual=torch.stack(residuals, 1),
        )

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """RMSNorm over the last axis with a plain weight: `w * dt(x * rsqrt(mean(x^2) + eps))`, never `1 + w`."""
        normalized = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.config.rms_norm_eps)
        return self.r(self.weights[name] * (self.r(normalized) if self.arm.norms == "twice" else normalized))

    def _add(self, h: torch.Tensor, delta: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The residual addition: the stream to keep, and the value the next norm reads."""
        total = h + delta
        rounded = self.r(total)
        return rounded, total if self.arm.residual == "fused" else rounded

    def _product(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """`x [T, in] . weight [out, in]^T`, accumulated in the working dtype, unrounded."""
        if self.arm.reduction == "permuted":
            x, weight = x.flip(-1), weight.flip(-1)
        return x @ weight.T

    def _linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return self.r(self._product(x, self.weights[name]))

    def _attention(self, x: torch.Tensor, layer: int, positions: torch.Tensor, cache: LayerCache) -> torch.Tensor:
        """Grouped-query attention over the cache and the new tokens: [T, H] to [T, H]."""
        config, prefix = self.config, f"model.layers.{layer}.self_attn"
        tokens, head_dim = x.shape[0], config.head_dim

        def heads(which: str) -> torch.Tensor:
            return self._linear(x, f"{prefix}.{which}_proj.weight").reshape(tokens, -1, head_dim).transpose(0, 1)

        q = self._norm(heads("q"), f"{prefix}.q_norm.weight")  # [A, T, D]; per head, before RoPE
        k = self._norm(heads("k"), f"{prefix}.k_norm.weight")  # [K, T, D]
        v = heads("v")  # [K, T, D], not normed
        sliding = config.is_sliding(layer)
        if sliding:  # full layers have no position encoding at all
            cos, sin = self._rope_angles(positions)
            q, k = self._rotate(q, cos, sin), self._rotate(k, cos, sin)

        keys, values = torch.cat([cache.keys, k], 1), torch.cat([cache.values, v], 1)  # [K, n, D]
        key_positions = torch.arange(cache.first, cache.first + keys.shape[1])
        distance = positions[:, None] - key_positions[None, :]  # [T, n]
        visible = distance >= 0
        if sliding:  # the query's own position and window - 1 before it
            visible &= distance < config.sliding_window

        group = config.num_attention_heads // config.num_key_value_heads
        scores = self.r(q @ keys.repeat_interleave(group, 0).transpose(1, 2))  # query head a reads kv head a // group
        scores = self.r(scores * head_dim**-0.5).masked_fill(~visible, float("-inf"))
        probabilities = torch.softmax(scores, -1)
        if self.arm.probabilities == "rounded":
            probabilities = self.r(probabilities)
        mixed = self.r(probabilities @ values.repeat_interleave(group, 0))  # [A, T, D]

        keep = config.sliding_window - 1 if sliding else keys.shape[1]
        dropped = max(0, keys.shape[1] - keep)
        cache.keys, cache.values, cache.first = keys[:, dropped:], values[:, dropped:], cache.first + dropped
        return self._linear(mixed.transpose(0, 1).reshape(tokens, -1), f"{prefix}.o_proj.weight")

    def _rope_angles(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin [T, D]: inv_freq_j = theta^(-2j / D), angles in fp32 (fp64 in that arm), halves repeated (NeoX)."""
        head_dim = self.config.head_dim
        exponent = torch.arange(0, head_dim, 2, dtype=torch.int64).to(self.dtype) / head_dim
        angles = positions.to(self.dtype)[:, None] * (1.0 / self.config.rope_theta**exponent)[None, :]
        angles = torch.cat([angles, angles], -1)
        return self.r(angles.cos()), self.r(angles.sin())

    def _rotate(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """RoPE with rotate-half: x [heads, T, D]."""
        first, second = x.chunk(2, -1)
        return self.r(self.r(x * cos) + self.r(torch.cat([-second, first], -1) * sin))

    def _route(self, x: torch.Tensor, prefix: str) -> _Routing:
        """Top-k by `logits + bias`, lowest id first among equals; weights are `sigmoid(logits)`, not renormalized.

        Router logits are never rounded: fp32 in every bf16 arm too.
        """
        top_k = self.config.num_experts_per_tok
        logits = self._product(x, self.weights[f"{prefix}.mlp.gate.weight"])  # [T, E]
        selection = logits + self.weights[f"{prefix}.moe.router.expert_bias"]
        # torch.topk does not keep the order of equal scores; a stable sort does.
        ordered, order = torch.sort(selection, dim=-1, descending=True, stable=True)
        ids = order[:, :top_k]
        following = ordered[:, top_k] if top_k < selection.shape[1] else torch.full_like(ordered[:, 0], float("-inf"))
        gap = (ordered[:, top_k - 1] - following).clamp(max=1e30)  # finite even where every expert is selected
        return _Routing(ids, torch.sigmoid(logits.gather(1, ids)), logits, gap)

    def _experts(self, x: torch.Tensor, routing: _Routing, prefix: str) -> torch.Tensor:
        """Routed experts weighted and summed, plus the ungated shared expert: [T, H] to [T, H]."""
        shared = self._swiglu(x, f"{prefix}.mlp.shared_experts")
        outputs = x.new_zeros(*routing.ids.shape, x.shape[1])  # [T, k, H], each expert's rounded output
        for expert in routing.ids.unique().tolist():
            token, slot = (routing.ids == expert).nonzero(as_tuple=True)
            outputs[token, slot] = self._swiglu(x[token], f"{prefix}.mlp.experts.{expert}")
        weighted = outputs * routing.weights[..., None]
        if self.arm.combine == "per-expert":
            by_id = routing.ids.argsort(-1)
            ordered = self.r(weighted.gather(1, by_id[..., None].expand_as(weighted)))
            total = torch.zeros_like(x)
            for slot in range(ordered.shape[1]):
                total = self.r(total + ordered[:, slot])
            return self.r(total + shared)
        total = weighted.sum(1)
        return self.r(total + shared) if self.arm.combine == "fp32-with-shared" else self.r(self.r(total) + shared)

    def _swiglu(self, x: torch.Tensor, prefix: str) -> torch.Tensor:
        """`down(silu(gate x) * (up x))`, rounded after each linear, after silu and after the product."""
        gate = self._linear(x, f"{prefix}.gate_proj.weight")
        up = self._linear(x, f"{prefix}.up_proj.weight")
        return self._linear(self.r(self.r(F.silu(gate)) * up), f"{prefix}.down_proj.weight")


def check_ids(ids: list[int], vocab_size: int) -> None:
    """Raise `UsageError` unless `ids` is non-empty and every id lies in [0, vocab_size)."""
    if not ids:
        raise UsageError("no ids to compute; a prompt needs at least one id")
    if bad := [i for i in ids if not 0 <= i < vocab_size]:
        raise UsageError(f"id {bad[0]} is outside the vocabulary of {vocab_size}; check the tokenizer against the checkpoint")


def argmax_lowest_id(logits: torch.Tensor) -> torch.Tensor:
    """Index of the largest logit, the lowest id among equals: [..., V] to int64 [...]. (Ours: torch promises no order.)"""
    is_top = logits == logits.max(-1, keepdim=True).values
    return is_top.to(torch.int8).argmax(-1)


def _exactly(x: torch.Tensor) -> torch.Tensor:
    return x
