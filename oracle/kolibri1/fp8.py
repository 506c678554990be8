"""The oracle's own reading of the fp8 weights: e4m3fn bytes and fp32 block scales to full values. Torch only.

Closed to the implementation under test, so that one bug cannot hide in both.
"""

from __future__ import annotations

import torch


def _e4m3fn_values() -> torch.Tensor:
    """float32 [256]: the value of every e4m3fn code: 1 sign, 4 exponent (bias 7), 3 mantissa bits; no infinity; 0x7F is NaN.

    Source: "FP8 Formats for Deep Learning", Micikevicius et al. 2022, table 1 (E4M3).
    """
    code = torch.arange(256, dtype=torch.int64)
    exponent, mantissa = (code >> 3) & 0xF, (code & 0x7).double()
    normal = torch.exp2(exponent.double() - 7) * (1 + mantissa / 8)
    subnormal = 2.0**-6 * mantissa / 8
    value = torch.where(exponent == 0, subnormal, normal)
    value = torch.where((code & 0x7F) == 0x7F, torch.full_like(value, float("nan")), value)
    return torch.where(code >= 128, -value, value).float()


E4M3FN = _e4m3fn_values()
"""float32 [256], indexed by the byte."""


def dequantize(codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Full fp32 weight of one fp8 tensor: `W[o, i] = fp32(q[o, i]) * scale[o // rows, i // columns]`, one fp32 product.

    Despite its name on disk (`weight_scale_inv`) the scale multiplies (facts, section 4).

    Args:
        codes: uint8 [out, in], e4m3fn bytes.
        scale: float32 [out / rows, in / columns].

    Returns:
        float32 [out, in].

    Raises:
        ValueError: the grid does not divide the weight.
    """
    (rows, columns), (grid_rows, grid_columns) = codes.shape, scale.shape
    if rows % grid_rows or columns % grid_columns:
        raise ValueError(f"a {grid_rows}x{grid_columns} grid of scales does not divide a {rows}x{columns} weight")
    # A table look-up: torch's own fp8 conversion runs at about 0.1 GB/s on a CPU.
    values = E4M3FN[codes.to(torch.int64)]
    blocks = values.reshape(grid_rows, rows // grid_rows, grid_columns, columns // grid_columns)
    return (blocks * scale[:, None, :, None]).reshape(rows, columns)


E4M3FN_MAX = 448.0


def to_e4m3fn(x: torch.Tensor) -> torch.Tensor:
    """Each value as e4m3fn holds it (nearest, ties to even, saturating at 448), in x's dtype."""
    clamped = x.float().clamp(-E4M3FN_MAX, E4M3FN_MAX)  # part of the rule: torch's versions differ in what they make of more
    return E4M3FN[clamped.to(torch.float8_e4m3fn).view(torch.uint8).to(torch.int64)].to(x.dtype)


def quantize_activations(x: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Dynamic activation quantization, per token and group of `width` inputs: `scale = max(|x|, 1e-10) / 448`.

    Source: the facts, section 4 (vLLM's fp8_utils and transformers' finegrained fp8).

    Args:
        x: float32 [T, in].
        width: inputs per group; divides `in`.

    Returns:
        float32 [T, in], values of e4m3fn, and float32 [T, in / width], the scales.
    """
    groups = x.reshape(len(x), -1, width)
    scale = groups.abs().amax(-1).clamp(min=1e-10) / E4M3FN_MAX
    return to_e4m3fn(groups / scale[..., None]).reshape(x.shape), scale
