"""A checkpoint's tensors as the reference's working copies, made when first asked for."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import numpy as np
import torch

from oracle.kolibri1.arms import Arm
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.fp8 import E4M3FN, dequantize
from oracle.kolibri1.inventory import SCALE_SUFFIX

_DTYPE = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.float32}


def working_dtype(arm: Arm) -> torch.dtype:
    """The dtype an arm computes in: fp32 for the bf16 arms, which round values, not storage."""
    return _DTYPE[arm.dtype]


def round_bf16(x: torch.Tensor) -> torch.Tensor:
    """Round to the nearest bf16 value (ties to even), kept in x's dtype."""
    return x.to(torch.bfloat16).to(x.dtype)


class Weights:
    """Tensors by the release's names, dequantized and cast for one arm; the most recently used ones are kept.

    Args:
        checkpoint: an opened checkpoint.
        arm: decides the dtype, and whether weights are rounded to bf16 (one rounding of the fp32 product q * s).
        budget: bytes of working copies to keep; the least recently used one goes first.
    """

    def __init__(self, checkpoint: Checkpoint, arm: Arm, budget: int = 1 << 30) -> None:
        self._checkpoint = checkpoint
        self._dtype = working_dtype(arm)
        self._round = arm.dtype == "bfloat16"
        self._budget = budget
        self._cache: OrderedDict[str, tuple[torch.Tensor, ...]] = OrderedDict()
        self._bytes = 0

    def __getitem__(self, name: str) -> torch.Tensor:
        """The tensor `name` (without `.weight_scale_inv`; fp8 weights come dequantized), shape as stored.

        Raises:
            CheckpointError: no such tensor, or it holds NaN or infinity.
        """
        return self._kept(name, lambda: (self._load(name),))[0]

    def rows(self, name: str, ids: list[int]) -> torch.Tensor:
        """Rows `ids` of a bf16 tensor, [len(ids), width]; nothing else of it is read or kept."""
        raw = np.stack([self._checkpoint.row(name, i) for i in ids])
        return torch.from_numpy(raw).view(torch.bfloat16).to(self._dtype)

    def quantized(self, name: str) -> tuple[torch.Tensor, torch.Tensor]:
        """An fp8 weight's unscaled values [out, in], and its scales for every row [out, blocks]."""

        def load() -> tuple[torch.Tensor, ...]:
            codes, scale = self._codes(name)
            return E4M3FN[codes.to(torch.int64)], scale.repeat_interleave(len(codes) // len(scale), 0)

        values, scale = self._kept(f"{name} unscaled", load)
        return values, scale

    def _kept(self, key: str, load: Callable[[], tuple[torch.Tensor, ...]]) -> tuple[torch.Tensor, ...]:
        if key in self._cache:
            self._cache.move_to_end(key)
            return self._cache[key]
        loaded = load()
        self._cache[key] = loaded
        self._bytes += sum(tensor.nbytes for tensor in loaded)
        while self._bytes > self._budget and len(self._cache) > 1:
            _, dropped = self._cache.popitem(last=False)
            self._bytes -= sum(tensor.nbytes for tensor in dropped)
        return loaded

    def _load(self, name: str) -> torch.Tensor:
        spec = self._checkpoint.spec(name)
        if spec.dtype == "F8_E4M3":
            value = dequantize(*self._codes(name))
            value = round_bf16(value) if self._round else value
        else:
            value = torch.from_numpy(self._checkpoint.raw(name).copy()).view(torch.bfloat16).reshape(spec.shape)
        return value.to(self._dtype)

    def _codes(self, name: str) -> tuple[torch.Tensor, torch.Tensor]:
        """The stored bytes [out, in] and the fp32 grid of scales."""
        raw = torch.from_numpy(self._checkpoint.raw(name).copy())
        grid = torch.from_numpy(self._checkpoint.raw(name + SCALE_SUFFIX).copy()).view(torch.float32)
        shape, grid_shape = self._checkpoint.spec(name).shape, self._checkpoint.spec(name + SCALE_SUFFIX).shape
        return raw.reshape(shape), grid.reshape(grid_shape)
