"""The reference against a dense float64 computation written here from the public facts, sharing no code with it.

Bounds: float64 against float64 agrees to 1e-10 of the largest value; float32 to 2e-6 of the largest logit.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oracle.errors import UsageError
from oracle.kolibri1 import reference as module
from oracle.kolibri1.arms import ARMS, TRUTH, arm_named, floor_arms
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.inventory import inventory
from oracle.kolibri1.reference import Forward, Reference, argmax_lowest_id
from oracle.kolibri1.synthetic import TINY, write_synthetic
from oracle.kolibri1.weights import round_bf16
from oracle.subjects.protocol import NumericClass

IDS = np.random.default_rng(11).integers(0, 96, 40).tolist()
"""Longer than four windows of the tiny checkpoint."""


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def whole(checkpoint: Checkpoint, arm: str = "float32", ids: list[int] = IDS) -> Forward:
    """One pass over all ids."""
    reference = Reference(checkpoint, ARMS[arm])
    return reference.forward(ids, reference.new_cache())


class Dense:
    """Kolibri-1 in dense float64 numpy, one position and one head at a time. No cache, no blocks, no shared code."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.config = checkpoint.config
        self.w: dict[str, np.ndarray] = {}
        for spec in inventory(checkpoint.config):
            raw = checkpoint.raw(spec.name)
            if spec.dtype == "BF16":
                self.w[spec.name] = raw.view(ml_dtypes.bfloat16).astype(np.float64).reshape(spec.shape)
            elif spec.dtype == "F8_E4M3":
                scale = checkpoint.raw(spec.name + "_scale_inv").view("<f4")
                rows, columns = checkpoint.config.quantization_config.weight_block_size
                scale = scale.reshape(spec.shape[0] // rows, spec.shape[1] // columns)
                codes = raw.view(ml_dtypes.float8_e4m3fn).astype(np.float32).reshape(spec.shape)
                self.w[spec.name] = (codes * np.kron(scale, np.ones((rows, columns), np.float32))).astype(np.float64)

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        return self.w[name] * x / np.sqrt((x * x).mean(-1, keepdims=True) + self.config.rms_norm_eps)

    def rope(self, x: np.ndarray, position: int) -> np.ndarray:
        half = self.config.head_dim // 2
        angle = position * self.config.rope_theta ** (-2.0 * np.arange(half) / self.config.head_dim)
        a, b = x[:half], x[half:]
        return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)])

    def attention(self, x: np.ndarray, layer: int) -> np.ndarray:
        c, p = self.config, f"model.layers.{layer}.self_attn"
        tokens, group = len(x), c.num_attention_heads // c.num_key_value_heads
        q, k, v = ((x @ self.w[f"{p}.{which}_proj.weight"].T).reshape(tokens, -1, c.head_dim) for which in ("q", "k", "v"))
        q, k = self.norm(q, f"{p}.q_norm.weight"), self.norm(k, f"{p}.k_norm.weight")
        sliding = c.layer_types[layer] == "sliding_attention"
        out = np.zeros_like(q)
        for head in range(c.num_attention_heads):
            for i in range(tokens):
                seen = [j for j in range(i + 1) if not sliding or i - j < c.sliding_window]
                query = self.rope(q[i, head], i) if sliding else q[i, head]
                keys = [self.rope(k[j, head // group], j) if sliding else k[j, head // group] for j in seen]
                scores = np.array(keys) @ query / np.sqrt(c.head_dim)
                odds = np.exp(scores - scores.max())
                out[i, head] = odds / odds.sum() @ v[seen, head // group]
        return out.reshape(tokens, -1) @ self.w[f"{p}.o_proj.weight"].T

    def swiglu(self, x: np.ndarray, prefix: str) -> np.ndarray:
        gate = x @ self.w[f"{prefix}.gate_proj.weight"].T
        up = x @ self.w[f"{prefix}.up_proj.weight"].T
        return (gate / (1 + np.exp(-gate)) * up) @ self.w[f"{prefix}.down_proj.weight"].T

    def forward(self, ids: list[int]) -> dict[str, np.ndarray]:
        c = self.config
        h = self.w["model.embed_tokens.weight"][ids]
        residual, sets, weights, gaps = [], [], [], []
        for layer in range(c.num_hidden_layers):
            p = f"model.layers.{layer}"
            h = h + self.norm(self.attention(self.norm(h, f"{p}.input_layernorm.weight"), layer), f"{p}.post_attn_norm.weight")
            x = self.norm(h, f"{p}.post_attention_layernorm.weight")
            logits = x @ self.w[f"{p}.mlp.gate.weight"].T
            selection = logits + self.w[f"{p}.moe.router.expert_bias"]
            mixed = self.swiglu(x, f"{p}.mlp.shared_experts")
            order = np.argsort(-selection, axis=1, kind="stable")
            chosen = order[:, : c.num_experts_per_tok]
            weight = 1 / (1 + np.exp(-np.take_along_axis(logits, chosen, 1)))
            for token in range(len(ids)):
                for expert, share in zip(chosen[token], weight[token], strict=True):
                    mixed[token] += share * self.swiglu(x[token], f"{p}.mlp.experts.{expert}")
            falling = np.take_along_axis(selection, order, 1)
            h = h + self.norm(mixed, f"{p}.post_ffn_norm.weight")
            residual.append(h)
            sets.append(chosen)
            weights.append(weight)
            gaps.append(falling[:, c.num_experts_per_tok - 1] - falling[:, c.num_experts_per_tok])
        logits = self.norm(h, "model.norm.weight") @ self.w["lm_head.weight"].T
        stacked = {"residual": residual, "expert_ids": sets, "expert_weights": weights, "router_gap": gaps}
        return {"logits": logits} | {name: np.stack(values, 1) for name, values in stacked.items()}


@pytest.fixture(scope="module")
def dense(tiny: Checkpoint) -> dict[str, np.ndarray]:
    return Dense(tiny).forward(IDS)


def error(got: Forward, expected: dict[str, np.ndarray], name: str) -> float:
    """Largest difference over the largest expected absolute value."""
    return float(np.abs(getattr(got, name).double().numpy() - expected[name]).max() / np.abs(expected[name]).max())


@pytest.mark.parametrize(
    ("arm", "bound"),
    [("float64", 1e-10), ("float32", 2e-6), ("float32-permuted", 2e-6), ("float32-per-expert", 2e-6)],
)
def test_the_reference_computes_what_the_facts_say(
    tiny: Checkpoint, dense: dict[str, np.ndarray], arm: str, bound: float
) -> None:
    got = whole(tiny, arm)
    assert np.array_equal(got.expert_ids.numpy(), dense["expert_ids"])
    for name in ("logits", "residual", "expert_weights", "router_gap"):
        assert error(got, dense, name) < bound, name
    assert np.array_equal(argmax_lowest_id(got.logits).numpy(), dense["logits"].argmax(1))
    assert torch.equal(got.layer_inputs[:, 1:], got.residual[:, :-1])


@pytest.mark.parametrize("kind", ["full_attention", "sliding_attention"])
def test_a_model_of_one_kind_of_layer_agrees_too(tmp_path: Path, kind: str) -> None:
    config = copy.deepcopy(TINY) | {"layer_types": [kind] * 3, "num_key_value_heads": 6, "rope_theta": 500.0}
    checkpoint = Checkpoint.open(write_synthetic(tmp_path / kind, config, seed=3))
    assert error(whole(checkpoint, "float64"), Dense(checkpoint).forward(IDS), "logits") < 1e-10


Change = Callable[[pytest.MonkeyPatch, Checkpoint], Checkpoint]


def with_config(**values: Any) -> Change:
    """The same bytes read under another config."""

    def change(_: pytest.MonkeyPatch, checkpoint: Checkpoint) -> Checkpoint:
        other = Checkpoint.open(checkpoint.folder)
        other.config = checkpoint.config.model_copy(update=values)
        return other

    return change


def selects_by_sigmoid(patch: pytest.MonkeyPatch, checkpoint: Checkpoint) -> Checkpoint:
    def route(self: Reference, x: torch.Tensor, prefix: str) -> Any:
        logits = self._product(x, self.weights[f"{prefix}.mlp.gate.weight"])
        selection = torch.sigmoid(logits) + self.weights[f"{prefix}.moe.router.expert_bias"]
        ids = selection.sort(dim=-1, descending=True, stable=True).indices[:, : self.config.num_experts_per_tok]
        return module._Routing(ids, torch.sigmoid(logits.gather(1, ids)), logits, logits[:, 0] * 0)

    patch.setattr(Reference, "_route", route)
    return checkpoint


def renormalizes(patch: pytest.MonkeyPatch, checkpoint: Checkpoint) -> Checkpoint:
    honest = Reference._route

    def route(self: Reference, x: torch.Tensor, prefix: str) -> Any:
        r = honest(self, x, prefix)
        return module._Routing(r.ids, r.weights / r.weights.sum(-1, keepdim=True), r.logits, r.gap)

    patch.setattr(Reference, "_route", route)
    return checkpoint


def adds_one_to_norms(patch: pytest.MonkeyPatch, checkpoint: Checkpoint) -> Checkpoint:
    class OnePlus(module.Weights):
        def __getitem__(self, name: str) -> torch.Tensor:
            value = super().__getitem__(name)
            return value + 1 if "norm" in name else value

    patch.setattr(module, "Weights", OnePlus)
    return checkpoint


def divides_by_scales(patch: pytest.MonkeyPatch, checkpoint: Checkpoint) -> Checkpoint:
    from oracle.kolibri1 import weights

    honest = weights.dequantize
    patch.setattr(weights, "dequantize", lambda codes, scale: honest(codes, 1 / scale * 1e-6))
    return checkpoint


def rope_everywhere(patch: pytest.MonkeyPatch, checkpoint: Checkpoint) -> Checkpoint:
    return with_config(layer_types=("sliding_attention",) * 3, sliding_window=1000)(patch, checkpoint)


def rotates_neighbours(patch: pytest.MonkeyPatch, checkpoint: Checkpoint) -> Checkpoint:
    def rotate(self: Reference, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        swapped = torch.stack([-x[..., 1::2], x[..., 0::2]], -1).flatten(-2)
        return x * cos + swapped * sin

    patch.setattr(Reference, "_rotate", rotate)
    return checkpoint


def swaps_norms(patch: pytest.MonkeyPatch, checkpoint: Checkpoint) -> Checkpoint:
    honest = Reference._norm
    names = {"post_attn_norm": "post_attention_layernorm", "post_attention_layernorm": "post_attn_norm"}

    def norm(self: Reference, x: torch.Tensor, name: str) -> torch.Tensor:
        for old, new in names.items():
            if f".{old}." in name:
                return honest(self, x, name.replace(old, new))
        return honest(self, x, name)

    patch.setattr(Reference, "_norm", norm)
    return checkpoint


def scales_embeddings(patch: pytest.MonkeyPatch, checkpoint: Checkpoint) -> Checkpoint:
    class Scaled(module.Weights):
        def __getitem__(self, name: str) -> torch.Tensor:
            value = super().__getitem__(name)
            return value * 8 if "embed_tokens" in name else value

    patch.setattr(module, "Weights", Scaled)
    return checkpoint


WRONG_RULES: dict[str, Change] = {
    "window one too small": with_config(sliding_window=8),
    "window one too large": with_config(sliding_window=10),
    "another theta": with_config(rope_theta=11000.0),
    "another eps": with_config(rms_norm_eps=1e-3),
    "one expert fewer": with_config(num_experts_per_tok=2),
    "rope on full layers": rope_everywhere,
    "rope by neighbours": rotates_neighbours,
    "selection by sigmoid plus bias": selects_by_sigmoid,
    "renormalized weights": renormalizes,
    "norms of one plus w": adds_one_to_norms,
    "two norms swapped": swaps_norms,
    "inverse scales": divides_by_scales,
    "scaled embeddings": scales_embeddings,
}


@pytest.mark.parametrize("rule", WRONG_RULES)
def test_a_wrong_rule_is_far_outside_the_bounds(
    tiny: Checkpoint, dense: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch, rule: str
) -> None:
    assert error(whole(tiny), dense, "logits") < 2e-6
    changed = WRONG_RULES[rule](monkeypatch, tiny)
    assert error(whole(changed), dense, "logits") > 1e-3


def in_chunks(checkpoint: Checkpoint, sizes: list[int], arm: str = "float32") -> Forward:
    reference = Reference(checkpoint, ARMS[arm])
    cache, parts, start = reference.new_cache(), [], 0
    for size in sizes:
        parts.append(reference.forward(IDS[start : start + size], cache))
        start += size
    assert cache.length == start
    return Forward(**{n: torch.cat([getattr(part, n) for part in parts]) for n in Forward.__dataclass_fields__})


@pytest.mark.parametrize("sizes", [[1] * 40, [9, 9, 9, 9, 4], [10, 30], [8, 1, 31], [39, 1]], ids=str)
def test_chunks_and_single_tokens_give_what_one_pass_gives(tiny: Checkpoint, sizes: list[int]) -> None:
    one, chunks = whole(tiny, "float64"), in_chunks(tiny, sizes, "float64")
    assert torch.equal(one.expert_ids, chunks.expert_ids)
    for name in ("logits", "residual", "layer_inputs", "router_logits", "router_gap", "expert_weights"):
        a, b = getattr(one, name), getattr(chunks, name)
        assert (a - b).abs().max() <= 1e-12 * a.abs().max(), name


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=8))
def test_any_chunks_give_the_same_logits(tiny: Checkpoint, sizes: list[int]) -> None:
    sizes = [size for i, size in enumerate(sizes) if sum(sizes[: i + 1]) <= len(IDS)] or [1]
    got, one = in_chunks(tiny, sizes), whole(tiny)
    assert (got.logits - one.logits[: sum(sizes)]).abs().max() < 2e-6 * one.logits.abs().max()


@pytest.mark.parametrize("sizes", [[1] * 40, [40], [7, 33]], ids=str)
def test_the_cache_of_a_sliding_layer_holds_one_window_less_one(tiny: Checkpoint, sizes: list[int]) -> None:
    reference = Reference(tiny)
    cache, start = reference.new_cache(), 0
    for size in sizes:
        reference.forward(IDS[start : start + size], cache)
        start += size
        for layer, kept in enumerate(cache.layers):
            held = min(start, 8) if tiny.config.is_sliding(layer) else start
            assert kept.keys.shape == kept.values.shape == (2, held, 32)
            assert kept.first == start - held
            assert kept.keys.untyped_storage().nbytes() <= 2 * (held + size) * 32 * 4


def test_two_sequences_share_nothing(tiny: Checkpoint) -> None:
    reference = Reference(tiny)
    first, second = reference.new_cache(), reference.new_cache()
    reference.forward(IDS[:20], first)
    alone = reference.forward(IDS[20:25], second)
    assert torch.equal(alone.logits, whole(tiny, ids=IDS[20:25]).logits)


@given(st.lists(st.sampled_from([-1.0, 0.0, 1.0, 1.5]), min_size=1, max_size=12))
def test_the_argmax_is_the_lowest_id_among_equals(values: list[float]) -> None:
    assert argmax_lowest_id(torch.tensor([values, values[::-1]])).tolist() == [
        values.index(max(values)),
        values[::-1].index(max(values)),
    ]


def tied(checkpoint: Checkpoint, bias: list[float]) -> Reference:
    """A reference whose router logits are all exactly zero, so that the biases alone select."""
    reference = Reference(checkpoint)
    for layer in range(3):
        prefix = f"model.layers.{layer}"
        reference.weights._cache[f"{prefix}.mlp.gate.weight"] = torch.zeros(8, 64)
        reference.weights._cache[f"{prefix}.moe.router.expert_bias"] = torch.tensor(bias)
    return reference


@pytest.mark.parametrize(
    ("bias", "ids", "gap"),
    [
        ([0.0] * 8, [0, 1, 2], 0.0),
        ([0, 0, 0, 0, 0, 0, 0, 1], [7, 0, 1], 0.0),
        ([0, 1, 0, 1, 0, 1, 0, 1], [1, 3, 5], 0.0),
        ([0, 0, 0, 0, 0, 2, 2, 2], [5, 6, 7], 2.0),
        ([3, 0, 0, 2, 0, 0, 2, 0], [0, 3, 6], 2.0),
    ],
)
def test_equal_router_scores_go_to_the_lowest_expert(tiny: Checkpoint, bias: list[float], ids: list[int], gap: float) -> None:
    reference = tied(tiny, [float(b) for b in bias])
    got = reference.forward(IDS[:2], reference.new_cache())
    assert got.expert_ids.tolist() == [[ids] * 3] * 2
    assert (got.router_gap == gap).all()
    assert (got.expert_weights == 0.5).all()  # sigmoid of the logit, without the bias


def test_a_model_that_selects_every_expert_has_a_finite_gap(tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(write_synthetic(tmp_path / "all", TINY | {"num_experts_per_tok": 8}))
    got = whole(checkpoint, "float64", IDS[:4])
    assert torch.isfinite(got.router_gap).all()
    assert (got.expert_ids.sort(-1).values == torch.arange(8)).all()


@pytest.mark.parametrize("ids", [[96], [-1], [3, 10**9], [0, 95, 96]])
def test_an_id_outside_the_vocabulary_is_refused_and_nothing_cached(tiny: Checkpoint, ids: list[int]) -> None:
    reference = Reference(tiny)
    cache = reference.new_cache()
    with pytest.raises(UsageError, match="is outside the vocabulary of 96; check the tokenizer"):
        reference.forward(ids, cache)
    assert cache.length == 0
    assert reference.forward([0, 95], cache).logits.shape == (2, 96)


def test_no_ids_are_refused(tiny: Checkpoint) -> None:
    reference = Reference(tiny)
    with pytest.raises(UsageError, match="a prompt needs at least one id"):
        reference.forward([], reference.new_cache())


BF16_ARMS = [arm.name for arm in floor_arms("bf16")]


def off_grid(values: torch.Tensor) -> float:
    """Share of the values that are no bf16 values."""
    return float((round_bf16(values) != values).double().mean())


@pytest.mark.parametrize("arm", BF16_ARMS)
def test_a_bf16_arm_rounds_the_residual_and_not_the_router_or_the_head(tiny: Checkpoint, arm: str) -> None:
    got = whole(tiny, arm)
    assert off_grid(got.residual) == 0
    assert off_grid(got.layer_inputs) == 0
    assert off_grid(got.router_logits) > 0.9
    assert off_grid(got.expert_weights) > 0.9
    assert off_grid(got.logits) > 0.9


def test_the_arms_of_a_class_differ_from_the_truth_and_from_each_other(tiny: Checkpoint) -> None:
    truth = whole(tiny)
    bounds: dict[NumericClass, float] = {"fp32": 2e-6, "bf16": 0.5}
    for numeric_class, bound in bounds.items():
        seen = [whole(tiny, arm.name).logits.double() for arm in floor_arms(numeric_class)]
        for index, logits in enumerate(seen):
            assert 0 < (logits - truth.logits).abs().max() / truth.logits.abs().max() < bound
            assert not any(torch.equal(logits, other) for other in seen[:index])


def test_a_pass_repeats_to_the_bit(tiny: Checkpoint) -> None:
    assert torch.equal(whole(tiny).logits, whole(tiny).logits)


def test_arms_are_found_by_name() -> None:
    assert arm_named("float32") is TRUTH
    assert TRUTH not in floor_arms("fp32")
    assert all(arm.name == name for name, arm in ARMS.items())
    with pytest.raises(UsageError, match="the reference has no arm 'int8'; it has float32, "):
        arm_named("int8")
