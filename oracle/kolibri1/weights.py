"""A checkpoint's tensors as the reference's working copies, made when first asked for."""

from __future__ import annotations

import torch

from oracle.kolibri1.arms import Arm
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.fp8 import dequantize
from oracle.kolibri1.inventory import SCALE_SUFFIX

_DTYPE = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.float32}


def working_dtype(arm: Arm) -> torch.dtype:
    """The dtype an arm computes in: fp32 for the bf16 arms, which round values, not storage."""
    return _DTYPE[arm.dtype]


def round_bf16(x: torch.Tensor) -> torch.Tensor:
    """Round to the nearest bf16 value (ties to even), kept in x's dtype."""
    return x.to(torch.bfloat16).to(x.dtype)


class Weights:
    """Tensors by the release's names, dequantized and cast for one arm, cached.

    Args:
        checkpoint: an opened checkpoint.
        arm: decides the dtype, and whether weights are rounded to bf16 (one rounding of the fp32 product q * s).
    """

    def __init__(self, checkpoint: Checkpoint, arm: Arm) -> None:
        self._checkpoint = checkpoint
        self._dtype = working_dtype(arm)
        self._round = arm.dtype == "bfloat16"
        self._cache: dict[str, torch.Tensor] = {}

    def __getitem__(self, name: str) -> torch.Tensor:
        """The tensor `name` (without `.weight_scale_inv`; fp8 weights come dequantized), shape as stored.

        Raises:
            CheckpointError: no such tensor, or it holds NaN or infinity.
        """
        if name not in self._cache:
            self._cache[name] = self._load(name)
        return self._cache[name]

    def _load(self, name: str) -> torch.Tensor:
        spec = self._checkpoint.spec(name)
        raw = torch.from_numpy(self._checkpoint.raw(name).copy())
        if spec.dtype == "F8_E4M3":
            grid = self._checkpoint.spec(name + SCALE_SUFFIX)
            scale = torch.from_numpy(self._checkpoint.raw(name + SCALE_SUFFIX).copy()).view(torch.float32)
            value = dequantize(raw.reshape(spec.shape), scale.reshape(grid.shape))
            value = round_bf16(value) if self._round else value
        else:
            value = raw.view(torch.bfloat16).reshape(spec.shape)
        return value.to(self._dtype)
