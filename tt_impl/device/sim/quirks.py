"""What a card may do otherwise than its ops say: faults that real devices and kernels had, each to be switched on alone.

A profile is part of the simulated device, so the decoder does not know it; gate `ops` must turn red on every one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Quirks:
    """Which quirks a simulated card has; none by default.

    Attributes:
        bf16_norm_sum: `rms_norm` adds the last 16 partial sums of squares in bf16, truncating: the sum comes out at about
            0.99 of itself (a port's was 0.9899).
        zero_narrow_norm: `rms_norm` of rows of at most 128 columns, a head's, gives exact zeros (a port's did in bf16).
        fp32_on_bf16_grid: matrix products asked for in float32 are rounded to bf16 all the same.
        flushes_subnormals: `typecast` turns subnormal numbers into zeros.
        ties_to_highest: `topk` and `argmax` prefer the highest of equal values' columns.
        bf16_attention_sum: attention rounds its running sum over the values to bf16 after every 32 positions.
        truncates: results are cut to bf16 in place of being rounded, so that all are too small.
    """

    bf16_norm_sum: bool = False
    zero_narrow_norm: bool = False
    fp32_on_bf16_grid: bool = False
    flushes_subnormals: bool = False
    ties_to_highest: bool = False
    bf16_attention_sum: bool = False
    truncates: bool = False

    @property
    def names(self) -> str:
        """As a device's identity states them: `none`, or those it has."""
        return ", ".join(f.name for f in fields(self) if getattr(self, f.name)) or "none"


NARROW = 128
"""Columns up to which a row counts as a head: the release's head size."""

NO_QUIRKS = Quirks()
"""A card that computes as its ops say, FLOAT32 operands in float32 throughout, which no matrix unit of a real one does."""

QUIRK_PROFILES: Mapping[str, Quirks] = {
    "norm-sum-bf16": Quirks(bf16_norm_sum=True),
    "narrow-norm-zero": Quirks(zero_narrow_norm=True),
    "fp32-on-bf16-grid": Quirks(fp32_on_bf16_grid=True),
    "subnormals-flushed": Quirks(flushes_subnormals=True),
    "ties-to-highest": Quirks(ties_to_highest=True),
    "attention-sum-bf16": Quirks(bf16_attention_sum=True),
    "truncating": Quirks(truncates=True),
}
