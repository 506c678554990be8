"""What the forward pass asks of its arithmetic. Two answer: plain torch, for every arm, and the compiled kernels.

T tokens, H hidden, A query heads, K key/value heads, D head_dim, k experts per token, I expert width. `name` and `prefix` are
the release's tensor names.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch

from oracle.kolibri1.config import Kolibri1Config


class Arithmetic(Protocol):
    """The numeric steps of one arm, each on torch tensors of `dtype`."""

    dtype: torch.dtype

    def embed(self, ids: list[int]) -> torch.Tensor:
        """[T, H]: the embedding's rows, unscaled."""
        ...

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """RMSNorm over the last axis with a plain weight: `w * x / sqrt(mean(x^2) + eps)`, never `1 + w`."""
        ...

    def add(self, h: torch.Tensor, delta: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The residual addition: the stream to keep, and the value the next norm reads."""
        ...

    def linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """[T, in] to [T, out] by an fp8 weight."""
        ...

    def product(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """[T, in] to [T, out] by a bf16 weight, never rounded: the router's logits and the head's (`head_dtype` float32)."""
        ...

    def sigmoid(self, x: torch.Tensor) -> torch.Tensor:
        """Elementwise, unrounded."""
        ...

    def rope_angles(self, positions: range) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin [T, D] of position * theta^(-2j / D), the angles fp32 in every arm, halves repeated (NeoX)."""
        ...

    def rotate(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """RoPE with rotate-half: x [T, heads, D]."""
        ...

    def cached(self, x: torch.Tensor) -> torch.Tensor:
        """Keys or values as the KV cache holds them."""
        ...

    def attend(
        self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, first: torch.Tensor, last: torch.Tensor
    ) -> torch.Tensor:
        """Softmax attention [T, A * D].

        Args:
            q: [T, A, D]; query head a reads key/value head a // (A / K).
            keys, values: [K, n, D].
            first, last: int64 [T], indices into n of each token's first and last visible position.
        """
        ...

    def experts(self, x: torch.Tensor, ids: torch.Tensor, prefix: str) -> tuple[torch.Tensor, torch.Tensor]:
        """`down(silu(gate x) * (up x))` of each selected expert, [T, k, H] in the order of ids [T, k]; and of the shared."""
        ...

    def combine(self, outputs: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, shared: torch.Tensor) -> torch.Tensor:
        """[T, H]: the weighted sum of the experts' outputs [T, k, H], and the shared expert."""
        ...


def inverse_frequencies(config: Kolibri1Config) -> torch.Tensor:
    """float32 [D / 2]: RoPE's theta^(-2j / D), in the steps that transformers takes, each rounded to float32.

    One power at a time in float64: a vector library's float32 power differs between machines.
    """
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).to(torch.float32) / config.head_dim
    powers = [float(config.rope_theta) ** float(exponent) for exponent in exponents]
    return torch.from_numpy(np.float32(1) / np.array(powers, dtype=np.float32))
