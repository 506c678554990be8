"""What a device must answer for its ops to be judged one by one, and the evidence that is kept of that. No arithmetic.

The ops are those of a Kolibri-1 decode step, named and shaped as in ttnn without leading dimensions of 1. B users, R rows, C
columns, H query heads, G key/value heads, D head size. Element types are the arrays' own: bfloat16 (ml_dtypes), float32,
uint32, uint16, int32; layouts and shards are the subject's affair. Operands, then `parameters`, then results:

- `embedding`: ids uint32 [1, R], weight [V, C] -> [R, C]
- `typecast`: x [R, C]; `dtype` -> [R, C]
- `rms_norm`: x [..., C], weight [1, C]; `epsilon` -> as x
- `linear`: x [R, in], weight [out, in]; `dtype` -> [R, out]
- `matmul`: a [R, K], b [K, C]; `dtype` -> [R, C]
- `add`, `mul`: a, b [R, C] -> [R, C]
- `silu`, `sigmoid`: x [R, C] -> [R, C]
- `swiglu`: x [R, 2C] -> x[:, :C] * silu(x[:, C:])
- `concat_rows`: 0, 1, ... [R, C] each -> [sum of R, C]
- `topk`: x [R, C]; `k` -> values [R, k], columns [R, k] (uint16 of bfloat16, uint32 of float32)
- `gather`: x [R, C], index [R, k] -> [R, k]
- `argmax`: x [R, C] -> uint32 [1, R]
- `nlp_create_qkv_heads_decode`: x [B, (H + 2G) D]; `num_heads`, `num_kv_heads` -> [B, H, D], [B, G, D], [B, G, D]
- `nlp_concat_heads_decode`: x [B, H, D] -> [B, H D]
- `rotary_embedding_hf`: x [B, H, D], cos, sin [B, D] -> [B, H, D]
- `paged_update_cache`: cache [blocks, G, block size, D], x [B, G, D], update_idxs_tensor int32 [1, B], page_table int32 [B, n]
  -> the cache afterwards
- `paged_fill_cache`: cache, x [G, T, D], page_table; `batch_idx` -> the cache afterwards
- `paged_scaled_dot_product_attention_decode`: q [B, H, D], k_cache, v_cache, page_table, cur_pos_tensor int32 [1, B];
  `scale`, `sliding_window_size` (None: none) -> [B, H, D]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from ml_dtypes import bfloat16

from oracle.subjects.protocol import SubjectIdentity, SubjectRequest

HostArray = npt.NDArray[Any]
Parameter = float | int | str | None


class RunsOps(Protocol):
    """An opened device, without a model on it."""

    @property
    def identity(self) -> SubjectIdentity:
        """Who is asked. By its numeric class the judge asks for the ops that its arm needs: of float32 activations in `fp32`,
        of bfloat16 ones in the others. What arms there are besides is the subject's affair."""
        ...

    def run_op(
        self, name: str, operands: Mapping[str, HostArray], parameters: Mapping[str, Parameter]
    ) -> tuple[HostArray, ...]:
        """Put the operands on the device, run one op there, and read its results back, unconverted.

        Raises:
            oracle.errors.DeviceFault: the device refuses the operands, or a fault came up. The next op is asked all the same.
        """
        ...

    def close(self) -> None:
        """Release the device."""
        ...


@runtime_checkable
class OpensOps(Protocol):
    """An ability of a subject's factory: to open its device alone, so that gate `ops` can run before anything decodes."""

    def open_ops(self, request: SubjectRequest) -> RunsOps:
        """Open the device that `request` names, with its plant if there is one.

        Raises:
            oracle.errors.SubjectError: unknown arm, device or plant, or something it needs is not installed.
            oracle.errors.DeviceFault: the device does not open.
        """
        ...


@dataclass(frozen=True)
class OpStatistics:
    """One op at one geometry against float64, as the judge measured it from the raw results.

    Attributes:
        case: the judge's name for op, geometry and dtype.
        dtype: of the results.
        compared: elements compared.
        unequal: elements that differ, where bits must be equal.
        error: greatest error, in units: an ulp of the true value in `dtype`, and what sums in float32 and roundings before
            the last one may add (`oracle.judge.ops_exact`).
        worst: greatest error as a multiple of what the op may be off there.
        bias: mean signed error, in units; `growth` the same of magnitudes, negative where results are too small.
        standard_error: of both means, were there no bias; with what a row's elements have in common.
        non_finite: NaN or infinite elements where the true value is finite.
        constant_rows: rows of one value where the true row has several.
        on_grid: float32 elements that bfloat16 holds too, where that is not to be expected of all.
        fault: what the device raised, or what is wrong with the results' number, shape or dtype; empty if nothing.
    """

    case: str
    dtype: str
    compared: int = 0
    unequal: int = 0
    error: float = 0.0
    worst: float = 0.0
    bias: float = 0.0
    growth: float = 0.0
    standard_error: float = 0.0
    non_finite: int = 0
    constant_rows: int = 0
    on_grid: int = 0
    fault: str = ""


@dataclass(frozen=True)
class OpsEvidence:
    """What the judge measured of a device's ops, in the order of its plan."""

    cases: tuple[OpStatistics, ...] = ()


def array_dtype(name: str) -> np.dtype[Any]:
    """The numpy dtype called `name`, bfloat16 included."""
    return np.dtype(bfloat16) if name == "bfloat16" else np.dtype(name)
