"""Kolibri-1 from the public facts alone, in dense float64 numpy, sharing no code with the reference it is compared with."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.inventory import inventory


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
        """Angles are float32 products of float32 frequencies, in the model's definition; all else is float64."""
        half = self.config.head_dim // 2
        powers = (self.config.rope_theta ** (np.arange(half) / half)).astype(np.float32)
        angle = (np.float32(position) * (np.float32(1) / powers)).astype(np.float64)
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
