"""RoPE's angles at the release's head width and theta: transformers' to the bit in float32, far out too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from geometries import REAL_HEADS
from transformers import Kolibri1Config
from transformers.models.kolibri1.modeling_kolibri1 import Kolibri1RotaryEmbedding

from oracle.kolibri1.arms import ARMS
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.reference import Reference
from oracle.kolibri1.synthetic import write_synthetic


@pytest.fixture(scope="module")
def real_heads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_synthetic(tmp_path_factory.mktemp("rope") / "checkpoint", REAL_HEADS)


@pytest.mark.parametrize("arm", ["float32", "float32-blas"])
@pytest.mark.parametrize("start", [0, 513, 8000, 262_000])
def test_cosines_and_sines_are_transformers(real_heads: Path, arm: str, start: int) -> None:
    """Angles are the same float32 products; cosines of them differ by a rounding at most."""
    rotary: Any = Kolibri1RotaryEmbedding(Kolibri1Config.from_pretrained(real_heads))
    expected = rotary(torch.zeros(1, 1, 1), torch.arange(start, start + 144)[None])
    got = Reference(Checkpoint.open(real_heads), ARMS[arm]).m.rope_angles(range(start, start + 144))
    for ours, theirs in zip(got, expected, strict=True):
        assert ours.shape == theirs[0].shape == (144, 128)
        assert (ours - theirs[0]).abs().max() <= 2.0**-23


@pytest.mark.parametrize("start", [0, 513, 8000, 262_000])
def test_the_float64_arm_rotates_by_the_same_float32_angles(real_heads: Path, start: int) -> None:
    """Exact angles are another model: 8,000 positions on they are off by up to 5e-4, and the logits by 1e-5."""
    wide, narrow = (
        Reference(Checkpoint.open(real_heads), ARMS[arm]).m.rope_angles(range(start, start + 144))
        for arm in ("float64", "float32")
    )
    for exact, rounded in zip(wide, narrow, strict=True):
        assert exact.dtype == torch.float64
        assert (exact - rounded).abs().max() <= 2.0**-24
