"""Geometries that the kernels' vectors do not divide are refused by name, and the torch arm takes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from geometries import geometry

from oracle.errors import UsageError
from oracle.kolibri1.arms import ARMS
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.reference import Reference
from oracle.kolibri1.synthetic import write_synthetic

REFUSED: dict[str, tuple[int, dict[str, Any]]] = {
    "hidden_size is 80": (16, {"hidden_size": 80}),
    "head_dim is 16": (32, {"head_dim": 16}),
    "moe_intermediate_size is 48": (16, {"moe_intermediate_size": 48}),
    "shared_expert_intermediate_size is 112": (16, {"shared_expert_intermediate_size": 112}),
    r"weight_block_size\[1\] is 16": (16, {}),
}


@pytest.mark.parametrize("message", REFUSED)
def test_a_width_that_is_no_multiple_of_32_is_refused(tmp_path: Path, message: str) -> None:
    block, values = REFUSED[message]
    checkpoint = Checkpoint.open(write_synthetic(tmp_path / "narrow", geometry(block=block, **values)))
    with pytest.raises(
        UsageError, match=message + r", and the compiled kernels take multiples of 32; use the arm float32-blas"
    ):
        Reference(checkpoint)
    plain = Reference(checkpoint, ARMS["float32-blas"])
    assert plain.forward([1, 2, 3], plain.new_cache()).logits.isfinite().all()
