"""The arithmetic in plain torch, for every arm: `r(...)` marks the points where a bf16 run rounds."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from oracle.kolibri1.arithmetic import inverse_frequencies
from oracle.kolibri1.arms import Arm
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.fp8 import quantize_activations, to_e4m3fn
from oracle.kolibri1.weights import Weights, round_bf16, working_dtype


class TorchArithmetic:
    """See `Arithmetic` for shapes. Weights are dequantized when used, and the most recently used ones kept.

    Not invariant: torch's sums depend on shapes and threads.
    """

    def __init__(self, checkpoint: Checkpoint, arm: Arm) -> None:
        self.config = checkpoint.config
        self.arm = arm
        self.weights = Weights(checkpoint, arm)
        self.dtype = working_dtype(arm)
        self._inverse_frequencies = inverse_frequencies(checkpoint.config)
        self.r = round_bf16 if arm.dtype == "bfloat16" else _exactly

    def embed(self, ids: list[int]) -> torch.Tensor:
        return self.weights.rows("model.embed_tokens.weight", ids)

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        normalized = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.config.rms_norm_eps)
        return self.r(self.weights[name] * (self.r(normalized) if self.arm.norms == "twice" else normalized))

    def add(self, h: torch.Tensor, delta: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = h + delta
        rounded = self.r(total)
        return rounded, total if self.arm.residual == "fused" else rounded

    def linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        if self.arm.activations == "quantized":
            return self.r(self._w8a8(x, name))
        return self.r(self.product(x, name))

    def product(self, x: torch.Tensor, name: str) -> torch.Tensor:
        weight = self.weights[name]
        if self.arm.reduction == "permuted":
            x, weight = x.flip(-1), weight.flip(-1)
        return x @ weight.T

    def _w8a8(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """Both operands in fp8: per block of inputs an fp32 partial product, times both scales, summed in fp32."""
        values, scale = self.weights.quantized(name)  # [out, in], [out, blocks]
        blocks = scale.shape[1]
        width = x.shape[1] // blocks
        quantized, x_scale = quantize_activations(x, width)  # [T, in], [T, blocks]
        order = range(blocks - 1, -1, -1) if self.arm.reduction == "permuted" else range(blocks)
        total = x.new_zeros(x.shape[0], values.shape[0])
        for block in order:
            columns = slice(block * width, (block + 1) * width)
            partial = quantized[:, columns] @ values[:, columns].T
            total += partial * (x_scale[:, block, None] * scale[None, :, block])
        return total

    def sigmoid(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(x)

    def rope_angles(self, positions: range) -> tuple[torch.Tensor, torch.Tensor]:
        steps = torch.arange(positions.start, positions.stop).to(torch.float32)
        # fp32 in the float64 arm too: the model's angles are these. Exact ones move logits by 1e-5 at 8,192 tokens.
        angles = steps[:, None] * self._inverse_frequencies[None, :]
        angles = torch.cat([angles, angles], -1).to(self.dtype)
        return self.r(angles.cos()), self.r(angles.sin())

    def rotate(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        cos, sin = cos[:, None], sin[:, None]
        return self.r(self.r(x * cos) + self.r(torch.cat([-second, first], -1) * sin))

    def cached(self, x: torch.Tensor) -> torch.Tensor:
        return to_e4m3fn(x) if self.arm.kv_cache == "fp8" else x

    def attend(
        self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, first: torch.Tensor, last: torch.Tensor
    ) -> torch.Tensor:
        group = q.shape[1] // keys.shape[0]
        index = torch.arange(keys.shape[1])
        visible = (index >= first[:, None]) & (index <= last[:, None])  # [T, n]
        scores = self.r(q.transpose(0, 1) @ keys.repeat_interleave(group, 0).transpose(1, 2))  # [A, T, n]
        scores = self.r(scores * self.config.head_dim**-0.5).masked_fill(~visible, float("-inf"))
        probabilities = torch.softmax(scores, -1)
        if self.arm.probabilities == "rounded":
            probabilities = self.r(probabilities)
        mixed = self.r(probabilities @ values.repeat_interleave(group, 0))
        return mixed.transpose(0, 1).reshape(q.shape[0], -1)

    def experts(self, x: torch.Tensor, ids: torch.Tensor, prefix: str) -> tuple[torch.Tensor, torch.Tensor]:
        outputs = x.new_zeros(*ids.shape, x.shape[1])
        for expert in ids.unique().tolist():
            token, slot = (ids == expert).nonzero(as_tuple=True)
            outputs[token, slot] = self._swiglu(x[token], f"{prefix}.experts.{expert}")
        return outputs, self._swiglu(x, f"{prefix}.shared_experts")

    def combine(self, outputs: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, shared: torch.Tensor) -> torch.Tensor:
        weighted = outputs * weights[..., None]
        if self.arm.combine == "per-expert":
            by_id = ids.argsort(-1)
            ordered = self.r(weighted.gather(1, by_id[..., None].expand_as(weighted)))
            total = torch.zeros_like(shared)
            for slot in range(ordered.shape[1]):
                total = self.r(total + ordered[:, slot])
            return self.r(total + shared)
        total = weighted.sum(1)
        return self.r(total + shared) if self.arm.combine == "fp32-with-shared" else self.r(self.r(total) + shared)

    def _swiglu(self, x: torch.Tensor, prefix: str) -> torch.Tensor:
        """Rounded after each linear, after silu and after the product."""
        gate = self.linear(x, f"{prefix}.gate_proj.weight")
        up = self.linear(x, f"{prefix}.up_proj.weight")
        return self.linear(self.r(self.r(F.silu(gate)) * up), f"{prefix}.down_proj.weight")


def _exactly(x: torch.Tensor) -> torch.Tensor:
    return x
