"""Random checkpoints hide no fault: no two tensors, experts or blocks are alike, and a seed gives the same bytes."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.inventory import inventory
from oracle.kolibri1.synthetic import TINY, write_synthetic


def test_no_two_tensors_of_one_shape_are_alike(tiny: Checkpoint) -> None:
    bodies = [(tiny.spec(s.name).shape, tiny.raw(s.name).tobytes()) for s in inventory(tiny.config)]
    assert len(set(bodies)) == len(bodies)


def test_no_two_scales_of_a_grid_are_alike_and_none_is_a_power_of_two(tiny: Checkpoint) -> None:
    for spec in inventory(tiny.config):
        if spec.dtype == "F32":
            values = tiny.raw(spec.name).view("<f4")
            assert len(set(values.tolist())) == values.size > 1
            assert not (np.frexp(values)[0] == 0.5).any()


def test_router_biases_are_not_zero_and_differ(tiny: Checkpoint) -> None:
    for layer in range(3):
        raw = tiny.raw(f"model.layers.{layer}.moe.router.expert_bias").view("<u2")
        assert len(set(raw.tolist())) == raw.size
        assert raw.all()


def test_a_seed_gives_the_same_tensors_and_another_seed_others(tiny: Checkpoint, tmp_path: Path) -> None:
    again, other = (Checkpoint.open(write_synthetic(tmp_path / str(seed), seed=seed)) for seed in (0, 1))
    names = [spec.name for spec in inventory(tiny.config)]
    assert all(again.raw(name).tobytes() == tiny.raw(name).tobytes() for name in names)
    assert not any(other.raw(name).tobytes() == tiny.raw(name).tobytes() for name in names)


def test_another_geometry_is_written_as_asked(tmp_path: Path) -> None:
    config: dict[str, Any] = copy.deepcopy(TINY)
    config |= {"num_experts": 5, "num_experts_per_tok": 5, "layer_types": ["full_attention"], "num_hidden_layers": 1}
    opened = Checkpoint.open(write_synthetic(tmp_path / "one-layer", config, shards=1))
    assert opened.config.num_experts == 5
    assert opened.spec("model.layers.0.mlp.gate.weight").shape == (5, 64)


def test_a_config_that_is_no_kolibri_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValidationError):
        write_synthetic(tmp_path / "none", TINY | {"norm_topk_prob": True})
    assert not (tmp_path / "none").exists()
