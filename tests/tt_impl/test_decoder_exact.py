"""The exact arm against an independent float64 forward pass over whole sequences, written from the facts page.

No paging, no streaming, no step by step: attention with a mask, experts by name, fp8 decoded by ml_dtypes.
Blind to: rounding of the bf16 arm, which its class's floor judges; anything that both follow from a wrong fact.
"""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from oracle.kolibri1.checkpoint import Checkpoint
from tt_impl.decode import Decoder
from tt_impl.device.protocol import DType

LENGTH = 75  # past the window of 9 and two KV blocks of 32


class Dense:
    """Kolibri-1 over a whole sequence in float64."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.config = checkpoint.config

    def weight(self, name: str) -> np.ndarray:
        spec, raw = self.checkpoint.spec(name), self.checkpoint.raw(name)
        if spec.dtype == "BF16":
            return raw.view(ml_dtypes.bfloat16).reshape(spec.shape).astype(np.float64)
        grid = self.checkpoint.spec(name + "_scale_inv").shape
        scales = self.checkpoint.raw(name + "_scale_inv").view(np.float32).reshape(grid)
        block = np.ones((spec.shape[0] // grid[0], spec.shape[1] // grid[1]), np.float32)
        quantized = raw.view(ml_dtypes.float8_e4m3fn).reshape(spec.shape).astype(np.float32)
        return (quantized * np.kron(scales, block)).astype(np.float64)

    def rms(self, x: np.ndarray, name: str) -> np.ndarray:
        return self.weight(name) * x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + self.config.rms_norm_eps)

    def attention(self, x: np.ndarray, layer: int) -> np.ndarray:
        config, prefix = self.config, f"model.layers.{layer}.self_attn"
        length, width = len(x), config.head_dim
        q, k, v = ((x @ self.weight(f"{prefix}.{n}_proj.weight").T).reshape(length, -1, width) for n in "qkv")
        q, k = self.rms(q, f"{prefix}.q_norm.weight"), self.rms(k, f"{prefix}.k_norm.weight")
        i, j = np.mgrid[:length, :length]
        visible = j <= i
        if config.layer_types[layer] == "sliding_attention":
            frequency = np.float32(config.rope_theta) ** (-np.arange(0, width, 2, dtype=np.float32) / np.float32(width))
            turn = np.exp(1j * (np.arange(length, dtype=np.float32)[:, None] * frequency).astype(np.float64))[:, None]
            q, k = (self.turned(part, turn) for part in (q, k))
            visible &= i - j < config.sliding_window
        k, v = (np.repeat(part, config.num_attention_heads // config.num_key_value_heads, axis=1) for part in (k, v))
        scores = np.where(visible, np.einsum("iad,jad->aij", q, k) / np.sqrt(width), -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        out = np.einsum("aij,jad->iad", weights / weights.sum(axis=-1, keepdims=True), v)
        return out.reshape(length, -1) @ self.weight(f"{prefix}.o_proj.weight").T

    @staticmethod
    def turned(x: np.ndarray, turn: np.ndarray) -> np.ndarray:
        half = x.shape[-1] // 2
        plane = (x[..., :half] + 1j * x[..., half:]) * turn
        return np.concatenate([plane.real, plane.imag], axis=-1)

    def feed_forward(self, x: np.ndarray, prefix: str) -> np.ndarray:
        gate, up = (x @ self.weight(f"{prefix}.{n}_proj.weight").T for n in ("gate", "up"))
        return gate / (1 + np.exp(-gate)) * up @ self.weight(f"{prefix}.down_proj.weight").T

    def experts(self, x: np.ndarray, layer: int) -> tuple[np.ndarray, np.ndarray]:
        prefix = f"model.layers.{layer}"
        logits = x @ self.weight(f"{prefix}.mlp.gate.weight").T
        scores = logits + self.weight(f"{prefix}.moe.router.expert_bias")
        chosen = np.argsort(-scores, axis=1, kind="stable")[:, : self.config.num_experts_per_tok]
        out = self.feed_forward(x, f"{prefix}.mlp.shared_experts")
        for row, experts in enumerate(chosen):
            for expert in experts:
                y = self.feed_forward(x[row], f"{prefix}.mlp.experts.{expert}")
                out[row] += y / (1 + np.exp(-logits[row, expert]))
        return out, chosen

    def forward(self, ids: list[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Logits [T, V], residual after each layer [T, L, H], expert ids [T, L, k]."""
        h = self.weight("model.embed_tokens.weight")[ids]
        residual, chosen = [], []
        for layer in range(self.config.num_hidden_layers):
            prefix = f"model.layers.{layer}"
            attended = self.attention(self.rms(h, f"{prefix}.input_layernorm.weight"), layer)
            h = h + self.rms(attended, f"{prefix}.post_attn_norm.weight")
            mixed, experts = self.experts(self.rms(h, f"{prefix}.post_attention_layernorm.weight"), layer)
            h = h + self.rms(mixed, f"{prefix}.post_ffn_norm.weight")
            residual.append(h)
            chosen.append(experts)
        logits = self.rms(h, "model.norm.weight") @ self.weight("lm_head.weight").T
        return logits, np.stack(residual, axis=1), np.stack(chosen, axis=1)


@pytest.fixture(scope="module")
def ids() -> list[int]:
    return np.random.default_rng(11).integers(0, 96, LENGTH).tolist()


@pytest.fixture(scope="module")
def dense(tiny: Checkpoint, ids: list[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return Dense(tiny).forward(ids)


def test_the_exact_arm_agrees_at_every_position(
    open_decoder: Callable[..., Decoder], dense: tuple[np.ndarray, np.ndarray, np.ndarray], ids: list[int]
) -> None:
    decoder = open_decoder(DType.FLOAT32)
    steps = [decoder.step(token) for token in ids]
    logits, residual, chosen = dense
    shown = [step.expert_ids for step in steps if step.expert_ids is not None]
    assert [experts.tolist() for experts in shown] == chosen.tolist()
    for found, expected in zip(steps, logits, strict=True):
        assert np.abs(found.logits - expected).max() < 1e-5 * np.abs(expected).max()
    for found, expected in zip(steps, residual, strict=True):
        assert found.residual is not None
        assert np.abs(found.residual - expected).max() < 1e-5 * np.abs(expected).max()


def test_the_bf16_arm_is_near_and_not_equal(
    open_decoder: Callable[..., Decoder], dense: tuple[np.ndarray, np.ndarray, np.ndarray], ids: list[int]
) -> None:
    decoder = open_decoder(DType.BFLOAT16)
    found = np.stack([decoder.step(token).logits for token in ids])
    errors = np.abs(found - dense[0]).max(axis=1) / np.abs(dense[0]).max(axis=1)
    assert 1e-4 < np.median(errors) < 0.1
